"""Capped scores in Gluon kernels: outputs and gradients against formulas in float64, by the interpreter."""

from __future__ import annotations

from typing import Any

import gluon_interpreter
import numpy as np
import pytest

from pebblesim.core.errors import UsageError
from pebblesim.kernels.domains import GLUON, OF_GLUON
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.language import masks
from pebblesim.language.registry import get

FORWARD, TWO_PASS, ONE_PASS = "flash2-forward", "backward-two-pass-blocked", "flash2-backward-blocked"

BLOCKS = {
    FORWARD: {"B_r": 128, "B_c": 32},
    TWO_PASS: {"B_r": 64, "b_c": 16, "B_c": 128, "b_r": 32},
    ONE_PASS: {"B_c": 128, "b_r": 64},
    "scores-stored-resident": {"a": 128, "b": 64, "c": 16, "e": 32},
    "small-cache-backward-resident": {"a": 128, "b": 64, "c": 16, "e": 32},
}


def text(name: str, dims: dict[str, int], cap: float, scale: float, mask: Any = None, **options: Any) -> str:
    program = get(name).in_dims(dims).under(mask)
    sizes = {**dims, **BLOCKS[name]}
    return gluon(program, sizes, "float16", mask, scale=scale, softcap=cap, **options).text


def formulas(Q: Any, K: Any, V: Any, dO: Any, allowed: Any, cap: float, scale: float) -> dict[str, Any]:
    """Attention with scores of cap · tanh(score / cap), and its gradients, from their definitions."""
    tanh = np.tanh(scale * Q @ K.T / cap)
    weights = np.where(allowed, np.exp(cap * tanh), 0.0)
    sums = weights.sum(1, keepdims=True)
    P = weights / sums
    O = P @ V
    dP = dO @ V.T
    dS = P * (dP - (P * dP).sum(1, keepdims=True)) * (1 - tanh**2)
    return {"O": O, "L": np.log(sums[:, 0]), "dQ": scale * dS @ K, "dK": scale * dS.T @ Q, "dV": P.T @ dO}


def check(name: str, n_q: int, n_k: int, d: int, mask: str | None, cap: float, scale: float, **options: Any) -> None:
    dims = {"n_q": n_q, "n_k": n_k, "d_k": d, "d_v": d}
    band = None if mask is None else masks.of(mask)
    allowed = np.ones((n_q, n_k), bool) if band is None else np.asarray(band.allowed(n_q, n_k))
    draw = np.random.default_rng(5)
    given = {each: draw.normal(size=(1, n, d)) for each, n in {"Q": n_q, "K": n_k, "V": n_k, "dO": n_q}.items()}
    wanted = formulas(*(given[each][0] for each in ("Q", "K", "V", "dO")), allowed, cap, scale)
    given |= {"O": wanted["O"][None], "L": wanted["L"][None] * np.log2(np.e)}
    program = get(name).in_dims(dims).under(band)
    inputs = {each: given[each] for each in program.tensors if each in program.inputs}
    outputs, _ = gluon_interpreter.run(text(name, dims, cap, scale, band, **options), inputs, "float16", (n_q, n_k), 3)
    wanted["L"] = wanted["L"] * np.log2(np.e)
    of_formulas = wanted.keys() & outputs.keys()
    assert of_formulas >= {"O"} or of_formulas == {"dQ", "dK", "dV"}
    for each in of_formulas:
        error = float(np.linalg.norm(outputs[each][0] - wanted[each]))
        assert error < 5e-3 * max(float(np.linalg.norm(wanted[each])), 0.1), (each, error)


@pytest.mark.parametrize("name", [FORWARD, TWO_PASS, ONE_PASS])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_capped_scores_give_what_the_formulas_do(name: str, mask: str | None) -> None:
    """A cap of about the scores themselves: without it, results are far away."""
    check(name, 70, 101, 24, mask, 1.5, 0.5)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "n_q", "n_k", "mask", "options"),
    [
        (FORWARD, 1, 1, None, {}),
        (FORWARD, 130, 257, "window:32", {"stages": 3}),
        (FORWARD, 200, 200, None, {"persistent": True}),
        (TWO_PASS, 130, 131, "window:7", {}),
        (TWO_PASS, 64, 128, None, {"persistent": True}),
        (ONE_PASS, 3, 300, None, {"stages": 3}),
        (ONE_PASS, 130, 131, "band:20", {}),
        ("scores-stored-resident", 70, 101, "causal", {}),
    ],
)
def test_capped_scores_at_other_sizes(name: str, n_q: int, n_k: int, mask: str | None, options: Any) -> None:
    check(name, n_q, n_k, 24, mask, 2.0, 0.5, **options)


def test_kernels_that_keep_no_scores_do_not_cap_their_gradients() -> None:
    dims = {"n_q": 64, "n_k": 64, "d_k": 16, "d_v": 16}
    with pytest.raises(UsageError, match="no scores where it computes their gradient"):
        text("small-cache-backward-resident", dims, 2.0, 0.5)


def test_those_are_offered_that_a_card_found_faster() -> None:
    """Without a spill, as tests/pytorch/test_compiled_gluon.py sees; benchmarks/gpu/softcap.jsonl has the times."""
    offered = {name: domain.softcap for name, domain in OF_GLUON.items() if domain.softcap}
    assert offered == {ONE_PASS: 64} and not GLUON.softcap
