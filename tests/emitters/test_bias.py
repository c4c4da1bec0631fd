"""A bias of scores in Triton and Gluon kernels: results against formulas in float64, and words of it that are read."""

from __future__ import annotations

import re
from typing import Any

import gluon_interpreter
import numpy as np
import pytest
import triton_interpreter
from hypothesis import given, strategies as st

from pebblesim.core.errors import UsageError
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.passes.bias import biased
from pebblesim.kernels.triton.triton import triton
from pebblesim.language import masks
from pebblesim.language.registry import get

FORWARD, TWO_PASS = "flash2-forward", "backward-two-pass-blocked"

BLOCKS = {
    FORWARD: {"B_r": 32, "B_c": 16},
    "small-cache-forward-blocked": {"a": 32, "b": 32, "c": 16},
    "flash-decoding-blocked": {"B_r": 16, "S": 64, "c": 16, "e": 16},
    TWO_PASS: {"B_r": 32, "b_c": 16, "B_c": 32, "b_r": 16},
    "dS-stored-blocked": {"B_c": 32, "b_r": 16, "b": 32, "c": 16},
    "small-cache-backward-blocked": {"a": 32, "b": 32, "c": 16},
}
HOPPER = {"B_r": 128, "B_c": 32}


def formulas(Q: Any, K: Any, V: Any, dO: Any, bias: Any, allowed: Any, scale: float) -> dict[str, Any]:
    """Attention with scores of scale · Q Kᵀ + bias, and its gradients, from their definitions."""
    weights = np.where(allowed, np.exp(scale * Q @ K.T + bias), 0.0)
    sums = weights.sum(1, keepdims=True)
    P = weights / sums
    dP = dO @ V.T
    dS = P * (dP - (P * dP).sum(1, keepdims=True))
    L = np.log(sums[:, 0])
    return {"O": P @ V, "L": L, "dQ": scale * dS @ K, "dK": scale * dS.T @ Q, "dV": P.T @ dO}


def check(name: str, n_q: int, n_k: int, mask: str | None = None, hopper: bool = False, **options: Any) -> int:
    """Check the results of two heads; the words of the bias that were read."""
    dims, scale, heads = {"n_q": n_q, "n_k": n_k, "d_k": 24, "d_v": 24}, 0.3, 2
    band = None if mask is None else masks.of(mask)
    allowed = np.ones((n_q, n_k), bool) if band is None else np.asarray(band.allowed(n_q, n_k))
    draw = np.random.default_rng(n_q)
    sides = {"Q": (n_q, 24), "K": (n_k, 24), "V": (n_k, 24), "dO": (n_q, 24), "bias": (n_q, n_k)}
    given_ = {each: draw.normal(size=(heads, *shape)) for each, shape in sides.items()}
    wanted = [formulas(*(given_[each][head] for each in sides), allowed, scale) for head in range(heads)]
    given_ |= {each: np.stack([one[each] for one in wanted]) for each in ("O", "L")}
    given_["L"] = given_["L"] * np.log2(np.e)
    program = biased(get(name).in_dims(dims).under(band))
    inputs = {each: given_[each] for each in program.tensors if each in program.inputs}
    sizes = {**dims, **(HOPPER if hopper else BLOCKS[name])}
    if hopper:
        text = gluon(program, sizes, "float16", band, scale=scale, **options).text
        outputs, words = gluon_interpreter.run(text, inputs, "float16", (n_q, n_k), 3)
    else:
        text = triton(program, sizes, "float32", band, scale=scale).text
        outputs, words = triton_interpreter.run(text, inputs, "float32", (n_q, n_k))
    of_formulas = outputs.keys() & {"O", "dQ", "dK", "dV"}
    assert of_formulas
    for each in of_formulas:
        for head in range(heads):
            error = float(np.linalg.norm(outputs[each][head] - wanted[head][each]))
            assert error < 5e-3 * max(float(np.linalg.norm(wanted[head][each])), 0.1), (each, error)
    return words["read", "bias"] // heads


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_bias_is_added_to_the_scores_of_triton_kernels(name: str, mask: str | None) -> None:
    assert check(name, 50, 71, mask) > 0


LOG2_E = "1.4426950408889634"


def fused(text: str) -> str:
    """A text whose exponents are not rounded before something is subtracted from them, as on a card."""
    exponent = rf"exp2\((\w+) \* {re.escape(LOG2_E)} - (.*)\)$"
    made, number = re.subn(exponent, r"exp2(fused(\1, \2))", text, flags=re.MULTILINE)
    assert number
    product = f"np.asarray(x, np.float64) * np.float32({LOG2_E})"
    function = f"def fused(x, y):\n    return ({product} - np.asarray(y)).astype(np.float32).view(type(x))\n"
    return made.replace("import torch\n", f"import torch\nimport numpy as np\n{function}", 1)


@pytest.mark.parametrize("some", [1, 5])
@pytest.mark.parametrize("number", [-1e6, 1e5, 1e7, 1e9, 1e15, 3e38])
def test_exponents_of_large_scores(number: float, some: int) -> None:
    """A maximum of scores is rounded, and they are not: their difference may be large."""
    dims = {"n_q": 40, "n_k": 70, "d_k": 24, "d_v": 24}
    chance = np.random.default_rng(3)
    x = {each: chance.normal(size=(1, dims[n], 24)) for each, n in (("Q", "n_q"), ("K", "n_k"), ("V", "n_k"))}
    x["bias"], x["dO"] = np.zeros((1, 40, 70)), chance.normal(size=(1, 40, 24))
    x["bias"][:, 3:30, ::some] = number
    for name in (FORWARD, TWO_PASS):
        program = biased(get(name).in_dims(dims).program)
        text = fused(triton(program, {**dims, **BLOCKS[name]}, "float32", scale=0.3).text)
        inputs = {each: np.asarray(x[each], float) for each in program.tensors if each in program.inputs}
        x |= triton_interpreter.run(text, inputs, "float32", (40, 70))[0]
    scores = np.float64(np.float32(0.3 * x["Q"][0] @ x["K"][0].T + x["bias"][0]))
    most = scores.max(-1, keepdims=True) * np.log2(np.e)
    keyless = ((most < -(2**20)) | (most >= 2**24))[:, 0]
    assert keyless.sum() == 27 * (number > 2e7 or (number < 0 and some == 1))
    assert np.array_equal(x["L"][0] == np.inf, keyless) and not x["O"][0][keyless].any()
    P = np.where(keyless[:, None], 0.0, np.exp2(scores * np.log2(np.e) - most))
    P /= np.where(keyless[:, None], 1.0, P.sum(-1, keepdims=True))
    dS = P * (x["dO"][0] @ x["V"][0].T - (x["dO"][0] * (P @ x["V"][0])).sum(-1, keepdims=True))
    close = 1e-5 + 2e-7 * abs(most[~keyless]).max()  # of gradients, as L is rounded
    true = {"O": P @ x["V"][0], "dV": P.T @ x["dO"][0], "dQ": 0.3 * dS @ x["K"][0], "dK": 0.3 * dS.T @ x["Q"][0]}
    for each, right in true.items():
        tolerance = 1e-5 if each == "O" else close
        assert np.linalg.norm(x[each][0] - right) <= tolerance * np.linalg.norm(right), each


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [{}, {"persistent": True}])
@pytest.mark.parametrize(("n_q", "n_k"), [(1, 1), (130, 131), (64, 128)])
def test_a_bias_is_added_to_the_scores_of_gluon_kernels(n_q: int, n_k: int, options: Any) -> None:
    assert check(FORWARD, n_q, n_k, None, True, **options) == n_q * n_k


@pytest.mark.parametrize("mask", ["causal", "window:9", "band:20"])
def test_under_a_mask_tiles_without_a_pair_have_no_bias(mask: str) -> None:
    n_q, n_k = 140, 151
    allowed = np.asarray(masks.of(mask).allowed(n_q, n_k))
    tall, wide = HOPPER["B_r"], HOPPER["B_c"]
    corners = ((i, j) for i in range(0, n_q, tall) for j in range(0, n_k, wide))
    met = [allowed[i : i + tall, j : j + wide] for i, j in corners]
    assert check(FORWARD, n_q, n_k, mask, True) == sum(tile.size for tile in met if tile.any())


@pytest.mark.slow
@given(n_q=st.integers(1, 60), more=st.integers(0, 30), mask=st.sampled_from([None, "causal", "window:3"]))
def test_drawn_sizes(n_q: int, more: int, mask: str | None) -> None:
    check(FORWARD, n_q, n_q + more * (mask != "window:3"), mask)  # behind a window keys have no query


def test_what_takes_no_bias_is_said() -> None:
    dims = {"n_q": 64, "n_k": 64, "d_k": 16, "d_v": 16}
    program = biased(get(FORWARD).in_dims(dims).program)
    with pytest.raises(UsageError, match="flash2-forward takes a bias already"):
        biased(program)
    with pytest.raises(UsageError, match="matmul-tiled makes no scores"):
        biased(get("matmul-tiled").program)
    with pytest.raises(UsageError, match="flash2-latent adds up several products"):
        biased(get("flash2-latent").program)
    sizes = {**dims, **HOPPER}
    with pytest.raises(UsageError, match="no softcap"):
        gluon(program, sizes, softcap=2.0)
    with pytest.raises(UsageError, match="no heads that share keys"):
        triton(program, sizes, shared=2)
    stored = biased(get("scores-stored-resident").in_dims(dims).program)
    with pytest.raises(UsageError, match="takes no bias; take --target triton"):
        gluon(stored, {**dims, "a": 128, "b": 64, "c": 16, "e": 32})
