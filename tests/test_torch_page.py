"""What docs/attention.md says of each argument of `attention`, against pairs written out in float64, on the CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings, strategies as st  # noqa: E402
from tensors import close  # noqa: E402

from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.gpu.torch import attention  # noqa: E402


def by_pairs(q: Any, k: Any, v: Any, allowed: Any, scale: float, softcap: float | None = None) -> tuple[Any, Any]:
    """O and L of each query for itself, from the keys that it attends to: (batch, heads, n, d) in float64."""
    batch, heads, n_q, _ = q.shape
    rows, logs = list[Any](), list[Any]()
    for b in range(batch):
        for h in range(heads):
            of = h * k.shape[1] // heads
            for i in range(n_q):
                keys = [j for j in range(k.shape[2]) if allowed(b, i, j)]
                scores = (k[b, of, keys] * q[b, h, i]).sum(-1) * scale
                if softcap is not None:
                    scores = softcap * (scores / softcap).tanh()
                logs.append(torch.logsumexp(scores, 0))
                rows.append((scores.softmax(0)[:, None] * v[b, of, keys]).sum(0))
    return torch.stack(rows).reshape(batch, heads, n_q, -1), torch.stack(logs).reshape(batch, heads, n_q)


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def compare(made: Any, true: Any, x: list[Any]) -> None:
    """Check O and its gradients."""
    grad = torch.randn(true.shape, generator=torch.Generator().manual_seed(1), dtype=true.dtype)
    close([made, *torch.autograd.grad(made, x, grad)], [true, *torch.autograd.grad(true, x, grad)], 1e-11)


@settings(max_examples=60, deadline=None)
@given(
    padding=st.integers(1, 7).flatmap(
        lambda n_k: st.lists(st.tuples(*2 * [st.integers(0, n_k)], st.just(n_k)), min_size=1, max_size=3)
    ),
    one_for_all=st.booleans(),
    n_q=st.integers(1, 7),
    causal=st.booleans(),
    seed=st.integers(0, 99),
)
def test_key_padding_mask(
    padding: list[tuple[int, int, int]], one_for_all: bool, n_q: int, causal: bool, seed: int
) -> None:
    """True is padding: no query attends there, whatever is at its key and its value."""
    batch, n_k = len(padding), padding[0][2]
    mask = torch.tensor([[j < left or j >= n_k - right for j in range(n_k)] for left, right, _ in padding])
    mask = mask[:1] if one_for_all else mask
    x = drawn(seed, (batch, 4, n_q, 3), (batch, 2, n_k, 3), (batch, 2, n_k, 5))
    made = attention(*x, is_causal=causal, enable_gqa=True, key_padding_mask=mask)

    def allowed(b: int, i: int, j: int) -> bool:
        return not mask[0 if one_for_all else b, j] and (not causal or j <= i)

    true, _ = by_pairs(*x, allowed, 1 / math.sqrt(3))
    compare(made, true, x)


def test_padding_between_keys_and_other_masks_of_padding_are_refused() -> None:
    x = drawn(0, (3, 2, 6, 4), (3, 2, 6, 4), (3, 2, 6, 4))
    mask = torch.zeros(3, 6, dtype=torch.bool)
    mask[1, 3] = True
    with pytest.raises(UsageError, match="padding between two keys of the text"):
        attention(*x, key_padding_mask=mask)
    for wrong in (mask.int(), mask.double(), mask[:2], mask[:, :5], mask[0], mask.tolist()):
        with pytest.raises(UsageError, match=r"give booleans of shape \(3, 6\) or \(1, 6\), True where a key is pad"):
            attention(*x, key_padding_mask=wrong)


def test_the_old_name_of_padding_is_refused_whatever_is_in_it() -> None:
    """It was read both ways, so both meanings are named; its numbers are on a device that has none to look at."""
    x = [torch.zeros(1, 2, 6, 4)] * 3
    for old in (torch.ones(1, 6, dtype=torch.bool), torch.empty(1, 6, dtype=torch.bool, device="meta"), "left"):
        with pytest.raises(UsageError) as error:
            attention(*x, key_padding=old)
        said = str(error.value)
        assert "documented as True where a key is padding" in said and "computed as True where a key is not" in said
        assert "key_padding_mask=~mask" in said and "\n" not in said
