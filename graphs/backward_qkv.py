"""The graph of the gradients dQ, dK, dV of attention (Dao et al. 2022, appendix B.2; Dao 2023)."""

from __future__ import annotations

from typing import Final

from pebblesim.core.errors import UnknownName
from pebblesim.graphs.builder import Builder, Mask, in_memory, sizes
from pebblesim.graphs.projections import queries_keys_values

KEPT: Final = ("l", "L", "m", "P")


def declare(
    n_q: int,
    n_k: int,
    d_k: int,
    d_v: int,
    summation: str = "chain",
    *,
    kept: str = "l",
    dQ_block: int | None = None,
    rows_block: int | None = None,
    d: int | None = None,
    mask: Mask = None,
) -> Builder:
    """The graph of dQ, dK, dV from Q, K, V, dO and the values that the forward pass kept.

    Args:
        n_q, n_k: numbers of queries and of keys.
        d_k, d_v: words in a row of Q, K, dQ and dK; words in a row of V, dO, O and dV.
        summation: the tree of every sum, "chain", "balanced" or "blocked:B".
        kept: with O: "l" for the row sums of exp(S), "L" for their logarithm, "m" for the row maximum and the row sums
            l_m relative to it. Without O: "P" for the probabilities (n_q, n_k).
        d: words in a row of A1, A2, A3, where Q, K, V are projections of these by W_Q, W_K, W_V, as in `forward`.
        dQ_block: dQ is accumulated in memory, starting from 0, over blocks of this many columns.
        rows_block: dK and dV are accumulated in memory, starting from 0, over blocks of this many rows.
        mask: booleans of shape (n_q, n_k), the pairs that may meet; None for all.

    Raises:
        UsageError: an argument is not allowed, or the graph does not fit into memory.
    """
    n_q, n_k, d_k, d_v = sizes(n_q=n_q, n_k=n_k, d_k=d_k, d_v=d_v)
    if kept not in KEPT:
        raise UnknownName("value kept from the forward pass", kept, KEPT)
    b = Builder(summation, mask)
    b.outputs = ("dQ", "dK", "dV")
    queries_keys_values(b, n_q, n_k, d_k, d_v, d)
    b.input("dO", (n_q, d_v))
    _probabilities(b, n_q, n_k, d_v, kept)
    b.matmul("dP", "dO", "V.T", pairs=True)
    if kept == "P":
        b.elementwise("PdP", "mul", "P", "dP")
        b.rowsum("v", "PdP")
    else:
        b.elementwise("dOO", "mul", "dO", "O")
        b.rowsum("v", "dOO")
    b.elementwise("dPv", "sub", "dP", "v")
    b.elementwise("dS", "mul", "P", "dPv")
    b.matmul("dV", "P.T", "dO", **in_memory("rows", rows_block, summation))
    b.matmul("dQ", "dS", "K", **in_memory("dQ", dQ_block, summation))
    b.matmul("dK", "dS.T", "Q", **in_memory("rows", rows_block, summation))
    return b


def _probabilities(b: Builder, n_q: int, n_k: int, d_v: int, kept: str) -> None:
    if kept == "P":
        b.input("P", (n_q, n_k), pairs=True)
        return
    b.input("O", (n_q, d_v))
    for name in {"l": ("l",), "L": ("L",), "m": ("l_m", "m")}[kept]:
        b.input(name, (n_q,))
    b.matmul("S", "Q", "K.T", pairs=True)
    if kept == "l":
        b.elementwise("A", "exp", "S")
        b.elementwise("P", "div", "A", "l")
    elif kept == "L":
        b.elementwise("SL", "sub", "S", "L")
        b.elementwise("P", "exp", "SL")
    else:
        b.elementwise("Sm", "sub", "S", "m")
        b.elementwise("A", "exp", "Sm")
        b.elementwise("P", "div", "A", "l_m")
