"""The line of Python that `advise` names computes the attention that was asked for, under each mask, on the CPU."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

import pebblesim as ps  # noqa: E402
from pebblesim.advice.answer import call  # noqa: E402
from pebblesim.advice.result import Advice  # noqa: E402
from pebblesim.language import masks  # noqa: E402


@pytest.fixture(scope="module")
def advice() -> Advice:
    return ps.advise("A100", n=64, d=32, heads=4)


@pytest.mark.parametrize("mask", [None, "causal", "causal:start", "window:5", "band:3", "window:4:start"])
@pytest.mark.parametrize("sides", [(9, 9), (5, 12)])
def test_the_advised_line_is_the_attention_under_the_mask(
    advice: Advice, mask: str | None, sides: tuple[int, int]
) -> None:
    n_q, n_k = sides
    asked = replace(advice, dims={"n_q": n_q, "n_k": n_k, "d": 8}, mask=masks.of(mask), kv_heads=2)
    rng = np.random.default_rng(0)
    Q, K, V = (rng.normal(size=(1, heads, rows, 8)) for heads, rows in ((4, n_q), (2, n_k), (2, n_k)))
    scope = {name: torch.tensor(array) for name, array in (("Q", Q), ("K", K), ("V", V))}
    exec(call(asked, None), scope)
    j_minus_i = np.arange(n_k) - np.arange(n_q)[:, None] - (0 if mask and mask.endswith("start") else n_k - n_q)
    limits = {None: (-99, 99), "causal": (-99, 0), "window:5": (-4, 0), "band:3": (-3, 3), "window:4": (-3, 0)}
    low, high = limits[mask and mask.removesuffix(":start")]
    scores = Q @ np.repeat(K, 2, 1).swapaxes(2, 3) / 8**0.5
    weights = np.exp(scores) * ((j_minus_i >= low) & (j_minus_i <= high))
    expected = weights @ np.repeat(V, 2, 1) / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(scope["O"].numpy(), expected, rtol=1e-9, atol=1e-12)
