"""The graph of the gradients of attention whose values are the first part of its keys."""

from __future__ import annotations

from pebblesim.graphs.builder import Builder, Mask, sizes


def declare(
    n_q: int,
    n_k: int,
    d_v: int,
    d_r: int,
    summation: str = "chain",
    *,
    apart: bool = False,
    mask: Mask = None,
) -> Builder:
    """The graph of dQ_C, dQ_R, dC and dR from Q_C, Q_R, C, R, dO, and O and l, which the forward pass saved.

    A key's latent words are scored and are values, so dC = Pᵀ dO + dSᵀ Q_C.

    Args:
        n_q, n_k: numbers of queries and of keys.
        d_v, d_r: words of a key that are also its value; words of a key that only the scores use.
        summation: the tree of every sum, "chain", "balanced" or "blocked:B".
        apart: whether the two terms of dC are sums of their own, which are added at the end; otherwise the terms of dSᵀ
            Q_C are added to the sum Pᵀ dO.
        mask: booleans of shape (n_q, n_k), the pairs that may meet; None for all.

    Raises:
        UsageError: an argument is not allowed, or the graph does not fit into memory.
    """
    n_q, n_k, d_v, d_r = sizes(n_q=n_q, n_k=n_k, d_v=d_v, d_r=d_r)
    b = Builder(summation, mask)
    b.outputs = ("dQ_C", "dQ_R", "dC", "dR")
    rows, columns = {"Q_C": (n_q, d_v), "Q_R": (n_q, d_r)}, {"C": (n_k, d_v), "R": (n_k, d_r)}
    for name, shape in {**rows, **columns, "dO": (n_q, d_v), "O": (n_q, d_v), "l": (n_q,)}.items():
        b.input(name, shape)
    b.matmul("S_C", "Q_C", "C.T", pairs=True)
    b.matmul("S_R", "Q_R", "R.T", pairs=True)
    b.elementwise("S", "add", "S_C", "S_R")
    b.elementwise("A", "exp", "S")
    b.elementwise("P", "div", "A", "l")
    b.matmul("dP", "dO", "C.T", pairs=True)
    b.elementwise("dOO", "mul", "dO", "O")
    b.rowsum("v", "dOO")
    b.elementwise("dPv", "sub", "dP", "v")
    b.elementwise("dS", "mul", "P", "dPv")
    b.matmul("dV", "P.T", "dO")
    if apart:
        b.matmul("dK_C", "dS.T", "Q_C")
        b.elementwise("dC", "add", "dV", "dK_C")
    else:
        b.matmul("dC", "dS.T", "Q_C", onto="dV")
    b.matmul("dR", "dS.T", "Q_R")
    b.matmul("dQ_C", "dS", "C")
    b.matmul("dQ_R", "dS", "R")
    return b
