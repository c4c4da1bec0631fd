"""The backward problem in common practice: projections, then FlashAttention's backward pass for dQ, then g = A1ᵀ dQ.

S = A1 X, A2 and h = A3 Y have the roles of Q, K and V; O and l are saved from the forward pass. The middle part follows
FlashAttention-2 (Dao 2023, Algorithm 2): the outer loop is over columns, dQ is accumulated in memory, and v = rowsum(dO
∘ O) (there called D) is computed first. Deviation: dK and dV are left out, because dL/dX does not need them.
"""

from pebblesim.language import exp, rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.flash_forward import PRINTED
from pebblesim.schedules.matmul import CLOSED_TILE, gemm, tiled
from pebblesim.schedules.phases import in_phase


@schedule(
    problem="backward",
    source="Dao 2023 (FlashAttention-2), Algorithm 2, between products by square tiles",
    known_as="FlashAttention",
    io=(
        f"2*{tiled('n', 'd', 'd', 'B')} + 2*n*d + n + 3*n*d + ceiling(n/B_c)*(4*n*d + 2*n)"
        f" + {tiled('d', 'n', 'd', 'B')}"
    ),
    paper={"B": "floor(sqrt(M/3))", **PRINTED},
    fit=["B", "B_c", "B_r"],
    closed={"B": CLOSED_TILE, "B_r": "1", "B_c": "floor((M - 2*d - 4)/(2*d + 6))"},
    graph={"order": "U", "kept": True, "dQ_block": "B_c"},
)
def flash(m, A1, A2, A3, dO, X, Y, O, l, *, B, B_r, B_c):
    """Common practice: projections around FlashAttention-2's dQ."""
    (n_q, d), (n_k, _) = A1.shape, A2.shape
    S, h, dQ, v, g = (
        m.tensor("S", n_q, d),
        m.tensor("h", n_k, d),
        m.tensor("dQ", n_q, d),
        m.tensor("v", n_q),
        m.tensor("g", d, d),
    )

    in_phase(gemm, m, S, A1, X, B)
    in_phase(gemm, m, h, A3, Y, B)

    with m.phase("v"):
        for i in m.tiles(n_q, B_r, independent=True):
            dO_i, O_i = m.read(dO[i, :]), m.read(O[i, :])
            m.write(v[i], m.compute(rowsum(dO_i * O_i)))

    with m.phase("dQ"):
        m.write(dQ, 0)
        for j in m.tiles(n_k, B_c, keys_of=n_q):
            A2_j, h_j = m.read(A2[j, :]), m.read(h[j, :])
            for i in m.tiles(n_q, B_r, independent=True, queries_of=j):
                S_i, l_i = m.read(S[i, :]), m.read(l[i])
                f = m.compute(S_i @ A2_j.T)
                f[:] = exp(f)
                f[:] = f / l_i
                m.delete(S_i, l_i)
                dO_i = m.read(dO[i, :])
                p = m.compute(dO_i @ h_j.T)  # q
                m.delete(dO_i)
                v_i = m.read(v[i])
                p[:] = f * p - v_i * f
                m.delete(f, v_i)
                dQ_i = m.read(dQ[i, :])
                dQ_i += p @ A2_j
                m.write(dQ[i, :], dQ_i)

    in_phase(gemm, m, g, A1, dQ, B, A_T=True)
