"""A tighter small-cache schedule: rank-1 updates of a x b tiles, O and l saved from the forward pass.

Every product is a `gemm_streamed`. The softmax is applied to a tile of scores before it leaves the cache. Its gradient
is applied to a tile of q while f is streamed. The I/O is about 6(n²d + nd²)/√M + 3n² words; Algorithm 6 has factors 12
and 9 instead of 6 and 3.
"""

from pebblesim.language import exp
from pebblesim.language.registry import schedule
from pebblesim.schedules.matmul import CLOSED_STREAMED, gemm_streamed, streamed, write_projections
from pebblesim.schedules.phases import in_phase
from pebblesim.schedules.row_sums import times_centred, write_row_sums_of_pairs


@schedule(
    problem="backward",
    source="ours: Algorithm 6 with streamed operands and fused elementwise operations",
    io=(
        f"2*{streamed('n', 'd', 'd')} + 2*{streamed('n', 'd', 'n')} + {streamed('n', 'n', 'd')}"
        f" + {streamed('d', 'n', 'd')} + n**2 + 2*n*ceiling(n/b) + 2*n*d + n"
    ),
    fit=[("a", "b")],
    closed=CLOSED_STREAMED,
    graph={"order": "U", "kept": True, "centred": True, "leave_out": True},
)
def small_cache_streamed(m, A1, A2, A3, dO, X, Y, O, l, *, a, b):
    """Small cache, streamed: half the I/O of Algorithm 6."""
    (n_q, d), (n_k, _) = A1.shape, A2.shape
    queries = {"queries_of": n_k}  # with an allowed pair; h is for all keys: it is made by a and read by b of them
    S, h = write_projections(m, A1, A3, X, Y, gemm_streamed, a, b, of_queries=queries)
    v, dQ = m.tensor("v", n_q), m.tensor("dQ", n_q, d)
    f, p, g = m.tensor("f", n_q, n_k), m.tensor("p", n_q, n_k), m.tensor("g", d, d)

    in_phase(write_row_sums_of_pairs, m, v, dO, O, a, n_k)

    def softmax(f_ij, i, j):
        f_ij[:] = exp(f_ij)
        l_i = m.read(l[i])
        f_ij[:] = f_ij / l_i

    in_phase(gemm_streamed, m, f, S, A2, a, b, B_T=True, finish=softmax, every_tile=False)
    # of q = dO hᵀ
    in_phase(gemm_streamed, m, p, dO, h, a, b, B_T=True, finish=times_centred(m, f, v), every_tile=False)
    in_phase(gemm_streamed, m, dQ, p, A2, a, b, of_rows=queries)
    in_phase(gemm_streamed, m, g, A1, dQ, a, b, A_T=True, of_terms=queries)
