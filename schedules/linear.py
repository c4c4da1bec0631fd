"""Linear attention: without a softmax the product can be computed from the right, without an n x n matrix."""

from pebblesim.language.registry import schedule
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


@schedule(
    problem="linear",
    source="ours, for Li et al., Remark 5.1: A1 (X (A2ᵀ A3) Y)",
    io=f"{streamed('d', 'n', 'd')} + 2*{streamed('d', 'd', 'd')} + {resident('n', 'd', 'd', 'c')}",
    fit=[("a", "b"), "c"],
    closed=CLOSED_STREAMED | {"c": CLOSED_RESIDENT["b"]},
    graph={"order": "linear"},
)
def linear(m, A1, A2, A3, X, Y, *, a, b, c):
    """A2ᵀ A3 first: nd + nd²/√M, less than every lower bound with a softmax."""
    n, d = A1.shape
    W, XW, XWY = (m.tensor(name, d, d) for name in ("W", "XW", "XWY"))
    O = m.tensor("O", n, d)

    in_phase(gemm_streamed, m, W, A2, A3, a, b, A_T=True)
    in_phase(gemm_streamed, m, XW, X, W, a, b)
    in_phase(gemm_streamed, m, XWY, XW, Y, a, b)
    in_phase(gemm_resident, m, O, A1, XWY, c)


@schedule(
    problem="linear",
    source="ours: (A1 X A2ᵀ) (A3 Y), the only order that is possible with a softmax",
    io=f"2*{streamed('n', 'd', 'd')} + 2*n*d + 2*n*d*ceiling(n/B_r)",
    fit=[("a", "b"), "B_r"],
    graph={"order": "quadratic"},
)
def linear_quadratic(m, A1, A2, A3, X, Y, *, a, b, B_r):
    """Row-stationary, in the only order that is possible with a softmax: 4n²d²/M."""
    n, d = A1.shape
    S, h = write_projections(m, A1, A3, X, Y, gemm_streamed, a, b)
    O = m.tensor("O", n, d)

    with m.phase("O"):
        for i in m.tiles(n, B_r, independent=True):
            S_i, O_i = m.read(S[i, :]), m.zeros(i, d)
            for j in m.tiles(n, 1):
                Z = m.zeros(i, j)
                for k in m.tiles(d, 1):
                    Z += S_i[:, k] @ m.read(A2[j, k]).T
                for k in m.tiles(d, 1):
                    O_i[:, k] += Z @ m.read(h[j, k])
            m.write(O[i, :], O_i)
