"""Matrix products C = A B: by square tiles, and by rank-1 updates of a tile of C that stays.

`gemm` is also what the attention schedules are made of.
"""

from pebblesim.language import Block, Machine, Tensor
from pebblesim.registry import schedule


def gemm(m: Machine, C: Tensor, A: Tensor, B: Tensor, b: Block, *, A_T: bool = False, B_T: bool = False) -> None:
    """C = A B by b x b tiles, the tile of C staying in cache; `A_T`, `B_T`: the operand enters transposed."""
    rows, columns = C.shape
    terms = A.shape[0] if A_T else A.shape[1]
    for i in m.tiles(rows, b, independent=True):
        for j in m.tiles(columns, b, independent=True):
            C_ij = m.zeros(i, j)
            for k in m.tiles(terms, b):
                A_ik = m.read(A[k, i]).T if A_T else m.read(A[i, k])
                B_kj = m.read(B[j, k]).T if B_T else m.read(B[k, j])
                C_ij += A_ik @ B_kj
            m.write(C[i, j], C_ij)


@schedule(problem="matmul", source="Hong & Kung 1981, section 6", paper={"b": "floor(sqrt(M/3))"})
def matmul_tiled(m: Machine, A: Tensor, B: Tensor, *, b: Block) -> None:
    """Square tiles of A, B and C."""
    gemm(m, m.tensor("C", A.shape[0], B.shape[1]), A, B, b)


@schedule(
    problem="matmul",
    source="Kwasniewski et al. 2019 (COSMA), Listing 1",
    paper={"a": "floor(sqrt(M + 1)) - 1", "b": "floor(sqrt(M + 1)) - 1"},
    fit=[("a", "b")],
)
def matmul_streamed(m: Machine, A: Tensor, B: Tensor, *, a: Block, b: Block) -> None:
    """Rank-1 updates of an a x b tile of C; B is streamed word by word."""
    (rows, terms), (_, columns) = A.shape, B.shape
    C = m.tensor("C", rows, columns)
    for i in m.tiles(rows, a, independent=True):
        for j in m.tiles(columns, b, independent=True):
            C_ij = m.zeros(i, j)
            for k in m.tiles(terms, 1):
                A_ik = m.read(A[i, k])
                for c in m.tiles(j, 1):
                    C_ij[:, c] += A_ik @ m.read(B[k, c])
            m.write(C[i, j], C_ij)
