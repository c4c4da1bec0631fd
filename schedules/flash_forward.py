"""FlashAttention's forward passes: the online softmax with running maximum and rescaling.

Deviation: no scaling by 1/√d and no dropout. FlashAttention-2 states no block sizes; those printed for FlashAttention-1
are used.
"""

from pebblesim.language import exp, log, maximum, rowmax, rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.forward import BY_ROWS

INFINITY = float("inf")
PRINTED = {  # of FlashAttention-1, Algorithm 1
    "B_r": "Min(ceiling(M/(4*d)), d)",
    "B_c": "ceiling(M/(4*d))",
}


@schedule(
    problem="forward",
    source="Dao et al. 2022 (FlashAttention), Algorithm 1",
    known_as="FlashAttention-1",
    io="n_k*(d_k + d_v) + ceiling(n_k/B_c)*n_q*(d_k + 2*d_v + 4) + n_q*d_v + 2*n_q",
    paper=PRINTED,
    fit=["B_c", "B_r"],
    closed={"B_r": "1", "B_c": "floor((M - 2*d - 8)/(2*d + 4))"},
    graph={"softmax": "flash1", "column_block": "B_c", "row_block": "B_r"},
)
def flash1_forward(machine, Q, K, V, *, B_r, B_c):
    """FlashAttention-1: outer loop over columns; O, l and m in memory."""
    (n_q, _), (n_k, d_v) = Q.shape, V.shape
    O, l, m = machine.tensor("O", n_q, d_v), machine.tensor("l_m", n_q), machine.tensor("m", n_q)
    machine.write(O, 0)
    machine.write(l, 0)
    machine.write(m, -INFINITY)
    for j in machine.tiles(n_k, B_c, keys_of=n_q):
        K_j, V_j = machine.read(K[j, :]), machine.read(V[j, :])
        for i in machine.tiles(n_q, B_r, queries_of=j):
            Q_i = machine.read(Q[i, :])
            P = machine.compute(Q_i @ K_j.T)
            machine.delete(Q_i)
            m_block = machine.compute(rowmax(P))
            P[:] = exp(P - m_block)
            l_block = machine.compute(rowsum(P))
            m_i = machine.read(m[i])
            m_new = machine.compute(maximum(m_i, m_block))
            m_i[:] = exp(m_i - m_new)  # e^(m_i - m_new)
            m_block[:] = exp(m_block - m_new)
            machine.write(m[i], m_new)
            machine.delete(m_new)
            l_i = machine.read(l[i])
            m_i[:] = m_i * l_i
            l_block[:] = m_i + m_block * l_block  # l_new
            machine.write(l[i], l_block)
            machine.delete(l_i)
            PV = machine.compute(P @ V_j)
            machine.delete(P)
            O_i = machine.read(O[i, :])
            O_i[:] = (m_i * O_i + m_block * PV) / l_block
            machine.write(O[i, :], O_i)


def online_softmax(m, Q_i, K, V, keys, B_c, **allowed):
    """Compute O_i, which is to be divided by l_i, from tiles of B_c of these keys; m_i is the maximum of the scores."""
    i, d_v = Q_i.shape[0], V.shape[1]
    O_i, l_i, m_i = m.constant(0, i, d_v), m.constant(0, i), m.constant(-INFINITY, i)
    for j in m.tiles(keys, B_c, **allowed):
        K_j = m.read(K[j, :])
        P = m.compute(Q_i @ K_j.T)
        m.delete(K_j)
        online_step(m, P, l_i, m_i, O_i)
        V_j = m.read(V[j, :])
        O_i += P @ V_j
    return O_i, l_i, m_i


def online_step(m, P, l_i, m_i, *sums):
    """Take one step of the online softmax: a tile of scores becomes exponentials, which are added to the row sums l_i.

    They are relative to m_i, the maximum so far; l_i, and `sums` of the same rows, are rescaled to it.
    """
    m_new = m.compute(rowmax(P))
    m_new[:] = maximum(m_i, m_new)
    m_i[:] = exp(m_i - m_new)  # the factor that rescales all sums so far
    P[:] = exp(P - m_new)
    l_i[:] = m_i * l_i
    l_i += rowsum(P)
    for O_i in sums:
        O_i[:] = m_i * O_i
    m.move(m_new, m_i)


def write_softmax(m, O, L, i, O_i, l_i, m_i):
    """Write rows of O, divided by the row sums l_i, and of L, from the sums of an online softmax."""
    O_i[:] = O_i / l_i
    m.write(O[i, :], O_i)
    m_i[:] = m_i + log(l_i)
    m.write(L[i], m_i)


@schedule(
    problem="forward",
    source="Dao 2023 (FlashAttention-2), Algorithm 1",
    known_as="FlashAttention-2",
    io=BY_ROWS,
    paper=PRINTED,
    fit=["B_r", "B_c"],
    closed={"B_r": "floor((M - d - 6)/(2*d + 8))", "B_c": "1"},
    graph={"softmax": "flash2", "column_block": "B_c", "row_block": "B_r"},
)
def flash2_forward(m, Q, K, V, *, B_r, B_c):
    """FlashAttention-2: outer loop over rows, O in cache, one logsumexp."""
    (n_q, _), (n_k, d_v) = Q.shape, V.shape
    O, L = m.tensor("O", n_q, d_v), m.tensor("L", n_q)
    for i in m.tiles(n_q, B_r, independent=True, queries_of=n_k, otherwise={O: 0, L: -INFINITY}):
        Q_i = m.read(Q[i, :])
        write_softmax(m, O, L, i, *online_softmax(m, Q_i, K, V, n_k, B_c, keys_of=i))
