"""Bounds at the boundaries of a path of three memories, against the exact least words over each."""

from collections import deque

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from oracle_games import least_io
from strategies import amount

from pebblesim.dags.bounds import lower_bounds
from pebblesim.graphs.cdag import Cdag
from pebblesim.machines.machine import Level, Machine


def least_words(graph: Cdag, upper: int, lower: int, boundary: int, once: bool = False) -> int | None:
    """The least words over a boundary, by a search of all states: what each of three memories holds, as bits.

    Words on the other boundary are free. None if no game is complete. With `once`, vertices are computed once.
    """
    n = graph.vertices
    inputs, outputs = (sum(1 << v for v in vertices.tolist()) for vertices in (graph.inputs, graph.outputs))
    preds = [sum(1 << u for u in graph.predecessors(v).tolist()) for v in range(n)]
    start = (inputs, 0, 0, 0)
    best, queue = {start: 0}, deque([start])
    while queue:
        state = queue.popleft()
        top, middle, bottom, done = state
        words = best[state]
        if top & outputs == outputs:
            return words
        after: list[tuple[int, tuple[int, int, int, int]]] = []
        for v in range(n):
            b = 1 << v
            if middle & b:
                after += [(0, (top, middle ^ b, bottom, done)), (boundary == 1, (top | b, middle, bottom, done))]
                if bottom.bit_count() < lower:
                    after.append((boundary == 2, (top, middle, bottom | b, done)))
            elif middle.bit_count() < upper:
                if top & b:
                    after.append((boundary == 1, (top, middle | b, bottom, done)))
                if bottom & b:
                    after.append((boundary == 2, (top, middle | b, bottom, done)))
            if bottom & b:
                after.append((0, (top, middle, bottom ^ b, done)))
            elif not inputs & b and not done & b and preds[v] & ~bottom == 0 and bottom.bit_count() < lower:
                after.append((0, (top, middle, bottom | b, done | b * once)))
        for cost, each in after:
            if words + cost < best.get(each, 1 << 30):
                best[each] = words + cost
                (queue.append if cost else queue.appendleft)(each)
    return None


@st.composite
def graphs(draw: st.DrawFn, most: int) -> Cdag:
    """Vertices with up to two predecessors each; some outputs are no sinks."""
    n = draw(st.integers(2, most))
    edges = [(u, v) for v in range(1, n) for u in draw(st.sets(st.integers(0, v - 1), max_size=2))]
    plain = Cdag.from_edges(n, np.array(edges, dtype=int).reshape(-1, 2))
    more = draw(st.sets(st.integers(0, n - 1), max_size=1)) - set(plain.inputs.tolist())
    outputs = sorted({*plain.outputs.tolist(), *more})
    return Cdag.from_edges(n, np.array(edges, dtype=int).reshape(-1, 2), plain.inputs, outputs)


def check(graph: Cdag, upper: int, lower: int, once: bool) -> None:
    rules = "no-recompute" if once else "hong-kung"
    beneath = Machine("m", "R", (Level("L1", 4 * upper), Level("L2", 4 * lower))).beneath("float32")
    for boundary, M in enumerate(beneath, 1):
        exact, least = least_words(graph, upper, lower, boundary, once), least_io(graph, M, rules)
        if exact is None:
            continue
        assert least is not None
        assert least <= exact
        assert all(bound.value <= exact for bound in lower_bounds(graph, M, rules, seconds=0.01) if not bound.why_not)
        both = least_io(graph, min(upper, lower), rules)
        assert both is None or exact <= both
        if boundary == 2 and upper >= graph.vertices:  # what lies above holds everything: two levels
            assert exact == least


@pytest.mark.one_in(2)
@given(graphs(5), st.integers(1, 5), st.integers(1, 3), st.booleans())
@settings(max_examples=amount(50, 300))
def test_no_bound_at_a_boundary_is_above_the_least_words_over_it(
    graph: Cdag, upper: int, lower: int, once: bool
) -> None:
    check(graph, upper, lower, once)


@pytest.mark.slow
@given(graphs(6), st.integers(1, 6), st.integers(2, 4), st.booleans())
@settings(max_examples=2000, deadline=None)
def test_nor_on_two_thousand_graphs_and_capacities(graph: Cdag, upper: int, lower: int, once: bool) -> None:
    assume(lower > graph.predecessors(graph.vertices - 1).size)
    check(graph, upper, lower, once)


@pytest.mark.one_in(2)
def test_the_capacity_of_all_memories_below_counts() -> None:
    """What lies between saves words above, so that the leaf's capacity alone gives no bound there."""
    graph = Cdag.from_edges(8, [(0, 4), (1, 4), (2, 5), (3, 5), (0, 6), (4, 6), (5, 6), (1, 7), (6, 7)])
    over = [least_words(graph, upper, 4, 1) for upper in (1, 4)]
    alone, together = (least_io(graph, M, "hong-kung") for M in (4, 4 + 4))
    assert over[1] is not None and over[0] is not None and alone is not None and together is not None
    assert together <= over[1] < alone
