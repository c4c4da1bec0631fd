"""Forward passes without a running maximum: Saha & Ye's for a small cache, and ours for a large one."""

from pebblesim.language import exp, rowsum
from pebblesim.registry import schedule


@schedule(
    problem="forward",
    source="Saha & Ye 2024, Algorithm 1",
    paper={"B": "floor(sqrt(M/4))"},
    graph={"softmax": "late"},
)
def small_cache_forward(m, Q, K, V, *, B):
    """Small cache: square tiles, exp(S) through memory."""
    n, d = Q.shape
    A, l, O = m.tensor("A", n, n), m.tensor("l", n), m.tensor("O", n, d)

    with m.phase("A"):
        for i in m.tiles(n, B, independent=True):
            l_i = m.zeros(i)
            for j in m.tiles(n, B, keys_of=i):
                A_ij = m.zeros(i, j)
                for k in m.tiles(d, B):
                    A_ij += m.read(Q[i, k]) @ m.read(K[j, k]).T
                A_ij[:] = exp(A_ij)
                m.write(A[i, j], A_ij)
                l_i += rowsum(A_ij)
            m.write(l[i], l_i)

    with m.phase("O"):
        for i in m.tiles(n, B, independent=True):
            l_i = m.read(l[i])
            for j in m.tiles(d, B):
                O_ij = m.zeros(i, j)
                for k in m.tiles(n, B, keys_of=i):
                    O_ij += m.read(A[i, k]) @ m.read(V[k, j])
                O_ij[:] = O_ij / l_i
                m.write(O[i, j], O_ij)


@schedule(
    problem="forward",
    source="ours: FlashAttention-2's order, columns of width 1, K and V streamed word by word",
    graph={"softmax": "late"},
)
def row_stationary_forward(m, Q, K, V, *, B_r):
    """Row-stationary: 4n²d²/M, the best constant for a large cache."""
    n, d = Q.shape
    O, l = m.tensor("O", n, d), m.tensor("l", n)
    for i in m.tiles(n, B_r, independent=True, queries_of=n, otherwise={O: 0, l: 0}):
        Q_i, O_i, l_i = m.read(Q[i, :]), m.zeros(i, d), m.zeros(i)
        for j in m.tiles(n, 1, keys_of=i):
            A = m.zeros(i, j)
            for k in m.tiles(d, 1):
                A += Q_i[:, k] @ m.read(K[j, k]).T
            A[:] = exp(A)
            l_i += rowsum(A)
            for k in m.tiles(d, 1):
                O_i[:, k] += A @ m.read(V[j, k])
        O_i[:] = O_i / l_i
        m.write(O[i, :], O_i)
        m.write(l[i], l_i)
