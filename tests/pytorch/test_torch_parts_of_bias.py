"""The sum of parts of a gradient of a bias by a kernel, under Triton's interpreter, and compiled for Hopper cards."""

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
    """Compare with PyTorch's sums of as many parts as each head has; what other parts hold is not read."""
    from pebblesim.operator.bias import parts as kernel_of_parts
    from pebblesim.operator.bias.programs import Parts

    kernel_of_parts.KERNEL = kernel_of_parts.sums
    chance = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(draws):
        groups, heads, rows, columns = (chance.choice(some) for some in ([1, 2], [1, 3], [1, 5, 9], [1, 8, 250, 300]))
        parts = Parts(chance.randint(5, 60), chance.randint(5, 40))
        x = torch.full((groups, parts.most, heads, rows, -(-columns // 8) * 8), torch.nan)[..., :columns]
        true = torch.zeros(groups, heads, rows, columns)
        for head in range(groups * heads):
            blocks = {at // parts.each for at in range(head * parts.whole, (head + 1) * parts.whole)}
            at = head // heads, slice(len(blocks)), head % heads
            x[at] = torch.randn(len(blocks), rows, columns)
            true[at[0], at[2]] = x[at].sum(0)
        to = torch.full((groups, heads, rows, columns), torch.nan, dtype=chance.choice([torch.float16, torch.float32]))
        to = to if chance.random() < 0.5 else x[:, 0]  # in its own place
        kernel_of_parts.add_up(x, to, parts)
        assert torch.allclose(to.float(), true, atol=1e-2 if to.dtype == torch.float16 else 1e-5)


@pytest.mark.slow
def test_sums_are_those_of_pytorch() -> None:
    here = Path(__file__)
    run = f"import {here.stem} as test; test.check(1, 12)"
    paths = os.pathsep.join(map(str, (here.parent, TESTS, ROOT)))
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", run], env=environment, check=True)


@pytest.mark.parametrize(("parts", "heads", "by_kernel"), [((640, 10), 1, True), ((650, 10), 2, False)])
def test_a_kernel_adds_up_so_many_parts_that_it_is_compiled_in_a_second(
    monkeypatch: pytest.MonkeyPatch, parts: tuple[int, int], heads: int, by_kernel: bool
) -> None:
    """Heads that have more are added up one by one by PyTorch."""
    from pebblesim.operator.bias import gradient, parts as kernel_of_parts
    from pebblesim.operator.bias.programs import Parts

    of, asked = Parts(*parts), list[Any]()
    monkeypatch.setattr(gradient, "on_gpu", lambda x: True)
    monkeypatch.setattr(kernel_of_parts, "add_up", lambda *given: asked.append(given))
    room = torch.randn(1, of.most, heads, 3, 8)
    dB = torch.full((1, heads, 3, 8), torch.nan, dtype=torch.bfloat16)
    gradient._add_up(room, dB, of)
    assert len(asked) == by_kernel
    assert by_kernel or torch.equal(dB, room.sum(1).bfloat16())


@pytest.mark.slow
def test_it_is_compiled_for_hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from pebblesim.operator.bias.parts import NUMBERS, WARPS, sums

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types: dict[str, Any] = {"x": "*fp32", "to": "*bf16", **dict.fromkeys(NUMBERS, "i32"), "MOST": "constexpr"}
    source = ASTSource(sums, signature=types, constexprs={"MOST": 8}, attrs={})
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": WARPS})
    assert ".local" not in made.asm["ptx"]
