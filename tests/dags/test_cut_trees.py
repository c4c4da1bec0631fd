"""Trees of values that do not fit, with any choice of uses: the fewest values cut off, against games."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from oracle_games import least_io
from strategies import draws

import pebblesim as ps
from pebblesim.dags.orders import Task
from pebblesim.dags.task_data import TaskData
from pebblesim.dags.trees import cuts
from pebblesim.dags.trees_kernel import cut_off, grow
from pebblesim.graphs.cdag import Cdag


@st.composite
def graphs(draw: st.DrawFn) -> Cdag:
    """Up to nine vertices; most have two operands, near each other."""
    n = draw(st.integers(4, 9))
    edges = set()
    for v in range(1, n):
        near = st.integers(max(0, v - 5), v - 1)
        edges |= {(u, v) for u in draw(st.lists(near, max_size=2, unique=True))}
    sources = sorted({*range(n)} - {v for _, v in edges})
    inputs = sources[draw(st.integers(0, len(sources))) :]
    return Cdag.from_edges(n, sorted(edges or {(0, 1)}), inputs)


def operands_of(graph: Cdag) -> list[list[int]]:
    inputs = set(graph.inputs.tolist())
    return [[] if v in inputs else sorted({*graph.predecessors(v).tolist()}) for v in range(graph.vertices)]


def fewest(graph: Cdag, parent: list[int], M: int) -> int:
    """The fewest values that no longer hang on their use so that all labels are at most M, by trying all."""
    n, before = graph.vertices, operands_of(graph)
    root = [*range(n)]
    for v in reversed(range(n)):
        root[v] = root[parent[v]] if parent[v] >= 0 else v

    def fits(gone: tuple[int, ...]) -> bool:
        label = [0] * n
        for v in range(n):
            needs = [label[u] for u in before[v] if parent[u] == v and u not in gone]
            best = min(max([0, *(need + j for j, need in enumerate(order))]) for order in permutations(needs))
            label[v] = max(best, 1 + sum(parent[u] == v or root[u] != root[v] for u in before[v]))
        return max((label[v] for v in range(n) if v not in graph.inputs), default=0) <= M

    hanging = [v for v in range(n) if parent[v] >= 0]
    return next(k for k in range(n + 1) if any(fits(gone) for gone in combinations(hanging, k)))


@pytest.mark.one_in(3)
@given(data=st.data(), graph=graphs(), rules=st.sampled_from(["hong-kung", "no-recompute", "replace"]))
@draws(60, 3_000)
def test_any_trees_cost_no_more_than_the_least_of_all_games(data: st.DataObject, graph: Cdag, rules: str) -> None:
    """Each value hangs on any of its uses, or on none; what must be cut off is written and read in every game."""
    M = Task(graph, 2**40, rules).least_M
    task, n = Task(graph, M, rules), graph.vertices
    made = TaskData(task, M)
    parent = [-1] * n
    for v, operands in enumerate(made.before):
        for u in operands:
            if not made.is_input[u] and not made.is_output[u] and data.draw(st.integers(0, 3)):
                parent[u] = v
    order = task.topological.astype(np.int64)
    cut = int(cut_off(order, *made.operands, np.array(parent), M))
    assert cut == fewest(graph, parent, M)
    least = least_io(graph, M, rules)
    assert least is not None and made.words + 2 * max(cut, cuts(made)) <= least


@st.composite
def trees(draw: st.DrawFn) -> Cdag:
    """Up to nine vertices, each but the root with one use; some sources are no inputs."""
    n = draw(st.integers(3, 9))
    edges = [(u, draw(st.integers(u + 1, min(n - 1, u + 4)))) for u in range(n - 1)]
    sources = sorted({*range(n)} - {v for _, v in edges})
    return Cdag.from_edges(n, edges, sources[draw(st.integers(0, len(sources))) :])


@given(graph=trees(), rules=st.sampled_from(["hong-kung", "no-recompute", "replace"]))
@draws(40, 2_000)
def test_a_tree_of_one_output_moves_just_the_bound(graph: Cdag, rules: str) -> None:
    M = Task(graph, 2**40, rules).least_M
    data = TaskData(Task(graph, M, rules), M)
    assert data.words + 2 * cuts(data) == least_io(graph, M, rules)


def test_an_inner_output_leaves_the_cache_for_one_word_that_is_not_counted() -> None:
    """By hand: of two sums of two inputs and their sum, one sum waits in memory; if it is an output, it is there."""
    edges = [(0, 4), (1, 4), (2, 5), (3, 5), (4, 6), (5, 6)]
    words = {}
    for outputs in ((6,), (4, 6), (4, 5, 6)):
        data = TaskData(Task(Cdag.from_edges(7, edges, range(4), outputs), 3, "hong-kung"), 3)
        words[outputs] = data.words + 2 * cuts(data), least_io(data.task.graph, 3, "hong-kung")
    assert words == {(6,): (7, 7), (4, 6): (6, 7), (4, 5, 6): (7, 8)}


def test_a_value_elsewhere_in_the_tree_is_not_counted_twice() -> None:
    """By hand: 2 and 3 hang on 4, and 3 also uses 2, which waits there: three places are enough, not four."""
    graph = Cdag.from_edges(5, [(0, 2), (1, 2), (1, 3), (2, 3), (2, 4), (3, 4)])
    data = TaskData(Task(graph, 3, "hong-kung"), 3)
    parent = np.array([-1, -1, 4, 4, -1])
    assert int(cut_off(np.arange(2, 5), *data.operands, parent, 3)) == 0
    assert least_io(graph, 3, "hong-kung") == 3


def test_a_full_tree() -> None:
    """By hand: leaves of two inputs take three places, and each level one more."""
    inner = [(v, (v - 2) // 2 + 18) for v in range(2, 32)]  # 2 to 17 are the leaves, 32 the root
    graph = Cdag.from_edges(33, [(source, leaf) for leaf in range(2, 18) for source in (0, 1)] + inner)
    found = [cuts(TaskData(Task(graph, M, "hong-kung"), M)) for M in (3, 4, 5, 6, 7)]
    assert found[0] == 8 + 4 + 2 + 1 and found[4] == 0 < found[3]


@pytest.mark.one_in(2)
def test_trees_are_grown_from_values_with_several_uses() -> None:
    """In a random triangular solve no value has one use alone for long; still many must leave a small cache."""
    random = np.random.default_rng(3)
    edges = {(int(u), v) for v in range(1, 800) for u in random.integers(0, v, 4)}
    data = TaskData(Task(Cdag.from_edges(800, sorted(edges)), 7, "hong-kung"), 7)
    order, uses = data.task.topological.astype(np.int64), np.bincount(data.operands[1], minlength=800)
    may_leave = (~data.is_input & ~data.is_output).astype(np.uint8)
    parent = grow(order, *data.operands, may_leave, 1 + 0.1 * uses, 7)
    assert all(parent[v] < 0 or v in data.before[parent[v]] for v in range(800))
    assert not (parent[(may_leave == 0)] >= 0).any()
    assert cuts(data) >= int(cut_off(order, *data.operands, parent, 7)) > 20
    assert data.words + 2 * cuts(data) <= ps.pebble(data.task.graph, M=7, seconds=0).io
