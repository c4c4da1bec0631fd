"""Small-cache schedules with a depth block: the operands of a product are read in a x c and c x b tiles.

A streamed product (`gemm_streamed`) holds a column of one operand and a word of the other. Tensor cores multiply tiles.
So these schedules hold tiles with a depth c > 1 of both operands, in ab + ac + cb words instead of ab + a + 1. The
number of words moved is the same.
"""

from pebblesim.language import exp, log, maximum, rowmax, rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.flash_forward import INFINITY, online_step
from pebblesim.schedules.matmul import seen, streamed
from pebblesim.schedules.phases import in_phase
from pebblesim.schedules.row_sums import write_row_sums


def add_product(m, C_ij, A, B, c, *, A_T=False, B_T=False, within=None):
    """Compute C_ij += A_i B_j by a x c tiles of A and c x b tiles of B.

    `within` is the block in which A was written over pairs. Under a mask, no tile then crosses two of these blocks.
    """
    i, j = C_ij.shape
    terms, allowed = A.shape[0] if A_T else A.shape[1], seen(A, B, i, j, A_T, B_T)

    def add(k):
        nonlocal C_ij
        A_ik = m.read(A[k, i]).T if A_T else m.read(A[i, k])
        B_kj = m.read(B[j, k]).T if B_T else m.read(B[k, j])
        C_ij += A_ik @ B_kj

    for k in m.tiles(terms, c if within is None else within, **allowed):
        if within is None:
            add(k)
        else:
            for part in m.tiles(k, c):
                add(part)


def gemm_blocked(m, C, A, B, a, b, c, *, A_T=False, B_T=False, within=None, finish=None, every_tile=True):
    """Compute C = A B by a x b tiles of C with depth c: mk⌈n/b⌉ + kn⌈m/a⌉ + mn words; options as `gemm_streamed`."""
    rows, columns = C.shape
    for i in m.tiles(rows, a, independent=True):
        for j in m.tiles(columns, b, independent=True, keys_of=None if every_tile else i):
            C_ij = m.zeros(i, j)
            add_product(m, C_ij, A, B, c, A_T=A_T, B_T=B_T, within=within)
            if finish is not None:
                finish(C_ij, i, j)
            m.write(C[i, j], C_ij)


def exponentials(m, L):
    """Return what makes a tile of exp(S - L) of one of scores S."""

    def finish(S_ij, i, j):
        S_ij[:] = exp(S_ij - m.read(L[i]))

    return finish


def times_centred(m, P, v):
    """Return what makes a tile of P ∘ (dP - v 1ᵀ) of one of dP, with the tile of P."""

    def finish(dP_ij, i, j):
        v_i = m.read(v[i])
        P_ij = m.read(P[i, j])
        dP_ij[:] = P_ij * (dP_ij - v_i)

    return finish


def write_exponentials(m, A, l, L, factors, i, b, add_scores):
    """Write rows i of A as the online softmax makes them, relative to the maximum so far, with the factors and sums.

    `add_scores` adds the scores to a tile of zeros.
    """
    l_i, m_i = m.constant(0, i), m.constant(-INFINITY, i)
    for j in m.tiles(A.shape[1], b, keys_of=i):
        A_ij = m.zeros(i, j)
        add_scores(A_ij)
        m_new = m.compute(rowmax(A_ij))
        m_new[:] = maximum(m_i, m_new)
        m_i[:] = exp(m_i - m_new)  # the factor that rescales the sums so far
        m.write(factors[j, i], m_i)
        A_ij[:] = exp(A_ij - m_new)
        l_i[:] = m_i * l_i
        l_i += rowsum(A_ij)
        m.write(A[i, j], A_ij)
        m.move(m_new, m_i)
    m.write(l[i], l_i)
    m_i[:] = m_i + log(l_i)
    m.write(L[i], m_i)


def write_rescaled_product(m, O, A, V, factors, l, a, b, e, c):
    """Compute O = A V / l by a x e tiles of O; before each b columns of A their factors rescale the sums so far."""
    (n_q, n_k), d_v = A.shape, V.shape[1]
    for i in m.tiles(n_q, a, independent=True, queries_of=n_k, otherwise={O: 0}):
        for k in m.tiles(d_v, e, independent=True):
            O_ik = m.constant(0, i, k)
            for j in m.tiles(n_k, b, keys_of=i):
                O_ik[:] = m.read(factors[j, i]) * O_ik
                for part in m.tiles(j, c):
                    O_ik += m.read(A[i, part]) @ m.read(V[part, k])
            O_ik[:] = O_ik / m.read(l[i])
            m.write(O[i, k], O_ik)


def write_L(m, L, Q, K, a, b, c):
    """Compute L = log Σ exp(Q Kᵀ) by running sums and maxima over a x b tiles of scores."""
    for i in m.tiles(L.shape[0], a, independent=True, queries_of=K.shape[0], otherwise={L: -INFINITY}):
        l_i, m_i = m.constant(0, i), m.constant(-INFINITY, i)
        for j in m.tiles(K.shape[0], b, keys_of=i):
            A = m.zeros(i, j)
            add_product(m, A, Q, K, c, B_T=True)
            online_step(m, A, l_i, m_i)
        m_i[:] = m_i + log(l_i)
        m.write(L[i], m_i)


@schedule(
    problem="matmul",
    source="ours: a x b tiles of C, from tiles of A and B with depth c",
    io=streamed("m", "k", "n"),
    fit=[("a", "b"), "c"],
)
def matmul_blocked(m, A, B, *, a, b, c):
    """Tiles of A and B with depth c are streamed while a tile of C stays, as on tensor cores."""
    gemm_blocked(m, m.tensor("C", A.shape[0], B.shape[1]), A, B, a, b, c)


@schedule(
    problem="forward",
    source="ours: tiles with a depth block; scores computed twice, for L and for f; f through memory",
    io=(f"2*{streamed('n_q', 'd_k', 'n_k')} - n_q*n_k + n_q + n_q*ceiling(n_k/b) + {streamed('n_q', 'n_k', 'd_v')}"),
    fit=[("a", "b"), "c"],
    graph={"softmax": "logsumexp", "column_block": "b", "row_block": "a"},
)
def small_cache_forward_blocked(m, Q, K, V, *, a, b, c):
    """Small cache for tensor cores: L by running sums, then f = exp(S - L) and O = f V."""
    (n_q, _), (n_k, d_v) = Q.shape, V.shape
    O, L, f = m.tensor("O", n_q, d_v), m.tensor("L", n_q), m.tensor("f", n_q, n_k)

    in_phase(write_L, m, L, Q, K, a, b, c)
    in_phase(gemm_blocked, m, f, Q, K, a, b, c, B_T=True, finish=exponentials(m, L), every_tile=False)
    in_phase(gemm_blocked, m, O, f, V, a, b, c, within=b)


@schedule(
    problem="forward",
    source="ours: exp(S - running maximum) through memory with a depth block, and the factors that rescale O",
    io=(
        f"{streamed('n_q', 'd_k', 'n_k')} + n_q*ceiling(n_k/b) + 2*n_q"
        f" + {streamed('n_q', 'n_k', 'd_v')} + n_q*(ceiling(n_k/b) + 1)*ceiling(d_v/b)"
    ),
    fit=[("a", "b"), "c"],
    graph={"softmax": "flash2", "column_block": "b", "row_block": "a"},
)
def scores_stored_blocked(m, Q, K, V, *, a, b, c):
    """Scores stored for tensor cores: FlashAttention-2's online softmax once for all columns of V, and O = A V apart.

    A is written as the online softmax makes it, relative to the running maximum of its tile, with the factor that
    rescales all sums so far.
    """
    (n_q, _), (n_k, d_v) = Q.shape, V.shape
    O, L, l, A = m.tensor("O", n_q, d_v), m.tensor("L", n_q), m.tensor("l_m", n_q), m.tensor("A", n_q, n_k)
    factors = m.tensor("a", m.quotient(n_k, b), n_q)

    with m.phase("A"):
        for i in m.tiles(n_q, a, independent=True, queries_of=n_k, otherwise={L: -INFINITY, l: 0}):
            write_exponentials(m, A, l, L, factors, i, b, lambda A_ij: add_product(m, A_ij, Q, K, c, B_T=True))

    in_phase(write_rescaled_product, m, O, A, V, factors, l, a, b, b, c)


@schedule(
    problem="backward-qkv",
    source="ours: small-cache-backward-streamed with a depth block; P and dS through memory",
    io=(
        f"2*n_q*d_v + n_q + {streamed('n_q', 'd_k', 'n_k')} + {streamed('n_q', 'd_v', 'n_k')} + 2*n_q*ceiling(n_k/b)"
        f" + n_q*n_k + {streamed('n_q', 'n_k', 'd_k')}"
        f" + {streamed('n_k', 'n_q', 'd_k', 'b', 'a')} + {streamed('n_k', 'n_q', 'd_v', 'b', 'a')}"
    ),
    fit=[("a", "b"), "c"],
    graph={"kept": "L"},
)
def small_cache_backward_blocked(m, Q, K, V, dO, O, L, *, a, b, c):
    """Small cache for tensor cores: five products of depth c, fused with the elementwise operations."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    P, dS, v = m.tensor("P", n_q, n_k), m.tensor("dS", n_q, n_k), m.tensor("v", n_q)
    dQ, dK, dV = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v)

    in_phase(write_row_sums, m, v, dO, O, a, c)
    in_phase(gemm_blocked, m, P, Q, K, a, b, c, B_T=True, finish=exponentials(m, L), every_tile=False)
    # b rows at a time, as P and dS have been written; then dS can take the place of P
    in_phase(gemm_blocked, m, dV, P, dO, b, a, c, A_T=True, within=a)
    # of dP = dO Vᵀ
    in_phase(gemm_blocked, m, dS, dO, V, a, b, c, B_T=True, finish=times_centred(m, P, v), every_tile=False)
    in_phase(gemm_blocked, m, dQ, dS, K, a, b, c, within=b)
    in_phase(gemm_blocked, m, dK, dS, Q, b, a, c, A_T=True, within=a)


def write_gradients_of_keys(m, dK, dV, Q, K, V, dO, L, v, B_c, b_r, *, dQ=None, independent=False):
    """Compute dK and dV of B_c keys at a time while b_r queries are streamed, and add their terms to `dQ` in memory."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    for j in m.tiles(n_k, B_c, independent=independent, keys_of=n_q, otherwise={dK: 0, dV: 0}):
        K_j, V_j, dK_j, dV_j = m.read(K[j, :]), m.read(V[j, :]), m.zeros(j, d_k), m.zeros(j, d_v)
        for i in m.tiles(n_q, b_r, queries_of=j):
            Q_i, dO_i, L_i, v_i = m.read(Q[i, :]), m.read(dO[i, :]), m.read(L[i]), m.read(v[i])
            P, dS = m.compute(Q_i @ K_j.T), m.compute(dO_i @ V_j.T)
            P[:] = exp(P - L_i)
            dV_j += P.T @ dO_i
            dS[:] = P * (dS - v_i)
            m.delete(P)
            dK_j += dS.T @ Q_i
            if dQ is not None:
                m.add(dQ[i, :], dS @ K_j)
        m.write(dK[j, :], dK_j)
        m.write(dV[j, :], dV_j)


@schedule(
    problem="backward-qkv",
    source="ours: backward-two-pass with tiles for tensor cores",
    io=(
        "2*n_q*d_v + n_q + n_q*(2*d_k + d_v) + 2*n_q + n_k*(d_k + d_v)*ceiling(n_q/B_r)"
        " + 2*n_k*(d_k + d_v) + ceiling(n_k/B_c)*n_q*(d_k + d_v + 2)"
    ),
    fit=["B_r", "B_c", "b_c", "b_r"],
    graph={"kept": "L"},
)
def backward_two_pass_blocked(m, Q, K, V, dO, O, L, *, B_r, b_c, B_c, b_r):
    """Two passes for tensor cores: b_c columns are streamed for B_r rows, then b_r rows for B_c columns."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    dQ, dK, dV, v = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v), m.tensor("v", n_q)

    in_phase(write_row_sums, m, v, dO, O, B_r, b_c)  # for every row, so that both passes find it under any mask

    with m.phase("dQ"):
        for i in m.tiles(n_q, B_r, independent=True, queries_of=n_k, otherwise={dQ: 0}):
            dO_i, v_i = m.read(dO[i, :]), m.read(v[i])
            Q_i, L_i, dQ_i = m.read(Q[i, :]), m.read(L[i]), m.zeros(i, d_k)
            for j in m.tiles(n_k, b_c, keys_of=i):
                K_j = m.read(K[j, :])
                P = m.compute(Q_i @ K_j.T)  # both products first: tensor cores work while the exponentials are taken
                dS = m.compute(dO_i @ m.read(V[j, :]).T)
                P[:] = exp(P - L_i)
                dS[:] = P * (dS - v_i)
                m.delete(P)
                dQ_i += dS @ K_j
            m.write(dQ[i, :], dQ_i)

    with m.phase("dK, dV"):
        write_gradients_of_keys(m, dK, dV, Q, K, V, dO, L, v, B_c, b_r, independent=True)


@schedule(
    problem="backward-qkv",
    source="ours: ds-stored with tiles for tensor cores",
    name="dS-stored-blocked",
    io=(
        "2*n_q*d_v + n_q + 2*n_k*(d_k + d_v) + ceiling(n_k/B_c)*n_q*(d_k + d_v + 2) + n_q*n_k"
        f" + {streamed('n_q', 'n_k', 'd_k', 'b_r', 'b')}"
    ),
    fit=["B_c", "b_r", "b", "c"],
    graph={"kept": "L"},
)
def dS_stored_blocked(m, Q, K, V, dO, O, L, *, B_c, b_r, b, c):
    """FlashAttention-2's loop over columns, but dS is written, and dQ = dS K is a separate product."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    dQ, dK, dV, v = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v), m.tensor("v", n_q)
    dS = m.tensor("dS", n_q, n_k)

    in_phase(write_row_sums, m, v, dO, O, b_r, c)

    with m.phase("dK, dV, dS"):
        for j in m.tiles(n_k, B_c, independent=True, keys_of=n_q, otherwise={dK: 0, dV: 0}):
            K_j, V_j, dK_j, dV_j = m.read(K[j, :]), m.read(V[j, :]), m.zeros(j, d_k), m.zeros(j, d_v)
            for i in m.tiles(n_q, b_r, queries_of=j):
                Q_i, dO_i, L_i, v_i = m.read(Q[i, :]), m.read(dO[i, :]), m.read(L[i]), m.read(v[i])
                P, dS_ij = m.compute(Q_i @ K_j.T), m.compute(dO_i @ V_j.T)
                P[:] = exp(P - L_i)
                dV_j += P.T @ dO_i
                dS_ij[:] = P * (dS_ij - v_i)
                m.delete(P)
                m.write(dS[i, j], dS_ij)
                dK_j += dS_ij.T @ Q_i
            m.write(dK[j, :], dK_j)
            m.write(dV[j, :], dV_j)

    in_phase(gemm_blocked, m, dQ, dS, K, b_r, b, c, within=B_c)
