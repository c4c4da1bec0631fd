"""Schedules for caches between small and large: one value of each pair goes through memory; rows stay in the passes
around it.

A pass keeps a block of rows of x·d words, and reads n rows of y·d words for each block: it moves about x·y·n²d²/M
words. A stored value of each pair costs a write and its reads. Products that read the same rows are cheap together:
scores and dQ need A2 (or K), q and dV need dO. So a value is stored where it separates two such passes. The passes have
tiles of different shapes; therefore the stored values are computed for all pairs, even under a mask. The computation of
other values from them leaves out tiles without an allowed pair.
"""

from pebblesim.language import exp, rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.forward import divided_product
from pebblesim.schedules.matmul import gemm_streamed, streamed, write_projections
from pebblesim.schedules.phases import in_phase
from pebblesim.schedules.row_sums import add_row_sums, write_row_sums

_ORDER_U = {"order": "U", "kept": True, "centred": True}


def stored_scores(m, P, Q, K, B_r, activate, after):
    """Compute P = `activate`(Q Kᵀ) with resident rows of Q.

    `after(i)` starts a block of rows; it returns functions to apply to each tile and at the end.
    """
    (n_q, d_k), (n_k, _) = Q.shape, K.shape
    for i in m.tiles(n_q, B_r, independent=True):
        Q_i = m.read(Q[i, :])
        finish, end = after(i)
        for j in m.tiles(n_k, 1):
            P_ij = m.zeros(i, j)
            for k in m.tiles(d_k, 1):
                P_ij += Q_i[:, k] @ m.read(K[j, k]).T
            P_ij[:] = activate(P_ij)
            finish(P_ij)
            m.write(P[i, j], P_ij)
        end()


def backward_from(m, g, A1, A2, S, qv, l, *, B_r, a, b):
    """Compute g from q - v in memory: rows of S and dQ are resident; rows of A2 serve both scores and dQ."""
    (n_q, d), (n_k, _) = A1.shape, A2.shape
    dQ = m.tensor("dQ", n_q, d)

    with m.phase("dQ"):
        for i in m.tiles(n_q, B_r, independent=True, queries_of=n_k, otherwise={dQ: 0}):
            S_i, l_i, dQ_i = m.read(S[i, :]), m.read(l[i]), m.zeros(i, d)
            for j in m.tiles(n_k, 1, keys_of=i):
                A2_j = m.read(A2[j, :])
                p = m.compute(S_i @ A2_j.T)
                p[:] = exp(p)
                p[:] = p / l_i  # f
                for r in m.tiles(i, 1):
                    p[r, j] = p[r, j] * m.read(qv[r, j])
                dQ_i += p @ A2_j
            m.write(dQ[i, :], dQ_i)

    in_phase(gemm_streamed, m, g, A1, dQ, a, b, A_T=True)


@schedule(
    problem="backward",
    source="ours: q - v through memory; rows of dO stationary for q; rows of S and dQ stationary for the rest",
    io=(
        f"2*{streamed('n', 'd', 'd')} + 2*n*d + n*d*ceiling(n/B_q) + n**2"
        f" + 2*n*d + n + n*d*ceiling(n/B_r) + n**2 + {streamed('d', 'n', 'd')}"
    ),
    fit=["B_r", "B_q", ("a", "b")],
    graph=_ORDER_U,
)
def q_stored(m, A1, A2, A3, dO, X, Y, O, l, *, B_q, B_r, a, b):
    """q stored, by rows: 3n²d²/M + 2n²."""
    (n_q, d), (n_k, _) = A1.shape, A2.shape
    S, h = write_projections(m, A1, A3, X, Y, gemm_streamed, a, b)
    qv, g = m.tensor("qv", n_q, n_k), m.tensor("g", d, d)

    with m.phase("q"):
        for i in m.tiles(n_q, B_q, independent=True):
            dO_i, v_i = m.read(dO[i, :]), m.zeros(i)
            add_row_sums(m, v_i, dO_i, O)
            for j in m.tiles(n_k, 1):
                q = m.zeros(i, j)
                for k in m.tiles(d, 1):
                    q += dO_i[:, k] @ m.read(h[j, k]).T
                q[:] = q - v_i
                m.write(qv[i, j], q)

    backward_from(m, g, A1, A2, S, qv, l, B_r=B_r, a=a, b=b)


@schedule(
    problem="backward",
    source="ours: q - v through memory, computed in tiles; rows of S and dQ stationary for the rest",
    io=(
        f"2*{streamed('n', 'd', 'd')} + 2*n*d + n + {streamed('n', 'd', 'n')} + n*ceiling(n/b)"
        f" + 2*n*d + n + n*d*ceiling(n/B_r) + n**2 + {streamed('d', 'n', 'd')}"
    ),
    fit=["B_r", ("a", "b")],
    graph=_ORDER_U,
)
def q_tiled(m, A1, A2, A3, dO, X, Y, O, l, *, B_r, a, b):
    """q stored, by tiles: 2n²d²/M + 2n²d/√M + 2n²."""
    (n_q, d), (n_k, _) = A1.shape, A2.shape
    S, h = write_projections(m, A1, A3, X, Y, gemm_streamed, a, b)
    v, qv, g = m.tensor("v", n_q), m.tensor("qv", n_q, n_k), m.tensor("g", d, d)

    def centred(q, i, j):
        q[:] = q - m.read(v[i])

    in_phase(write_row_sums, m, v, dO, O, 1)

    with m.phase("q"):
        gemm_streamed(m, qv, dO, h, a, b, B_T=True, finish=centred)

    backward_from(m, g, A1, A2, S, qv, l, B_r=B_r, a=a, b=b)


@schedule(
    problem="forward",
    source="ours: exp(S) through memory, computed with rows of Q stationary",
    io=(f"n_q*d_k + n_k*d_k*ceiling(n_q/B_r) + n_q*n_k + n_q + {streamed('n_q', 'n_k', 'd_v')} + n_q*ceiling(d_v/b)"),
    fit=["B_r", ("a", "b")],
    graph={"softmax": "late"},
)
def scores_stored(m, Q, K, V, *, B_r, a, b):
    """exp(S) stored: n²d²/M + 2n²d/√M + n²."""
    (n_q, _), (n_k, d_v) = Q.shape, V.shape
    A, l, O = m.tensor("A", n_q, n_k), m.tensor("l", n_q), m.tensor("O", n_q, d_v)

    def sums(i):
        l_i = m.zeros(i)

        def add(A_ij):
            nonlocal l_i
            l_i += rowsum(A_ij)

        return add, lambda: m.write(l[i], l_i)

    in_phase(stored_scores, m, A, Q, K, B_r, exp, sums)
    in_phase(divided_product, m, O, A, V, l, a, b)


@schedule(
    problem="forward",
    source="ours: exp(S) through memory; a separate pass for its row sums; found by `pebblesim search`",
    io=f"{streamed('n_q', 'd_k', 'n_k')} + n_q*n_k + n_q + {streamed('n_q', 'n_k', 'd_v')} + n_q*ceiling(d_v/b)",
    fit=[("a", "b"), "B_l"],
    graph={"softmax": "late"},
)
def row_sums_apart_forward(m, Q, K, V, *, a, b, B_l):
    """Row sums in a separate pass: no word of them is beside a tile, so the tile is larger; best for very small M."""
    (n_q, _), (n_k, d_v) = Q.shape, V.shape
    A, l, O = m.tensor("A", n_q, n_k), m.tensor("l", n_q), m.tensor("O", n_q, d_v)

    def exponentials(A_ij, i, j):
        A_ij[:] = exp(A_ij)

    in_phase(gemm_streamed, m, A, Q, K, a, b, B_T=True, finish=exponentials)

    with m.phase("l"):
        for i in m.tiles(n_q, B_l, independent=True):
            l_i = m.zeros(i)
            for j in m.tiles(n_k, 1):
                l_i += rowsum(m.read(A[i, j]))
            m.write(l[i], l_i)

    in_phase(divided_product, m, O, A, V, l, a, b)


def gradients_from(m, Q, K, V, dO, P, v, *, B_c, a, b):
    """Compute dQ, dK and dV from P and v in memory: columns of V and dV stationary, while dS is written."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    dS = m.tensor("dS", n_q, n_k)
    dQ, dK, dV = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v)

    with m.phase("dV, dS"):
        for j in m.tiles(n_k, B_c, independent=True):
            V_j, dV_j = m.read(V[j, :]), m.zeros(j, d_v)
            for i in m.tiles(n_q, 1):
                dO_i, P_ij = m.read(dO[i, :]), m.read(P[i, j])
                dV_j += P_ij.T @ dO_i
                dS_ij = m.compute(dO_i @ V_j.T)  # dP
                dS_ij[:] = P_ij * (dS_ij - m.read(v[i]))
                m.write(dS[i, j], dS_ij)
            m.write(dV[j, :], dV_j)

    in_phase(gemm_streamed, m, dQ, dS, K, a, b)
    in_phase(gemm_streamed, m, dK, dS, Q, a, b, A_T=True)


_FROM_P = (
    "2*n_k*d_v + ceiling(n_k/B_c)*n_q*(d_v + 1) + 2*n_q*n_k"
    f" + {streamed('n_q', 'n_k', 'd_k')} + {streamed('n_k', 'n_q', 'd_k')}"
)
"""I/O of `gradients_from` in words, as text."""


@schedule(
    problem="backward-qkv",
    name="P-stored",
    source="ours: P and dS through memory; columns of V and dV stationary in the pass between",
    io=f"2*n_q*d_v + n_q + n_q*d_k + n_q + n_k*d_k*ceiling(n_q/B_r) + n_q*n_k + {_FROM_P}",
    fit=["B_r", "B_c", ("a", "b")],
    graph={"kept": "l"},
)
def p_stored(m, Q, K, V, dO, O, l, *, B_r, B_c, a, b):
    """P and dS stored: 3n²d²/M + 4n²d/√M + 3n², or 5n²d²/M + 5n²."""
    (n_q, _), (n_k, _) = Q.shape, V.shape
    P, v = m.tensor("P", n_q, n_k), m.tensor("v", n_q)

    in_phase(write_row_sums, m, v, dO, O, 1)

    def divided(i):
        l_i = m.read(l[i])

        def divide(P_ij):
            P_ij[:] = P_ij / l_i

        return divide, lambda: None

    in_phase(stored_scores, m, P, Q, K, B_r, exp, divided)

    gradients_from(m, Q, K, V, dO, P, v, B_c=B_c, a=a, b=b)


@schedule(
    problem="backward-qkv",
    name="kept-dS-stored",
    source="ours: P and O kept; dS through memory; columns of V and dV stationary for it",
    io=f"2*n_q*d_v + n_q + {_FROM_P}",
    fit=["B_c", ("a", "b")],
    graph={"kept": "P, O"},
)
def kept_ds_stored(m, Q, K, V, dO, O, P, *, B_c, a, b):
    """P and O kept, dS stored: 2n²d²/M + 4n²d/√M + 2n², or 4n²d²/M + 4n²."""
    v = m.tensor("v", Q.shape[0])

    in_phase(write_row_sums, m, v, dO, O, 1)

    gradients_from(m, Q, K, V, dO, P, v, B_c=B_c, a=a, b=b)


@schedule(
    problem="backward-qkv",
    name="dS-stored",
    source="ours: FlashAttention-2's order; dS goes through memory instead of dQ",
    io=(
        "2*n_q*d_v + n_q + 2*n_k*(d_k + d_v) + ceiling(n_k/B_c)*n_q*(d_k + d_v + 2) + n_q*n_k"
        f" + {streamed('n_q', 'n_k', 'd_k')}"
    ),
    fit=["B_c", ("a", "b")],
    graph={"kept": "l"},
)
def ds_stored(m, Q, K, V, dO, O, l, *, B_c, a, b):
    """dS stored: 9n²d²/M + 2n²."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    dS, v = m.tensor("dS", n_q, n_k), m.tensor("v", n_q)
    dQ, dK, dV = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v)

    in_phase(write_row_sums, m, v, dO, O, 1)

    with m.phase("dK, dV"):
        for j in m.tiles(n_k, B_c, independent=True):
            K_j, V_j, dK_j, dV_j = m.read(K[j, :]), m.read(V[j, :]), m.zeros(j, d_k), m.zeros(j, d_v)
            for i in m.tiles(n_q, 1):
                Q_i, dO_i = m.read(Q[i, :]), m.read(dO[i, :])
                P = m.compute(Q_i @ K_j.T)
                P[:] = exp(P) / m.read(l[i])
                dV_j += P.T @ dO_i
                dS_ij = m.compute(dO_i @ V_j.T)  # dP
                dS_ij[:] = P * (dS_ij - m.read(v[i]))
                m.delete(P)
                m.write(dS[i, j], dS_ij)
                dK_j += dS_ij.T @ Q_i
            m.write(dK[j, :], dK_j)
            m.write(dV[j, :], dV_j)

    in_phase(gemm_streamed, m, dQ, dS, K, a, b)
