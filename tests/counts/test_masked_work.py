"""Work and traffic under masks for legal schedules that are unlike ours, against the operations of games played.

Sums wait in memory between loops, are divided in a phase of their own, are made again where they are needed, or are
added to while all rows are visited. Masks leave rows and columns without a pair.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given, strategies as st

from pebblesim import graphs
from pebblesim.analysis.count import count
from pebblesim.analysis.masked_peak import masked_peak_red
from pebblesim.analysis.work import KINDS, work
from pebblesim.game.moves import COMPUTE, unpack
from pebblesim.game.player import moves
from pebblesim.game.referee import Referee
from pebblesim.graphs.operations import Op
from pebblesim.language import exp, log, maximum, relu, rowmax, rowsum
from pebblesim.language.machine import trace
from pebblesim.language.masks import Mask, from_array
from pebblesim.language.problems import problem
from pebblesim.language.program import Program

INFINITY = float("inf")
ONLINE = {"softmax": "flash2", "column_block": "b", "row_block": "a"}


def online_in_memory(m, Q, K, V, *, a, b):
    """FlashAttention-2 with the columns outside: running values wait in memory, and are divided at the end."""
    n, d = Q.shape
    O, L, sums = m.tensor("O", n, d), m.tensor("L", n), m.tensor("lO", n, d)
    l, m_ = m.tensor("l_m", n), m.tensor("m", n)
    with m.phase("sums"):
        m.write(sums, 0)
        m.write(l, 0)
        m.write(m_, -INFINITY)
        for j in m.tiles(n, b):
            K_j, V_j = m.read(K[j, :]), m.read(V[j, :])
            for i in m.tiles(n, a, queries_of=j):
                Q_i, O_i, l_i, m_i = m.read(Q[i, :]), m.read(sums[i, :]), m.read(l[i]), m.read(m_[i])
                P = m.compute(Q_i @ K_j.T)
                m_new = m.compute(rowmax(P))
                m_new[:] = maximum(m_i, m_new)
                m_i[:] = exp(m_i - m_new)
                P[:] = exp(P - m_new)
                l_i[:] = m_i * l_i
                l_i += rowsum(P)
                O_i[:] = m_i * O_i
                O_i += P @ V_j
                m.write(sums[i, :], O_i)
                m.write(l[i], l_i)
                m.write(m_[i], m_new)
    with m.phase("division"):
        for i in m.tiles(n, a):
            O_i, l_i, m_i = m.read(sums[i, :]), m.read(l[i]), m.read(m_[i])
            O_i[:] = O_i / l_i
            m.write(O[i, :], O_i)
            m_i[:] = m_i + log(l_i)
            m.write(L[i], m_i)


def online_of_all_rows(m, Q, K, V, *, a, b):
    """An online softmax with all rows outside, those without a pair too: a sum without terms stays a constant."""
    n, d = Q.shape
    O, L = m.tensor("O", n, d), m.tensor("L", n)
    for i in m.tiles(n, a):
        Q_i = m.read(Q[i, :])
        O_i, l_i, m_i = m.constant(0, i, d), m.constant(0, i), m.constant(-INFINITY, i)
        for j in m.tiles(n, b, keys_of=i):
            K_j, V_j = m.read(K[j, :]), m.read(V[j, :])
            P = m.compute(Q_i @ K_j.T)
            m_new = m.compute(rowmax(P))
            m_new[:] = maximum(m_i, m_new)
            m_i[:] = exp(m_i - m_new)
            P[:] = exp(P - m_new)
            l_i[:] = m_i * l_i
            l_i += rowsum(P)
            O_i[:] = m_i * O_i
            m.move(m_new, m_i)
            O_i += P @ V_j
        O_i[:] = O_i / l_i
        m.write(O[i, :], O_i)
        m_i[:] = m_i + log(l_i)
        m.write(L[i], m_i)


def sums_divided_again_and_again(m, Q, K, V, *, a, b):
    """Sums in memory, divided once for every tile of columns that the rows meet: needless, and legal."""
    n, d = Q.shape
    O, sums, l = m.tensor("O", n, d), m.tensor("AV", n, d), m.tensor("sums_of_rows", n)
    with m.phase("sums"):
        for i in m.tiles(n, a):
            Q_i, O_i, l_i = m.read(Q[i, :]), m.zeros(i, d), m.zeros(i)
            for j in m.tiles(n, b, keys_of=i):
                K_j, V_j = m.read(K[j, :]), m.read(V[j, :])
                A = m.compute(Q_i @ K_j.T)
                A[:] = exp(A)
                l_i += rowsum(A)
                O_i += A @ V_j
            m.write(sums[i, :], O_i)
            m.write(l[i], l_i)
    with m.phase("division"):
        for i in m.tiles(n, a, queries_of=n, otherwise={O: 0}):
            for _ in m.tiles(n, b, keys_of=i):
                O_i, l_i = m.read(sums[i, :]), m.read(l[i])
                O_new = m.compute(O_i / l_i)
                m.write(O[i, :], O_new)


def row_sums_for_every_tile(m, Q, K, V, *, a, b):
    """The row sums made again for every tile of columns, from all columns at once and from tiles of them."""
    n, d = Q.shape
    O = m.tensor("O", n, d)
    for i in m.tiles(n, a):
        Q_i, O_i = m.read(Q[i, :]), m.zeros(i, d)
        for j in m.tiles(n, b, keys_of=i):
            l_i = m.zeros(i)
            for k in m.tiles(n, a, keys_of=i):
                A = m.compute(Q_i @ m.read(K[k, :]).T)
                A[:] = exp(A)
                l_i += rowsum(A)
            K_j = m.read(K[j, :])
            P = m.compute(Q_i @ K_j.T)
            m.delete(K_j)
            P[:] = exp(P)
            P[:] = P / l_i
            O_i += P @ m.read(V[j, :])
            m.delete(P, l_i)
            K_ = m.read(K[:, :])
            A = m.compute(Q_i @ K_.T)
            A[:] = exp(A)
            m.compute(rowsum(A))
        m.write(O[i, :], O_i)


def dQ_in_memory_before_g(m, A1, A2, A3, dO, X, Y, O, l, *, a, b):
    """dQ through memory, and g in memory, too, which leaves out the rows without a pair."""
    n, d = A1.shape
    g, dQ = m.tensor("g", d, d), m.tensor("dQ", n, d)
    with m.phase("dQ"):
        gradient(m, dQ, None, A1, A2, A3, dO, X, Y, O, l, a, b)
    with m.phase("g"):
        m.write(g, 0)
        for i in m.tiles(n, a):
            for k in m.tiles(d, b):
                g_k, A1_i = m.read(g[k, :]), m.read(A1[i, k])
                g_k += A1_i.T @ m.read(dQ[i, :])
                m.write(g[k, :], g_k)


def g_in_cache(m, A1, A2, A3, dO, X, Y, O, l, *, a, b):
    """g in cache while all rows are visited: it takes the rows without a pair, too."""
    d = A1.shape[1]
    g = m.tensor("g", d, d)
    g_ = m.zeros(d, d)
    gradient(m, None, g_, A1, A2, A3, dO, X, Y, O, l, a, b)
    m.write(g, g_)


def gradient(m, dQ, g_, A1, A2, A3, dO, X, Y, O, l, a, b):
    n, d = A1.shape
    for i in m.tiles(n, a):
        A1_i, dO_i, l_i, dQ_i = m.read(A1[i, :]), m.read(dO[i, :]), m.read(l[i]), m.zeros(i, d)
        S_i = m.compute(A1_i @ m.read(X))
        v_i = m.compute(rowsum(dO_i * m.read(O[i, :])))
        for j in m.tiles(n, b, keys_of=i):
            A2_j = m.read(A2[j, :])
            h_j = m.compute(m.read(A3[j, :]) @ m.read(Y))
            f = m.compute(S_i @ A2_j.T)
            f[:] = exp(f)
            f[:] = f / l_i
            p = m.compute(dO_i @ h_j.T)
            p[:] = f * (p - v_i)
            dQ_i += p @ A2_j
        if dQ is None:
            g_ += A1_i.T @ dQ_i
        else:
            m.write(dQ[i, :], dQ_i)


def zeros_where_nothing_is(m, Q, K, V, *, a, b):
    """All tiles of A lie in memory: those without a pair as zeros, written by a loop of their own."""
    n, d = Q.shape
    A, O = m.tensor("A", n, n), m.tensor("O", n, d)
    with m.phase("A"):
        for i in m.tiles(n, a):
            Q_i = m.read(Q[i, :])
            for j in m.tiles(n, b, keys_of=i, otherwise={A: 0}):
                A_ij = m.compute(Q_i @ m.read(K[j, :]).T)
                A_ij[:] = relu(A_ij)
                m.write(A[i, j], A_ij)
    with m.phase("O"):
        for i in m.tiles(n, a):
            O_i = m.zeros(i, d)
            for k in m.tiles(n, b):
                O_i += m.read(A[i, k]) @ m.read(V[k, :])
            m.write(O[i, :], O_i)


ORDER = {"order": "U", "kept": True, "centred": True}
UNUSUAL: dict[Callable[..., None], tuple[str, dict[str, object]]] = {
    online_in_memory: ("forward", ONLINE),
    online_of_all_rows: ("forward", ONLINE),
    sums_divided_again_and_again: ("forward", {"softmax": "late"}),
    row_sums_for_every_tile: ("forward", {"softmax": "early"}),
    dQ_in_memory_before_g: ("backward", ORDER | {"g_block": "a"}),
    g_in_cache: ("backward", ORDER),
    zeros_where_nothing_is: ("forward-relu", {}),
}


def traced(function: Callable[..., None]) -> Program:
    solves = problem(UNUSUAL[function][0])
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    return trace(function, function.__name__, solves, names, ("a", "b"), masked=True)


def operations(program: Program, of_problem: str, options: dict[str, Any], sizes: dict[str, int], mask: Mask) -> Any:
    """The verdict on the game, and how often each operation was carried out in it."""
    options = {name: sizes.get(str(value), value) for name, value in options.items()}
    if program.outputs != tuple(problem(of_problem).outputs):
        options["outputs"] = program.outputs
    graph = graphs.build(of_problem, n=sizes["n"], d=sizes["d"], mask=mask.allowed(sizes["n"]), **options)
    referee, computed = Referee(graph, masked_peak_red(program, sizes, mask)), Counter[str]()
    for chunk in moves(program, sizes, graph.families, mask=mask):
        kinds, vertices = unpack(chunk)
        ops, times = np.unique(graph.op[vertices[kinds == COMPUTE]], return_counts=True)
        computed.update({Op(op).name.lower(): int(number) for op, number in zip(ops, times, strict=True)})
        referee.play(chunk)
    return referee.finish(), {kind: computed[kind] for kind in KINDS if computed[kind]}


def check(function: Callable[..., None], sizes: dict[str, int], mask: Mask) -> dict[str, int]:
    program = traced(function)
    game, computed = operations(program, *UNUSUAL[function], sizes, mask)
    assert game.complete
    assert work(program, sizes, mask) == computed
    predicted = count(program, sizes, mask=mask).total
    assert (game.reads, game.writes) == (predicted.reads, predicted.writes)
    return computed


@pytest.mark.parametrize("function", UNUSUAL, ids=lambda function: function.__name__)
@given(data=st.data())
@strategies.draws(2, 15)
def test_what_is_counted_is_what_is_played(function: Callable[..., None], data: st.DataObject) -> None:
    sizes = {name: data.draw(st.integers(1, 7)) for name in ("n", "d", "a", "b")}
    check(function, sizes, data.draw(strategies.masks(sizes["n"])))


def test_sums_that_wait_in_memory_are_divided_where_there_are_any() -> None:
    """Six rows in tiles of one, of which three have pairs: 3·4 divisions and 3 logarithms, not twice as many."""
    table = np.zeros((6, 6), bool)
    table[[0, 2, 5], [1, 1, 4]] = True
    computed = check(online_in_memory, {"n": 6, "d": 4, "a": 1, "b": 2}, from_array(table))
    assert (computed["div"], computed["log"]) == (12, 3)
    computed = check(online_in_memory, {"n": 6, "d": 4, "a": 2, "b": 2}, from_array(table))
    assert (computed["div"], computed["log"]) == (24, 6)  # each tile of two rows has a pair, and both rows are made
