"""Softmaxes that begin with sinks, as numbers and as Triton and Gluon kernels: against formulas in float64."""

from __future__ import annotations

from typing import Any

import gluon_interpreter
import numpy as np
import pytest
import triton_interpreter
from hypothesis import given, strategies as st

from pebblesim.analysis.count import count
from pebblesim.core.errors import UsageError
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.passes.sinks import sinking
from pebblesim.kernels.triton.triton import triton
from pebblesim.language import masks
from pebblesim.language.numbers import numbers
from pebblesim.language.registry import get

BLOCKS = {
    "flash2-forward": {"B_r": 32, "B_c": 16},
    "small-cache-forward-blocked": {"a": 32, "b": 32, "c": 16},
    "scores-stored-blocked": {"a": 32, "b": 32, "c": 16},
    "scores-stored-in-rows": {"C": 32, "a": 32, "b": 32, "c": 16, "e": 32},
    "flash-decoding": {"B_r": 16, "S": 32, "B_c": 16},
    "flash-decoding-blocked": {"B_r": 16, "S": 32, "c": 16, "e": 16},
}
HOPPER = {
    "flash2-forward": {"B_r": 128, "B_c": 32},
    "scores-stored-resident": {"a": 128, "b": 64, "c": 16, "e": 64},
}
WORDS = {  # of sinks that are read, for each query
    "flash2-forward": 1,
    "small-cache-forward-blocked": 1,
    "scores-stored-blocked": 1,
    "scores-stored-in-rows": 1,
    "flash-decoding": 1,
    "flash-decoding-blocked": 4,  # twice by each of two workers, for 16 columns of O
}


def drawn(n_q: int, n_k: int, d: int, heads: int) -> dict[str, Any]:
    """Matrices, and a sink for each row: some far below the scores, some far above, and some that are none."""
    draw = np.random.default_rng(n_q)
    sides = {"Q": (n_q, d), "K": (n_k, d), "V": (n_k, d)}
    found = {name: draw.normal(size=(heads, *shape)) for name, shape in sides.items()}
    heights = draw.choice([-np.inf, -40.0, -1.0, 0.5, 3.0, 40.0], size=(heads, n_q))
    return found | {"sinks": heights}


def formulas(Q: Any, K: Any, V: Any, sinks: Any, allowed: Any, scale: float) -> dict[str, Any]:
    """O and L of a head, from the definition: one more key whose value is 0."""
    weights = np.where(allowed, np.exp(scale * Q @ K.T), 0.0)
    whole = weights.sum(1) + np.exp(sinks)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {"O": np.nan_to_num(weights @ V / whole[:, None]), "L": np.log(whole)}


def check(name: str, n_q: int, n_k: int, mask: str | None = None, hopper: bool = False, **options: Any) -> Any:
    """Check both results of two heads; the words that were read and written."""
    dims, scale, heads = {"n_q": n_q, "n_k": n_k, "d_k": 24, "d_v": 24}, 0.3, 2
    band = None if mask is None else masks.of(mask)
    allowed = np.ones((n_q, n_k), bool) if band is None else np.asarray(band.allowed(n_q, n_k))
    x = drawn(n_q, n_k, 24, heads)
    program = sinking(get(name).in_dims(dims).under(band))
    sizes = {**dims, **(HOPPER if hopper else BLOCKS)[name]}
    if hopper:
        text = gluon(program, sizes, "float16", band, scale=scale, **options).text
        made, words = gluon_interpreter.run(text, x, "float16", (n_q, n_k), 3)
    else:
        text = triton(program, sizes, "float32", band, scale=scale, **options).text
        made, words = triton_interpreter.run(text, x, "float32", (n_q, n_k))
    for head in range(heads):
        true = formulas(*(each[head] for each in x.values()), allowed, scale)
        none = np.isinf(true["L"])
        assert (np.isinf(made["L"][head]) == none).all()
        assert np.abs(made["L"][head] * np.log(2) - true["L"])[~none].max(initial=0) < 5e-3
        assert np.linalg.norm(made["O"][head] - true["O"]) < 3e-3 * np.linalg.norm(true["O"])
    return words


@pytest.mark.parametrize(
    ("mask", "n_q", "n_k"), [(None, 19, 23), ("causal", 19, 23), ("window:9", 19, 23), ("causal", 23, 6)]
)
@pytest.mark.parametrize("name", BLOCKS)
def test_numbers_are_those_of_one_more_key(name: str, mask: str | None, n_q: int, n_k: int) -> None:
    """The program itself, in float64; also of whole tiles of queries that see no key."""
    dims = {"n_q": n_q, "n_k": n_k, "d_k": 3, "d_v": 5}
    band = None if mask is None else masks.of(mask)
    x = {each: values[0] for each, values in drawn(n_q, n_k, 5, 1).items()}
    x["Q"], x["K"] = x["Q"][:, :3], x["K"][:, :3]
    program = sinking(get(name).in_dims(dims).under(band))
    blocks = {"B_r": 4, "B_c": 3, "S": 7, "a": 4, "b": 6, "c": 2, "e": 3, "C": 8}
    made = numbers(program, {**dims, **{each: blocks[each] for each in program.blocks}}, x, mask=band)
    allowed = np.ones((n_q, n_k), bool) if band is None else np.asarray(band.allowed(n_q, n_k))
    true = formulas(*x.values(), allowed, 1.0)
    for each in ("O", "L"):
        np.testing.assert_allclose(made[each], true[each], rtol=1e-12, atol=1e-12)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("name", BLOCKS)
def test_softmaxes_of_triton_kernels_begin_with_sinks(name: str, mask: str | None) -> None:
    words = check(name, 50, 71, mask)
    assert words["read", "sinks"] == 2 * 50 * WORDS[name]


@pytest.mark.parametrize("height", [800.0, 3e38])
def test_nothing_is_nan_where_a_sink_is_as_high_as_numbers_are(height: float) -> None:
    x = drawn(5, 7, 24, 1)
    x["sinks"][:] = height
    dims = {"n_q": 5, "n_k": 7, "d_k": 24, "d_v": 24}
    program, sizes = sinking(get("flash2-forward").in_dims(dims).program), {**dims, **BLOCKS["flash2-forward"]}
    made, _ = triton_interpreter.run(triton(program, sizes, "float32").text, x, "float32")
    assert not made["O"].any()
    np.testing.assert_allclose(made["L"] * np.log(2), min(height, 2.0**127 * np.log(2)), rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"persistent": True}])
@pytest.mark.parametrize(("n_q", "n_k"), [(1, 1), (130, 131), (64, 128)])
def test_softmaxes_of_gluon_kernels_begin_with_sinks(n_q: int, n_k: int, options: Any) -> None:
    assert check("flash2-forward", n_q, n_k, None, True, **options)["read", "sinks"] == 2 * n_q


@pytest.mark.parametrize("mask", [None, "causal"])
def test_tables_of_gluon_kernels_have_sinks(mask: str | None) -> None:
    check("scores-stored-resident", 130, 140, mask, True)


@pytest.mark.slow
@given(
    name=st.sampled_from(list(BLOCKS)),
    n_q=st.integers(1, 60),
    more=st.integers(0, 30),
    mask=st.sampled_from([None, "causal", "window:3", "band:5"]),
)
def test_drawn_sizes(name: str, n_q: int, more: int, mask: str | None) -> None:
    check(name, n_q, n_q + more * (mask in (None, "causal")), mask)


@pytest.mark.parametrize("name", BLOCKS)
def test_sinks_move_a_number_of_each_query_besides(name: str) -> None:
    """And nothing else: not a word of O, nor of the splits."""
    dims = {"n_q": 50, "n_k": 71, "d_k": 24, "d_v": 24}
    program, sizes = get(name).in_dims(dims).program, {**dims, **BLOCKS[name]}
    plain, made = count(program, sizes).by_tensor, dict(count(sinking(program), sizes).by_tensor)
    moved = made.pop("sinks")
    assert (moved.reads, moved.writes) == (50 * WORDS[name], 0)
    assert made == plain


def test_what_has_no_softmax_is_said() -> None:
    program = sinking(get("flash2-forward").program)
    with pytest.raises(UsageError, match="flash2-forward has sinks already"):
        sinking(program)
    with pytest.raises(UsageError, match="matmul-tiled writes no L of a softmax"):
        sinking(get("matmul-tiled").program)
    with pytest.raises(UsageError, match="backward-two-pass-blocked writes no L"):
        sinking(get("backward-two-pass-blocked").program)
