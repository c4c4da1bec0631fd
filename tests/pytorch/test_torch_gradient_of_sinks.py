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


def interpret() -> None:
    """Let Triton's interpreter work with NumPy 2.5, which takes no array of one number for an integer."""
    from triton.runtime import interpreter

    patch: Any = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


BACKWARD = {
    "backward-two-pass-blocked": {"B_r": 32, "b_c": 16, "B_c": 32, "b_r": 16},
    "dS-stored-blocked": {"B_c": 32, "b_r": 32, "b": 32, "c": 16},
    "small-cache-backward-blocked": {"a": 32, "b": 32, "c": 16},
}


def check_beside(name: str, draws: int) -> None:
    """Compare the sums of the last kernel of a pass with plain loops; what else it writes is what it writes alone."""
    from pebblesim.advice.tiles import Tiling
    from pebblesim.kernels.module import module_of
    from pebblesim.operator.pattern import Pattern, band_of
    from pebblesim.operator.texts import written

    interpret()
    chance = random.Random(name)
    torch.manual_seed(len(name))
    for _ in range(draws):
        batch, kv_heads, shared, n = (
            chance.randint(1, 3),
            chance.randint(1, 2),
            chance.choice([1, 2, 3, 4]),
            chance.randint(2, 50),
        )
        window, heads = chance.choice([None, 9]), kv_heads * shared
        mask = band_of(window, 0, False, shared) if chance.random() < 0.7 else None
        tiling, widths = Tiling(name, BACKWARD[name]), (("d_k", 16), ("d_v", 16))
        found = written(tiling, widths, False, False, False, "float16", Pattern(mask, shared, sinks=True), 0.25)
        run = module_of(found.text).run
        x = {name: torch.randn(batch, heads, n, 16).half() for name in ("Q", "dO", "O")}
        x |= {name: torch.randn(batch, kv_heads, n, 16).half() for name in ("K", "V")}
        x["L"] = 2 * torch.randn(batch * kv_heads, n * shared)
        s = torch.randn(*[batch] * (chance.random() < 0.5), heads).to(chance.choice([torch.bfloat16, torch.float32]))
        results = [{"d" + each: torch.empty_like(x[each]) for each in "QKV"} for _ in range(2)]
        made, given = torch.full_like(s, torch.nan), [x[each] for each in found.takes]
        run(*given, results=results[0])
        run(*given, results=results[1], sums_of_sinks=(s, made))
        rows = (
            (x["dO"].float() * x["O"].float())
            .sum(-1)
            .unflatten(1, (kv_heads, shared))
            .transpose(2, 3)
            .reshape(len(x["L"]), -1)
        )
        true = plain(rows, x["L"], s, kv_heads)
        assert all(torch.equal(results[0][each], results[1][each]) for each in results[0])
        error, largest = float((made.double() - true).abs().max()), float(true.abs().max()) + 1.0
        assert error < max(1e-4, 2 * torch.finfo(s.dtype).eps) * largest


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKWARD)
def test_blocks_of_the_last_kernel_sum_as_plain_loops_do(name: str) -> None:
    in_interpreter(f"check_beside({name!r}, 6)")


def check(seed: int, draws: int) -> None:
    """Compare with plain loops, under Triton's interpreter: rows that lie apart, and those of a part of the queries."""
    from pebblesim.operator.sinks import gradient as gradient_of_sinks, kernel as kernel_of_sinks

    interpret()
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
    in_interpreter(f"check({seed}, 8)")


def in_interpreter(call: str) -> None:
    """Run a function of this file where kernels are run by Triton's interpreter."""
    here = Path(__file__)
    paths = os.pathsep.join(map(str, (here.parent, TESTS, ROOT)))
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", f"import {here.stem} as test; test.{call}"], env=environment, check=True)


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
