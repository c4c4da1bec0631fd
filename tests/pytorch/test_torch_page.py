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
from pebblesim.operator import masks  # noqa: E402
from pebblesim.operator.pattern import limits  # noqa: E402


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


@pytest.mark.filterwarnings("ignore:PyTorch's attention is used")
@pytest.mark.parametrize("added", [False, True])
def test_a_query_without_a_key_is_zero_whatever_kernel_pytorch_takes(added: bool, monkeypatch: Any) -> None:
    """Some of its kernels give other numbers there, and gradients of these."""
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def another(query: Any, key: Any, value: Any, mask: Any, *others: Any, **options: Any) -> Any:
        off = (~mask if mask.dtype == torch.bool else mask.isneginf()).all(-1, keepdim=True)
        return sdpa(query, key, value, mask, *others, **options) + off * (value.sum(-2, keepdim=True) + 7)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", another)
    x = drawn(1, (2, 2, 4, 3), (2, 2, 5, 3), (2, 2, 5, 3))
    mask = torch.ones(4, 5, dtype=torch.bool).tril(-1)
    mask[2] = False
    padding = torch.tensor([[True, False, False, False, False], [True] * 5])
    given = torch.zeros(4, 5, dtype=x[0].dtype).masked_fill(~mask, -torch.inf) if added else mask
    made = attention(*x, given, key_padding_mask=padding, fallback="sdpa")
    some = (mask & ~padding[:, None]).any(-1)
    assert some.sum() == 1 and not made.masked_fill(some[:, None, :, None], 0).any()
    true, _ = by_pairs(*x, lambda b, i, j: bool(mask[i, j]) and not padding[b, j], 1 / math.sqrt(3))
    compare(made, true, x)


def starts(draw: Any, parts: int, n: int) -> Any:
    """Where so many sequences start, and where the last ends: any of them may be empty, and tokens may be behind."""
    ends = sorted(draw(st.lists(st.integers(0, n), min_size=parts, max_size=parts)))
    return torch.tensor([0, *ends])


@settings(max_examples=300, deadline=None)
@given(data=st.data(), n_q=st.integers(1, 12), n_k=st.integers(1, 12), batch=st.integers(1, 3))
def test_ranges_that_kernels_read_rise_and_stay_inside(data: Any, n_q: int, n_k: int, batch: int) -> None:
    """Kernels find the queries of a key by search in them: they must not decrease, whatever masks are combined."""
    draw, side = data.draw, st.none() | st.integers(0, 14)
    window, causal, align = draw(st.tuples(side, side)), draw(st.booleans()), draw(st.sampled_from(["start", "end"]))
    given: dict[str, Any] = {"cu_seqlens": None, "key_padding_mask": None, "key_ranges": None}
    if draw(st.booleans()):
        parts = draw(st.integers(1, 4))
        given["cu_seqlens"] = starts(draw, parts, n_q), starts(draw, parts, n_k)
    if draw(st.booleans()):
        real = (
            torch.arange(n_k)
            >= torch.tensor(draw(st.lists(st.integers(0, n_k), min_size=batch, max_size=batch)))[:, None]
        )
        given["key_padding_mask"] = ~real
    if draw(st.booleans()):
        ends = st.lists(st.integers(0, n_k), min_size=n_q, max_size=n_q).map(sorted)
        given["key_ranges"] = tuple(torch.tensor([draw(ends)], dtype=torch.int32) for _ in "ab")
    q, k = torch.zeros(batch, 1, n_q, 1), torch.zeros(batch, 1, n_k, 1)
    within = limits(window, causal, align, n_q, n_k)
    first, end, *rest = masks.ranged(q, k, masks.Asked(None, None, *within, 1.0, 0.0, None, False), given)
    assert tuple(rest[:3]) == (within if first is None else (None, None, False))
    if first is None or end is None:
        assert all(mask is None for mask in given.values())
        return
    for each in (first, end):
        assert each.shape == (batch, n_q) and (each.diff() >= 0).all()
        assert (each >= 0).all() and (each <= n_k).all()


SIDES = st.one_of(
    st.none(),
    st.integers(-1, 14),
    st.tuples(st.sampled_from([2**20, 2**27, 2**30, 2**31]), st.integers(-20, 20)).map(lambda two: sum(two)),
).filter(lambda side: side is None or side < 2**31)
"""Limits of a window: some are beyond all keys, up to the largest that 32 bits hold."""


@settings(max_examples=150, deadline=None)
@given(data=st.data(), n_q=st.integers(1, 9), n_k=st.integers(1, 9), window=st.tuples(SIDES, SIDES))
def test_a_limit_beyond_all_keys_is_no_limit(data: Any, n_q: int, n_k: int, window: tuple[Any, Any]) -> None:
    """Kernels and ranges add limits to positions in 32 bits, times the heads that share keys: long ones leave first."""
    draw, align = data.draw, data.draw(st.sampled_from(["start", "end"]))
    masks: dict[str, Any] = {}
    if draw(st.booleans()):
        masks["key_padding_mask"] = torch.arange(n_k)[None] < draw(st.integers(0, n_k))
    if draw(st.booleans()):
        masks["cu_seqlens"] = torch.tensor([0, draw(st.integers(0, min(n_q, n_k)))])
    causal, shared = draw(st.booleans()), draw(st.sampled_from([1, 3]))
    x = drawn(0, (2, 2 * shared, n_q, 3), (2, 2, n_k, 3), (2, 2, n_k, 3))
    options = {"is_causal": causal, "enable_gqa": True, "align": align, "return_lse": True, **masks}
    short = tuple(None if side is None or side > 18 else side for side in window)
    for made, true in zip(attention(*x, window=window, **options), attention(*x, window=short, **options), strict=True):
        assert torch.equal(made, true)
    assert all(side is None or side < 2**20 for side in limits(window, causal, align, n_q, n_k)[:2])
    left, right = (None if side == -1 else side for side in window)
    assert limits(window, causal, align, 2**31, 2**31)[:2] == (left, 0 if causal else right)


@pytest.mark.filterwarnings("ignore:PyTorch's attention is used")
@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 5), (4, 1), (1, 1, 4, 5), (3, 4, 5)])
@pytest.mark.parametrize("added", [False, True])
def test_a_dense_mask_of_any_shape_that_broadcasts(shape: tuple[int, ...], added: bool) -> None:
    x = drawn(2, (2, 3, 4, 3), (2, 3, 5, 3), (2, 3, 5, 3))
    pairs = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.7
    mask = torch.zeros(shape, dtype=x[0].dtype).masked_fill(~pairs, -torch.inf) if added else pairs
    S = (x[0] @ x[1].mT / math.sqrt(3)).masked_fill(~pairs, -torch.inf)
    true = torch.where(S.isinf().all(-1, keepdim=True), 0.0, S.softmax(-1)) @ x[2]
    assert torch.allclose(attention(*x, mask, fallback="sdpa"), true, atol=1e-12)
