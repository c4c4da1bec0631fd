"""The graph of the attention backward pass, g = dL/dX (Li et al., arXiv 2410.09397, Definitions 3.2 and B.3-B.9).

Schedules associate the same sums in different ways. Each way has its own graph, and is an option here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pebblesim.core.errors import UsageError
from pebblesim.graphs.builder import Builder, Mask, in_memory, sizes
from pebblesim.graphs.projections import absorbable

ORDERS: Final = {"T": "g = (A1ᵀ p) A2", "U": "g = A1ᵀ (p A2)", "one-pass": "g = A1ᵀ dQ without p"}


def declare(
    n_q: int,
    n_k: int,
    d: int,
    summation: str = "chain",
    *,
    order: str = "T",
    kept: bool = False,
    centred: bool = False,
    row_block: int | None = None,
    dQ_block: int | None = None,
    g_block: int | None = None,
    absorbed: str | Iterable[str] = (),
    leave_out: bool = False,
    mask: Mask = None,
) -> Builder:
    """The graph of g = dL/dX from A1, dO (n_q, d), A2, A3 (n_k, d) and X, Y (d, d).

    Args:
        n_q, n_k, d: numbers of queries and of keys, and head dimension.
        summation: the tree of every sum, "chain", "balanced" or "blocked:B".
        order: "T" for T = A1ᵀ p, g = T A2 (the paper), "U" for dQ = p A2, g = A1ᵀ dQ (common practice), "one-pass" for
            a dQ that uses the row sums only at its end.
        kept: whether O (n_q, d) and l (n_q) are inputs, saved from the forward pass; v is then the vector of row sums
            of dO∘O.
        centred: p = f∘(q - v) instead of f∘q - diag(v) f.
        row_block: with order "T", there is a separate T for each block of this many rows, and g is the sum over all
            blocks, as in Algorithm 8.
        dQ_block: with order "U", dQ is accumulated in memory, starting from 0, over blocks of this many columns of p,
            as in FlashAttention. Inside a block the sum is balanced, unless `summation` is "chain".
        g_block: the same for g, over blocks of this many rows; not allowed with order "T".
        absorbed: the weights that multiply the other side. "X": Z = A1 (A2 Xᵀ)ᵀ, without S = A1 X. "Y":
            q = (dO Yᵀ) A3ᵀ, without h = A3 Y. Names, or one text with a comma between them.
        leave_out: under a mask, the sum in g leaves out queries (keys with order "T") without an allowed pair.
        mask: booleans of shape (n_q, n_k), the pairs that may meet; None for all. Under a mask, a g in blocks
            (row_block or g_block) leaves out blocks or rows without an allowed pair.

    Raises:
        UsageError: an argument is not allowed, or the graph does not fit into memory.
    """
    n_q, n_k, d = sizes(n_q=n_q, n_k=n_k, d=d)
    _check(order, kept, centred, row_block, dQ_block, g_block)

    b = Builder(summation, mask)
    b.outputs = ("g",)
    for name, rows in (("A1", n_q), ("A2", n_k), ("A3", n_k), ("dO", n_q)):
        b.input(name, (rows, d))
    for name in ("X", "Y"):
        b.input(name, (d, d))
    if kept:
        b.input("O", (n_q, d))
        b.input("l", (n_q,))

    weights = absorbable(absorbed, ("X", "Y"))
    if "X" in weights:
        b.matmul("A2X", "A2", "X.T")
        b.matmul("Z", "A1", "A2X.T", pairs=True)
    else:
        b.matmul("S", "A1", "X")
        b.matmul("Z", "S", "A2.T", pairs=True)
    b.elementwise("A", "exp", "Z")
    if not kept:
        b.rowsum("l", "A")
    if order != "one-pass":
        b.elementwise("f", "div", "A", "l")
    if "Y" in weights:
        b.matmul("dOY", "dO", "Y.T")
        b.matmul("q", "dOY", "A3.T", pairs=True)
    else:
        b.matmul("h", "A3", "Y")
        b.matmul("q", "dO", "h.T", pairs=True)
    if order == "one-pass":
        _one_pass(b)
    else:
        _softmax_backward(b, kept, centred)
        if order == "T":
            b.matmul("T", "A1.T", "p", row_block=row_block)
            b.matmul("g", "T", "A2", leave_out=leave_out or row_block is not None)
            return b
        b.matmul("dQ", "p", "A2", **in_memory("dQ", dQ_block, summation))
    b.matmul("g", "A1.T", "dQ", **{"leave_out": leave_out} | in_memory("g", g_block, summation))
    return b


def _softmax_backward(b: Builder, kept: bool, centred: bool) -> None:
    """p = f∘q - diag(v) f, or f∘(q - v)."""
    if not centred or not kept:
        b.elementwise("fq", "mul", "f", "q")
    if kept:
        b.elementwise("dOO", "mul", "dO", "O")
    b.rowsum("v", "dOO" if kept else "fq")
    if centred:
        b.elementwise("qv", "sub", "q", "v")
        b.elementwise("p", "mul", "f", "qv")
    else:
        b.elementwise("vf", "mul", "v", "f")
        b.elementwise("p", "sub", "fq", "vf")


def _one_pass(b: Builder) -> None:
    """dQ = (Σ_j A_ij q_ij A2_j - (w/l) Σ_j A_ij A2_j) / l with w = Σ_j A_ij q_ij: l and w are used only at the end."""
    b.elementwise("Aq", "mul", "A", "q")
    b.rowsum("w", "Aq")
    b.matmul("U1", "Aq", "A2")
    b.matmul("U2", "A", "A2")
    b.elementwise("wl", "div", "w", "l")
    b.elementwise("wU", "mul", "wl", "U2")
    b.elementwise("U", "sub", "U1", "wU")
    b.elementwise("dQ", "div", "U", "l")


def _check(
    order: str, kept: bool, centred: bool, row_block: int | None, dQ_block: int | None, g_block: int | None
) -> None:
    if order not in ORDERS:
        known = ", ".join(f"{name!r} for {g}" for name, g in ORDERS.items())
        raise UsageError(f"order {order!r} is not known; it is {known}.")
    if row_block is not None and order != "T":
        raise UsageError("row_block cuts the sum in T = A1ᵀ p, so it needs order 'T'.")
    if dQ_block is not None and order != "U":
        raise UsageError("dQ_block cuts the sum in dQ = p A2, so it needs order 'U'.")
    if g_block is not None and order == "T":
        raise UsageError("g_block cuts the sum in g = A1ᵀ dQ, so it needs order 'U' or 'one-pass'.")
    if order == "one-pass" and (kept or centred):
        raise UsageError("order 'one-pass' does not use p, O or l: leave out 'kept' and 'centred'.")
