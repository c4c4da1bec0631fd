"""All keys, or all queries, stay in the cache; the rest is streamed once.

The I/O is the compulsory words, or little more.
"""

from pebblesim.language import exp
from pebblesim.language.registry import schedule
from pebblesim.schedules.row_sums import add_row_sums


@schedule(
    problem="backward",
    source="ours: A2, h, X and g resident; each row is read once",
    io="5*n*d + 3*d**2 + n",
    graph={"order": "U", "kept": True, "centred": True},
)
def keys_resident(m, A1, A2, A3, dO, X, Y, O, l):
    """Keys resident: each word moves once, with 2nd + 2d² + O(n + d) words of cache."""
    (n_q, d), (n_k, _) = A1.shape, A2.shape
    g = m.tensor("g", d, d)
    h, Y_ = m.zeros(n_k, d), m.read(Y)
    for j in m.tiles(n_k, 1):
        for k in m.tiles(d, 1):
            h[j, :] += m.read(A3[j, k]) @ Y_[k, :]
    m.delete(Y_)
    A2_, X_, g_ = m.read(A2), m.read(X), m.zeros(d, d)
    for i in m.tiles(n_q, 1):
        dO_i, l_i, v_i = m.read(dO[i, :]), m.read(l[i]), m.zeros(i)
        add_row_sums(m, v_i, dO_i, O)
        A1_i, dQ_i = m.read(A1[i, :]), m.zeros(i, d)
        S_i = m.compute(A1_i @ X_)
        for j in m.tiles(n_k, 1, keys_of=i):
            p = m.compute(dO_i @ h[j, :].T)  # q
            p[:] = p - v_i
            f = m.compute(S_i @ A2_[j, :].T)
            f[:] = exp(f)
            f[:] = f / l_i
            p[:] = f * p
            dQ_i += p @ A2_[j, :]
        g_ += A1_i.T @ dQ_i
    m.write(g, g_)


def columns_past(m, Q_, dO_, l_, v_, K, V, dK, dV, dQ_=None):
    """Compute dK, dV, and dQ if it is in the cache, while the keys are streamed; the queries are resident."""
    n_q, _ = Q_.shape
    (n_k, d_k), (_, d_v) = K.shape, V.shape
    for j in m.tiles(n_k, 1, keys_of=n_q, otherwise={dK: 0, dV: 0}):
        K_j, V_j, dK_j, dV_j = m.read(K[j, :]), m.read(V[j, :]), m.zeros(j, d_k), m.zeros(j, d_v)
        for i in m.tiles(n_q, 1, queries_of=j):
            P = m.compute(Q_[i, :] @ K_j.T)
            P[:] = exp(P) / l_[i]
            dV_j += P.T @ dO_[i, :]
            dS = m.compute(dO_[i, :] @ V_j.T)
            dS[:] = P * (dS - v_[i])
            dK_j += dS.T @ Q_[i, :]
            if dQ_ is not None:
                dQ_[i, :] += dS @ K_j
        m.write(dK[j, :], dK_j)
        m.write(dV[j, :], dV_j)


@schedule(
    problem="backward-qkv",
    source="ours: Q, dO and dQ resident; each column is read once",
    io="2*n_q*(d_k + d_v) + n_q + 2*n_k*(d_k + d_v)",
    graph={"kept": "l"},
)
def queries_resident(m, Q, K, V, dO, O, l):
    """Queries resident: each word moves once, with 3nd + 2n + 4d + O(1) words of cache."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    dQ, dK, dV = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v)
    dO_, v_ = m.read(dO), m.zeros(n_q)
    add_row_sums(m, v_, dO_, O)
    Q_, l_, dQ_ = m.read(Q), m.read(l), m.zeros(n_q, d_k)
    columns_past(m, Q_, dO_, l_, v_, K, V, dK, dV, dQ_)
    m.write(dQ, dQ_)


@schedule(
    problem="backward-qkv",
    source="ours: K and V resident for dQ, then Q and dO for dK and dV",
    io="n_k*(d_k + d_v) + 2*n_q*(d_k + d_v) + 2*n_q + n_q*(d_k + d_v) + 2*n_q + 2*n_k*(d_k + d_v)",
    graph={"kept": "l"},
)
def keys_then_queries(m, Q, K, V, dO, O, l):
    """Two passes, each with one side resident: 12nd + 4n words moved, with 2nd + 2n + O(d) words of cache."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    dQ, dK, dV, v = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v), m.tensor("v", n_q)

    with m.phase("v, dQ"):
        K_, V_ = m.read(K), m.read(V)
        for i in m.tiles(n_q, 1):
            dO_i, v_i = m.read(dO[i, :]), m.zeros(i)
            add_row_sums(m, v_i, dO_i, O)
            m.write(v[i], v_i)
            Q_i, l_i, dQ_i = m.read(Q[i, :]), m.read(l[i]), m.zeros(i, d_k)
            for j in m.tiles(n_k, 1, keys_of=i):
                P = m.compute(Q_i @ K_[j, :].T)
                P[:] = exp(P) / l_i
                dS = m.compute(dO_i @ V_[j, :].T)
                dS[:] = P * (dS - v_i)
                dQ_i += dS @ K_[j, :]
            m.write(dQ[i, :], dQ_i)

    with m.phase("dK, dV"):
        Q_, dO_, l_, v_ = m.read(Q), m.read(dO), m.read(l), m.read(v)
        columns_past(m, Q_, dO_, l_, v_, K, V, dK, dV)
