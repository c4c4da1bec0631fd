"""Kernels with a bias, compiled without a GPU: they fit on every card, and spill few registers. Needs Triton."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

from pytorch.test_compiled_gluon import compiled as compiled_gluon, spilled
from pytorch.test_compiled_kernels import module_in, module_text

from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.key_ranges import ARGUMENTS, KeyRanges
from pebblesim.kernels.passes.sequences import SEQUENCES
from pebblesim.kernels.triton.triton import triton
from pebblesim.kernels.words import is_float32
from pebblesim.language import masks
from pebblesim.operator.bias import programs as kernels
from pebblesim.operator.bias.programs import ACROSS, FORWARD, OF_BIAS, OF_QUERIES

ROOM = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024, 120: 99 * 1024}
"""Bytes of shared memory of a block, by compute capability."""

FEW = 48
"""Stores to local memory that a kernel may have."""

RANGES = "ranges"
"""The mask of kernels that read ranges of keys, here with keys that two heads share."""

SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def spills(
    which: int, d: int, odd: bool, architecture: int, dtype: str, of_bias: str, mask: str | None, folder: Path
) -> dict[str, int]:
    """Stores to local memory of each kernel of a pass that has some, as `attention` launches it.

    Its block takes no more shared memory than the card has for one.
    """
    words, n = "32 bits" if dtype == "float32" else "16 bits", 2**14 - odd
    band, made = KeyRanges() if mask == RANGES else masks.of(mask), kernels.kernels_of(which, words, d)
    made = made._replace(sequences=1) if mask == RANGES else made
    program = kernels.program(which, made, band)
    sizes = {"n_q": n, "n_k": n, "d_k": d, "d_v": d, **made.tiling.blocks, SEQUENCES: max(2, made.sequences)}
    of = {"grouped": 2 if mask == RANGES else 1, **kernels.launched(made.tiling)}
    source = triton(program, sizes, dtype, band, scale=0.1, far=False, shared=1, **of)
    module, found = module_in(folder, source), {}
    kinds = {name: "float32" if is_float32(program, each) else dtype for name, each in program.tensors.items()}
    kinds |= dict.fromkeys(("bias", "bias_T", "dB"), of_bias)
    for kernel in source.kernels:
        given, function = [f"*{SHORT[kinds[name]]}" for name in kernel.tensors], getattr(module, kernel.name)
        given += ["*i32" for name in ARGUMENTS[:-1] if name in function.arg_names]
        made = compiled(function, given, architecture, module_text(folder))
        assert made.metadata.shared <= ROOM[architecture], (kernel.name, made.metadata.shared)
        if stores := stored(made, folder):
            found[kernel.name] = stores
    return found


def compiled(function: Any, tensors: list[str], architecture: int, text: str) -> Any:
    """A kernel, with the options that it is launched with; lengths that tiles divide are multiples of 16."""
    import triton as compiler
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    numbers = ["i32"] * (len(function.arg_names) - len(tensors))
    arguments = dict(zip(function.arg_names, [*tensors, *numbers], strict=True))
    general = set(function.do_not_specialize or ())
    alike = [i for i, (name, kind) in enumerate(arguments.items()) if kind[0] == "*" or name not in general]
    attributes = {(i,): [["tt.divisibility", 16]] for i in alike}
    name = function.fn.__name__
    (called,) = re.findall(rf"^ +{name}\[.*?((?:, \w+=\d+)+)\)$", text, re.M)
    options = {"enable_fp_fusion": True} | {what: int(number) for what, number in re.findall(r"(\w+)=(\d+)", called)}
    source = ASTSource(function, signature=arguments, attrs=attributes)
    return compiler.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def stored(made: Any, folder: Path) -> int:
    import triton as compiler

    (folder / "kernel.cubin").write_bytes(made.asm["cubin"])
    tool = Path(compiler.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    listed = subprocess.run([tool, "-c", folder / "kernel.cubin"], capture_output=True, text=True, check=True).stdout
    assert "EXIT" in listed
    return len(re.findall(r"\bSTL\b", listed))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def test_the_kernel_of_the_gradient_spills_nothing(tmp_path: Path) -> None:
    assert not spills(OF_BIAS, 32, False, 90, "bfloat16", "bfloat16", None, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("which", [FORWARD, ACROSS])
@pytest.mark.parametrize("columns", [384, 371, 768])
@pytest.mark.parametrize(("d", "of_bias"), [(16, "float32"), (32, "bfloat16")])
def test_kernels_whose_rows_of_the_bias_stay(which: int, columns: int, d: int, of_bias: str, tmp_path: Path) -> None:
    """For Hopper: no loop stores to local memory, and a block fits into a multiprocessor."""
    made = kernels.STAYING[which]
    lengths = (2**14 - columns % 2, columns)[:: 1 if which == FORWARD else -1]
    sizes = {**dict(zip(("n_q", "n_k"), lengths, strict=True)), "d_k": d, "d_v": d, "R": 2, **made.tiling.blocks}
    text = gluon(kernels.program(which, made), sizes, scale=0.25, shared=1, stages=made.tiling.stages).text
    wide = {"L_ptr", "v_ptr", *["bias_ptr", "bias_T_ptr"] * (of_bias == "float32")}
    code, shared = compiled_gluon(text, "flash2_forward" if which == FORWARD else "dK_dV", wide, tmp_path)
    assert shared <= ROOM[90] and not spilled(code)


@pytest.mark.slow
@pytest.mark.parametrize("which", [kernels.WITH_V, kernels.AT_ONCE, kernels.ONWARD])
@pytest.mark.parametrize(("n", "n_k", "d"), [(2**14, 384, 32), (2**14 - 1, 383, 32), (2**14, 128, 16)])
def test_the_kernel_of_both_gradients_keeps_its_sums_in_registers(
    which: int, n: int, n_k: int, d: int, tmp_path: Path
) -> None:
    """For Hopper: its loops store next to nothing to local memory, and its block fits into a multiprocessor.

    The one with v has all keys, and so dQ in words of 16 bits.
    """
    made = kernels.at_once(n_k)
    tiling = made.tiling
    sizes = {"n_q": n, "n_k": n_k, "d_k": d, "d_v": d, "R": 2, **tiling.blocks}
    text = gluon(kernels.program(which, made), sizes, scale=0.25, shared=1, stages=tiling.stages, streams=1).text
    wide = {"dB_ptr", "v_ptr", *["dQ_ptr"] * (which != kernels.WITH_V)}
    code, shared = compiled_gluon(text, "dQ_dB", wide, tmp_path)
    assert shared <= ROOM[90] and len(spilled(code)) <= 8, (shared, len(spilled(code)))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ROOM)
@pytest.mark.parametrize("d", [32, 64, 128])
@pytest.mark.parametrize("which", [FORWARD, OF_QUERIES, ACROSS, OF_BIAS])
def test_no_kernel_spills_much(which: int, d: int, architecture: int, tmp_path: Path) -> None:
    """Where tiles divide the lengths, and where they do not; with a bias in the type of words, and in float32."""
    few(spills(which, d, False, architecture, "bfloat16", "bfloat16", None, tmp_path))
    few(spills(which, d, True, architecture, "float16", "float32", None, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ROOM)
@pytest.mark.parametrize("which", [FORWARD, OF_QUERIES, ACROSS, OF_BIAS])
def test_no_kernel_spills_much_under_a_mask_or_of_float32(which: int, architecture: int, tmp_path: Path) -> None:
    few(spills(which, 64, True, architecture, "bfloat16", "bfloat16", "causal", tmp_path))
    few(spills(which, 64, True, architecture, "bfloat16", "bfloat16", RANGES, tmp_path))
    few(spills(which, 64, True, architecture, "float32", "float32", None, tmp_path))


def few(found: dict[str, int]) -> None:
    """Check that kernels spill few registers, mostly before their loops."""
    assert not {name: stores for name, stores in found.items() if stores > FEW}
