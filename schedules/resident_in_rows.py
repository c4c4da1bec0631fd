"""Small cache for tensor cores with resident rows, C rows at a time: tables of pairs need only C x n words.

Heads that share keys are one head with the rows of all, and share dK and dV. These are in memory from one group of C
rows to the next. Kernels of Hopper compute a group at a time (`pebblesim.kernels.passes.in_parts`).
"""

from pebblesim.language import exp
from pebblesim.language.registry import schedule
from pebblesim.schedules.in_rows import add_rows, cut_twice, write_rows
from pebblesim.schedules.phases import in_phase
from pebblesim.schedules.row_sums import write_row_sums
from pebblesim.schedules.rows_stay import add_scores


def write_pairs(m, A, A_1, A_2, x, r, a, b, c, change):
    """Compute A[i, j] = change(A_1[i] A_2[j]ᵀ) for tiles i of the rows r, which stay while A_2 is streamed.

    `change` is given the tile, its indices and x[i].
    """
    for i in m.tiles(r, a, independent=True):
        rows, x_i = m.read(A_1[i, :]), m.read(x[i])
        for j in m.tiles(A.shape[1], b, keys_of=i):
            A_ij = m.zeros(i, j)
            add_scores(m, A_ij, rows, A_2, c)
            change(A_ij, i, j, x_i)
            m.write(A[i, j], A_ij)


@schedule(
    problem="backward-qkv",
    source="ours: small-cache-backward-resident, for C rows at a time; dK and dV are summed in memory",
    io=(
        "2*n_q*d_v + n_q + n_k*(d_k + d_v)"
        f" + n_q*(d_k + d_v) + 2*n_q + n_k*(d_k + d_v)*{cut_twice('a')} + 3*n_q*n_k"
        f" + n_q*n_k*ceiling(d_k/e) + n_k*d_k*{cut_twice('a')} + n_q*d_k"
        " + 2*n_k*(d_k + d_v)*ceiling(n_q/C)"
        " + n_q*n_k*(ceiling(d_k/e) + ceiling(d_v/e)) + n_q*(d_k + d_v)*ceiling(n_k/b)"
    ),
    fit=["C", ("a", "b"), "e", "c"],
    graph={"kept": "L", "rows_block": "C"},
)
def small_cache_backward_resident_in_rows(m, Q, K, V, dO, O, L, *, C, a, b, c, e):
    """Small cache for tensor cores with C x n words of P and dS; rows of Q stay for P, and rows of dO for dS."""
    (n_q, d_k), (n_k, d_v) = Q.shape, V.shape
    P, dS, v = m.tensor("P", n_q, n_k), m.tensor("dS", n_q, n_k), m.tensor("v", n_q)
    dQ, dK, dV = m.tensor("dQ", n_q, d_k), m.tensor("dK", n_k, d_k), m.tensor("dV", n_k, d_v)

    def probabilities(P_ij, i, j, L_i):
        P_ij[:] = exp(P_ij - L_i)

    def gradients(dS_ij, i, j, v_i):
        P_ij = m.read(P[i, j])
        dS_ij[:] = P_ij * (dS_ij - v_i)

    in_phase(write_row_sums, m, v, dO, O, a, c)

    with m.phase("P, dV, dS, dQ, dK"):
        m.write(dK, 0)
        m.write(dV, 0)
        for r in m.tiles(n_q, C):
            write_pairs(m, P, Q, K, L, r, a, b, c, probabilities)
            add_rows(m, dV, P, dO, r, b, a, c, e)  # before dS takes the place of P
            write_pairs(m, dS, dO, V, v, r, a, b, c, gradients)
            write_rows(m, dQ, dS, K, r, a, e, b, c)
            add_rows(m, dK, dS, Q, r, b, a, c, e)
