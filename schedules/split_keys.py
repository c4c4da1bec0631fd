"""Splits of S keys, one worker for each split, and a merge: for few queries and many keys, as in decoding.

With one query, only the keys can be divided among parallel workers. For each query a worker writes d_v + 1 words to
memory: its own O_s and one word for its weight. The merge reads all of them.
"""

from pebblesim.language import exp, log, maximum, rowmax, rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.flash_forward import INFINITY, online_softmax, write_softmax
from pebblesim.schedules.forward import add_key, write_divided

SPLIT = "n_q*d_k*ceiling(n_k/S) + n_k*(d_k + d_v)*ceiling(n_q/B_r) + 2*n_q*(d_v + 1)*ceiling(n_k/S) + n_q*(d_v + 1)"


@schedule(
    problem="forward",
    source="Dao et al. 2023 (FlashDecoding)",
    known_as="FlashDecoding",
    io=SPLIT,
    fit=["B_r", "S", "B_c"],
    graph={"softmax": "split", "column_block": "B_c", "row_block": "B_r", "split": "S"},
)
def flash_decoding(m, Q, K, V, *, B_r, S, B_c):
    """FlashDecoding: one worker for each split of S keys, by an online softmax over B_c at a time; O_s and L_s of each
    split go through memory.

    S costs no words of cache, so the rule of blocks takes all keys for one split: S is given where several are to run.
    """
    (n_q, _), (n_k, d_v) = Q.shape, V.shape
    splits = m.quotient(n_k, S)
    O_s, L_s = m.tensor("O_s", splits, n_q, d_v), m.tensor("L_s", splits, n_q)
    O, L = m.tensor("O", n_q, d_v), m.tensor("L", n_q)

    with m.phase("splits"):
        for i in m.tiles(n_q, B_r, independent=True):
            for s in m.tiles(n_k, S, independent=True, keys_of=i):
                Q_i = m.read(Q[i, :])
                O_i, l_i, m_i = online_softmax(m, Q_i, K, V, s, B_c)
                m.delete(Q_i)
                O_i[:] = O_i / l_i
                m.write(O_s[s, i, :], O_i)
                m_i[:] = m_i + log(l_i)
                m.write(L_s[s, i], m_i)

    with m.phase("merge"):
        for i in m.tiles(n_q, B_r, independent=True, queries_of=n_k, otherwise={O: 0, L: -INFINITY}):
            O_i, W_i, top_i = m.constant(0, i, d_v), m.constant(0, i), m.constant(-INFINITY, i)
            for s in m.tiles(n_k, S, keys_of=i):
                w = m.read(L_s[s, i])
                top = m.compute(maximum(top_i, w))
                top_i[:] = exp(top_i - top)  # what all that was merged so far is rescaled by
                w[:] = exp(w - top)
                W_i[:] = top_i * W_i + w
                O_i[:] = top_i * O_i + w * m.read(O_s[s, i, :])
                m.move(top, top_i)
            write_softmax(m, O, L, i, O_i, W_i, top_i)


@schedule(
    problem="forward",
    source="ours: FlashDecoding with columns of K and V in turn, for tensor cores",
    io=(
        "n_q*d_k*ceiling(n_k/S) + n_k*(d_k + d_v)*ceiling(n_q/B_r) + n_q*(d_v + 1)*ceiling(n_k/S)"
        " + n_q*(d_v + 2*ceiling(d_v/e))*ceiling(n_k/S) + n_q*(d_v + ceiling(d_v/e))"
    ),
    fit=["B_r", "S", "c", "e"],
    graph={"softmax": "split-weighted", "column_block": "S", "row_block": "B_r"},
)
def flash_decoding_blocked(m, Q, K, V, *, B_r, S, c, e):
    """FlashDecoding for tensor cores: the scores of S keys are one tile; K and V are read c columns at a time.

    So a worker reads each word of its keys and values once, for any head dimension, and its softmax needs no running
    maximum. The merge has a worker for each e columns of O, which finds the largest L_s before the weights, so that
    these do not wait for one another; all of its workers write L.
    """
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    splits = m.quotient(n_k, S)
    O_s, L_s = m.tensor("O_s", splits, n_q, d_v), m.tensor("L_s", splits, n_q)
    O, L = m.tensor("O", n_q, d_v), m.tensor("L", n_q)

    with m.phase("splits"):
        for i in m.tiles(n_q, B_r, independent=True):
            for s in m.tiles(n_k, S, independent=True, keys_of=i):
                P = m.zeros(i, s)
                for k in m.tiles(d_k, c):
                    P += m.read(Q[i, k]) @ m.read(K[s, k]).T
                m_i = m.compute(rowmax(P))
                P[:] = exp(P - m_i)
                l_i = m.compute(rowsum(P))
                m_i[:] = m_i + log(l_i)
                m.write(L_s[s, i], m_i)
                for k in m.tiles(d_v, c):
                    O_ik = m.compute(P @ m.read(V[s, k]))
                    O_ik[:] = O_ik / l_i
                    m.write(O_s[s, i, k], O_ik)

    with m.phase("merge"):
        for i in m.tiles(n_q, B_r, independent=True, queries_of=n_k, otherwise={O: 0, L: -INFINITY}):
            for k in m.tiles(d_v, e, independent=True):
                O_ik, W_i, top_i = m.constant(0, i, k), m.constant(0, i), m.constant(-INFINITY, i)
                for s in m.tiles(n_k, S, keys_of=i):
                    top_i[:] = maximum(top_i, m.read(L_s[s, i]))
                for s in m.tiles(n_k, S, keys_of=i):
                    w = m.read(L_s[s, i])
                    w[:] = exp(w - top_i)
                    W_i[:] = W_i + w
                    O_ik[:] = O_ik + w * m.read(O_s[s, i, k])
                O_ik[:] = O_ik / W_i
                m.write(O[i, k], O_ik)
                top_i[:] = top_i + log(W_i)
                m.write(L[i], top_i)


def sums_of_splits(m, queries, keys, d_v, B_r, S, add):
    """Compute O and l from the sums of all splits; `add` adds the terms of one key to those of rows of the queries."""
    n_q, n_k, splits = queries[0].shape[0], keys[0].shape[0], m.quotient(keys[0].shape[0], S)
    AV_s, l_s = m.tensor("AV_s", splits, n_q, d_v), m.tensor("l_s", splits, n_q)
    O, l = m.tensor("O", n_q, d_v), m.tensor("l", n_q)

    with m.phase("splits"):
        for i in m.tiles(n_q, B_r, independent=True):
            for s in m.tiles(n_k, S, independent=True, keys_of=i):
                rows, O_i, l_i = [m.read(Q[i, :]) for Q in queries], m.zeros(i, d_v), m.zeros(i)
                for j in m.tiles(s, 1):
                    add(m, O_i, l_i, *rows, *keys, j)
                m.write(AV_s[s, i, :], O_i)
                m.write(l_s[s, i], l_i)

    with m.phase("merge"):
        for i in m.tiles(n_q, B_r, independent=True, queries_of=n_k, otherwise={O: 0, l: 0}):
            O_i, l_i = m.constant(0, i, d_v), m.constant(0, i)
            for s in m.tiles(n_k, S, keys_of=i):
                l_i += m.read(l_s[s, i])
                O_i += m.read(AV_s[s, i, :])
            write_divided(m, O, l, i, O_i, l_i)


@schedule(
    problem="forward",
    source="ours: row-stationary with FlashDecoding's splits, without a maximum",
    io=SPLIT,
    fit=["B_r", "S"],
    graph={"softmax": "split-sums", "column_block": "S", "row_block": "B_r"},
)
def row_stationary_split(m, Q, K, V, *, B_r, S):
    """Row-stationary, one worker for each split of S keys: splits of any length, with the I/O of FlashDecoding."""
    sums_of_splits(m, (Q,), (K, V), V.shape[1], B_r, S, add_key)
