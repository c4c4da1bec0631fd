"""Instructions of the kernels with a bias for each pair of a query and a key, and the least time that they take.

    python benchmarks/gpu/bias_instructions.py

Needs Triton, and no GPU: the kernels are compiled for an H200 and taken apart. Four schedulers of a multiprocessor
begin an instruction of 32 threads in each cycle, 128 of a thread in all, and 16 exponentials (CUDA C++ programming
guide, throughput of arithmetic instructions, compute capability 9.0). The layer has 4 heads of 384 tokens and 512
sequences.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pebblesim.kernels.triton import triton
from pebblesim.operator import programs_of_bias as programs

D, PAIRS = 32, 512 * 4 * 384 * 384
THREADS, EXPONENTIALS, UNITS, CLOCK = 128, 16, 132, 1.98e9
"""Instructions and exponentials that a multiprocessor begins a cycle, multiprocessors, and the highest clock in Hz."""

PASSES = {"O": programs.FORWARD, "dQ": programs.OF_QUERIES, "dK, dV": programs.ACROSS, "dB": programs.OF_BIAS}

INSTRUCTION = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9]+)")
"""A line of a disassembled kernel, and the name of its instruction."""


def in_loop(which: int, folder: Path) -> Counter[str]:
    """Instructions of a thread in the innermost loop that multiplies, for each pair, by what they are."""
    import triton as compiler
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    made = programs.kernels_of(which, "16 bits", D)
    program, blocks = programs.program(which, made), made.tiling.blocks
    sizes = {"n_q": 2**14, "n_k": 2**14, "d_k": D, "d_v": D, **blocks, "R": max(2, made.sequences)}
    options = programs.launched(made.tiling)
    source = triton(program, sizes, "bfloat16", scale=D**-0.5, far=False, shared=1, **options)
    kernel, path = source.kernels[-1], folder / f"kernels_{which}.py"
    path.write_text(source.text, encoding="utf-8")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module := module_from_spec(spec))
    function = getattr(module, kernel.name)
    vectors = {name for name, tensor in program.tensors.items() if len(tensor.shape) == 1}
    tensors = [f"*{'fp32' if name in vectors else 'bf16'}" for name in kernel.tensors]
    kinds = dict(zip(function.arg_names, [*tensors, *["i32"] * len(function.arg_names)], strict=False))
    general = set(function.do_not_specialize or ())
    attributes = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(kinds) if name not in general}
    (launch,) = re.findall(rf"^ +{kernel.name}\[.*?((?:, \w+=\d+)+)\)$", source.text, re.M)
    asked: dict[str, Any] = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", launch)}
    compiled = compiler.compile(ASTSource(function, kinds, {}, attributes), GPUTarget("cuda", 90, 32), asked)
    (folder / "kernel.cubin").write_bytes(compiled.asm["cubin"])
    origin = find_spec("triton")
    assert origin is not None and origin.origin is not None
    tool = Path(origin.origin).parent / "backends/nvidia/bin/nvdisasm"
    text = subprocess.run([str(tool), "-c", str(folder / "kernel.cubin")], capture_output=True, text=True, check=True)
    stay, stream = list(blocks.values())
    pairs = stay * stream * made.sequences / (32 * asked["num_warps"])
    return Counter({name: count / pairs for name, count in _loop(text.stdout.splitlines()).items()})


def _loop(lines: list[str]) -> Counter[str]:
    """Instructions of the loop that has most exponentials, by name."""
    labels = {found[1]: at for at, line in enumerate(lines) if (found := re.match(r"^(\.L_x_\d+):", line.strip()))}
    loops = []
    for at, line in enumerate(lines):
        jump = re.search(r"BRA.*`\((\.L_x_\d+)\)", line)
        if jump and labels.get(jump[1], at) < at:
            inside = (
                re.search(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9]+)", x) for x in lines[labels[jump[1]] : at]
            )
            loops.append(Counter(found[1] for found in inside if found))
    return max(loops, key=lambda found: found["MUFU"])


def main() -> None:
    print("| kernel | instructions | of which exponentials | at one a cycle, µs | exponentials alone, µs |")
    print("|---|---:|---:|---:|---:|")
    whole = [0.0, 0.0]
    with TemporaryDirectory() as folder:
        for name, which in PASSES.items():
            found = in_loop(which, Path(folder))
            each = found.total(), found["MUFU"]
            times = [1e6 * PAIRS / UNITS / CLOCK * work for work in (each[0] / THREADS, each[1] / EXPONENTIALS)]
            whole = [a + b for a, b in zip(whole, times, strict=True)]
            print(f"| {name} | {each[0]:.1f} | {each[1]:.2f} | {times[0]:.0f} | {times[1]:.0f} |")
    print(f"| all | | | {whole[0]:.0f} | {whole[1]:.0f} |")


if __name__ == "__main__":
    main()
