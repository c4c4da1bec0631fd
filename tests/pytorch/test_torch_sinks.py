"""Sinks, a number for each head in the softmax's denominator, against a softmax with one more column, on the CPU."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings, strategies as st  # noqa: E402
from judged_attention import refused  # noqa: E402
from tensors import close  # noqa: E402

from pebblesim.analysis.count import count  # noqa: E402
from pebblesim.gpu.torch import attention, plan  # noqa: E402
from pebblesim.kernels.passes.sinks import sinking  # noqa: E402
from pebblesim.language.registry import get  # noqa: E402
from pebblesim.operator.sinks import operators  # noqa: E402
from pebblesim.operator.sinks.gradient import gradient_of_sinks  # noqa: E402

INFINITY = math.inf


def drawn(*shape: int, seed: int = 0, dtype: Any = torch.float64) -> Any:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype).requires_grad_()


def qkv(batch: int, heads: int, kv: int, n_q: int, n_k: int, d: int = 3, d_v: int = 5) -> list[Any]:
    shapes = (batch, heads, n_q, d), (batch, kv, n_k, d), (batch, kv, n_k, d_v)
    return [drawn(*shape, seed=seed) for seed, shape in enumerate(shapes)]


def one_more_column(q: Any, k: Any, v: Any, s: Any, allowed: Any, softcap: float = 0.0) -> Any:
    """The softmax of all scores and of the sink, and the values with a row of zeros for it; L of both."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    S = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    S = softcap * torch.tanh(S / softcap) if softcap else S
    S = torch.where(allowed, S, -INFINITY)
    whole = torch.cat([S, s[:, None, None].expand(*S.shape[:-1], 1)], -1)
    return torch.einsum("bhij,bhjd->bhid", whole.softmax(-1)[..., :-1], v), whole.logsumexp(-1)


def same(made: tuple[Any, Any], true: tuple[Any, Any], leaves: list[Any], tolerance: float = 1e-12) -> None:
    """Check O, L, and the gradients by both."""
    seeds = [drawn(*each.shape, seed=7 + at).detach() for at, each in enumerate(true)]
    found, right = (list(torch.autograd.grad(each, leaves, seeds)) for each in (made, true))
    close([*made, *found], [*true, *right], tolerance)


@settings(max_examples=40, deadline=None)
@given(
    n_q=st.integers(1, 7),
    n_k=st.integers(1, 7),
    shared=st.integers(1, 3),
    window=st.none() | st.tuples(st.none() | st.integers(0, 4), st.none() | st.integers(0, 4)),
    align=st.sampled_from(["start", "end"]),
    softcap=st.sampled_from([None, 0.7]),
    height=st.sampled_from([0.0, 1.0, 30.0]),
)
def test_windows_and_groups(
    n_q: int, n_k: int, shared: int, window: Any, align: str, softcap: Any, height: float
) -> None:
    """Also a query without a key, whose O is 0 and whose L is s."""
    x, s = qkv(2, 2 * shared, 2, n_q, n_k), (drawn(2 * shared, seed=3).detach() * height).requires_grad_()
    i, j = torch.arange(n_q)[:, None] + (n_k - n_q if align == "end" else 0), torch.arange(n_k)[None]
    left, right = window or (None, None)
    allowed = (j >= i - (99 if left is None else left)) & (j <= i + (99 if right is None else right))
    options = {"window": window, "align": align, "softcap": softcap, "enable_gqa": True}
    made = attention(*x, sinks=s, return_lse=True, **options)
    same(made, one_more_column(*x, s, allowed, softcap or 0.0), [*x, s])
    without = ~allowed.any(-1)
    assert not made[0][:, :, without].any()
    assert ((made[1] - s[:, None])[:, :, without].abs() <= 1e-13 * height).all()


def test_gradcheck() -> None:
    """Of O and L, in all inputs; the second derivative of the sinks alone is right, too."""
    x, s = qkv(2, 4, 2, 3, 4), drawn(4, seed=3)
    call = lambda *x, **o: attention(*x[:3], enable_gqa=True, is_causal=True, sinks=x[3], return_lse=True, **o)  # noqa: E731
    assert torch.autograd.gradcheck(call, (*x, s))
    assert torch.autograd.gradgradcheck(lambda s: call(*(each.detach() for each in x), s)[0], (s,))


@pytest.mark.parametrize("sink", [-INFINITY, -1e300, -800.0, 0.0, 800.0, 1e300])
def test_sinks_of_any_height(sink: float) -> None:
    """Far above all scores O is 0 and no gradient is NaN; far below, and at -infinity, nothing changes."""
    x, s = qkv(1, 2, 2, 4, 5), torch.tensor([sink, 0.5], dtype=torch.float64).requires_grad_()
    ranges = tuple(torch.tensor([each], dtype=torch.int32) for each in ([0, 0, 0, 2], [0, 2, 3, 5]))
    made = attention(*x, sinks=s, key_ranges=ranges)
    plain = attention(*x, key_ranges=ranges)
    g = drawn(*made.shape, seed=8).detach()
    found, true = torch.autograd.grad(made, (*x, s), g), torch.autograd.grad(plain, x, g)
    assert all(each.isfinite().all() for each in (made, *found))
    assert not made[:, :, 0].any()
    if sink < -700:
        close([made[:, 0], *(each[:, 0] for each in found[:3])], [plain[:, 0], *(each[:, 0] for each in true)])
        assert found[3][0] == 0
    elif sink > 700:
        assert made[:, 0].abs().max() < 1e-300 and found[3][0].abs() < 1e-300
    else:
        assert made[:, 0].any() and found[3][0] != 0
    O, L = attention(*x, sinks=s, key_ranges=ranges, return_lse=True)
    assert torch.equal(O, made) and not L.isnan().any()
    assert L[0, 0, 0] == sink or abs(L[0, 0, 0] - sink) <= 1e-15 * abs(sink)


def test_float32_keeps_its_digits_where_the_sink_is_high() -> None:
    """O is as small as exp(L - s), to the precision of float32, and not 0 or 1 minus something."""
    x, s = [each.detach().float() for each in qkv(1, 2, 2, 4, 5)], torch.tensor([40.0, -40.0])
    made = attention(*x, sinks=s)
    true, _ = one_more_column(*(each.double() for each in x), s.double(), torch.ones(4, 5, dtype=torch.bool))
    assert ((made - true) / true).abs().max() < 1e-4


def test_packed_sequences_and_padding() -> None:
    """Each sequence as by itself, and queries behind the last have 0."""
    x, s = qkv(2, 4, 2, 9, 9), drawn(4, seed=3)
    made = attention(*x, sinks=s, enable_gqa=True, is_causal=True, cu_seqlens=torch.tensor([0, 2, 2, 7]))
    for part in (slice(0, 2), slice(2, 7)):
        alone = [each[:, :, part] for each in x]
        length = part.stop - part.start
        close([made[:, :, part]], [one_more_column(*alone, s, torch.ones(length, length).tril().bool())[0]])
    assert not made[:, :, 7:].any()
    padding = torch.tensor([[False] * 9, [True] * 3 + [False] * 6])
    made = attention(*x, sinks=s, enable_gqa=True, key_padding_mask=padding, return_lse=True)
    same(made, one_more_column(*x, s, ~padding[:, None, None]), [*x, s])


def test_decoding_is_the_last_row() -> None:
    x, s = qkv(2, 4, 2, 7, 7), drawn(4, seed=3)
    whole = attention(*x, sinks=s, enable_gqa=True, is_causal=True, window=(3, 0))
    last = attention(x[0][:, :, -1:], *x[1:], sinks=s, enable_gqa=True, is_causal=True, window=(3, 0), align="end")
    close([last], [whole[:, :, -1:]])


def test_parts_with_one_sink_are_put_together() -> None:
    """L is of the whole denominator, so a part with the sink and a part without it are weighted by exp(L)."""
    x, s = qkv(1, 2, 2, 4, 6), drawn(2, seed=3)
    parts = [
        attention(x[0], *(each[:, :, part] for each in x[1:]), sinks=sinks, return_lse=True)
        for part, sinks in ((slice(0, 2), s), (slice(2, 6), None))
    ]
    L = torch.logaddexp(*(each[1] for each in parts))
    O = sum(each[0] * (each[1] - L).exp()[..., None] for each in parts)
    same((O, L), attention(*x, sinks=s, return_lse=True), [*x, s])


def test_types_batches_and_sums_over_batches() -> None:
    """The gradient has the type of the sinks, and is rounded to it once, when all batches and queries are summed."""
    x = [each.detach().bfloat16() for each in qkv(6, 4, 2, 5, 5)]
    wide = [each.double() for each in x]
    for kind in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        s = drawn(4, seed=3, dtype=kind)
        made = attention(*(each.reshape(2, 3, *each.shape[1:]) for each in x), enable_gqa=True, sinks=s)
        assert made.dtype == torch.bfloat16 and made.shape == (2, 3, 4, 5, 5)
        O, _ = one_more_column(*wide, s.double(), torch.ones(5, 5, dtype=torch.bool))
        close([made.double().flatten(0, 1)], [O], 1e-2)
        g = torch.ones_like(O)
        (found,) = torch.autograd.grad(made, s, g.reshape(made.shape).bfloat16())
        (right,) = torch.autograd.grad(O, s, g)
        assert found.dtype == kind
        assert (found - right).abs().max() <= 5e-3 * right.abs().max()
    made = attention(*(each.float() for each in x), enable_gqa=True, sinks=s, compute_dtype=torch.float16)
    assert made.dtype == torch.float32
    assert attention(*(each[:0] for each in x), enable_gqa=True, sinks=s).shape == (0, 4, 5, 5)
    O, L = attention(x[0], *(each[:, :, :0] for each in x[1:]), enable_gqa=True, sinks=s, return_lse=True)
    assert not O.any() and torch.equal(L, s.float()[:, None].expand(6, 4, 5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_each_number_is_rounded_once(dtype: Any) -> None:
    x, s = [each.detach().to(dtype) for each in qkv(2, 4, 2, 9, 7)], drawn(4, seed=3).detach()
    true, _ = one_more_column(*(each.double() for each in x), s, torch.ones(9, 7, dtype=torch.bool))
    off = (attention(*x, enable_gqa=True, sinks=s).double() - true).abs()
    half = torch.finfo(dtype).eps / 2
    assert (off <= 1.001 * half * true.abs()).all(), "half of a unit in the last place, and what float32 is off"


def test_gradients_that_are_not_wanted_are_not_computed(monkeypatch: Any) -> None:
    from pebblesim.operator import definition

    x, s = [each.detach() for each in qkv(1, 2, 2, 4, 5)], drawn(2, seed=3)
    monkeypatch.setattr(definition, "backward", lambda *given: pytest.fail("the pass over keys is not needed"))
    (made,) = torch.autograd.grad(attention(*x, sinks=s).sum(), s)
    monkeypatch.undo()
    q = x[0].clone().requires_grad_()
    both = torch.autograd.grad(attention(q, *x[1:], sinks=s).sum(), (q, s))
    assert torch.equal(made, both[1])
    (alone,) = torch.autograd.grad(attention(q, *x[1:], sinks=s.detach()).sum(), q)
    assert torch.equal(alone, both[0])


@pytest.mark.parametrize("wanted", [(True,) * 4, (True, False, True, False), (False, False, False, True)])
def test_each_argument_of_the_operator_has_one_gradient(wanted: tuple[bool, ...]) -> None:
    """PyTorch before 2.15 leaves out a None too many, and 2.15 refuses it."""
    (q, k, v), s = ([each.detach() for each in qkv(1, 4, 2, 5, 6)], drawn(1, 4, seed=3).detach())
    operator, rest = torch.ops.pebblesim.attention_with_sinks.default, (None, 0, False, 0.5, 0.0, None, False)
    out, lse = operator(q, k, v, s, None, None, *rest)
    arguments = len(operator._schema.arguments)
    needs = (*wanted, *(False,) * (arguments - 4))
    ctx = SimpleNamespace(saved_tensors=(q, k, v, s, out, lse, None, None), needs_input_grad=needs, rest=rest)
    for grads in ((torch.ones_like(out), None), (None, torch.ones_like(lse))):
        made = operators._gradients(ctx, *grads)
        assert [each is not None for each in made] == list(needs)
    assert len(operators._gradients(ctx, None, None)) == arguments


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of opcheck itself
def test_opcheck_compile_and_vmap() -> None:
    x, s = qkv(2, 4, 2, 5, 6), drawn(2, 4, seed=3)
    rest = (None, None, None, 0, False, 0.5, 0.0, None, False)
    torch.library.opcheck(torch.ops.pebblesim.attention_with_sinks, (*x, s, *rest))

    def call(q: Any, k: Any, v: Any, s: Any) -> Any:
        return attention(q, k, v, enable_gqa=True, is_causal=True, sinks=s, return_lse=True)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (5, 8):
        x, s = qkv(2, 4, 2, n, n), drawn(4, seed=3)
        same(compiled(*x, s), call(*x, s), [*x, s])
    batched, heads = [torch.stack([each, each + 1]).detach() for each in x], torch.stack([s, s - 1]).detach()
    mapped = torch.vmap(call)(*batched, heads)
    for at in range(2):
        close([each[at] for each in mapped], list(call(*(each[at] for each in batched), heads[at])))
    close([torch.vmap(call, (None, None, None, 0))(*x, heads)[0][1]], [call(*x, heads[1])[0]])


def test_under_autocast() -> None:
    x, s = [each.detach().float() for each in qkv(1, 2, 2, 4, 5)], drawn(2, seed=3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = attention(*x, sinks=s)
    assert made.dtype == torch.bfloat16
    assert torch.equal(made, attention(*(each.bfloat16() for each in x), sinks=s))


@pytest.mark.parametrize(
    ("sinks", "said"),
    [
        ([0.0, 0.0], r"sinks is of list; give a tensor of shape \(2,\), or None"),
        (torch.zeros(3), r"sinks has shape \(3,\), and query has 2 heads; give a dense tensor of shape \(2,\)"),
        (torch.zeros(2, 1), r"sinks has shape \(2, 1\), and query has 2 heads"),
        (torch.zeros(()), r"sinks has shape \(\), and query has 2 heads"),
        (torch.zeros(2).to_sparse(), "sinks has layout torch.sparse_coo, and query has 2 heads"),
        (torch.zeros(2, dtype=torch.int64), "sinks is of torch.int64; give bfloat16, float16, float32 or float64"),
        (torch.tensor([0.0, torch.nan]), "sinks has NaN or .∞ among its numbers; give finite ones, or -∞ for a head"),
        (torch.tensor([torch.inf, 0.0]), "sinks has NaN or .∞ among its numbers"),
        (torch.zeros(2, device="meta"), "sinks is on meta and query on cpu; give both on one device"),
    ],
)
def test_sinks_that_are_refused(sinks: Any, said: str) -> None:
    x = [torch.zeros(1, 2, 4, 8)] * 3
    refused(lambda: attention(*x, sinks=sinks), said)


def test_pytorch_computes_no_sinks() -> None:
    x, s = [torch.zeros(1, 2, 4, 8)] * 3, torch.zeros(2)
    says = 'attention has no dropout, and fallback="sdpa" has no sinks; leave out the one or the other'
    refused(lambda: attention(*x, sinks=s, dropout_p=0.1, fallback="sdpa"), says)
    assert attention(*x, sinks=s, fallback="sdpa").shape == x[0].shape


@pytest.mark.parametrize("d", [8, 64])
def test_a_plan_counts_the_words_that_are_read_besides(d: int) -> None:
    """Those that kernels read of sinks, as the program says, and those that their gradient is made of."""
    heads, kv_heads, n = 6, 3, 10
    dims = {"n_q": n, "n_k": n, "d_k": d, "d_v": d}
    program = sinking(get("flash2-forward").in_dims(dims).program)
    read = count(program, dims | {"B_r": 4, "B_c": 4}).by_tensor["sinks"].reads
    rows = [torch.zeros(kv_heads, n * heads // kv_heads) for _ in "vL"]
    gradient_of_sinks(*rows, None, torch.zeros(heads), kv_heads, slice(0, n))
    words = 2 * heads * read, 2 * sum(each.numel() for each in rows)
    found = plan(n, d, heads, kv_heads=kv_heads, sinks=True)
    assert found.sinks == words
    said = [f"{each:,} words of 16 bits" for each in words]
    assert f"the softmax of each query begins with that of its head, {said[0]} from caches" in str(found)
    assert f"L and the row sums of dO ∘ O are read once more, {said[1]}" in str(found)
    assert plan(n, d, 6).sinks is None and "sinks" not in str(plan(n, d, 6))
