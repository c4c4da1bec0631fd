"""The kernel that rounds sums to their matrix: run by Triton's own interpreter, and compiled for a card."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT, TESTS

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


def check(seed: int, draws: int) -> None:
    """Compare what the kernel writes, word by word, with a loop over heads and queries; under Triton's interpreter."""
    from pebblesim.operator.launching import rounding

    rounding._kernel = lambda *given: rounding.rounded
    chance = random.Random(seed)
    for _ in range(draws):
        batch, kv_heads, shared = chance.choice([1, 2]), chance.choice([1, 3]), chance.choice([1, 2, 5])
        n, d = chance.choice([1, 3, 17, 40]), chance.choice([16, 20, 72, 128])
        heads, wide = kv_heads * shared, -(-d // 8) * 8
        sums = torch.randn(batch * kv_heads, n * shared, d)
        order = chance.choice([(0, 1, 2), (0, 2, 1)])
        sizes = (batch, heads, n)
        whole = torch.full((*(sizes[axis] for axis in order), wide + chance.choice([0, 8])), 77.0).half()
        x = whole.permute(*(order.index(axis) for axis in range(3)), 3)
        before = x.clone()
        rounding.round_on_gpu(sums, x[..., :d], kv_heads)
        for b in range(batch):
            for head in range(heads):
                for i in range(n):
                    row = sums[b * kv_heads + head // shared, i * shared + head % shared]
                    assert (x[b, head, i, :d] == row.half()).all(), (sizes, d, order)
        assert (x[..., d:] == before[..., d:]).all()


@pytest.mark.slow
def test_sums_are_rounded_to_their_places() -> None:
    told = "import test_torch_rounding as tested; tested.check(5, 40)"
    folders = os.pathsep.join(map(str, (Path(__file__).parent, TESTS, ROOT)))
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": folders}
    subprocess.run([sys.executable, "-c", told], env=environment, check=True)


@pytest.mark.parametrize("d", [72, 128])
def test_the_kernel_compiles_for_hopper(d: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stores are of several words at once: without them it would take as long as the sums."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from pebblesim.operator.launching.rounding import NUMBERS, rounded

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kinds = {"sums": "*fp32", "x": "*bf16", **dict.fromkeys(NUMBERS, "i32"), **dict.fromkeys(TILES, "constexpr")}
    source = ASTSource(
        rounded,
        signature={name: kinds[name] for name in rounded.arg_names},
        constexprs=dict(zip(TILES, (d, 16, 128), strict=True)),
        attrs={(at,): [["tt.divisibility", 16]] for at in (0, 1)},
    )
    made = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert made.asm["cubin"] and "st.global.v4.b32" in made.asm["ptx"]


TILES = ("D", "ROWS", "COLUMNS")
