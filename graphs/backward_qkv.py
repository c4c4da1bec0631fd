"""The graph of the gradients dQ, dK, dV of attention (Dao et al. 2022, appendix B.2; Dao 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pebblesim.core.errors import UnknownName
from pebblesim.graphs.builder import Builder, Mask, in_memory, sizes
from pebblesim.graphs.forward import WEIGHTS, exp_of_difference
from pebblesim.graphs.projections import absorbable, queries_keys_values

KEPT: Final = ("l", "L", "m", "P", "P, O")


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
    absorbed: str | Iterable[str] = (),
    mask: Mask = None,
) -> Builder:
    """The graph of dQ, dK, dV from Q, K, V, dO and the values that the forward pass kept.

    Args:
        n_q, n_k: numbers of queries and of keys.
        d_k, d_v: words in a row of Q, K, dQ and dK; words in a row of V, dO, O and dV.
        summation: the tree of every sum, "chain", "balanced" or "blocked:B".
        kept: with O: "l" for the row sums of exp(S), "L" for their logarithm, "m" for the row maximum and the row sums
            l_m relative to it. Without O: "P" for the probabilities (n_q, n_k); "P, O" for these with O.
        d: words in a row of A1, A2, A3, where Q, K, V are projections of these by W_Q, W_K, W_V, as in `forward`.
        absorbed: the weights that multiply the other side. "W_K": scores are (Q W_Kᵀ) A2ᵀ, and dQ = (dS A2) W_K. "W_Q":
            scores are A1 (K W_Qᵀ)ᵀ, and dK = (dSᵀ A1) W_Q; not together with "W_K". "W_V": dP = (dO W_Vᵀ) A3ᵀ.
        dQ_block: dQ is accumulated in memory, starting from 0, over blocks of this many columns.
        rows_block: dK and dV are accumulated in memory, starting from 0, over blocks of this many rows.
        mask: booleans of shape (n_q, n_k), the pairs that may meet; None for all.

    Raises:
        UsageError: an argument is not allowed, or the graph does not fit into memory.
    """
    n_q, n_k, d_k, d_v = sizes(n_q=n_q, n_k=n_k, d_k=d_k, d_v=d_v)
    if kept not in KEPT:
        raise UnknownName("value saved from the forward pass", kept, KEPT)
    b = Builder(summation, mask)
    b.outputs = ("dQ", "dK", "dV")
    weights = absorbable(absorbed, WEIGHTS)
    queries, keys, values = queries_keys_values(b, n_q, n_k, d_k, d_v, d, weights)
    b.input("dO", (n_q, d_v))
    _probabilities(b, n_q, n_k, d_v, kept, queries, keys)
    if "W_V" in weights:
        b.matmul("dOW", "dO", "W_V.T")
    b.matmul("dP", "dOW" if "W_V" in weights else "dO", f"{values}.T", pairs=True)
    if kept == "P":
        b.elementwise("PdP", "mul", "P", "dP")
        b.rowsum("v", "PdP")
    else:
        b.elementwise("dOO", "mul", "dO", "O")
        b.rowsum("v", "dOO")
    b.elementwise("dPv", "sub", "dP", "v")
    b.elementwise("dS", "mul", "P", "dPv")
    b.matmul("dV", "P.T", "dO", **in_memory("rows", rows_block, summation))
    _gradient(b, "dQ", "dS", "K", "W_K" in weights, in_memory("dQ", dQ_block, summation))
    _gradient(b, "dK", "dS.T", "Q", "W_Q" in weights, in_memory("rows", rows_block, summation))
    return b


def _gradient(b: Builder, name: str, dS: str, other: str, absorbed: bool, accumulated: Mapping[str, Any]) -> None:
    """dQ = dS K or dK = dSᵀ Q; or, if K or Q is not made, from the sum over A2 or A1 and the weights."""
    if not absorbed:
        b.matmul(name, dS, other, **accumulated)
        return
    source = "A2" if other == "K" else "A1"
    b.matmul(f"dS{source}", dS, source, **accumulated)
    b.matmul(name, f"dS{source}", f"W_{other}")


def _probabilities(b: Builder, n_q: int, n_k: int, d_v: int, kept: str, queries: str, keys: str) -> None:
    if kept != "P":
        b.input("O", (n_q, d_v))
    if kept in ("P", "P, O"):
        b.input("P", (n_q, n_k), pairs=True)
        return
    for name in {"l": ("l",), "L": ("L",), "m": ("l_m", "m")}[kept]:
        b.input(name, (n_q,))
    b.matmul("S", queries, f"{keys}.T", pairs=True)
    if kept == "l":
        b.elementwise("A", "exp", "S")
        b.elementwise("P", "div", "A", "l")
    elif kept == "L":
        exp_of_difference(b, "P", "SL", "S", "L")
    else:
        exp_of_difference(b, "A", "Sm", "S", "m")
        b.elementwise("P", "div", "A", "l_m")
