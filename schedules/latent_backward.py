"""Gradients of latent attention: a tile of keys in the cache serves scores and dP, and has one gradient for both."""

from pebblesim.language import exp
from pebblesim.language.registry import schedule
from pebblesim.schedules.matmul import gemm_streamed, rank_one_updates, streamed
from pebblesim.schedules.phases import in_phase
from pebblesim.schedules.row_sums import add_row_sums, times_centred, write_row_sums


def probabilities(m, Q_C_i, Q_R_i, C_j, R_j, l_i):
    """Compute P of rows and keys that are in the cache."""
    P, S_R = m.compute(Q_C_i @ C_j.T), m.compute(Q_R_i @ R_j.T)
    P[:] = exp(P + S_R)
    m.delete(S_R)
    P[:] = P / l_i
    return P


@schedule(
    problem="backward-latent",
    source="ours: backward-two-pass with the latent part of the keys as values",
    io=(
        "n_q*(3*d_v + d_r) + 2*n_q + n_q*(d_v + d_r) + n_k*(d_v + d_r)*ceiling(n_q/B_r)"
        " + 2*n_k*(d_v + d_r) + ceiling(n_k/B_c)*n_q*(2*d_v + d_r + 2)"
    ),
    fit=["B_r", "B_c"],
    graph={"apart": True},
)
def two_pass_latent_backward(m, Q_C, Q_R, C, R, dO, O, l, *, B_r, B_c):
    """Two passes: 9n²d²/M for d_r ≪ d_v = d; rows stationary for dQ, and columns for dC and dR."""
    (n_q, d_v), (n_k, d_r) = Q_C.shape, R.shape
    dQ_C, dQ_R, v = m.tensor("dQ_C", n_q, d_v), m.tensor("dQ_R", n_q, d_r), m.tensor("v", n_q)
    dC, dR = m.tensor("dC", n_k, d_v), m.tensor("dR", n_k, d_r)

    with m.phase("v, dQ"):
        for i in m.tiles(n_q, B_r, independent=True, queries_of=n_k, otherwise={dQ_C: 0, dQ_R: 0}):
            dO_i, v_i = m.read(dO[i, :]), m.zeros(i)
            add_row_sums(m, v_i, dO_i, O)
            m.write(v[i], v_i)
            Q_C_i, Q_R_i, l_i = m.read(Q_C[i, :]), m.read(Q_R[i, :]), m.read(l[i])
            dQ_C_i, dQ_R_i = m.zeros(i, d_v), m.zeros(i, d_r)
            for j in m.tiles(n_k, 1, keys_of=i):
                C_j, R_j = m.read(C[j, :]), m.read(R[j, :])
                P = probabilities(m, Q_C_i, Q_R_i, C_j, R_j, l_i)
                dS = m.compute(dO_i @ C_j.T)
                dS[:] = dS - v_i
                dS[:] = P * dS
                dQ_C_i += dS @ C_j
                dQ_R_i += dS @ R_j
            m.write(dQ_C[i, :], dQ_C_i)
            m.write(dQ_R[i, :], dQ_R_i)

    with m.phase("dC, dR"):
        for j in m.tiles(n_k, B_c, independent=True, keys_of=n_q, otherwise={dC: 0, dR: 0}):
            C_j, R_j = m.read(C[j, :]), m.read(R[j, :])
            dC_j, dK_j, dR_j = m.zeros(j, d_v), m.zeros(j, d_v), m.zeros(j, d_r)
            for i in m.tiles(n_q, 1, queries_of=j):
                Q_C_i, Q_R_i, dO_i = m.read(Q_C[i, :]), m.read(Q_R[i, :]), m.read(dO[i, :])
                l_i, v_i = m.read(l[i]), m.read(v[i])
                P = probabilities(m, Q_C_i, Q_R_i, C_j, R_j, l_i)
                dC_j += P.T @ dO_i
                dS = m.compute(dO_i @ C_j.T)
                dS[:] = dS - v_i
                dS[:] = P * dS
                dK_j += dS.T @ Q_C_i
                dR_j += dS.T @ Q_R_i
            dC_j[:] = dC_j + dK_j
            m.write(dC[j, :], dC_j)
            m.write(dR[j, :], dR_j)


@schedule(
    problem="backward-latent",
    source="ours: small-cache-backward-streamed; a latent key has one gradient in both of its roles",
    io=(
        f"2*n_q*d_v + n_q + {streamed('n_q', '(2*d_v + d_r)', 'n_k')} + 2*n_q*ceiling(n_k/b) + 2*n_q*n_k"
        f" + {streamed('n_q', 'n_k', 'd_v')} + {streamed('n_q', 'n_k', 'd_r')}"
        f" + {streamed('n_k', '2*n_q', 'd_v', 'b', 'a')} + {streamed('n_k', 'n_q', 'd_r', 'b', 'a')}"
    ),
    fit=[("a", "b")],
    closed=dict.fromkeys("ab", "floor(sqrt(M/2)) - 1"),
)
def small_cache_latent_backward(m, Q_C, Q_R, C, R, dO, O, l, *, a, b):
    """Small cache, streamed: P and dS through memory; dC is one sum of terms with P and with dS."""
    (n_q, d_v), (n_k, d_r) = Q_C.shape, R.shape
    P, dS, v = m.tensor("P", n_q, n_k), m.tensor("dS", n_q, n_k), m.tensor("v", n_q)
    dQ_C, dQ_R = m.tensor("dQ_C", n_q, d_v), m.tensor("dQ_R", n_q, d_r)
    dC, dR = m.tensor("dC", n_k, d_v), m.tensor("dR", n_k, d_r)

    in_phase(write_row_sums, m, v, dO, O, 1)

    with m.phase("P"):
        for i in m.tiles(n_q, a, independent=True):
            for j in m.tiles(n_k, b, independent=True, keys_of=i):
                P_ij, S_R = m.zeros(i, j), m.zeros(i, j)
                rank_one_updates(m, P_ij, Q_C, C, B_T=True)
                rank_one_updates(m, S_R, Q_R, R, B_T=True)
                P_ij[:] = exp(P_ij + S_R)
                m.delete(S_R)
                P_ij[:] = P_ij / m.read(l[i])
                m.write(P[i, j], P_ij)

    # of dP = dO Cᵀ
    in_phase(gemm_streamed, m, dS, dO, C, a, b, B_T=True, finish=times_centred(m, P, v), every_tile=False)
    in_phase(gemm_streamed, m, dQ_C, dS, C, a, b)
    in_phase(gemm_streamed, m, dQ_R, dS, R, a, b)

    with m.phase("dC"):
        for j in m.tiles(n_k, b, independent=True):
            for k in m.tiles(d_v, a, independent=True):
                dC_jk = m.zeros(j, k)
                rank_one_updates(m, dC_jk, P, dO, A_T=True)
                rank_one_updates(m, dC_jk, dS, Q_C, A_T=True)
                m.write(dC[j, k], dC_jk)

    in_phase(gemm_streamed, m, dR, dS, Q_R, b, a, A_T=True)
