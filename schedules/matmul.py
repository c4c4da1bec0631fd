"""Matrix products C = A B: by square tiles, by rank-1 updates of a resident tile of C, or with resident columns of B.

The attention schedules also use the three `gemm` functions. If an operand or the result is over pairs of queries and
keys, the functions leave out tiles without an allowed pair.
"""

from pebblesim.language.registry import schedule


def seen(A, B, i, j, A_T, B_T):
    """Return the arguments of `tiles` that select the terms of C[i, j] = A[i, :] B[:, j] allowed by a mask."""
    if A.over_pairs:
        return {"queries_of": i} if A_T else {"keys_of": i}
    if B.over_pairs:
        return {"keys_of": j} if B_T else {"queries_of": j}
    return {}


def gemm(m, C, A, B, b, *, A_T=False, B_T=False, every_tile=False, of_rows=None, of_columns=None, of_terms=None):
    """Compute C = A B by b x b tiles; the tile of C stays in the cache.

    `A_T`, `B_T`: use the transpose of the operand. `every_tile`: ignore the mask and compute all tiles. `of_rows`,
    `of_columns`, `of_terms`: arguments of `tiles` that select tiles of queries or keys with an allowed pair, such as
    {"queries_of": n_k}. The others are not computed, and nobody may read them.
    """
    rows, columns = C.shape
    terms = A.shape[0] if A_T else A.shape[1]
    for i in m.tiles(rows, b, independent=True, **(of_rows or {})):
        of_row = {"keys_of": i} if C.over_pairs and not every_tile else of_columns or {}
        for j in m.tiles(columns, b, independent=True, **of_row):
            C_ij = m.zeros(i, j)
            for k in m.tiles(terms, b, **({} if every_tile else seen(A, B, i, j, A_T, B_T) or of_terms or {})):
                A_ik = m.read(A[k, i]).T if A_T else m.read(A[i, k])
                B_kj = m.read(B[j, k]).T if B_T else m.read(B[k, j])
                C_ij += A_ik @ B_kj
            m.write(C[i, j], C_ij)


def rank_one_updates(m, C_ij, A, B, *, A_T=False, B_T=False, by_words_of_A=False, of_terms=None):
    """Compute C_ij += A_i B_j by columns of A and single words of B; an a x b tile needs ab + a + 1 words.

    `by_words_of_A`: by rows of B and single words of A, which needs ab + b + 1 words. `of_terms`: as for `gemm`.
    """
    i, j = C_ij.shape
    terms = A.shape[0] if A_T else A.shape[1]
    for k in m.tiles(terms, 1, **(seen(A, B, i, j, A_T, B_T) or of_terms or {})):
        if by_words_of_A:
            B_kj = m.read(B[j, k]).T if B_T else m.read(B[k, j])
            for r in m.tiles(i, 1):
                A_rk = m.read(A[k, r]).T if A_T else m.read(A[r, k])
                C_ij[r, :] += A_rk @ B_kj
            continue
        A_ik = m.read(A[k, i]).T if A_T else m.read(A[i, k])
        for c in m.tiles(j, 1):
            B_kc = m.read(B[c, k]).T if B_T else m.read(B[k, c])
            C_ij[:, c] += A_ik @ B_kc


def gemm_streamed(m, C, A, B, a, b, *, A_T=False, B_T=False, finish=None, every_tile=True, of_rows=None, **options):
    """Compute C = A B by rank-1 updates of a x b tiles of C: mk⌈n/b⌉ + kn⌈m/a⌉ + mn words.

    `finish(C_ij, i, j)` is called before a tile is written. `every_tile`: also those without an allowed pair.
    `of_rows`: as for `gemm`. `options`: of `rank_one_updates`.
    """
    rows, columns = C.shape
    for i in m.tiles(rows, a, independent=True, **(of_rows or {})):
        for j in m.tiles(columns, b, independent=True, keys_of=None if every_tile else i):
            C_ij = m.zeros(i, j)
            rank_one_updates(m, C_ij, A, B, A_T=A_T, B_T=B_T, **options)
            if finish is not None:
                finish(C_ij, i, j)
            m.write(C[i, j], C_ij)


def write_projections(m, A1, A3, X, Y, gemm, *blocks, of_queries=None):
    """Compute S = A1 X and h = A3 Y in memory, by a product with these blocks; return both.

    `of_queries`: `of_rows` of the product that makes S, as for `gemm`.
    """
    S, h = m.tensor("S", *A1.shape), m.tensor("h", *A3.shape)

    with m.phase("S"):
        gemm(m, S, A1, X, *blocks, of_rows=of_queries)

    with m.phase("h"):
        gemm(m, h, A3, Y, *blocks)

    return S, h


def gemm_resident(m, C, A, B, b, *, of_rows=None):
    """Compute C = A B with b resident columns of B and A streamed: mk⌈n/b⌉ + kn + mn words moved, kb + b + 1 held.

    `of_rows`: as for `gemm`.
    """
    (rows, terms), (_, columns) = A.shape, B.shape
    for j in m.tiles(columns, b, independent=True):
        B_j = m.read(B[:, j])
        for i in m.tiles(rows, 1, **(of_rows or {})):
            C_ij = m.zeros(i, j)
            for k in m.tiles(terms, 1):
                C_ij += m.read(A[i, k]) @ B_j[k, :]
            m.write(C[i, j], C_ij)


def streamed(rows, terms, columns, a="a", b="b"):
    """I/O of `gemm_streamed` in words, as text (Kwasniewski et al. 2019, Listing 1)."""
    return f"({rows}*{terms}*ceiling({columns}/{b}) + {terms}*{columns}*ceiling({rows}/{a}) + {rows}*{columns})"


def tiled(rows, terms, columns, b="b"):
    """I/O of `gemm` in words, as text."""
    return streamed(rows, terms, columns, b, b)


def resident(rows, terms, columns, b="b"):
    """I/O of `gemm_resident` in words, as text."""
    return f"({rows}*{terms}*ceiling({columns}/{b}) + {terms}*{columns} + {rows}*{columns})"


CLOSED_TILE = "floor(sqrt((M - 2)/3))"
CLOSED_STREAMED = {"a": "floor(sqrt(M/2)) - 1", "b": "floor(sqrt(M/2)) - 1"}
CLOSED_RESIDENT = {"b": "floor((M - 3)/(d + 2))"}
"""Block sizes of the three functions. Besides the words of the tiles, a product and a new sum need two pebbles."""


@schedule(
    problem="matmul",
    source="Hong & Kung 1981, section 6",
    known_as="Hong & Kung 1981",
    paper={"b": "floor(sqrt(M/3))"},
    closed={"b": CLOSED_TILE},
    io=tiled("m", "k", "n", "b"),
)
def matmul_tiled(m, A, B, *, b):
    """Square tiles of A, B and C."""
    gemm(m, m.tensor("C", A.shape[0], B.shape[1]), A, B, b)


@schedule(
    problem="matmul",
    source="Kwasniewski et al. 2019 (COSMA), Listing 1",
    known_as="COSMA",
    io=streamed("m", "k", "n"),
    paper={"a": "floor(sqrt(M + 1)) - 1", "b": "floor(sqrt(M + 1)) - 1"},
    fit=[("a", "b")],
    closed=CLOSED_STREAMED,
)
def matmul_streamed(m, A, B, *, a, b):
    """Rank-1 updates of an a x b tile of C; B is streamed word by word."""
    gemm_streamed(m, m.tensor("C", A.shape[0], B.shape[1]), A, B, a, b)


@schedule(problem="matmul", source="ours; optimal to leading order for k ≤ √M", io=resident("m", "k", "n"))
def matmul_resident(m, A, B, *, b):
    """b columns of B resident; A is streamed word by word."""
    gemm_resident(m, m.tensor("C", A.shape[0], B.shape[1]), A, B, b)


@schedule(problem="matmul", source="ours; optimal to leading order for k ≤ √M", io="m*k + k*n*ceiling(m/p) + m*n")
def matmul_stationary(m, A, B, *, p):
    """p rows of A stationary, B column by column: mk + kn⌈m/p⌉ + mn words in pk + k + 1."""
    rows, _ = A.shape
    _, columns = B.shape
    C = m.tensor("C", rows, columns)
    for i in m.tiles(rows, p, independent=True):
        A_i = m.read(A[i, :])
        for j in m.tiles(columns, 1):
            B_j = m.read(B[:, j])
            for r in m.tiles(i, 1):
                m.write(C[r, j], m.compute(A_i[r, :] @ B_j))
