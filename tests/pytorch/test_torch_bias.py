"""A bias of scores with its gradient: the definition and kernels by the interpreter, against einsum and autograd."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from math import nan, prod
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gluon_interpreter  # noqa: E402
import triton_interpreter  # noqa: E402
from checkout import ROOT  # noqa: E402
from hypothesis import given, settings, strategies as st  # noqa: E402
from judged_attention import refused  # noqa: E402
from tensors import close  # noqa: E402

from pebblesim.advice.cards import card  # noqa: E402
from pebblesim.gpu.torch import attention  # noqa: E402
from pebblesim.kernels.gluon.gradients import BEGINNING, FEWEST  # noqa: E402
from pebblesim.kernels.passes.bias_stays import OF_PART  # noqa: E402
from pebblesim.kernels.tables import moved_words  # noqa: E402
from pebblesim.operator.bias import (  # noqa: E402
    bias as kernels,
    gradient,
    launches,
    operators as operators_of_bias,
    pairs as pairs_of_call,
    programs as programs_of_bias,
)
from pebblesim.operator.bias.bias import in_groups  # noqa: E402
from pebblesim.operator.bias.pairs import Limits  # noqa: E402
from pebblesim.operator.bias.programs import (  # noqa: E402
    ACROSS,
    AT_ONCE,
    FORWARD,
    OF_BIAS,
    OF_KEYS,
    OF_QUERIES,
    OF_V,
    ONWARD,
    WITH_V,
    at_once,
    kernels_of,
)
from pebblesim.operator.launching import fresh, launching  # noqa: E402

SMALL = programs_of_bias.tilings(*[(1, 32, 16, 4, 2)] * 4)
"""Tilings that are cheap to interpret."""

WORDS: Counter[tuple[str, str]] = Counter()
"""Words that the kernels moved since a test began."""

FORMS = {
    "of all": ((), (1, 1)),
    "of each": ((6,), (6, 1)),
    "of groups": ((2, 3), (2, 1)),
    "of places": ((2, 3), (1, 3)),
    "of fours": ((2, 4), (2, 1)),
}
"""How batches share a bias: dimensions of the batch, and of the bias before its heads; () is a batch of 3."""


def drawn(*shape: int, seed: int = 0, dtype: Any = torch.float64) -> Any:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype).requires_grad_()


def tensors(batch: tuple[int, ...], heads: int, n_q: int, n_k: int, bias: tuple[int, ...], **options: Any) -> list[Any]:
    d, d_v = options.pop("d", 3), options.pop("d_v", 5)
    shapes = (*batch, heads, n_q, d), (*batch, heads, n_k, d), (*batch, heads, n_k, d_v), bias
    return [drawn(*shape, seed=seed, **options) for seed, shape in enumerate(shapes)]


def formulas(q: Any, k: Any, v: Any, b: Any, allowed: Any = True, scale: float | None = None) -> tuple[Any, Any]:
    """O and L from their definitions, with all scores."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    S = scale * torch.einsum("...id,...jd->...ij", q, k) + b
    S = torch.where(torch.as_tensor(allowed), S, -torch.inf)
    return torch.einsum("...ij,...jd->...id", S.softmax(-1), v), S.logsumexp(-1)


def same(made: Any, true: Any, leaves: list[Any], tolerance: float = 1e-12) -> None:
    """Check O, L, and the gradients by both."""
    seeds = [drawn(*each.shape, seed=7 + at).detach() for at, each in enumerate(true)]
    found, right = (list(torch.autograd.grad(each, leaves, seeds)) for each in (made, true))
    close([*made, *found], [*true, *right], tolerance)


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    batch=st.lists(st.integers(1, 3), max_size=3),
    n_q=st.integers(1, 6),
    n_k=st.integers(1, 6),
    right=st.none() | st.integers(0, 3),
)
def test_a_bias_of_any_shape_that_broadcasts(data: Any, batch: list[int], n_q: int, n_k: int, right: Any) -> None:
    """Each dimension has its own entries or shares one, but for batches that share between others that do not."""
    whole = (*batch, 2, n_q, n_k)
    shape = tuple(data.draw(st.sampled_from([1, side])) for side in whole)[data.draw(st.integers(0, len(batch))) :]
    x = tensors(tuple(batch), 2, n_q, n_k, shape)
    lead = ((1,) * (len(whole) - len(shape)) + shape)[: len(batch)]
    own = "".join(str(int(mine > 1)) for mine, its in zip(lead, batch, strict=True) if its > 1)
    if own.count("10") + own.count("01") > 1:
        refused(lambda: attention(*x[:3], bias=x[3]), "put the dimensions that share it next to each other")
        return
    allowed = torch.arange(n_k)[None] <= torch.arange(n_q)[:, None] + (99 if right is None else right)
    made = attention(*x[:3], bias=x[3], window=(None, right), return_lse=True)
    same(made, formulas(*x, allowed), x)


def test_gradcheck() -> None:
    x = tensors((2, 2), 2, 3, 4, (2, 1, 2, 3, 4))
    call = lambda *x: attention(*x[:3], bias=x[3], is_causal=True, return_lse=True)  # noqa: E731
    assert torch.autograd.gradcheck(call, tuple(x))


def test_a_query_without_a_key_has_no_part_in_gradients() -> None:
    x = tensors((1,), 1, 5, 2, (5, 2))
    O, L = attention(*x[:3], bias=x[3], window=(1, 0), return_lse=True)
    assert not O[..., 3:, :].any() and (L[..., 3:] == -torch.inf).all()
    made = torch.autograd.grad(O.sum(), x)
    assert all(each.isfinite().all() for each in made) and not made[3][3:].any() and not made[0][..., 3:, :].any()


@pytest.fixture
def interpreted(monkeypatch: Any) -> Iterator[None]:
    """The kernels of small tiles, run by the interpreter on tensors of the CPU."""
    with by_interpreter(monkeypatch):
        yield


@contextmanager
def by_interpreter(patch: Any) -> Iterator[None]:
    """Meanwhile kernels of small tiles are run by the interpreter, in new memory that holds NaN."""
    patch.setattr(programs_of_bias, "TILINGS", {("16 bits", 128): SMALL, ("32 bits", 128): SMALL})
    patch.setattr(launching, "module_of", module_of)
    patch.setattr(pairs_of_call, "multiprocessors", lambda device: 1)
    launches._loaded.cache_clear()
    WORDS.clear()
    with fresh.filled(nan):
        yield
    launches._loaded.cache_clear()


def in_groups_of_8(words: int) -> int:
    """The words of a row, up to a group of 8."""
    return -(-words // 8) * 8


def module_of(text: str) -> Any:
    """A module with this source, the `run` of which is interpreted."""

    def room(name: str, x: Any) -> tuple[int, ...]:
        """The shape of a result; rows of dB are written in groups of 8 words."""
        return *x.shape[:-1], in_groups_of_8(x.shape[-1]) if name == "dB" else x.shape[-1]

    def there(name: str, x: Any) -> Any:
        """What kernels may read: of a bias also what lies behind a row, up to a group of 8 words, and is for no one."""
        if x.dtype == torch.int32:
            return x.numpy()
        behind = in_groups_of_8(x.shape[-1]) - x.shape[-1] if name in ("bias", "bias_T") else 0
        return torch.nn.functional.pad(x.detach().double(), (0, behind), value=100.0).numpy()

    def run(*given: Any, results: dict[str, Any], dL: Any = None, **ranges: Any) -> dict[str, Any]:
        names = text.split("def run(")[1].split(",")
        given = (*given, *ranges.values())
        assert all(each.is_contiguous() for each in given if each.dim() < 4)
        named = {name.strip().removesuffix("_ptr"): each for name, each in zip(names, given, strict=False)}
        wide = {name for name, each in (named | results).items() if each.dtype == torch.float32}
        strides = {name: each.stride() for name, each in named.items() if each.dim() > 3}
        found, words = triton_interpreter.run(
            text,
            {name: there(name, each) for name, each in named.items()},
            str(named["dO" if "dO" in named else "Q"].dtype).removeprefix("torch."),
            shift=None if dL is None else dL.numpy(),
            others=gluon_interpreter.MODULES if "warp_specialize" in text else None,
            strides=strides,
            results={name: (room(name, each), each.stride()) for name, each in results.items()},
            wide=wide,
        )
        WORDS.update(words)
        made = {name: torch.from_numpy(x) for name, x in found.items()}
        for name, x in results.items():  # what no kernel wrote stays as it was; that it wrote no NaN was checked
            mine = made[name][..., : x.shape[-1]]
            x.copy_(torch.where(mine.isnan(), x, mine))
        return {name: results.get(name, x.float()) for name, x in made.items()}

    names = [line.split("(")[0].removeprefix("def ") for line in text.splitlines() if line.startswith("def ")]
    return SimpleNamespace(**(dict.fromkeys(names) | {"run": run}))


def by_kernels(x: list[Any], dO: Any, dL: Any, limits: Any = (None, None, False)) -> tuple[list[Any], list[Any]]:
    """O, L and the gradients of four tensors whose batch is one dimension or several, by kernels."""
    q, k, v, b = (each.detach() for each in x)
    groups, inner = in_groups(b, q, k)
    asked = Limits(inner, *limits, q.shape[-1] ** -0.5)
    Q, K, V, dO = (each.reshape(-1, *each.shape[-3:]) for each in (q, k, v, dO))
    O = Q.new_empty(*Q.shape[:3], V.shape[3]).fill_(nan)
    L = kernels.forward(Q, K, V, groups, None, O, asked)
    made = tuple(torch.full_like(each, nan) for each in (Q, K, V))
    dB = torch.full_like(groups, nan)
    grad_L = None if dL is None else dL.reshape(L.shape).float()
    kernels.backward(dO, grad_L, Q, K, V, groups, O, L, None, made, dB, asked)
    shapes = zip((*made, dB), x, strict=True)
    return [O.view(*q.shape[:-1], -1), L.view(q.shape[:-1])], [each.view(like.shape) for each, like in shapes]


def judge(
    form: str,
    n_q: int,
    n_k: int,
    sides: tuple[bool, bool, bool] = (True, True, True),
    limits: Any = (None, None, False),
    dtype: Any = torch.float32,
    of_bias: Any = torch.float32,
    tolerance: float = 2e-5,
    of_L: bool = True,
    **options: Any,
) -> None:
    """Compare kernels with the formulas in float64.

    `sides`: whether heads, rows and columns have their own entries; `of_L`: whether L has a gradient.
    """
    (batch, lead), heads = FORMS[form], 2
    batch = batch or (3,)
    lead = lead[:1] if len(batch) == 1 else lead
    own = tuple(side if its else 1 for side, its in zip((heads, n_q, n_k), sides, strict=True))
    x = [each.detach() for each in tensors(batch, heads, n_q, n_k, (*lead, *own), **options)]
    x = [*(each.to(dtype) for each in x[:3]), x[3].to(of_bias)]
    leaves = [each.double().requires_grad_() for each in x]
    left, right, at_end = limits
    i, j = torch.arange(n_q)[:, None] + (n_k - n_q if at_end else 0), torch.arange(n_k)[None]
    allowed = (j - i <= (999 if right is None else right)) & (i - j <= (999 if left is None else left))
    O, L = formulas(*leaves, allowed)
    dO, dL = drawn(*O.shape, seed=8).detach().to(dtype), drawn(*L.shape, seed=9).detach()
    true = torch.autograd.grad((O, L), leaves, (dO.double(), dL * of_L))
    made, grads = by_kernels(x, dO, dL * 1.0 if of_L else None, limits)
    L2 = made[1].double() * torch.log(torch.tensor(2.0))
    for mine, its in zip((made[0], L2, *grads), (O, L, *true), strict=True):
        assert mine.isfinite().all()
        error = (mine.double() - its).norm() / max(float(its.detach().norm()), 0.1)
        assert error < tolerance, (tuple(its.shape), float(error))


def test_the_gradient_of_a_bias_beside_a_wider_mask_is_rounded_once() -> None:
    x = [each.detach().bfloat16() for each in tensors((4,), 5, 7, 40, (40,), d=16, d_v=16)]
    mask, grads = torch.rand(5, 7, 40, generator=torch.Generator().manual_seed(1)) < 0.8, []
    for kind in (torch.bfloat16, torch.float32):
        bias = x[3].clone().to(kind).requires_grad_()
        attention(*x[:3], bias=bias, attn_mask=mask).sum().backward()
        grads.append(bias.grad)
    assert torch.equal(grads[0], grads[1].bfloat16())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_least_number_of_a_type_leaves_keys_out(dtype: Any) -> None:
    x = [each.detach().to(dtype) for each in tensors((2,), 3, 5, 5, (5, 5), d=16, d_v=16)[:3]]
    rows = torch.zeros(5, 5, dtype=dtype)
    rows[1, 2:], rows[2] = torch.finfo(dtype).min, torch.finfo(dtype).min
    made = []
    for bias in (rows, rows.masked_fill(rows < 0, -torch.inf)):
        leaves = [each.clone().requires_grad_() for each in (*x, bias)]
        out, lse = attention(*leaves[:3], bias=leaves[3], return_lse=True)
        made.append([out, lse, *torch.autograd.grad(out.sum() + lse[:, :, [0, 1, 3, 4]].sum(), leaves)])
    assert all(map(torch.equal, *made)) and not made[0][0][:, :, 2].any()


@pytest.mark.parametrize("number", [-1e4, -1e5])
def test_a_query_all_of_whose_scores_are_large(number: float) -> None:
    """By the definition: L does not tell how many keys there are."""
    q, k, v = (each.detach().requires_grad_() for each in tensors((2,), 3, 4, 5, (4, 5), d=16, d_v=16)[:3])
    out = attention(q * 1e-9, k, v, bias=torch.full((4, 5), number))
    assert torch.allclose(out, v.mean(2, keepdim=True).expand_as(out), atol=1e-6)
    assert torch.allclose(torch.autograd.grad(out.sum(), v)[0], torch.full_like(v, 4 / 5))


def test_scores_are_too_low_below_the_number_of_the_page() -> None:
    page = (ROOT / "docs" / "bias.md").read_text(encoding="utf-8")
    number = re.search(r"scores are below -([\d,]+) \(-2²⁰ ln 2\)", page)
    assert number
    q = torch.zeros(2, 2, 1, 16)
    bias = -torch.tensor([-1.0, 1.0]).add(float(number[1].replace(",", "")))[:, None, None, None]
    _, lse = attention(q, q, q, bias=bias, return_lse=True)
    assert lse[0].isfinite().all() and lse[1].isinf().all()


@pytest.mark.parametrize("number", [-1e6, -1e9, -1e15, -1e30, torch.finfo(torch.float32).min])
def test_a_query_all_of_whose_scores_are_too_low_is_one_without_a_key(interpreted: None, number: float) -> None:
    """By kernels and by the definition; other queries leave such keys out."""
    q, k, v, bias = (each.detach().float() for each in tensors((3,), 2, 37, 21, (37, 21), d=16, d_v=16))
    bias[:, 3:] = number
    bias[5] = number
    without = bias.masked_fill(bias == number, -torch.inf)
    dO = drawn(*q.shape[:3], 16, seed=8).detach().float()
    leaves = [each.clone().requires_grad_() for each in (q, k, v, without)]
    out, lse = attention(*leaves[:3], bias=leaves[3], return_lse=True)
    true = [out, *torch.autograd.grad(out, leaves, dO)]
    leaves = [each.clone().requires_grad_() for each in (q, k, v, bias)]
    out, same = attention(*leaves[:3], bias=leaves[3], return_lse=True)
    close([out, *torch.autograd.grad(out, leaves, dO)], true, 1e-6)
    (out, L), grads = by_kernels([q, k, v, bias], dO, None)
    close([out, *grads], true, 1e-5)
    assert not out[:, :, 5].any() and lse[:, :, 5].isinf().all() and torch.equal(lse, same) and L[:, :, 5].isinf().all()


@pytest.mark.parametrize("number", [1.2e7, 1e9, 1e15, 2e38])
def test_a_query_with_a_score_that_is_too_high_is_one_without_a_key(interpreted: None, number: float) -> None:
    """By kernels and by the definition; on the CPU `attention` refuses such numbers."""
    q, k, v, bias = (each.detach().float() for each in tensors((3,), 2, 37, 21, (37, 21), d=16, d_v=16))
    bias[5], bias[11, ::4], bias[12, 20] = number, number, number
    without = bias.clone()
    without[[5, 11, 12]] = -torch.inf
    dO = drawn(*q.shape[:3], 16, seed=8).detach().float()
    leaves = [each.clone().requires_grad_() for each in (q, k, v, without)]
    true = [(out := attention(*leaves[:3], bias=leaves[3])), *torch.autograd.grad(out, leaves, dO)]
    (out, L), grads = by_kernels([q, k, v, bias], dO, None)
    close([out, *grads], true, 1e-5)
    of_bias = bias[None, None, None], None, 1, None, None, False, 0.25
    out, lse = torch.ops.pebblesim.attention_with_bias(q, k, v, *of_bias)
    close([out], true[:1], 1e-6)
    assert torch.equal(L.isinf(), lse.isinf()) and lse.isinf().any(1).any(0).nonzero().flatten().tolist() == [5, 11, 12]
    refused(lambda: attention(q, k, v, bias=bias), "bias has NaN, or numbers above 10,000,000")


@pytest.mark.parametrize("form", list(FORMS)[:4])
def test_kernels_by_the_interpreter(interpreted: None, form: str) -> None:
    judge(form, 37, 21, d=16, d_v=16)


@pytest.mark.parametrize("sides", [(False, True, True), (True, False, True), (True, True, False), (False,) * 3])
def test_kernels_with_a_bias_that_heads_rows_or_columns_share(interpreted: None, sides: Any) -> None:
    judge("of groups", 33, 18, sides, d=16, d_v=16)


@pytest.mark.parametrize("form", ["of all", "of groups"])
def test_sums_of_parts_of_the_sequences(interpreted: None, form: str, monkeypatch: Any) -> None:
    """Two parts of one sequence each, and one of the rest."""
    monkeypatch.setattr(gradient, "_parts", lambda *given: 2)
    judge(form, 33, 18, d=16, d_v=16)


def at_a_time(monkeypatch: Any, number: int) -> None:
    """Kernels of small tiles have so many sequences at a time."""
    several = programs_of_bias.tilings(*[(number, 32, 16, 4, 2)] * 4)
    monkeypatch.setattr(programs_of_bias, "TILINGS", {("16 bits", 128): several, ("32 bits", 128): several})


@pytest.mark.parametrize("number", [1, 2])
def test_keys_that_an_infinite_bias_leaves_out(interpreted: None, number: int, monkeypatch: Any) -> None:
    """Holes, whole tiles, and all keys of some queries, which have O = 0 and L = -∞ then."""
    at_a_time(monkeypatch, number)
    n_q, n_k, batch = 37, 40, (2, 4)
    x = [each.detach().float() for each in tensors(batch, 2, n_q, n_k, (2, 1, 2, n_q, n_k), d=16, d_v=16)]
    holes = torch.rand(x[3].shape, generator=torch.Generator().manual_seed(5)) < 0.6
    holes[..., 32:] = holes[..., :16] = True
    holes[..., [0, 33], :] = True
    x[3] = x[3].masked_fill(holes, -torch.inf)
    leaves = [each.double().requires_grad_() for each in x]
    O, L = formulas(*leaves, x[3] > -torch.inf)
    O, none = O.nan_to_num(), (-torch.inf == L).detach()
    assert none.any() and not none.all()
    dO, dL = (drawn(*each.shape, seed=8).detach() for each in (O, L))
    ends = (O.masked_fill(none[..., None], 0.0), L.masked_fill(none, 0.0))
    S = torch.einsum("...id,...jd->...ij", leaves[0], leaves[1]) / 4 + leaves[3]
    P = torch.where(none[..., None], 0.0, (S - L.detach()[..., None].nan_to_num(neginf=0.0)).exp())
    dP = torch.einsum("...id,...jd->...ij", dO, leaves[2])
    dS = (P * (dP - (P * dP).sum(-1, keepdim=True) + torch.where(none, 0.0, dL)[..., None])).detach()
    true = [
        (dS @ leaves[1]) / 4, (dS.mT @ leaves[0]) / 4, P.mT @ dO, dS.sum(1, keepdim=True),
    ]  # fmt: skip
    made, grads = by_kernels(x, dO.float(), dL)
    assert ((made[1] == torch.inf) == none).all()
    found = [made[0], made[1].masked_fill(none, 0.0) * math.log(2), *grads]
    for mine, its in zip(found, [*ends, *true], strict=True):
        assert mine.isfinite().all()
        assert (mine.double() - its).norm() < 2e-5 * its.norm()


def moved_by(which: int, made: Any, sizes: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Words that the program of a pass reads and writes of each tensor; rows of dB are written in groups of 8 words."""
    program, groups_of_8 = programs_of_bias.program(which, made), sizes | {"n_k": in_groups_of_8(sizes["n_k"])}
    moved, whole = (moved_words(program, each) for each in (sizes, groups_of_8))
    return moved | ({"dB": whole["dB"]} if "dB" in whole else {})


@pytest.mark.parametrize(("number", "n_q", "n_k"), [(2, 37, 21), (4, 37, 21), (4, 64, 32)])
def test_sequences_at_a_time_read_the_bias_once(
    interpreted: None, number: int, n_q: int, n_k: int, monkeypatch: Any
) -> None:
    """The words of R sequences are those of the programs for a few at a time, R / number times."""
    at_a_time(monkeypatch, number)
    judge("of fours", n_q, n_k, d=16, d_v=16, limits=(None, None, False))
    counted: Counter[tuple[str, str]] = Counter()
    at_a_time_of = dict.fromkeys((FORWARD, OF_QUERIES, ACROSS), (8 // number, number))
    for which, (times, sequences) in (at_a_time_of | {OF_BIAS: (2, 4)}).items():
        made = kernels_of(which, "32 bits", 16)
        sizes = {"n_q": n_q, "n_k": n_k, "d_k": 16, "d_v": 16, "R": sequences, **made.tiling.blocks}
        for name, both in moved_by(which, made, sizes).items():
            for way, words in zip(("read", "written"), both, strict=True):
                counted[way, name] += words * times * 2
    assert {what: words for what, words in WORDS.items() if words} == {w: c for w, c in counted.items() if c}
    assert counted["read", "bias"] == 2 * n_q * n_k * (2 * 8 // number + 2)
    assert counted["read", "bias_T"] == 2 * n_q * n_k * 8 // number


@pytest.mark.parametrize("limits", [(None, 0, True), (5, 4, True)])
def test_sequences_at_a_time_under_limits(interpreted: None, limits: Any, monkeypatch: Any) -> None:
    at_a_time(monkeypatch, 2)
    judge("of fours", 37, 40, limits=limits, d=16, d_v=16)


@pytest.mark.parametrize("limits", [(None, 0, False), (None, 0, True), (3, 0, False), (5, 4, True)])
def test_kernels_under_limits(interpreted: None, limits: Any) -> None:
    judge("of all", 37, 40, limits=limits, d=16, d_v=16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_of_words_of_16_bits(interpreted: None, dtype: Any) -> None:
    judge("of all", 32, 32, dtype=dtype, of_bias=dtype, tolerance=2e-2, d=24, d_v=16)
    judge("of groups", 32, 48, dtype=dtype, tolerance=2e-2, d=16, d_v=32)


@pytest.mark.parametrize(("form", "parts"), [("of all", 1), ("of groups", 1), ("of places", 1), ("of all", 2)])
def test_kernels_move_the_words_that_are_counted(interpreted: None, form: str, parts: int, monkeypatch: Any) -> None:
    """To the word, of each tensor: the bias once for each tile of scores, but in the kernel of dB, which keeps it."""
    monkeypatch.setattr(gradient, "_parts", lambda *given: parts)
    n_q, n_k, heads = 37, 21, 2
    judge(form, n_q, n_k, d=16, d_v=16)
    batch, shared = FORMS[form]
    batches = prod(batch or (3,))
    groups = {"of all": 1, "of groups": 2, "of places": 3, "of fours": 2}[form]
    counted: Counter[tuple[str, str]] = Counter()
    alone = batches // groups // parts, batches // groups % parts  # sequences of a part, and of the rest
    for which, times, sequences in (
        (FORWARD, batches, 1),
        (OF_QUERIES, batches, 1),
        (ACROSS, batches, 1),
        (OF_BIAS, groups * parts, alone[0]),
        (OF_BIAS, groups, alone[1]),
    ):
        made = kernels_of(which, "32 bits", 16)
        sizes = {"n_q": n_q, "n_k": n_k, "d_k": 16, "d_v": 16, "R": sequences, **made.tiling.blocks}
        for name, both in moved_by(which, made, sizes).items() if sequences else ():
            for way, words in zip(("read", "written"), both, strict=True):
                counted[way, name] += words * heads * times
    moved_in_all = {what: words for what, words in WORDS.items() if words}
    assert moved_in_all == {what: words for what, words in counted.items() if words}
    if form == "of all" and parts == 1:
        pairs = heads * n_q * n_k
        assert counted["read", "bias"] == pairs * (2 * batches + 1)
        assert counted["read", "bias_T"] == pairs * batches
        assert counted["written", "dB"] == heads * n_q * in_groups_of_8(n_k)
    assert shared


@pytest.mark.parametrize(("form", "most"), [("of all", 384), ("of groups", 384), ("of all", 128), ("of groups", 96)])
@pytest.mark.parametrize(("sides", "of_L"), [((True, True, True), False), ((False, False, True), True)])
def test_dQ_and_dB_by_one_kernel(
    interpreted: None, form: str, most: int, sides: Any, of_L: bool, monkeypatch: Any
) -> None:
    """In parts of the sequences, and for some keys after others: no other kernel of dQ and dB is launched. v has a
    kernel where L has a gradient, or keys need several launches. Words are counted."""
    monkeypatch.setattr(kernels, "_at_once", lambda *given: True)
    monkeypatch.setattr(programs_of_bias, "MOST_KEYS", most)
    monkeypatch.setattr(pairs_of_call, "multiprocessors", lambda device: 3)
    n_q, n_k, heads = 37, 139 if most > 96 else 250, 2
    launched = Counter[int]()
    run = launches.run

    def counting(which: int, *given: Any) -> Any:
        launched[which] += 1
        return run(which, *given)

    monkeypatch.setattr(launches, "run", counting)
    judge(form, n_q, n_k, d=16, d_v=16, dtype=torch.float16, tolerance=2e-2, sides=sides, of_L=of_L)
    (batches, groups), number = ((3, 1) if form == "of all" else (6, 2)), -(-n_k // most)
    across = ACROSS if sides[1] else OF_KEYS
    onward = {ONWARD: number - 1} if number > 1 else {}
    at_once = {OF_V: 1, AT_ONCE: 1} if of_L or number > 1 else {WITH_V: 1}
    assert launched == {FORWARD: 1, across: 1, **at_once, **onward}
    if all(sides):
        pairs = heads * n_q * n_k
        whole = batches // groups + BEGINNING
        each = max(-(-heads * groups * whole // 3), FEWEST)  # three multiprocessors, and a tile of rows
        of_heads = [range(head * whole, (head + 1) * whole) for head in range(heads * groups)]
        parts = sum(len({at // each for at in one}) for one in of_heads)
        parts = heads * groups if heads * groups <= 3 else parts  # a block for each head
        of_parts = n_q * in_groups_of_8(n_k) * parts
        assert WORDS["read", "bias"] == pairs * batches + of_parts
        assert WORDS["written", "dB"] == of_parts
        assert WORDS["written", "dQ"] == heads * n_q * 16 * batches * number
        assert WORDS["read", "dQ_before"] == heads * n_q * 16 * batches * (number - 1)


@pytest.mark.parametrize("at_once", [True, False])
def test_groups_that_share_a_bias_add_to_one_gradient(interpreted: None, at_once: bool, monkeypatch: Any) -> None:
    """Three groups, one after the other where memory is short: that of one has the shape of the sum of all of them."""
    monkeypatch.setattr(kernels, "_at_once", lambda *given: at_once)
    monkeypatch.setattr(pairs_of_call, "multiprocessors", lambda device: 3)
    monkeypatch.setattr(gradient, "ROOM", 1)
    monkeypatch.setitem(globals(), "in_groups", lambda bias, query, key: (bias.reshape(1, 1, *bias.shape[-3:]), 1))
    judge("of all", 20, 24, d=16, d_v=16, dtype=torch.float16, tolerance=2e-2, of_L=not at_once)


@pytest.fixture
def staying(interpreted: None, monkeypatch: Any) -> None:
    """Kernels in which rows of the bias stay, for a few sequences and any number of columns."""
    monkeypatch.setattr(pairs_of_call, "card_of", lambda device: card("H200"))
    monkeypatch.setattr(programs_of_bias, "FEWEST_STAYING", dict.fromkeys((FORWARD, ACROSS), 0.0))
    monkeypatch.setattr(programs_of_bias, "MOST_BESIDE", 200.0)


def stayed(n_q: int, n_k: int, batches: int, sharing: int) -> dict[str, int]:
    """Words of the bias and of its transpose that kernels read, of two heads: each part of their sequences reads it."""
    words = {}
    for name, rows, columns in (("bias", n_q, n_k), ("bias_T", n_k, n_q)):
        every, tiles = 2 * batches, -(-rows // 64)
        each = max(-(-every // max(3 // tiles, 1)), 3)  # of a block: the interpreter's card has three multiprocessors
        begun = {*range(0, every, sharing), *range(0, every, each)}
        words[name] = len(begun) * rows * in_groups_of_8(columns)
    return words


@pytest.mark.parametrize("form", ["of all", "of groups", "of fours"])
@pytest.mark.parametrize(("dtype", "of_bias"), [(torch.float16, torch.float32), (torch.bfloat16, torch.bfloat16)])
def test_rows_of_the_bias_stay(staying: None, form: str, dtype: Any, of_bias: Any) -> None:
    """Of forward, and of dK and dV; all others are as they were. The words of the bias are those of blocks."""
    n_q, n_k = 70, 101
    judge(form, n_q, n_k, d=16, d_v=32, dtype=dtype, of_bias=of_bias, tolerance=2e-2)
    batch, _ = FORMS[form]
    batches, groups = prod(batch or (3,)), {"of all": 1, "of groups": 2, "of fours": 2}[form]
    read = stayed(n_q, n_k, batches, batches // groups)
    of_others = 2 * n_q * n_k * (batches + groups)  # of dQ, and of dB
    assert WORDS["read", "bias"] == read["bias"] + of_others
    assert WORDS["read", "bias_T"] == read["bias_T"]


@pytest.mark.parametrize("sides", [(False, True, True), (True, False, True), (True, True, False)])
def test_rows_stay_of_a_bias_that_heads_rows_or_columns_share(staying: None, sides: Any) -> None:
    judge("of groups", 65, 33, sides, d=16, d_v=16, dtype=torch.float16, tolerance=2e-2)


def met(n: int, sequences: int, heads: int = 4, d: int = 32, **how: Any) -> Any:
    """What kernels take for a call."""
    dtype, scale, limits = (
        how.get("dtype", torch.bfloat16),
        how.get("scale", 0.2),
        how.get("limits", (None, None, False)),
    )
    q = torch.empty(1, heads, n, d, dtype=dtype).expand(sequences, -1, -1, -1)
    q = torch.empty(sequences, heads, n, d, dtype=dtype) if how.get("own", True) else q
    asked = Limits(how.get("inner", sequences), *limits, scale)
    groups = sequences // asked.inner
    return pairs_of_call.meet(q, q, q, torch.empty(groups, 1, heads, n, n, dtype=dtype), None, asked, True), [q]


def test_which_kernels_a_call_gets(monkeypatch: Any) -> None:
    """Rows of the bias stay on Hopper where there are enough sequences, and nothing that these kernels do not have."""
    monkeypatch.setattr(pairs_of_call, "multiprocessors", lambda device: 132)

    def kinds(*given: Any, **how: Any) -> list[bool]:
        pairs, matrices = met(*given, **how)
        return [pairs.kernels(which, matrices).tiling.gluon for which in (FORWARD, ACROSS, OF_QUERIES)]

    assert kinds(384, 256) == [False] * 3  # the CPU is no Hopper card
    monkeypatch.setattr(pairs_of_call, "card_of", lambda device: card("H200"))
    assert kinds(384, 256) == kinds(371, 256) == kinds(128, 512) == [True, True, False]
    assert kinds(320, 256) == [False, True, False]  # columns of the last tile of 128 that do not exist
    assert kinds(384, 128) == kinds(768, 64) == [False, True, False]
    assert kinds(384, 64) == kinds(384, 128, 1) == kinds(896, 64) == [False] * 3
    for how in (
        {"d": 64},
        {"dtype": torch.float32},
        {"scale": -0.2},
        {"scale": 2.0**-65},
        {"limits": (None, 0, False)},
        {"inner": 1},
    ):
        assert kinds(384, 256, **how) == [False] * 3
    assert kinds(384, 256, own=False) == [False] * 3  # sequences that share a query
    calls = (371, 64), (384, 64), (384, 256), (768, 64, 16), (768, 32)
    with_v = [kernels._with_v(met(*each)[0]) for each in calls]
    assert with_v == [True, True, False, False, False]  # blocks have 13, 13, 49 and 108 sequences; 16, and dQ goes on


@given(n=st.integers(1, 200), d=st.integers(1, 60), R=st.integers(1, 9), side=st.sampled_from([16, 32, 64]))
@settings(max_examples=25, deadline=None)
def test_the_words_of_the_page(n: int, d: int, R: int, side: int) -> None:
    """docs/bias.md: words of R sequences of one head, of each kernel."""
    tiles, made = -(-n // side), programs_of_bias.tilings(*[(1, side, side, 4, 2)] * 4)
    page = {
        FORWARD: (made.forward, R * (n * d + n * d + n * n + 2 * n * d * tiles + n)),
        OF_QUERIES: (made.of_queries, R * (2 * n * d + n) + R * (3 * n * d + 2 * n + n * n + 2 * n * d * tiles)),
        ACROSS: (made.of_keys, R * (4 * n * d + n * n + (2 * n * d + 2 * n) * tiles)),
        OF_BIAS: (made.of_bias, 2 * n * n + R * (4 * n * d + 2 * n) * tiles),
        WITH_V: (at_once(n), 2 * n * n + R * (4 * n * d + 2 * n + 2 * n * d * -(-n // 64))),
        AT_ONCE: (at_once(n), 2 * n * n + R * (3 * n * d + 2 * n + 2 * n * d * -(-n // 64))),
        ONWARD: (at_once(n), 2 * n * n + R * (4 * n * d + 2 * n + 2 * n * d * -(-n // 64))),
    }
    for which, (each, words) in page.items():
        sizes = {"n_q": n, "n_k": n, "d_k": d, "d_v": d, "R": R, **each.tiling.blocks, OF_PART: R}
        moved = moved_words(programs_of_bias.program(which, each), sizes)
        counted = sum(read + written for read, written in moved.values())
        assert counted * (1 if which in (OF_BIAS, WITH_V, AT_ONCE, ONWARD) else R) == words


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data(), form=st.sampled_from(sorted(FORMS)), n_q=st.integers(1, 40), n_k=st.integers(1, 40))
def test_drawn_kernels(data: Any, form: str, n_q: int, n_k: int) -> None:
    sides = data.draw(st.tuples(*[st.booleans()] * 3))
    widths = {name: data.draw(st.integers(1, 40)) for name in ("d", "d_v")}
    parts = data.draw(st.integers(1, 3))
    with pytest.MonkeyPatch.context() as patch, by_interpreter(patch):
        patch.setattr(gradient, "_parts", lambda pairs, groups, sequences: min(parts, sequences))
        judge(form, n_q, n_k, sides, **widths)


def call(dtype: Any = torch.float32) -> tuple[Any, ...]:
    """Arguments of the operator: two groups of three sequences, causal."""
    x = [each.detach().to(dtype).requires_grad_() for each in tensors((6,), 2, 4, 5, (2, 1, 2, 4, 5))]
    return *x, None, 3, None, 0, False, 0.4


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of opcheck itself
def test_the_operators_are_registered_as_pytorch_asks() -> None:
    """Fake tensors, schemas and autograd of both, also with the gradient of the bias left out, and keys."""
    *tensors, _, inner, left, right, at_end, scale = call()
    for ranges in (None, drawn_ranges(6, *(tensors[at].shape[2] for at in (0, 1)), 3)):
        if ranges is not None:
            left, right, at_end = None, None, False
        given = *tensors, ranges, inner, left, right, at_end, scale
        torch.library.opcheck(torch.ops.pebblesim.attention_with_bias, given)
        O, L = torch.ops.pebblesim.attention_with_bias(*given)
        x = [each.detach() for each in (torch.ones_like(O), L, *given[:4], O, L)]
        for of_bias in (True, False):
            operator, rest = torch.ops.pebblesim.attention_with_bias_backward, (ranges, of_bias, *given[5:])
            torch.library.opcheck(operator, (*x, *rest), test_utils=("test_schema", "test_faketensor"))


def drawn_ranges(batch: int, n_q: int, n_k: int, seed: int) -> Any:
    """First keys and ends of queries that do not decrease, (batch, 2, n_q): of some batches none, of others all."""
    make = torch.Generator().manual_seed(seed)
    made = torch.randint(0, n_k + 1, (batch, 2, n_q), generator=make, dtype=torch.int32).sort(-1).values
    made[0], made[1, 0], made[1, 1] = 0, 0, n_k
    return made


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float16, 0.02)])
@pytest.mark.parametrize(
    ("scale", "heads", "form"),
    [(0.3, (2, 2), "of all"), (-0.3, (4, 2), "of groups"), (1e-11, (2, 1), "of each"), (0.0, (6, 2), "of places")],
)
def test_kernels_read_ranges_and_keys_that_heads_share(
    interpreted: None, monkeypatch: Any, scale: float, heads: Any, form: str, dtype: Any, tolerance: float
) -> None:
    """Ranges of each query of each batch, over several tiles; any scale, also one that float16 does not have."""
    batch, lead = FORMS[form]
    batch, n_q, n_k = batch or (3,), 37, 50
    shapes = (prod(batch), heads[0], n_q, 16), (prod(batch), heads[1], n_k, 16), (prod(batch), heads[1], n_k, 24)
    q, k, v = (drawn(*shape, seed=at).detach().to(dtype) for at, shape in enumerate(shapes))
    b = drawn(*(lead[:1] if len(batch) == 1 else lead), heads[0], n_q, n_k, seed=3).detach().to(dtype)
    groups, inner = in_groups(b, q.view(*batch, *q.shape[1:]), k.view(*batch, *k.shape[1:]))
    given, asked = (q, k, v, groups, drawn_ranges(len(q), n_q, n_k, 5)), Limits(inner, None, None, False, scale)
    monkeypatch.setattr(operators_of_bias, "check_triton", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    O, L = operators_of_bias.forward(*given, *asked)
    true = torch.ops.pebblesim.attention_with_bias(*given, *asked)
    assert not O[0].any() and (L[0] == torch.inf).all() and (O - true[0]).abs().max() < tolerance * O.abs().max()
    torch.testing.assert_close(L.masked_fill(~L.isfinite(), -torch.inf), true[1], rtol=1e-3, atol=1e-3)
    dO = drawn(*O.shape, seed=4).detach().to(dtype)
    made = operators_of_bias.backward(dO, None, *given[:4], O, L, given[4], True, *asked)
    right = operators_of_bias._gradients_by_definition(dO, None, *given[:4], *true, given[4], True, *asked)
    for mine, its in zip(made, right, strict=True):
        assert mine.shape == its.shape and mine.stride() == its.stride() and mine.isfinite().all()
        assert (mine.float() - its.float()).norm() <= tolerance * its.float().norm()


@pytest.mark.parametrize("name", ["key_padding_mask", "cu_seqlens", "key_ranges"])
def test_no_mask_of_ranges_makes_a_table(name: str) -> None:
    """The bias that sequences share stays as it is, and so does a dense mask."""
    from pebblesim.operator.bias import with_bias

    q, k, _, b = (each.detach() for each in tensors((2, 3), 2, 4, 5, (2, 1, 2, 4, 5)))
    padding = torch.arange(5) >= torch.tensor([3, 5, 1, 2, 4, 5])[:, None]
    ranges = drawn_ranges(6, 4, 5, 1)
    mask = {"key_padding_mask": padding, "cu_seqlens": torch.tensor([0, 2, 4]), "key_ranges": tuple(ranges.unbind(1))}[
        name
    ]
    masks_of = {"key_padding_mask": None, "cu_seqlens": None, "key_ranges": None, name: mask}
    for added, shape in (({"bias": b}, b.shape), ({"attn_mask": torch.zeros(4, 5) == 0}, (4, 5))):
        given = {"bias": None, "attn_mask": None} | added
        asked = with_bias.Added(
            **given, sinks=None, masks_of=masks_of, dropout_p=0.0, softcap=None, fallback=None, key_padding=None
        )
        bias, found, _ = with_bias._all_in_one(q, k, asked, (None, False, "start"))
        assert bias.shape == shape and found.shape == (6, 2, 4) and found.dtype == torch.int32
        assert name != "key_ranges" or found.equal(ranges)


def test_a_bias_that_needs_no_gradient_gets_none() -> None:
    *x, b = call(torch.float64)[:4]
    made = attention(*x, bias=b.detach()[0])
    true = attention(*x, bias=b[0])
    g = drawn(*made.shape, seed=8).detach()
    found, right = torch.autograd.grad(made, x, g), torch.autograd.grad(true, [*x, b], g)
    close(found, right[:3])


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_traces_it_whole(dynamic: bool) -> None:
    def layer(q: Any, k: Any, v: Any, b: Any) -> Any:
        return attention(2 * q, k, v, bias=b, is_causal=True).sin()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for n in (4, 6):
        x = tensors((2, 3), 2, n, n, (2, 1, 2, n, n))
        made, true = compiled(*x), layer(*x)
        g = drawn(*true.shape, seed=8).detach()
        close([made, *torch.autograd.grad(made, x, g)], [true, *torch.autograd.grad(true, x, g)])


def test_mixed_types() -> None:
    """A float32 bias for words of 16 bits keeps its type, and so does its gradient."""
    *x, b = [each.detach().bfloat16().requires_grad_() for each in tensors((2,), 2, 4, 5, (2, 4, 5))]
    wide = b.detach().float().requires_grad_()
    made = attention(*x, bias=wide)
    assert made.dtype == torch.bfloat16
    of_bias = torch.autograd.grad(made.float().sum(), wide)[0]
    assert of_bias.dtype == torch.float32 and of_bias.shape == wide.shape
    floats = [each.detach().float() for each in x]
    rounded = attention(*floats, bias=wide, compute_dtype=torch.bfloat16)
    assert rounded.dtype == torch.float32 and torch.equal(rounded.bfloat16(), made)


def test_what_is_refused_with_a_bias() -> None:
    q, k, v, b = (each.detach() for each in tensors((2,), 2, 4, 4, (2, 4, 4), d=8, d_v=8))
    several: dict[str, dict[str, Any]] = {
        "softcap was given with bias": {"softcap": 2.0},
        "dropout_p was given with bias": {"dropout_p": 0.5},
        "fallback was given with bias": {"fallback": "sdpa"},
        "attn_mask is of torch.int32; give torch.float32 or torch.float64 or torch.bool": {"attn_mask": b.int()},
        "key_padding was documented": {"key_padding": b},
    }
    for sentence, options in several.items():
        refused(lambda options=options: attention(q, k, v, bias=b, **options), sentence)
    refused(lambda: attention(q, k, v, bias=b[0, 0, 0].item()), "bias is of float; give a dense tensor")
    for wrong in (torch.inf, torch.nan):
        refused(
            lambda wrong=wrong: attention(q, k, v, bias=torch.full_like(b, wrong)),
            "bias has NaN, or numbers above 10,000,000",
        )
    refused(lambda: attention(q, k, v, bias=b.half()), "bias is of torch.float16; give torch.float32 or torch.float64")
    refused(lambda: attention(q, k, v, bias=b[:, :3]), r"does not broadcast to \(2, 2, 4, 4\)")
    four = torch.cat([q, q]), torch.cat([k, k]), torch.cat([v, v])
    refused(lambda: attention(*four, bias=b[None].expand(2, -1, -1, -1)), r"give query as \(batch, sequences, heads")
    refused(lambda: attention(torch.cat([q, q], 1), k, v, bias=b), "or with enable_gqa a number that divides 4")
    wide = [torch.zeros(1, 1, 4, 130)] * 3
    refused(
        lambda: attention(*wide, bias=torch.zeros(4, 4)), "a head dimension is 130, and with bias it may be up to 128"
    )
    refused(lambda: attention(*wide, torch.zeros(4, 4) > 0), "and with attn_mask it may be up to 128")
    with pytest.warns(UserWarning, match="PyTorch's attention is used: a head dimension is 130"):
        attention(*wide, torch.zeros(4, 4) == 0, fallback="sdpa")


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n_q=st.integers(1, 7), n_k=st.integers(1, 7), groups=st.sampled_from([1, 2]))
def test_all_masks_and_sinks_beside_a_bias(data: Any, n_q: int, n_k: int, groups: int) -> None:
    """Any of a bias, dense masks, padding, ranges, packed sequences, limits and sinks; and heads that share keys."""
    batch, heads = (2, 3), 2 * groups
    draw = lambda *several: data.draw(st.sampled_from(several))  # noqa: E731
    q, k, v, b = tensors(batch, heads, n_q, n_k, (*draw((1, 1), (2, 1), (2, 3)), heads, n_q, n_k))
    k, v = (x.detach()[:, :, :2].clone().requires_grad_() for x in (k, v))
    make = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    holes = torch.rand(*draw((n_q, n_k), (*batch, 1, n_q, n_k), (1, n_k)), generator=make) < 0.7
    number = drawn(heads, n_q, n_k, seed=11)
    options: dict[str, Any] = {"bias": b} if (biased := data.draw(st.booleans())) else {}
    dense = draw(None, "holes", "numbers") if biased else draw("holes", "numbers")
    allowed, S = torch.ones(*batch, 1, n_q, n_k, dtype=torch.bool), b * biased
    if dense == "holes":
        options["attn_mask"], allowed = holes, allowed & holes
    elif dense == "numbers":
        options["attn_mask"], S = number, S + number
    i, j = torch.arange(n_q)[:, None], torch.arange(n_k)[None]
    if draw(False, True):
        lengths = torch.randint(0, n_k + 1, (6,), generator=make)
        options["key_padding_mask"] = j >= lengths[:, None]
        allowed = allowed & (j < lengths.view(2, 3, 1, 1, 1))
    if draw(False, True):
        end = torch.randint(0, n_k + 1, (6, n_q), generator=make).cummax(-1).values
        first = (end - 2).clamp(min=0)
        options["key_ranges"] = first.int(), end.int()
        allowed = allowed & (j >= first.view(2, 3, 1, n_q, 1)) & (j < end.view(2, 3, 1, n_q, 1))
    packed = n_q == n_k and n_q > 1 and draw(False, True)
    if packed:
        options["cu_seqlens"] = torch.tensor([0, n_q // 2, n_q])
        allowed = allowed & ((i < n_q // 2) == (j < n_k // 2))
    if draw(False, True):
        options["is_causal"], allowed = True, allowed & (j <= i)
    leaves = [q, k, v, *([b] if biased else []), *([number] if dense == "numbers" else [])]
    sinks = drawn(heads, seed=12) if draw(False, True) else None
    made = attention(q, k, v, enable_gqa=True, return_lse=True, sinks=sinks, **options)
    scores = q @ k.repeat_interleave(groups, 2).mT * q.shape[-1] ** -0.5 + S
    weights = torch.where(allowed, scores.exp(), 0.0)
    whole = weights.sum(-1) + (0.0 if sinks is None else sinks[:, None].exp())
    seen = whole > 0
    O = weights @ v.repeat_interleave(groups, 2) / torch.where(seen, whole, 1.0)[..., None]
    L = torch.where(seen, whole, 1.0).log()
    assert torch.equal(made[1] == -torch.inf, ~seen)
    leaves += [] if sinks is None else [sinks]
    same((made[0], made[1].masked_fill(~seen, 0.0)), (O, L), leaves)


@pytest.mark.parametrize("option", ["bias", "attn_mask"])
def test_a_query_with_neither_a_key_nor_a_sink(option: str) -> None:
    """O and all gradients are 0 there, L is -∞, and elsewhere they are as without that query."""
    q, k, v, b = tensors((1,), 2, 3, 4, (2, 3, 4))
    sinks = torch.tensor([0.5, -torch.inf], dtype=torch.float64, requires_grad=True)
    mask = torch.arange(3)[:, None] < torch.tensor([2])
    given = {"bias": b, "key_padding_mask": torch.ones(1, 4, dtype=torch.bool)} if option == "bias" else {}
    given |= {"attn_mask": mask.expand(3, 4)} if option == "attn_mask" else {}
    leaves = [q, k, v, sinks, *([b] if option == "bias" else [])]
    O, L = attention(q, k, v, sinks=sinks, return_lse=True, **given)
    seen = mask[:, 0] if option == "attn_mask" else torch.zeros(3, dtype=torch.bool)
    assert not O[:, :, ~seen].any() and (L[:, 1, ~seen] == -torch.inf).all() and (L[:, 0, ~seen] == 0.5).all()
    made = torch.autograd.grad(O.sum() + L[:, 0].sum() + L[:, 1, seen].sum(), leaves)
    assert all(each.isfinite().all() for each in made) and not made[0][:, :, ~seen].any()
    if option == "attn_mask":
        x = [q[:, :, seen], k, v]
        right = attention(*x, sinks=sinks, attn_mask=mask[seen].expand(2, 4), return_lse=True)
        true = torch.autograd.grad(right[0].sum() + right[1].sum(), [q, k, v])
        close([made[1], made[2]], true[1:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_bias_and_a_mask_of_numbers_are_not_rounded_to_their_type(dtype: Any) -> None:
    of_both = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
    q, k, v = (drawn(1, 1, n, 8, seed=n).detach().to(dtype) for n in (3, 4, 4))
    b, mask = (drawn(1, 3, 4, seed=seed).detach().to(of_both) for seed in (8, 9))
    b = b + 100
    wide = [each.double() for each in (q, k, v)]
    true = formulas(*wide, b.double() + mask.double())[1]
    L = attention(q, k, v, bias=b, attn_mask=mask, return_lse=True)[1]
    assert (L - true).abs().max() < (1e-3 if dtype == torch.bfloat16 else 1e-12)


def test_refusals_name_the_argument_and_what_computes_it() -> None:
    q = torch.zeros(1, 1, 2, 4)
    refused(lambda: attention(q, q, q, attn_mask=torch.full((2, 2), torch.nan)), "attn_mask has NaN")
    refused(lambda: attention(q, q, q, bias=torch.full((2, 2), torch.inf)), "bias has NaN, or")
    five, apart = torch.zeros(2, 3, 2, 1, 2, 4), torch.ones(1, 3, 1, 1, 2, 2) > 0
    refused(lambda: attention(five, five, five, attn_mask=apart), "attn_mask has shape .* lie between others")
    wide = torch.zeros(1, 1, 2, 136)
    refused(lambda: attention(wide, wide, wide, attn_mask=torch.zeros(2, 2) == 0), 'with fallback="sdpa"')


def test_plain_calls_go_without_operators(monkeypatch: Any) -> None:
    """One autograd function on a GPU, here with the definition in the place of kernels; sizes are checked once, for
    calls with L and for those without."""
    from pebblesim.operator.bias import operators, with_bias
    from pebblesim.operator.known import eager

    checked: list[Any] = []
    monkeypatch.setattr(eager, "plain", lambda *given: True)
    monkeypatch.setattr(with_bias, "_compile", lambda *given: None)
    monkeypatch.setattr(with_bias, "check", lambda *given: checked.append(given))

    def forward(*given: Any) -> Any:
        return operators._by_definition(*given[:4], None, *given[4:])

    def backward(*given: Any) -> Any:
        return operators._gradients_by_definition(*given[:8], None, *given[8:])

    monkeypatch.setattr(operators, "biased_without_notes", forward)
    monkeypatch.setattr(operators, "gradients_of_biased_without_notes", backward)
    x = tensors((2, 3), 2, 4, 4, (2, 1, 2, 4, 4))
    allowed = torch.ones(4, 4, dtype=torch.bool).tril()
    for seed in (0, 1):
        x = [each.detach().roll(seed).requires_grad_() for each in x]
        made = attention(*x[:3], bias=x[3], is_causal=True, return_lse=True)
        same(made, formulas(*x, allowed), x)
        O = attention(*x[:3], bias=x[3], is_causal=True)
        of_q, of_b = torch.autograd.grad(O.sum(), (x[0], x[3]))
        close([of_q, of_b], torch.autograd.grad(formulas(*x, allowed)[0].sum(), (x[0], x[3])))
        with torch.no_grad():
            close([attention(*x[:3], bias=x[3].detach(), is_causal=True)], [made[0].detach()])
    assert len(checked) == 2
    eager._CHECKED.clear()


@pytest.mark.parametrize("shared", [False, True])
def test_vmap_of_calls_with_ranges(shared: bool) -> None:
    """Padding of each call, or of all calls together, beside a bias of each, and heads that share keys."""
    q, k, v, b = (
        drawn(*shape, seed=at)
        for at, shape in enumerate([(3, 2, 4, 5, 8), (3, 2, 2, 6, 8), (3, 2, 2, 6, 8), (3, 4, 5, 6)])
    )
    padding = torch.arange(6) >= torch.tensor([[3, 6], [1, 4], [6, 5]])[..., None]
    padding = padding[0] if shared else padding

    def call(q: Any, k: Any, v: Any, b: Any, padding: Any) -> Any:
        return attention(q, k, v, bias=b, key_padding_mask=padding, enable_gqa=True)

    made = torch.vmap(call, (0, 0, 0, 0, None if shared else 0))(q, k, v, b, padding)
    true = torch.stack([call(q[at], k[at], v[at], b[at], padding if shared else padding[at]) for at in range(3)])
    dO = torch.randn_like(true)
    for mine, its in zip(*(torch.autograd.grad(each, (q, k, v, b), dO) for each in (made, true)), strict=True):
        torch.testing.assert_close(mine, its)
    torch.testing.assert_close(made, true)
