"""The references on scores whose exponentials no float64 holds: against exact decimal arithmetic."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given, strategies as st

import pebblesim.schedules  # noqa: F401 # registers them
from pebblesim.errors import UsageError
from pebblesim.language.problems import PROBLEMS, problem
from pebblesim.language.registry import SCHEDULES, get
from pebblesim.readings.numbers import numbers

SIZES = st.fixed_dictionaries({"n": st.integers(1, 4), "d": st.integers(1, 3)})
SOFTMAX = ("forward", "backward", "backward-qkv", "projected-forward", "projected-backward-qkv")
LARGEST = Decimal(float(np.finfo(np.float64).max))

Matrix = list[list[Decimal]]


def product(a: Matrix, b: Matrix) -> Matrix:
    return [
        [sum((x * y for x, y in zip(row, column, strict=True)), Decimal(0)) for column in zip(*b, strict=True)]
        for row in a
    ]


def transpose(a: Matrix) -> Matrix:
    return [list(row) for row in zip(*a, strict=True)]


def exactly(name: str, arrays: dict[str, Any], allowed: Any) -> dict[str, Matrix]:
    """Outputs of a softmax problem and what a forward pass keeps, from the definitions, in 60 digits."""
    x = {key: [[Decimal(float(entry)) for entry in row] for row in array] for key, array in arrays.items()}
    if name.startswith("projected-"):
        x |= {of: product(x[a], x[f"W_{of}"]) for of, a in (("Q", "A1"), ("K", "A2"), ("V", "A3"))}
    elif name == "backward":
        x |= {"Q": product(x["A1"], x["X"]), "K": x["A2"], "V": product(x["A3"], x["Y"])}
    Q, K, V = x["Q"], x["K"], x["V"]
    E = [
        [s.exp() if may else Decimal(0) for s, may in zip(*rows, strict=True)]
        for rows in zip(product(Q, transpose(K)), allowed, strict=True)
    ]
    sums = [sum(row, Decimal(0)) for row in E]
    P = [[e / (total or 1) for e in row] for row, total in zip(E, sums, strict=True)]
    out = {
        "O": product(P, V),
        "P": P,
        "l": [[total] for total in sums],
        "L": [[total.ln() if total else Decimal("-Infinity")] for total in sums],
    }
    if "dO" in x:
        dP = product(x["dO"], transpose(V))
        v = [sum((a * b for a, b in zip(*rows, strict=True)), Decimal(0)) for rows in zip(P, dP, strict=True)]
        dS = [[p * (dp - v_i) for p, dp in zip(ps, dps, strict=True)] for ps, dps, v_i in zip(P, dP, v, strict=True)]
        out |= {"dQ": product(dS, K), "dK": product(transpose(dS), Q), "dV": product(transpose(P), x["dO"])}
        if name == "backward":
            out["g"] = product(transpose(x["A1"]), out["dQ"])
    return out


@pytest.mark.parametrize("name", SOFTMAX)
@given(sizes=SIZES, seed=st.integers(0, 99), scale=st.sampled_from([1, 64, 4096]), data=st.data())
def test_references_are_right_for_scores_of_any_size(
    name: str, sizes: dict[str, int], seed: int, scale: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    solves = problem(name)
    inputs = {
        key: rng.integers(-9, 10, [sizes[dim] for dim in shape]) / 8  # scores are exact in float64
        for key, shape in solves.inputs.items()
    }
    inputs["A1" if "A1" in inputs else "Q"] *= scale  # scores of up to some 10^4
    allowed = data.draw(st.none() | strategies.allowed_pairs(sizes["n"]))
    with localcontext(prec=60):
        expected = exactly(name, inputs, np.ones((sizes["n"],) * 2, bool) if allowed is None else allowed)
    reference = solves.reference(inputs, allowed)
    for key in expected.keys() & reference.keys():
        meant = np.array(
            [
                [float(entry) if entry.is_infinite() or abs(entry) <= LARGEST else np.inf for entry in row]
                for row in expected[key]
            ]
        )
        tolerance = 1e-12 * max(1.0, float(np.abs(meant[np.isfinite(meant)]).max(initial=0.0)))
        np.testing.assert_allclose(
            reference[key],
            meant.reshape(reference[key].shape),
            rtol=1e-10,
            atol=0 if key == "l" else tolerance,
            err_msg=key,
        )


@pytest.mark.parametrize("score", [-1e4, -40.0, 0.0, 40.0, 1e4])
def test_the_sigmoid_of_any_score(score: float) -> None:
    """Its value and its slope to the last digits, where 1 + exp(-z) overflows and 1 - sigmoid(z) cancels."""
    with localcontext(prec=60):
        value = 1 / (1 + Decimal(-score).exp())
        slope = value * (1 / (1 + Decimal(score).exp()))
    one, z = np.ones((1, 1)), np.full((1, 1), score)
    outputs = problem("forward-sigmoid").reference({"Q": one, "K": z, "V": one})
    np.testing.assert_allclose(outputs["O"], [[float(value)]], rtol=1e-14)
    inputs = dict.fromkeys(("A2", "A3", "dO", "X", "Y"), one) | {"A1": z}
    expected = float(Decimal(score) * slope)
    np.testing.assert_allclose(problem("backward-sigmoid").reference(inputs)["g"], [[expected]], rtol=1e-14)


@pytest.mark.parametrize("name", PROBLEMS)
def test_integers_are_numbers(name: str) -> None:
    sizes = dict.fromkeys(problem(name).dims, 3)
    rng = np.random.default_rng(1)
    inputs = {key: rng.integers(-2, 3, [sizes[s] for s in shape]) for key, shape in problem(name).inputs.items()}
    whole, real = (problem(name).reference({k: v.astype(t) for k, v in inputs.items()}) for t in (np.int8, np.float64))
    for key, value in real.items():
        assert whole[key].dtype == np.float64
        np.testing.assert_array_equal(whole[key], value)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_schedules_run_on_integers_as_on_the_same_reals(name: str) -> None:
    schedule = get(name)
    sizes = dict.fromkeys((*schedule.problem.dims, *schedule.blocks), 2)
    real = schedule.problem.random_inputs(sizes, kept=schedule.kept)
    real |= {key: np.round(2 * real[key]) for key in schedule.problem.inputs}
    real |= {key: np.ceil(np.abs(real[key])) for key in schedule.kept}
    whole = {key: value.astype(np.int16) for key, value in real.items()}
    mixed = {key: value.astype(np.float64 if at else np.int16) for at, (key, value) in enumerate(real.items())}
    expected = numbers(schedule.program, sizes, real)
    for arrays in (whole, mixed):
        for key, value in numbers(schedule.program, sizes, arrays).items():
            assert value.dtype == np.float64
            np.testing.assert_array_equal(value, expected[key])


def test_inputs_that_numbers_refuses() -> None:
    sizes, inputs = {"m": 1, "k": 1, "n": 1, "b": 1}, {"A": np.ones((1, 1)), "B": np.ones((1, 1))}
    program = get("matmul-tiled").program
    with pytest.raises(UsageError, match="matmul-tiled needs real numbers for input B, and got complex128"):
        numbers(program, sizes, {**inputs, "B": 1j * inputs["B"]})
    with pytest.raises(UsageError, match=r"needs input B of shape \(1, 1\), and got shape \(1, 2\)"):
        numbers(program, sizes, {**inputs, "B": np.ones((1, 2))})
    with pytest.raises(UsageError, match=r"needs input A of shape \(1, 1\), and got nothing"):
        numbers(program, sizes, {"B": inputs["B"]})
