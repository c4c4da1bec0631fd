"""Every word that a kernel reads has been written: drawn masks, sizes and tiles, by the interpreter and on a GPU."""

from __future__ import annotations

import ast
from dataclasses import replace
from itertools import accumulate
from math import log, nan
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import interpreted_kernels  # noqa: E402
from hypothesis import given, strategies as st  # noqa: E402
from strategies import draws  # noqa: E402
from tensors import laid  # noqa: E402

from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.gpu.tiles import SMALL_TILINGS, TILINGS, Tiling  # noqa: E402
from pebblesim.gpu.torch import fresh, launch, layout as layout_of_tensors, operators  # noqa: E402


def shrunk(tiling: Tiling) -> Tiling:
    """A tiling with blocks a fourth as long, so that few tokens have many, for all lengths and widths."""
    blocks = {name: max(16, size // 4) if name != "S" else 64 for name, size in tiling.blocks.items()}
    return replace(tiling, blocks=blocks, widths=(1, 1024), even=False, masked=None)


def offered(problem: str) -> tuple[Tiling, ...]:
    """One tiling of each kind of kernels for a problem."""
    made = map(shrunk, (*TILINGS[problem], *SMALL_TILINGS[problem]))
    kinds = {(each.schedule, *each.blocks.items(), bool(each.described), each.one_source): each for each in made}
    return tuple(kinds.values())


FORWARD, BACKWARD = offered("forward"), offered("backward-qkv")

EMPTY = ("empty", "new_empty", "empty_like", "empty_strided", "empty_permuted", "resize_")
"""Functions of PyTorch that make tensors whose words nobody wrote."""

ALLOWED = ("query.new_empty(query.shape[:-1], dtype=kind)",)
"""Tensors of tracing, which have no words."""


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
    found = [out, lse, *operators.backward_on_gpu(dO, dL, Q, K, V, out, lse, *rest)]
    for made, right in zip(found, true(given, allowed, dL), strict=True):
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
        only(TILINGS["forward"][:1], (replace(tiling, widths=(1, 1024), even=False),))
        check(given, (first, ends, None, None, False, 0.3, 0.0, None, False), allowed, False)


@draws(10, 400)
@given(case=cases())
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
    with interpreted_kernels.launched(64) as only, fresh.filled(nan):
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
        "kernels": (draw(st.sampled_from(FORWARD)), draw(st.sampled_from(BACKWARD))),
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
    with interpreted_kernels.launched(64) as only, fresh.filled(nan):
        only(*((each,) for each in case["kernels"]))
        rest = (None, None, left, right, at_end, 0.3, 0.0, case["workspace"], False)
        check(given, rest, allowed.expand(1, 1, n_q, n_k), case["gradient_of_L"])


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
    for path in Path(fresh.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        within = {id(each.args[0]) for each in calls if isinstance(each.func, ast.Name) and each.func.id == "fresh"}
        for node in calls:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            on_meta = any(isinstance(key.value, ast.Constant) and key.value.value == "meta" for key in node.keywords)
            if name in EMPTY and not on_meta and ast.unparse(node) not in ALLOWED:
                assert id(node) in within, f"{path.name}, line {node.lineno}"
