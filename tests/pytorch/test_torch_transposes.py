"""The transpose of a bias by a kernel, under Triton's interpreter, and compiled for cards."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from checkout import ROOT, TESTS  # noqa: E402


def check(seed: int, draws: int) -> None:
    """Compare with PyTorch's copy: rows that lie apart, shared dimensions, single rows and columns."""
    from pebblesim.operator.bias import transposes as kernel_of_transposes

    kernel_of_transposes.KERNEL = kernel_of_transposes.transposes
    chance = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(draws):
        outer, inner, heads = (chance.randint(1, 2) for _ in range(3))
        rows, columns = (chance.choice([1, 7, 8, 64, 65, 130, 136]) for _ in range(2))
        before, behind = chance.choice([(3, 2), (8, 8)])
        x = torch.randn(outer, inner, heads, rows, before + columns + behind).to(
            chance.choice([torch.float16, torch.float32])
        )
        x = x[..., before : before + columns][:, : chance.choice([1, inner])].expand(outer, inner, heads, rows, columns)
        x = x if chance.random() < 0.5 else x.mT.contiguous().mT
        room = torch.full((*x.shape[:3], columns, rows + chance.choice([4, 8])), torch.nan, dtype=x.dtype)[..., :rows]
        assert torch.equal(kernel_of_transposes.transpose(x, room), x.mT.contiguous())


@pytest.mark.slow
def test_transposes_are_those_of_pytorch() -> None:
    here = Path(__file__)
    run = f"import {here.stem} as test; test.check(1, 30)"
    paths = os.pathsep.join(map(str, (here.parent, TESTS, ROOT)))
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", run], env=environment, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 120])
@pytest.mark.parametrize(("kind", "each"), [("bf16", 1), ("fp32", 1), ("bf16", 8)])
def test_it_is_compiled_for_cards(
    capability: int, kind: str, each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from pebblesim.operator.bias.transposes import NUMBERS, WARPS, transposes

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types: dict[str, Any] = {"x": f"*{kind}", "to": f"*{kind}", **dict.fromkeys(NUMBERS, "i32"), "EACH": "constexpr"}
    aligned = {(at,): [["tt.divisibility", 16]] for at in range(2)}
    source = ASTSource(transposes, signature=types, constexprs={"EACH": each}, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": WARPS})
    assert ".local" not in made.asm["ptx"]
    assert ("ld.global.v4" in made.asm["ptx"] and "st.global.v4" in made.asm["ptx"]) == (each == 8)
