"""The exhaustive search: against known optima, a search of single moves without any cleverness, and the referee."""

from functools import cache
from heapq import heappop, heappush
from itertools import product

import numpy as np
import pytest
import strategies
from hypothesis import assume, given, strategies as st

import pebblesim as ps
from pebblesim.claims.fused import played, undercut
from pebblesim.core.errors import Infeasible, UnknownName, UsageError
from pebblesim.dags.optimum import optimum
from pebblesim.game.referee import referee
from pebblesim.graphs.cdag import Cdag
from pebblesim.language.registry import of_problem


def pyramid(rows: int) -> Cdag:
    """The pyramid with that many inputs."""
    ids: dict[tuple[int, int], int] = {}
    edges = []
    for row in range(rows, 0, -1):
        for i in range(row):
            ids[row, i] = len(ids)
            edges += [(ids[row + 1, i + side], ids[row, i]) for side in (0, 1) if row < rows]
    return Cdag.from_edges(len(ids), edges)


def fft(points: int) -> Cdag:
    """The butterfly graph on that many points, a power of 2."""
    layers = points.bit_length() - 1
    edges = [
        (layer * points + (i ^ flip), (layer + 1) * points + i)
        for layer in range(layers)
        for i in range(points)
        for flip in (0, 1 << layer)
    ]
    return Cdag.from_edges((layers + 1) * points, edges)


def least_by_single_moves(graph: Cdag, M: int, once: bool) -> int | None:
    """The least I/O, by Dijkstra over single moves: every set of red, of blue and of computed vertices is a state."""
    n, inputs, outputs = graph.vertices, frozenset(graph.inputs.tolist()), frozenset(graph.outputs.tolist())
    preds = [frozenset(graph.predecessors(v).tolist()) for v in range(n)]
    start = (frozenset(), inputs, frozenset())
    queue, best, tie = [(0, 0, start)], {start: 0}, 0
    while queue:
        io, _, state = heappop(queue)
        red, blue, computed = state
        if best[state] < io:
            continue
        if outputs <= blue:
            return io
        for v in range(n):
            moves = []
            if v in red:
                moves = [(0, (red - {v}, blue, computed)), (1, (red, blue | {v}, computed))]
            elif len(red) < M:
                if v in blue:
                    moves.append((1, (red | {v}, blue, computed)))
                if v not in inputs and preds[v] <= red and v not in computed:
                    moves.append((0, (red | {v}, blue, computed | {v} if once else computed)))
            for cost, after in moves:
                if io + cost < best.get(after, 1 << 30):
                    best[after] = io + cost
                    heappush(queue, (io + cost, tie := tie + 1, after))
    return None


@st.composite
def small_graphs(draw: st.DrawFn) -> Cdag:
    """Up to 7 vertices, any edges from lower to higher numbers; some outputs are no sinks, vertices may be isolated."""
    n = draw(st.integers(2, 7))
    edges = [(u, v) for v in range(n) for u in draw(st.sets(st.integers(0, max(0, v - 1)), max_size=3)) if u < v]
    plain = Cdag.from_edges(n, np.array(edges, dtype=int).reshape(-1, 2))
    more = draw(st.sets(st.integers(0, n - 1), max_size=2))
    constants = draw(st.sets(st.sampled_from(plain.inputs.tolist()), max_size=1))  # no predecessors, and no input
    inputs = sorted(set(plain.inputs.tolist()) - constants)
    outputs = sorted(set(plain.outputs.tolist()) | more)
    return Cdag.from_edges(n, np.array(edges, dtype=int).reshape(-1, 2), np.array(inputs, dtype=int), outputs)


@given(graph=small_graphs(), M=st.integers(1, 5), once=st.booleans())
def test_it_finds_what_a_search_of_single_moves_finds(graph: Cdag, M: int, once: bool) -> None:
    rules = "no-recompute" if once else "hong-kung"
    least = least_by_single_moves(graph, M, once)
    try:
        found = optimum(graph, M, rules, states=100_000)
    except Infeasible as error:
        assert least is None
        assert least_by_single_moves(graph, error.least_M, once) is not None
        return
    assert found.io == least
    game = referee(graph, M, [found.moves], rules)
    assert game.complete
    assert game.io == found.io


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("graph", "M", "least"),
    [
        (pyramid(3), 3, 6),
        (pyramid(4), 3, 11),
        (pyramid(5), 4, 10),
        (pyramid(6), 4, 15),
        (fft(4), 3, 14),
        (fft(4), 4, 11),
        (played(3, 1, 3, 1).graph, 4, 17),  # below the 18 of COSMA's Theorem 1
    ],
)
def test_known_optima(graph: Cdag, M: int, least: int) -> None:
    found = optimum(graph, M)
    assert found.io == least
    assert referee(graph, M, [found.moves]).io == least


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "M", "rules", "least"),
    [
        (pyramid(7), 4, "hong-kung", 20),
        (fft(8), 3, "hong-kung", 40),
        (fft(8), 4, "hong-kung", 31),
        (fft(8), 5, "hong-kung", 26),  # computing again saves a word
        (fft(8), 3, "no-recompute", 40),
        (fft(8), 4, "no-recompute", 31),
        (fft(8), 5, "no-recompute", 27),
    ],
)
def test_optima_that_take_long(graph: Cdag, M: int, rules: str, least: int) -> None:
    found = optimum(graph, M, rules)
    assert (found.io, found.bound) == (least, least)


def test_a_search_that_is_cut_short_gives_an_interval() -> None:
    found = optimum(fft(8), 3, "hong-kung", states=2_000)
    assert 16 < found.bound < 40 <= found.io
    assert (found.proven, found.ended) == (False, "memory")
    assert referee(fft(8), 3, [found.moves]).io == found.io


def test_computing_again_can_save_io() -> None:
    """v of a, x of v, b, c, y of x, e, f, and w of a, v, y: then a must be read again, and with it v is free."""
    a, b, c, e, f, v, x, y, w = range(9)
    edges = [(a, v), (v, x), (b, x), (c, x), (x, y), (e, y), (f, y), (a, w), (v, w), (y, w)]
    graph = Cdag.from_edges(9, edges, [a, b, c, e, f], [v, w])
    assert optimum(graph, 4, "hong-kung").io == 8  # five inputs, a again, two outputs
    assert optimum(graph, 4, "no-recompute").io == 9  # and v again, which was written as an output


@cache
def small_sizes(name: str, most: int) -> list[dict[str, int]]:
    """Sizes of a problem from 1 to 3 whose graph has no more vertices."""
    dims = ps.problem(name).dims
    drawn = [dict(zip(dims, sizes, strict=True)) for sizes in product((1, 2, 3), repeat=len(dims))]
    return [sizes for sizes in drawn if ps.graph(name, **sizes).vertices <= most]


@pytest.mark.parametrize("name", ["matmul", "forward", "forward-relu", "linear"])
@given(data=st.data())
@strategies.draws(3, 15)
def test_no_schedule_goes_below_the_optimum(name: str, data: st.DataObject) -> None:
    schedule = data.draw(st.sampled_from(of_problem(name)))
    dims = data.draw(st.sampled_from(small_sizes(name, strategies.amount(26, 40))))
    try:
        ps.count(schedule, M=1, **dims)
    except Infeasible as error:
        M = error.least_M + data.draw(st.integers(0, 3))
    row = ps.count(schedule, M=M, **dims)
    options = schedule.graph_options(row.blocks)
    graph = ps.graph(name, **dims, **options)
    assume(graph.vertices <= strategies.amount(26, 40))
    assert ps.optimum(graph, M=M, states=20_000).bound <= row.io


def test_what_it_refuses() -> None:
    graph = pyramid(3)
    with pytest.raises(Infeasible, match="it needs M ≥ 3") as refused:
        optimum(graph, 2)
    assert refused.value.least_M == 3
    with pytest.raises(UnknownName, match="rule set"):
        optimum(graph, 3, "replace")
    with pytest.raises(UsageError, match="options are not allowed with a graph"):
        ps.optimum(graph, M=3, n=4)


def test_an_output_that_is_an_input_costs_nothing() -> None:
    assert optimum(Cdag.from_edges(2, np.empty((0, 2), dtype=int)), 1).io == 0
    assert len(optimum(Cdag.from_edges(2, np.empty((0, 2), dtype=int)), 1).moves) == 0


def test_a_result_is_printed_in_words() -> None:
    found = ps.optimum("matmul", m=2, k=1, n=2, M=4)
    assert str(found).startswith("rules           hong-kung\nM               4 words\nleast I/O       8 words\nproof")
    assert found.to_dict()["io"] == 8
    assert (found.bound, found.proven, found.ended) == (8, True, "proven")


# -- a published bound -----------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
def test_cosmas_theorem_1_is_undercut_by_a_legal_game() -> None:
    found = undercut(m=25, k=3, n=25, S=20)
    assert found.game.complete
    assert (found.game.io, found.game.peak_red, found.claimed) == (1075, 20, 1464)  # 2·1875/√20 + 625 = 1463.5
    assert found.holds
    assert undercut(m=120, k=10, n=120, S=150).game.io == 27_600
    assert not undercut(m=25, k=20, n=25, S=50).holds  # where k is not small against √S


@given(m=st.integers(1, 9), k=st.integers(1, 4), n=st.integers(1, 9), extra=st.integers(0, 20))
def test_the_game_moves_what_its_formula_says(m: int, k: int, n: int, extra: int) -> None:
    S = 2 * k + 2 + extra
    game = undercut(m, k, n, S).game
    assert game.complete
    assert game.io == m * k + k * n * -(-m // ((S - k - 2) // k)) + m * n


def test_the_fused_graph_is_the_product() -> None:
    graph = played(2, 3, 2, 2).graph
    assert (graph.vertices, graph.edges) == (6 + 6 + 12, 4 * (2 + 3 + 3))
    assert graph.inputs.tolist() == [*range(12)] and graph.outputs.tolist() == [14, 17, 20, 23]
    for v in range(12, 24):  # the sums of C[i,j] = A[i,:] B[:,j], in the order of the columns
        (j, i), t = divmod((v - 12) // 3, 2), (v - 12) % 3
        sums = [v - 1] if t else []
        assert graph.preds[graph.indptr[v] : graph.indptr[v + 1]].tolist() == [3 * i + t, 6 + 3 * j + t, *sums]
    with pytest.raises(Infeasible, match="needs S ≥ 8"):
        undercut(4, 3, 4, 7)
