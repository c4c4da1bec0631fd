"""The references on scores whose exponentials no float64 holds: against exact decimal arithmetic."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given, strategies as st

import pebblesim as ps
import pebblesim.schedules  # registers them
from pebblesim.core.errors import UsageError
from pebblesim.language.numbers import numbers
from pebblesim.language.problems import PROBLEMS, problem
from pebblesim.language.registry import SCHEDULES, get

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


def times(factor: Decimal, a: Matrix) -> Matrix:
    return [[factor * entry for entry in row] for row in a]


def exactly(name: str, arrays: dict[str, Any], allowed: Any, scale: Decimal = Decimal(1)) -> dict[str, Matrix]:
    """Outputs of a softmax problem and what a forward pass keeps, from the definitions, in 60 digits.

    It is the scores that are scaled, and by the chain rule dS.
    """
    x = {key: [[Decimal(float(entry)) for entry in row] for row in array] for key, array in arrays.items()}
    if name.startswith("projected-"):
        x |= {of: product(x[a], x[f"W_{of}"]) for of, a in (("Q", "A1"), ("K", "A2"), ("V", "A3"))}
    elif name == "backward":
        x |= {"Q": product(x["A1"], x["X"]), "K": x["A2"], "V": product(x["A3"], x["Y"])}
    Q, K, V = x["Q"], x["K"], x["V"]
    E = [
        [s.exp() if may else Decimal(0) for s, may in zip(*rows, strict=True)]
        for rows in zip(times(scale, product(Q, transpose(K))), allowed, strict=True)
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
        dS = [
            [scale * p * (dp - v_i) for p, dp in zip(ps, dps, strict=True)]
            for ps, dps, v_i in zip(P, dP, v, strict=True)
        ]
        out |= {"dQ": product(dS, K), "dK": product(transpose(dS), Q), "dV": product(transpose(P), x["dO"])}
        if name == "backward":
            out["g"] = product(transpose(x["A1"]), out["dQ"])
    return out


@pytest.mark.parametrize("name", SOFTMAX)
@given(
    sizes=SIZES,
    seed=st.integers(0, 99),
    large=st.sampled_from([1, 64, 4096]),
    scale=st.sampled_from([1, -0.5, 3.0, "1/sqrt(d_k)"]),
    data=st.data(),
)
def test_references_are_right_for_scores_of_any_size(
    name: str, sizes: dict[str, int], seed: int, large: int, scale: float | str, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    solves = problem(name)
    inputs = {
        key: rng.integers(-9, 10, [sizes[dim] for dim in shape]) / 8  # scores are exact in float64
        for key, shape in solves.inputs.items()
    }
    inputs["A1" if "A1" in inputs else "Q"] *= large  # scores of up to some 10^4
    allowed = data.draw(st.none() | strategies.allowed_pairs(sizes["n"]))
    with localcontext(prec=60):
        factor = 1 / Decimal(sizes["d"]).sqrt() if isinstance(scale, str) else Decimal(scale)
        expected = exactly(name, inputs, np.ones((sizes["n"],) * 2, bool) if allowed is None else allowed, factor)
    reference = solves.reference(inputs, allowed, scale)
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


@pytest.mark.one_in(2)
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


SCALED = {name: each for name, each in SCHEDULES.items() if each.problem.scaled[0]}


@strategies.every(SCALED, "name", of=8)
@given(
    size=st.integers(1, 3),
    masked=st.booleans(),
    kind=st.sampled_from([np.float64, np.float32, np.int64]),
    scale=st.sampled_from([0.25, -1.5, "1/sqrt(d_k)"]),
)
@strategies.draws(2, 30)
def test_schedules_scale_their_scores(name: str, size: int, masked: bool, kind: Any, scale: float | str) -> None:
    """Against the reference, which the test above holds against exact arithmetic."""
    solves, masked = get(name).problem, masked and get(name).maskable
    rng = np.random.default_rng(size)
    inputs: dict[str, Any] = {
        key: rng.integers(-1, 2, [size] * len(shape)).astype(kind) for key, shape in solves.inputs.items()
    }
    allowed = np.tril(np.ones((size, size), bool)) if masked else None
    expected = solves.reference(inputs, allowed, scale)
    inputs |= {key: expected[key].astype(np.float32 if kind is np.float32 else np.float64) for key in get(name).kept}
    sizes = dict.fromkeys(solves.dims, size)
    found = ps.numbers(name, M=10**6, inputs=inputs, mask="causal" if masked else None, scale=scale, **sizes)
    close = 1e-10 if kind is not np.float32 else 3e-4
    for key, value in found.items():
        assert value.dtype == (np.float32 if kind is np.float32 else np.float64)
        largest = float(np.abs(expected[key]).max(where=np.isfinite(expected[key]), initial=1.0))
        np.testing.assert_allclose(value, expected[key], rtol=0, atol=close * largest, err_msg=key)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "masked", "sign"),
    [
        pytest.param(
            name,
            masked,
            sign,
            marks=[pytest.mark.slow]
            * ((masked, sign) != ((True, -1) if number % 2 and get(name).maskable else (False, 1))),
        )
        for number, name in enumerate(SCALED)
        for masked in (False, True)
        for sign in (1, -1)
        if get(name).maskable or not masked
    ],
)
def test_schedules_are_right_for_large_scores_or_say_that_they_cannot(name: str, masked: bool, sign: int) -> None:
    """Scores of ±10^4: a schedule without maxima of rows refuses; none is wrong without a word."""
    schedule, solves = get(name), get(name).problem
    rng = np.random.default_rng(5)
    inputs: dict[str, Any] = {key: rng.random([4] * len(shape)) + 0.5 for key, shape in solves.inputs.items()}
    inputs[solves.scaled[0][0]] *= sign
    allowed = np.tril(np.ones((4, 4), bool)) if masked else None
    sizes: dict[str, Any] = dict.fromkeys(solves.dims, 4)
    expected = solves.reference(inputs, allowed, 5e3)
    given = inputs | {key: expected[key] for key in schedule.kept}
    try:
        found = ps.numbers(schedule, M=10**6, inputs=given, mask="causal" if masked else None, scale=5e3, **sizes)
    except UsageError as refusal:
        assert not {"rowmax", "L"} & set(schedule.kept)
        assert "maximum" in str(refusal) and "rowmax" not in ps.show(schedule)
        return
    for key, value in found.items():
        largest = float(np.abs(expected[key]).max(where=np.isfinite(expected[key]), initial=1.0))
        np.testing.assert_allclose(value, expected[key], rtol=0, atol=1e-8 * largest, err_msg=key)


def test_one_query_of_large_scores_by_hand() -> None:
    """Scores 10^4, 10^4 - log 3 and -10^4: weights 3/4, 1/4 and 0."""
    K = np.array([[10.0], [10 - np.log(3) / 1000], [-10.0]])
    V = np.array([[4.0], [8.0], [1e9]])
    inputs = {"Q": np.array([[2.0]]), "K": K, "V": V}
    for scale in (500, 500.0, np.float64(500)):
        found = ps.numbers("flash2-forward", n_q=1, n_k=3, d=1, M=50, inputs=inputs, scale=scale)
        np.testing.assert_allclose(found["O"], [[3 / 4 * 4 + 1 / 4 * 8]], rtol=1e-9)
        np.testing.assert_allclose(found["L"], [1e4 + np.log(4 / 3)], rtol=1e-12)


def test_the_scale_of_practice_has_a_name() -> None:
    """d_k words in a row of queries: of latent attention those of both of its parts."""
    for name, dims, width in (
        ("forward", {"n_q": 2, "n_k": 3, "d_k": 9, "d_v": 4}, 9),
        ("backward", {"n": 2, "d": 16}, 16),
        ("projected-forward", {"n_q": 2, "n_k": 3, "d": 5, "d_k": 4, "d_v": 7}, 4),
        ("forward-latent", {"n_q": 2, "n_k": 3, "d_v": 20, "d_r": 5}, 25),
    ):
        solves = problem(name).in_dims(dims)
        assert {solves.factor(scale, dims) for scale in ("1/sqrt(d_k)", "1/√d")} == {width**-0.5}


@pytest.mark.parametrize(
    ("name", "scale", "says"),
    [
        ("forward", "1/d", "scale = '1/d' was given; it is a finite number, or 1/sqrt"),
        ("forward", float("nan"), "scale = nan was given"),
        ("forward", None, "scale = None was given"),
        ("matmul", 2, "problem 'matmul' has no scores that could be multiplied; leave the scale out"),
        ("linear", "1/sqrt(d_k)", "problem 'linear' has no scores that could be multiplied"),
    ],
)
def test_what_is_no_scale(name: str, scale: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        problem(name).factor(scale, {"n": 2, "d": 3})
