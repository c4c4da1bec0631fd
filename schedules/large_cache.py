"""Algorithm 9 (= 7, then 8): the backward pass for M = Ω(d²), with blocks of rows and g resident in the cache.

Deviations: h_j and p leave the cache at the end of their iteration (the printed algorithm never deletes them); `paper`
gives the printed block sizes, which do not fit into M and cost Θ(n²). `fit` exchanges the block sizes of rows and
columns, as the algorithm's proof needs.
"""

from pebblesim.language import exp, rowsum
from pebblesim.language.registry import schedule


def by_rows(m, C, A, B, B_r, B_c):
    """Compute C = A B; blocks of rows of A stay in the cache, and blocks of columns of B are streamed."""
    for i in m.tiles(C.shape[0], B_r, independent=True):
        A_i = m.read(A[i, :])
        for j in m.tiles(C.shape[1], B_c):
            m.write(C[i, j], m.compute(A_i @ m.read(B[:, j])))


@schedule(
    problem="backward",
    source="Li et al., Algorithm 9 (= 7, 8)",
    known_as="Algorithm 9",
    io="4*n*d + 2*d**2*ceiling(n/B_r) + 4*n*d + n + 2*n*d*ceiling(n/B_r) + d**2",
    paper={"B_r": "Min(ceiling(M/(4*d)), d)", "B_c": "ceiling(M/(4*d))"},
    # The printed rule does not fit into M; with B_r and B_c exchanged it does.
    closed={"B_r": "floor((M - d**2 - 3*d - 2)/(4*d + 8))", "B_c": "1"},
    graph={"kept": True, "row_block": "B_r"},
)
def large_cache(m, A1, A2, A3, dO, X, Y, O, l, *, B_r, B_c):
    """Large cache: for each block of rows all columns are read; g is resident."""
    (n_q, d), (n_k, _) = A1.shape, A2.shape
    S, h, g = m.tensor("S", n_q, d), m.tensor("h", n_k, d), m.tensor("g", d, d)

    with m.phase("S, h"):  # Algorithm 7
        if n_q is not n_k:  # the printed loop is over both
            by_rows(m, S, A1, X, B_r, B_c)
            by_rows(m, h, A3, Y, B_r, B_c)
        else:
            for i in m.tiles(n_q, B_r, independent=True):
                A1_i, A3_i = m.read(A1[i, :]), m.read(A3[i, :])
                for j in m.tiles(d, B_c):
                    X_j = m.read(X[:, j])
                    S_ij = m.compute(A1_i @ X_j)
                    m.write(S[i, j], S_ij)
                    m.delete(X_j, S_ij)
                    Y_j = m.read(Y[:, j])
                    h_ij = m.compute(A3_i @ Y_j)
                    m.write(h[i, j], h_ij)

    with m.phase("g"):  # Algorithm 8
        g_ = m.zeros(d, d)
        for i in m.tiles(n_q, B_r, queries_of=n_k):
            S_i, O_i, dO_i = m.read(S[i, :]), m.read(O[i, :]), m.read(dO[i, :])
            A1_i, l_i = m.read(A1[i, :]), m.read(l[i])
            v_i = m.compute(rowsum(dO_i * O_i))
            m.delete(O_i)
            for j in m.tiles(n_k, B_c, keys_of=i):
                h_j = m.read(h[j, :])
                q = m.compute(dO_i @ h_j.T)
                A2_j = m.read(A2[j, :])
                A = m.compute(S_i @ A2_j.T)
                A[:] = exp(A)
                f = m.compute(A / l_i)
                m.delete(A)
                p = m.compute(f * q - v_i * f)
                m.delete(f, q)
                T = m.compute(A1_i.T @ p)
                g_ += T @ A2_j
        m.write(g, g_)
