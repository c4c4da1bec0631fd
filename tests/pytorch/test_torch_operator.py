"""The operator on the CPU, where it follows the definition."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings, strategies as st  # noqa: E402
from tensors import close  # noqa: E402

from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.gpu.torch import attention  # noqa: E402
from pebblesim.operator import once  # noqa: E402

sdpa = torch.nn.functional.scaled_dot_product_attention


def drawn(*shape: int, dtype: Any = torch.float64, grad: bool = True) -> Any:
    return torch.randn(*shape, dtype=dtype).requires_grad_(grad)


def qkv(batch: int, heads: int, kv: int, n_q: int, n_k: int, d: int, d_v: int | None = None) -> list[Any]:
    return [drawn(batch, heads, n_q, d), drawn(batch, kv, n_k, d), drawn(batch, kv, n_k, d_v or d)]


def gradients(out: Any, inputs: list[Any], seed: int = 1) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return list(torch.autograd.grad(out, inputs, torch.randn(out.shape, generator=generator, dtype=out.dtype)))


def masked(q: Any, k: Any, v: Any, allowed: Any, softcap: float = 0.0) -> Any:
    """Attention written out for each pair, and none of our code: rows without a key are 0."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    S = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    S = softcap * torch.tanh(S / softcap) if softcap else S
    E = torch.where(allowed, torch.exp(S - S.amax(-1, keepdim=True).detach()), 0.0)
    return torch.einsum("bhij,bhjd->bhid", E / E.sum(-1, keepdim=True).clamp(min=1e-300), v)


@settings(max_examples=20, deadline=None)
@given(
    n_q=st.integers(1, 9),
    n_k=st.integers(1, 9),
    d=st.integers(1, 9),
    d_v=st.integers(1, 9),
    shared=st.integers(1, 3),
    causal=st.booleans(),
)
def test_it_is_what_pytorch_computes(n_q: int, n_k: int, d: int, d_v: int, shared: int, causal: bool) -> None:
    x = qkv(2, 2 * shared, 2, n_q, n_k, d, d_v)
    made, true = (f(*x, is_causal=causal, enable_gqa=True) for f in (attention, sdpa))
    close([made, *gradients(made, x)], [true, *gradients(true, x)])


@settings(max_examples=40, deadline=None)
@given(
    n_q=st.integers(1, 8),
    more=st.integers(0, 5),
    left=st.none() | st.integers(0, 9),
    right=st.none() | st.integers(0, 9),
    at_end=st.booleans(),
    softcap=st.sampled_from([None, 0.7, 50.0]),
)
def test_windows_against_pairs(
    n_q: int, more: int, left: int | None, right: int | None, at_end: bool, softcap: float | None
) -> None:
    n_k = n_q + more
    x = qkv(1, 2, 1, n_q, n_k, 3)
    i, j = torch.arange(n_q)[:, None] + (more if at_end else 0), torch.arange(n_k)[None, :]
    allowed = ((left is None) | (i - j <= (left or 0))) & ((right is None) | (j - i <= (right or 0)))
    options = {"window": (left, right), "align": "end" if at_end else "start", "softcap": softcap}
    made, true = attention(*x, enable_gqa=True, **options), masked(*x, allowed, softcap or 0.0)
    close([made, *gradients(made, x)], [true, *gradients(true, x)], 1e-11)


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    behind=st.integers(0, 3),
    left=st.none() | st.integers(0, 4),
    causal=st.booleans(),
)
def test_packed_sequences_against_each_for_itself(
    lengths: list[int], behind: int, left: int | None, causal: bool
) -> None:
    n = sum(lengths) + behind
    x = qkv(2, 2, 2, n, n, 3)
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    made = attention(*x, is_causal=causal, window=(left, None), cu_seqlens=starts)
    for start, stop in zip(starts.tolist(), starts.tolist()[1:], strict=False):
        alone = attention(*(each[:, :, start:stop] for each in x), is_causal=causal, window=(left, None))
        close([made[:, :, start:stop]], [alone])
    assert not made[:, :, n - behind :].any()


@pytest.mark.parametrize(
    "mask", [{"is_causal": True, "align": "end"}, {"window": (1, 0), "align": "end"}, {"window": (2, 0)}]
)
@pytest.mark.parametrize("packed", [False, True])
def test_queries_that_see_no_key_have_zeros(mask: dict[str, Any], packed: bool) -> None:
    x = qkv(1, 2, 2, 8, 3, 4)
    parts = ((range(5), range(1)), (range(5, 8), range(1, 3))) if packed else ((range(8), range(3)),)
    starts = (torch.tensor([0, 5, 8]), torch.tensor([0, 1, 3])) if packed else None
    made, lse = attention(*x, return_lse=True, cu_seqlens=starts, **mask)
    allowed, (left, right) = torch.zeros(8, 3, dtype=torch.bool), mask.get("window", (9, 0))
    for rows, columns in parts:
        shift = columns.stop - rows.stop if "align" in mask else columns.start - rows.start
        for i in rows:
            for j in columns:
                allowed[i, j] = -left <= j - i - shift <= right
    some = allowed.any(-1)
    assert not some.all() and (lse.isinf() == ~some).all()
    true = masked(*x, allowed)
    close([made, *gradients(made, x)], [true, *gradients(true, x)])


def test_packed_sequences_with_other_numbers_of_keys() -> None:
    x = qkv(1, 2, 2, 5, 9, 4)
    starts = torch.tensor([0, 2, 5]), torch.tensor([0, 4, 9])
    made = attention(*x, is_causal=True, align="end", cu_seqlens=starts)
    for (a, b), (c, d) in (((0, 2), (0, 4)), ((2, 5), (4, 9))):
        alone = attention(x[0][:, :, a:b], x[1][:, :, c:d], x[2][:, :, c:d], is_causal=True, align="end")
        close([made[:, :, a:b]], [alone])


def test_spans_that_look_both_ways_are_key_ranges() -> None:
    """Tokens 2 to 4 are an image: each sees all of it, and all that comes before."""
    x = qkv(1, 2, 2, 7, 7, 4)
    end = torch.tensor([[1, 2, 5, 5, 5, 6, 7]], dtype=torch.int32)
    made = attention(*x, key_ranges=(torch.zeros_like(end), end))
    allowed = torch.ones(7, 7, dtype=torch.bool).tril()
    allowed[2:5, 2:5] = True
    close([made], [masked(*x, allowed)])
    with pytest.raises(UsageError, match="decrease from one query to the next"):
        attention(*x, key_ranges=(torch.zeros_like(end), end.flip(-1)))
    with pytest.raises(UsageError, match="int32 tensors of shape"):
        attention(*x, key_ranges=(end, end.long()))


def test_the_logarithms_of_sums_and_their_gradients() -> None:
    x = qkv(2, 4, 2, 5, 7, 3)

    def both(*x: Any) -> Any:
        return attention(*x, enable_gqa=True, window=(2, 1), align="end", softcap=2.0, return_lse=True)

    assert torch.autograd.gradcheck(both, x)
    S = x[0] @ x[1].repeat_interleave(2, 1).mT / math.sqrt(3)
    close([attention(*x, enable_gqa=True, return_lse=True)[1]], [torch.logsumexp(S, -1)])


def test_parts_that_were_computed_apart_can_be_put_together() -> None:
    """What rings of devices and split keys do, with L."""
    q, k, v = x = qkv(1, 2, 2, 4, 10, 3)
    (a, la), (b, lb) = (attention(q, k[:, :, s], v[:, :, s], return_lse=True) for s in (slice(0, 3), slice(3, 10)))
    L = torch.logaddexp(la, lb)
    made = a * (la - L).exp()[..., None] + b * (lb - L).exp()[..., None]
    true = sdpa(q, k, v)
    close([made, *gradients(made, x)], [true, *gradients(true, x)])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of opcheck itself, in PyTorch 2.15
@pytest.mark.parametrize("first", [False, True])
def test_opcheck(first: bool) -> None:
    q, k, v = qkv(2, 4, 2, 6, 8, 3, 5)
    ranges = (None, None)
    if first:
        ranges = (torch.zeros(2, 6, dtype=torch.int32), torch.arange(1, 7).int().expand(2, 6))
    arguments = (q, k, v, *ranges, None if first else 3, None if first else 0, True, 0.3, 0.0, None, False)
    torch.library.opcheck(torch.ops.pebblesim.attention, arguments)
    tokens_first = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(torch.ops.pebblesim.attention, (*tokens_first, *arguments[3:]))
    out, lse = (x.detach() for x in torch.ops.pebblesim.attention(*arguments))
    for grad_lse in (None, torch.randn_like(lse)):
        backward = (torch.randn_like(out), grad_lse, q.detach(), k.detach(), v.detach(), out, lse, *arguments[3:])
        torch.library.opcheck(torch.ops.pebblesim.attention_backward, backward)


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_has_no_break(dynamic: bool) -> None:
    torch._dynamo.reset()
    options = {"enable_gqa": True, "is_causal": True, "window": (4, 0), "align": "end"}
    compiled = torch.compile(lambda *x: attention(*x, **options), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for n in (5, 7, 30) if dynamic else (5,):
        x = qkv(2, 4, 2, n, n + 3, 8)
        made, true = compiled(*x), attention(*x, **options)
        close([made, *gradients(made, x)], [true, *gradients(true, x)])


def test_torch_compile_of_packed_sequences() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *x: attention(*x[:3], is_causal=True, cu_seqlens=x[3]), fullgraph=True, backend="aot_eager"
    )
    x, starts = qkv(1, 2, 2, 9, 9, 4), torch.tensor([0, 4, 9], dtype=torch.int32)
    close([compiled(*x, starts)], [attention(*x, is_causal=True, cu_seqlens=starts)])


def test_gradients_of_any_subset_and_none_kept_without() -> None:
    for wanted in ((0,), (1,), (2,), (0, 2), (1, 2)):
        x = [each.detach().requires_grad_(at in wanted) for at, each in enumerate(qkv(1, 2, 2, 4, 4, 3))]
        subset = [x[at] for at in wanted]
        close(gradients(attention(*x), subset), gradients(sdpa(*x), subset))
    x = [each.detach() for each in x]
    assert attention(*x).grad_fn is None
    with torch.no_grad():
        assert attention(*(each.requires_grad_() for each in x)).grad_fn is None


def test_second_derivatives_are_refused() -> None:
    x = qkv(1, 1, 1, 3, 3, 2)
    (first,) = torch.autograd.grad(attention(*x).square().sum(), x[:1], create_graph=True)
    with pytest.raises(UsageError, match="first derivatives only"):
        first.sum().backward()


def test_checkpointing_and_vmap() -> None:
    from torch.utils.checkpoint import checkpoint

    x = qkv(2, 2, 2, 4, 4, 3)
    made = checkpoint(attention, *x, use_reentrant=False)
    close(gradients(made, x), gradients(attention(*x), x))
    several = torch.randn(3, 2, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    made = torch.vmap(lambda q: attention(q, *x[1:], is_causal=True))(several)
    true = torch.stack([attention(q, *x[1:], is_causal=True) for q in several])
    close([made, *gradients(made, [several, *x[1:]])], [true, *gradients(true, [several, *x[1:]])])


def test_autocast_is_as_for_pytorchs_attention() -> None:
    x = [drawn(1, 2, 5, 8, dtype=torch.float32) for _ in range(3)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made, true = attention(*x), sdpa(*x)
    assert made.dtype == true.dtype == torch.bfloat16
    assert all(each.dtype == torch.float32 for each in gradients(made, x))
    assert attention(*x, compute_dtype=torch.bfloat16).dtype == torch.float32


def test_layouts() -> None:
    """What comes from (batch, tokens, heads, d) is returned so, without a copy."""
    x = [torch.randn(2, 5, 4, 3).transpose(1, 2) for _ in range(3)]
    made = attention(*x)
    assert made.transpose(1, 2).is_contiguous()
    close([made], [attention(*(each.contiguous() for each in x))], 1e-6)
    assert attention(*(each[0] for each in x)).shape == (4, 5, 3)
    close([attention(*(each[:, None] for each in x))[:, 0]], [made], 1e-6)


def test_the_fallback_says_once_that_it_was_taken() -> None:
    once._SAID.clear()
    x = qkv(2, 4, 2, 5, 5, 130)
    mask = torch.rand(2, 1, 5, 5) > 0.3
    mask[..., 0] = True
    with pytest.warns(UserWarning, match="PyTorch's attention is used: a head dimension is 130") as said:
        made = attention(*x, attn_mask=mask, is_causal=True, enable_gqa=True, fallback="sdpa")
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention(*x, attn_mask=mask, enable_gqa=True, fallback="sdpa")
    close([made], [sdpa(*x, mask & torch.ones(5, 5, dtype=torch.bool).tril(), enable_gqa=True)])
    added = torch.randn(5, 5, dtype=torch.float64)
    lengths = torch.tensor([0, 2, 5])
    made = attention(*x, attn_mask=added, cu_seqlens=lengths, enable_gqa=True, fallback="sdpa")
    apart = torch.block_diag(torch.ones(2, 2), torch.ones(3, 3)).bool()
    close([made], [sdpa(*x, added.masked_fill(~apart, -torch.inf), enable_gqa=True)])
    with pytest.raises(UsageError, match="2 heads and key 3"):
        attention(drawn(1, 2, 3, 4), drawn(1, 3, 3, 4), drawn(1, 3, 3, 4), fallback="sdpa")
