"""Small-cache schedules with a depth block: operands of a product pass by in a x c and c x b tiles, as matrix units take them.

A streamed product (`gemm_streamed`) holds a column of one operand and a word of the other. Matrix units multiply tiles, so
that a depth c > 1 is held, of both operands: ab + ac + cb words in place of ab + a + 1. The words moved are the same.
"""

from pebblesim.language import exp
from pebblesim.language.registry import schedule
from pebblesim.schedules.matmul import seen
from pebblesim.schedules.row_sums import write_row_sums_of_tiles


def add_product(m, C_ij, A, B, c, *, A_T=False, B_T=False):
    """C_ij += A_i B_j by a x c tiles of A and c x b tiles of B."""
    i, j = C_ij.shape
    for k in m.tiles(A.shape[0] if A_T else A.shape[1], c, **seen(A, B, i, j, A_T, B_T)):
        A_ik = m.read(A[k, i]).T if A_T else m.read(A[i, k])
        B_kj = m.read(B[j, k]).T if B_T else m.read(B[k, j])
        C_ij += A_ik @ B_kj


def gemm_blocked(m, C, A, B, a, b, c, *, A_T=False, B_T=False):
    """C = A B by a x b tiles of C, depth c: mk⌈n/b⌉ + kn⌈m/a⌉ + mn words."""
    rows, columns = C.shape
    for i in m.tiles(rows, a, independent=True):
        for j in m.tiles(columns, b, independent=True):
            C_ij = m.zeros(i, j)
            add_product(m, C_ij, A, B, c, A_T=A_T, B_T=B_T)
            m.write(C[i, j], C_ij)


@schedule(problem="matmul", source="ours: a x b tiles of C, depth c", fit=[("a", "b"), "c"])
def matmul_blocked(m, A, B, *, a, b, c):
    """Tiles of A and B of depth c pass by a tile of C, as on matrix units."""
    gemm_blocked(m, m.tensor("C", A.shape[0], B.shape[1]), A, B, a, b, c)


@schedule(
    problem="backward-qkv",
    source="ours: the small-cache schedule with a depth block, P and dS through memory",
    fit=[("a", "b"), "c"],
    graph={"kept": "L"},
)
def small_cache_backward_blocked(m, Q, K, V, dO, O, L, *, a, b, c):
    """Small cache for matrix units: five products of depth c, fused with what is done to each element."""
    n, d = Q.shape
    P, dS, v = m.tensor("P", n, n), m.tensor("dS", n, n), m.tensor("v", n)
    dQ, dK, dV = m.tensor("dQ", n, d), m.tensor("dK", n, d), m.tensor("dV", n, d)

    with m.phase("v"):
        write_row_sums_of_tiles(m, v, dO, O, a, c)

    with m.phase("P"):
        for i in m.tiles(n, a, independent=True):
            for j in m.tiles(n, b, independent=True, keys_of=i):
                P_ij = m.zeros(i, j)
                add_product(m, P_ij, Q, K, c, B_T=True)
                P_ij[:] = exp(P_ij - m.read(L[i]))
                m.write(P[i, j], P_ij)

    with m.phase("dS"):
        for i in m.tiles(n, a, independent=True):
            for j in m.tiles(n, b, independent=True, keys_of=i):
                dS_ij = m.zeros(i, j)
                add_product(m, dS_ij, dO, V, c, B_T=True)  # dP
                v_i = m.read(v[i])
                P_ij = m.read(P[i, j])
                dS_ij[:] = P_ij * (dS_ij - v_i)
                m.write(dS[i, j], dS_ij)

    with m.phase("dQ"):
        gemm_blocked(m, dQ, dS, K, a, b, c)

    with m.phase("dK"):  # b rows at a time, as dS and P have been written
        gemm_blocked(m, dK, dS, Q, b, a, c, A_T=True)

    with m.phase("dV"):
        gemm_blocked(m, dV, P, dO, b, a, c, A_T=True)
