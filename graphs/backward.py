"""The graph of the attention backward pass, g = dL/dX (Li et al., arXiv 2410.09397, Definitions 3.2 and B.3-B.9)."""

from __future__ import annotations

from pebblesim.errors import UsageError
from pebblesim.graphs.builder import Builder, whole
from pebblesim.graphs.cdag import Cdag


def declare(
    n: int,
    d: int,
    summation: str = "chain",
    *,
    order: str = "T",
    kept: bool = False,
    row_block: int | None = None,
    dQ_block: int | None = None,
) -> Builder:
    """Tell a builder the tensors; nothing is allocated yet. Arguments and errors as for `build`."""
    n, d = whole("n", n), whole("d", d)
    if order not in ("T", "U"):
        raise UsageError(f"order {order!r} is not known; it is 'T' for g = (A1ᵀ p) A2 or 'U' for g = A1ᵀ (p A2).")
    if row_block is not None and order != "T":
        raise UsageError("row_block regroups T = A1ᵀ p, so it needs order 'T'.")
    if dQ_block is not None and order != "U":
        raise UsageError("dQ_block cuts the sum in dQ = p A2, so it needs order 'U'.")

    b = Builder(summation)
    for name in ("A1", "A2", "A3", "dO"):
        b.input(name, (n, d))
    for name in ("X", "Y"):
        b.input(name, (d, d))
    if kept:
        b.input("O", (n, d))
        b.input("l", (n,))

    b.matmul("S", "A1", "X")
    b.matmul("Z", "S", "A2.T")
    b.elementwise("A", "exp", "Z")
    if not kept:
        b.rowsum("l", "A")
    b.elementwise("f", "div", "A", "l")
    b.matmul("h", "A3", "Y")
    b.matmul("q", "dO", "h.T")
    b.elementwise("fq", "mul", "f", "q")
    if kept:
        b.elementwise("dOO", "mul", "dO", "O")
    b.rowsum("v", "dOO" if kept else "fq")
    b.elementwise("vf", "mul", "v", "f")
    b.elementwise("p", "sub", "fq", "vf")

    if order == "T":
        b.matmul("T", "A1.T", "p", row_block=row_block)
        b.matmul("g", "T", "A2")
    else:
        if dQ_block is None:
            b.matmul("dQ", "p", "A2")
        else:  # only a tile of B_c columns of p is there at a time, and dQ waits in memory between them, 0 at first
            block = whole("dQ_block", dQ_block)
            b.matmul("dQ", "p", "A2", tree=1 if summation == "chain" else block, start=True)
        b.matmul("g", "A1.T", "dQ")
    return b


def build(
    n: int,
    d: int,
    summation: str = "chain",
    *,
    order: str = "T",
    kept: bool = False,
    row_block: int | None = None,
    dQ_block: int | None = None,
) -> Cdag:
    """The graph of g = dL/dX from A1, A2, A3, dO (n, d) and X, Y (d, d).

    Args:
        n, d: sequence length and head dimension.
        summation: the tree of every sum, "chain", "balanced" or "blocked:B".
        order: "T" for T = A1ᵀ p, g = T A2 (the paper's), "U" for dQ = p A2, g = A1ᵀ dQ (as practised).
        kept: whether O (n, d) and l (n) are inputs, kept from the forward pass; v is then the row sums of dO∘O.
        row_block: with order "T", T is kept apart for each block of that many rows, and g sums over all of them,
            as in Algorithm 8.
        dQ_block: with order "U", dQ is accumulated in memory over blocks of that many columns of p, starting from 0,
            as FlashAttention does; inside a block the sum is balanced, unless `summation` is "chain".

    Raises:
        UsageError: an argument is not allowed, or the graph does not fit into memory.
    """
    b = declare(n, d, summation, order=order, kept=kept, row_block=row_block, dQ_block=dQ_block)
    return b.finish(outputs=("g",))
