"""Any DAG: the best game found, bounds and optimum against an independent search, and what is refused."""

import itertools
import json
import math
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from oracle_games import least_io
from strategies import amount
from typer.testing import CliRunner

import pebblesim as ps
from pebblesim.api.own_bounds import bound
from pebblesim.cli.main import app
from pebblesim.core.errors import BelowBound, Infeasible, PebblesimError, UnknownName, UsageError
from pebblesim.dags import optimum_kernel, optimum_states
from pebblesim.dags.anneal_kernel import anneal
from pebblesim.dags.best_order import FACTORS, MOST_EVENTS, NONE, BestOrder
from pebblesim.dags.bounds import Bound, lower_bounds, partition, spectral, wavefronts
from pebblesim.dags.comparing import _shared, rows, summary
from pebblesim.dags.formats import save_graph
from pebblesim.dags.generators import GENERATORS, generate
from pebblesim.dags.interval import Interval
from pebblesim.dags.optimum import MEMORY, narrow, optimum
from pebblesim.dags.optimum_bounds_kernel import to_come
from pebblesim.dags.optimum_states import _bit_board, _number, _tree
from pebblesim.dags.order_kernel import play
from pebblesim.dags.orders import Task
from pebblesim.dags.search import pebble
from pebblesim.dags.starts import starts
from pebblesim.dags.symmetry import Digraph, Permutation, chain
from pebblesim.dags.task_data import TaskData
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, moves
from pebblesim.game.referee import Referee, referee
from pebblesim.game.rules import RULES
from pebblesim.graphs.cdag import Cdag
from pebblesim.lower_bounds.own import OWN

SEARCHED = ("hong-kung", "no-recompute", "partial")


def random_graph(rng: random.Random, most: int = 9, weights: bool = False) -> Cdag:
    """Sparse or dense; some outputs are no sinks, some sources no inputs, vertices may be isolated."""
    n, dense = rng.randint(1, most), rng.choice([0.2, 0.35, 0.5])
    edges = [(u, v) for v in range(n) for u in range(v) if rng.random() < dense]
    edges = np.array(edges, dtype=int).reshape(-1, 2)
    plain = Cdag.from_edges(n, edges)
    inputs = [v for v in plain.inputs.tolist() if rng.random() < 0.9]
    outputs = sorted({*plain.outputs.tolist(), *(v for v in range(n) if rng.random() < 0.1)})
    words = [rng.randint(1, 3) for _ in range(n)] if weights else None
    return Cdag.from_edges(n, edges, np.array(inputs, dtype=int), outputs, weights=words)


def least_M(graph: Cdag, rules: str) -> int:
    return Task(graph, 2**40, rules).least_M


def check_against_the_oracle(seed: int, number: int, most: int, most_terms: int) -> None:
    rng = random.Random(seed)
    judged = dict.fromkeys(SEARCHED, 0)
    while min(judged.values()) < number:
        graph = random_graph(rng, most)
        for rules in SEARCHED:
            if judged[rules] == number or (rules == "partial" and graph.edges > most_terms):
                continue  # the oracle has a state for every set of terms
            judged[rules] += 1
            M = least_M(graph, rules) + rng.choice([0, 0, 1, 2])
            least = least_io(graph, M, rules)
            found = optimum(graph, M, rules)
            assert (found.io, found.bound) == (least, least), (graph.vertices, graph.preds, M, rules)
            assert referee(graph, M, [found.moves], rules).io == least
            for each in lower_bounds(graph, M, rules, seconds=0.5):
                assert each.value <= least, (each, graph.preds, M, rules)


@pytest.mark.one_in(2)
def test_optima_and_bounds_of_random_graphs() -> None:
    check_against_the_oracle(seed=1, number=20, most=6, most_terms=6)


@pytest.mark.slow
def test_optima_and_bounds_of_500_random_graphs() -> None:
    check_against_the_oracle(seed=2, number=500, most=9, most_terms=8)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rules", SEARCHED)
def test_the_search_needs_no_good_game_to_start_from(rules: str) -> None:
    """The estimate of what is to come must not cut off the best game: here no game found before stands in for it."""
    rng = random.Random(4)
    sums = Cdag.from_edges(5, [(u, v) for u in range(3) for v in (3, 4)])
    for graph in (sums, *(random_graph(rng, 7) for _ in range(amount(40, 100)))):
        if rules == "partial" and graph.edges > 7:
            continue
        M = least_M(graph, rules) + rng.choice([0, 0, 1])
        least = least_io(graph, M, rules)
        assert least is not None
        if not least:
            continue
        run = Interval(Task(graph, M, rules), least + 1, np.empty(0, dtype=np.int64), 0, "")
        narrow(run, 100_000, MEMORY, 0.0, float("inf"), None)
        assert (run.io, run.bound) == (least, least), (graph.vertices, graph.preds, graph.indptr, M)
        assert referee(graph, M, [run.moves], rules).io == least


def doubled(part: Cdag) -> Cdag:
    """Two copies of a graph that share their first vertex, and a sum of both last ones: it can be turned over."""
    n, edges = part.vertices, list(zip(part.preds.tolist(), targets(part), strict=True))
    other = [(u and u + n - 1, v and v + n - 1) for u, v in edges]
    return Cdag.from_edges(2 * n, [*edges, *other, (n - 1, 2 * n - 1), (2 * n - 2, 2 * n - 1)])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("rules", ["hong-kung", "no-recompute"])
def test_states_that_are_images_of_each_other_count_once(rules: str) -> None:
    rng = random.Random(5)
    for _ in range(25):
        n = rng.randint(2, 4)
        edges = [(u, v) for v in range(n) for u in range(v) if rng.random() < 0.6]
        graph = doubled(Cdag.from_edges(n, np.array(edges, dtype=int).reshape(-1, 2)))
        M = least_M(graph, rules) + rng.choice([0, 0, 1])
        least = least_io(graph, M, rules)
        assert least
        run = Interval(Task(graph, M, rules), least + 1, np.empty(0, dtype=np.int64), 0, "")
        narrow(run, 100_000, MEMORY, 0.0, float("inf"), None)
        assert (run.io, run.bound) == (least, least), (graph.preds, graph.indptr, M)
        assert referee(graph, M, [run.moves], rules).io == least


def symmetries(graph: Cdag) -> list[dict[int, Permutation]]:
    inputs = set(graph.inputs.tolist())
    before = [sorted(set(graph.predecessors(v).tolist())) for v in range(graph.vertices)]
    return [orbit for _, orbit in chain(Digraph(before, [int(v in inputs) for v in range(graph.vertices)]))]


def test_symmetries_are_all_there_and_keep_the_graph() -> None:
    """As many as networkx finds one by one; of the FFT of 8 points, whose blocks and pairs can be swapped, 2¹⁴."""
    rng = random.Random(6)
    assert math.prod(len(orbit) for orbit in symmetries(generate("fft", n=8))) == 2**14
    for graph in (generate("fft", n=4), generate("pyramid", rows=4), *(random_graph(rng, 7) for _ in range(30))):
        plain = nx.DiGraph(list(zip(graph.preds.tolist(), targets(graph), strict=True)))
        plain.add_nodes_from((v, {"input": v in graph.inputs}) for v in range(graph.vertices))
        matcher = nx.isomorphism.DiGraphMatcher(plain, plain, node_match=lambda a, b: a == b)
        found = symmetries(graph)
        assert math.prod(len(orbit) for orbit in found) == sum(1 for _ in matcher.isomorphisms_iter())
        for image in (image for orbit in found for image in orbit.values()):
            renamed = nx.relabel_nodes(plain, dict(enumerate(image)))
            assert set(renamed.edges) == set(plain.edges)


@pytest.mark.parametrize("M", [3, 4, 5])
def test_values_that_must_be_read_or_made_of_others_that_are(M: int) -> None:
    """The FFT of 4 points where all of its middle values are in memory and nothing is red: one read for each output."""
    graph = generate("fft", n=4)
    board = _bit_board(Task(graph, M, "hong-kung"))[0]
    undone = board.outputs
    blue = np.array([0b1111 << 4], dtype=np.uint64)
    room, links = np.zeros((7 + 3 * 12, 1), dtype=np.uint64), np.empty((5, 24), dtype=np.int64)
    none = np.zeros(1, dtype=np.uint64)
    assert to_come(board, undone, none, blue, room, links) == 4 + 4
    assert to_come(board, undone, none, none, room, links) == 4 + 4
    one = np.array([1 << 4], dtype=np.uint64)  # red: its pair is made of the same two inputs, or read
    assert to_come(board, undone, one, blue, room, links) == 4 + 3


def fold(ends: int) -> Cdag:
    """One value after the other, then used in the same order again: all are alive in the middle."""
    edges = [(v, v + 1) for v in range(2 * ends)]
    return Cdag.from_edges(2 * ends + 1, [*edges, *((v, 2 * ends + 1 - v) for v in range(1, ends))])


def test_wavefronts_of_folds_by_hand() -> None:
    """Vertices 1 ... 9 are needed behind the 10th, which has a value of its own: 10 alive, with M = 4 six too many."""
    for ends, M in ((10, 4), (10, 6), (6, 4)):
        words = value_of(wavefronts, fold(ends), M, "no-recompute")
        assert words == 2 + 2 * (ends - M)
        assert words <= optimum(fold(ends), M, "no-recompute").io <= words + 2
    again = pebble(fold(10), M=4, seconds=0.5)
    assert again.bound.name == "compulsory"


def value_of(bound: Callable[..., Bound], graph: Cdag, M: int, rules: str) -> int:
    """The words of one bound; the others are not computed."""
    end = [] if bound is spectral else [600]
    return bound(TaskData(Task(graph, M, rules), M), *end).value


def test_wavefronts_do_not_count_what_is_written_in_any_case() -> None:
    """The vertices of a fold that wait are outputs: their writes are compulsory, only their reads are not."""
    plain = fold(7)
    graph = Cdag.from_edges(15, list(zip(plain.preds.tolist(), targets(plain), strict=True)), None, [*range(1, 7), 14])
    least = optimum(graph, 3, "no-recompute")
    assert least.io == least.bound >= value_of(wavefronts, graph, 3, "no-recompute") >= 8


def targets(graph: Cdag) -> list[int]:
    return np.repeat(np.arange(graph.vertices), np.diff(graph.indptr)).tolist()


@pytest.mark.one_in(2)
def test_the_spectral_bound_is_that_of_its_authors() -> None:
    """Jain & Zaharia: eigenvalues of the Laplacian without inputs, an edge of u weighing 1 over u's successors."""
    rng, n, M = random.Random(1), 400, 3
    edges = [(u, v) for v in range(2, n) for u in rng.sample(range(v), 2)]
    inner, successors = nx.Graph(), Counter(u for u, _ in edges)
    inner.add_nodes_from(range(2, n))
    inner.add_edges_from((u, v, {"weight": 1 / successors[u]}) for u, v in edges if u >= 2)
    weights = nx.to_numpy_array(inner)
    values = np.linalg.eigvalsh(np.diag(weights.sum(axis=0)) - weights)
    size = len(inner)
    most = max(sum((size // k + (i < size % k)) * values[i] for i in range(k)) - 2 * k * M for k in range(1, size // M))
    compulsory = 2 + sum(v not in successors for v in range(n))
    assert most > 1
    assert value_of(spectral, Cdag.from_edges(n, edges), M, "no-recompute") == compulsory + int(most)


def test_partitions_by_hand() -> None:
    """T words a stretch; what M + T values lead to is found by trying all of them."""
    rng = random.Random(3)
    for _ in range(6):
        graph = random_graph(rng, 8)
        M = least_M(graph, "hong-kung")
        task = Task(graph, M, "hong-kung")
        needed = [v for v in range(graph.vertices) if task.needed[v]]
        preds = {v: graph.preds[graph.indptr[v] : graph.indptr[v + 1]].tolist() for v in needed}
        used = sorted({u for v in needed for u in preds[v]})
        best = 0
        for T in {max(1, M // 2), M, 2 * M}:
            most = 0
            for held in itertools.combinations(used, min(len(used), M + T)):
                computed = set(held)
                computed |= {v for v in needed if not preds[v]}
                reached = 0
                for v in sorted(needed):
                    if computed >= set(preds[v]):
                        computed.add(v)
                        reached += 1
                most = max(most, reached)
            if most:
                best = max(best, T * (-(-len(needed) // most) - 1))
        assert value_of(partition, graph, M, "hong-kung") == best


def test_partitions_say_nothing_where_terms_are_taken_one_by_one() -> None:
    """Three sums of 13 inputs each grow side by side in M = 4 words; whole, none of them can be computed at all."""
    graph = Cdag.from_edges(17, [*((u, v) for u in range(13) for v in (13, 14, 15)), (0, 16)])
    assert value_of(partition, graph, 4, "partial") == 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("rules", RULES)
def test_games_of_random_graphs_are_legal_and_seldom_far_from_the_least(rules: str) -> None:
    rng = random.Random(3)
    total = best = 0
    for number in range(25):
        graph = random_graph(rng, 5, weights=number % 2 == 1)
        M = least_M(graph, rules) + rng.choice([0, 1])
        least = least_io(graph, M, rules)
        found = pebble(graph, M=M, rules=rules, steps=30, seconds=0)
        assert least is not None
        assert found.game.complete
        assert found.bound.value <= least <= found.io
        total, best = total + found.io, best + least
    assert total <= 1.05 * best


@pytest.mark.slow
def test_recomputation_is_tried_again_after_steps_that_were_not_kept() -> None:
    """By a number of steps the game is the same in every run: 33 words, and 35 if room that is not used is lost."""
    assert pebble(generate("pyramid", rows=12), M=6, steps=4000).io <= 33


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "M"), [("fft", 6), ("pyramid", 5), ("stencil", 5), ("matmul", 12), ("strassen", 8)])
@pytest.mark.parametrize("rules", RULES)
def test_every_game_of_a_family_is_legal(name: str, M: int, rules: str) -> None:
    sizes = {"fft": {"n": 16}, "pyramid": {"rows": 8}, "stencil": {"n": 8, "t": 6}, "matmul": {"n": 4}}
    graph = generate(name, **sizes.get(name, {"n": 2}))
    found = ps.pebble(graph, M=M, rules=rules, seconds=0.02)
    assert found.game.complete
    assert found.io >= found.bound.value >= len(graph.outputs)
    assert found.gap >= 1


@pytest.mark.slow
def test_tiles_of_a_matrix_product_are_found() -> None:
    """Plain tiles of 11 x 11 move 7,168 words of matmul n = 32 at M = 192."""
    found = pebble(generate("matmul", n=32), M=192, rules="no-recompute", seconds=6)
    assert found.io <= 6400
    assert "groups" in found.start


@pytest.mark.parametrize("name", ["stencil", "fft", "random"])
def test_every_order_to_start_from_computes_each_vertex_once_behind_its_operands(name: str) -> None:
    rng = random.Random(7)
    graphs = [random_graph(rng, 30) for _ in range(20)] if name == "random" else []
    graphs = graphs or [generate(name, n=16, **({"t": 12} if name == "stencil" else {}))]
    for graph in graphs:
        task = Task(graph, least_M(graph, "no-recompute") + 1, "no-recompute")
        for start, order in starts(task):
            place = {int(v): k for k, v in enumerate(order)}
            assert sorted(place) == sorted(task.topological.tolist()), start
            for v, at in place.items():
                assert all(place.get(u, -1) < at for u in graph.predecessors(v).tolist()), start


def best_start(graph: Cdag, M: int) -> BestOrder:
    """The best of the orders to start from, however long they take."""
    best = BestOrder(Task(graph, M, "no-recompute"), np.random.default_rng(0))
    best.begin(float("inf"))
    return best


@pytest.mark.one_in(3)
def test_halves_of_halves_are_tiles_askew_in_time() -> None:
    """A stencil of 256 points over 64 steps at M = 32: a sweep a step moves some 2 · 256 · 64 words."""
    best = best_start(generate("stencil", n=256, t=64), 32)
    assert best.start == "in halves of halves"
    assert best.io <= 2 * 256 * 64 / 4


@pytest.mark.parametrize("M", [4, 5, 8, 12])
def test_strips_cross_a_pyramid(M: int) -> None:
    """Strips of M - 2 vertices move r²/(M - 2) words across, at most, beside the compulsory ones."""
    best = best_start(generate("pyramid", rows=40), M)
    assert best.start.startswith("in strips")
    assert best.io <= 40 * 40 / (M - 2) + 41


@pytest.mark.one_in(4)
def test_groups_of_outputs_fill_the_cache() -> None:
    """Tiles of matmul n = 20 at M = 60: groups of 32, a power of two, can be no better than 13 of 31, some 5 x 6.2."""
    assert best_start(generate("matmul", n=20), 60).io <= 2900 < 400 * 20 / 5 + 400 * 20 / 6.2 + 400


def test_groups_of_outputs_are_rectangles_where_no_square_fits() -> None:
    """matmul 8 x 8 x 8 at M = 21, which 3 x 5 sums, 3 + 1 operands, a product and a new sum fill: tiles in rows of
    3, 3, 2 and columns of 5, 3 read 8 (2 · 8 + 3 · 8) words and write 64."""
    assert best_start(generate("matmul", n=8), 21).io <= 8 * (2 * 8 + 3 * 8) + 64


def test_computing_again_is_found_where_it_pays() -> None:
    """A value that is made from one input again and again, with much between: the one-shot game must store it."""
    fold = [(0, 1), *((1, v) for v in range(2, 8)), *((v, v + 1) for v in range(2, 7))]
    graph = Cdag.from_edges(8, fold)
    again, once = (pebble(graph, M=3, rules=rules, seconds=60) for rules in ("hong-kung", "no-recompute"))
    assert (again.io, once.io) == (least_io(graph, 3, "hong-kung"), least_io(graph, 3, "no-recompute"))


def test_terms_one_by_one_need_two_pebbles() -> None:
    graph = generate("matmul", n=3, chains=False)
    with pytest.raises(Infeasible, match="it needs M ≥ 4"):
        pebble(graph, M=2, rules="no-recompute")
    found = pebble(graph, M=2, rules="partial", seconds=0.2)
    assert found.game.complete
    assert found.game.peak_red == 2


@pytest.mark.one_in(2)
def test_a_value_that_is_used_twice_takes_one_pebble() -> None:
    """q·(1 - q) and the like: some graphs of problems have both operands of a vertex in one."""
    graph = ps.graph("backward-sigmoid", n=1, d=1)
    twice = Cdag(
        op=np.zeros(4, dtype=np.uint8),
        indptr=np.array([0, 0, 2, 4, 6]),
        preds=np.array([0, 0, 0, 1, 2, 2]),
        families=(),
        inputs=np.array([0]),
        outputs=np.array([3]),
    )
    for each, M in ((graph, least_M(graph, "hong-kung")), (twice, 3)):
        for rules in ("hong-kung", "no-recompute", "replace"):
            found = pebble(each, M=M, rules=rules, seconds=0.2)
            assert found.io >= found.bound.value
    assert pebble(twice, M=3, seconds=0.1).io == optimum(twice, 3).io == 2


def test_words_of_values_are_played() -> None:
    graph = Cdag.from_edges(4, [(0, 2), (1, 2), (2, 3)], weights=[5, 2, 3, 1])
    found = pebble(graph, M=10, seconds=0)
    assert (found.game.reads, found.game.writes, found.game.peak_red) == (7, 1, 10)
    assert found.proven
    with pytest.raises(Infeasible, match="it needs M ≥ 10"):
        pebble(graph, M=9)
    with pytest.raises(UsageError, match="does not support vertices of several words"):
        optimum(graph, 10)


def test_a_pebbling_says_what_it_is() -> None:
    found = ps.pebble(generate("pyramid", rows=4), M=3, seconds=0.1)
    text = str(found)
    assert "judged by the referee" in text
    assert "gap" in text
    assert found.to_dict()["io"] == found.io == 11
    assert ps.pebble(nx.DiGraph([("a", "b"), ("b", "c")]), M=2, seconds=0).proven


def test_what_is_refused() -> None:
    graph = generate("pyramid", rows=4)
    for call, error, says in (
        (lambda: ps.pebble(graph, M=2), Infeasible, "it needs M ≥ 3"),
        (lambda: ps.pebble(graph, M=3, rules="chess"), UnknownName, "rule set"),
        (lambda: ps.pebble(graph, M=0), UsageError, "M"),
        (lambda: ps.pebble(graph, M=3, seconds=-1), UsageError, "seconds = -1"),
        (lambda: ps.pebble([1, 2], M=3), UsageError, "a Cdag or a networkx DiGraph, not list"),
        (lambda: ps.pebble(nx.Graph([(0, 1)]), M=3), UsageError, "directed graph without parallel edges, not a Graph"),
        (lambda: ps.optimum(graph, M=3, rules="replace"), UnknownName, "rule set"),
        (lambda: ps.optimum(graph, M=3, seconds=0), UsageError, "seconds = 0"),
        (lambda: generate("fft", n=6), UsageError, "power of two"),
        (lambda: generate("fft"), UsageError, "'fft' needs n"),
        (lambda: generate("fft", m=8), UnknownName, "parameter of 'fft'"),
        (lambda: generate("ftf", n=8), UnknownName, "did you mean 'fft'"),
        (lambda: generate("stencil", n=4, t=1, dimensions=4), UsageError, "1, 2 or 3"),
        (lambda: generate("pyramid", rows=10**6), UsageError, "at most"),
    ):
        with pytest.raises(error, match=says):
            call()


@pytest.mark.parametrize(
    ("states", "rules"),
    [
        pytest.param(states, rules, marks=[] if states == few else [pytest.mark.slow])
        for rules, few in zip(SEARCHED, (300, 3, 300), strict=True)
        for states in (3, 300)
    ],
)
def test_a_search_out_of_memory_ends_with_an_interval(states: int, rules: str) -> None:
    graph = generate("fft", n=8)
    found = optimum(graph, 4, rules, states=states)
    assert found.ended == "memory"
    assert 16 <= found.bound < found.io
    assert referee(graph, 4, [found.moves], rules).io == found.io


def test_a_search_takes_no_more_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pebblesim.dags.optimum.available_memory", lambda: 2**20)
    assert optimum(generate("fft", n=8), 4, seconds=60).ended == "memory"


def test_ctrl_c_ends_a_search_with_an_interval() -> None:
    graph = generate("fft", n=16)
    optimum(generate("fft", n=4), 3)  # what is compiled now is not waited for later
    threading.Timer(0.6, signal.raise_signal, [signal.SIGINT]).start()
    found = optimum(graph, 4, seconds=60)
    assert found.ended == "interrupted"
    assert "words (interrupted)" in str(found)
    assert found.seconds < 30
    assert 32 <= found.bound < found.io


@pytest.mark.one_in(3)
def test_a_search_looks_at_the_clock_among_the_followers_of_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    board, _ = _bit_board(Task(generate("sorting-network", n=16), 8, "hong-kung"))
    tree = _tree(optimum_kernel, 10**5, len(board.inputs), 10**4, len(board.base) > 0, 2**16)
    room = optimum_kernel.room_for(len(board.degree), len(board.inputs))
    for _ in range(20):
        before = int(tree.count[0])
        how, _ = optimum_kernel.search(board, tree, room, 50)
        assert how == optimum_kernel.GOES_ON
        assert before < int(tree.count[0]) <= before + 50
    cases = [(generate("pyramid", rows=4), 3), (generate("fft", n=4), 3)]
    searched = {(graph, M, rules): optimum(graph, M, rules).io for graph, M in cases for rules in SEARCHED[:2]}
    monkeypatch.setattr(optimum_states, "AT_ONCE", 3)
    for (graph, M, rules), io in searched.items():
        assert optimum(graph, M, rules).io == io
    graph, M = cases[0]
    assert all(searched[graph, M, rules] == least_io(graph, M, rules) for rules in SEARCHED[:2])


@pytest.mark.one_in(8)
def test_a_graph_that_is_too_large_to_search_gets_an_interval_in_time() -> None:
    found = optimum(generate("fft", n=512), 3, seconds=1)
    assert found.ended == "size"
    assert found.states == 0
    assert 2 * 512 <= found.bound < found.io
    assert "words (too large to be searched)" in str(found)
    assert chain(Digraph([[v - 1] if v else [] for v in range(3000)], [0] * 3000)) == []


def test_what_follows_and_what_leads_to_it() -> None:
    """The kernel's sets, as their definitions say."""
    rng = random.Random(3)
    for _ in range(20):
        graph = random_graph(rng)
        task = Task(graph, graph.vertices, "hong-kung")
        if not task.needed.any():
            continue
        board, _ = _bit_board(task)
        sets = [
            [_number(row) for row in each]
            for each in (board.succs, board.above, board.behind, board.early, board.keeps)
        ]
        succs, above, behind, early, keeps = sets
        for v in range(len(succs)):
            assert early[v] == sum(1 << u for u in range(len(succs)) if succs[u] & above[v])
            assert keeps[v] == sum(1 << u for u in range(len(succs)) if succs[u] & behind[v])


def test_more_than_64_vertices() -> None:
    """Ten pyramids: 100 vertices, at an M where the search has something to do."""
    edges, first = [], 0
    for _ in range(10):
        edges += [(first + u, first + v) for u, v in [(0, 4), (1, 4), (1, 5), (2, 5), (2, 6), (3, 6)]]
        edges += [(first + u, first + v) for u, v in [(4, 7), (5, 7), (5, 8), (6, 8), (7, 9), (8, 9)]]
        first += 10
    graph = Cdag.from_edges(100, edges)
    found = optimum(graph, 4, "no-recompute", states=100_000)
    assert found.proven
    assert found.io == 10 * optimum(generate("pyramid", rows=4), 4, "no-recompute").io


def test_progress_of_the_exact_search_is_a_share_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit there is no share to tell; with one it grows up to 1."""
    graph, told = generate("pyramid", rows=5), list[float]()

    def tell(part: float, *_: object) -> None:
        told.append(part)

    optimum(graph, 3, progress=tell)
    assert told and set(told) == {0.0}
    told.clear()
    clock = iter(range(10**5, 10**6))
    monkeypatch.setattr("pebblesim.dags.optimum.time.monotonic", lambda: float(next(clock)))
    optimum(graph, 3, seconds=1000, progress=tell)
    assert 0 < told[0] < 1
    told.clear()
    optimum(graph, 3, seconds=1, progress=tell)
    assert set(told) == {1.0}  # it is past its end when it tells first


def scattered(n: int, operands: int, seed: int) -> Cdag:
    """A graph in which each vertex has random operands before it."""
    rng = np.random.default_rng(seed)
    edges = {(int(u), v) for v in range(n // 10, n) for u in rng.integers(0, v, operands)}
    return Cdag.from_edges(n, sorted(edges))


def test_steps_give_the_same_game_however_long_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, games = scattered(40, 2, 0), []
    for pace in (0.0, 0.01, 1000.0):
        clock = itertools.count(0, pace)
        monkeypatch.setattr("pebblesim.dags.search.time", SimpleNamespace(monotonic=lambda clock=clock: next(clock)))
        games.append(ps.pebble(graph, M=5, steps=3, seed=3, seconds=0))
    assert len({(game.io, game.moves.tobytes()) for game in games}) == 1
    rounds = []
    monkeypatch.setattr(BestOrder, "round", lambda *_: rounds.append(1))
    ps.pebble(graph, M=5, steps=7, seconds=0)
    assert len(rounds) == 7
    with pytest.raises(UsageError, match="steps"):
        ps.pebble(graph, M=5, steps=0)


@pytest.mark.one_in(2)
def test_the_next_start_is_not_tried_if_it_may_take_longer_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes 3 of 5 seconds: after the first start there is no time for another."""
    graph, clock, tried = scattered(60, 2, 0), itertools.count(0, 3.0), list[str]()

    def watched(task: Task) -> Iterator[tuple[str, Any]]:
        for name, order in starts(task):
            if task.graph.vertices == graph.vertices:  # bounds search for games of its parts, too
                tried.append(name)
            yield name, order

    ps.pebble(graph, M=6, seconds=0)  # compiles
    monkeypatch.setattr("pebblesim.dags.best_order.starts", watched)
    for module in ("search", "best_order"):
        monkeypatch.setattr(f"pebblesim.dags.{module}.time", SimpleNamespace(monotonic=lambda: next(clock)))
    ps.pebble(graph, M=6, seconds=5.0)
    assert len(tried) <= 2


@pytest.mark.one_in(3)
def test_a_round_on_many_edges_makes_fewer_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def watched(*given: Any) -> Any:
        tries.append(given[-2])
        return given[2], -1

    few, many = scattered(100, 2, 0), scattered(250, 200, 0)
    ps.pebble(few, M=6, seconds=0)  # compiles
    monkeypatch.setattr("pebblesim.dags.best_order.anneal", watched)
    for graph, M in ((few, 6), (many, 200)):
        ps.pebble(graph, M=M, steps=1, rules="no-recompute", seconds=0)
    assert tries[0] == 100 * Task(few, 6, "no-recompute").steps
    assert 600 <= tries[1] <= MOST_EVENTS // many.edges < 20_000


@pytest.mark.parametrize("seed", range(3))
def test_a_desk_with_room_for_more_steps_gives_the_same_order(seed: int) -> None:
    """What comes behind a segment is used after it, however much room lies between their events."""
    task = Task(scattered(120, 2, seed), 6, "no-recompute")
    (_, order), *_ = task.steps_of(task.topological)
    found = [
        anneal(task.board, task.desk(room), order, 20, 60, 10, FACTORS[0], NONE, 1.0, 0.1, 300, seed)
        for room in (0, 500)
    ]
    assert found[0][1] == found[1][1] > 0
    assert found[0][0].tolist() == found[1][0].tolist()


@pytest.mark.parametrize(("n", "operands", "M"), [(60, 2, 6), (100, 3, 8)])
def test_a_greedy_start_frees_most_and_loads_least(n: int, operands: int, M: int) -> None:
    """On graphs of random operands it is better than walks that keep related vertices together."""
    graph = scattered(n, operands, 0)
    task = Task(graph, M, "no-recompute")
    played = {name: next(task.steps_of(order))[1] for name, order in starts(task)}
    words = {name: play(task.board, task.desk(), order, FACTORS, NONE)[0] for name, order in played.items()}
    assert min(words, key=lambda name: words[name]) == "greedily"
    (order,) = (order for name, order in starts(task) if name == "greedily")
    assert sorted(order.tolist()) == sorted(task.topological.tolist())
    place = {v: at for at, v in enumerate(order.tolist())}
    assert all(place[int(u)] < place[v] for v in place for u in graph.predecessors(v) if int(u) in place)


def test_a_greedy_choice_by_hand() -> None:
    """Of 3 = f(0, 1), 4 = f(0, 2) and 5 = f(1), 4 is first: it loads two words and frees one. Then 0 is there for 3."""
    graph = Cdag.from_edges(6, [(0, 3), (1, 3), (0, 4), (2, 4), (1, 5)])
    task = Task(graph, 3, "no-recompute")
    (order,) = (order for name, order in starts(task) if name == "greedily")
    assert order.tolist() == [4, 3, 5]


# -- the referee -----------------------------------------------------------------------------------------------------


SUM = Cdag.from_edges(4, [(0, 2), (1, 2), (2, 3)])  # terms 0 and 1 of vertex 2, term 2 of vertex 3


@pytest.mark.parametrize(
    ("game", "says"),
    [
        ([(COMPUTE, 0)], "vertex 2 (term 1 of 2, vertex 0): predecessor vertex 0 has no red pebble"),
        ([(READ, 0), (COMPUTE, 0), (COMPUTE, 0)], "this term was already added"),
        ([(READ, 0), (COMPUTE, 0), (COMPUTE, 2)], "predecessor vertex 2 is not complete, it lacks 1 terms"),
        (
            [(READ, 0), (COMPUTE, 0), (WRITE, 2), (DELETE, 2), (READ, 1), (COMPUTE, 1)],
            "is begun, but has no red pebble",
        ),
        ([(READ, 0), (COMPUTE, 0), (READ, 1)], "needs a 3rd red pebble, M = 2"),
        (
            [(READ, 1), (COMPUTE, 1), (WRITE, 2), (DELETE, 2), (READ, 0), (COMPUTE, 0)],
            "vertex 0): the sum vertex 2 is begun, but has no red pebble",
        ),
        ([(READ, 0), (READ, 1), (COMPUTE, 0)], "vertex 0): needs a 3rd red pebble, M = 2"),
        ([(COMPUTE, 3)], "vertex 0 is an input"),
        ([(COMPUTE, 6)], "its 1 terms must be added one by one"),
        ([(COMPUTE, 7)], "this term does not exist; the graph has 3 edges"),
    ],
)
def test_an_illegal_term_tells_its_story(game: list[tuple[int, int]], says: str) -> None:
    outcome = referee(SUM, 2, [moves(*game)], "partial", strict=False)
    assert outcome.violation is not None
    assert outcome.violation.number == len(game)
    assert says in outcome.violation.message


def test_the_first_vertex_may_be_the_one_whose_terms_are_missing() -> None:
    """Its number is the first behind those of all terms."""
    outcome = referee(Cdag.from_edges(2, [(1, 0)]), 2, [moves((COMPUTE, 1))], "partial", strict=False)
    assert outcome.violation is not None
    assert "vertex 0: its 1 terms must be added one by one" in outcome.violation.message


def test_a_sum_is_complete_only_with_all_its_terms() -> None:
    game = [(READ, 0), (COMPUTE, 0), (WRITE, 2), (DELETE, 0), (READ, 1), (COMPUTE, 1), (DELETE, 1), (COMPUTE, 2)]
    referee_ = Referee(SUM, 2, "partial")
    referee_.play(moves(*game))
    assert not referee_.finish().complete
    referee_.play(moves((WRITE, 3)))
    assert referee_.finish().complete
    assert referee_.finish().io == 4
    partial = Cdag.from_edges(3, [(0, 2), (1, 2)])
    early = referee(partial, 2, [moves((READ, 0), (COMPUTE, 0), (WRITE, 2))], "partial")
    assert early.missing_outputs == 1  # memory has only a part of the sum
    stale = [(READ, 0), (COMPUTE, 0), (WRITE, 2), (DELETE, 0), (READ, 1), (COMPUTE, 1)]
    assert referee(partial, 2, [moves(*stale)], "partial").missing_outputs == 1  # and this is out of date


@pytest.mark.parametrize(
    "names",
    [
        ("5", "6", "7", "9"),
        ("3", "2", "1", "0"),
        ("x", "x", "y", "x"),
        ("a%b", " a", "a\nb", "#1"),
        ("", "#0", "a  b", "é"),
    ],
)
def test_a_game_in_text_is_judged_whatever_the_vertices_are_called(names: tuple[str, ...], tmp_path: Path) -> None:
    graph = Cdag.from_edges(4, [(0, 2), (1, 2), (2, 3)], names=names)
    save_graph(graph, tmp_path / "g.json")
    path, game = str(tmp_path / "g.json"), str(tmp_path / "game.txt")
    for words in (["pebble", path, "-M", "3", "--seconds", "0", "--save", game], ["judge", path, game, "-M", "3"]):
        answer = CliRunner().invoke(app, [*words, "--json"])
        assert answer.exit_code == 0, answer.output
        assert json.loads(answer.output)["complete"], answer.output


def test_a_game_of_others_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "game.txt"
    path.write_text(
        "Send down 0 to proc 0 in superstep 0\nSend down 1 to proc 0\n\nCompute 2 on proc 0 in superstep 1\n"
        "Evict 0 from proc 0\nCompute 3 on proc 0 in superstep 1\nSend up 3 from proc 0\n"
    )
    outcome = ps.judge(SUM, path, M=3)
    assert (outcome.complete, outcome.reads, outcome.writes, outcome.peak_red) == (True, 2, 1, 3)
    path.write_text("Compute 2 on proc 0 in superstep 1\n")
    assert "predecessor vertex 0 has no red pebble" in ps.judge(SUM, path, M=3).violation.message
    path.write_text("read vertex 0\nread vertex 1\ncompute vertex 2\n")
    assert ps.judge(SUM, path, M=3).moves == 3
    for text, says in (
        ("Compute 2 on proc 1 in superstep 1", "line 1: processor 1 moves"),
        ("read vertex 9", "line 1: 'read vertex 9' is not a move on this graph"),
        ("hello", "line 1"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=says):
            ps.judge(SUM, path, M=3)


# -- bounds of one's own ---------------------------------------------------------------------------------------------


@pytest.mark.one_in(4)
def test_a_bound_of_ones_own_is_tried_at_once() -> None:
    @bound
    def inputs_and_outputs(graph: Cdag, M: int) -> int:
        return sum(len(set(each.tolist())) for each in (graph.outputs,))

    try:
        assert inputs_and_outputs.optima > 50
        assert "proven optima" in str(inputs_and_outputs)
        found = pebble(generate("pyramid", rows=4), M=3, seconds=0.05)
        assert "inputs_and_outputs" in [each.name for each in found.bounds]
    finally:
        OWN.pop("inputs_and_outputs")

    with pytest.raises(UsageError, match=r"too_much gives \d+ words for .* a game of \d+ words exists"):

        @bound
        def too_much(graph: Cdag, M: int) -> int:
            return graph.edges + 1

    with pytest.raises(UsageError, match="is a whole number of words"):
        bound(lambda graph, M: 0.5)
    with pytest.raises(UsageError, match="ZeroDivisionError"):
        bound(lambda graph, M: 1 // 0)

    @bound(problem="matmul")
    def of_a_product(m: int, k: int, n: int, M: int) -> int:
        return m * k + k * n + m * n

    try:
        assert of_a_product.optima > 10
    finally:
        OWN.pop("of_a_product")
    with pytest.raises(UsageError, match="it is not a lower bound"):
        bound(lambda m, k, n, M: m * k + k * n + m * n + 1, problem="matmul")


@pytest.mark.one_in(4)
def test_a_bound_of_ones_own_counts_among_those_of_its_problem_and_says_whose_it_is() -> None:
    sizes = {"m": 30, "k": 30, "n": 30}
    before = ps.bounds("matmul", M=50, **sizes)

    @bound(problem="matmul")
    def bold(m: int, k: int, n: int, M: int) -> int:
        return m * k + k * n + m * n + (5400 if (m, M) == (30, 50) else 0)  # no graph and no count contradicts it

    @bound(problem="matmul", rules=("no-recompute",))
    def one_shot(m: int, k: int, n: int, M: int) -> int:
        return 0

    try:
        after = ps.bounds("matmul", M=50, **sizes)
        assert [each.name for each in after.lower] == [*(each.name for each in before.lower), "bold"]
        assert after.best.value == 2700 + 5400 > before.best.value
        assert "a user's own, without proof: at most each of" in str(after)
    finally:
        for name in ("bold", "one_shot"):
            OWN.pop(name)


@pytest.mark.one_in(4)
def test_a_bound_of_ones_own_stands_in_gaps_tables_and_latex() -> None:
    sizes = {"m": 30, "k": 30, "n": 30}
    before = ps.gaps("matmul", M=[50, 500], **sizes)
    printed = f"{before}{before.latex()}"  # bounds are computed when they are asked for

    @bound(problem="matmul")
    def bold(m: int, k: int, n: int, M: int) -> int:
        return 9000 if (m, M) == (30, 50) else 0  # no graph and no count contradicts it

    @bound(problem="matmul")
    def bolder(m: int, k: int, n: int, M: int) -> int:
        return 10**6 if (m, M) == (30, 200) else 0

    try:
        after = ps.gaps("matmul", M=[50, 500], **sizes)
        (small, large), (known, same) = after.rows, before.rows
        assert small.every_way.name == small.lower_bound.name == "bold"
        assert known.every_way.value < 9000 <= small.io == known.io
        assert small.gap == pytest.approx(small.io / 9000) and small.gap < known.gap
        assert (large.gap, large.every_way) == (same.gap, same.every_way)
        assert "bold: a user's own, without proof: at most each of" in str(after)
        assert r"(\text{bold, a user's own})" in after.latex()
        assert "bold" not in printed

        compared = ps.compare("matmul", M=50, **sizes)
        assert compared.lower_bound.value == 9000
        latex = ps.bounds("matmul", M=50, **sizes).latex()
        assert (
            r"\mathrm{IO}_{\text{bold}} & \ge 9000 & \quad \text{at m = 30, k = 30, n = 30, M = 50, a user's own"
            in latex
        )
        with pytest.raises(BelowBound, match=r"bolder gives 1,000,000 words for matmul .* M = 200, where .* moves"):
            _ = ps.compare("matmul", M=200, **sizes)[0].gap
    finally:
        for name in ("bold", "bolder"):
            OWN.pop(name)


@pytest.mark.one_in(4)
def test_a_bound_of_ones_own_stands_in_pictures() -> None:
    """By its name: among the bars, in the strip below a gap, and in the legend of the lower bound."""
    from matplotlib.figure import Figure

    from pebblesim.api.crossover import sweep
    from pebblesim.views.plots import bounds as bars, crossover as curves, gaps as gaps_over_M, skislope

    sizes = {"m": 12, "k": 12, "n": 12}

    @bound(problem="matmul")
    def bold(m: int, k: int, n: int, M: int) -> int:
        return 1000 if m == 12 and 16 <= M <= 32 else 0

    def drawn(draw: Callable[[Any], Any]) -> str:
        ax = Figure().subplots()
        draw(ax)
        legend = ax.legend()
        words = [each.get_text() for each in (*ax.texts, *legend.get_texts(), *ax.get_yticklabels())]
        return "; ".join(words)

    try:
        assert "bold, a user's own" in drawn(lambda ax: bars.bounds(ps.bounds("matmul", M=20, **sizes), ax))
        result = ps.gaps("matmul", M=[16, 20, 25, 30, 40], **sizes)
        text = drawn(lambda ax: gaps_over_M.gaps(result, ax, ["bold"]))
        assert "with all bounds, bold, a user's own" in text and "without bold" in text and "; bold;" in f"; {text};"
        assert "bold" in gaps_over_M.names_of_bounds(result)
        assert gaps_over_M.gap_without(result.rows[0], ["bold"]) > result.rows[0].gap
        assert "lower bound for any schedule, with a user's bold" in drawn(
            lambda ax: skislope.skislope(result.rows, ax)
        )
        found = sweep(ps.crossover("matmul-tiled", "matmul-streamed", **sizes), points=40)
        assert "lower bound for any schedule, with a user's bold" in drawn(lambda ax: curves.io_over_M(found, ax))
    finally:
        OWN.pop("bold")


@pytest.mark.one_in(4)
def test_a_bound_of_ones_own_that_a_schedule_goes_below_is_refused() -> None:
    """n² is below every optimum of a small graph; at n = 64 the words of a schedule are fewer."""
    words = (
        r"square gives 4,096 words for forward with n = 64, d = 8 at M = .*, where the schedule .* moves 2,112 words"
    )
    with pytest.raises(UsageError, match=words):

        @bound(problem="forward")
        def square(n: int, d: int, M: int) -> int:
            return n * n

    @bound(problem="forward")
    def elsewhere(n: int, d: int, M: int) -> int:
        return 10**9 if (n, d) == (100, 10) else 0

    try:
        with pytest.raises(
            UsageError, match=r"elsewhere gives 1,000,000,000 words .* n = 100, .* moves .* words: it is"
        ):
            ps.bounds("forward", n=100, d=10, M=500)
    finally:
        OWN.pop("elsewhere")


@pytest.mark.one_in(4)
def test_a_bound_of_ones_own_that_a_game_goes_below_is_refused() -> None:
    @bound
    def many(graph: Cdag, M: int) -> int:
        return len(set(graph.outputs.tolist()) - set(graph.inputs.tolist())) + max(0, graph.vertices - 50)

    try:
        with pytest.raises(UsageError, match=r"'many' gives 87 words .* M = 8; a game of \d+ words exists"):
            pebble(generate("pyramid", rows=16), M=8, seconds=0.2)
    finally:
        OWN.pop("many")


# -- generators, folders ---------------------------------------------------------------------------------------------


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    path = tmp_path / "L.mtx"
    path.write_text(
        "%%MatrixMarket matrix coordinate real general\n% lower\n3 3 6\n"
        "1 1 2.0\n2 2 1e-3\n3 3 -4\n2 1 1\n3 1 5\n3 2 7\n"
    )
    return path


def test_sizes_of_the_families(matrix: Path) -> None:
    """(vertices, edges, inputs, outputs), counted by hand."""
    sizes = {
        "fft": ({"n": 8}, (32, 48, 8, 8)),
        "pyramid": ({"rows": 4}, (10, 12, 4, 1)),
        "tree": ({"depth": 2, "k": 3}, (13, 12, 9, 1)),
        "stencil": ({"n": 4, "t": 2}, (12, 20, 4, 4)),  # 3 neighbours, 2 at either rim
        "matmul": ({"n": 2, "m": 1, "k": 3}, (3 + 6 + 6 + 4, 12 + 8, 9, 2)),
        "strassen": ({"n": 2}, (8 + 10 + 7 + 8, 20 + 14 + 16, 8, 4)),
        "triangular-solve": ({"matrix": str(matrix)}, (6 + 3 + 2 * 3 + 3, 4 * 3 + 6, 9, 1)),
        "spmv": ({"matrix": str(matrix)}, (6 + 3 + 6 + 3, 12 + 6, 9, 3)),
        "prefix-sums": ({"n": 4}, (4 + 4, 8, 4, 4)),
        "sorting-network": ({"n": 4}, (4 + 10, 20, 4, 4)),
        "layered": ({"layers": 3, "width": 4}, (12, 16, 4, 4)),
        "transformer": ({"n": 1, "d": 1}, (27, 33, 13, 1)),
    }
    assert set(sizes) == set(GENERATORS)
    for name, (parameters, counts) in sizes.items():
        graph = generate(name, **parameters)
        if name == "layered":
            assert (graph.vertices, graph.edges) == counts[:2]
        elif name != "transformer":
            assert (graph.vertices, graph.edges, len(graph.inputs), len(graph.outputs)) == counts, name
        assert GENERATORS[name].source


def test_a_matrix_is_a_file_or_an_array(matrix: Path, tmp_path: Path) -> None:
    entries = np.array([[2.0, 0, 0], [1, 1e-3, 0], [5, 7, -4]])
    for name in ("spmv", "triangular-solve"):
        from_file, from_array = generate(name, matrix=str(matrix)), generate(name, matrix=entries)
        assert (from_file.vertices, from_file.edges) == (from_array.vertices, from_array.edges)
    whole = tmp_path / "A.mtx"
    whole.write_text("%%MatrixMarket matrix coordinate real symmetric\n3 3 3\n1 1 4\n2 1 3\n3 2 1\n")
    nonzeros = 5  # one on the diagonal, two below it and their images above it; 2 + 2 + 1 in the rows
    graph = generate("spmv", matrix=whole)
    assert (graph.vertices, graph.edges) == (nonzeros + 3 + nonzeros + 2, 2 * nonzeros + 2 * 2)
    for refused, says in (
        (whole, "above the diagonal"),
        ([[1, 0]], "1 × 2"),
        ([1, 2], r"shape \(2,\)"),
        ("no", "read no"),
    ):
        with pytest.raises(UsageError, match=says):
            generate("triangular-solve", matrix=refused)
    with pytest.raises(UsageError, match="an array of numbers"):
        generate("spmv", matrix=[["a"]])
    whole.write_text("%%MatrixMarket matrix coordinate real symmetric\n3 3 1\n2 3 4\n")
    with pytest.raises(UsageError, match="line 3: a symmetric matrix stores its lower triangle"):
        generate("spmv", matrix=whole)


def test_numbers_of_numpy_are_sizes() -> None:
    assert generate("fft", n=np.int64(8)).vertices == 32
    assert ps.optimum("fft", n=4, M=4).io == ps.optimum(generate("fft", n=4), M=4).io
    with pytest.raises(UnknownName, match="no problem or generator is called 'ftf'"):
        ps.optimum("ftf", n=4, M=4)
    for search in (pebble, ps.optimum):
        with pytest.raises(UsageError, match="seconds = 'soon' was given"):
            search(SUM, M=3, seconds="soon")  # type: ignore[operator]
    with pytest.raises(UsageError, match="n must be the number of vertices"):
        Cdag.from_edges([(0, 1)], 2)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="1 names were given for 2 vertices"):
        Cdag.from_edges(2, [(0, 1)], names=["a"])


@given(n=st.integers(1, 9), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_sorting_networks_sort_and_prefix_sums_sum(n: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 20, n).tolist()
    for name, fold in (("sorting-network", None), ("prefix-sums", sum)):
        graph = generate(name, n=n)
        got = dict(enumerate(values))
        for v in range(n, graph.vertices):
            a, b = (got[u] for u in graph.predecessors(v).tolist())
            # A comparator's minimum has the lower number of its two vertices.
            got[v] = fold((a, b)) if fold else (min if (v - n) % 2 == 0 else max)(a, b)
        if fold:
            assert sorted(got[v] for v in graph.outputs.tolist()) == sorted(np.cumsum(values).tolist())
        else:
            assert sorted(got[v] for v in graph.outputs.tolist()) == sorted(values)


def test_a_folder_of_graphs(tmp_path: Path) -> None:
    ps.save_graph(generate("pyramid", rows=4), tmp_path / "p.hdag")
    ps.save_graph(generate("fft", n=4), tmp_path / "f.dot")
    found = list(rows(tmp_path, "no-recompute", 0.05))
    assert [row["M"] for row in found if row["file"] == "p.hdag"] == [3, 4, 6, 9, 15]
    for file in ("p.hdag", "f.dot"):  # neither games nor bounds grow with M
        for name in ("io", "bound"):
            words = [row[name] for row in found if row["file"] == file]
            assert words == sorted(words, reverse=True)
    (tmp_path / "costs.csv").write_text("file,M,peer_foresight,proven_optimum_no_recompute\np.hdag,3,12,11\n")
    found = list(rows(tmp_path, "no-recompute", 0.05))
    assert [(row["M"], row["peer"], row["proven"]) for row in found] == [(3, 12, 11)]
    assert "above the proven optimum: 0.00 %" in summary(found)
    (tmp_path / "costs.csv").write_text("file,M\np.hdag,many\n")
    with pytest.raises(UsageError, match="not a table with the columns"):
        list(rows(tmp_path, "no-recompute", 0.05))
    with pytest.raises(UsageError, match="is not a folder"):
        list(rows(tmp_path / "nowhere", "no-recompute", 0.05))


def test_rows_of_a_graph_share_games_and_bounds() -> None:
    """A game at M = 3 fits at M = 4, and a bound at M = 4 holds at M = 3."""
    made = [{"M": M, "io": io, "bound": bound, "by": by} for M, io, bound, by in ((4, 12, 9, "a"), (3, 11, 7, "b"))]
    assert [tuple(row.values()) for row in _shared(made)] == [(4, 11, 9, "a"), (3, 11, 9, "a at M = 4")]


@pytest.mark.parametrize(
    ("file", "text", "error", "match"),
    [
        ("z.hdag", "no graph\n", PebblesimError, "z.hdag: line 1"),
        ("costs.csv", "file,M\np.hdag,3\np.hdag,2\n", Infeasible, "p.hdag: M = 2 red pebbles are too few"),
    ],
)
def test_what_cannot_be_played_is_said_before_the_first_game(
    tmp_path: Path, file: str, text: str, error: type[PebblesimError], match: str
) -> None:
    ps.save_graph(generate("pyramid", rows=4), tmp_path / "p.hdag")
    (tmp_path / file).write_text(text)
    with pytest.raises(error, match=match):
        next(rows(tmp_path, "no-recompute", 0.05))


def test_a_search_of_states_goes_on_however_slow_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of the compiled loop seems to take 3 seconds. So it looks at so few states at once that none is new."""
    graph, clock = scattered(14, 2, 1), iter(range(0, 300_000, 3))
    least = ps.optimum(graph, M=3).io
    monkeypatch.setattr("pebblesim.dags.optimum_states.time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert ps.optimum(graph, M=3).io == least


@pytest.mark.parametrize("rules", SEARCHED[:2])
def test_a_search_goes_on_among_the_followers_of_a_state(rules: str) -> None:
    """A state may have more followers than a call looks at, all of them too dear to be stored, and soon forgotten."""
    graph = scattered(14, 2, 1)
    task, least = Task(graph, 4, rules), optimum(graph, 4, rules).io
    board, _ = _bit_board(task)
    for budget in (2, 10**9):
        tree = _tree(optimum_kernel, 10**5, len(board.inputs), least + 1, len(board.base) > 0, 1)
        space = optimum_kernel.room_for(len(board.degree), len(board.inputs))
        calls = (optimum_kernel.search(board, tree, space, budget) for _ in range(10**5))
        how, last = next(call for call in calls if call[0] != optimum_kernel.GOES_ON)
        assert (how, tree.costs[last]) == (optimum_kernel.FOUND, least)


@pytest.mark.parametrize("rules", SEARCHED[:2])
def test_a_search_of_so_many_steps_says_that_they_ended_it(rules: str) -> None:
    graph = scattered(14, 2, 1)
    task, least = Task(graph, 3, rules), optimum(graph, 3, rules).io
    ended = []
    for steps in (0, 1, 20, 300, 10**6):
        run = Interval(task, 10**3, np.empty(0, dtype=np.int64), 0, "")
        optimum_states.search_states(run, None, 2**24, float("inf"), lambda: None, steps)
        assert run.steps <= steps and run.bound <= least
        assert run.proven == (run.ended != "steps") and (run.io == least or not run.proven)
        ended.append(run.ended)
    assert ended[:3] == ["steps"] * 3 and ended[-1] == "time"
