"""benchmarks/pair_bias.py and docs/bias.md: the problem, its schedules, and lower bounds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from checkout import ROOT
from hypothesis import given, strategies as st
from strategies import draws

import pebblesim as ps
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import SCHEDULES

sys.path.append(str(ROOT / "benchmarks"))
import pair_bias

PAGE = ROOT / "docs" / "bias.md"
NAMES = dict.fromkeys((2, 3), tuple[str, ...]())
FORWARD = dict(NAMES)


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    with PROBLEMS.temporary(), SCHEDULES.temporary():
        NAMES.update({rows: pair_bias.register(rows) for rows in NAMES})
        FORWARD.update({rows: pair_bias.register_forward(rows) for rows in FORWARD})
        yield


def consistent(rows: int, n: int, d: int, seed: int = 0) -> dict[str, Any]:
    """Random inputs whose O and L are those of a forward pass."""
    draw = np.random.default_rng(seed)
    x = {f"{name}{r}": draw.normal(size=(n, d)) for r in range(rows) for name in ("Q", "K", "V", "dO")}
    x["B"] = draw.normal(size=(n, n))
    return x | of_forward(x, rows)


def of_forward(x: dict[str, Any], rows: int) -> dict[str, Any]:
    """O and L of each row, one query after another."""
    made = {}
    for r in range(rows):
        scores = np.array([[q @ k for k in x[f"K{r}"]] for q in x[f"Q{r}"]]) + x["B"]
        made[f"L{r}"] = np.array([np.logaddexp.reduce(row) for row in scores])
        made[f"O{r}"] = np.exp(scores - made[f"L{r}"][:, None]) @ x[f"V{r}"]
    return made


@pytest.mark.parametrize("name", ["B", "Q1", "K0", "V1"])
def test_the_reference_is_a_gradient(name: str) -> None:
    x = consistent(2, 3, 2)
    true = pair_bias.reference(2, x)[f"d{name}"]

    def loss(at: tuple[int, int], step: float) -> float:
        moved = {each: value.copy() for each, value in x.items()}
        moved[name][at] += step
        made = of_forward(moved, 2)
        return sum(float((made[f"O{r}"] * x[f"dO{r}"]).sum()) for r in range(2))

    for at in np.ndindex(true.shape):
        assert abs((loss(at, 1e-5) - loss(at, -1e-5)) / 2e-5 - true[at]) < 1e-8


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("n", "d", "M"), [(1, 1, 40), (5, 3, 70), (7, 2, 90)])
@pytest.mark.parametrize("rows", NAMES)
def test_schedules_are_played_and_compute_the_reference(rows: int, n: int, d: int, M: int) -> None:
    x = consistent(rows, n, d)
    outputs = {name: value for name, value in of_forward(x, rows).items() if name.startswith("O")}
    for name in (*NAMES[rows], *FORWARD[rows]):
        forward = name.startswith("forward")
        true = outputs if forward else pair_bias.reference(rows, x)
        inputs = {each: x[each] for each in SCHEDULES[name].problem.inputs}
        made = ps.numbers(name, n=n, d=d, M=M, inputs=inputs)
        assert all(np.allclose(made[each], true[each], rtol=1e-10, atol=1e-12) for each in true)
        played = ps.play(name, n=n, d=d, M=M)  # raises where a move is not legal, or an output is missing
        assert played.io == ps.count(name, n=n, d=d, M=M).io >= bound(rows, n, d, M, forward)


def bound(rows: int, n: int, d: int, M: int, forward: bool = False) -> int:
    return max(pair_bias.bound_of_rows(rows, n, d, M, forward), pair_bias.bound_of_shared_bias(rows, n, d, M))


def up(a: int, b: int) -> int:
    return -(-a // b)


@pytest.mark.one_in(4)
@given(n=st.integers(1, 200), d=st.integers(1, 40), rows=st.sampled_from([2, 3]), spare=st.integers(0, 3000))
@draws(5, 300)
def test_words_are_those_of_the_page_and_no_fewer_than_the_bounds(n: int, d: int, rows: int, spare: int) -> None:
    for name in (*NAMES[rows], *FORWARD[rows]):
        forward = name.startswith("forward")
        counted = ps.count(name, n=n, d=d, M=8 * rows * (d + 3) + 20 + spare)
        of, blocks = int(name.split("-")[-2]) if "groups" in name else 0, counted.blocks
        if forward:
            words = rows * (2 * n * d + 2 * n * d * up(n, blocks["B_r"])) + up(rows, of) * n * n
        elif of:
            cut = up(n, blocks["B_c"])
            words = rows * (7 * n * d + n + (4 * n * d + 2 * n) * cut) + (3 * up(rows, of) - 1) * n * n
        elif "attention" in name:
            a, b = up(n, blocks["a"]), up(n, blocks["b"])
            words = rows * (9 * n * d + 3 * n + 4 * n * d * a + 4 * (n * d + n) * b) + (2 * rows + 2) * n * n
        else:
            a, b = up(n, blocks["a"]), up(n, blocks["b"])
            words = rows * (5 * n * d + n + 6 * n * d * a + (4 * n * d + 2 * n) * b) + 2 * n * n
        assert counted.io == words >= bound(rows, n, d, counted.M, forward)


@pytest.mark.parametrize("M", [pytest.param(5, marks=pytest.mark.slow), pytest.param(6, marks=pytest.mark.slow), 8])
def test_no_optimum_is_below_a_bound(M: int) -> None:
    forward = ps.optimum("pair-bias-forward-2", n=1, d=1, M=M)
    assert forward.proven and forward.io >= bound(2, 1, 1, M, forward=True)
    least = ps.optimum("pair-bias-2", n=1, d=1, M=M)
    assert least.proven and least.io >= bound(2, 1, 1, M)
    assert M != 8 or least.io == bound(2, 1, 1, M) == 20


def test_the_bound_of_the_shared_bias_in_whole_numbers() -> None:
    """2M (⌈R n²/X⌉ - 1) with X = max(3M, M^1.5/d), here where M^1.5 is whole, and as much where M is next to it."""
    assert pair_bias.bound_of_shared_bias(16, 384, 4, 4096) == 2 * 4096 * (up(16 * 384**2, 2**18 // 4) - 1)
    assert pair_bias.bound_of_shared_bias(16, 384, 64, 4096) == 2 * 4096 * (up(16 * 384**2, 3 * 4096) - 1)
    for M in (2, 3, 4095, 4097):
        most = 2 * M * (16 * 384**2 / max(3 * M, M**1.5 / 4))
        assert most - 4 * M <= pair_bias.bound_of_shared_bias(16, 384, 4, M) <= most


@pytest.mark.slow
def test_the_page_has_the_table() -> None:
    with PROBLEMS.temporary(), SCHEDULES.temporary():
        for forward, register in ((False, pair_bias.register), (True, pair_bias.register_forward)):
            made = pair_bias.lines(register(pair_bias.ROWS), forward, pair_bias.ROWS, **pair_bias.SIZES)
            assert "\n".join(made) in PAGE.read_text(encoding="utf-8")
