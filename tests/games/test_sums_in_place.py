"""Sums in place: a multiply-add is one step, and neither the product nor the new sum has a pebble of its own.

Three judges of the same games: the referee, a walk over the moves of the game on chains, and the referee under
`partial`, on a graph in which a sum is one vertex that takes its terms one by one.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given, strategies as st

import pebblesim as ps
from pebblesim.api.graph import graph_of
from pebblesim.core.errors import UsageError
from pebblesim.counting.run import Run
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, chunks, moves as packed, unpack
from pebblesim.game.player import moves
from pebblesim.game.referee import IllegalMove, referee
from pebblesim.graphs.builder import Builder
from pebblesim.graphs.cdag import Cdag
from pebblesim.graphs.in_place import in_place
from pebblesim.language import exp, rowsum
from pebblesim.language.problems import PROBLEMS
from pebblesim.language.registry import SCHEDULES, Schedule, get

PLENTY = 10**6
ONCE = [  # each value is computed once, so that it may be played under `partial`
    "matmul-tiled",
    "matmul-streamed",
    "small-cache-forward",
    "scores-stored",
    "scores-partly-stored",
    "scores-partly-stored-relu",
    "small-cache-relu",
]
AGAIN = ["large-cache", "row-stationary", "regrouped", "standard-backward", "q-stored"]


def drawn(name: str, data: st.DataObject) -> dict[str, Any]:
    sizes = data.draw(strategies.sizes(get(name), 5))
    blocks = get(name).blocks
    return {"blocks": {block: sizes.pop(block) for block in blocks}, **sizes}


def game_on_chains(name: str, asked: dict[str, Any]) -> tuple[Cdag, list[int]]:
    run = Run.of(name, {dim: asked[dim] for dim in asked.keys() - {"blocks"}}, M=PLENTY, blocks=asked["blocks"])
    graph = graph_of(run)
    return graph, [move for chunk in moves(run.program, run.sizes, graph.families) for move in chunk.tolist()]


def elements_of(graph: Cdag) -> tuple[list[Any], list[int], list[bool]]:
    """For each vertex: its element, the vertex of the element's value, and whether it is a term added to a sum."""
    where = [graph.locate(v) for v in range(graph.vertices)]
    element = [(family.name, block, index) for family, block, index, _ in where]
    value = {element[v]: v for v, (*_, part) in enumerate(where) if part.kind == "value"}
    added = [part.kind == "term" and (part.first > 0 or family.start) for family, _, _, part in where]
    assert not any(family.onto for family in graph.families)
    return element, [value.get(each, v) for v, each in enumerate(element)], added


def walked(graph: Cdag, stream: list[int]) -> int:
    """The peak without terms that are added to a sum, and with one pebble for all sums of an element."""
    element, _, added = elements_of(graph)
    red: set[int] = set()
    sums: Counter[Any] = Counter()
    peak = 0
    for kind, v in map(unpack, stream):
        if kind in (READ, COMPUTE, DELETE):
            (red.remove if kind == DELETE else red.add)(v)
            if not added[v]:
                sums[element[v]] += -1 if kind == DELETE else 1
        peak = max(peak, sum(number > 0 for number in sums.values()))
    assert not red
    return peak


def by_terms(graph: Cdag, stream: list[int]) -> tuple[Any, list[int]]:
    """The graph with one vertex for each sum and products without weight, and the same game on it for `partial`."""
    _, value, added = elements_of(graph)
    kinds = [graph.locate(v)[3].kind for v in range(graph.vertices)]
    preds: list[list[int]] = [[] for _ in kinds]
    for v, kind in enumerate(kinds):
        if kind == "term":
            preds[value[v]].append(v)
    sums = [bool(each) for each in preds]
    for v, kind in enumerate(kinds):
        if kind != "running" and not sums[v]:
            preds[v] = graph.predecessors(v).tolist()
    starts = np.cumsum([0, *map(len, preds)])
    contracted = SimpleNamespace(
        vertices=graph.vertices,
        edges=int(starts[-1]),
        indptr=starts,
        preds=np.array([u for each in preds for u in each]),
        inputs=graph.inputs,
        outputs=graph.outputs,
        weights=np.array([int(kind != "term") for kind in kinds]),
        describe=graph.describe,
    )
    played = []
    for before, move in pairwise([DELETE, *stream]):
        kind, v = unpack(move)
        last, u = unpack(before)
        if kind in (READ, WRITE):
            played.append(value[v] * 4 + kind)
        elif kind == COMPUTE and kinds[v] != "running" and not sums[v]:
            played += [edge * 4 + COMPUTE for edge in range(starts[v], starts[v + 1])]
            if kinds[v] == "term":
                at = int(starts[value[v]]) + preds[value[v]].index(v)
                played += [at * 4 + COMPUTE, v * 4 + DELETE]
        elif kind == DELETE and not added[v] and not (last == COMPUTE and value[u] == value[v]):
            played.append(value[v] * 4 + DELETE)
    return contracted, played


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [*ONCE, *AGAIN])
@given(data=st.data())
@strategies.draws(4, 40)
def test_the_peak_is_that_of_a_walk_over_the_moves(name: str, data: st.DataObject) -> None:
    asked = drawn(name, data)
    played = ps.play(name, M=PLENTY, summation="in-place", **asked)
    assert played.passed
    assert played.game.peak_red == walked(*game_on_chains(name, asked))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", ONCE)
@given(data=st.data())
@strategies.draws(4, 40)
def test_the_peak_is_that_of_a_game_under_partial(name: str, data: st.DataObject) -> None:
    asked = drawn(name, data)
    counted = ps.count(name, M=PLENTY, summation="in-place", **asked)
    graph, stream = by_terms(*game_on_chains(name, asked))
    game = referee(graph, counted.peak_red, [np.array(stream)], "partial")
    assert game.complete
    assert (game.reads, game.writes, game.peak_red) == (counted.reads, counted.writes, counted.peak_red)
    with pytest.raises(IllegalMove, match="red pebble, M ="):
        referee(graph, counted.peak_red - 1, [np.array(stream)], "partial")


@strategies.every(SCHEDULES, of=8)
@given(data=st.data())
@strategies.draws(2, 30)
def test_every_game_is_as_predicted_and_needs_at_most_two_pebbles_less(schedule: Schedule, data: st.DataObject) -> None:
    asked = drawn(schedule.name, data)
    apart, beside = (ps.count(schedule, M=PLENTY, summation=each, **asked) for each in ("chain", "in-place"))
    assert apart.io == beside.io
    assert apart.peak_red - 2 <= beside.peak_red <= apart.peak_red
    assert ps.play(schedule, M=beside.peak_red, summation="in-place", **asked).passed


@pytest.fixture
def row_sums():
    """v = (exp(A) ∘ B) 1, by blocks of rows, of columns of one word."""

    def declare(n, d, summation="chain", *, mask=None):
        b = Builder(summation, mask)
        b.outputs = ("v",)
        for name in ("A", "B"):
            b.input(name, (n, d))
        b.elementwise("C", "exp", "A")
        b.elementwise("D", "mul", "C", "B")
        b.rowsum("v", "D")
        return b

    ps.problem(
        "row-sums",
        inputs=dict.fromkeys("AB", ("n", "d")),
        outputs={"v": ("n",)},
        values=lambda x, allowed=None: {"v": (np.exp(x["A"]) * x["B"]).sum(axis=1)},
        graph=declare,
        dims=("n", "d"),
        from_nd={"n": "n", "d": "d"},
        source="this test",
    )

    @ps.schedule(problem="row-sums", source="this test", io="2*n*d + n")
    def sums_of_products(m, A, B, *, b):
        n, d = A.shape
        v = m.tensor("v", n)
        for i in m.tiles(n, b):
            v_i = m.zeros(i)
            for k in m.tiles(d, 1):
                v_i += rowsum(exp(m.read(A[i, k])) * m.read(B[i, k]))
            m.write(v[i], v_i)

    yield "sums-of-products"
    SCHEDULES.pop("sums-of-products")
    PROBLEMS.pop("row-sums")


@pytest.mark.parametrize(("b", "d", "peak"), [(1, 1, 4), (1, 3, 5), (2, 3, 8), (3, 2, 11)])
def test_a_term_that_is_computed_from_others_has_a_pebble(row_sums: str, b: int, d: int, peak: int) -> None:
    """b words of A, of B and of v, an exponential and its product; a first term takes the place of the sum."""
    asked: dict[str, Any] = {"n": 3, "d": d, "blocks": {"b": b}}
    played = ps.play(row_sums, M=peak, summation="in-place", **asked)
    assert played.passed
    assert played.game.peak_red == walked(*game_on_chains(row_sums, asked)) == peak


MASKABLE = {name: schedule for name, schedule in SCHEDULES.items() if schedule.maskable}


@strategies.every(MASKABLE, of=8)
@given(data=st.data())
@strategies.draws(2, 30)
def test_games_under_masks_are_as_predicted(schedule: Schedule, data: st.DataObject) -> None:
    asked = drawn(schedule.name, data)
    queries, keys = schedule.problem.grid(asked)
    assert queries == keys
    mask = data.draw(strategies.masks(queries))
    played = ps.play(schedule, M=PLENTY, summation="in-place", mask=mask, **asked)
    assert played.game.peak_red == played.predicted["peak_red"]
    assert played.passed


def product() -> Cdag:
    """C[0,0] of two terms, in place: A and B are vertices 0, 1 and 2, 3, then products 4 and 5, and the sum 6."""
    return in_place(ps.graph("matmul", m=1, k=2, n=1))


READS = [(READ, v) for v in range(4)]


def test_a_sum_takes_over_a_pebble_only_if_its_deletion_is_the_next_move() -> None:
    at_once = packed(*READS, (COMPUTE, 4), (COMPUTE, 5), (COMPUTE, 6), (DELETE, 4), (DELETE, 5), (WRITE, 6))
    later = packed(*READS, (COMPUTE, 4), (COMPUTE, 5), (COMPUTE, 6), (DELETE, 5), (DELETE, 4), (WRITE, 6))
    assert referee(product(), 5, [at_once]).complete
    assert referee(product(), 5, [at_once]).peak_red == 5
    with pytest.raises(IllegalMove, match=r"move 7: compute C\[0,0\]: needs a 6th red pebble, M = 5"):
        referee(product(), 5, [later])
    assert referee(product(), 6, [later]).peak_red == 6


def test_the_next_move_may_come_in_the_next_chunk_or_never() -> None:
    stream = packed(*READS, (COMPUTE, 4), (COMPUTE, 5), (COMPUTE, 6), (DELETE, 4), (DELETE, 5), (WRITE, 6))
    for size in range(1, len(stream) + 1):
        game = referee(product(), 5, chunks(stream, size))
        assert (game.complete, game.peak_red, game.moves) == (True, 5, len(stream))
    game = referee(product(), 5, [stream[:7]], strict=False)
    assert (game.moves, game.legal) == (6, False)
    assert referee(product(), 6, [stream[:7]]).moves == 7


def test_on_the_machine_of_accelforge_fewer_words_than_its_mapping() -> None:
    """Its mapping of forward-relu, n = 1024, d = 64: 32 rows of Q, 32 sums and a word of K, 98 nd in 2,081 words."""
    sizes: dict[str, Any] = {"n": 1024, "d": 64, "blocks": "best"}
    theirs = 98 * 1024 * 64
    with_products = ps.compare("forward-relu", M=2_083, **sizes).best
    in_their_place = ps.compare("forward-relu", M=2_081, summation="in-place", **sizes).best
    for best in (with_products, in_their_place):
        assert (best.schedule, best.io) == ("scores-partly-stored-relu", theirs - 2 * 1024)
        assert best.peak_red == best.M
    assert ps.search("forward-relu", M=2_081, n=1024, d=64, summation="in-place").io < theirs


@pytest.mark.one_in(2)
@given(data=st.data())
@strategies.draws(30, 600)
def test_no_game_is_below_the_lower_bounds_for_two_pebbles_more(data: st.DataObject) -> None:
    schedule = data.draw(st.sampled_from(list(SCHEDULES.values())))
    dims = data.draw(strategies.dims(schedule, 30))
    least = ps.count(schedule, M=PLENTY, blocks=dict.fromkeys(schedule.blocks, 1), summation="in-place", **dims)
    M = least.peak_red + data.draw(st.integers(0, 300))
    row = ps.count(schedule, M=M, blocks="best", summation="in-place", **dims)
    assert row.feasible and row.gap >= 1
    assert row.lower_bound == ps.count(schedule, M=M + 2, blocks=row.blocks, **dims).lower_bound


def test_tables_say_what_their_lower_bounds_are_for() -> None:
    in_place = ps.gaps("linear", n=64, d=8, M=512, summation="in-place")
    assert str(in_place).endswith("the lower bounds are those of two pebbles more, for a product and a new sum")
    assert "pebbles more" not in str(ps.gaps("linear", n=64, d=8, M=512))


def test_what_does_not_know_sums_in_place_says_so() -> None:
    sizes: dict[str, Any] = {"n": 4, "d": 2, "M": 100}
    with pytest.raises(UsageError, match="played and counted, not recorded"):
        ps.record("small-cache", summation="in-place", **sizes)
    with pytest.raises(UsageError, match="search takes summation 'chain' or 'in-place', not 'balanced'"):
        ps.search("forward", summation="balanced", **sizes)
    with pytest.raises(UsageError, match=r"summation must be .* not 'in-place'"):
        ps.graph("forward", n=4, d=2, summation="in-place")
