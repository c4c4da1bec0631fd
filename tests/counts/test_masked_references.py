"""The references under a mask: against loops over the allowed pairs of each row, and against finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given, strategies as st

from pebblesim.catalogue.activation import ACTIVATIONS
from pebblesim.core.errors import UsageError
from pebblesim.language.problems import PROBLEMS, problem

SIZES = st.fixed_dictionaries({"n": st.integers(1, 6), "d": st.integers(1, 4)})
MASKABLE = [name for name, p in PROBLEMS.items() if p.maskable]


def attended(scores: Any, allowed: Any, values: Any, weigh: Callable[[list[float]], list[float]]) -> Any:
    """Each row's sum of the values that it may look at, with weights of the scores; one pair after the other."""
    out = [[0.0] * values.shape[1] for _ in scores]
    for i, row in enumerate(scores):
        seen = [j for j in range(len(row)) if allowed[i, j]]
        for j, weight in zip(seen, weigh([float(row[j]) for j in seen]), strict=True):
            for k in range(values.shape[1]):
                out[i][k] += weight * float(values[j, k])
    return np.array(out)


def softmax(scores: list[float]) -> list[float]:
    top = max(scores, default=0.0)
    weights = [math.exp(s - top) for s in scores]
    return [w / math.fsum(weights) for w in weights]


WEIGHTS: dict[str, Callable[[list[float]], list[float]]] = {
    "": softmax,
    "-relu": lambda scores: [max(s, 0.0) for s in scores],
    "-sigmoid": lambda scores: [1 / (1 + math.exp(-s)) for s in scores],
}


def output_of(name: str, x: Mapping[str, Any], allowed: Any) -> Any:
    """O of a problem from its inputs, by loops."""
    x = dict(x)
    if name.startswith("projected-"):
        x |= {"Q": x["A1"] @ x["W_Q"], "K": x["A2"] @ x["W_K"], "V": x["A3"] @ x["W_V"]}
    elif "C" in x:  # values are the first part of the keys
        x |= {"Q": np.hstack([x["Q_C"], x["Q_R"]]), "K": np.hstack([x["C"], x["R"]]), "V": x["C"]}
    elif "X" in x:
        x |= {"Q": x["A1"] @ x["X"], "K": x["A2"], "V": x["A3"] @ x["Y"]}
    activation = next((a for a in WEIGHTS if a and name.endswith(a)), "")
    return attended(x["Q"] @ x["K"].T, allowed, x["V"], WEIGHTS[activation])


@pytest.mark.parametrize("name", [name for name in MASKABLE if "O" in PROBLEMS[name].outputs])
@given(sizes=SIZES, seed=st.integers(0, 99), data=st.data())
def test_outputs_are_what_loops_over_allowed_pairs_give(
    name: str, sizes: dict[str, int], seed: int, data: st.DataObject
) -> None:
    inputs = problem(name).random_inputs(sizes, seed)
    allowed = data.draw(strategies.allowed_pairs(sizes["n"]))
    expected = output_of(name, inputs, allowed)
    np.testing.assert_allclose(problem(name).reference(inputs, allowed)["O"], expected, rtol=1e-10, atol=1e-13)


@given(sizes=SIZES, seed=st.integers(0, 99), data=st.data())
def test_what_the_forward_pass_keeps(sizes: dict[str, int], seed: int, data: st.DataObject) -> None:
    allowed = data.draw(strategies.allowed_pairs(sizes["n"]))
    inputs = problem("forward").random_inputs(sizes, seed)
    kept = problem("forward").reference(inputs, allowed)
    scores = inputs["Q"] @ inputs["K"].T
    for i in range(sizes["n"]):
        row = [float(scores[i, j]) for j in range(sizes["n"]) if allowed[i, j]]
        l, m = math.fsum(map(math.exp, row)), max(row, default=-math.inf)
        assert kept["l"][i] == pytest.approx(l)
        assert kept["m"][i] == m
        assert kept["l_m"][i] == pytest.approx(math.fsum(math.exp(s - m) for s in row))
        assert kept["L"][i] == (pytest.approx(math.log(l)) if row else -math.inf)
        assert kept["P"][i][allowed[i]] == pytest.approx(softmax(row))
        assert not kept["P"][i][~allowed[i]].any()
    for name in ("backward", "backward-qkv"):
        names = tuple(problem(name).kept)
        own = problem(name).random_inputs(sizes, seed, names, allowed)
        again = problem(name).reference(own, allowed)
        assert all(np.array_equal(own[key], again[key]) for key in names)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "gradient", "of"),
    [
        *((name, f"d{of}", of) for name in ("backward-qkv", "projected-backward-qkv") for of in "QKV"),
        *((f"backward{activation}", "g", "X") for activation in ("", *(f"-{a}" for a in ACTIVATIONS))),
    ],
)
@given(sizes=st.fixed_dictionaries({"n": st.integers(1, 4), "d": st.integers(1, 3)}), data=st.data())
def test_gradients_are_finite_differences(
    name: str, gradient: str, of: str, sizes: dict[str, int], data: st.DataObject
) -> None:
    """The gradients are those of L = Σ dO ∘ O, whose outputs come from the loops."""
    allowed = data.draw(strategies.allowed_pairs(sizes["n"]))
    inputs = problem(name).random_inputs(sizes, 3)
    analytic = problem(name).reference(inputs, allowed)[gradient]
    if name.startswith("projected-"):
        inputs |= {
            "Q": inputs["A1"] @ inputs["W_Q"],
            "K": inputs["A2"] @ inputs["W_K"],
            "V": inputs["A3"] @ inputs["W_V"],
        }
    plain = name.removeprefix("projected-")

    def loss(change: Any) -> float:
        return float((inputs["dO"] * output_of(plain, inputs | {of: inputs[of] + change}, allowed)).sum())

    step = 1e-6
    for index in np.ndindex(*analytic.shape):
        change = np.zeros_like(analytic)
        change[index] = step
        assert (loss(change) - loss(-change)) / (2 * step) == pytest.approx(analytic[index], rel=1e-5, abs=1e-7)
    if gradient == "dQ":
        assert not analytic[~allowed.any(axis=1)].any()
    elif gradient in ("dK", "dV"):
        assert not analytic[~allowed.any(axis=0)].any()


@pytest.mark.parametrize("name", MASKABLE)
def test_all_pairs_allowed_is_no_mask(name: str) -> None:
    inputs = problem(name).random_inputs({"n": 7, "d": 3}, 1)
    dense, masked = problem(name).reference(inputs), problem(name).reference(inputs, np.ones((7, 7), bool))
    assert all(np.array_equal(dense[key], masked[key]) for key in dense)


def test_masks_that_are_refused() -> None:
    inputs = problem("forward").random_inputs({"n": 3, "d": 2})
    for wrong in (np.ones((3, 2), bool), np.ones((3, 3)), [[True] * 3] * 3):
        with pytest.raises(UsageError, match=r"booleans of shape \(3, 3\), one for each pair; got"):
            problem("forward").reference(inputs, wrong)
    for name in ("linear", "matmul"):
        with pytest.raises(UsageError, match=f"problem '{name}' has no pairs"):
            problem(name).reference(
                problem(name).random_inputs({"n": 3, "d": 2, "m": 3, "k": 2}), np.ones((3, 3), bool)
            )
