"""Instructions of the kernels with a bias for each pair of a query and a key, and the least time that they take.

    python benchmarks/gpu/bias_instructions.py

Needs Triton, and no GPU: the kernels are compiled for an H200 and taken apart. Four schedulers of a multiprocessor
begin an instruction of 32 threads in each cycle, 128 of a thread in all, and 16 exponentials (CUDA C++ programming
guide, throughput of arithmetic instructions, compute capability 9.0). The layer has 4 heads of 384 tokens and 512
sequences. "dQ, dK, dV" is the kernel of `bias_one_pass.py`, which computes them at once. Of a kernel for Hopper they
are those of the loop over sequences or, where rows of the bias stay, of the one over tiles in it, in the mean of its
warpgroups, each of which has a text of its own.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import bias_one_pass

from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.triton.triton import triton
from pebblesim.operator.bias import programs

D, KEYS = 32, 384
PAIRS = 512 * 4 * KEYS * KEYS
THREADS, EXPONENTIALS, UNITS, CLOCK = 128, 16, 132, 1.98e9
"""Instructions and exponentials that a multiprocessor begins a cycle, multiprocessors, and the highest clock in Hz."""

PASSES = {"O": programs.FORWARD, "dQ": programs.OF_QUERIES, "dK, dV": programs.ACROSS, "dB": programs.OF_BIAS}

STAYING = {"O, rows stay": programs.FORWARD, "dK, dV, rows stay": programs.ACROSS}

AT_ONCE = (64, 64, 4, 2)
"""Tiles, warps and stages of the kernel of `bias_one_pass.py`."""

INSTRUCTION = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9]+)")
"""A line of a disassembled kernel, and the name of its instruction."""

GROUPS = {
    "of numbers": ("FFMA", "FADD", "FMUL", "FMNMX", "MUFU", "F2FP", "FSEL", "FSETP"),
    "of words": ("LDG", "STG", "LDS", "STS", "LDSM", "STSM", "LDGSTS", "LDL", "STL", "SHFL"),
    "of products": ("HGMMA", "HMMA", "WARPGROUP"),
}
"""Instructions by what they are for; all others are of addresses, loops, waiting, and of a 16-bit bias made 32-bit."""


class Made(NamedTuple):
    """A kernel: its text, its name, names of tensors in float32, all tensors that it is given addresses of, pairs of an
    iteration for each thread, and its warpgroups if it is one for Hopper."""

    text: str
    name: str
    wide: frozenset[str]
    tensors: tuple[str, ...]
    pairs: float
    warpgroups: int = 0


def kernels() -> Iterator[tuple[str, Made]]:
    """The kernels, by what they compute."""
    for name, which in PASSES.items():
        made = programs.kernels_of(which, "16 bits", D)
        program, blocks = programs.program(which, made), made.tiling.blocks
        sizes = {"n_q": 2**14, "n_k": 2**14, "d_k": D, "d_v": D, **blocks, "R": max(2, made.sequences)}
        options = programs.launched(made.tiling)
        source = triton(program, sizes, "bfloat16", scale=D**-0.5, far=False, shared=1, **options)
        yield name, _made(program, source, blocks, made.sequences)
    for name, which in STAYING.items():
        made = programs.STAYING[which]
        program, blocks = programs.program(which, made), made.tiling.blocks
        stay, stream = blocks.values()
        lengths = (64 * KEYS, KEYS) if which == programs.FORWARD else (KEYS, 64 * KEYS)
        sizes = {**dict(zip(("n_q", "n_k"), lengths, strict=True)), "d_k": D, "d_v": D, "R": 2, **blocks}
        source = gluon(program, sizes, scale=D**-0.5, shared=1, stages=made.tiling.stages, streams=made.sequences)
        vectors = frozenset({"L", "v"})
        yield name, Made(source.text, source.kernels[-1].name, vectors, (), stay * stream / 128, made.sequences)
    made = programs.at_once(KEYS)
    program, blocks = programs.program(programs.AT_ONCE, made), made.tiling.blocks
    sizes = {"n_q": 64 * KEYS, "n_k": 64 * KEYS, "d_k": D, "d_v": D, "R": 2, **blocks}
    text = gluon(program, sizes, scale=D**-0.5, shared=1, stages=made.tiling.stages).text
    groups = made.tiling.warps // 4 - 1
    yield "dQ, dB", Made(text, "dQ_dB", frozenset({"dB"}), (), blocks["B_r"] * KEYS / groups / 128, groups)
    program, source = bias_one_pass.source(AT_ONCE)
    yield "dQ, dK, dV", _made(program, source, dict(zip(("B_r", "B_c"), AT_ONCE[:2], strict=True)), 1, "dQ")


def _made(program: Any, source: Any, blocks: Mapping[str, int], sequences: int, *wide: str) -> Made:
    kernel, (stay, stream) = source.kernels[-1], blocks.values()
    vectors = {name for name, tensor in program.tensors.items() if len(tensor.shape) == 1}
    warps = _asked(source.text, kernel.name)["num_warps"]
    pairs = stay * stream * sequences / (32 * warps)
    return Made(source.text, kernel.name, frozenset({*vectors, *wide}), tuple(kernel.tensors), pairs)


def _asked(text: str, name: str) -> dict[str, Any]:
    """The options of a launch."""
    (launch,) = re.findall(rf"^ +{name}\[.*?((?:, \w+=\d+)+)\)$", text, re.M)
    return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", launch)}


def disassembled(made: Made, folder: Path) -> list[str]:
    """The lines of a kernel as an H200 has it."""
    import triton as compiler
    from triton.backends.compiler import GPUTarget

    path = folder / f"kernels_{made.name}.py"
    path.write_text(made.text, encoding="utf-8")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module := module_from_spec(spec))
    function = getattr(module, made.name)
    source = _of_gluon(made, function) if made.warpgroups else _of_triton(made, function)
    compiled = compiler.compile(source, GPUTarget("cuda", 90, 32), _asked(made.text, made.name))
    (folder / "kernel.cubin").write_bytes(compiled.asm["cubin"])
    origin = find_spec("triton")
    assert origin is not None and origin.origin is not None
    tool = Path(origin.origin).parent / "backends/nvidia/bin/nvdisasm"
    text = subprocess.run([str(tool), "-c", str(folder / "kernel.cubin")], capture_output=True, text=True, check=True)
    return text.stdout.splitlines()


def in_loop(made: Made, folder: Path, named: re.Pattern[str] = INSTRUCTION) -> Counter[str]:
    """Instructions of a thread in the innermost loop that multiplies, for each pair, by what they are.

    `named`: a line of a disassembled kernel, and the name by which its instruction is counted.
    """
    loops = _loops(disassembled(made, folder), named)
    if not made.warpgroups:
        return Counter({name: count / made.pairs for name, count in loops[0].items()})
    of_sequences = sorted((each for each in loops if _exponentials(each) >= made.pairs), key=Counter.total)
    whole = sum(of_sequences[: made.warpgroups], Counter[str]())
    return Counter({name: count / made.pairs / made.warpgroups for name, count in whole.items()})


def _of_triton(made: Made, function: Any) -> Any:
    """The source of a Triton kernel, with the types of its arguments."""
    from triton.compiler import ASTSource

    tensors = [f"*{'fp32' if name in made.wide else 'bf16'}" for name in made.tensors]
    kinds = dict(zip(function.arg_names, [*tensors, *["i32"] * len(function.arg_names)], strict=False))
    general = set(function.do_not_specialize or ())
    attributes = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(kinds) if name not in general}
    return ASTSource(function, kinds, {}, attributes)


def _of_gluon(made: Made, function: Any) -> Any:
    """The source of a Gluon kernel, with the types of its arguments, as `run` describes boxes to the copy engine."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    boxes = {}
    for name, kind, sides in re.findall(r"    (\w+) = (copies|numbers|tiles|vectors)_of\(\w+, (.*)\)\n", made.text):
        *_, rows, columns = (0, *(int(side) if side.isdecimal() else 0 for side in sides.split(", ")))
        boxes_of = {"copies": [1, 1, 1, rows, columns], "tiles": [1, 1, rows, columns]}
        box, word = (boxes_of[kind], "bf16") if kind in boxes_of else ([1, columns], "fp32")
        layout = gl.NVMMASharedLayout.get_default_for(box, gl.float32 if word == "fp32" else gl.bfloat16)
        boxes[name] = f"tensordesc<{word}{box},{layout!r}>"
    kinds = {name: boxes.get(name, "i32") for name in function.arg_names}
    for name in kinds:
        if name.endswith("_ptr"):
            kinds[name] = "*fp32" if name.removesuffix("_ptr") in made.wide else "*bf16"
    attributes = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(kinds) if kinds[name][0] == "*"}
    return GluonASTSource(function, kinds, {}, attributes)


def _loops(lines: list[str], named: re.Pattern[str]) -> list[Counter[str]]:
    """Instructions of loops, by name: of those with most exponentials first, and of these of the shortest."""
    labels = {found[1]: at for at, line in enumerate(lines) if (found := re.match(r"^(\.L_x_\d+):", line.strip()))}
    loops = []
    for at, line in enumerate(lines):
        jump = re.search(r"BRA.*`\((\.L_x_\d+)\)", line)
        if jump and labels.get(jump[1], at) < at:
            inside = (named.search(x) for x in lines[labels[jump[1]] : at])
            loops.append(Counter(found[1] for found in inside if found))
    return sorted(loops, key=lambda found: (-_exponentials(found), found.total()))


def _exponentials(found: Counter[str]) -> int:
    return sum(count for name, count in found.items() if name.startswith("MUFU"))


def main() -> None:
    behind = "others", "exponentials", "at one a cycle, µs", "exponentials alone, µs"
    heads = ["kernel", "instructions", *GROUPS, *behind]
    print("|", " | ".join(heads), "|\n|---" + "|---:" * (len(heads) - 1) + "|")
    whole: Counter[str] = Counter()
    with TemporaryDirectory() as folder:
        for name, made in kernels():
            found = in_loop(made, Path(folder))
            groups = [sum(found[each] for each in several) for several in GROUPS.values()]
            total, exponentials = found.total(), found["MUFU"]
            times = [1e6 * PAIRS / UNITS / CLOCK * work for work in (total / THREADS, exponentials / EXPONENTIALS)]
            numbers = [*(f"{each:.1f}" for each in (total, *groups, total - sum(groups))), f"{exponentials:.2f}"]
            print("|", " | ".join([name, *numbers, *(f"{each:.0f}" for each in times)]), "|")
            if name in PASSES:
                whole.update(instructions=total, exponentials=exponentials, time=times[0], alone=times[1])
    print("O, dQ, dK and dV, dB: {instructions:.1f}, {time:.0f} µs; {exponentials:.2f}, {alone:.0f} µs".format(**whole))


if __name__ == "__main__":
    main()
