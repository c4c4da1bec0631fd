"""The first rows of a result are made in blocks of columns, so that a little less cache needs no block of rows more.

With M near 2nd/k (4nd/k for dK and dV), k blocks of n/k rows do not quite fit, and another block would stream all of
the other side once more. Instead the first B_s rows hold their inputs and B_v columns of the result. Their inputs stay
while the other side passes by again for the other columns; that is one matrix of it, and these columns of another.
"""

from pebblesim.language import exp
from pebblesim.language.registry import schedule
from pebblesim.schedules.partly_resident import weights, write_rows
from pebblesim.schedules.row_sums import add_row_sums

OTHERS = "Max(0, ceiling(({rows} - B_s)/{block}))"
"""Number of blocks of the rows after the first B_s, as text."""


def past_values(m, O_i, Q_i, K, V, c, l_i=None, K_s=None, B_k=None):
    """Stream K and the columns c of V past a block of rows; `l_i`: add the row sums; `K_s`: the first B_k keys."""
    i, _ = Q_i.shape
    if K_s is not None:
        s, _ = K_s.shape
        for j in m.tiles(s, 1, keys_of=i):
            O_i += weights(m, Q_i, K_s[j, :], l_i, exp) @ m.read(V[j, c])
    for j in m.tiles(K.shape[0], 1, after=B_k, keys_of=i):
        K_j = m.read(K[j, :])
        A = weights(m, Q_i, K_j, l_i, exp)
        m.delete(K_j)
        O_i += A @ m.read(V[j, c])


def by_first_rows(m, Q, K, V, B_r, B_s, B_v, **kept):
    """Compute O by blocks of rows, and its row sums l; the first B_s rows in blocks of B_v columns of O."""
    (n_q, _), (_, d_v) = Q.shape, V.shape
    O, l = m.tensor("O", n_q, d_v), m.tensor("l", n_q)
    for s in m.first(n_q, B_s):
        Q_s, l_s = m.read(Q[s, :]), m.zeros(s)
        for c in m.first(d_v, B_v):
            O_sc = m.zeros(s, c)
            past_values(m, O_sc, Q_s, K, V, c, l_s, **kept)
            write_rows(m, O, l, s, c, O_sc, l_s)
        for c in m.tiles(d_v, B_v, after=B_v):
            O_sc = m.zeros(s, c)
            past_values(m, O_sc, Q_s, K, V, c, **kept)
            O_sc[:] = O_sc / l_s
            m.write(O[s, c], O_sc)
    for i in m.tiles(n_q, B_r, after=B_s):
        Q_i, O_i, l_i = m.read(Q[i, :]), m.zeros(i, d_v), m.zeros(i)
        past_values(m, O_i, Q_i, K, V, d_v, l_i, **kept)
        write_rows(m, O, l, i, d_v, O_i, l_i)


@schedule(
    problem="forward",
    source="ours: row-stationary; the first rows hold Q and make O in blocks of columns",
    io=(
        f"n_q*(d_k + d_v) + n_k*(d_k + d_v)*{OTHERS.format(rows='n_q', block='B_r')}"
        " + n_k*(d_k*(1 + Max(0, ceiling((d_v - B_v)/B_v))) + d_v) + n_q"
    ),
    fit=["B_r", "B_s", "B_v"],
    graph={"softmax": "late"},
)
def first_rows_by_columns(m, Q, K, V, *, B_r, B_s, B_v):
    """First rows by columns: row-stationary; B_s rows make O in blocks of B_v columns. 7nd at M = nd, 11nd at nd/2."""
    by_first_rows(m, Q, K, V, B_r, B_s, B_v)


@schedule(
    problem="forward",
    source="ours: first-rows-by-columns, the first keys resident",
    io=(
        f"n_q*(d_k + d_v) + n_k*d_v*(1 + {OTHERS.format(rows='n_q', block='B_r')}) + n_q + d_k*(Min(n_k, B_k)"
        f" + (n_k - Min(n_k, B_k))*({OTHERS.format(rows='n_q', block='B_r')} + 1 + Max(0, ceiling((d_v - B_v)/B_v))))"
    ),
    fit=["B_r", "B_s", "B_v", "B_k"],
    graph={"softmax": "late"},
)
def first_rows_keys_stay(m, Q, K, V, *, B_r, B_s, B_v, B_k):
    """First rows by columns, and B_k keys stay in cache: 6.7nd at M = nd, 10.9nd at nd/2."""
    for s in m.first(K.shape[0], B_k):
        by_first_rows(m, Q, K, V, B_r, B_s, B_v, K_s=m.read(K[s, :]), B_k=B_k)


@schedule(
    problem="backward-qkv",
    source="ours: FlashAttention-2's order; the first keys make dV in blocks of columns",
    io=(
        "2*n_k*(d_k + d_v) + n_q*(2*d_k + 2*d_v + 2)"
        " + n_q*((d_k + 1)*Max(0, ceiling((d_v - B_v)/B_v)) + Max(0, d_v - B_v))"
        f" + n_q*(3*d_k + d_v + 2)*{OTHERS.format(rows='n_k', block='B_c')}"
    ),
    fit=["B_c", "B_s", "B_v"],
    graph={"kept": "l"},
)
def first_keys_by_columns(m, Q, K, V, dO, O, l, *, B_c, B_s, B_v):
    """First keys by columns: outer loop over keys; B_s keys make B_v columns of dV at a time. Chains only."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    dQ, dK, dV, v = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v), m.tensor("v", n_q)

    def gradients(i, v_i, dQ_i, dO_i, columns, c):
        """Add a query's terms to dK, dQ and the columns c of dV of a block of keys."""
        K_j, V_j, dK_j, dV_jc = columns
        Q_i, l_i = m.read(Q[i, :]), m.read(l[i])
        j, _ = K_j.shape
        for r in m.tiles(j, 1):
            P = m.compute(Q_i @ K_j[r, :].T)
            P[:] = exp(P) / l_i
            dV_jc[r, :] += P.T @ (dO_i if c is d_v else dO_i[:, c])
            dS = m.compute(dO_i @ V_j[r, :].T)
            dS[:] = P * (dS - v_i)
            dK_j[r, :] += dS.T @ Q_i
            dQ_i += dS @ K_j[r, :]
        m.write(dQ[i, :], dQ_i)

    for s in m.first(n_k, B_s):
        K_s = m.read(K[s, :])
        for c in m.first(d_v, B_v):
            V_s, dK_s, dV_sc = m.read(V[s, :]), m.zeros(s, d_k), m.zeros(s, c)
            for i in m.tiles(n_q, 1):
                dO_i, v_i = m.read(dO[i, :]), m.zeros(i)
                add_row_sums(m, v_i, dO_i, O)
                m.write(v[i], v_i)
                gradients(i, v_i, m.zeros(i, d_k), dO_i, (K_s, V_s, dK_s, dV_sc), c)
            m.write(dK[s, :], dK_s)
            m.write(dV[s, c], dV_sc)
        for c in m.tiles(d_v, B_v, after=B_v):
            dV_sc = m.zeros(s, c)
            for i in m.tiles(n_q, 1):
                Q_i, l_i, dO_ic = m.read(Q[i, :]), m.read(l[i]), m.read(dO[i, c])
                for r in m.tiles(s, 1):
                    P = m.compute(Q_i @ K_s[r, :].T)
                    P[:] = exp(P) / l_i
                    dV_sc[r, :] += P.T @ dO_ic
            m.write(dV[s, c], dV_sc)
    for j in m.tiles(n_k, B_c, after=B_s):
        K_j, V_j, dK_j, dV_j = m.read(K[j, :]), m.read(V[j, :]), m.zeros(j, d_k), m.zeros(j, d_v)
        for i in m.tiles(n_q, 1):
            gradients(i, m.read(v[i]), m.read(dQ[i, :]), m.read(dO[i, :]), (K_j, V_j, dK_j, dV_j), d_v)
        m.write(dK[j, :], dK_j)
        m.write(dV[j, :], dV_j)
