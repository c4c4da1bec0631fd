"""The backward pass with relu or sigmoid instead of the softmax, for small and large caches.

There is no normalisation. So neither O nor row sums are kept, and each column of scores is used at once.
"""

from functools import partial

from pebblesim.language import sigmoid, step
from pebblesim.language.registry import schedule
from pebblesim.schedules.activation_forward import ACTIVATIONS
from pebblesim.schedules.matmul import (
    CLOSED_RESIDENT,
    CLOSED_STREAMED,
    gemm_resident,
    gemm_streamed,
    resident,
    streamed,
    write_projections,
)
from pebblesim.schedules.phases import in_phase
from pebblesim.schedules.row_stationary import CLOSED_OF_G, CLOSED_ROWS

SOURCE = "ours, for Li et al., Remark 5.1: as {} without normalisation"

PRODUCTS = [("n", "d", "d"), ("n", "d", "d"), ("n", "d", "n"), ("n", "d", "n"), ("n", "n", "d"), ("d", "n", "d")]
SMALL_CACHE = " + ".join(["n**2", *(streamed(*sizes) for sizes in PRODUCTS)])  # the slope is read while q is computed
ROW_STATIONARY = f"2*{resident('n', 'd', 'd')} + 3*n*d + 2*n*d*ceiling(n/B_r) + {streamed('d', 'n', 'd', 'a_g', 'b_g')}"


def become_slope(activation, Z, *_):
    """Replace Z by the derivative of the activation at Z."""
    if activation == "relu":
        Z[:] = step(Z)
    else:
        Z[:] = sigmoid(Z)
        Z[:] = Z - Z * Z


def define(activation):
    """Register the schedules for an activation."""

    @schedule(
        name=f"small-cache-{activation}",
        problem=f"backward-{activation}",
        source=SOURCE.format("small-cache-streamed"),
        io=SMALL_CACHE,
        fit=[("a", "b")],
        closed=CLOSED_STREAMED,
    )
    def small_cache(m, A1, A2, A3, dO, X, Y, *, a, b):
        """Small cache, streamed: the derivatives of the activation go through memory."""
        (n_q, d), (n_k, _) = A1.shape, A2.shape
        S, h = write_projections(m, A1, A3, X, Y, gemm_streamed, a, b)
        dQ, slope, p = m.tensor("dQ", n_q, d), m.tensor("slope", n_q, n_k), m.tensor("p", n_q, n_k)
        g = m.tensor("g", d, d)

        def times_slope(p_ij, i, j):
            for r in m.tiles(i, 1):
                for c in m.tiles(j, 1):
                    p_ij[r, c] = m.read(slope[r, c]) * p_ij[r, c]

        with m.phase("slope"):
            finish = partial(become_slope, activation)
            gemm_streamed(m, slope, S, A2, a, b, B_T=True, finish=finish, every_tile=False)

        with m.phase("p"):  # of q = dO hᵀ
            gemm_streamed(m, p, dO, h, a, b, B_T=True, finish=times_slope, every_tile=False)
        with m.phase("dQ"):
            gemm_streamed(m, dQ, p, A2, a, b)
        in_phase(gemm_streamed, m, g, A1, dQ, a, b, A_T=True)

    @schedule(
        name=f"row-stationary-{activation}",
        problem=f"backward-{activation}",
        source=SOURCE.format("row-stationary"),
        io=ROW_STATIONARY,
        fit=["B_r", "b", ("a_g", "b_g")],
        closed=CLOSED_ROWS | CLOSED_RESIDENT | CLOSED_OF_G,
    )
    def row_stationary(m, A1, A2, A3, dO, X, Y, *, B_r, b, a_g, b_g):
        """Row-stationary: 6n²d²/M."""
        (n_q, d), (n_k, _) = A1.shape, A2.shape
        S, h = write_projections(m, A1, A3, X, Y, gemm_resident, b)
        dQ, g = m.tensor("dQ", n_q, d), m.tensor("g", d, d)
        with m.phase("dQ"):
            for i in m.tiles(n_q, B_r, independent=True, queries_of=n_k, otherwise={dQ: 0}):
                S_i, dO_i, dQ_i = m.read(S[i, :]), m.read(dO[i, :]), m.zeros(i, d)
                for j in m.tiles(n_k, 1, keys_of=i):
                    A2_j = m.read(A2[j, :])
                    slope = m.compute(S_i @ A2_j.T)
                    become_slope(activation, slope)
                    p = m.zeros(i, j)
                    for k in m.tiles(d, 1):
                        p += dO_i[:, k] @ m.read(h[j, k]).T  # q
                    p[:] = slope * p
                    dQ_i += p @ A2_j
                m.write(dQ[i, :], dQ_i)
        in_phase(gemm_streamed, m, g, A1, dQ, a_g, b_g, A_T=True)


for each in ACTIVATIONS:
    define(each)
