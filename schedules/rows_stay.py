"""Schedules for tensor cores whose rows stay while keys are streamed, as kernels of Hopper's copy engine need it.

In one pass the terms of dQ are added to memory. In wide heads tables of pairs go through memory: the rows of Q and dO
stay for them, and products with a table are in tiles.
"""

from pebblesim.language import exp
from pebblesim.language.registry import schedule
from pebblesim.schedules.blocked import (
    gemm_blocked,
    write_exponentials,
    write_gradients_of_keys,
    write_rescaled_product,
)
from pebblesim.schedules.flash_forward import INFINITY
from pebblesim.schedules.matmul import streamed
from pebblesim.schedules.phases import in_phase
from pebblesim.schedules.row_sums import write_row_sums


def add_scores(m, S_ij, Q_i, K, c):
    """Compute S_ij += Q_i K_jᵀ with Q_i in the cache, by b x c tiles of K."""
    j = S_ij.shape[1]
    for k in m.tiles(K.shape[1], c):
        S_ij += Q_i[:, k] @ m.read(K[j, k]).T


@schedule(
    problem="backward-qkv",
    source="Dao 2023 (FlashAttention-2), Algorithm 2, with tiles for tensor cores",
    known_as="FlashAttention-2",
    io="2*n_q*d_v + n_q + 2*n_k*(d_k + d_v) + n_q*d_k + ceiling(n_k/B_c)*n_q*(3*d_k + d_v + 2)",
    fit=["B_c", "b_r"],
    graph={"kept": "L", "dQ_block": "B_c"},
)
def flash2_backward_blocked(m, Q, K, V, dO, O, L, *, B_c, b_r):
    """One pass for tensor cores: b_r rows are streamed for B_c columns, and their terms are added to dQ in memory."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    dQ, dK, dV, v = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v), m.tensor("v", n_q)

    in_phase(write_row_sums, m, v, dO, O, B_c, b_r)

    with m.phase("dQ, dK, dV"):
        m.write(dQ, 0)
        write_gradients_of_keys(m, dK, dV, Q, K, V, dO, L, v, B_c, b_r, dQ=dQ)


@schedule(
    problem="backward-qkv",
    source="ours: small-cache-backward-blocked, with resident rows for P and dS",
    io=(
        "2*n_q*d_v + n_q + n_q*(d_k + d_v) + 2*n_q + n_k*(d_k + d_v)*ceiling(n_q/a) + 3*n_q*n_k"
        f" + {streamed('n_q', 'n_k', 'd_k', 'a', 'e')}"
        f" + {streamed('n_k', 'n_q', 'd_k', 'b', 'e')} + {streamed('n_k', 'n_q', 'd_v', 'b', 'e')}"
    ),
    fit=[("a", "b"), "e", "c"],
    graph={"kept": "L"},
)
def small_cache_backward_resident(m, Q, K, V, dO, O, L, *, a, b, c, e):
    """Small cache for tensor cores: rows of Q stay while P is written, rows of dO while dS is."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    P, dS, v = m.tensor("P", n_q, n_k), m.tensor("dS", n_q, n_k), m.tensor("v", n_q)
    dQ, dK, dV = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v)

    in_phase(write_row_sums, m, v, dO, O, a, c)

    with m.phase("P"):
        for i in m.tiles(n_q, a, independent=True):
            Q_i, L_i = m.read(Q[i, :]), m.read(L[i])
            for j in m.tiles(n_k, b, keys_of=i):
                P_ij = m.zeros(i, j)
                add_scores(m, P_ij, Q_i, K, c)
                P_ij[:] = exp(P_ij - L_i)
                m.write(P[i, j], P_ij)

    in_phase(gemm_blocked, m, dV, P, dO, b, e, c, A_T=True, within=a)  # before dS takes the place of P

    with m.phase("dS"):
        for i in m.tiles(n_q, a, independent=True):
            dO_i, v_i = m.read(dO[i, :]), m.read(v[i])
            for j in m.tiles(n_k, b, keys_of=i):
                dS_ij = m.zeros(i, j)
                add_scores(m, dS_ij, dO_i, V, c)  # dP
                P_ij = m.read(P[i, j])
                dS_ij[:] = P_ij * (dS_ij - v_i)
                m.write(dS[i, j], dS_ij)

    in_phase(gemm_blocked, m, dQ, dS, K, a, e, c, within=b)
    in_phase(gemm_blocked, m, dK, dS, Q, b, e, c, A_T=True, within=a)


@schedule(
    problem="forward",
    source="ours: scores-stored-blocked, with resident rows for the scores",
    io=(
        "n_q*d_k + n_k*d_k*ceiling(n_q/a) + n_q*n_k + n_q*ceiling(n_k/b) + 2*n_q"
        f" + {streamed('n_q', 'n_k', 'd_v', 'a', 'e')} + n_q*(ceiling(n_k/b) + 1)*ceiling(d_v/e)"
    ),
    fit=[("a", "b"), "e", "c"],
    graph={"softmax": "flash2", "column_block": "b", "row_block": "a"},
)
def scores_stored_resident(m, Q, K, V, *, a, b, c, e):
    """Exponentials relative to the maximum so far go through memory; rows of Q stay while they are written."""
    (n_q, _), (n_k, d_v) = Q.shape, V.shape
    O, A, l, L = m.tensor("O", n_q, d_v), m.tensor("A", n_q, n_k), m.tensor("l_m", n_q), m.tensor("L", n_q)
    factors = m.tensor("a", m.quotient(n_k, b), n_q)

    with m.phase("A"):
        for i in m.tiles(n_q, a, independent=True, queries_of=n_k, otherwise={L: -INFINITY, l: 0}):
            Q_i = m.read(Q[i, :])
            write_exponentials(m, A, l, L, factors, i, b, lambda A_ij, Q_i=Q_i: add_scores(m, A_ij, Q_i, K, c))

    in_phase(write_rescaled_product, m, O, A, V, factors, l, a, b, e, c)


@schedule(
    problem="backward-qkv",
    source="ours: dS-stored with resident keys, and products with dS for dQ and dK",
    name="dS-stored-resident",
    io=(
        "2*n_q*d_v + n_q + n_k*(d_k + 2*d_v) + ceiling(n_k/b)*n_q*(d_k + d_v + 2) + n_q*n_k"
        f" + {streamed('n_q', 'n_k', 'd_k', 'a', 'e')} + {streamed('n_k', 'n_q', 'd_k', 'b', 'e')}"
    ),
    fit=[("a", "b"), "e", "c"],
    graph={"kept": "L"},
)
def dS_stored_resident(m, Q, K, V, dO, O, L, *, a, b, c, e):
    """One pass over the scores, for dV, that writes dS; dQ = dS K and dK = dSᵀ Q are products with it."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    dQ, dK, dV, v = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v), m.tensor("v", n_q)
    dS = m.tensor("dS", n_q, n_k)

    in_phase(write_row_sums, m, v, dO, O, a, c)

    with m.phase("dV, dS"):
        for j in m.tiles(n_k, b, independent=True, keys_of=n_q, otherwise={dV: 0}):
            K_j, V_j, dV_j = m.read(K[j, :]), m.read(V[j, :]), m.zeros(j, d_v)
            for i in m.tiles(n_q, a, queries_of=j):
                for r in m.tiles(i, c):  # of a x b pairs all are written, if the mask allows one
                    Q_r, dO_r, L_r, v_r = m.read(Q[r, :]), m.read(dO[r, :]), m.read(L[r]), m.read(v[r])
                    P, dS_rj = m.compute(Q_r @ K_j.T), m.compute(dO_r @ V_j.T)
                    P[:] = exp(P - L_r)
                    dS_rj[:] = P * (dS_rj - v_r)
                    m.write(dS[r, j], dS_rj)
                    dV_j += P.T @ dO_r  # last, so that tensor cores work on it during the next exponentials
            m.write(dV[j, :], dV_j)

    in_phase(gemm_blocked, m, dQ, dS, K, a, e, c, within=b)
    in_phase(gemm_blocked, m, dK, dS, Q, b, e, c, A_T=True, within=a)
