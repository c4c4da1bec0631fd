"""Part of a matrix stays in cache: near M = nd there is room for a block of rows and for some of the streamed rows.

With k blocks of rows, the streamed rows are read k times. The first B_s of them are read once, before the loop, and
stay. Each of their words saves k - 1 words, or 2(k - 1) for a sum that would be read and written for every block.
"""

from pebblesim.language import exp, rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.regrouped import GRAPH, past_rows
from pebblesim.schedules.row_sums import add_row_sums


def passing(rows="n", keys="n"):
    """Return the number of rows of keys that are read in all blocks of rows, as text; the first B_s are read once."""
    return f"(Min({keys}, B_s) + ({keys} - Min({keys}, B_s))*ceiling({rows}/B_r))"


BY_ROWS = f"n_q*(d_k + d_v) + (d_k + d_v)*{passing('n_q', 'n_k')}"
BY_COLUMNS = "n_k*(d_k + d_v) + n_q*d_v + d_k*(Min(n_q, B_s) + (n_q - Min(n_q, B_s))*ceiling(d_v/B_v))"


def weights(m, Q_i, K_j, l_i, activate):
    """Return A = `activate`(Q_i K_jᵀ), and add its row sums to l_i if there are any."""
    A = m.compute(Q_i @ K_j.T)
    A[:] = activate(A)
    if l_i is not None:
        l_i += rowsum(A)
    return A


def write_rows(m, O, l, i, c, O_i, l_i):
    """Write rows of O, divided by the row sums if there are any, and these."""
    if l_i is not None:
        O_i[:] = O_i / l_i
        m.write(l[i], l_i)
    m.write(O[i, c], O_i)


def by_rows(m, Q, K, V, B_r, B_s, activate, l=None):
    """Compute O by rows, and its row sums with `l`; the first keys and values stay."""
    (n_q, _), (n_k, d_v) = Q.shape, V.shape
    O = m.tensor("O", n_q, d_v)
    for s in m.first(n_k, B_s):
        K_s, V_s = m.read(K[s, :]), m.read(V[s, :])
        for i in m.tiles(n_q, B_r):
            Q_i, O_i, l_i = m.read(Q[i, :]), m.zeros(i, d_v), None if l is None else m.zeros(i)
            for j in m.tiles(s, 1, keys_of=i):
                O_i += weights(m, Q_i, K_s[j, :], l_i, activate) @ V_s[j, :]
            for j in m.tiles(n_k, 1, after=B_s, keys_of=i):
                K_j = m.read(K[j, :])
                A = weights(m, Q_i, K_j, l_i, activate)
                m.delete(K_j)
                O_i += A @ m.read(V[j, :])
            write_rows(m, O, l, i, d_v, O_i, l_i)


def by_columns(m, Q, K, V, B_v, B_s, activate, l=None):
    """Compute O by columns, and the row sums with `l` each time; K stays, and so do the first queries."""
    (n_q, _), (n_k, d_v) = Q.shape, V.shape
    O, K_ = m.tensor("O", n_q, d_v), m.read(K)

    def row(i, Q_i, c, V_c):
        O_i, l_i = m.zeros(i, c), None if l is None else m.zeros(i)
        for j in m.tiles(n_k, 1, keys_of=i):
            O_i += weights(m, Q_i, K_[j, :], l_i, activate) @ V_c[j, :]
        write_rows(m, O, l, i, c, O_i, l_i)

    for s in m.first(n_q, B_s):
        Q_s = m.read(Q[s, :])
        for c in m.tiles(d_v, B_v):
            V_c = m.read(V[:, c])
            for i in m.tiles(s, 1):
                row(i, Q_s[i, :], c, V_c)
            for i in m.tiles(n_q, 1, after=B_s):
                row(i, m.read(Q[i, :]), c, V_c)


@schedule(
    problem="forward",
    source="ours: row-stationary, the first keys and values resident",
    io=f"{BY_ROWS} + n_q",
    fit=["B_r", "B_s"],
    graph={"softmax": "late"},
)
def keys_partly_resident_forward(m, Q, K, V, *, B_r, B_s):
    """Keys partly resident: row-stationary, and B_s keys and values stay in cache."""
    by_rows(m, Q, K, V, B_r, B_s, exp, l=m.tensor("l", Q.shape[0]))


@schedule(
    problem="forward",
    source="ours: keys resident, values by columns, scores made again for each block of them; the first queries stay",
    io=f"{BY_COLUMNS} + n_q*ceiling(d_v/B_v)",
    fit=["B_v", "B_s"],
    graph={"softmax": "late"},
)
def values_in_columns(m, Q, K, V, *, B_v, B_s):
    """Values in columns: K resident, with B_v columns of V and B_s queries; 5nd from M = 3nd/2."""
    by_columns(m, Q, K, V, B_v, B_s, exp, l=m.tensor("l", Q.shape[0]))


@schedule(
    problem="backward",
    source="ours: regrouped-h, the first rows of A2 and h resident",
    io=f"3*d**2 + 3*n*d + n + 2*d*{passing()}",
    fit=["B_r", "B_s"],
    graph=GRAPH,
)
def keys_partly_resident(m, A1, A2, A3, dO, X, Y, O, l, *, B_r, B_s):
    """Keys partly resident: regrouped, h is recomputed, and B_s rows of A2 and h stay in cache."""
    (n_q, d), (n_k, _) = A1.shape, A2.shape
    g = m.tensor("g", d, d)
    X_, Y_, g_ = m.read(X), m.read(Y), m.zeros(d, d)
    for s in m.first(n_k, B_s):
        h_s = m.zeros(s, d)
        for j in m.tiles(s, 1):
            for k in m.tiles(d, 1):
                h_s[j, :] += m.read(A3[j, k]) @ Y_[k, :]
        A2_s = m.read(A2[s, :])
        for i in m.tiles(n_q, B_r):
            A1_i, dO_i, l_i, v_i = m.read(A1[i, :]), m.read(dO[i, :]), m.read(l[i]), m.zeros(i)
            add_row_sums(m, v_i, dO_i, O)
            for j in m.tiles(s, 1, keys_of=i):
                past_rows(m, g_, A1_i, dO_i, l_i, v_i, X_, A2_s[j, :], h_s[j, :])
            for j in m.tiles(n_k, 1, after=B_s, keys_of=i):
                A3_j = m.read(A3[j, :])
                h_j = m.compute(A3_j @ Y_)
                m.delete(A3_j)
                past_rows(m, g_, A1_i, dO_i, l_i, v_i, X_, m.read(A2[j, :]), h_j)
    m.write(g, g_)


@schedule(
    problem="backward-qkv",
    source="ours: FlashAttention-2's order; the first columns compute v and start dQ; some rows of dQ are resident",
    io=(
        "2*n_k*(d_k + d_v) + n_q*d_v + ceiling(n_k/B_c)*n_q*(d_k + d_v + 2)"
        " + d_k*Min(n_q, B_s) + d_k*(n_q - Min(n_q, B_s))*(2*ceiling(n_k/B_c) - 1)"
    ),
    fit=["B_c", "B_s"],
    graph={"kept": "l"},
)
def queries_partly_resident(m, Q, K, V, dO, O, l, *, B_c, B_s):
    """Queries partly resident: outer loop over columns; B_s rows of dQ stay, the others are in memory. Chains only."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    dQ, dK, dV, v = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v), m.tensor("v", n_q)

    def row(i, dQ_i, columns, begin):
        """Process a row with a block of columns; `begin`: it is the first block, which also computes v."""
        K_j, V_j, dK_j, dV_j = columns
        dO_i, v_i = m.read(dO[i, :]), m.zeros(i) if begin else m.read(v[i])
        if begin:
            add_row_sums(m, v_i, dO_i, O)
            m.write(v[i], v_i)
        Q_i, l_i = m.read(Q[i, :]), m.read(l[i])
        j, _ = K_j.shape
        for c in m.tiles(j, 1):
            P = m.compute(Q_i @ K_j[c, :].T)
            P[:] = exp(P) / l_i
            dV_j[c, :] += P.T @ dO_i
            dS = m.compute(dO_i @ V_j[c, :].T)
            dS[:] = P * (dS - v_i)
            dK_j[c, :] += dS.T @ Q_i
            dQ_i += dS @ K_j[c, :]

    def block_of_columns(j, dQ_s, begin):
        """Compute dK and dV of a block of columns while all rows are streamed; the first rows of dQ stay."""
        _, _, dK_j, dV_j = columns = m.read(K[j, :]), m.read(V[j, :]), m.zeros(j, d_k), m.zeros(j, d_v)
        s, _ = dQ_s.shape
        for i in m.tiles(s, 1):
            row(i, dQ_s[i, :], columns, begin)
        for i in m.tiles(n_q, 1, after=B_s):
            dQ_i = m.zeros(i, d_k) if begin else m.read(dQ[i, :])
            row(i, dQ_i, columns, begin)
            m.write(dQ[i, :], dQ_i)
        m.write(dK[j, :], dK_j)
        m.write(dV[j, :], dV_j)

    for s in m.first(n_q, B_s):
        dQ_s = m.zeros(s, d_k)
        for j in m.first(n_k, B_c):
            block_of_columns(j, dQ_s, begin=True)
        for j in m.tiles(n_k, B_c, after=B_c):
            block_of_columns(j, dQ_s, begin=False)
        m.write(dQ[s, :], dQ_s)
