"""Every registered schedule, in all its readings: they must agree exactly, with each other and with the oracles.

A schedule is tested here the moment it is registered.
"""

from functools import cache
from typing import Any

import numpy as np
import oracle_loops
import pytest
import strategies
import sympy
from hypothesis import given, strategies as st

import pebblesim as ps
from pebblesim import graphs
from pebblesim.analysis.blocks import choose
from pebblesim.analysis.compiled import compile_exact
from pebblesim.analysis.count import count
from pebblesim.analysis.formula import Formula, formula
from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, unpack
from pebblesim.game.player import moves
from pebblesim.game.referee import Game, IllegalMove, referee
from pebblesim.graphs.cdag import Cdag
from pebblesim.graphs.in_place import in_place
from pebblesim.language import Block, Machine, Tensor, exp, rowmax, rowsum
from pebblesim.language.numbers import numbers
from pebblesim.language.registry import SCHEDULES, Schedule, schedule as register


def nested(m: Machine, A: Tensor, B: Tensor, *, a: Block, b: Block) -> None:
    """Tiles of tiles, ragged twice over, which the schedules of the papers do not have."""
    (rows, terms), (_, columns) = A.shape, B.shape
    C = m.tensor("C", rows, columns)
    for i in m.tiles(rows, a):
        for j in m.tiles(columns, a):
            C_ij = m.zeros(i, j)
            for k in m.tiles(terms, a):
                for r in m.tiles(i, b):
                    A_rk = m.read(A[r, k])
                    for c in m.tiles(j, b):
                        C_ij[r, c] += A_rk @ m.read(B[k, c])
            m.write(C[i, j], C_ij)


def moved(m: Machine, A: Tensor, B: Tensor, *, a: Block) -> None:
    """A sum that changes its tile when it is finished."""
    (rows, terms), (_, columns) = A.shape, B.shape
    C = m.tensor("C", rows, columns)
    C_ = m.zeros(rows, columns)
    here = m.zeros(rows, columns)
    for k in m.tiles(terms, a):
        C_ += m.read(A[:, k]) @ m.read(B[k, :])
    m.move(C_, here)
    m.write(C, here)


def in_parts(m, A1, A2, A3, dO, X, Y, O, l, *, B, b):  # type: ignore[no-untyped-def]
    """A sum that waits in memory between tiles of B rows, and gets its terms by tiles of b rows of those."""
    n, d = A1.shape
    dQ, g = m.tensor("dQ", n, d), m.tensor("g", d, d)
    with m.phase("dQ"):
        A2_, dO_ = m.read(A2), m.read(dO)
        S = m.compute(m.read(A1) @ m.read(X))
        p = m.compute(S @ A2_.T)
        p[:] = exp(p) / m.read(l)
        h = m.compute(m.read(A3) @ m.read(Y))
        q = m.compute(dO_ @ h.T)
        v = m.compute(rowsum(dO_ * m.read(O)))
        p[:] = p * (q - v)
        m.write(dQ, m.compute(p @ A2_))
    with m.phase("g"):
        m.write(g, 0)
        for i in m.tiles(n, B):
            for k in m.tiles(d, b):
                g_k = m.read(g[k, :])
                for r in m.tiles(i, b):
                    g_k += m.read(A1[r, k]).T @ m.read(dQ[r, :])
                m.write(g[k, :], g_k)


with SCHEDULES.temporary():
    kept_apart = {"order": "U", "kept": True, "centred": True, "g_block": "B"}
    EXTRA = [
        register(problem="matmul", source="this test")(nested),
        register(problem="matmul", source="this test")(moved),
        register(problem="backward", source="this test", graph=kept_apart)(in_parts),
    ]
TESTED = {**SCHEDULES, **{each.name: each for each in EXTRA}}
every_schedule = strategies.every(TESTED, of=3)


def graph_of(schedule: Schedule, sizes: dict[str, int], summation: str) -> Cdag:
    dims = {dim: sizes[dim] for dim in schedule.problem.dims}
    options = schedule.graph_options(sizes)
    if summation == "in-place":
        return in_place(graphs.build(schedule.problem.name, **dims, **options))
    return graphs.build(schedule.problem.name, summation, **dims, **options)


def played(schedule: Schedule, sizes: dict[str, int], summation: str, M: int) -> Game:
    graph = graph_of(schedule, sizes, summation)
    return referee(graph, M, moves(schedule.program, sizes, graph.families))


@pytest.mark.parametrize("summation", ["balanced", "blocked:2", "blocked:3"])
@pytest.mark.parametrize("c", [1, 2, 3])
def test_a_value_waits_until_a_block_of_terms_in_parts_is_added_to_it(summation: str, c: int) -> None:
    """O, rescaled, is what a tree of b products is added to, and they are made c at a time."""
    played = ps.play("scores-stored-blocked", n=5, d=2, M=1000, blocks={"a": 2, "b": 4, "c": c}, summation=summation)
    assert played.passed


@every_schedule
@given(data=st.data())
@strategies.draws(2, 50)
def test_the_game_is_complete_and_moves_and_holds_what_count_says(schedule: Schedule, data: st.DataObject) -> None:
    sizes = data.draw(strategies.sizes(schedule))
    summation = data.draw(strategies.summations(schedule))
    predicted = count(schedule.program, sizes, summation)
    game = played(schedule, sizes, summation, predicted.peak_red)
    assert game.complete
    assert (game.reads, game.writes) == (predicted.total.reads, predicted.total.writes)
    assert game.peak_red == predicted.peak_red


@strategies.every(TESTED, of=6)
@given(data=st.data())
@strategies.draws(2, 50)
def test_the_closed_form_is_the_count(schedule: Schedule, data: st.DataObject) -> None:
    sizes = data.draw(strategies.sizes(schedule, largest=40))
    (closed, tensors, phases), counted = closed_form(schedule.name), count(schedule.program, sizes)
    assert closed.evaluate(**sizes) == counted.total.io
    assert closed.function_of("peak_words")(**sizes) == counted.peak_words
    parts = {name: (reads(**sizes), writes(**sizes)) for name, (reads, writes) in tensors.items()}
    moved = {name: words for name, words in parts.items() if any(words)}  # a tensor may be used in some sizes only
    assert moved == {name: (t.reads, t.writes) for name, t in counted.by_tensor.items()}
    assert {name: io(**sizes) for name, io in phases.items()} == {name: t.io for name, t in counted.by_phase.items()}


@cache
def closed_form(name: str) -> tuple[Formula, dict[str, Any], dict[str, Any]]:
    """A schedule's closed form, derived once, and its parts by tensor and by phase as functions of the sizes."""
    closed = formula(TESTED[name].program)
    tensors = {
        tensor: tuple(compile_exact(words, closed.variables) for words in traffic)
        for tensor, traffic in closed.by_tensor.items()
    }
    return (
        closed,
        tensors,
        {phase: compile_exact(reads + writes, closed.variables) for phase, (reads, writes) in closed.by_phase.items()},
    )


@strategies.every(TESTED, of=4)
@given(data=st.data())
@strategies.draws(2, 50)
def test_the_numbers_are_the_reference(schedule: Schedule, data: st.DataObject) -> None:
    sizes = data.draw(strategies.sizes(schedule))
    inputs = schedule.problem.random_inputs(sizes, seed=data.draw(st.integers(0, 9)), kept=schedule.kept)
    reference = schedule.problem.reference(inputs)
    for name, output in numbers(schedule.program, sizes, inputs).items():
        # g is a difference of terms of order one, and exactly 0 at n = 1
        np.testing.assert_allclose(output, reference[name], rtol=1e-10, atol=1e-12)


@strategies.every(TESTED, of=8)
@given(data=st.data())
@strategies.draws(3, 50)
def test_the_largest_blocks_that_fit_are_playable_in_m(schedule: Schedule, data: st.DataObject) -> None:
    dims = data.draw(strategies.dims(schedule, largest=7))
    summation = data.draw(strategies.summations(schedule))
    with pytest.raises(Infeasible) as too_small:
        choose(schedule, dims, 1, "fit", summation)
    M = too_small.value.least_M + data.draw(st.integers(0, 40))  # the feasibility edge among them
    sizes = dims | choose(schedule, dims, M, data.draw(st.sampled_from(["fit", "best"])), summation)
    game = played(schedule, sizes, summation, M)
    assert game.complete
    assert game.peak_red <= M


@strategies.every(TESTED, of=8)
@given(data=st.data())
@strategies.draws(3, 50)
def test_a_balanced_tree_needs_more_pebbles_and_the_same_words(schedule: Schedule, data: st.DataObject) -> None:
    sizes = data.draw(strategies.sizes(schedule, largest=20))
    chain, balanced = (count(schedule.program, sizes, summation) for summation in ("chain", "balanced"))
    assert balanced.total == chain.total
    assert balanced.peak_words == chain.peak_words
    assert balanced.peak_red >= chain.peak_red


@strategies.every(TESTED, of=8)
def test_no_move_of_a_tight_game_can_be_left_out(schedule: Schedule) -> None:
    """Deleting any single read, compute or write makes the game illegal or incomplete."""
    dims = dict(zip(schedule.problem.dims, (3, 2, 2), strict=False))
    sizes = dims | dict.fromkeys(schedule.blocks, 2)
    M = count(schedule.program, sizes).peak_red
    graph = graph_of(schedule, sizes, "chain")
    stream = np.concatenate([chunk.copy() for chunk in moves(schedule.program, sizes, graph.families)])
    assert referee(graph, M, [stream]).complete
    with pytest.raises(IllegalMove, match="red pebble, M ="):
        referee(graph, M - 1, [stream])
    kinds, _ = unpack(stream)
    assert set(kinds.tolist()) == {READ, WRITE, COMPUTE, DELETE}
    for at in strategies.some(np.flatnonzero(kinds != DELETE), 40):
        assert not referee(graph, M, [np.delete(stream, at)], strict=False).complete


ORACLES = {
    "small-cache": lambda s: oracle_loops.small_cache(s["n"], s["d"], s["B"]),
    "large-cache": lambda s: oracle_loops.large_cache(s["n"], s["d"], s["B_r"], s["B_c"]),
    "flash": lambda s: oracle_loops.flash(s["n"], s["d"], s["B"], s["B_r"], s["B_c"]),
    "no-cache": lambda s: oracle_loops.no_cache(s["n"], s["d"]),
    "matmul-tiled": lambda s: oracle_loops.matmul_tiled(s["m"], s["k"], s["n"], s["b"]),
    "matmul-streamed": lambda s: oracle_loops.matmul_streamed(s["m"], s["k"], s["n"], s["a"], s["b"]),
}


@pytest.mark.parametrize("name", ORACLES)
@given(data=st.data())
@strategies.draws(8, 100)
def test_the_count_is_that_of_the_loops_of_the_paper(name: str, data: st.DataObject) -> None:
    schedule = SCHEDULES[name]
    sizes = data.draw(strategies.sizes(schedule, largest=12))
    loops, counted = ORACLES[name](sizes), count(schedule.program, sizes)
    assert (counted.total.reads, counted.total.writes) == (loops.reads, loops.writes)
    assert {name: (t.reads, t.writes) for name, t in counted.by_tensor.items()} == dict(loops.by_tensor)
    if loops.peak_words is not None:
        assert counted.peak_words == loops.peak_words


def test_something_says_what_each_schedule_moves() -> None:
    """A new schedule states its I/O, `@schedule(io=...)`, or gets an oracle of loops here."""
    for schedule in SCHEDULES.values():
        assert schedule.io or schedule.name in ORACLES, f"nothing but its own program says what {schedule.name} moves"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=list(SCHEDULES))
@strategies.draws(2, 100)
@given(data=st.data())
def test_no_word_is_moved_that_the_source_does_not_state(schedule: Schedule, data: st.DataObject) -> None:
    if schedule.io:
        sizes = data.draw(strategies.sizes(schedule, largest=40))
        assert oracle_loops.stated(schedule.io, sizes) == count(schedule.program, sizes).total.io


def test_the_closed_form_of_small_cache_is_the_one_on_paper() -> None:
    n, d, B = sympy.symbols("n d B")
    rows, columns = sympy.ceiling(n / B), sympy.ceiling(d / B)
    on_paper = 5 * n * d * rows + n**2 * columns + 4 * n * d * columns + 2 * d**2 * rows + 9 * n**2 + 3 * n * d + d**2
    assert sympy.simplify(ps.formula("small-cache").io - on_paper) == 0


def test_sizes_may_be_astronomical() -> None:
    n, d, B = 2**30, 128, 127
    rows, columns = -(-n // B), -(-d // B)
    on_paper = 5 * n * d * rows + n**2 * columns + 4 * n * d * columns + 2 * d**2 * rows + 9 * n**2 + 3 * n * d + d**2
    assert ps.count("small-cache", n=n, d=d, M=4 * B**2, blocks={"B": B}).io == on_paper
    assert ps.formula("small-cache").evaluate(n=n, d=d, B=B) == on_paper


def test_a_sweep_is_exact_beyond_the_range_of_int64() -> None:
    closed = ps.formula("small-cache")
    n = np.array([2**30, 2**30 + 1, 3])
    assert closed.evaluate(n=n, d=128, B=16).tolist() == [closed.evaluate(n=int(x), d=128, B=16) for x in n]


def test_a_sweep_takes_sizes_beyond_int64() -> None:
    closed = ps.formula("matmul-tiled")
    assert closed.evaluate(m=np.array([3, 4]), k=3, n=3, b=2**63).tolist() == [27, 33]
    with pytest.raises(UsageError, match="takes m, k, n, b, but got m, k"):
        closed.evaluate(m=3, k=3)
    with pytest.raises(UsageError, match="b must be whole numbers"):
        closed.evaluate(m=np.array([3]), k=3, n=3, b=np.array([0]))


def test_blocks_that_are_given_and_do_not_fit_are_counted_as_given() -> None:
    rows = ps.compare(schedules=["large-cache", "flash"], n=64, d=8, M=600, blocks={"B_r": 1000})
    row = next(row for row in rows if row.schedule == "large-cache")
    assert row.blocks["B_r"] == 1000
    assert not row.feasible
    assert row.least_M == row.peak_red


def test_what_is_kept_apart_cannot_wait_in_memory() -> None:
    @register(problem="forward", source="this test", graph={"softmax": "flash1", "column_block": "b"})
    def spilled(m, Q, K, V, *, b):  # type: ignore[no-untyped-def]
        n, d = Q.shape
        largest, O = m.tensor("largest", n), m.tensor("O", n, d)
        Q_ = m.read(Q)
        for j in m.tiles(n, b):
            S = m.compute(Q_ @ m.read(K[j, :]).T)
            m.write(largest, m.compute(rowmax(S)))
        m.write(O, m.read(V))

    with pytest.raises(UsageError, match="writes m_block, which has 3 separate blocks in its graph"):
        ps.play(spilled, n=6, d=2, M=200, blocks={"b": 2})


def test_pseudo_code_brackets_what_is_divided_by() -> None:
    @register(problem="forward", source="this test")
    def divided(m, Q, K, V):  # type: ignore[no-untyped-def]
        a, b, c = m.read(Q), m.read(K), m.read(V)
        x = m.compute(a / (b * c))
        y = m.compute(a / b * c)
        x[:] = x - (y - a)
        m.write(m.tensor("O", *Q.shape), x)

    text = ps.show(divided)
    assert "x ← Q / (K ∘ V)" in text
    assert "y ← Q / K ∘ V" in text
    assert "x ← x − (y − Q)" in text


def test_printed_blocks_of_algorithm_9_do_not_fit_and_do_not_reach_its_bound() -> None:
    """Counted from the pseudo-code: at n = 4096, d = 64 the printed blocks need 2.57 M at M = d², and the I/O stays
    Θ(n²) as M grows.
    """
    n, d = 4096, 64
    printed = {mu: ps.count("large-cache", n=n, d=d, M=mu * d * d, blocks="paper") for mu in (1, 4, 16, 64)}
    assert [round(row.peak_words / row.M, 2) for row in printed.values()] == [2.57, 2.26, 1.50, 1.31]
    assert not any(row.feasible for row in printed.values())
    assert printed[4].io == printed[16].io == printed[64].io >= 2 * n * n
    repaired = {mu: ps.count("large-cache", n=n, d=d, M=mu * d * d) for mu in (4, 16, 64)}
    assert all(row.feasible for row in repaired.values())
    assert repaired[64].io * 8 < repaired[4].io


def test_the_literal_rule_of_replacing_forbids_algorithm_6() -> None:
    with pytest.raises(IllegalMove) as refused:
        ps.play("small-cache", n=8, d=4, M=24, rules="replace")
    assert str(refused.value).startswith(
        "move 89: read A1[0,0]: A1[0,0] has no blue pebble: under 'replace' a read takes the blue pebble away, and the "
        "red one was deleted later, so the value is lost (red 0 of 24), at pebblesim/schedules/matmul.py:"
    )


def test_phase_3_computes_f_times_q_twice() -> None:
    with pytest.raises(IllegalMove, match=r"compute fq\[0,0\]: fq\[0,0\] was already computed"):
        ps.play("small-cache", n=8, d=4, M=24, rules="no-recompute")


@pytest.mark.parametrize("name", ["large-cache", "flash", "matmul-tiled"])
def test_schedules_that_compute_everything_once(name: str) -> None:
    assert ps.play(name, n=8, d=4, M=200, rules="no-recompute").passed
