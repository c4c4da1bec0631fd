"""Bounds that hold with recomputation: windows between fronts, and parts that get operands from others for nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from oracle_games import least_io
from strategies import draws

import pebblesim as ps
from pebblesim.core.errors import Infeasible
from pebblesim.dags import parts
from pebblesim.dags.bounds import lower_bounds
from pebblesim.dags.orders import Task
from pebblesim.dags.task_data import TaskData
from pebblesim.dags.windows import words
from pebblesim.graphs.cdag import Cdag

RULES = ("hong-kung", "no-recompute")


def rounds(inputs: int, number: int) -> Cdag:
    """A sum to which each input is added once a round."""
    steps = inputs * number
    edges = [(step % inputs, inputs + step) for step in range(steps)]
    edges += [(inputs + step - 1, inputs + step) for step in range(1, steps)]
    return Cdag.from_edges(inputs + steps, edges)


@pytest.mark.parametrize(("inputs", "number", "M"), [(6, 4, 3), (6, 4, 5), (20, 7, 3), (5, 1, 3), (40, 10, 32)])
def test_each_round_reads_what_the_cache_did_not_hold(inputs: int, number: int, M: int) -> None:
    """With a sum at most M - 1 inputs are red, of which its own is one: rounds begin with the last term of others."""
    graph = rounds(inputs, number)
    whole, rest = divmod(inputs * (number - 1), inputs - 1)
    least = inputs + whole * max(0, inputs - M + 1) + max(0, rest + 1 - M + 1) + 1
    assert words(TaskData(Task(graph, M, "hong-kung"), M), again=True) == least
    assert words(TaskData(Task(graph, M, "no-recompute"), M), again=False) >= least


def test_windows_are_among_the_bounds_of_a_graph() -> None:
    graph = rounds(6, 4)
    of = {rules: {bound.name: bound for bound in lower_bounds(graph, 3, rules, 0.1)} for rules in (*RULES, "partial")}
    assert of["hong-kung"]["windows"].value == 21 <= of["no-recompute"]["windows"].value == ps.optimum(graph, M=3).io
    assert of["partial"]["windows"].value == 0 and "it holds only under" in of["partial"]["windows"].why_not


@st.composite
def small(draw: st.DrawFn) -> Cdag:
    """Inputs that are used in turn, or any graph; some sources are no inputs, some outputs have uses."""
    n = draw(st.integers(3, 8))
    if draw(st.booleans()):
        first = draw(st.integers(1, 3))
        edges = {(draw(st.integers(0, first - 1)), v) for v in range(first, n)}
        edges |= {(v - 1, v) for v in range(first + 1, n)}
    else:
        edges = set()
    pair = st.integers(1, n - 1).flatmap(lambda v: st.tuples(st.integers(0, v - 1), st.just(v)))
    edges |= draw(st.sets(pair, min_size=1, max_size=4))
    sources = sorted(set(range(n)) - {v for _, v in edges})
    sinks = sorted(set(range(n)) - {u for u, _ in edges})
    inputs = sources if draw(st.booleans()) else sources[1:]
    return Cdag.from_edges(
        n, sorted(edges), inputs, sorted({*sinks, *draw(st.sets(st.integers(0, n - 1), max_size=1))})
    )


@given(graph=small(), rules=st.sampled_from(RULES), M=st.integers(2, 5), sizes=st.sampled_from([(2,), (3, 2), (4,)]))
@draws(25, 2_000)
def test_no_bound_exceeds_the_least_of_all_games(graph: Cdag, rules: str, M: int, sizes: tuple[int, ...]) -> None:
    try:
        data = TaskData(Task(graph, M, rules), M)
    except Infeasible:
        return
    least = least_io(graph, M, rules)
    assert least is not None
    again = rules == "hong-kung"
    assert words(data, again) <= least
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "SIZES", sizes)
        patch.setattr(parts, "MOST_STEPS", sizes[0])
        patch.setattr(parts, "LEVELS", sizes)
        assert data.words + parts.words(data, 10.0, again) <= least


def test_parts_of_a_grid_cost_words_with_recomputation() -> None:
    """A square of 4 x 4 values, each of its left and upper one, needs 5 pebbles, or words."""
    edges = [(4 * i + j, 4 * i + j + 1) for i in range(4) for j in range(3)]
    edges += [(4 * i + j, 4 * i + j + 4) for i in range(3) for j in range(4)]
    square = Cdag.from_edges(16, edges, [], [15])
    assert [parts.excess(square, M, 10**7, "hong-kung")[0] for M in (4, 5)] == [2, 0]
    assert [ps.optimum(square, M=M).io - 1 for M in (4, 5)] == [2, 0]


@pytest.mark.one_in(2)
def test_parts_of_a_large_graph_with_recomputation() -> None:
    data = TaskData(Task(ps.generate("fft", n=64), 3, "hong-kung"), 3)
    assert data.words == 128
    assert 128 + parts.words(data, 0.3, again=True) >= 256
