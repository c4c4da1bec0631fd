"""Latent attention: a tile of keys in the cache is also used as values."""

from pebblesim.language import exp, rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.flash_forward import INFINITY, online_step, write_softmax
from pebblesim.schedules.forward import divided_product, past_keys
from pebblesim.schedules.matmul import rank_one_updates, streamed
from pebblesim.schedules.split_keys import sums_of_splits

BY_ROWS = "n_q*(d_v + d_r) + n_k*(d_v + d_r)*ceiling(n_q/B_r) + n_q*d_v + n_q"


@schedule(
    problem="forward-latent",
    source="ours: FlashAttention-2's order, as in FlashMLA; K is read once for scores and values",
    io=BY_ROWS,
    fit=["B_r", "B_c"],
    graph={"softmax": "flash2", "column_block": "B_c", "row_block": "B_r"},
)
def flash2_latent(m, Q_C, Q_R, C, R, *, B_r, B_c):
    """FlashAttention-2 with the latent part of the keys as values."""
    (n_q, d_v), (n_k, _) = Q_C.shape, C.shape
    O, L = m.tensor("O", n_q, d_v), m.tensor("L", n_q)
    for i in m.tiles(n_q, B_r, independent=True, queries_of=n_k, otherwise={O: 0, L: -INFINITY}):
        Q_C_i, Q_R_i = m.read(Q_C[i, :]), m.read(Q_R[i, :])
        O_i, l_i, m_i = m.constant(0, i, d_v), m.constant(0, i), m.constant(-INFINITY, i)
        for j in m.tiles(n_k, B_c, keys_of=i):
            C_j = m.read(C[j, :])
            P = m.compute(Q_C_i @ C_j.T)
            R_j = m.read(R[j, :])
            S_R = m.compute(Q_R_i @ R_j.T)
            m.delete(R_j)
            P[:] = P + S_R
            m.delete(S_R)
            online_step(m, P, l_i, m_i, O_i)
            O_i += P @ C_j
        write_softmax(m, O, L, i, O_i, l_i, m_i)


def add_keys(m, O_i, l_i, Q_C_i, Q_R_i, C, R, j):
    """Add the terms of a tile of keys, reading each word once: C_j stays from the scores to the output."""
    C_j = m.read(C[j, :])
    A, S_R = m.compute(Q_C_i @ C_j.T), m.zeros(Q_R_i.shape[0], j)
    for k in m.tiles(R.shape[1], 1):
        S_R += Q_R_i[:, k] @ m.read(R[j, k]).T
    A[:] = exp(A + S_R)
    m.delete(S_R)
    l_i += rowsum(A)
    O_i += A @ C_j


@schedule(
    problem="forward-latent",
    source="ours: FlashAttention-2's order with columns of width 1, without a maximum",
    io=BY_ROWS,
    closed={"B_r": "floor((M - d - 3)/(3*d + 6))"},
    graph={"softmax": "late"},
)
def row_stationary_latent(m, Q_C, Q_R, C, R, *, B_r):
    """Row-stationary: d_k(d_k + d_v)n²/M, the best constant for a large cache and d_r ≤ d_v."""
    past_keys(m, (Q_C, Q_R), (C, R), C.shape[1], B_r, add_keys)


@schedule(
    problem="forward-latent",
    source="ours: row-stationary with FlashDecoding's splits, without a maximum",
    io=(
        "n_q*(d_v + d_r)*ceiling(n_k/S) + n_k*(d_v + d_r)*ceiling(n_q/B_r)"
        " + 2*n_q*(d_v + 1)*ceiling(n_k/S) + n_q*(d_v + 1)"
    ),
    graph={"softmax": "split-sums", "column_block": "S", "row_block": "B_r"},
)
def row_stationary_split_latent(m, Q_C, Q_R, C, R, *, B_r, S):
    """Row-stationary, one worker for each split of S keys; the workers' sums go through memory."""
    sums_of_splits(m, (Q_C, Q_R), (C, R), C.shape[1], B_r, S, add_keys)


@schedule(
    problem="forward-latent",
    source="ours: Saha & Ye's order with streamed operands; C is read once for the scores and once for the values",
    io=(
        f"{streamed('n_q', '(d_v + d_r)', 'n_k')} + n_q"
        f" + {streamed('n_q', 'n_k', 'd_v', 'a', 'q')} + n_q*ceiling(d_v/q)"
    ),
    fit=[("a", "b"), "q"],
    closed=dict.fromkeys("abq", "floor(sqrt(M/3)) - 1"),
    graph={"softmax": "late"},
)
def small_cache_latent_streamed(m, Q_C, Q_R, C, R, *, a, b, q):
    """Small cache, streamed: two tiles of scores, exp(S) through memory."""
    (n_q, d_v), (n_k, _) = Q_C.shape, C.shape
    A, l, O = m.tensor("A", n_q, n_k), m.tensor("l", n_q), m.tensor("O", n_q, d_v)

    with m.phase("A"):
        for i in m.tiles(n_q, a, independent=True):
            l_i = m.zeros(i)
            for j in m.tiles(n_k, b, keys_of=i):
                A_ij, S_R = m.zeros(i, j), m.zeros(i, j)
                rank_one_updates(m, A_ij, Q_C, C, B_T=True)
                rank_one_updates(m, S_R, Q_R, R, B_T=True)
                A_ij[:] = exp(A_ij + S_R)
                m.delete(S_R)
                m.write(A[i, j], A_ij)
                l_i += rowsum(A_ij)
            m.write(l[i], l_i)

    with m.phase("O"):
        divided_product(m, O, A, C, l, a, q)  # by the rows of phase A: under a mask no others are written
