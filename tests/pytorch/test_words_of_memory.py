"""Every word that a kernel reads has been written: drawn masks, sizes and tiles, by the interpreter and on a GPU."""

from __future__ import annotations

import ast
import random
from dataclasses import replace
from itertools import accumulate, pairwise
from math import log, nan
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import interpreted_kernels  # noqa: E402
from hypothesis import example, given, strategies as st  # noqa: E402
from strategies import draws  # noqa: E402
from tensors import laid  # noqa: E402

from pebblesim.advice.tiles import SMALL_TILINGS, TILINGS, Tiling  # noqa: E402
from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.gpu.torch import attention  # noqa: E402
from pebblesim.operator import operators  # noqa: E402
from pebblesim.operator.launching import fresh, launch, layout as layout_of_tensors  # noqa: E402


def shrunk(tiling: Tiling) -> Tiling:
    """A tiling with blocks a fourth as long, so that few tokens have many, for all lengths and widths."""
    blocks = {name: max(16, size // 4) if name != "S" else 64 for name, size in tiling.blocks.items()}
    return replace(tiling, blocks=blocks, widths=(1, 1024), rows=0, even=False, masked=None)


def offered(problem: str) -> tuple[Tiling, ...]:
    """One tiling of each kind of kernels for a problem."""
    made = map(shrunk, (*TILINGS[problem], *SMALL_TILINGS[problem]))
    kinds = {(each.schedule, *each.blocks.items(), bool(each.described), each.one_source): each for each in made}
    return tuple(kinds.values())


FORWARD, BACKWARD = offered("forward"), offered("backward-qkv")

EMPTY = ("empty", "new_empty", "empty_like", "empty_strided", "empty_permuted", "resize_")
"""Functions of PyTorch that make tensors whose words nobody wrote."""

ALLOWED = (
    "query.new_empty(query.shape[:-1], dtype=kind)",
    "query.new_empty(0)",
    "self._written.empty(tuple(shape), dtype=dtype or self.dtype, device=self.device)",
    "torch.empty(*given, **options)",
    "self.local.empty(self.like, len(heads), tokens.number, words, name in STATISTICS)",
)
"""Tensors that have no words, of tracing and of no size; and what is called by, or calls, a function that makes words
`fresh`.
"""


@st.composite
def limits(draw: st.DrawFn, n_q: int, n_k: int) -> list[int]:
    """A number of keys for each query that does not decrease: most queries have that of the one before, some leap."""
    steps = st.one_of(st.just(0), st.just(0), st.integers(0, 3), st.integers(0, n_k))
    return [min(n_k, each) for each in accumulate(draw(st.lists(steps, min_size=n_q, max_size=n_q)))]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes, a mask, and kernels; ranges leave out keys between those of two queries, and give some queries no key."""
    batch, shared, kv_heads = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 3])), draw(st.integers(1, 2))
    n_q, n_k = draw(st.integers(1, 80)), draw(st.integers(1, 100))
    ranges = [(draw(limits(n_q, n_k)), draw(limits(n_q, n_k))) for _ in range(batch)]
    return {
        "sizes": (batch, shared * kv_heads, kv_heads, n_q, n_k),
        "d": (draw(st.sampled_from([16, 20, 40])), draw(st.sampled_from([16, 24]))),
        "ranges": ranges,
        "layout": draw(st.sampled_from(["heads first", "tokens first", "cut from wider"])),
        "kernels": (draw(st.sampled_from(FORWARD)), draw(st.sampled_from(BACKWARD))),
        "workspace": draw(st.sampled_from([None, None, 100_000])),
        "gradient_of_L": draw(st.booleans()),
    }


def true(given: list[Any], allowed: Any, dL: Any) -> list[Any]:
    """O, L to base 2, dQ, dK and dV of softmax(Q Kᵀ) V in float64; 0, and -∞ for L, of a query without a key."""
    *inputs, dO = (each.double() for each in given)
    Q, K, V = (each.requires_grad_() for each in inputs)
    shared = Q.shape[1] // K.shape[1]
    S = Q @ K.repeat_interleave(shared, 1).mT * 0.3
    some = allowed.any(-1, keepdim=True)
    P = torch.where(allowed, S, -1e300).softmax(-1) * some
    L = torch.where(allowed, S, -1e300).logsumexp(-1)
    O = P @ V.repeat_interleave(shared, 1)
    wanted = (O * dO).sum() + (0.0 if dL is None else (torch.where(some[..., 0], L, 0.0) / log(2) * dL).sum())
    gradients = torch.autograd.grad(wanted, (Q, K, V), allow_unused=True)
    return [O.detach(), torch.where(some[..., 0], L / log(2), -torch.inf).detach(), *gradients]


def check(given: list[Any], rest: tuple[Any, ...], allowed: Any, gradient_of_L: bool) -> None:
    """Compare kernels with the definition in float64: each row of O, L, dQ, dK and dV."""
    Q, K, V, dO = given
    out, lse = operators.forward_on_gpu(Q, K, V, *rest)
    dL = torch.randn_like(lse).masked_fill(lse.isinf(), 0.0) if gradient_of_L else None
    compare([out, lse, *operators.backward_on_gpu(dO, dL, Q, K, V, out, lse, *rest)], true(given, allowed, dL))


def compare(found: list[Any], wanted: list[Any]) -> None:
    for made, right in zip(found, wanted, strict=True):
        assert made.shape == right.shape
        assert (made.isinf() == right.isinf()).all()
        finite = ~right.isinf()
        beside, largest = (torch.where(finite, each, 0.0).abs().max() for each in (made.double() - right, right))
        assert float(beside) <= 6e-3 * max(1.0, float(largest))


@pytest.mark.parametrize("tiling", [each for each in TILINGS["backward-qkv"] if each.schedule == "dS-stored-blocked"])
def test_keys_that_no_query_sees_between_those_of_two_queries(tiling: Tiling) -> None:
    """One query at the end of each of four sequences, of which two share a tile, and keys before their windows."""
    torch.manual_seed(0)
    d, window, ends = 64, 38, torch.tensor([[19, 50, 182, 290]], dtype=torch.int32)
    first = torch.maximum(torch.tensor([[0, 19, 50, 182]], dtype=torch.int32), ends - 1 - window)
    given = [torch.randn(1, heads, n, d).half() for heads, n in ((6, 4), (2, 290), (2, 290), (6, 4))]
    keys = torch.arange(290)
    allowed = ((keys >= first[..., None]) & (keys < ends[..., None]))[:, None]
    with interpreted_kernels.launched() as only:
        only(TILINGS["forward"][:1], (replace(tiling, widths=(1, 1024), rows=0, even=False),))
        check(given, (first, ends, None, None, False, 0.3, 0.0, None, False), allowed, False)


FEW_KEYS: dict[str, Any] = {
    "sizes": (2, 3, 1, 33, 1),
    "d": (16, 16),
    "ranges": [([0] * 33, [1] * 33)] * 2,
    "layout": "heads first",
    "kernels": (next(each for each in FORWARD if each.schedule == "flash-decoding-blocked"), BACKWARD[0]),
    "workspace": None,
    "gradient_of_L": False,
}
"""99 rows of a KV head: kernels are chosen for 192, for which tiles of splits are not offered otherwise."""


@draws(10, 400)
@given(case=cases())
@example(case=FEW_KEYS)
def test_every_word_that_is_read_was_written(case: dict[str, Any]) -> None:
    """Under ranges of keys, which may be any, every table, sum and vector."""
    batch, heads, kv_heads, n_q, n_k = case["sizes"]
    d_k, d_v = case["d"]
    torch.manual_seed(n_q)
    shapes = (heads, n_q, d_k), (kv_heads, n_k, d_k), (kv_heads, n_k, d_v), (heads, n_q, d_v)
    given = [laid(torch.randn(batch, *shape).half(), case["layout"]) for shape in shapes]
    first, end = (torch.tensor([each[at] for each in case["ranges"]], dtype=torch.int32) for at in (0, 1))
    keys = torch.arange(n_k)
    allowed = ((keys >= first[..., None]) & (keys < end[..., None]))[:, None]
    with interpreted_kernels.launched(64) as only:
        only(*((each,) for each in case["kernels"]))
        rest = (first, end, None, None, False, 0.3, 0.0, case["workspace"], False)
        check(given, rest, allowed, case["gradient_of_L"])


@st.composite
def bands(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes, limits of j - i, and kernels; with few keys some queries have none, with few queries some keys."""
    shared, kv_heads = draw(st.sampled_from([1, 2, 3])), draw(st.integers(1, 2))
    n_q, n_k = draw(st.integers(1, 80)), draw(st.integers(1, 80))
    limit = st.one_of(st.none(), st.integers(0, 3), st.integers(0, 90))
    return {
        "sizes": (1, shared * kv_heads, kv_heads, n_q, n_k),
        "limits": (draw(limit), draw(limit), draw(st.booleans())),
        "kernels": tuple(draw(st.sampled_from([x for x in of if not x.ranged])) for of in (FORWARD, BACKWARD)),
        "workspace": draw(st.sampled_from([None, None, 100_000])),
        "gradient_of_L": draw(st.booleans()),
    }


@draws(8, 300)
@given(case=bands())
def test_queries_without_a_key_have_zeros(case: dict[str, Any]) -> None:
    """With limits that kernels are compiled for: O, L and all gradients, and every word that is read was written."""
    batch, heads, kv_heads, n_q, n_k = case["sizes"]
    left, right, at_end = case["limits"]
    torch.manual_seed(n_q)
    shapes = (heads, n_q, 16), (kv_heads, n_k, 16), (kv_heads, n_k, 16), (heads, n_q, 16)
    given = [torch.randn(batch, *shape).half() for shape in shapes]
    behind = torch.arange(n_k) - torch.arange(n_q)[:, None] - (n_k - n_q if at_end else 0)  # j - i
    allowed = (behind >= (-1000 if left is None else -left)) & (behind <= (1000 if right is None else right))
    with interpreted_kernels.launched(64) as only:
        only(*((each,) for each in case["kernels"]))
        rest = (None, None, left, right, at_end, 0.3, 0.0, case["workspace"], False)
        check(given, rest, allowed.expand(1, 1, n_q, n_k), case["gradient_of_L"])


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(60))
def test_results_do_not_depend_on_what_memory_held(number: int) -> None:
    """Drawn calls with packed, padded and ranged masks and windows, on a card whose free memory holds 777, then NaN."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU is here")
    draw = random.Random(number)
    batch, shared, kv_heads = draw.choice([1, 2]), draw.choice([1, 2, 3, 4]), draw.choice([1, 2])
    n_q = draw.choice([1, draw.randint(2, 8), draw.randint(2, 8), draw.randint(1, 64), draw.randint(1, 600)])
    n_k = draw.choice([draw.randint(1, 64), *(draw.randint(64, 2000 if n_q <= 8 else 600) for _ in range(3))])
    d = draw.choice([32, 40, 64, 64, 96, 128, 192, 256])
    kind = draw.choice(["packed", "packed", "padded", "ranged", "ranged", "window"])
    left = draw.choice([None, draw.randint(0, 40), draw.randint(0, 40), draw.randint(0, n_k)])
    right = draw.choice([None, 0, 0, draw.randint(0, n_k)])
    mask: dict[str, Any] = {"window": (left, right), "align": draw.choice(["start", "end"])}
    low, high = torch.zeros(batch, n_q, dtype=torch.long), torch.full((batch, n_q), n_k)
    place = torch.arange(n_q).expand(batch, n_q) + (n_k - n_q if mask["align"] == "end" else 0)
    if kind == "packed":
        many = n_q if n_q <= 8 else draw.randint(1, 5)  # few queries: one of each sequence, as in decoding
        starts = [[0, *sorted(draw.randint(0, n) for _ in range(many - 1)), n] for n in (n_q, n_k)]
        starts[0] = list(range(n_q + 1)) if n_q <= 8 else starts[0]
        mask["cu_seqlens"] = tuple(torch.tensor(each, dtype=torch.int32, device="cuda") for each in starts)
        for (a, b), (c, e) in zip(pairwise(starts[0]), pairwise(starts[1]), strict=True):
            low[:, a:b], high[:, a:b] = c, e
            place[:, a:b] = torch.arange(b - a) + (e - (b - a) if mask["align"] == "end" else c)
    if kind == "padded":
        for at in range(batch):
            low[at], high[at] = sorted(draw.randint(0, n_k) for _ in range(2))
        keys = torch.arange(n_k)
        padding = (keys < low[:, :1]) | (keys >= high[:, :1])
        mask["key_padding_mask"] = padding.cuda()
    if kind == "ranged":
        for at in range(batch):  # queries of some groups see some keys each, and others in between may be seen by none
            places = sorted(draw.randint(0, n_k) for _ in range(2 * draw.randint(1, 6)))
            of = torch.tensor(sorted(draw.randrange(len(places) // 2) for _ in range(n_q)))
            low[at], high[at] = torch.tensor(places[::2])[of], torch.tensor(places[1::2])[of]
        mask["key_ranges"] = low.int().cuda(), high.int().cuda()
    keys = torch.arange(n_k)
    allowed = (keys >= low[..., None]) & (keys < high[..., None])
    if left is not None:
        allowed &= keys >= place[..., None] - left
    if right is not None:
        allowed &= keys <= place[..., None] + right
    torch.manual_seed(number)
    shapes = (shared * kv_heads, n_q, d), (kv_heads, n_k, d), (kv_heads, n_k, d), (shared * kv_heads, n_q, d)
    given = [torch.randn(batch, *shape, dtype=torch.float16, device="cuda") for shape in shapes]
    of_each = []
    for value in (777.0, nan, 777.0):
        Q, K, V = (each.clone().requires_grad_() for each in given[:3])
        leave(value)
        options = {**mask, "enable_gqa": True, "scale": 0.3, "deterministic": True}
        out, lse = attention(Q, K, V, return_lse=True, **options)
        leave(value)
        of_each.append([out.detach(), lse.detach() / log(2), *torch.autograd.grad(out, (Q, K, V), given[3])])
    compare(of_each[0], true(given, allowed[:, None].cuda(), None))
    for first, *others in zip(*of_each, strict=True):
        assert all(torch.equal(first, other) for other in others)


def leave(value: float) -> None:
    """Leave a number in the memory that PyTorch gives out next."""
    sizes = [2**each for each in range(8, 24, 2) for _ in range(16)]
    held = [torch.full((size,), value, dtype=torch.float16, device="cuda") for size in (*sizes, 2**27)]
    del held


def test_new_memory_is_filled_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    like = torch.zeros(1, 2, 5, 20).half().transpose(1, 2)

    def made() -> list[Any]:
        rows = [layout_of_tensors.room_for(like, 20), layout_of_tensors.empty_like(like, 7)]
        return [*rows, launch.Torch().empty((3,))]

    with fresh.filled(777.0):
        with fresh.filled(nan):
            assert all(each.isnan().all() for each in made())
        assert all((each == 777).all() for each in made())
    for said, number in (("777", 777.0), ("", None)):
        monkeypatch.setenv(fresh.VARIABLE, said)
        assert fresh._from_start() == number
    monkeypatch.setenv(fresh.VARIABLE, "much")
    with pytest.raises(UsageError, match="PEBBLESIM_FILL is 'much'; give a number"):
        fresh._from_start()


def test_all_that_is_made_empty_may_be_filled() -> None:
    """No tensor is made with words that nobody wrote but as an argument of `fresh`, or where it takes no memory."""
    for path in Path(fresh.__file__).parents[1].rglob("*.py"):
        tree = ast.parse(path.read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        within = {id(each.args[0]) for each in calls if isinstance(each.func, ast.Name) and each.func.id == "fresh"}
        for node in calls:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            on_meta = any(isinstance(key.value, ast.Constant) and key.value.value == "meta" for key in node.keywords)
            if name in EMPTY and not on_meta and ast.unparse(node) not in ALLOWED:
                assert id(node) in within, f"{path.name}, line {node.lineno}"
