"""Forward passes without a running maximum: Saha & Ye's for a small cache, and ours for small and large caches."""

from pebblesim.language import exp, rowsum
from pebblesim.language.registry import schedule
from pebblesim.schedules.matmul import CLOSED_STREAMED, gemm_streamed, rank_one_updates, streamed, tiled
from pebblesim.schedules.phases import in_phase

CLOSED_ROWS = {"B_r": "floor((M - 3)/(2*d + 4))"}
BY_ROWS = "n_q*d_k + n_k*(d_k + d_v)*ceiling(n_q/B_r) + n_q*d_v + n_q"
"""I/O of schedules that keep blocks of rows of Q and O in cache and read all keys and values for each block."""


@schedule(
    problem="forward",
    source="Saha & Ye 2024, Algorithm 1",
    known_as="Saha & Ye, Algorithm 1",
    io=f"{tiled('n_q', 'd_k', 'n_k', 'B')} + {tiled('n_q', 'n_k', 'd_v', 'B')} + 2*n_q",
    paper={"B": "floor(sqrt(M/4))"},
    closed={"B": "floor(sqrt((M - 2)/4))"},
    graph={"softmax": "late"},
)
def small_cache_forward(m, Q, K, V, *, B):
    """Small cache: square tiles; exp(S) goes through memory."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    A, l, O = m.tensor("A", n_q, n_k), m.tensor("l", n_q), m.tensor("O", n_q, d_v)

    with m.phase("A"):
        for i in m.tiles(n_q, B, independent=True):
            l_i = m.zeros(i)
            for j in m.tiles(n_k, B, keys_of=i):
                A_ij = m.zeros(i, j)
                for k in m.tiles(d_k, B):
                    A_ij += m.read(Q[i, k]) @ m.read(K[j, k]).T
                A_ij[:] = exp(A_ij)
                m.write(A[i, j], A_ij)
                l_i += rowsum(A_ij)
            m.write(l[i], l_i)

    with m.phase("O"):
        for i in m.tiles(n_q, B, independent=True):
            l_i = m.read(l[i])
            for j in m.tiles(d_v, B):
                O_ij = m.zeros(i, j)
                for k in m.tiles(n_k, B, keys_of=i):
                    O_ij += m.read(A[i, k]) @ m.read(V[k, j])
                O_ij[:] = O_ij / l_i
                m.write(O[i, j], O_ij)


def divided_product(m, O, A, V, l, a, b):
    """Compute O = (A V) / l by rank-1 updates of a x b tiles of O, which are divided before they are written."""

    def divide(O_ij, i, j):
        O_ij[:] = O_ij / m.read(l[i])

    gemm_streamed(m, O, A, V, a, b, finish=divide)


@schedule(
    problem="forward",
    source="ours: Saha & Ye's order with streamed operands",
    io=f"{streamed('n_q', 'd_k', 'n_k')} + n_q + {streamed('n_q', 'n_k', 'd_v')} + n_q*ceiling(d_v/b)",
    fit=[("a", "b")],
    closed=CLOSED_STREAMED,
    graph={"softmax": "late"},
)
def small_cache_forward_streamed(m, Q, K, V, *, a, b):
    """Small cache, streamed: 4n²d/√M + n², half of the I/O of Saha & Ye."""
    (n_q, _), (n_k, d_v) = Q.shape, V.shape
    A, l, O = m.tensor("A", n_q, n_k), m.tensor("l", n_q), m.tensor("O", n_q, d_v)

    with m.phase("A"):
        for i in m.tiles(n_q, a, independent=True):
            l_i = m.zeros(i)
            for j in m.tiles(n_k, b, keys_of=i):
                A_ij = m.zeros(i, j)
                rank_one_updates(m, A_ij, Q, K, B_T=True)
                A_ij[:] = exp(A_ij)
                m.write(A[i, j], A_ij)
                l_i += rowsum(A_ij)
            m.write(l[i], l_i)

    in_phase(divided_product, m, O, A, V, l, a, b)


def add_scores(m, A, Q_i, K, j):
    """Add Q_i K_jᵀ to A; K is read word by word."""
    for k in m.tiles(K.shape[1], 1):
        A += Q_i[:, k] @ m.read(K[j, k]).T


def add_values(m, O_i, A, V, j):
    """Add A V_j to O_i; V is read word by word."""
    for k in m.tiles(V.shape[1], 1):
        O_i[:, k] += A @ m.read(V[j, k])


def add_key(m, O_i, l_i, Q_i, K, V, j):
    """Add the terms of a key; K and V are read word by word."""
    A = m.zeros(Q_i.shape[0], j)
    add_scores(m, A, Q_i, K, j)
    A[:] = exp(A)
    l_i += rowsum(A)
    add_values(m, O_i, A, V, j)


def past_keys(m, queries, keys, d_v, B_r, add):
    """Compute O and l with B_r rows stationary; `add` adds the terms of one key to those of rows of the queries."""
    n_q, n_k = queries[0].shape[0], keys[0].shape[0]
    O, l = m.tensor("O", n_q, d_v), m.tensor("l", n_q)
    for i in m.tiles(n_q, B_r, independent=True, queries_of=n_k, otherwise={O: 0, l: 0}):
        rows, O_i, l_i = [m.read(Q[i, :]) for Q in queries], m.zeros(i, d_v), m.zeros(i)
        for j in m.tiles(n_k, 1, keys_of=i):
            add(m, O_i, l_i, *rows, *keys, j)
        write_divided(m, O, l, i, O_i, l_i)


def write_divided(m, O, l, i, O_i, l_i):
    """Write rows of O, divided by their row sums, and these."""
    O_i[:] = O_i / l_i
    m.write(O[i, :], O_i)
    m.write(l[i], l_i)


@schedule(
    problem="forward",
    source="ours: FlashAttention-2's order with columns of width 1; K and V are read word by word",
    io=BY_ROWS,
    closed=CLOSED_ROWS,
    graph={"softmax": "late"},
)
def row_stationary_forward(m, Q, K, V, *, B_r):
    """Row-stationary: 4n²d²/M, the best constant for a large cache."""
    past_keys(m, (Q,), (K, V), V.shape[1], B_r, add_key)
