"""The kernel that sums the gradient of sinks: run by Triton's own interpreter, and compiled for cards."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT, TESTS

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


def plain(v: Any, L: Any, s: Any, kv_heads: int) -> Any:
    """The sums in float64, one head and query after the other."""
    of_batches = s.double() if s.dim() == 2 else s.double().expand(v.shape[0] // kv_heads, -1)
    made, shared = torch.zeros_like(of_batches), s.shape[-1] // kv_heads
    for batch, heads in enumerate(of_batches.tolist()):
        for head, sink in enumerate(heads):
            row = batch * kv_heads + head // shared
            for at in range(head % shared, v.shape[1], shared):
                if L[row, at] > -math.inf:
                    made[batch, head] -= math.exp(sink - float(L[row, at]) * math.log(2)) * float(v[row, at])
    return made if s.dim() == 2 else made.sum(0)


def check(seed: int, draws: int) -> None:
    """Compare with plain loops, under Triton's interpreter: rows that lie apart, and those of a part of the queries."""
    from triton.runtime import interpreter

    from pebblesim.operator.sinks import gradient as gradient_of_sinks, kernel as kernel_of_sinks

    patch: Any = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:  # NumPy 2.5 takes no array of one number for an integer
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
    kernel_of_sinks.KERNEL = kernel_of_sinks.MODULE.sums
    chance = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(draws):
        batch, kv_heads, shared = chance.randint(1, 3), chance.randint(1, 2), chance.choice([1, 2, 3, 8])
        n, before, behind = chance.choice([1, 7, 2800, 8193]), chance.randint(0, 3), chance.randint(0, 3)
        heads, kind = kv_heads * shared, chance.choice([torch.bfloat16, torch.float16, torch.float32, torch.float64])
        s = torch.randn(*[batch] * (chance.random() < 0.5), heads).to(kind)
        s[..., 0] = chance.choice([-math.inf, 0.5, 30.0])
        exponents = s.double().expand(batch, heads).unflatten(1, (kv_heads, 1, shared)) / math.log(2)
        scores = 3 * torch.randn(batch, kv_heads, before + n + behind, shared).double()
        scores[..., 0][scores[..., 0] < -3] = -math.inf  # queries without a key
        L = torch.logaddexp2(scores, exponents).flatten(0, 1).flatten(1).float()
        v = torch.randn(batch * kv_heads, n * shared)
        parts = chance.choice([number for number in (1, 2, 4) if shared % number == 0])
        in_parts = v.view(-1, n, parts, shared // parts).transpose(1, 2).reshape(batch * kv_heads * parts, -1)
        in_parts = torch.cat([in_parts, torch.full((len(in_parts), chance.choice([0, 5])), torch.nan)], 1)
        seeing = slice(before * shared, (before + n) * shared)
        found = kernel_of_sinks.summed(in_parts[:, : n * shared // parts], L[:, seeing], s, kv_heads)
        true = plain(v, L[:, seeing], s, kv_heads)
        assert found.shape == s.shape and found.dtype == kind
        largest = float(true.abs().max()) + 1.0
        assert float((found.double() - true).abs().max()) < max(1e-5, 2 * torch.finfo(kind).eps) * largest
        other = gradient_of_sinks.gradient_of_sinks(in_parts, L, None, s, kv_heads, slice(before, before + n))
        torch.testing.assert_close(found, other, rtol=max(1e-4, 2 * torch.finfo(kind).eps), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_sums_are_those_of_plain_loops(seed: int) -> None:
    here = Path(__file__)
    run = f"import {here.stem} as test; test.check({seed}, 8)"
    paths = os.pathsep.join(map(str, (here.parent, TESTS, ROOT)))
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", run], env=environment, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 120])
@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp32", "fp64"])
def test_it_is_compiled_for_cards(capability: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word in local memory."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from pebblesim.operator.sinks.kernel import MODULE, NUMBERS, WARPS

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = {"v": "*fp32", "L": "*fp32", "s": f"*{kind}", "made": f"*{kind}", **dict.fromkeys(NUMBERS, "i32")}
    source = ASTSource(MODULE.sums, signature=types, attrs={})
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": WARPS})
    assert ".local" not in made.asm["ptx"]
