"""The graph of linear attention, O = A1 X A2ᵀ A3 Y (Li et al., Remark 5.1)."""

from __future__ import annotations

from pebblesim.core.errors import UsageError
from pebblesim.graphs.builder import Builder, whole


def declare(n: int, d: int, summation: str = "chain", *, order: str = "linear") -> Builder:
    """The graph of O (n, d) from A1, A2, A3 (n, d) and X, Y (d, d).

    Args:
        n, d: sequence length and head dimension.
        summation: the tree of every sum, "chain", "balanced" or "blocked:B".
        order: "linear" for A1 (X (A2ᵀ A3) Y), "quadratic" for (A1 X A2ᵀ) (A3 Y), the only order that attention with a
            softmax allows.

    Raises:
        UsageError: an argument is not allowed, or the graph does not fit into memory.
    """
    n, d = whole("n", n), whole("d", d)
    if order not in ("linear", "quadratic"):
        raise UsageError(f"order {order!r} is not known; it is 'linear' or 'quadratic'.")
    b = Builder(summation)
    b.outputs = ("O",)
    for name in ("A1", "A2", "A3"):
        b.input(name, (n, d))
    for name in ("X", "Y"):
        b.input(name, (d, d))
    if order == "linear":
        b.matmul("W", "A2.T", "A3")
        b.matmul("XW", "X", "W")
        b.matmul("XWY", "XW", "Y")
        b.matmul("O", "A1", "XWY")
    else:
        b.matmul("S", "A1", "X")
        b.matmul("h", "A3", "Y")
        b.matmul("Z", "S", "A2.T")
        b.matmul("O", "Z", "h")
    return b
