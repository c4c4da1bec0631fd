"""Latent attention: a tile of keys in the cache is also used as values."""

from pebblesim.language import exp, log, maximum, rowmax, rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.flash_forward import INFINITY


@schedule(
    problem="forward-latent",
    source="ours: FlashAttention-2's order, as in FlashMLA; K is read once for scores and values",
    io="3*n*d + n + 2*n*d*ceiling(n/B_r)",
    fit=["B_r", "B_c"],
    graph={"column_block": "B_c", "row_block": "B_r"},
)
def flash2_latent(m, Q_C, Q_R, C, R, *, B_r, B_c):
    """FlashAttention-2 with the latent part of the keys as values."""
    (n_q, d_v), (n_k, _) = Q_C.shape, C.shape
    O, L = m.tensor("O", n_q, d_v), m.tensor("L", n_q)
    for i in m.tiles(n_q, B_r, independent=True, queries_of=n_k, otherwise={O: 0, L: -INFINITY}):
        Q_C_i, Q_R_i = m.read(Q_C[i, :]), m.read(Q_R[i, :])
        O_i, l_i, m_i = m.constant(0, i, d_v), m.constant(0, i), m.constant(-INFINITY, i)
        for j in m.tiles(n_k, B_c, keys_of=i):
            C_j = m.read(C[j, :])
            P = m.compute(Q_C_i @ C_j.T)
            R_j = m.read(R[j, :])
            S_R = m.compute(Q_R_i @ R_j.T)
            m.delete(R_j)
            P[:] = P + S_R
            m.delete(S_R)
            m_new = m.compute(rowmax(P))
            m_new[:] = maximum(m_i, m_new)
            m_i[:] = exp(m_i - m_new)  # the factor that rescales all sums so far
            P[:] = exp(P - m_new)
            l_i[:] = m_i * l_i
            l_i += rowsum(P)
            O_i[:] = m_i * O_i
            m.move(m_new, m_i)
            O_i += P @ C_j
        O_i[:] = O_i / l_i
        m.write(O[i, :], O_i)
        m_i[:] = m_i + log(l_i)
        m.write(L[i], m_i)
