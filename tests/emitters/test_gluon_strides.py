"""Gluon source for matrices as frameworks have them, run by the interpreter: strides, shared heads, bands, edges."""

from __future__ import annotations

from typing import Any

import gluon_interpreter
import numpy as np
import pytest
from hypothesis import given, strategies as st
from laid_matrices import grouped, strides

from pebblesim.core.errors import UsageError
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.tables import workspace
from pebblesim.language.masks import Band
from pebblesim.language.registry import get

BLOCKS = {
    "flash2-forward": {"B_r": 128, "B_c": 32},
    "scores-stored-resident": {"a": 128, "b": 64, "c": 64, "e": 64},
    "flash2-backward-blocked": {"B_c": 128, "b_r": 64},
    "backward-two-pass-blocked": {"B_r": 64, "b_c": 32, "B_c": 128, "b_r": 64},
    "small-cache-backward-resident": {"a": 128, "b": 64, "c": 64, "e": 64},
    "dS-stored-resident": {"a": 128, "b": 128, "c": 64, "e": 64},
}
SCALE = 0.25


def allowed(n_q: int, n_k: int, band: tuple[int | None, int | None, bool] | None) -> np.ndarray:
    """The pairs that limits of j - i allow, by their definition."""
    i, j = np.arange(n_q)[:, None], np.arange(n_k)[None, :]
    if band is None:
        return (i >= 0) & (j >= 0)
    before, after, at_end = band
    apart = j - i - (n_k - n_q if at_end else 0)
    return (apart >= -(n_k + n_q if before is None else before)) & (apart <= (n_k + n_q if after is None else after))


def right(x: dict[str, np.ndarray], pairs: np.ndarray, shared: int) -> dict[str, np.ndarray]:
    """Attention of (batch, heads, n, d) and its gradients in float64; L is to base 2."""
    K, V = (np.repeat(x[name], shared, axis=1) for name in "KV")
    S = np.where(pairs, SCALE * x["Q"] @ K.swapaxes(2, 3), -np.inf)
    most = S.max(-1, keepdims=True)
    P = np.exp(S - most)
    l = P.sum(-1, keepdims=True)
    P /= l
    O = P @ V
    dS = SCALE * P * (x["dO"] @ V.swapaxes(2, 3) - (x["dO"] * O).sum(-1, keepdims=True))

    def added(each: np.ndarray) -> np.ndarray:
        return each.reshape(*x["K"].shape[:2], shared, *each.shape[2:]).sum(2)

    L = ((most + np.log(l)) * np.log2(np.e))[..., 0]
    return {
        "O": O,
        "L": grouped(L, shared),
        "dQ": dS @ K,
        "dK": added(dS.swapaxes(2, 3) @ x["Q"]),
        "dV": added(P.swapaxes(2, 3) @ x["dO"]),
    }


def run(
    name: str, sizes: tuple[int, ...], band: tuple[int | None, int | None, bool] | None, layout: str, **ring: Any
) -> None:
    batch, kv_heads, shared, n_q, n_k, d = sizes
    schedule, chance = get(name), np.random.default_rng(n_q + n_k)
    dims = {"n_q": n_q * shared, "n_k": n_k, "d_k": d, "d_v": d}
    mask = None if band is None else Band("band", *band[:2], at_end=band[2], rows=shared)
    program = schedule.in_dims(dims).under(mask)
    stages, again = ring.get("stages", 2), ring.get("persistent", False)
    dense = layout == "heads"
    text = gluon(
        program,
        {**dims, **BLOCKS[name]},
        "float16",
        mask,
        scale=SCALE,
        stages=stages,
        persistent=again,
        shared=shared,
        dense=dense,
    ).text
    of_q, of_k = (batch, kv_heads * shared, n_q, d), (batch, kv_heads, n_k, d)
    shapes = {"Q": of_q, "K": of_k, "V": of_k, "dO": of_q}
    x = {each: np.float64(np.float16(chance.normal(size=shape))) for each, shape in shapes.items()}
    true = right(x, allowed(n_q, n_k, band), shared)
    x |= {"O": true["O"], "L": true["L"]}
    order = [each for each in program.tensors if each in program.inputs]
    outputs = [each for each in program.outputs if each in true and each != "L"]
    of = {each: of_q if each in ("O", "dQ") else of_k for each in outputs}
    found, _ = gluon_interpreter.run(
        text,
        {each: x[each] for each in order},
        "float16",
        None,
        n_q,
        strides={each: strides(x[each].shape, layout) for each in order if x[each].ndim == 4},
        results={each: (shape, strides(shape, layout)) for each, shape in of.items()},
    )
    assert found.keys() >= {*outputs}
    for each, array in ((each, array) for each, array in found.items() if each in true):
        expected = grouped(true[each], shared) if each == "dQ" and array.ndim == 3 else true[each]
        assert array.shape == expected.shape
        error = np.linalg.norm(array - expected)
        assert error < 5e-3 * max(np.linalg.norm(expected), 0.1), (each, error)


def test_turns_are_counted_from_the_first_tile_of_a_window() -> None:
    """A persistent block whose first tile is not the first of all waited for a turn that nobody passed."""
    run("flash2-forward", (2, 2, 1, 129, 129, 16), (1, None, True), "heads", persistent=True)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, tuple[int, ...], tuple[int | None, int | None, bool] | None, str, bool]:
    name, shared = draw(st.sampled_from(list(BLOCKS))), draw(st.sampled_from([1, 2, 4, 64]))
    n_q, n_k = draw(st.integers(1, max(4, 200 // shared))), draw(st.integers(1, 200))
    d = 8 * draw(st.integers(3 if name == "flash2-backward-blocked" else 2, 4))
    batch, kv_heads = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    before, after = (draw(st.none() | st.integers(0, 40)) for _ in range(2))
    band = None if before is after is None else (before, after, draw(st.booleans()))
    if band is not None:  # each query sees a key and each key is seen, as the operator has it
        n_k = n_q if draw(st.booleans()) else n_k
        pairs = allowed(n_q, n_k, band)
        band = band if pairs.any(0).all() and pairs.any(1).all() else None
    layout = draw(st.sampled_from(["heads", "tokens", "wider"]))
    again = draw(st.booleans()) and name in ("flash2-forward", "flash2-backward-blocked", "backward-two-pass-blocked")
    return name, (batch, kv_heads, shared, n_q, n_k, d), band, layout, again


@pytest.mark.slow
@given(case=cases(), stages=st.integers(2, 3))
def test_drawn_shapes_are_computed_where_they_are(case: Any, stages: int) -> None:
    name, sizes, band, layout, again = case
    run(name, sizes, band, layout, stages=stages, persistent=again)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "band"),
    [
        ("flash2-forward", (40, 3, True)),
        ("flash2-backward-blocked", (None, 0, True)),
        ("small-cache-backward-resident", (None, 0, False)),
        ("dS-stored-resident", (None, 0, True)),
    ],
)
def test_heads_that_share_keys_are_computed_where_they_are(name: str, band: Any) -> None:
    run(name, (2, 2, 2, 49, 49 if band[2] else 67, 24), band, "wider")


def test_heads_that_do_not_fill_a_tile_together_are_refused() -> None:
    dims = {"n_q": 96, "n_k": 32, "d_k": 16, "d_v": 16}
    with pytest.raises(UsageError, match="powers of two up to 64 of heads that share keys, and not 3"):
        gluon(get("flash2-forward").in_dims(dims).program, {**dims, "B_r": 64, "B_c": 16}, shared=3)


def test_dS_takes_the_place_of_P_tile_by_tile() -> None:
    """A block reads a tile of P where it writes that of dS, also where it goes through a row of tiles."""
    name, dims = "small-cache-backward-resident", {"n_q": 300, "n_k": 500, "d_k": 32, "d_v": 32}
    rows, columns = 3 * 128, 8 * 64
    assert workspace(get(name).in_dims(dims).program, {**dims, **BLOCKS[name]}, "float16") == 2 * rows * columns
