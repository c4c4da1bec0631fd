"""Gradients of attention with respect to Q, K and V: FlashAttention-1 and -2, and our schedules."""

from pebblesim.language import exp, rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.flash_forward import PRINTED
from pebblesim.schedules.matmul import CLOSED_STREAMED, gemm_streamed, streamed
from pebblesim.schedules.phases import in_phase
from pebblesim.schedules.row_sums import add_row_sums, times_centred, write_row_sums, write_row_sums_of_pairs


@schedule(
    problem="backward-qkv",
    source="Dao et al. 2022 (FlashAttention), Algorithm 4",
    known_as="FlashAttention-1",
    io="2*n_k*(d_k + d_v) + n_q*d_k + ceiling(n_k/B_c)*n_q*(3*d_k + 2*d_v + 2)",
    paper=PRINTED,
    fit=["B_c", "B_r"],
    closed={"B_r": "1", "B_c": "floor((M - 4*d - 8)/(4*d + 4))"},
    graph={"kept": "m", "dQ_block": "B_c"},
)
def flash1_backward(machine, Q, K, V, dO, O, l_m, m, *, B_r, B_c):
    """FlashAttention-1: outer loop over columns, dQ in memory, v recomputed for every tile."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    dQ, dK, dV = machine.tensor("dQ", n_q, d_k), machine.tensor("dK", n_k, d_k), machine.tensor("dV", n_k, d_v)
    machine.write(dQ, 0)
    for j in machine.tiles(n_k, B_c, keys_of=n_q, otherwise={dK: 0, dV: 0}):
        K_j, V_j = machine.read(K[j, :]), machine.read(V[j, :])
        dK_j, dV_j = machine.zeros(j, d_k), machine.zeros(j, d_v)
        for i in machine.tiles(n_q, B_r, queries_of=j):
            Q_i, O_i, dO_i = machine.read(Q[i, :]), machine.read(O[i, :]), machine.read(dO[i, :])
            dQ_i, l_i, m_i = machine.read(dQ[i, :]), machine.read(l_m[i]), machine.read(m[i])
            P = machine.compute(Q_i @ K_j.T)
            P[:] = exp(P - m_i) / l_i
            dV_j += P.T @ dO_i
            dS = machine.compute(dO_i @ V_j.T)
            v_i = machine.compute(rowsum(dO_i * O_i))
            dS[:] = P * (dS - v_i)
            dQ_i += dS @ K_j
            machine.write(dQ[i, :], dQ_i)
            dK_j += dS.T @ Q_i
        machine.write(dK[j, :], dK_j)
        machine.write(dV[j, :], dV_j)


@schedule(
    problem="backward-qkv",
    source="Dao 2023 (FlashAttention-2), Algorithm 2",
    known_as="FlashAttention-2",
    io="2*n_q*d_v + n_q + 2*n_k*(d_k + d_v) + n_q*d_k + ceiling(n_k/B_c)*n_q*(3*d_k + d_v + 2)",
    fit=["B_c", "B_r"],
    closed={"B_r": "1", "B_c": "floor((M - 3*d - 8)/(4*d + 6))"},
    graph={"kept": "L", "dQ_block": "B_c"},
)
def flash2_backward(m, Q, K, V, dO, O, L, *, B_r, B_c):
    """FlashAttention-2: outer loop over columns, dQ in memory, v computed first."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    dQ, dK, dV, v = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v), m.tensor("v", n_q)

    in_phase(write_row_sums, m, v, dO, O, B_r)

    with m.phase("dQ, dK, dV"):
        m.write(dQ, 0)
        for j in m.tiles(n_k, B_c, keys_of=n_q, otherwise={dK: 0, dV: 0}):
            K_j, V_j, dK_j, dV_j = m.read(K[j, :]), m.read(V[j, :]), m.zeros(j, d_k), m.zeros(j, d_v)
            for i in m.tiles(n_q, B_r, queries_of=j):
                Q_i, dO_i, L_i, v_i = m.read(Q[i, :]), m.read(dO[i, :]), m.read(L[i]), m.read(v[i])
                P = m.compute(Q_i @ K_j.T)
                P[:] = exp(P - L_i)
                dV_j += P.T @ dO_i
                dS = m.compute(dO_i @ V_j.T)
                dS[:] = P * (dS - v_i)
                m.delete(P)
                dQ_i = m.read(dQ[i, :])
                dQ_i += dS @ K_j
                m.write(dQ[i, :], dQ_i)
                m.delete(dQ_i)
                dK_j += dS.T @ Q_i
            m.write(dK[j, :], dK_j)
            m.write(dV[j, :], dV_j)


@schedule(
    problem="backward-qkv",
    source="ours: one pass with rows stationary for dQ, one with columns stationary for dK and dV",
    io=(
        "2*n_q*(d_k + d_v) + 2*n_q + n_k*(d_k + d_v)*ceiling(n_q/B_r)"
        " + 2*n_k*(d_k + d_v) + ceiling(n_k/B_c)*n_q*(d_k + d_v + 2)"
    ),
    fit=["B_r", "B_c"],
    closed={"B_r": "floor((M - d - 4)/(3*d + 8))", "B_c": "floor((M - 2*d - 6)/(4*d + 6))"},
    graph={"kept": "l"},
)
def backward_two_pass(m, Q, K, V, dO, O, l, *, B_r, B_c):
    """Two passes: 14n²d²/M; with dQ in memory it would be 16n²d²/M."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    dQ, dK, dV, v = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v), m.tensor("v", n_q)

    with m.phase("v, dQ"):
        for i in m.tiles(n_q, B_r, independent=True, queries_of=n_k, otherwise={dQ: 0}):
            dO_i, v_i = m.read(dO[i, :]), m.zeros(i)
            add_row_sums(m, v_i, dO_i, O)
            m.write(v[i], v_i)
            Q_i, l_i, dQ_i = m.read(Q[i, :]), m.read(l[i]), m.zeros(i, d_k)
            for j in m.tiles(n_k, 1, keys_of=i):
                K_j = m.read(K[j, :])
                P = m.compute(Q_i @ K_j.T)
                P[:] = exp(P) / l_i
                dS = m.zeros(i, j)
                for k in m.tiles(d_v, 1):
                    dS += dO_i[:, k] @ m.read(V[j, k]).T  # dP
                dS[:] = P * (dS - v_i)
                dQ_i += dS @ K_j
            m.write(dQ[i, :], dQ_i)

    with m.phase("dK, dV"):
        for j in m.tiles(n_k, B_c, independent=True, keys_of=n_q, otherwise={dK: 0, dV: 0}):
            K_j, V_j, dK_j, dV_j = m.read(K[j, :]), m.read(V[j, :]), m.zeros(j, d_k), m.zeros(j, d_v)
            for i in m.tiles(n_q, 1, queries_of=j):
                Q_i, dO_i, l_i, v_i = m.read(Q[i, :]), m.read(dO[i, :]), m.read(l[i]), m.read(v[i])
                P = m.compute(Q_i @ K_j.T)
                P[:] = exp(P) / l_i
                dV_j += P.T @ dO_i
                dS = m.compute(dO_i @ V_j.T)
                dS[:] = P * (dS - v_i)
                dK_j += dS.T @ Q_i
            m.write(dK[j, :], dK_j)
            m.write(dV[j, :], dV_j)


def write_gradients(m, dS, P, Q, K, dO, a, b):
    """Compute dQ = dS K, dK = dSᵀ Q and dV = Pᵀ dO in memory: b rows of dK and dV, because dS and P were written so.

    Beside its tile each product holds a words of one operand and one of the other.
    """
    dQ, dK, dV = m.tensor("dQ", *Q.shape), m.tensor("dK", *K.shape), m.tensor("dV", P.shape[1], dO.shape[1])

    in_phase(gemm_streamed, m, dQ, dS, K, a, b)
    in_phase(gemm_streamed, m, dK, dS, Q, b, a, A_T=True, by_words_of_A=True)
    in_phase(gemm_streamed, m, dV, P, dO, b, a, A_T=True, by_words_of_A=True)


@schedule(
    problem="backward-qkv",
    source="ours: streamed operands, P and dS through memory",
    io=(
        f"2*n_q*d_v + n_q + {streamed('n_q', 'd_k', 'n_k')} + {streamed('n_q', 'd_v', 'n_k')} + 2*n_q*ceiling(n_k/b)"
        f" + n_q*n_k + {streamed('n_q', 'n_k', 'd_k')}"
        f" + {streamed('n_k', 'n_q', 'd_k', 'b', 'a')} + {streamed('n_k', 'n_q', 'd_v', 'b', 'a')}"
    ),
    fit=[("a", "b")],
    closed=CLOSED_STREAMED,
    graph={"kept": "l"},
)
def small_cache_backward_streamed(m, Q, K, V, dO, O, l, *, a, b):
    """Small cache, streamed: 10n²d/√M + 3n²."""
    n_q, n_k = Q.shape[0], K.shape[0]
    P, dS, v = m.tensor("P", n_q, n_k), m.tensor("dS", n_q, n_k), m.tensor("v", n_q)

    def softmax(P_ij, i, j):
        P_ij[:] = exp(P_ij) / m.read(l[i])

    in_phase(write_row_sums_of_pairs, m, v, dO, O, a, n_k)
    in_phase(gemm_streamed, m, P, Q, K, a, b, B_T=True, finish=softmax, every_tile=False)
    # of dP = dO Vᵀ
    in_phase(gemm_streamed, m, dS, dO, V, a, b, B_T=True, finish=times_centred(m, P, v), every_tile=False)

    write_gradients(m, dS, P, Q, K, dO, a, b)
