"""The bound by open paths, with recomputation: its lines against all paths, and its words against the least I/O."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st
from oracle_games import least_io
from strategies import draws

import pebblesim as ps
from pebblesim.core.errors import Infeasible
from pebblesim.dags.bounds import lower_bounds
from pebblesim.dags.open_paths import Lines, Part, words
from pebblesim.dags.orders import Task
from pebblesim.dags.task_data import TaskData
from pebblesim.game.moves import READ, unpack
from pebblesim.graphs.cdag import Cdag


def square(side: int) -> Part:
    """Values of a grid, each of its upper and left one; those of the first row and column have others elsewhere."""
    at = {(i, j): i * side + j for i in range(side) for j in range(side)}
    inside = [[at[u] for u in ((i - 1, j), (i, j - 1)) if u in at] for i, j in at]
    return Part(inside, [i == 0 or j == 0 for i, j in at])


def grid(side: int) -> Cdag:
    """A grid whose first row and column are inputs."""
    at = {(i, j): i * side + j for i in range(side) for j in range(side)}
    edges = [(at[u], v) for (i, j), v in at.items() if i and j for u in ((i - 1, j), (i, j - 1))]
    return Cdag.from_edges(side * side - 1, [(u - 1, v - 1) for u, v in edges])  # nothing uses the corner


def triangle(rows: int) -> Part:
    """A pyramid: each value of the two below it, and those of the base of others."""
    row_of = [row for row in range(rows) for _ in range(rows - row)]
    start = [row_of.index(row) for row in range(rows)]
    below = [[start[row - 1] + v - start[row] + more for more in (0, 1)] if row else [] for v, row in enumerate(row_of)]
    return Part(below, [row == 0 for row in row_of])


def test_lines_of_squares_and_pyramids() -> None:
    """A path to the value in row i and column j crosses i + 1 rows or j + 1 columns."""
    assert square(5).crossed() == [min(i, j) + 1 if i and j else 0 for i in range(5) for j in range(5)]
    # In a pyramid a path that turns at each step crosses half of the lines of either set.
    assert triangle(4).crossed() == [0, 0, 0, 0, 2, 2, 2, 2, 2, 3]
    assert [square(5).read(room) for room in (1, 2, 3, 4, 5)] == [4, 3, 2, 1, 0]
    assert [triangle(6).read(room) for room in (2, 3, 4)] == [2, 1, 0]


def test_a_path_that_comes_back_to_a_line_meets_it_once() -> None:
    assert Part([[], [0], [0], [1, 2]], [True, False, False, False]).crossed() == [0, 1, 1, 1]
    # The last vertex follows 0 in one set and 1 in the other: a path from either meets two lines of one set.
    assert Part([[], [], [0], [1], [2, 3]], [True, True, False, False, False]).crossed() == [0, 0, 1, 1, 2]


def test_a_line_before_is_not_met_again() -> None:
    """Vertex 2 follows 0, and 3 follows 1, which leads to 2, too: a path by way of 2 may have met the line of 1."""
    lines = Lines(Part([[], [], [0, 1], [1, 2]], [True, True, False, False]), min)
    assert lines.of == [0, 1, 0, 1]
    above = [0b1, 0b10, 0b111, 0b1111]
    assert [lines.met(1, 2, above), lines.met(0, 2, above), lines.met(2, 3, above)] == [True, False, False]


def fewest(part: Part, t: int) -> int:
    """The fewest, over all paths to a vertex, of disjoint paths from entries to them; Menger's theorem by a flow."""
    graph = nx.DiGraph([(u, v) for v, operands in enumerate(part.inside) for u in operands])
    graph.add_nodes_from(range(len(part.inside)))
    least = len(part.inside)
    for first in (v for v, is_entry in enumerate(part.entry) if is_entry):
        for path in nx.all_simple_paths(graph, first, t):
            split = nx.DiGraph()
            split.add_nodes_from(["from", "to"])
            for v, operands in enumerate(part.inside):
                split.add_edge((v, "in"), (v, "out"), capacity=1)
                split.add_edges_from(((u, "out"), (v, "in")) for u in operands)
                if part.entry[v]:
                    split.add_edge("from", (v, "in"))
                if v in path:
                    split.add_edge((v, "out"), "to")
            least = min(least, int(nx.maximum_flow_value(split, "from", "to")))
    return least


@st.composite
def parts(draw: st.DrawFn) -> Part:
    """Up to nine vertices with up to three operands each, which lie elsewhere in part."""
    inside, entry = list[list[int]](), list[bool]()
    for v in range(draw(st.integers(2, 9))):
        operands = draw(st.lists(st.integers(0, v - 1), max_size=3, unique=True)) if v else []
        inside.append(operands)
        entry.append(not operands or draw(st.integers(0, 3)) == 0)
    return Part(inside, entry)


@given(part=parts())
@draws(40, 2_000)
def test_every_path_meets_as_many_lines(part: Part) -> None:
    for v, lines in enumerate(part.crossed()):
        assert lines == 0 if part.entry[v] else lines <= fewest(part, v)


@st.composite
def graphs(draw: st.DrawFn) -> Cdag:
    """Up to nine vertices; most have two operands, near each other."""
    n = draw(st.integers(5, 9))
    edges = set()
    for v in range(2, n):
        near = st.integers(max(0, v - 4), v - 1)
        edges |= {(u, v) for u in draw(st.lists(near, max_size=2, unique=True))}
    return Cdag.from_edges(n, sorted(edges or {(0, 1)}))


@given(graph=graphs(), rules=st.sampled_from(["hong-kung", "replace"]), more=st.integers(0, 1))
@draws(15, 1_000)
def test_no_bound_exceeds_the_least_of_all_games(graph: Cdag, rules: str, more: int) -> None:
    try:
        M = Task(graph, 2**40, rules).least_M + more
        data = TaskData(Task(graph, M, rules), M)
    except Infeasible:
        return
    least = least_io(graph, M, rules)
    assert least is not None and data.words + words(data, 10.0) <= least


@pytest.mark.parametrize(
    ("graph", "M", "beyond"),
    [
        (grid(4), 3, 1),
        (grid(4), 4, 0),
        (ps.generate("pyramid", rows=5), 3, 1),
        (ps.generate("pyramid", rows=6), 6, 0),
    ],
)
def test_no_more_than_the_optimum_where_it_bites(graph: Cdag, M: int, beyond: int) -> None:
    """By hand: values that are read cost two words each, but for the last one, which is written in any case."""
    data = TaskData(Task(graph, M, "hong-kung"), M)
    assert words(data, 1.0) == beyond
    assert data.words + beyond <= ps.optimum(graph, M=M).bound


@pytest.mark.parametrize("M", [3, 4, 6])
def test_games_read_as_many_values_of_every_part(M: int) -> None:
    """Each square of a grid, in games that a search finds: different values that are read."""
    graph, side = grid(13), 4
    game = ps.pebble(graph, M=M, seconds=0, steps=3)
    kinds, vertices = unpack(np.concatenate([game.moves]))
    read = {int(v) + 1 for v in vertices[kinds == READ]}
    asked = square(side).read(M - 1)
    for a in range(1, 13, side):
        for b in range(1, 13, side):
            own = {(a + i) * 13 + b + j for i in range(side) for j in range(side)}
            assert len(read & own) >= asked
    assert asked > 0 or M > 4


def test_a_value_that_is_an_output_costs_one_word_more_and_no_work_proves_nothing() -> None:
    graph = grid(12)
    data = TaskData(Task(graph, 4, "hong-kung"), 4)
    every = Cdag.from_edges(graph.vertices, graph.pairs(), graph.inputs, range(23, graph.vertices))
    outputs = TaskData(Task(every, 4, "hong-kung"), 4)
    assert 0 < words(outputs, 1.0) == (words(data, 1.0) + 1) // 2
    assert words(data, 0.0) == 0


def test_paths_are_among_the_bounds_of_a_graph() -> None:
    of = {
        rules: {bound.name: bound for bound in lower_bounds(grid(12), 3, rules, 0.1)}["paths"]
        for rules in ("hong-kung", "replace", "partial")
    }
    assert of["hong-kung"].value == of["replace"].value > 23
    assert of["partial"].value == 0 and "holds only under" in of["partial"].why_not
