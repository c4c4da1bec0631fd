"""Small-cache schedules for tensor cores that process C rows at a time: an n x n table needs only C x n words.

The tiles fit into the cache of a multiprocessor. The groups of C rows fit into the L2 cache, or into a workspace. The
sums over all rows, dK and dV, stay in memory from one group to the next. C rows of O or dQ have few tiles, so these
tiles have their own width e. Under a mask, C rows are multiplied with all keys to which at least one of them may
attend.
"""

from pebblesim.language import exp, log, maximum, rowmax, rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.blocked import exponentials, times_centred, write_L
from pebblesim.schedules.flash_forward import INFINITY
from pebblesim.schedules.phases import in_phase
from pebblesim.schedules.row_sums import write_row_sums

LAST = "(n_q - C*(ceiling(n_q/C) - 1))"
"""Rows in the last tile of C."""


def cut_twice(block):
    """Return the number of tiles of `block` rows in all groups of C rows, as text."""
    return f"((ceiling(n_q/C) - 1)*ceiling(C/{block}) + ceiling({LAST}/{block}))"


def write_scores(m, A, A_1, A_2, r, a, b, c, change):
    """Compute A[i, j] = change(A_1[i] A_2[j]ᵀ) for tiles i of the rows r."""
    for i in m.tiles(r, a, independent=True):
        for j in m.tiles(A.shape[1], b, independent=True, keys_of=i):
            A_ij = m.zeros(i, j)
            for k in m.tiles(A_1.shape[1], c):
                A_ij += m.read(A_1[i, k]) @ m.read(A_2[j, k]).T
            change(A_ij, i, j)
            m.write(A[i, j], A_ij)


def write_rows(m, C, A, B, r, a, e, b, c):
    """Compute C[r] = A[r] B in tiles of a x e with depth c."""
    for i in m.tiles(r, a, independent=True):
        for k in m.tiles(C.shape[1], e, independent=True):
            C_ik = m.zeros(i, k)
            for j in m.tiles(A.shape[1], b, keys_of=i):  # as A has been written
                for part in m.tiles(j, c):
                    C_ik += m.read(A[i, part]) @ m.read(B[part, k])
            m.write(C[i, k], C_ik)


def add_rows(m, C, A, B, r, b, a, c, e=None):
    """Add A[r]ᵀ B[r] to C in tiles of b x e with depth c, a rows of A at a time; e is a if it is not given."""
    for j in m.tiles(C.shape[0], b, independent=True, keys_of=r):
        for k in m.tiles(C.shape[1], a if e is None else e, independent=True):
            C_jk = m.read(C[j, k])
            for i in m.tiles(r, a, queries_of=j):  # as A has been written
                for part in m.tiles(i, c):
                    C_jk += m.read(A[part, j]).T @ m.read(B[part, k])
            m.write(C[j, k], C_jk)


@schedule(
    problem="forward",
    source="ours: small-cache-forward-blocked, for C rows at a time",
    io=(
        f"n_q*d_k*ceiling(n_k/b) + n_k*d_k*ceiling(n_q/a) + n_q"
        f" + n_q*d_k*ceiling(n_k/b) + n_k*d_k*{cut_twice('a')} + n_q*ceiling(n_k/b) + n_q*n_k"
        f" + n_q*n_k*ceiling(d_v/e) + n_k*d_v*{cut_twice('a')} + n_q*d_v"
    ),
    fit=["C", ("a", "b", "e"), "c"],
    graph={"softmax": "logsumexp", "column_block": "b", "row_block": "a"},
)
def small_cache_forward_in_rows(m, Q, K, V, *, C, a, b, c, e):
    """Small cache for tensor cores with C x n words of f: first L, then f and O for C rows at a time."""
    (n_q, _), (n_k, d_v) = Q.shape, V.shape
    O, L, f = m.tensor("O", n_q, d_v), m.tensor("L", n_q), m.tensor("f", n_q, n_k)

    in_phase(write_L, m, L, Q, K, a, b, c)

    with m.phase("f, O"):
        for r in m.tiles(n_q, C):
            write_scores(m, f, Q, K, r, a, b, c, exponentials(m, L))
            write_rows(m, O, f, V, r, a, e, b, c)


@schedule(
    problem="forward",
    source="ours: a softmax of each tile of scores through memory, for C rows at a time, and weights of these tiles",
    io=(
        f"n_q*d_k*ceiling(n_k/b) + n_k*d_k*{cut_twice('a')} + n_q*n_k + n_q*ceiling(n_k/b)"
        f" + n_q*ceiling(n_k/b) + n_q"
        f" + n_q*(n_k + ceiling(n_k/b) + 1)*ceiling(d_v/e) + n_k*d_v*{cut_twice('a')} + n_q*d_v"
    ),
    fit=["C", ("a", "b", "e"), "c"],
    graph={"softmax": "split-scores", "column_block": "b", "rows_block": "C", "row_block": "a"},
)
def scores_stored_in_rows(m, Q, K, V, *, C, a, b, c, e):
    """Scores stored for tensor cores with C x n words: a softmax P_s of each tile, weighted by exp(L_s - L) in O = P V.

    As in FlashDecoding, each tile of scores has a softmax of its own, with L_s = log of the sum. So all tiles of C rows
    are independent of each other, and every score is computed once.
    """
    (n_q, _), (n_k, d_v) = Q.shape, V.shape
    O, L, P_s = m.tensor("O", n_q, d_v), m.tensor("L", n_q), m.tensor("P_s", n_q, n_k)
    L_s = m.tensor("L_s", m.quotient(n_k, b), n_q)

    with m.phase("P_s, L, O"):
        for r in m.tiles(n_q, C):

            def normalised(P_ij, i, j):
                m_i = m.compute(rowmax(P_ij))
                P_ij[:] = exp(P_ij - m_i)
                l_i = m.compute(rowsum(P_ij))
                P_ij[:] = P_ij / l_i
                m_i[:] = m_i + log(l_i)
                m.write(L_s[j, i], m_i)

            write_scores(m, P_s, Q, K, r, a, b, c, normalised)
            for i in m.tiles(r, a, independent=True):
                W_i, top_i = m.constant(0, i), m.constant(-INFINITY, i)
                for j in m.tiles(n_k, b, keys_of=i):
                    w = m.read(L_s[j, i])
                    top = m.compute(maximum(top_i, w))
                    top_i[:] = exp(top_i - top)  # the factor that rescales the sum so far
                    w[:] = exp(w - top)
                    W_i[:] = top_i * W_i + w
                    m.move(top, top_i)
                top_i[:] = top_i + log(W_i)
                m.write(L[i], top_i)
            for i in m.tiles(r, a, independent=True):
                for k in m.tiles(d_v, e, independent=True):
                    L_i, O_ik = m.read(L[i]), m.zeros(i, k)
                    for j in m.tiles(n_k, b, keys_of=i):
                        w = m.read(L_s[j, i])
                        w[:] = exp(w - L_i)
                        for part in m.tiles(j, c):
                            P_ij = m.read(P_s[i, part])
                            P_ij[:] = w * P_ij
                            O_ik += P_ij @ m.read(V[part, k])
                    m.write(O[i, k], O_ik)


@schedule(
    problem="backward-qkv",
    source="ours: small-cache-backward-blocked, for C rows at a time; dK and dV are summed in memory",
    io=(
        "2*n_q*d_v + n_q + n_k*(d_k + d_v)"
        f" + n_q*d_k*ceiling(n_k/b) + n_k*d_k*{cut_twice('a')} + n_q*ceiling(n_k/b) + n_q*n_k"
        f" + n_q*d_v*ceiling(n_k/b) + n_k*d_v*{cut_twice('a')} + n_q*ceiling(n_k/b) + 2*n_q*n_k"
        f" + n_q*n_k*ceiling(d_k/e) + n_k*d_k*{cut_twice('a')} + n_q*d_k"
        " + 2*n_k*(d_k + d_v)*ceiling(n_q/C)"
        " + n_q*n_k*(ceiling(d_k/a) + ceiling(d_v/a)) + n_q*(d_k + d_v)*ceiling(n_k/b)"
    ),
    fit=["C", ("a", "b", "e"), "c"],
    graph={"kept": "L", "rows_block": "C"},
)
def small_cache_backward_in_rows(m, Q, K, V, dO, O, L, *, C, a, b, c, e):
    """Small cache for tensor cores with C x n words of P; dS can use the same C x n words."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    P, dS, v = m.tensor("P", n_q, n_k), m.tensor("dS", n_q, n_k), m.tensor("v", n_q)
    dQ, dK, dV = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v)

    in_phase(write_row_sums, m, v, dO, O, a, c)

    with m.phase("P, dV, dS, dQ, dK"):
        m.write(dK, 0)
        m.write(dV, 0)
        for r in m.tiles(n_q, C):
            write_scores(m, P, Q, K, r, a, b, c, exponentials(m, L))
            add_rows(m, dV, P, dO, r, b, a, c)
            write_scores(m, dS, dO, V, r, a, b, c, times_centred(m, P, v))
            write_rows(m, dQ, dS, K, r, a, e, b, c)
            add_rows(m, dK, dS, Q, r, b, a, c)
