"""Algorithm 6 (= 2, then 3, 4, 5): the backward pass for M = o(d²), every matrix in B x B tiles.

The phases are named after what they compute. Deviation: none; Algorithm 3's unused input f is not read.
"""

from pebblesim.language import exp, rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.matmul import gemm


@schedule(
    problem="backward",
    source="Li et al., Algorithm 6 (= 2, 3, 4, 5)",
    known_as="Algorithm 6",
    paper={"B": "floor(sqrt(M/4))"},
    closed={"B": "floor(sqrt((M - 2)/4))"},
    io="5*n*d*ceiling(n/B) + n**2*ceiling(d/B) + 4*n*d*ceiling(d/B) + 2*d**2*ceiling(n/B) + 9*n**2 + 3*n*d + d**2",
    graph={"leave_out": True},
)
def small_cache(m, A1, A2, A3, dO, X, Y, *, B):
    """Small cache: square tiles, four phases."""
    (n_q, d), (n_k, _) = A1.shape, A2.shape
    S, h, T = m.tensor("S", n_q, d), m.tensor("h", n_k, d), m.tensor("T", d, n_k)
    A, f, q, p = (m.tensor(name, n_q, n_k) for name in ("A", "f", "q", "p"))
    g = m.tensor("g", d, d)
    queries, keys = {"queries_of": n_k}, {"keys_of": n_q}  # with an allowed pair

    with m.phase("f"):  # Algorithm 2
        gemm(m, S, A1, X, B, of_rows=queries)
        for i in m.tiles(n_q, B, independent=True):
            l = m.zeros(i)
            for j in m.tiles(n_k, B, keys_of=i):
                A_ij = m.zeros(i, j)
                for k in m.tiles(d, B):
                    S_ik, A2_jk = m.read(S[i, k]), m.read(A2[j, k])
                    A_ij += S_ik @ A2_jk.T
                A_ij[:] = exp(A_ij)
                m.write(A[i, j], A_ij)
                l += rowsum(A_ij)
            for j in m.tiles(n_k, B, keys_of=i):
                A_ij = m.read(A[i, j])
                f_ij = m.compute(A_ij / l)
                m.write(f[i, j], f_ij)

    with m.phase("q"):  # Algorithm 3
        gemm(m, h, A3, Y, B, of_rows=keys)
        gemm(m, q, dO, h, B, B_T=True)

    with m.phase("p"):  # Algorithm 4
        for i in m.tiles(n_q, B, independent=True):
            v = m.zeros(i)
            for j in m.tiles(n_k, B, keys_of=i):
                f_ij, q_ij = m.read(f[i, j]), m.read(q[i, j])
                v += rowsum(f_ij * q_ij)
            for j in m.tiles(n_k, B, keys_of=i):
                f_ij, q_ij = m.read(f[i, j]), m.read(q[i, j])
                p_ij = m.compute(f_ij * q_ij - v * f_ij)
                m.write(p[i, j], p_ij)

    with m.phase("g"):  # Algorithm 5
        gemm(m, T, A1, p, B, A_T=True, of_columns=keys)
        gemm(m, g, T, A2, B, of_terms=keys)
