"""Kernels that are offered, compiled without a GPU: blocks fit, and no thread spills a register. Needs Triton."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pebblesim.advice.cards import card
from pebblesim.advice.tiles import TILINGS, Tiling, tilings, too_large, within
from pebblesim.kernels import releases
from pebblesim.kernels.domains import Call
from pebblesim.kernels.key_ranges import ARGUMENTS, KeyRanges
from pebblesim.kernels.passes.sinks import sinking
from pebblesim.kernels.triton.storage import storage
from pebblesim.kernels.triton.triton import Source, triton
from pebblesim.kernels.words import is_float32
from pebblesim.language import masks
from pebblesim.language.program import Program
from pebblesim.language.registry import get

ARCHITECTURES = {80: "A100", 89: "RTX4090", 90: "H100", 120: "RTX5090"}
"""Compute capabilities, and a card with the shared memory of a thread block."""


RANGES = "ranges"


@dataclass(frozen=True)
class Case:
    """Kernels to compile: a tiling, for a head dimension and lengths that are multiples of 128 or one less.

    `strided`: as `attention` launches them, for matrices with strides; and with `RANGES` for those that they read.
    `sinks`: softmaxes begin with them.
    """

    tiling: Tiling
    d: int
    odd: bool = False
    mask: str | None = None
    architecture: int = 90
    strided: bool = False
    sinks: bool = False

    def __str__(self) -> str:
        what = [f"d={self.d}", *["odd"] * self.odd, *[self.mask] * (self.mask is not None), f"sm_{self.architecture}"]
        what += ["strided"] * self.strided + ["sinks"] * self.sinks
        return re.sub(r"[ ,;]+", "-", f"{self.tiling} {' '.join(what)}")

    @property
    def dims(self) -> dict[str, int]:
        n = 4096 - self.odd
        return {"n_q": n, "n_k": n, "d_k": self.d, "d_v": self.d}

    @property
    def band(self) -> Any:
        return KeyRanges() if self.mask == RANGES else masks.of(self.mask)

    @property
    def program(self) -> Program:
        program = get(self.tiling.schedule).in_dims(self.dims).under(self.band)
        return sinking(program) if self.sinks else program

    @property
    def sizes(self) -> dict[str, int]:
        return {**self.dims, **self.tiling.blocks}


def shared_of(architecture: int) -> int:
    """Bytes of shared memory of a block of threads."""
    return card(ARCHITECTURES[architecture]).size("shared_per_block")


def cases(*widths: int, architecture: int = 90, **others: Any) -> list[Case]:
    """All tilings that are tried for these head dimensions."""
    made = [
        Case(tiling, d, architecture=architecture, **others)
        for problem in TILINGS
        for tiling in tilings(problem, shared_of(architecture))
        for d in widths
        if tiling.widths[0] <= d <= tiling.widths[1]
    ]
    return [case for case in made if case.tiling.refusal(Call(case.dims, case.band)) is None]


def offered(case: Case) -> Source | None:
    """The kernels; None where a block has no room for one of them, so that they are not offered there."""
    tiling, band = case.tiling, case.band
    strides = {"shared": 1, "dense": True} if case.strided else {}
    source = triton(case.program, case.sizes, "bfloat16", band, scale=0.1, **tiling.options, **strides)
    held = (
        (kernel.name, storage(kernel.launch, case.sizes, "bfloat16", tiling.of(kernel.launch.name)[1]))
        for kernel in source.kernels
    )
    full = too_large(held, shared_of(case.architecture), card("H100").size("registers"))
    return None if full else source


def module_in(folder: Path, source: Source) -> ModuleType:
    (folder / "kernels.py").write_text(releases.here().text(source.text), encoding="utf-8")
    made = spec_from_file_location("kernels", folder / "kernels.py")
    assert made is not None and made.loader is not None
    module = module_from_spec(made)
    made.loader.exec_module(module)
    return module


def spilled(case: Case, kernel: Any, function: Any, folder: Path) -> int:
    """Stores to local memory in the machine code of a kernel, with the options and facts that it is launched with.

    Its block takes no more shared memory than the card has for one.
    """
    import triton as compiler
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    program = case.program
    types = ["*fp32" if is_float32(program, program.tensors[name]) else "*bf16" for name in kernel.tensors]
    before, behind = (["i32"] * len(names) for names in kernel.numbers)
    ranges = ["*i32", "*i32", "*i32", "*i32", "i32"] if ARGUMENTS[0] in function.arg_names else []
    arguments = dict(zip(function.arg_names, [*before, *types, *ranges, *behind], strict=True))
    general = set(function.do_not_specialize or ())
    divided = {
        (i,): [["tt.divisibility", 16]]
        for i, (name, kind) in enumerate(arguments.items())
        if kind.startswith("*") or (name not in general and case.sizes.get(name, 1) % 16 == 0)
    }
    found = re.search(rf"^ +{kernel.name}\[.*?((?:, \w+=\d+)+)\)$", module_text(folder), re.M)
    assert found is not None
    options = {"enable_fp_fusion": True} | {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", found[1])}
    target = GPUTarget("cuda", case.architecture, 32)
    made = compiler.compile(ASTSource(function, signature=arguments, attrs=divided), target=target, options=options)
    (folder / "kernel.cubin").write_bytes(made.asm["cubin"])
    tool = Path(compiler.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    assert made.metadata.shared <= shared_of(case.architecture)
    listed = subprocess.run([tool, "-c", folder / "kernel.cubin"], capture_output=True, text=True, check=True).stdout
    assert "EXIT" in listed
    return len(re.findall(r"\bSTL\b", listed))


def module_text(folder: Path) -> str:
    return (folder / "kernels.py").read_text(encoding="utf-8")


def spills(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The kernels that spill, and how much; none where they are not offered."""
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    source = offered(case)
    if source is None:
        return {}
    module = module_in(folder, source)
    found = {each.name: spilled(case, each, getattr(module, each.name), folder) for each in source.kernels}
    return {name: stores for name, stores in found.items() if stores}


SAMPLE = [
    next(case for case in cases(64) if case.tiling.schedule == schedule)
    for schedule in ("flash2-forward", "backward-two-pass-blocked")
]


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_a_sample_of_the_kernels_spills_nothing(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not spills(case, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("d", [64, 128, 256, 512])
def test_no_kernel_that_is_offered_spills(
    d: int, architecture: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For lengths that the tiles divide, without a mask; what a multiprocessor has no room for is not offered."""
    assert not all_spills(cases(d, architecture=architecture), tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize(("architecture", "d"), [*((90, d) for d in (64, 128, 224, 384, 512)), (80, 128), (120, 128)])
def test_no_kernel_spills_at_odd_lengths_or_under_a_mask(
    architecture: int, d: int, mask: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `attention` launches them: for matrices with strides, and lengths that no tile divides."""
    found = cases(d, architecture=architecture, odd=True, mask=mask, strided=True)
    assert {case.tiling.schedule for case in found} >= {"small-cache-backward-blocked", "scores-stored-blocked"}
    assert not all_spills(found, tmp_path, monkeypatch)


READING_RANGES = (
    "flash2-forward",
    "scores-stored-blocked",
    "dS-stored-blocked",
    "small-cache-backward-blocked",
    "backward-two-pass-blocked",
)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [None, RANGES])
@pytest.mark.parametrize(("architecture", "d"), [(80, 64), (90, 128)])
def test_no_kernel_with_sinks_spills_where_none_without_does(
    architecture: int, d: int, mask: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = cases(d, architecture=architecture, odd=True, mask=mask, strided=True)
    forward = [each for each in every if "dO" not in each.program.inputs]
    plain, made = (
        [spills(replace(each, sinks=sinks), tmp_path, monkeypatch) for each in forward] for sinks in (False, True)
    )
    assert made == plain


@pytest.mark.slow
@pytest.mark.parametrize(("d", "expected"), [(64, {"dK_dV_dS_1"}), (128, {"dS", "dK_dV_1"})])
def test_what_spills_with_ranges_of_keys_is_what_the_document_says(
    d: int, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [case for case in cases(d, odd=True, mask=RANGES, strided=True) if case.tiling.schedule in READING_RANGES]
    found = all_spills(many, tmp_path, monkeypatch)
    assert {name for kernels in found.values() for name in kernels} == expected
    assert len(found) == len(expected) and max(max(kernels.values()) for kernels in found.values()) <= 23


@pytest.mark.slow
@pytest.mark.parametrize("d", [96, 192, 224])
def test_splits_spill_at_no_width_under_a_mask(d: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Widths that are no power of two are where four warps did."""
    found = cases(d, odd=True, mask="causal", strided=True)
    splits = [case for case in found if case.tiling.schedule == "flash-decoding-blocked" and case.tiling.warps == 8]
    assert len(splits) == 2
    assert not all_spills(splits, tmp_path, monkeypatch)


def test_rows_at_a_time_keep_their_sums_in_registers() -> None:
    """dV and dK that add to memory spill with 256 keys and predicates: such tiles are for lengths that they divide."""
    tiles = [each for each in TILINGS["backward-qkv"] if each.schedule == "small-cache-backward-blocked"]
    sides = {
        n: {each.blocks["b"] for tile in tiles for each, _ in within(tile, {"n": n, "d": 320}, 1, "bfloat16", 2**25)}
        for n in (4519, 8192)
    }
    assert sides == {4519: {128, 64}, 8192: {256, 128, 64}}


def all_spills(many: list[Case], folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, int]]:
    """The kernels that spill, and how much, by the case."""
    found = {}
    for number, case in enumerate(many):
        own = folder / str(number)
        own.mkdir()
        found[str(case)] = spills(case, own, monkeypatch)
    return {case: kernels for case, kernels in found.items() if kernels}
