"""Attention as an unfused framework runs it: one kernel for each step; every n x n matrix goes through memory.

The textbook count (Dao et al. 2022, Algorithms 0 and 3) assumes that each operand of a product is read once. These
schedules count the reads of square tiles in M words. The softmax keeps whole rows in the cache, so M must hold a row. A
mask does not change the I/O: unfused kernels compute every tile and mask it afterwards.
"""

from pebblesim.language import exp, rowmax, rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.matmul import CLOSED_TILE, gemm, tiled
from pebblesim.schedules.phases import in_phase


@schedule(
    problem="forward",
    source="Dao et al. 2022, Algorithm 0",
    known_as="unfused",
    fit=["b", "B_r"],
    closed={"b": CLOSED_TILE, "B_r": "floor((M - 3)/(n + 3))"},
    graph={"softmax": "safe"},
    io=f"{tiled('n_q', 'd_k', 'n_k', 'b')} + 2*n_q*n_k + {tiled('n_q', 'n_k', 'd_v', 'b')}",
)
def standard_forward(m, Q, K, V, *, b, B_r):
    """Unfused: S and P go through memory."""
    (n_q, _), (n_k, d_v) = Q.shape, V.shape
    S, P, O = m.tensor("S", n_q, n_k), m.tensor("P", n_q, n_k), m.tensor("O", n_q, d_v)

    in_phase(gemm, m, S, Q, K, b, B_T=True, every_tile=True)

    with m.phase("P"):
        for i in m.tiles(n_q, B_r, independent=True):
            P_i = m.read(S[i, :])
            m_i = m.compute(rowmax(P_i))
            P_i[:] = P_i - m_i
            P_i[:] = exp(P_i)
            l_i = m.compute(rowsum(P_i))
            P_i[:] = P_i / l_i
            m.write(P[i, :], P_i)

    in_phase(gemm, m, O, P, V, b, every_tile=True)


@schedule(
    problem="backward-qkv",
    source="Dao et al. 2022, Algorithm 3",
    known_as="unfused",
    fit=["b", "B_r"],
    closed={"b": CLOSED_TILE, "B_r": "floor((M - 3)/(2*n + 3))"},
    graph={"kept": "P"},
    io=(
        f"{tiled('n_q', 'd_v', 'n_k', 'b')} + 3*n_q*n_k + {tiled('n_k', 'n_q', 'd_v', 'b')}"
        f" + {tiled('n_q', 'n_k', 'd_k', 'b')} + {tiled('n_k', 'n_q', 'd_k', 'b')}"
    ),
)
def standard_backward(m, Q, K, V, dO, P, *, b, B_r):
    """Unfused: P is kept; dP and dS go through memory."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    dP, dS = m.tensor("dP", n_q, n_k), m.tensor("dS", n_q, n_k)
    dQ, dK, dV = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v)

    in_phase(gemm, m, dV, P, dO, b, A_T=True, every_tile=True)
    in_phase(gemm, m, dP, dO, V, b, B_T=True, every_tile=True)

    with m.phase("dS"):
        for i in m.tiles(n_q, B_r, independent=True):
            P_i, dP_i = m.read(P[i, :]), m.read(dP[i, :])
            v_i = m.compute(rowsum(P_i * dP_i))
            dP_i[:] = P_i * (dP_i - v_i)
            m.write(dS[i, :], dP_i)

    in_phase(gemm, m, dQ, dS, K, b, every_tile=True)
    in_phase(gemm, m, dK, dS, Q, b, A_T=True, every_tile=True)
