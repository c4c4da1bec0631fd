"""The game passes no wrong schedule and refuses no right one: a sum gets each term once, a tile is what it stands for.

What is wrong for all sizes is refused when it is traced; the rest when it is played, with the line of the schedule.
What a schedule computes is checked a third time by running it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from strategies import some, unregistered

import pebblesim as ps
from pebblesim import graphs
from pebblesim.api.play import smaller
from pebblesim.core.errors import PebblesimError, TraceError, UsageError
from pebblesim.counting.run import Run
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, pack
from pebblesim.game.referee import IllegalMove, Referee, referee
from pebblesim.language import Block, Machine, Tensor, exp, log, maximum, rowmax, rowsum, tracing
from pebblesim.language.numbers import numbers
from pebblesim.language.registry import SCHEDULES, Schedule, get

MANY = 10**6


def untraced(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> Schedule:
    """A copy of a schedule, traced without looking for repeated work."""
    with monkeypatch.context() as patch:
        patch.setattr(tracing, "check_repeats", lambda program: None)
        again = replace(schedule)
        assert again.program
    return again


def run(schedule: Schedule, **sizes: int) -> dict[str, tuple[Any, Any]]:
    """The values of the schedule and of the reference, for each output."""
    inputs = schedule.problem.random_inputs(sizes, kept=schedule.kept)
    reference = schedule.problem.reference(inputs)
    return {name: (value, reference[name]) for name, value in numbers(schedule.program, sizes, inputs).items()}


# -- terms that a sum has already ----------------------------------------------------------------------------


def doubled(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    C = m.tensor("C", A.shape[0], B.shape[1])
    for i in m.tiles(A.shape[0], b):
        for j in m.tiles(B.shape[1], b):
            C_ij = m.zeros(i, j)
            for k in m.tiles(A.shape[1], b):
                A_ik, B_kj = m.read(A[i, k]), m.read(B[k, j])
                C_ij += A_ik @ B_kj
                C_ij += A_ik @ B_kj
            m.write(C[i, j], C_ij)


def doubled_by_two_loops(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    C = m.tensor("C", A.shape[0], B.shape[1])
    for i in m.tiles(A.shape[0], b):
        for j in m.tiles(B.shape[1], b):
            C_ij = m.zeros(i, j)
            for k in m.tiles(A.shape[1], b):
                C_ij += m.read(A[i, k]) @ m.read(B[k, j])
            for k in m.tiles(A.shape[1], b):
                C_ij += m.read(A[i, k]) @ m.read(B[k, j])
            m.write(C[i, j], C_ij)


def a_loop_too_many(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    C = m.tensor("C", A.shape[0], B.shape[1])
    for i in m.tiles(A.shape[0], b):
        for j in m.tiles(B.shape[1], b):
            C_ij = m.zeros(i, j)
            for _ in m.tiles(j, 1):
                for k in m.tiles(A.shape[1], b):
                    C_ij += m.read(A[i, k]) @ m.read(B[k, j])
            m.write(C[i, j], C_ij)


def doubled_in_memory(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    C = m.tensor("C", A.shape[0], B.shape[1])
    m.write(C, 0)
    for _ in m.tiles(A.shape[0], b):
        for k in m.tiles(A.shape[1], b):
            C_ = m.read(C)
            C_ += m.read(A[:, k]) @ m.read(B[k, :])
            m.write(C, C_)


def the_whole_behind_its_tiles(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    """Two different ways to say the same terms, which the tracer does not see through."""
    C = m.tensor("C", A.shape[0], B.shape[1])
    for i in m.tiles(A.shape[0], b):
        C_i = m.zeros(i, B.shape[1])
        A_i, B_ = m.read(A[i, :]), m.read(B)
        for k in m.tiles(A.shape[1], b):
            C_i += A_i[:, k] @ B_[k, :]
        C_i += A_i @ B_
        m.write(C[i, :], C_i)


SIZES = {"m": 4, "k": 3, "n": 5, "b": 2}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (doubled, r"adds terms to C_ij that line \d+ has added already"),
        (doubled_by_two_loops, r"adds terms to C_ij that line \d+ has added already"),
        (a_loop_too_many, r"adds terms to C_ij that are the same in every iteration of the loop over _ \(line \d+\)"),
        (the_whole_behind_its_tiles, None),
    ],
)
def test_a_term_that_a_sum_holds_is_not_added_again(
    function: Callable[..., None], message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if message:
        with pytest.raises(TraceError, match=rf"^{re.escape(__file__)}:\d+: {message}"):
            assert unregistered(function).program
    schedule = untraced(unregistered(function), monkeypatch)
    for value, reference in run(schedule, **SIZES).values():
        assert not np.allclose(value, reference)
    with pytest.raises(UsageError, match=rf"^{function.__name__}, {re.escape(__file__)}:\d+: "):
        ps.play(schedule, M=MANY, m=4, k=3, n=5, blocks={"b": 2})


def test_a_sum_in_memory_does_not_get_its_terms_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TraceError, match=r"adds terms to C_ that are the same in every iteration of the loop over _"):
        assert unregistered(doubled_in_memory).program
    for value, reference in run(untraced(unregistered(doubled_in_memory), monkeypatch), **SIZES).values():
        np.testing.assert_allclose(value, 2 * reference)

    def begun_anew(m, A, B, *, b):  # type: ignore[no-untyped-def]
        C = m.tensor("C", A.shape[0], B.shape[1])
        for _ in m.tiles(A.shape[0], b):
            m.write(C, 0)
            for k in m.tiles(A.shape[1], b):
                C_ = m.read(C)
                C_ += m.read(A[:, k]) @ m.read(B[k, :])
                m.write(C, C_)

    for value, reference in run(unregistered(begun_anew), **SIZES).values():
        np.testing.assert_allclose(value, reference)


def test_row_sums_are_not_added_in_every_iteration() -> None:
    def v_too_often(m, Q, K, V, *, b):  # type: ignore[no-untyped-def]
        n, d = Q.shape
        O, l = m.tensor("O", n, d), m.tensor("l", n)
        for i in m.tiles(n, b):
            l_i, Q_i = m.zeros(i), m.read(Q[i, :])
            A = m.compute(Q_i @ m.read(K).T)
            A[:] = exp(A)
            for _ in m.tiles(d, 1):
                l_i += rowsum(A)
            m.write(l[i], l_i)
            A[:] = A / l_i
            m.write(O[i, :], m.compute(A @ m.read(V)))

    with pytest.raises(TraceError, match=r"adds terms to l_i that are the same in every iteration"):
        assert unregistered(v_too_often, "forward").program


def test_a_loop_of_one_iteration_repeats_nothing() -> None:
    def once(m, A, B, *, b):  # type: ignore[no-untyped-def]
        C = m.tensor("C", A.shape[0], B.shape[1])
        for i in m.tiles(A.shape[0], 1):
            C_i = m.zeros(i, B.shape[1])
            for k in m.tiles(A.shape[1], b):
                for _ in m.tiles(i, b):
                    C_i += m.read(A[i, k]) @ m.read(B[k, :])
            m.write(C[i, :], C_i)

    assert ps.play(unregistered(once), M=MANY, m=4, k=3, n=5, blocks={"b": 2}).passed


def test_recomputing_what_has_left_the_cache_is_right() -> None:
    """A sum in memory that is begun anew, and a product that is made for each tile of columns."""

    def again(m, Q, K, V, *, b):  # type: ignore[no-untyped-def]
        n, d = Q.shape
        O, l = m.tensor("O", n, d), m.tensor("l", n)
        for i in m.tiles(n, b):
            for c in m.tiles(d, b):
                Q_i = m.read(Q[i, :])
                A = m.compute(Q_i @ m.read(K).T)
                A[:] = exp(A)
                l_i = m.compute(rowsum(A))
                m.write(l[i], l_i)
                A[:] = A / l_i
                m.write(O[i, c], m.compute(A @ m.read(V[:, c])))

    played = ps.play(unregistered(again, "forward", outputs=("O",)), M=MANY, n=5, d=3, blocks={"b": 2})
    assert played.passed
    assert played.game.moves > ps.play("small-cache-forward", n=5, d=3, M=MANY, blocks={"B": 2}).game.moves


# -- values that are in cache already ------------------------------------------------------------------------


def test_a_value_in_cache_is_not_computed_into_another_tile() -> None:
    def twice(m, Q, K, V):  # type: ignore[no-untyped-def]
        O = m.tensor("O", *Q.shape)
        Q_, K_ = m.read(Q), m.read(K)
        first = m.compute(Q_ @ K_.T)
        second = m.compute(Q_ @ K_.T)
        first[:] = exp(first)
        m.delete(second)
        l = m.compute(rowsum(first))
        first[:] = first / l
        m.write(O, m.compute(first @ m.read(V)))

    with pytest.raises(TraceError, match=r"second gets a value that is in cache already, in first since line \d+; use"):
        assert unregistered(twice, "forward").program

    def summed_twice(m, Q, K, V):  # type: ignore[no-untyped-def]
        O = m.tensor("O", *Q.shape)
        A = m.compute(m.read(Q) @ m.read(K).T)
        A[:] = exp(A)
        l, again = m.zeros(A.shape[0]), m.zeros(A.shape[0])
        for k in m.tiles(A.shape[1], 1):
            l += rowsum(A[:, k])
        for k in m.tiles(A.shape[1], 1):
            again += rowsum(A[:, k])
        A[:] = A / l
        m.write(O, m.compute(A @ m.read(V)))

    with pytest.raises(TraceError, match=r"again gets a value that is in cache already, in l since line \d+; use"):
        assert unregistered(summed_twice, "forward").program


def test_commuted_operands_give_the_value_in_cache() -> None:
    def commuted(m, Q, K, V):  # type: ignore[no-untyped-def]
        O = m.tensor("O", *Q.shape)
        Q_, K_ = m.read(Q), m.read(K)
        first = m.compute(Q_ * K_)
        second = m.compute(K_ * Q_)
        second[:] = first + second
        m.write(O, second)

    with pytest.raises(TraceError, match=r"second gets a value that is in cache already, in first since line \d+; use"):
        assert unregistered(commuted, "forward").program


def test_what_the_tracer_cannot_see_in_cache_is_found_by_the_game(monkeypatch: pytest.MonkeyPatch) -> None:
    def a_part_again(m, A, B, *, b):  # type: ignore[no-untyped-def]
        C = m.tensor("C", A.shape[0], B.shape[1])
        A_, B_ = m.read(A), m.read(B)
        m.compute(A_ @ B_)
        for i in m.tiles(A.shape[0], b):
            m.write(C[i, :], m.compute(A_[i, :] @ B_))

    for rules in ("hong-kung", "replace"):
        with pytest.raises(
            IllegalMove, match=r"compute C\[0,0\].*: C\[0,0\].* has a red pebble already: it is in"
        ) as story:
            ps.play(unregistered(a_part_again), M=MANY, m=3, k=2, n=2, blocks={"b": 2}, rules=rules)
        assert story.value.violation.source and story.value.violation.source.startswith(__file__)
        assert story.value.violation.message.endswith(f"at {story.value.violation.source}")


def test_idle_moves_are_legal_in_the_game_itself() -> None:
    class Copy:
        vertices, edges = 2, 1
        indptr, preds = np.array([0, 0, 1], np.uint32), np.array([0], np.int32)
        inputs, outputs = np.array([0]), np.array([1])

        def describe(self, v: int, /) -> str:
            return f"v{v}"

    game = [(READ, 0), (READ, 0), (COMPUTE, 1), (COMPUTE, 1), (WRITE, 1), (WRITE, 1)]
    stream = pack(*(np.array(column) for column in zip(*game, strict=True)))
    assert referee(Copy(), 2, [stream]).complete
    strict = Referee(Copy(), 2, idle=False)
    with pytest.raises(IllegalMove, match="move 2: read v0: v0 has a red pebble already"):
        strict.play(stream)
    strict = Referee(Copy(), 2, idle=False)
    with pytest.raises(IllegalMove, match="move 3: compute v1: v1 has a red pebble already"):
        strict.play(np.delete(stream, 1))
    assert referee(Copy(), 2, [stream[[0, 2, 4, 5]]]).moves == 4  # writing again costs a word, and is no idle move
    assert DELETE not in stream % 4


# -- tiles and tensors that hold something else --------------------------------------------------------------


def test_an_output_lies_in_its_own_tensor() -> None:
    def exchanged(m, Q, K, V, dO, O, l, *, b):  # type: ignore[no-untyped-def]
        n, d = Q.shape
        dQ, dK, dV = m.tensor("dQ", n, d), m.tensor("dK", n, d), m.tensor("dV", n, d)
        Q_, K_, V_, dO_ = m.read(Q), m.read(K), m.read(V), m.read(dO)
        P = m.compute(Q_ @ K_.T)
        P[:] = exp(P) / m.read(l)
        dS = m.compute(dO_ @ V_.T)
        v = m.compute(rowsum(dO_ * m.read(O)))
        dS[:] = P * (dS - v)
        m.write(dV, m.compute(P.T @ dO_))
        m.write(dK, m.compute(dS @ K_))
        m.write(dQ, m.compute(dS.T @ Q_))

    message = r"exchanged ends with dK\[0,0\] in dQ; dQ\[0,0\] must be there at the end"
    with pytest.raises(UsageError, match=message):
        ps.play(unregistered(exchanged, "backward-qkv", kept="l"), M=MANY, n=4, d=3, blocks={"b": 1})


def test_a_block_of_a_running_value_is_not_that_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """exp(m_new - m_i) for exp(m_i - m_new): the same names, the other way round."""

    def upside_down(m, Q, K, V, *, B_c):  # type: ignore[no-untyped-def]
        n, d = Q.shape
        O, L = m.tensor("O", n, d), m.tensor("L", n)
        Q_ = m.read(Q)
        O_, l, top = m.constant(0, n, d), m.constant(0, n), m.constant(float("-inf"), n)
        for j in m.tiles(n, B_c):
            P = m.compute(Q_ @ m.read(K[j, :]).T)
            new = m.compute(rowmax(P))
            new[:] = maximum(top, new)
            top[:] = exp(new - top)
            P[:] = exp(P - new)
            l[:] = top * l
            l += rowsum(P)
            O_[:] = top * O_
            m.move(new, top)
            O_ += P @ m.read(V[j, :])
        O_[:] = O_ / l
        m.write(O, O_)
        top[:] = top + log(l)
        m.write(L, top)

    graph = {"softmax": "flash2", "column_block": "B_c", "outputs": ("O", "L")}
    with pytest.raises(
        UsageError, match=r"uses new, which holds m\[0\] of block 1 of 3, where the constant that m\[0\]"
    ):
        ps.play(unregistered(upside_down, "forward", **graph), M=MANY, n=5, d=3, blocks={"B_c": 2})


def test_memory_that_changed_meanwhile_is_not_what_it_was() -> None:
    """S is overwritten by exp(S) in the first of two rounds, and the second reads it as S."""

    def rounds(m, Q, K, V, *, b):  # type: ignore[no-untyped-def]
        n, d = Q.shape
        S, O = m.tensor("S", n, n), m.tensor("O", n, d)
        S_ = m.compute(m.read(Q) @ m.read(K).T)
        m.write(S, S_)
        m.delete(S_)
        for c in m.tiles(d, b):
            A = m.read(S)
            A[:] = exp(A)
            m.write(S, A)
            l = m.compute(rowsum(A))
            A[:] = A / l
            m.write(O[:, c], m.compute(A @ m.read(V[:, c])))

    schedule = unregistered(rounds, "forward")
    assert ps.play(schedule, M=MANY, n=4, d=3, blocks={"b": 3}).passed
    assert not all(np.allclose(*pair) for pair in run(schedule, n=4, d=3, b=2).values())
    with pytest.raises(UsageError, match=r"uses A, which holds A\[0,0\], where S\[0,0\] is needed"):
        ps.play(schedule, M=MANY, n=4, d=3, blocks={"b": 2})


def test_the_right_pebble_in_another_tile_does_not_help() -> None:
    """In the second round t holds S, and what the product needs, exp(S), is in cache, but in another tile."""

    def rounds(m, Q, K, V, *, b):  # type: ignore[no-untyped-def]
        n, d = Q.shape
        T, O = m.tensor("T", n, n), m.tensor("O", n, d)
        Q_, K_ = m.read(Q), m.read(K)
        A = m.compute(Q_ @ K_.T)
        A[:] = exp(A)
        l = m.compute(rowsum(A))
        m.write(T, A)
        m.delete(A)
        other = m.zeros(n, n)
        for c in m.tiles(d, b):
            t = m.read(T)
            O_c = m.compute(t @ m.read(V[:, c]))
            O_c[:] = O_c / l
            m.write(O[:, c], O_c)
            m.delete(t)
            S = m.compute(Q_ @ K_.T)
            m.write(T, S)
            m.move(S, other)
            other[:] = exp(other)

    schedule = unregistered(rounds, "forward", softmax="late")
    assert ps.play(schedule, M=MANY, n=4, d=3, blocks={"b": 3}).passed
    assert not all(np.allclose(*pair) for pair in run(schedule, n=4, d=3, b=2).values())
    with pytest.raises(UsageError, match=r"reads S\[0,0\] from T, where A\[0,0\] is needed"):
        ps.play(schedule, M=MANY, n=4, d=3, blocks={"b": 2})


def test_commuted_operands_are_the_same_product() -> None:
    def commuted(m, Q, K, V, dO, O, l, *, b):  # type: ignore[no-untyped-def]
        n, d = Q.shape
        dQ, dK, dV = m.tensor("dQ", n, d), m.tensor("dK", n, d), m.tensor("dV", n, d)
        Q_, K_, V_, dO_ = m.read(Q), m.read(K), m.read(V), m.read(dO)
        P = m.compute(Q_ @ K_.T)
        P[:] = exp(P) / m.read(l)
        dS = m.compute(dO_ @ V_.T)
        v = m.compute(rowsum(m.read(O) * dO_))
        dS[:] = (dS - v) * P
        m.write(dV, m.compute(P.T @ dO_))
        m.write(dQ, m.compute(dS @ K_))
        m.write(dK, m.compute(dS.T @ Q_))

    assert ps.play(unregistered(commuted, "backward-qkv", kept="l"), M=MANY, n=4, d=3, blocks={"b": 1}).passed


# -- a graph that declares another way -----------------------------------------------------------------------

WAYS: dict[str, dict[str, tuple[object, ...]]] = {
    "backward": {"order": ("T", "U", "one-pass"), "kept": (False, True), "centred": (False, True)},
    "forward": {"softmax": ("early", "late", "safe")},
    "backward-qkv": {"kept": ("l", "L", "m", "P")},
    "linear": {"order": ("linear", "quadratic")},
}


def other_ways(schedule: Schedule) -> list[dict[str, object]]:
    """The schedule's options with one of them changed to another way of computing."""
    ways = WAYS.get(schedule.problem.name, {})
    return [
        {**schedule.graph, option: value}
        for option, values in ways.items()
        for value in values
        if value != schedule.graph.get(option, values[0])
    ]


CASES = [(name, way) for name in sorted(SCHEDULES) for way in other_ways(get(name))]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "way"), some(CASES, 48), ids=str)
def test_a_graph_that_declares_another_way_is_found_out(name: str, way: dict[str, object]) -> None:
    sizes: dict[str, Any] = {"n": 4, "d": 3}
    schedule = get(name)
    blocks = dict.fromkeys(schedule.blocks, 2)
    options: dict[str, Any] = sizes | replace(schedule, graph=way).graph_options(blocks)
    try:
        graphs.build(schedule.problem.name, **options)
    except UsageError:
        return  # there is no such graph
    assert ps.play(schedule, M=MANY, blocks=blocks, **sizes).passed
    try:
        passed = ps.play(replace(schedule, graph=way), M=MANY, blocks=blocks, strict=False, **sizes).passed
    except PebblesimError:
        passed = False
    assert not passed


# -- the schedule's own numbers ------------------------------------------------------------------------------


def test_play_runs_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    played = ps.play("matmul-tiled", n=5, d=3, M=MANY, blocks={"b": 2})
    assert played.passed and played.values_match
    assert played.run_at == {"m": 5, "k": 3, "n": 5, "b": 2}
    assert "the graph's outputs and the schedule's own equal the reference" in str(played)
    of_dict = played.to_dict()
    assert of_dict["values_match"] is of_dict["graph_values_match"] is of_dict["schedule_values_match"] is True
    right = numbers
    monkeypatch.setattr(
        "pebblesim.language.numbers.numbers", lambda *args: {name: 2 * value for name, value in right(*args).items()}
    )
    wrong = ps.play("matmul-tiled", n=5, d=3, M=MANY, blocks={"b": 2})
    assert wrong.game.complete and wrong.graph_values_match
    assert not wrong.schedule_values_match and not wrong.values_match and not wrong.passed
    assert "values    the graph's outputs equal the reference, the schedule's own DIFFER from the reference" in str(
        wrong
    )


def test_long_games_are_run_at_smaller_sizes_that_are_cut_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pebblesim.api.play.MOST_STEPS", 10)
    played = ps.play("small-cache", n=30, d=12, M=500, blocks={"B": 7})
    assert played.run_at == {"n": 5, "d": 3, "B": 2} and played.passed
    assert "(run at B = 2, n = 5, d = 3) equal" in str(played)
    masked = ps.play("small-cache", n=30, d=12, M=500, blocks={"B": 7}, mask="causal")
    assert masked.run_at == {"n": 5, "d": 3, "B": 2} and masked.passed
    table = np.tri(30, dtype=bool)
    assert ps.play("small-cache", n=30, d=12, M=500, blocks={"B": 7}, mask=table).run_at["n"] == 30


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_smaller_sizes_are_cut_alike(name: str) -> None:
    schedule = get(name)
    every: list[dict[str, Any]] = [{"n": 60, "d": 24}, {"n": 37, "d": 64}, {"n": 64, "d": 8}, {"n": 1, "d": 5}]
    for sizes in every:
        for sides in (3, 8, 13):
            blocks = {block: sides * (1 + at) for at, block in enumerate(schedule.blocks)}
            run = Run.of(schedule, sizes, M=10**9, blocks=blocks)
            small = smaller(run.program, run.sizes)
            for size, was in run.sizes.items():
                assert 1 <= small[size] <= was
            for dim in run.dims:
                assert small[dim] <= 40
                for block in schedule.blocks:
                    assert small[block] <= 1 + len(blocks)


@pytest.mark.parametrize("what", ["io", "peak_red"])
def test_what_was_predicted_otherwise_does_not_pass(what: str) -> None:
    played = ps.play("flash2-forward", n=3, d=2, M=40)
    assert played.passed
    assert not replace(played, predicted={**played.predicted, what: played.predicted[what] + 1}).passed
