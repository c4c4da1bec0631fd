"""Gluon source that reads ranges of keys, run by the interpreter: packed sequences, padding, and any other ranges."""

from __future__ import annotations

import re
from random import Random
from types import SimpleNamespace
from typing import Any

import gluon_interpreter
import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from laid_matrices import grouped, strides
from strategies import draws

from pebblesim.advice.tiles import PROBLEM, SMALL_TILINGS, TILINGS, Tiling, hopper_tiling
from pebblesim.core.errors import UsageError
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.key_ranges import KeyRanges
from pebblesim.kernels.passes.bias import biased
from pebblesim.kernels.passes.sinks import sinking
from pebblesim.kernels.triton.triton import triton
from pebblesim.language.registry import get

FORWARD, BACKWARD, ONE_PASS = "flash2-forward", "backward-two-pass-blocked", "flash2-backward-blocked"

SCALE = 0.25


def packed(chance: Random, n_q: int, n_k: int, causal: bool) -> tuple[np.ndarray, np.ndarray]:
    """Ranges of sequences, of which some are empty, and of queries behind the last one."""
    number = chance.choice([1, 2, 3, 7, min(n_q, 40)])
    of_q, of_k = (sorted(chance.randint(0, n) for _ in range(number)) for n in (n_q, n_k))
    first, end = np.full(n_q, of_k[-1]), np.full(n_q, of_k[-1])
    for a, b, c, d in zip([0, *of_q], of_q, [0, *of_k], of_k, strict=False):
        first[a:b], end[a:b] = c, np.minimum(d, c + 1 + np.arange(b - a)) if causal else d
    return first, end


def ranges(seed: int, batch: int, n_q: int, n_k: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """First keys and ends of each query, (batch, n_q)."""
    chance, made = Random(seed), []
    for _ in range(batch):
        if kind in ("packed", "causal"):
            made.append(packed(chance, n_q, n_k, kind == "causal"))
        elif kind == "padding":
            begin = chance.randint(0, n_k)
            made.append((np.full(n_q, begin), np.full(n_q, chance.randint(begin, n_k))))
        elif kind == "edges":  # of tiles, or one key beside them
            begin, end = sorted(min(max(16 * chance.randint(0, 5) + chance.randint(-1, 1), 0), n_k) for _ in "fe")
            made.append((np.full(n_q, begin), np.full(n_q, end)))
        elif kind == "all":
            made.append((np.full(n_q, 0), np.full(n_q, n_k)))
        elif kind == "any":  # some of which end before they begin
            made.append(tuple(np.sort([chance.randint(0, n_k) for _ in range(n_q)]) for _ in "fe"))
        else:
            made.append((np.full(n_q, n_k),) * 2)
    first, end = (np.stack(each) for each in zip(*made, strict=True))
    return first, end


def seen_from(first: np.ndarray, end: np.ndarray, n_k: int) -> tuple[np.ndarray, np.ndarray]:
    """For each key the first query whose end is above it, and the first whose range begins above it, (batch, n_k)."""
    keys = np.arange(n_k)
    above = np.stack([(each[None, :] <= keys[:, None]).sum(1) for each in end])
    return above, np.stack([(each[None, :] <= keys[:, None]).sum(1) for each in first])


def right(x: dict[str, np.ndarray], pairs: np.ndarray, shared: int) -> dict[str, np.ndarray]:
    """Attention of (batch, heads, n, d) and its gradients in float64, 0 for queries without a key; L is to base 2."""
    K, V = (np.repeat(x[name], shared, axis=1) for name in "KV")
    S = np.where(pairs[:, None], SCALE * x["Q"] @ K.swapaxes(2, 3), -np.inf)
    some = pairs.any(-1)[:, None, :, None]
    most = np.where(some, S.max(-1, keepdims=True), 0.0)
    P = np.exp(S - most)
    l = P.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        L = ((most + np.log(l)) * np.log2(np.e))[..., 0]
    P = P / np.where(some, l, 1.0)
    O = P @ V
    dS = SCALE * P * (x["dO"] @ V.swapaxes(2, 3) - (x["dO"] * O).sum(-1, keepdims=True))

    def added(each: np.ndarray) -> np.ndarray:
        return each.reshape(*x["K"].shape[:2], shared, *each.shape[2:]).sum(2)

    gradients = {"dK": added(dS.swapaxes(2, 3) @ x["Q"]), "dV": added(P.swapaxes(2, 3) @ x["dO"])}
    return {"O": O, "L": grouped(L, shared), "dQ": dS @ K, **gradients}


def run(
    name: str,
    sizes: tuple[int, ...],
    kind: str,
    blocks: dict[str, int],
    layout: str,
    seed: int,
    far: float = 0.0,
    **ring: Any,
) -> None:
    batch, kv_heads, shared, n_q, n_k, d = sizes
    apart = layout != "alone"  # else contiguous matrices, with the rows of heads that share keys next to each other
    dims, mask = {"n_q": n_q * shared, "n_k": n_k, "d_k": d, "d_v": d}, KeyRanges(rows=shared)
    program = get(name).in_dims(dims).under(mask)
    own = {"shared": shared, "dense": layout == "heads"} if apart else {}
    text = gluon(program, {**dims, **blocks}, "float16", mask, scale=SCALE, **own, **ring).text
    of_q, of_k, made = (batch, kv_heads * shared, n_q, d), (batch, kv_heads, n_k, d), np.random.default_rng(seed)
    shapes = {"Q": of_q, "K": of_k, "V": of_k, "dO": of_q}
    x = {each: np.float64(np.float16(made.normal(size=shape))) for each, shape in shapes.items()}
    if far:
        x["Q"][..., 0], x["K"][..., 0] = far, -far
    first, end = ranges(seed, batch, n_q, n_k, kind)
    keys = np.arange(n_k)
    true = right(x, (keys >= first[..., None]) & (keys < end[..., None]), shared)
    x |= {"O": true["O"], "L": true["L"]}
    order = [each for each in program.tensors if each in program.inputs]
    given_to = {each: x[each] for each in order}
    options: dict[str, Any] = {}
    if apart:
        options["strides"] = {each: strides(x[each].shape, layout) for each in order if x[each].ndim == 4}
        of = {each: of_q if each in ("O", "dQ") else of_k for each in program.outputs if each != "L"}
        options["results"] = {each: (shape, strides(shape, layout)) for each, shape in of.items()}
    else:
        given_to = {
            each: grouped(y, shared if each in ("Q", "O", "dO") else 1) if y.ndim == 4 else y
            for each, y in given_to.items()
        }
    above, below = seen_from(first, end, n_k)
    given_to |= {"first": first, "end": end, "above": above, "below": below}
    found, _ = gluon_interpreter.run(text, given_to, "float16", None, seed, **options)
    for each in program.outputs:
        one = true[each]
        if one.ndim == 4 and found[each].ndim == 3:  # sums, or contiguous
            one = grouped(one, shared if each in ("O", "dQ") else 1)
        assert found[each].shape == one.shape
        part = slice(1 if far and each in ("dQ", "dK") else 0, None)  # sums that are 0 by numbers far above them
        one, own = one[..., part], found[each][..., part]
        there = np.isfinite(one)
        assert (np.isfinite(own) == there).all()
        error = np.linalg.norm(np.where(there, own, 0) - np.where(there, one, 0))
        assert error < 5e-3 * max(np.linalg.norm(one[there]), 0.1), (each, error)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, ...]:
    name, shared = draw(st.sampled_from([FORWARD, BACKWARD, ONE_PASS])), draw(st.sampled_from([1, 2, 4, 64]))
    n_q, n_k = draw(st.integers(1, max(4, 260 // shared))), draw(st.integers(1, 260))
    if draw(st.integers(0, 3)) == 0:  # lengths that tiles divide
        n_q, n_k = 128 // min(shared, 2), 128
    d = 8 * draw(st.integers(3 if name == ONE_PASS else 2, 4))
    sides = {each: draw(st.sampled_from([64, 128])) for each in ("B_r", "B_c")}
    narrow = {each: draw(st.sampled_from([16, 32, 64])) for each in ("b_r", "b_c")}
    blocks = {FORWARD: {"B_r": sides["B_r"], "B_c": narrow["b_c"]}, BACKWARD: sides | narrow}.get(name)
    blocks = blocks or {"B_c": sides["B_c"], "b_r": 64}
    sizes = draw(st.integers(1, 2)), draw(st.integers(1, 2)), shared, n_q, n_k, d
    kind = draw(st.sampled_from(["packed", "causal", "padding", "any", "nothing"]))
    layout = draw(st.sampled_from(["alone", "heads", "tokens", "wider"]))
    return name, sizes, kind, blocks, layout, draw(st.integers(0, 2**16)), draw(st.integers(2, 4)), draw(st.booleans())


@draws(2, 300)
@given(case=cases())
def test_drawn_ranges_give_the_reference_and_have_no_race(case: Any) -> None:
    *case, stages, persistent = case
    run(*case, stages=stages, persistent=persistent)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("kind", ["causal", "nothing"])
@pytest.mark.parametrize("name", [FORWARD, BACKWARD, ONE_PASS])
def test_blocks_without_a_pair_keep_their_barriers_in_step(name: str, kind: str) -> None:
    """Three blocks have all tiles, one after the other; of ranges at the end of the keys there is no tile."""
    blocks = {FORWARD: {"B_r": 64, "B_c": 32}, BACKWARD: {"B_r": 64, "b_c": 32, "B_c": 64, "b_r": 32}}
    sizes = (2, 2, 2, 99, 128, 24)
    run(name, sizes, kind, blocks.get(name, {"B_c": 64, "b_r": 64}), "wider", 7, stages=2, persistent=True)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["causal", "any", "nothing"])
def test_softmaxes_that_begin_with_sinks(kind: str) -> None:
    """A query without a key has the logarithm of its sink alone, and zeros, also where the sink is none."""
    dims, shared, made = {"n_q": 2 * 150, "n_k": 110, "d_k": 16, "d_v": 16}, 2, np.random.default_rng(5)
    mask = KeyRanges(rows=shared)
    program = sinking(get(FORWARD).in_dims(dims).under(mask))
    text = gluon(program, {**dims, "B_r": 64, "B_c": 32}, "float16", mask, scale=SCALE, stages=2).text
    x = {each: np.float64(np.float16(made.normal(size=(2, n, 16)))) for each, n in (("Q", 300), ("K", 110), ("V", 110))}
    sinks = made.choice([-np.inf, -3.0, 0.5, 4.0], size=(2, 300))
    first, end = ranges(11, 2, 150, 110, kind)
    above, below = seen_from(first, end, 110)
    keys, rows = np.arange(110), np.arange(300) // shared
    pairs = (keys >= first[:, rows, None]) & (keys < end[:, rows, None])
    weights = np.where(pairs, np.exp(SCALE * x["Q"] @ x["K"].swapaxes(1, 2)), 0.0)
    whole = weights.sum(-1) + np.exp(sinks)
    given_to = x | {"sinks": sinks, "first": first, "end": end, "above": above, "below": below}
    found, _ = gluon_interpreter.run(text, given_to, "float16", None, 1)
    O = weights @ x["V"] / np.where(whole > 0, whole, 1.0)[..., None]
    assert np.linalg.norm(found["O"] - O) < 3e-3 * max(np.linalg.norm(O), 0.1)
    some = whole > 0
    assert (np.isneginf(found["L"]) == ~some).all()
    assert np.abs(found["L"][some] - np.log2(whole[some])).max(initial=0) < 1e-2


def test_gradients_of_keys_that_do_not_exist_are_no_terms_of_those_of_queries() -> None:
    """Of a last tile of keys some rows are none: their scores are 0, whose exponentials are infinite beside a low L."""
    run(ONE_PASS, (1, 1, 1, 64, 65, 24), "all", {"B_c": 128, "b_r": 64}, "alone", 3, far=24.0, stages=2)


def test_a_role_that_counts_other_tiles_is_found() -> None:
    """The interpreter sees it where the warp that loads and the warpgroups do not agree."""
    dims, mask = {"n_q": 64, "n_k": 128, "d_k": 16, "d_v": 16}, KeyRanges()
    program = get(FORWARD).in_dims(dims).under(mask)
    text = gluon(program, {**dims, "B_r": 64, "B_c": 32}, "float16", mask, stages=2).text
    loads = text.index("_rows(w")
    changed = text[:loads].replace("range(low, high)", "range(low, high - 1)") + text[loads:]
    assert changed != text
    x = {each: np.ones((1, 64 if each == "Q" else 128, 16)) for each in "QKV"}
    keys, queries = np.full((1, 128), 0), np.full((1, 64), 0)
    given_to = x | {"first": queries, "end": queries + 128, "above": keys, "below": keys + 64}
    assert gluon_interpreter.run(text, given_to, "float16", None, 0)[0]["O"].min() == 1
    with pytest.raises(AssertionError, match="wait"):
        gluon_interpreter.run(changed, given_to, "float16", None, 0)


SCALARS = SimpleNamespace(minimum=min, maximum=max, cdiv=lambda a, b: -(-a // b), int64=int, cast=lambda x, kind: x)
"""Gluon's operations on numbers of tiles."""


class Words:
    """A vector in memory by its address."""

    def __init__(self, words: Any, at: int = 0) -> None:
        self.words, self.at = words, at

    def __add__(self, more: int) -> Words:
        return Words(self.words, self.at + more)


@pytest.mark.one_in(2)
@example(seed=1, shared=1, n_q=200, n_k=300, width=32, kind="causal")
@example(seed=2, shared=1, n_q=20, n_k=90, width=16, kind="edges")
@example(seed=3, shared=1, n_q=20, n_k=90, width=16, kind="edges")
@example(seed=4, shared=1, n_q=20, n_k=90, width=16, kind="edges")
@example(seed=5, shared=1, n_q=20, n_k=90, width=16, kind="edges")
@given(
    seed=st.integers(0, 2**16),
    shared=st.sampled_from([1, 2, 8]),
    n_q=st.integers(1, 150),
    n_k=st.integers(1, 300),
    width=st.sampled_from([16, 64]),
    kind=st.sampled_from(["packed", "causal", "edges", "any"]),
)
def test_tiles_are_those_with_pairs_and_have_predicates_if_a_range_cuts_them(
    seed: int, shared: int, n_q: int, n_k: int, width: int, kind: str
) -> None:
    """Where each query has a key; the first tile has predicates in any case."""
    dims, mask = {"n_q": n_q * shared, "n_k": n_k, "d_k": 16, "d_v": 16}, KeyRanges(rows=shared)
    program = get(FORWARD).in_dims(dims).under(mask)
    text = gluon(program, {**dims, "B_r": 128, "B_c": width}, "float16", mask, shared=shared).text
    (condition,) = re.findall(r"if (.*):\n +P = gl\.where\(", text)
    (number,) = set(re.findall(r"\bj_\d\b", condition))
    lines = re.findall(r"(?m)^    ((?:first_at|low|high|all_low)\b.* = .*)$", text[text.index("_rows(w") :])
    first, end = (each[0] for each in ranges(seed, 1, n_q, n_k, kind))
    end = np.maximum(end, first)
    keys, rows = np.arange(n_k + width), np.arange(n_q * shared) // shared
    gl = SimpleNamespace(**vars(SCALARS), load=lambda place: int(place.words[place.at]))
    for tile in range(-(-n_q * shared // 128)):
        own = rows[tile * 128 : (tile + 1) * 128]
        pairs = (keys >= first[own, None]) & (keys < end[own, None])
        known: dict[str, Any] = {"gl": gl, "n_q": n_q * shared, "n_k": n_k, "i": tile, "batch": 0}
        known |= {"first_ptr": Words(first), "end_ptr": Words(end)}
        for line in lines:
            exec(line, known)
        met = {at for at in range(-(-n_k // width)) if pairs[:, at * width : (at + 1) * width].any()}
        assert met <= {*range(known["low"], known["high"])} <= {*range(-(-n_k // width))}
        if pairs.any(1).all():
            assert {known["low"], known["high"] - 1} == {min(met), max(met)}
        for at in range(known["low"], known["high"]):
            cut = not pairs[:, at * width : (at + 1) * width].all()
            assert bool(eval(condition, {**known, number: at})) == cut


def test_ranges_beside_a_bias_are_refused() -> None:
    program = biased(get(FORWARD).in_dims({"n_q": 64, "n_k": 64, "d_k": 16, "d_v": 16}).under(KeyRanges()))
    sizes = {"n_q": 64, "n_k": 64, "d_k": 16, "d_v": 16, "B_r": 64, "B_c": 32}
    with pytest.raises(UsageError, match="no bias beside ranges of keys"):
        gluon(program, sizes, mask=KeyRanges())


FORWARDS = {*TILINGS[PROBLEM["forward"]], *SMALL_TILINGS[PROBLEM["forward"]]}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("tiling", sorted(FORWARDS, key=str), ids=str)
def test_kernels_of_forward_passes_read_ranges_of_queries_alone(tiling: Tiling) -> None:
    """So who launches them need not count the queries of each key."""
    d, mask = tiling.widths[1], KeyRanges()
    dims = {"n_q": 4095, "n_k": 4095, "d_k": d, "d_v": d}
    program = get(tiling.schedule).in_dims(dims).under(mask)
    text = triton(program, {**dims, **tiling.blocks}, mask=mask, shared=1, **tiling.options).text
    assert re.search(r"load\(first_ptr \+", text) and not re.search(r"load\((above|below)_ptr \+", text)


def test_gluon_kernels_of_forward_passes_take_ranges_of_queries_alone() -> None:
    tiling, mask = hopper_tiling(FORWARD, {"d": 64}), KeyRanges()
    dims = {"n_q": 4095, "n_k": 4095, "d_k": 64, "d_v": 64}
    text = gluon(get(FORWARD).in_dims(dims).under(mask), {**dims, **tiling.blocks}, mask=mask, shared=1).text
    kernels, launches = text.split("def run(")
    assert "above" not in kernels and "first_ptr, end_ptr" in launches
