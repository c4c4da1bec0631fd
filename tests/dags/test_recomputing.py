"""Orders that compute values again: places against all orders of operands, words against the least I/O."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from oracle_games import least_io
from strategies import draws

import pebblesim as ps
from pebblesim.dags.orders import Task
from pebblesim.dags.recomputing import in_strips, recomputing
from pebblesim.game.referee import referee
from pebblesim.graphs.cdag import Cdag


def unfolded(graph: Cdag) -> list[int]:
    """For each vertex the places in which it is computed from the inputs if nothing is kept, by the best order."""
    inputs, places = set(graph.inputs.tolist()), list[int]()
    for v in range(graph.vertices):
        operands = sorted(set(graph.predecessors(v).tolist()))
        orders = permutations(places[u] for u in operands)
        best = min(max([0, *(need + j for j, need in enumerate(order))]) for order in orders)
        places.append(1 if v in inputs else max(best, len(operands) + 1))
    return places


@st.composite
def graphs(draw: st.DrawFn) -> Cdag:
    """Up to nine vertices; one or two inputs, on which the others depend."""
    n, inputs = draw(st.integers(3, 9)), draw(st.integers(1, 2))
    edges = {(u, v) for v in range(inputs, n) for u in draw(st.sets(st.integers(0, v - 1), min_size=1, max_size=3))}
    return Cdag.from_edges(n, sorted(edges | {(u, inputs) for u in range(inputs)}))


@pytest.mark.one_in(4)
@given(graph=graphs(), more=st.integers(0, 2))
@draws(15, 2_000)
def test_orders_are_games_and_move_no_more_than_what_must_be_kept(graph: Cdag, more: int) -> None:
    M = Task(graph, 2**40, "hong-kung").least_M + more
    task, labels = Task(graph, M, "hong-kung"), unfolded(graph)
    used = {int(v) for v in graph.preds} & set(graph.inputs.tolist())
    for _, vertices in recomputing(task, 10_000):
        order = next(task.steps_of(vertices))[1]
        computed = set(graph.inputs.tolist())
        for v in vertices.tolist():
            assert set(graph.predecessors(v).tolist()) <= computed
            computed.add(v)
        assert set(graph.outputs.tolist()) <= computed
        game = referee(graph, M, [task.moves(order, 1.0, 10_000)], "hong-kung")
        least = least_io(graph, M, "hong-kung")
        assert least is not None and game.complete and game.io >= least
        if len(used) == 1 and max(labels) < M:
            assert game.io == 1 + len(graph.outputs)
            break


def triangular(n: int, operands: int, seed: int) -> Cdag:
    """Each unknown of some drawn before it."""
    random = np.random.default_rng(seed)
    edges = {(int(u), v) for v in range(1, n) for u in random.integers(0, v, operands)}
    return Cdag.from_edges(n, sorted(edges))


def test_a_cache_larger_than_the_largest_label_needs_the_compulsory_words_alone() -> None:
    graph = triangular(90, 3, 5)
    labels, outputs = unfolded(graph), len(graph.outputs)
    enough = max(labels) + 1  # the input has a place for itself
    assert ps.pebble(graph, M=enough, seconds=0, steps=2).io == outputs + 1
    once = ps.pebble(graph, M=enough, rules="no-recompute", seconds=0, steps=2)
    assert once.io > 2 * outputs and once.again == 0
    fewer = ps.pebble(graph, M=enough - 3, seconds=0, steps=2)
    assert outputs + 1 <= fewer.io < ps.pebble(graph, M=enough - 3, rules="no-recompute", seconds=0, steps=2).io


def test_there_is_no_such_order_with_many_inputs_or_too_few_steps() -> None:
    graph = triangular(150, 3, 5)
    task = Task(graph, 16, "hong-kung")
    assert [name for name, _ in recomputing(task, 1_000_000)] == ["computing again"]
    assert list(recomputing(task, 149)) == []
    fft = Task(ps.generate("fft", n=16), 16, "hong-kung")
    assert list(recomputing(fft, 1_000_000)) == []


def grid(side: int) -> Cdag:
    edges = [(side * i + j, side * i + j + step) for i in range(side) for j in range(side) for step in (1, side)]
    return Cdag.from_edges(side * side, [(u, v) for u, v in edges if v < side * side and (v - u > 1 or v % side)])


@pytest.mark.one_in(3)
def test_grids_are_swept_in_strips_as_wide_as_the_cache() -> None:
    """By hand: with M - 2 columns to a strip, each column at its edge is written and read once."""
    for side, M in ((12, 8), (11, 5)):
        game = ps.pebble(grid(side), M=M, rules="no-recompute", seconds=0, steps=1)
        assert game.io <= 2 + 2 * side * (-(-side // (M - 2)) - 1)


def test_strips_begun_again_are_games_and_save_the_words_of_their_beginnings() -> None:
    """At M = 8 strips of a grid are 6 wide: 4 of them, so 3 x 24 values crossed; now each from the seventh row on."""
    graph = grid(24)
    task = Task(graph, 8, "hong-kung")
    words = []
    for _, vertices in in_strips(task):
        computed = {0}
        for v in vertices.tolist():
            assert set(graph.predecessors(v).tolist()) <= computed
            computed.add(v)
        assert len(computed) == graph.vertices < len(vertices)
        order = next(task.steps_of(vertices))[1]
        game = referee(graph, 8, [task.moves(order, 1.0, 10_000)], "hong-kung")
        assert game.complete
        words.append(game.io)
    # The input is read for each strip, the output is written, and 3 x 18 values cross, but for one.
    assert min(words) <= 4 + 1 + 2 * 3 * 18 and ps.pebble(graph, M=8, seconds=0, steps=1).io <= min(words)


@given(graph=graphs(), more=st.integers(0, 2))
@draws(20, 1_000)
def test_strips_of_any_graph_compute_operands_first(graph: Cdag, more: int) -> None:
    task = Task(graph, Task(graph, 2**40, "hong-kung").least_M + more, "hong-kung")
    inputs = set(graph.inputs.tolist())
    for _, vertices in in_strips(task):
        computed = set(inputs)
        for v in vertices.tolist():
            assert set(graph.predecessors(v).tolist()) <= computed
            computed.add(v)
        assert set(task.topological.tolist()) <= computed
