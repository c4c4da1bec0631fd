"""dL/dX with weights absorbed: X and Y multiply the side that has fewer rows, queries or keys.

Li et al. compute S = A1 X and h = A3 Y. For few queries, q = (dO Yᵀ) A3ᵀ does not need h, and A3 is read as it is. For
few keys, Z = A1 (A2 Xᵀ)ᵀ does not need S. DeepSeek-AI 2024 (arXiv 2405.04434, section 2.1) absorb weights of keys and
values in this way for decoding.
"""

from pebblesim.language import exp, rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.matmul import rank_one_updates, streamed
from pebblesim.schedules.row_stationary import add_to_g, one_pass, stream_past


@schedule(
    problem="backward",
    source="ours: row-stationary-fused with Y absorbed into dO",
    io="4*n_q*d + n_q + d**2 + ceiling(n_q/B_r)*(4*d**2 + 2*n_k*d)",
    closed={"B_r": "floor((M - d - 3)/(3*d + 6))"},
    graph={"order": "U", "kept": True, "centred": True, "g_block": "B_r", "absorbed": ("Y",)},
)
def row_stationary_absorbed(m, A1, A2, A3, dO, X, Y, O, l, *, B_r):
    """Row-stationary, absorbed: 6n²d²/M; neither S nor h nor dQ goes through memory."""
    (n_q, d), (n_k, _) = A1.shape, A2.shape
    g = m.tensor("g", d, d)
    m.write(g, 0)
    for i in m.tiles(n_q, B_r, queries_of=n_k):
        S_i, dOY_i, v_i = m.zeros(i, d), m.zeros(i, d), m.zeros(i)
        rank_one_updates(m, S_i, A1, X)
        for k in m.tiles(d, 1):
            dO_ik = m.read(dO[i, k])
            v_i += rowsum(dO_ik * m.read(O[i, k]))
            for c in m.tiles(d, 1):
                dOY_i[:, c] += dO_ik @ m.read(Y[c, k]).T
        l_i, dQ_i = m.read(l[i]), m.zeros(i, d)
        stream_past(m, dQ_i, S_i, dOY_i, l_i, v_i, A2, A3)
        m.delete(S_i, dOY_i, v_i, l_i)
        add_to_g(m, g, A1, dQ_i)


@schedule(
    problem="backward",
    source="ours: row-stationary-one-pass with Y absorbed into dO",
    io=(f"3*n_q*d + ceiling(n_q/B_r)*(2*d**2 + 2*n_k*d) + {streamed('d', 'n_q', 'd', 'a_g', 'b_g')}"),
    fit=["B_r", ("a_g", "b_g")],
    graph={"order": "one-pass", "absorbed": ("Y",)},
)
def row_stationary_one_pass_absorbed(m, A1, A2, A3, dO, X, Y, *, B_r, a_g, b_g):
    """Row-stationary without O and l, absorbed: 8n²d²/M, for few queries little more than the compulsory words."""

    def rows(i):
        S_i, dOY_i = m.zeros(i, A1.shape[1]), m.zeros(i, A1.shape[1])
        rank_one_updates(m, S_i, A1, X)
        rank_one_updates(m, dOY_i, dO, Y, B_T=True)
        return S_i, dOY_i

    one_pass(m, A1, A2, A3, rows, B_r, a_g, b_g)


@schedule(
    problem="backward",
    source="ours: all keys resident, X absorbed into A2; each row is read once",
    io="2*n_q*d + 3*n_k*d + 3*d**2",
    graph={"order": "T", "absorbed": ("X",)},
)
def keys_resident_absorbed(m, A1, A2, A3, dO, X, Y):
    """Keys resident, absorbed: for few keys the compulsory words and A2 again, with 3n_k d + d + O(n_k) of cache."""
    (n_q, d), (n_k, _) = A1.shape, A2.shape
    g = m.tensor("g", d, d)
    T = m.zeros(d, n_k)

    A2X, h = m.zeros(n_k, d), m.zeros(n_k, d)
    rank_one_updates(m, A2X, A2, X, B_T=True)
    rank_one_updates(m, h, A3, Y)
    for i in m.tiles(n_q, 1, queries_of=n_k):
        A1_i = m.read(A1[i, :])
        f = m.compute(A1_i @ A2X.T)
        f[:] = exp(f)
        l_i = m.compute(rowsum(f))
        f[:] = f / l_i
        m.delete(l_i)
        p = m.zeros(i, n_k)
        for k in m.tiles(d, 1):
            p += m.read(dO[i, k]) @ h[:, k].T  # q
        p[:] = f * p
        v_i = m.compute(rowsum(p))
        p[:] = p - v_i * f
        m.delete(f, v_i)
        T += A1_i.T @ p
    m.delete(A2X, h)
    for c in m.tiles(d, 1):
        g_c = m.zeros(d, c)
        for j in m.tiles(n_k, 1):
            g_c += T[:, j] @ m.read(A2[j, c])
        m.write(g[:, c], g_c)
