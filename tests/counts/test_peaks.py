"""The predicted peak against games that were played, of schedules whose pebbles move as no registered one's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given, strategies as st
from strategies import unregistered

import pebblesim as ps
from pebblesim.analysis.count import count
from pebblesim.game.player import moves
from pebblesim.game.referee import Referee
from pebblesim.graphs.builder import Builder
from pebblesim.language import Block, Machine, Tensor, exp, log, maximum, rowmax, rowsum, trace
from pebblesim.language.numbers import numbers
from pebblesim.language.problems import Problem
from pebblesim.language.registry import Schedule

INFINITY = float("inf")


def in_columns(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    """The sums grow column by column: the last full tile of columns may hold more than the ragged one behind it."""
    C = m.tensor("C", A.shape[0], B.shape[1])
    for i in m.tiles(A.shape[0], 1):
        A_i, C_i = m.read(A[i, :]), m.zeros(i, B.shape[1])
        for c in m.tiles(B.shape[1], b):
            C_i[:, c] += A_i @ m.read(B[:, c])
        m.write(C[i, :], C_i)


def project(m: Machine, S: Tensor, A: Tensor, X: Tensor) -> None:
    """S = A X, a row at a time."""
    for i in m.tiles(A.shape[0], 1):
        m.write(S[i, :], m.compute(m.read(A[i, :]) @ m.read(X)))


def inner_rows(m, A1, A2, A3, dO, X, Y, O, l, *, B_r, B_c, b):  # type: ignore[no-untyped-def]
    """Algorithm 8's T = A1_iᵀ p, kept apart for each tile of rows, gets its terms by tiles of these."""
    n, d = A1.shape
    S, h, g = m.tensor("S", n, d), m.tensor("h", n, d), m.tensor("g", d, d)
    with m.phase("S, h"):
        project(m, S, A1, X)
        project(m, h, A3, Y)
    with m.phase("g"):
        g_ = m.zeros(d, d)
        for i in m.tiles(n, B_r, queries_of=n):
            for j in m.tiles(n, B_c, keys_of=i):
                h_j, T, T_j = m.read(h[j, :]), m.zeros(d, j), m.zeros(d, j)
                for r in m.tiles(i, b):
                    dO_r, l_r = m.read(dO[r, :]), m.read(l[r])
                    v = m.compute(rowsum(dO_r * m.read(O[r, :])))
                    q = m.compute(dO_r @ h_j.T)
                    A2_j = m.read(A2[j, :])
                    f = m.compute(m.read(S[r, :]) @ A2_j.T)
                    f[:] = exp(f) / l_r
                    p = m.compute(f * q - v * f)
                    T += m.read(A1[r, :]).T @ p
                m.move(T, T_j)
                m.delete(h_j)
                m.read(X), m.read(Y)  # so that the most pebbles are there now
                g_ += T_j @ m.read(A2[j, :])
        m.write(g, g_)


def moved_in_memory(m, A1, A2, A3, dO, X, Y, O, l, *, B, b):  # type: ignore[no-untyped-def]
    """A sum waits in memory between tiles of rows, and changes its tile before it gets the next terms."""
    n, d = A1.shape
    S, h, dQ, g = m.tensor("S", n, d), m.tensor("h", n, d), m.tensor("dQ", n, d), m.tensor("g", d, d)
    with m.phase("S, h"):
        project(m, S, A1, X)
        project(m, h, A3, Y)
    with m.phase("dQ"):
        for i in m.tiles(n, 1):
            dO_i, S_i = m.read(dO[i, :]), m.read(S[i, :])
            v_i = m.compute(rowsum(dO_i * m.read(O[i, :])))
            l_i, dQ_i = m.read(l[i]), m.zeros(i, d)
            for j in m.tiles(n, 1, keys_of=i):
                A2_j = m.read(A2[j, :])
                p = m.compute(S_i @ A2_j.T)
                p[:] = exp(p) / l_i
                q = m.compute(dO_i @ m.read(h[j, :]).T)
                p[:] = p * (q - v_i)
                dQ_i += p @ A2_j
            m.write(dQ[i, :], dQ_i)
    with m.phase("g"):
        m.write(g, 0)
        for i in m.tiles(n, B, queries_of=n):
            for k in m.tiles(d, b):
                g_k = m.zeros(k, d)
                m.move(m.read(g[k, :]), g_k)
                for r in m.tiles(i, b):
                    g_k += m.read(A1[r, k]).T @ m.read(dQ[r, :])
                m.write(g[k, :], g_k)


def overwritten(m, A1, A2, A3, dO, X, Y, *, B):  # type: ignore[no-untyped-def]
    """A sum that nobody has looked at, under a mask perhaps without terms, gives its tile to another value."""
    n, d = A1.shape
    S, h, dQ, g = m.tensor("S", n, d), m.tensor("h", n, d), m.tensor("dQ", n, d), m.tensor("g", d, d)
    with m.phase("S, h"):
        project(m, S, A1, X)
        project(m, h, A3, Y)
    with m.phase("dQ"):
        for i in m.tiles(n, B):
            S_i, dO_i, U2_i, l_i, w_i = m.read(S[i, :]), m.read(dO[i, :]), m.zeros(i, d), m.zeros(i), m.zeros(i)
            x = m.zeros(i, d)
            for j in m.tiles(n, 1, keys_of=i):
                A2_j = m.read(A2[j, :])
                A = m.compute(S_i @ A2_j.T)
                A[:] = exp(A)
                l_i += rowsum(A)
                U2_i += A @ A2_j
                Aq = m.compute(dO_i @ m.read(h[j, :]).T)
                Aq[:] = A * Aq
                w_i += rowsum(Aq)
                x += Aq @ A2_j
            w_i[:] = w_i / l_i
            x[:] = w_i * U2_i
            dQ_i = m.zeros(i, d)
            for j in m.tiles(n, 1, keys_of=i):
                A2_j = m.read(A2[j, :])
                A = m.compute(S_i @ A2_j.T)
                A[:] = exp(A)
                Aq = m.compute(dO_i @ m.read(h[j, :]).T)
                Aq[:] = A * Aq
                dQ_i += Aq @ A2_j
            dQ_i[:] = dQ_i - x
            dQ_i[:] = dQ_i / l_i
            m.write(dQ[i, :], dQ_i)
    with m.phase("g"):
        g_ = m.zeros(d, d)
        for i in m.tiles(n, 1):
            g_ += m.read(A1[i, :]).T @ m.read(dQ[i, :])
        m.write(g, g_)


def moved_values(m, Q, K, V, *, B_r, B_c):  # type: ignore[no-untyped-def]
    """FlashAttention-2's online softmax, where what the next sum is added to comes from another tile."""
    n, d = Q.shape
    O, L = m.tensor("O", n, d), m.tensor("L", n)
    for i in m.tiles(n, B_r, queries_of=n, otherwise={O: 0, L: -INFINITY}):
        Q_i, O_i, l_i, m_i = m.read(Q[i, :]), m.constant(0, i, d), m.constant(0, i), m.constant(-INFINITY, i)
        for j in m.tiles(n, B_c, keys_of=i):
            P = m.compute(Q_i @ m.read(K[j, :]).T)
            new = m.compute(rowmax(P))
            new[:] = maximum(m_i, new)
            m_i[:] = exp(m_i - new)
            P[:] = exp(P - new)
            al = m.compute(m_i * l_i)
            l_new = m.zeros(i)
            m.move(al, l_new)
            l_new += rowsum(P)
            m.move(l_new, l_i)
            aO = m.compute(m_i * O_i)
            m.move(aO, O_i)
            O_i += P @ m.read(V[j, :])
            m.move(new, m_i)
        O_i[:] = O_i / l_i
        m.write(O[i, :], O_i)
        m_i[:] = m_i + log(l_i)
        m.write(L[i], m_i)


def divided_in_parts(m, Q, K, V, *, B_r, B_c, b):  # type: ignore[no-untyped-def]
    """Rows of a tile are summed and divided part by part: while some are values, others have no term yet."""
    n, d = Q.shape
    O = m.tensor("O", n, d)
    for i in m.tiles(n, B_r, queries_of=n, otherwise={O: 0}):
        Q_i, O_i, l_i = m.read(Q[i, :]), m.zeros(i, d), m.zeros(i)
        for r in m.tiles(i, b):
            for j in m.tiles(n, B_c):
                P = m.compute(Q_i[r, :] @ m.read(K[j, :]).T)
                P[:] = exp(P)
                l_i[r] += rowsum(P)
                O_i[r, :] += P @ m.read(V[j, :])
            O_i[r, :] = O_i[r, :] / l_i[r]
        m.write(O[i, :], O_i)


SCHEDULES = (
    unregistered(in_columns, "matmul"),
    unregistered(inner_rows, "backward", kept=True, row_block="B_r"),
    unregistered(moved_in_memory, "backward", order="U", kept=True, centred=True, g_block="B"),
    unregistered(overwritten, "backward", order="one-pass"),
    unregistered(moved_values, "forward", softmax="flash2", column_block="B_c", row_block="B_r"),
    unregistered(divided_in_parts, "forward", softmax="late"),
)
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=[schedule.name for schedule in SCHEDULES])


def sizes_of(schedule: Schedule, data: st.DataObject) -> tuple[dict[str, Any], dict[str, int]]:
    sizes = data.draw(strategies.sizes(schedule, 7))
    return {dim: sizes[dim] for dim in schedule.problem.dims}, {block: sizes[block] for block in schedule.blocks}


@pytest.mark.one_in(2)
@every_schedule
@given(data=st.data(), summation=strategies.SUMMATIONS)
@strategies.draws(2, 15)
def test_games_are_as_predicted(schedule: Schedule, data: st.DataObject, summation: str) -> None:
    dims, blocks = sizes_of(schedule, data)
    played = ps.play(schedule, M=10**6, blocks=blocks, summation=summation, **dims)
    assert played.game.peak_red == played.predicted["peak_red"]
    assert played.passed


@pytest.mark.one_in(2)
@pytest.mark.parametrize("schedule", SCHEDULES[1:], ids=[schedule.name for schedule in SCHEDULES[1:]])
@given(data=st.data())
@strategies.draws(2, 15)
def test_games_under_masks_are_as_predicted(schedule: Schedule, data: st.DataObject) -> None:
    dims, blocks = sizes_of(schedule, data)
    played = ps.play(schedule, M=10**6, blocks=blocks, mask=data.draw(strategies.masks(dims["n"])), **dims)
    assert played.game.peak_red == played.predicted["peak_red"]
    assert played.passed


@pytest.mark.parametrize(
    ("mask", "blocks"),
    [
        (np.eye(2, dtype=bool), {"B_r": 1, "B_c": 2, "b": 1}),  # of T, in each block of rows, one column has terms
        (np.array([[True, False], [True, False]]), {"B_r": 2, "B_c": 2, "b": 1}),  # only one column ever has any
    ],
)
@pytest.mark.parametrize("d", [1, 2, 5])
def test_sums_kept_apart_that_have_no_terms(d: int, mask: Any, blocks: dict[str, int]) -> None:
    played = ps.play(SCHEDULES[1], M=10**6, n=2, d=d, blocks=blocks, mask=mask)
    assert played.game.peak_red == played.predicted["peak_red"]
    assert played.passed


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("pair", [(4, 1), (0, 0)])
def test_a_sum_that_waits_in_memory_gets_no_terms_of_rows_without_pairs(d: int, pair: tuple[int, int]) -> None:
    """One of two tiles of rows has no pair; the sum has moved from the tile that was read."""
    mask = np.zeros((5, 5), bool)
    mask[pair] = True
    played = ps.play(SCHEDULES[2], M=10**6, n=5, d=d, blocks={"B": 5, "b": 3}, mask=mask)
    assert played.game.peak_red == played.predicted["peak_red"]
    assert played.passed


@pytest.mark.parametrize(
    ("n", "d", "blocks"), [(3, 1, {"B_r": 3, "B_c": 1, "b": 1}), (5, 3, {"B_r": 2, "B_c": 5, "b": 1})]
)
def test_a_part_becomes_a_value_before_the_next_has_terms(n: int, d: int, blocks: dict[str, int]) -> None:
    played = ps.play(SCHEDULES[5], M=10**6, n=n, d=d, blocks=blocks)
    assert played.game.peak_red == played.predicted["peak_red"]
    assert played.passed


@pytest.mark.parametrize("without", [0, 1, 3])
def test_a_part_is_looked_at_before_the_next_turns_out_to_have_no_terms(without: int) -> None:
    mask = np.ones((4, 4), bool)
    mask[without] = False
    played = ps.play(SCHEDULES[5], M=10**6, n=4, d=2, blocks={"B_r": 4, "B_c": 2, "b": 1}, mask=mask)
    assert played.game.peak_red == played.predicted["peak_red"]
    assert played.passed


@pytest.mark.parametrize(("n", "d"), [(2, 3), (3, 1), (4, 2)])
def test_sums_without_terms_whose_tile_gets_another_value(n: int, d: int) -> None:
    mask = np.zeros((n, n), bool)
    mask[: n - 1, 0] = True  # the last row has no pair
    played = ps.play(SCHEDULES[3], M=10**6, n=n, d=d, blocks={"B": n}, mask=mask)
    assert played.game.peak_red == played.predicted["peak_red"]
    assert played.passed


@pytest.mark.parametrize("summation", ["balanced", "blocked:2"])
def test_a_tree_over_sums_kept_apart_has_the_terms_of_all_of_them(summation: str) -> None:
    played = ps.play(SCHEDULES[1], M=10**6, n=3, d=2, blocks={"B_r": 1, "B_c": 1, "b": 1}, summation=summation)
    assert played.game.peak_red == played.predicted["peak_red"]
    assert played.passed


def test_a_sum_begun_in_cache_that_waits_in_memory_has_the_tree_of_its_graph() -> None:
    """dQ's first keys add to zeros in cache, the others to what memory has: blocks of 2 terms, and not of 4 keys."""
    blocks = {"B_c": 4, "B_s": 4, "B_v": 2}
    played = ps.play("first-keys-by-columns", M=10**6, n=8, d=2, blocks=blocks, summation="blocked:2")
    assert played.game.peak_red == played.predicted["peak_red"] == 62
    assert played.passed


@pytest.mark.one_in(3)
@pytest.mark.parametrize("summation", ["chain", "balanced", "blocked:2", "in-place"])
@pytest.mark.parametrize(("n", "d", "a", "b"), [(11, 13, 6, 13), (5, 1, 1, 4), (6, 5, 2, 4), (3, 5, 6, 4)])
def test_terms_of_a_second_product_are_added_to_the_sum_of_the_first(
    n: int, d: int, a: int, b: int, summation: str
) -> None:
    """dC = Pᵀ dO + dSᵀ Q_C in one tile: each word has one pebble while the second product is added, not two."""
    played = ps.play("small-cache-latent-backward", M=10**6, n=n, d=d, blocks={"a": a, "b": b}, summation=summation)
    assert played.game.peak_red == played.predicted["peak_red"]
    assert played.passed


@pytest.mark.parametrize(("k", "n", "b"), [(5, 7, 3), (4, 9, 4), (3, 5, 2), (5, 13, 3)])
def test_the_last_full_tile_can_be_the_fullest(k: int, n: int, b: int) -> None:
    """In one row: k words of A, n - 1 sums of which the last ones are being made, and kb words of B."""
    assert n % b == 1
    schedule, before = SCHEDULES[0], n - 1 - b
    played = ps.play(schedule, M=10**6, m=2, k=k, n=n, blocks={"b": b})
    assert played.passed
    assert played.game.peak_red == k + before + k * b + (b - 1) + 3


EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "a": lambda a, b, c, d: a,
    "a∘b": lambda a, b, c, d: a * b,
    "a∘b + c∘d": lambda a, b, c, d: a * b + c * d,
}


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize(("expression", "at_once"), [("a", 1), ("a∘b", 2), ("a∘b + c∘d", 3)])
def test_a_term_takes_the_pebbles_of_its_expression(expression: str, at_once: int, k: int) -> None:
    """Row sums of an expression, of which an element needs so many pebbles; a new partial sum needs two."""
    of = EXPRESSIONS[expression]
    matrices = dict.fromkeys("abcd", ("n", "k"))

    def values(x: Any) -> dict[str, Any]:
        return {"r": of(x["a"], x["b"], x["c"], x["d"]).sum(axis=1)}

    toy = Problem("toy", ("n", "k"), {"n": "n", "k": "d"}, matrices, {"r": ("n",)}, values, "this test")

    def schedule(m: Machine, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> None:
        n, _ = a.shape
        r = m.tensor("r", n)
        for i in m.tiles(n, 1):
            m.write(r[i], m.compute(rowsum(of(*(m.read(x[i, :]) for x in (a, b, c, d))))))

    sizes = {"n": 3, "k": k}
    program = trace(schedule, "toy", toy, ("a", "b", "c", "d"), ())
    builder = Builder()
    for name in matrices:
        builder.input(name, (3, k))
    if at_once > 1:
        builder.elementwise("ab", "mul", "a", "b")
    if at_once > 2:
        builder.elementwise("cd", "mul", "c", "d")
        builder.elementwise("e", "add", "ab", "cd")
    builder.rowsum("r", {1: "a", 2: "ab", 3: "e"}[at_once])
    graph = builder.finish(["r"])
    game = Referee(graph, 100, idle=False)
    for chunk in moves(program, sizes, graph.families):
        game.play(chunk)
    end = game.finish()
    assert end.complete
    before = min(k - 1, 1)  # a partial sum, while the next term is computed
    most = max(before + at_once, 3 * before)
    assert end.peak_red == count(program, sizes).peak_red == 4 * k + most
    inputs = toy.random_inputs(sizes)
    np.testing.assert_allclose(numbers(program, sizes, inputs)["r"], toy.reference(inputs)["r"])


def test_a_schedule_that_brings_nothing_into_the_cache_has_no_peak() -> None:
    """Constants are written from nowhere; one red pebble makes them, one after the other."""

    def nothing(m: Machine, A: Tensor, B: Tensor) -> None:
        m.write(m.tensor("C", A.shape[0], B.shape[1]), 0)

    assert count(unregistered(nothing).program, {"m": 2, "k": 3, "n": 4}).peak_words == 0
