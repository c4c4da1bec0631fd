"""Gluon kernels that are offered, compiled for Hopper without a GPU. Needs Triton, which has Gluon.

No loop spills a register, the loops leave products on their way while they compute, and a block has the shared memory
that the plan says.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from pebblesim.advice.tiles import HOPPER, Tiling, hopper_tiling
from pebblesim.kernels import releases
from pebblesim.kernels.gluon.gluon import gluon, plans
from pebblesim.kernels.key_ranges import ARGUMENTS, KeyRanges
from pebblesim.kernels.passes.sinks import sinking
from pebblesim.kernels.passes.sums_of_sinks import SIDE
from pebblesim.kernels.words import is_float32
from pebblesim.language import masks
from pebblesim.language.masks import Band
from pebblesim.language.registry import get
from pebblesim.operator.pattern import Pattern, band_of
from pebblesim.operator.texts import written

BESIDE = 5 * 1024
"""Most bytes of shared memory beside buffers and barriers: arguments of the roles, gaps, and what sums go through on
their way to memory."""

STORED = {
    ("backward-two-pass-blocked", 64, "causal"): 6,
    ("backward-two-pass-blocked", 192, "causal"): 44,
}
"""Registers that a loop may store, as docs/hopper.md says, by schedule, widest head and mask; none otherwise."""

TOGETHER = ("flash2-latent",)
"""Schedules of keys whose first columns are the values; their kernels know no mask."""

SLOW = [
    (tiles, tiles.widths[1], mask, n)
    for tiles in HOPPER
    for mask in ((None,) if tiles.schedule in TOGETHER else (None, "causal"))
    for n in (4096, 4001)
]


FORWARD = [each for each in SLOW if get(each[0].schedule).problem.name.startswith("forward")]


def described(text: str, launch: str, kind: Any, layouts: Any) -> dict[str, str]:
    """The types of what the copy engine is told, as the lines before a launch say."""
    before = text[: text.index(f"    {launch}[(")].rpartition("[(")[2]
    apart = "tiles_of(tensor, rows, width, several" in text
    types = {}
    asked = r"(\w+) = (tiles|vectors|sums|pairs|copies|numbers)_of\(\w+, (.*)\)\n"
    for name, made, sides in re.findall(asked, before):
        rows, width, *several = (int(side) if side.isdecimal() else 0 for side in sides.split(", "))
        shapes = {"pairs": [rows, width], "copies": [1, 1, 1, rows, width]}
        shape = [1, width] if made in ("vectors", "numbers") else shapes.get(made, [1, rows, width])
        if made == "tiles" and apart:
            of_one = [max(rows // several[0], 1), min(rows, several[0])] if several else [rows]
            shape = [1, 1, *of_one, width]
        word = "fp32" if made in ("vectors", "numbers", "sums") or "float32" in sides else "bf16"
        layout = layouts.get_default_for(shape, kind.bfloat16 if word == "bf16" else kind.float32)
        types[name] = f"tensordesc<{word}{shape},{layout!r}>"
    return types


def compiled(text: str, name: str, vectors: set[str], folder: Path) -> tuple[str, int]:
    """The machine code of a kernel, and its bytes of shared memory."""
    import triton as compiler
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon import language
    from triton.experimental.gluon._runtime import GluonASTSource

    (folder / "kernels.py").write_text(releases.here().text(text), encoding="utf-8")
    made = spec_from_file_location("kernels", folder / "kernels.py")
    assert made is not None and made.loader is not None
    module = module_from_spec(made)
    made.loader.exec_module(module)
    function, types = getattr(module, name), described(text, name, language, language.NVMMASharedLayout)
    for each in function.arg_names:
        if each.endswith("_ptr"):
            types[each] = "*i32" if each in ARGUMENTS else "*fp32" if each in vectors else "*bf16"
    signature = {each: types.get(each, "i32") for each in function.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, each in enumerate(signature) if signature[each].startswith("*")}
    source = GluonASTSource(function, signature=signature, constexprs={}, attrs=aligned)
    result = compiler.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "enable_fp_fusion": True}
    )
    (folder / "kernel.cubin").write_bytes(result.asm["cubin"])
    for each in ("ttgir", "ptx"):
        (folder / f"kernel.{each}").write_text(result.asm[each], encoding="utf-8")
    tool = Path(compiler.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    listed = subprocess.run([tool, "-c", folder / "kernel.cubin"], capture_output=True, text=True, check=True).stdout
    return listed, result.metadata.shared


def jumps(lines: list[str]) -> list[tuple[int, int]]:
    """The numbers of lines that jump, and of those to which they do."""
    labels = {line.strip()[:-1]: at for at, line in enumerate(lines) if re.match(r"\s*\.L_x_\d+:", line)}
    return [
        (at, labels.get(target, at))
        for at, line in enumerate(lines)
        for target in re.findall(r"BRA[^`]*`\((\.L_x_\d+)\)", line)
    ]


def innermost(code: str) -> list[list[str]]:
    """The lines of the innermost loops with products."""
    lines = code.splitlines()
    loops = [(to, at) for at, to in jumps(lines) if to < at]
    with_products = [(a, b) for a, b in loops if any("HGMMA" in line for line in lines[a:b])]
    inner = [(a, b) for a, b in with_products if not any(a < c and d < b for c, d in with_products)]
    assert inner
    return [lines[a:b] for a, b in inner]


def spilled(code: str) -> list[str]:
    """The stores to local memory in the innermost loops with products, but for those that most iterations jump over."""
    stores = []
    for lines in innermost(code):
        over = [(at, to) for at, to in jumps(lines) if at < to and not any("HGMMA" in line for line in lines[at:to])]
        stores += [
            line
            for number, line in enumerate(lines)
            if re.search(r"\bSTL\b", line) and not any(at < number < to for at, to in over)
        ]
    return stores


def check(
    tiles: Tiling,
    d: int,
    mask: str | None,
    n: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    shared: int = 0,
    rows: int = 1,
    sinks: bool = False,
    softcap: float = 0.0,
) -> None:
    """Compile the kernels of tiles; `sinks`: softmaxes begin with them.

    `shared`: 0 for contiguous matrices, else heads that share keys, with strides; `rows`: of each position, those of
    heads that share keys in contiguous matrices.
    """
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    several = max(shared, rows)
    d_v = min(d, tiles.widest["d_v"])
    widths = {"d_v": d_v, **({"d_r": 64} if tiles.schedule in TOGETHER else {"d_k": d})}
    dims = {"n_q": n * several, "n_k": n, **widths}
    band = KeyRanges(rows=several) if mask == "ranges" else masks.of(mask)
    if mask != "ranges" and isinstance(band, Band) and (shared or rows > 1):
        band = replace(band, at_end=not shared, rows=several)
    program, sizes = get(tiles.schedule).in_dims(dims).under(band), {**dims, **tiles.blocks}
    program = sinking(program) if sinks else program
    ring: dict[str, Any] = tiles.options_under(band)
    made = gluon(program, sizes, "bfloat16", band, scale=0.1, shared=shared, dense=True, softcap=softcap, **ring)
    vectors = {f"{name}_ptr" for name, tensor in program.tensors.items() if is_float32(program, tensor)}
    kept = plans(program, sizes, **ring)
    assert kept
    for kernel in made.kernels:
        if kernel.launch.name not in kept:
            continue
        code, shared = compiled(made.text, kernel.name, vectors, folder)
        assert "HGMMA" in code and "UTMALDG" in code
        assert len(spilled(code)) <= STORED.get((tiles.schedule, tiles.widths[1], mask), 0), f"{kernel.name} spills"
        assert kernel.program.shared <= shared <= kernel.program.shared + BESIDE
        waits = re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\w+)", code)
        assert any(int(number, 16) for number in waits), "each product is waited for before the next one is issued"


@pytest.mark.slow
@pytest.mark.parametrize(("tiles", "d", "mask", "n"), SLOW)
def test_all_kernels_for_hopper_keep_their_tiles_in_registers(
    tiles: Tiling, d: int, mask: str | None, n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tiles, d, mask, n, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("mask", "rows"), [("window:1024", 1), ("causal", 4), (None, 4)])
@pytest.mark.parametrize("tiles", HOPPER)
def test_all_kernels_of_windows_and_of_heads_that_share_keys(
    tiles: Tiling, mask: str | None, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tiles.schedule in TOGETHER and mask is not None:
        pytest.skip("these kernels know no mask")
    if (tiles.schedule, tiles.widths[1], mask) == ("small-cache-backward-resident", 512, "window:1024"):
        pytest.skip("P spills some words here, as docs/hopper.md says")
    check(tiles, tiles.widths[1], mask, 4096, tmp_path, monkeypatch, rows=rows)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "shared"), [(4096, 1), (4001, 1), (4001, 8)])
@pytest.mark.parametrize("tiles", [each for each in HOPPER if KeyRanges in each.domain.masks])
def test_all_kernels_that_read_ranges_keep_their_tiles_in_registers(
    tiles: Tiling, n: int, shared: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tiles, tiles.widths[1], "ranges", n, tmp_path, monkeypatch, shared)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [1, 2, 8])
@pytest.mark.parametrize(("tiles", "d", "mask", "n"), SLOW)
def test_all_kernels_of_the_operator_keep_their_tiles_in_registers(
    tiles: Tiling,
    d: int,
    mask: str | None,
    n: int,
    shared: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check(tiles, d, mask, n, tmp_path, monkeypatch, shared)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [1, 8])
@pytest.mark.parametrize(("tiles", "d", "mask", "n"), FORWARD)
def test_kernels_with_sinks_keep_their_tiles_in_registers(
    tiles: Tiling, d: int, mask: str | None, n: int, shared: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tiles, d, mask, n, tmp_path, monkeypatch, shared, sinks=True)


def test_kernels_for_hopper_keep_their_tiles_in_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(hopper_tiling("flash2-backward-blocked", {"d": 64}), 64, None, 4096, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [0, 1, 128])
@pytest.mark.parametrize(("d", "n"), [(512, 4096), (512, 4001), (264, 4096)])
def test_warpgroups_that_divide_columns_keep_their_tiles_in_registers(
    shared: int, d: int, n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(hopper_tiling("flash2-latent", {"d_v": 512}), d, None, n, tmp_path, monkeypatch, shared)


@pytest.mark.slow
@pytest.mark.parametrize("d", [64, 128, 256])
def test_a_loop_at_odd_lengths_is_as_long_as_at_others(d: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken apart and packed again on its way from one loop to another."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tiles, lengths = hopper_tiling("flash2-forward", {"d": d}), list[int]()
    for n in (1152, 1134):
        dims = {"n_q": n, "n_k": n, "d_k": d, "d_v": d}
        program, ring = get(tiles.schedule).in_dims(dims).program, {"stages": tiles.stages, "persistent": True}
        made = gluon(program, {**dims, **tiles.blocks}, shared=1, dense=True, **ring)
        code, _ = compiled(made.text, "flash2_forward", {"L_ptr"}, tmp_path)
        lengths.append(max(map(len, innermost(code))))
    even, odd = lengths
    assert odd <= 1.02 * even


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mask", "n", "shared", "rows"),
    [(None, 4096, 0, 1), ("causal", 4001, 1, 1), ("causal", 4096, 0, 4), (None, 4001, 8, 1)],
)
@pytest.mark.parametrize("tiles", [each for each in HOPPER if each.domain.softcap >= each.widths[0]])
def test_kernels_that_cap_scores_keep_their_tiles_in_registers(
    tiles: Tiling, mask: str | None, n: int, shared: int, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = min(tiles.widths[1], tiles.domain.softcap)
    check(tiles, d, mask, n, tmp_path, monkeypatch, shared, rows, softcap=30.0)


@pytest.mark.slow
@pytest.mark.parametrize("even", [True, False])
def test_kernels_of_shares_keep_their_sums_in_registers(even: bool, tmp_path: Path) -> None:
    """dK in three tiles of 192 columns, dV in two of 256."""
    of_width = (each for each in HOPPER if each.schedule == "small-cache-backward-resident" and each.widths[1] == 576)
    tiling = next(each for each in of_width if each.blocks["e"] == 192)
    pattern = Pattern(band_of(right=0, rows=8), 8, apart=True, in_shares=True)
    text = written(tiling, (("d_k", 576), ("d_v", 512)), even, False, False, "bfloat16", pattern, 576**-0.5).text
    for name, width in (("dK", 64), ("dV", 256)):
        code, _ = compiled(text, name, {"dK_ptr", "dV_ptr"}, tmp_path)
        assert spilled(code) == [] and f"HGMMA.64x{width}x16" in code


def with_sinks(n: int, window: bool, batch: int, shared: int = 8, d: int = 64) -> Any:
    """The kernels of a backward pass with sinks, such as those for layers of gpt-oss."""
    from pebblesim.advice import cards
    from pebblesim.operator.planning import chosen

    pattern = Pattern(band_of(127 if window else None, 0, False, shared), shared)
    dims = (("n_q", shared * n), ("n_k", n), ("d_k", d), ("d_v", d))
    choice = chosen("backward", dims, 8 * batch, "bfloat16", pattern, 2**30, cards.card("H200"))
    own = pattern._replace(sinks=True)
    return written(choice.forecast.tiling, dims[2:], choice.even, False, False, "bfloat16", own, d**-0.5)


VECTORS = {"v_ptr", "L_ptr", "L_in_rows_ptr", "sums_L_ptr", "sums_shares_ptr"}
"""Arguments of kernels that sum which are addresses of numbers in float32."""


def summing(text: str, name: str) -> str:
    """A module that launches its last kernel with the blocks that sum, and not without them."""
    either = rf"    if sums_of_sinks is None:\n        {name}\[.*{name}_and_sums\["
    return re.sub(either, f"    {name}_and_sums[", text, flags=re.S)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "batch", "shared", "d"), [(676, 2, 8, 64), (511, 2, 1, 128), (4096, 1, 1, 64)])
def test_blocks_that_sum_have_no_part_in_roles(n: int, batch: int, shared: int, d: int, tmp_path: Path) -> None:
    """They end before barriers are made; their load is masked, and one number is stored."""
    made = with_sinks(n, False, batch, shared, d)
    *_, name, sums = made.kernels
    assert f"@gluon.jit\ndef {name}_rows" in made.text and sums == f"{name}_and_sums"
    compiled(summing(made.text, name), sums, VECTORS, tmp_path)
    lines = (tmp_path / "kernel.ttgir").read_text(encoding="utf-8").splitlines()
    begin = next(at for at, line in enumerate(lines) if re.match(r"    (%\S+ = )?scf\.if ", line))
    middle, end = (
        next(at for at in range(begin, len(lines)) if re.match(form, lines[at]))
        for form in (r"    } else {", r"    }( |$)(?!else)")
    )
    before, its, others = lines[:begin], lines[begin:middle], lines[middle:end]
    roles = re.compile("barrier|warp_specialize|local_alloc|async|ttng")
    assert not any(roles.search(line) for line in its) and not any("_alloc" in line for line in before)
    assert sum("ttg.warp_specialize" in line for line in others) == 1
    assert sum("init_barrier" in line for line in lines) == sum("init_barrier" in line for line in others) > 0
    (layout,) = {each for line in its for each in re.findall(rf"tensor<{SIDE}x\S+, (#\w+)>", line)}
    (told,) = (line for line in lines if line.startswith(f"{layout} = "))
    assert "sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]" in told
    (load,) = (line for line in its if "tt.load" in line)
    assert f"tensor<{SIDE}x" in load and re.search(r"tt\.load %\w+, %\w+, %cst\w* :", load)
    assert sum("tt.make_range" in line for line in its) == 1
    assert sum('"tt.reduce"' in line for line in its) == 1
    (stored,) = (line for line in its if "tt.store" in line)
    assert ": !tt.ptr<bf16>" in stored
    code = (tmp_path / "kernel.ptx").read_text(encoding="utf-8")
    assert code.count("ret;") == 1  # all blocks end where the warps of other roles are let go
    assert begin < middle < end
    assert {"0, 128"} <= set(re.findall(r"bar\.sync \t?(\d+.*);", code)) <= {f"{at}, 128" for at in range(16)}


@pytest.mark.slow
@pytest.mark.parametrize(("n", "window", "batch"), [(352, True, 8), (676, False, 2), (4096, False, 1)])
def test_blocks_that_sum_cost_the_others_no_register(n: int, window: bool, batch: int, tmp_path: Path) -> None:
    """Nothing more of the last kernel is in local memory, and its shared memory is as large, on a Hopper card."""
    made = with_sinks(n, window, batch)
    text, name = made.text, made.kernels[-2]
    alone, vectors = summing(text, name), VECTORS
    if f"@gluon.jit\ndef {name}_rows" in text:
        found = [
            compiled(each, kernel, vectors, tmp_path) for each, kernel in ((text, name), (alone, f"{name}_and_sums"))
        ]
        (code, shared), (with_sums, its_shared) = found
        assert its_shared == shared and with_sums.count("STL") == code.count("STL")
        return
    assert [in_local_memory(text, kernel, vectors) for kernel in (name, f"{name}_and_sums")] == [False, False]


SUMMING = [(352, True, 8), (676, False, 2), (4096, False, 1), (511, False, 2, 1, 128), (512, True, 2, 1, 256)]
"""Layers whose last kernel may sum: tokens, whether there is a window, batches, heads that share keys, their width."""


@pytest.mark.parametrize("layer", [*SUMMING, (2000, False, 1, 8, 512)])
def test_kernels_that_sum_call_kernels_as_they_were_written(layer: Any) -> None:
    """Not what launches them, which has their names in a module: Triton makes a key of all that a kernel names."""
    import ast
    import inspect

    pytest.importorskip("triton")
    from triton.runtime.jit import JITFunction

    from pebblesim.operator.launching.launching import running

    made = with_sinks(*layer)
    module = running(made.text, made.kernels)
    kernels = [getattr(module, name)._kernel for name in made.kernels]
    assert len({each.cache_key for each in kernels}) == len(kernels)
    assert made.kernels[-1].endswith("_and_sums") is (layer in SUMMING)
    tree = ast.parse(inspect.getsource(kernels[-1].fn))
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    for each in called - {"barriers", "range"}:
        assert isinstance(kernels[-1].fn.__globals__[each], JITFunction)


def in_local_memory(text: str, name: str, vectors: set[str]) -> bool:
    """Whether a Triton kernel has words in local memory."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from pebblesim.kernels.module import module_of

    function = getattr(module_of(text), name)
    types = dict.fromkeys(function.arg_names, "i32")
    types |= {each: "*fp32" if each in vectors else "*bf16" for each in types if each.endswith("_ptr")}
    divided = {(at,): [["tt.divisibility", 16]] for at, each in enumerate(types) if each.endswith("_ptr")}
    source = ASTSource(function, signature=types, attrs=divided)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    return ".local" in made.asm["ptx"]
