"""`attention` and `plan` as docs/attention.md and their docstrings have them: a blind test.

Written from the page alone. Calls are drawn with every mask, option, type and layout in combination, and held against
`oracle_attention`; `benchmarks/gpu/attention_page.py` draws the same on a card.
"""

# ruff: noqa: E402
from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import example, given, strategies as st
from judged_attention import computed, gradients, refused, wrong
from oracle_attention import Room, draw, meaning, options, tensors
from strategies import draws
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from pebblesim import UsageError
from pebblesim.gpu.torch import attention, plan

ROOM = Room(
    (1, 1, 2, 3, 5, 7, 8, 13, 16, 17, 20),
    [(8, 8), (16, 16), (5, 3), (1, 1), (24, 40), (64, 64), (33, 20), (300, 300)],
    ["float64", "float64", "float32", "float32", "bfloat16", "float16"],
)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def booleans(*rows: str) -> Tensor:
    """A padding mask; x is padding."""
    return torch.tensor([[letter == "x" for letter in row] for row in rows])


def integers(*numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


Q, K, V = numbers(2, 4, 5, 8), numbers(2, 4, 7, 8, seed=1), numbers(2, 4, 7, 6, seed=2)
HOLES = torch.eye(5, 7, dtype=torch.bool)
FIRST, END = integers([0, 0, 1, 2, 2]), integers([3, 3, 4, 6, 7])


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors are not worth the waiting of threads for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@given(seed=st.integers(0, 2**32))
@draws(200, 3000)
def test_a_drawn_call_has_the_results_and_gradients_of_the_page(seed: int) -> None:
    call = draw(seed, ROOM)
    leaves, seeds = tensors(call, "cpu"), gradients(call, "cpu")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PyTorch's attention is used")
        found = computed(attention, call, leaves, options(call, "cpu"), *seeds)
    said, _ = wrong(call, found, leaves, *seeds)
    assert not said, f"{call}: {said}"


@example(seed=2108)  # eight numbers of dK, in which an O that is rounded twice counts
@given(seed=st.integers(0, 2**32))
@draws(60, 1000)
def test_a_drawn_call_with_sinks(seed: int) -> None:
    """Sinks beside every mask, option, type and layout of these calls, but for dense masks."""
    call = replace(draw(seed, ROOM), dense=None)
    call = replace(call, sinks=("bfloat16", "float32", call.dtype)[seed % 3])
    leaves, seeds = tensors(call, "cpu"), gradients(call, "cpu")
    said, _ = wrong(call, computed(attention, call, leaves, options(call, "cpu"), *seeds), leaves, *seeds)
    assert not said, f"{call}: {said}"


BROKEN: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "window": lambda given: given | {"window": tuple(w if w in (None, -1) else w + 1 for w in given["window"])},
    "align": lambda given: given | {"align": "start"},
    "is_causal": lambda given: given | {"is_causal": False},
    "cu_seqlens": lambda given: {name: x for name, x in given.items() if name != "cu_seqlens"},
    "key_padding_mask": lambda given: given | {"key_padding_mask": torch.zeros_like(given["key_padding_mask"])},
    "key_ranges": lambda given: given | {"key_ranges": (given["key_ranges"][0], given["key_ranges"][1] * 0)},
    "softcap": lambda given: given | {"softcap": None},
    "scale": lambda given: given | {"scale": 2 * given["scale"]},
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_option_that_is_computed_wrongly_is_seen(name: str) -> None:
    """In three of twenty calls that have it, at least: options change nothing where others leave a key or two."""
    calls = [call for seed in range(2000) if name in options(call := draw(seed, ROOM), "cpu") and not call.dense][:20]
    said = []
    for call in calls:
        leaves, seeds = tensors(call, "cpu"), gradients(call, "cpu")
        found = computed(attention, call, leaves, BROKEN[name](options(call, "cpu")), *seeds)
        said.append(wrong(call, found, leaves, *seeds)[0])
    assert len(calls) == 20 and sum(map(bool, said)) >= 3


def test_the_draw_makes_what_the_page_names() -> None:
    calls = [draw(seed, ROOM) for seed in range(400)]
    asked = [options(call, "cpu") for call in calls]
    names = {name for given in asked for name in given}
    assert names == {
        *("attn_mask", "fallback", "is_causal", "scale", "enable_gqa", "window", "align", "softcap", "cu_seqlens"),
        *("key_padding_mask", "key_ranges", "return_lse", "compute_dtype", "workspace", "deterministic"),
    }
    masked = [{"window", "cu_seqlens", "key_padding_mask", "key_ranges"} & set(given) for given in asked]
    assert any(len(masks) == 4 for masks in masked)
    what = [meaning(call, tensors(call, "cpu"), *gradients(call, "cpu")) for call in calls[:100]]
    assert any(not one.pairs.any(-1).all() for one in what), "queries without a key"
    assert sum(bool(one.pairs.any()) for one in what) > 80


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a dense mask with dropout": (lambda: attention(Q, K, V, HOLES, dropout_p=0.1), "attn_mask"),
    "dropout": (lambda: attention(Q, K, V, dropout_p=0.1), "dropout"),
    "a probability that is not one": (lambda: attention(Q, K, V, dropout_p=-0.5, fallback="sdpa"), "dropout_p"),
    "another fallback": (lambda: attention(Q, K, V, fallback="math"), "fallback"),
    "an added mask of another type": (lambda: attention(Q, K, V, HOLES.int(), fallback="sdpa"), "attn_mask"),
    "a dense mask of another shape": (lambda: attention(Q, K, V, HOLES[:3], fallback="sdpa"), "attn_mask"),
    "a dense mask with capped scores": (lambda: attention(Q, K, V, HOLES, softcap=2.0, fallback="sdpa"), "softcap"),
    "no tensor": (lambda: attention(None, K, V), "query"),
    "no heads": (lambda: attention(Q[0, 0], K[0, 0], V[0, 0]), "query"),
    "integers": (lambda: attention(Q.int(), K.int(), V.int()), "int32"),
    "8 bits": (lambda: attention(*(x.to(torch.float8_e4m3fn) for x in (Q, K, V))), "float8"),
    "two types": (lambda: attention(Q, K.float(), V), "float32"),
    "other texts": (lambda: attention(Q, K[:1], V[:1]), r"\(1, 4, 7, 8\)"),
    "other lengths": (lambda: attention(Q, K, V[:, :, :6]), "6"),
    "other head dimensions": (lambda: attention(Q, K[..., :7], V), "7"),
    "a head dimension above 1,024": (lambda: attention(*[numbers(1, 1, 2, 1025)] * 3), "1,02[45]"),
    "values above 1,024": (lambda: attention(Q[:1, :1], K[:1, :1], numbers(1, 1, 7, 1025)), "1,02[45]"),
    "shared heads that are not asked for": (lambda: attention(Q, K[:, :2], V[:, :2]), "enable_gqa"),
    "heads that cannot be shared": (lambda: attention(Q[:, :3], K[:, :2], V[:, :2], enable_gqa=True), "heads"),
    "a scale that is not finite": (lambda: attention(Q, K, V, scale=math.nan), "scale"),
    "a window of one number": (lambda: attention(Q, K, V, window=3), "window"),
    "a window of three": (lambda: attention(Q, K, V, window=(1, 2, 3)), "window"),
    "a window below -1": (lambda: attention(Q, K, V, window=(-2, 0)), "window"),
    "a fraction of a window": (lambda: attention(Q, K, V, window=(1.5, 0)), "window"),
    "another align": (lambda: attention(Q, K, V, align="middle"), "align"),
    "capped at 0": (lambda: attention(Q, K, V, softcap=0), "softcap"),
    "capped below 0": (lambda: attention(Q, K, V, softcap=-2.0), "softcap"),
    "capped above 256": (lambda: attention(*[numbers(1, 1, 2, 257)] * 3, softcap=2.0), "256"),
    "starts that decrease": (lambda: attention(Q, Q, Q, cu_seqlens=integers(0, 4, 2, 5)), "cu_seqlens"),
    "starts that begin later": (lambda: attention(Q, Q, Q, cu_seqlens=integers(1, 5)), "cu_seqlens"),
    "starts beyond the tokens": (lambda: attention(Q, Q, Q, cu_seqlens=integers(0, 6)), "cu_seqlens"),
    "starts that are fractions": (lambda: attention(Q, Q, Q, cu_seqlens=torch.tensor([0.0, 5.0])), "cu_seqlens"),
    "other sequences of keys": (
        lambda: attention(Q, K, V, cu_seqlens=(integers(0, 5), integers(0, 3, 7))),
        "cu_seqlens",
    ),
    "three starts": (lambda: attention(Q, Q, Q, cu_seqlens=(integers(0, 5),) * 3), "cu_seqlens"),
    "padding inside": (lambda: attention(Q, K, V, key_padding_mask=booleans("..x....")), "key_padding_mask"),
    "padding of numbers": (lambda: attention(Q, K, V, key_padding_mask=booleans(".......").int()), "key_padding_mask"),
    "padding of other keys": (lambda: attention(Q, K, V, key_padding_mask=booleans(".....x")), "key_padding_mask"),
    "padding of other texts": (lambda: attention(Q, K, V, key_padding_mask=booleans(*["....xxx"] * 3)), "_mask"),
    "padding by its old name": (lambda: attention(Q, K, V, key_padding=booleans("....xxx")), "key_padding_mask"),
    "firsts that decrease": (lambda: attention(Q, K, V, key_ranges=(FIRST.flip(1), END)), "key_ranges"),
    "ends that decrease": (lambda: attention(Q, K, V, key_ranges=(FIRST, END.flip(1))), "key_ranges"),
    "ends beyond the keys": (lambda: attention(Q, K, V, key_ranges=(FIRST, END + 1)), "key_ranges"),
    "firsts below 0": (lambda: attention(Q, K, V, key_ranges=(FIRST - 1, END)), "key_ranges"),
    "ranges of 64 bits": (lambda: attention(Q, K, V, key_ranges=(FIRST.long(), END.long())), "int32"),
    "one range": (lambda: attention(Q, K, V, key_ranges=FIRST), "key_ranges"),
    "ranges of other queries": (lambda: attention(Q, K, V, key_ranges=(FIRST[:, :4], END[:, :4])), "key_ranges"),
    "a type that kernels do not have": (lambda: attention(Q, K, V, compute_dtype=torch.float32), "compute_dtype"),
    "bytes below 0": (lambda: attention(Q, K, V, workspace=-1), "workspace"),
    "a fraction of bytes": (lambda: attention(Q, K, V, workspace=1.5), "workspace"),
    "nested tensors": (lambda: attention(*[torch.nested.as_nested_tensor([Q[0], Q[1]])] * 3), "nested"),
    "a flag that is a word": (lambda: attention(Q, K, V, is_causal="yes"), "is_causal"),
    "a window of flags": (lambda: attention(Q, K, V, window=(True, True)), "window"),
    "capped by a flag": (lambda: attention(Q, K, V, softcap=True), "softcap"),
    "heads of 0": (lambda: attention(Q[:, :0], K[:, :0], V[:, :0]), "0"),
    "a mask elsewhere": (lambda: attention(Q, K, V, key_padding_mask=booleans("....xxx").to("meta")), "meta"),
    "too little room": (lambda: attention(*[numbers(1, 1, 2, 640)] * 3, workspace=0), "workspace"),
    "complex numbers": (lambda: attention(Q + 0j, K + 0j, V + 0j), "complex"),
    "sparse tensors": (lambda: attention(Q.to_sparse(), K, V), "sparse"),
    "a plan for no card": (lambda: plan(8, 8, card=None), "card"),
    "a plan for an old card": (lambda: plan(8, 8, card="V100"), "8.0"),
    "a plan of a word": (lambda: plan(8, 8, is_causal="yes"), "is_causal"),
    "a plan without tokens": (lambda: plan(0, 8), "n = 0"),
    "a plan of fractions": (lambda: plan(1.5, 8), "1.5"),
    "a plan of a wide head": (lambda: plan(8, 1025), "1,024"),
    "a plan of wide values": (lambda: plan(8, 8, d_v=1025), "1,024"),
    "a plan without heads": (lambda: plan(8, 8, 0), "heads"),
    "a plan of heads that cannot be shared": (lambda: plan(8, 8, 6, kv_heads=4), "6 heads"),
    "a plan of 32 bits": (lambda: plan(8, 8, dtype="float32"), "float32"),
    "a plan of a window": (lambda: plan(8, 8, window=(-2, 0)), "window"),
    "a plan of another align": (lambda: plan(8, 8, align="middle"), "align"),
    "a plan without room": (lambda: plan(8, 1024, workspace=0), "workspace"),
    "a plan of bytes below 0": (lambda: plan(8, 8, workspace=-1), "workspace"),
    "a plan for another card": (lambda: plan(8, 8, card="Abacus"), "Abacus"),
    "a plan that does not fit": (lambda: plan(10**8, 512, 64), "memory"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_page_refuses_is_refused_in_one_sentence(name: str) -> None:
    refused(*REFUSED[name])


def test_parts_are_put_together_by_their_sums() -> None:
    q, k, v = (x.clone().requires_grad_() for x in (Q, K, V))
    parts = [attention(q, k[:, :, s], v[:, :, s], return_lse=True) for s in (slice(0, 3), slice(3, 7))]
    whole = torch.logsumexp(torch.stack([l for _, l in parts]), 0)
    joined = sum(o * torch.exp(l - whole)[..., None] for o, l in parts)
    seed = numbers(2, 4, 5, 6, seed=3)
    apart = torch.autograd.grad(joined, (q, k, v), seed)
    together = scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(joined, together)
    torch.testing.assert_close(apart, torch.autograd.grad(together, (q, k, v), seed))


def test_what_pytorch_computes_is_said_once_and_is_pytorchs() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.manual_seed(5)
            ours = attention(Q, K, V, dropout_p=0.25, fallback="sdpa")
    assert len(said) <= 1, "another test may have had it said"
    torch.manual_seed(5)
    torch.testing.assert_close(ours, scaled_dot_product_attention(Q, K, V, dropout_p=0.25), rtol=0, atol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(
            attention(Q, K, V, None, 0.0, fallback="sdpa"), scaled_dot_product_attention(Q, K, V)
        )


@pytest.mark.filterwarnings("ignore:PyTorch's attention is used")
def test_wider_heads_and_capped_ones_are_pytorchs_with_the_fallback() -> None:
    wide = numbers(1, 2, 3, 1030)
    torch.testing.assert_close(
        attention(wide, wide, wide, fallback="sdpa"), scaled_dot_product_attention(wide, wide, wide)
    )


@pytest.mark.parametrize(
    "options",
    [{"is_causal": True, "return_lse": True}, {"window": (2, 1), "softcap": 3.0}, {"align": "end", "is_causal": True}],
)
def test_a_compiled_call_is_the_call(options: dict[str, Any]) -> None:
    def both(q: Tensor, k: Tensor, v: Tensor) -> Any:
        given = attention(q, k, v, **options)
        return given[0] * 2 + given[1][..., None] if options.get("return_lse") else given * 2

    compiled = torch.compile(both, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (5, 6, 7):
        q, k, v = (x[:, :, :n].clone().requires_grad_() for x in (K, K, V))
        seed = numbers(2, 4, n, 6, seed=n)
        ours, theirs = both(q, k, v), compiled(q, k, v)
        torch.testing.assert_close(theirs, ours)
        torch.testing.assert_close(*(torch.autograd.grad(o, (q, k, v), seed) for o in (theirs, ours)))


def test_types_that_the_page_names() -> None:
    """Several types with `compute_dtype`, which goes before autocast; float64 under autocast is left alone."""
    rounded = [x.bfloat16().double() for x in (Q, K, V)]
    mixed = attention(Q.float(), K, V.half(), compute_dtype=torch.bfloat16)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed.double(), scaled_dot_product_attention(*rounded), rtol=2e-2, atol=2e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        exact, sums = attention(Q, K, V, return_lse=True)
        half = attention(Q.float(), K.float(), V.float(), compute_dtype=torch.float16)
        cast = attention(Q.half(), K.half(), V.half())
    assert (exact.dtype, sums.dtype, half.dtype, cast.dtype) == (torch.float64,) * 2 + (torch.float32, torch.bfloat16)
    whole = scaled_dot_product_attention(Q, K, V)
    torch.testing.assert_close(exact, whole)
    torch.testing.assert_close(half.double(), whole, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_starts_are_integers_of_any_type_and_one_tensor_may_be_for_both(dtype: torch.dtype) -> None:
    starts = torch.tensor([0, 2, 2, 4], dtype=dtype)
    packed, sums = attention(Q, K, V, cu_seqlens=starts, return_lse=True)
    parts = [scaled_dot_product_attention(*(x[:, :, at] for x in (Q, K, V))) for at in (slice(0, 2), slice(2, 4))]
    torch.testing.assert_close(packed, torch.cat([*parts, torch.zeros(2, 4, 1, 6, dtype=Q.dtype)], 2))
    assert bool((sums[:, :, 4] == -torch.inf).all()) and bool(sums[:, :, :4].isfinite().all())


@pytest.mark.filterwarnings("ignore:PyTorch's attention is used")
def test_a_mask_that_is_added_may_be_of_32_bits() -> None:
    added = numbers(5, 7, seed=9).float()
    ours = attention(*(x.bfloat16() for x in (Q, K, V)), added, fallback="sdpa")
    theirs = scaled_dot_product_attention(*(x.bfloat16().double() for x in (Q, K, V)), added.double())
    torch.testing.assert_close(ours.double(), theirs, rtol=2e-2, atol=2e-2)


def test_checkpoints_and_vmap_give_the_same() -> None:
    q, k, v = (x.clone().requires_grad_() for x in (Q, K, V))
    plain, kept = (
        attention(q, k, v, is_causal=True),
        checkpoint(attention, q, k, v, is_causal=True, use_reentrant=False),
    )
    torch.testing.assert_close(kept, plain)
    torch.testing.assert_close(*(torch.autograd.grad(o.sum(), (q, k, v)) for o in (kept, plain)))
    each = torch.func.vmap(lambda q, k, v: attention(q, k, v, is_causal=True))
    torch.testing.assert_close(each(Q, K, V), plain.detach())
    torch.testing.assert_close(
        torch.func.vmap(attention, (0, None, None))(Q, K[0], V[0])[1], attention(Q[1], K[0], V[0])
    )


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_derivatives_that_it_does_not_have_are_refused() -> None:
    q = Q.clone().requires_grad_()
    (first,) = torch.autograd.grad(attention(q, K, V).square().sum(), q, create_graph=True)
    with pytest.raises(UsageError, match="derivatives"):
        torch.autograd.grad(first.sum(), q)
    with pytest.raises(UsageError, match="and not those of torch"):
        torch.func.grad(lambda q: attention(q, K, V).sum())(Q)
    with pytest.raises(UsageError, match="and not those of torch"):
        torch.func.jvp(lambda q: attention(q, K, V), (Q,), (Q,))
    with pytest.raises(UsageError, match="and not those of torch"), torch.autograd.forward_ad.dual_level():
        attention(torch.autograd.forward_ad.make_dual(Q, Q), K, V)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_no_number_in_a_query_stays_with_that_query(number: float) -> None:
    q = Q.clone()
    q[1, 2, 3, 4] = number
    off = attention(q, K, V) != attention(Q, K, V)
    assert off.any(-1).nonzero().tolist() == [[1, 2, 3]]


@example(seed=100)  # lengths rounded up have no room, which these have
@given(st.integers(0, 2**32))
@draws(12, 200)
def test_a_plan_says_what_it_was_asked(seed: int) -> None:
    random = Random(seed)
    n, n_k, kv, shared = random.randint(1, 3000), random.randint(1, 3000), random.randint(1, 3), random.randint(1, 4)
    d, d_v = random.choice((1, 7, 64, 96, 128, 256, 512, 1000)), random.choice((None, 5, 64, 512))
    room, card = random.choice((None, 2**22, 2**30)), random.choice(("H200", "H100", "A100"))
    masks = {"is_causal": random.random() < 0.5, "align": random.choice(("start", "end"))}
    masks["window"] = random.choice((None, (None, None), (-1, 0), (100, 7)))
    dtype = random.choice(("bfloat16", "float16"))
    heads = {"heads": kv * shared, "kv_heads": kv, "n_k": n_k, "d_v": d_v}
    ask = lambda room: plan(n, d, **heads, dtype=dtype, workspace=room, card=card, **masks)  # noqa: E731
    try:
        made = ask(room)
    except UsageError as error:  # it says what is enough
        room = int(str(error).split("give ")[1].split()[0].replace(",", ""))
        made = ask(room)
    text = str(made)
    sizes = {"n_q": n, "n_k": n_k, "d_k": d, "d_v": d_v or d}
    if (masks["align"] == "start" and masks["window"] != (100, 7)) or n == n_k:  # each query has a key
        assert all(f"{name} = {size:,}" in text for name, size in sizes.items())
    assert made.widths == (d, d_v or d) and made.heads == kv
    assert card in text and made.scaled == (card == "A100")
    assert made.workspace == (room or 2**30) and max(made.tables) <= made.workspace
    assert text.splitlines()[1].startswith(f"forward: {made.forward[0].tiling.schedule}")
    assert "backward: " + made.backward[0].tiling.schedule in text
