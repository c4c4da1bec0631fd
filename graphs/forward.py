"""The graph of the attention forward pass, O = softmax(Q Kᵀ) V (Saha & Ye 2024; Dao et al. 2022)."""

from __future__ import annotations

from typing import Final

from pebblesim.errors import UnknownName
from pebblesim.graphs.builder import Builder, whole
from pebblesim.graphs.cdag import Cdag

SOFTMAX: Final = ("early", "late", "safe")


def declare(
    n: int, d: int, summation: str = "chain", *, softmax: str = "early", outputs: tuple[str, ...] = ("O",)
) -> Builder:
    """Tell a builder the tensors; nothing is allocated yet. Arguments and errors as for `build`."""
    n, d = whole("n", n), whole("d", d)
    if softmax not in SOFTMAX:
        raise UnknownName("softmax", softmax, SOFTMAX)
    b = Builder(summation)
    for name in ("Q", "K", "V"):
        b.input(name, (n, d))
    b.matmul("S", "Q", "K.T")
    if softmax == "safe":
        b.rowmax("m", "S")
        b.elementwise("Sm", "sub", "S", "m")
        b.elementwise("A", "exp", "Sm")
        b.rowsum("l_m", "A")
        b.elementwise("P", "div", "A", "l_m")
        b.matmul("O", "P", "V")
        return b
    b.elementwise("A", "exp", "S")
    b.rowsum("l", "A")
    if softmax == "early":
        b.elementwise("P", "div", "A", "l")
        b.matmul("O", "P", "V")
    else:
        b.matmul("AV", "A", "V")
        b.elementwise("O", "div", "AV", "l")
    return b


def build(
    n: int, d: int, summation: str = "chain", *, softmax: str = "early", outputs: tuple[str, ...] = ("O",)
) -> Cdag:
    """The graph of O from Q, K, V (n, d).

    Args:
        n, d: sequence length and head dimension.
        summation: the tree of every sum, "chain", "balanced" or "blocked:B".
        softmax: "early" for P = A / l before the product with V, "late" for O = (A V) / l, both with A = exp(S) and
            l its row sums; "safe" with the row maximum m taken off before, as frameworks do.
        outputs: which tensors must be in memory at the end: O, and those kept for a backward pass.

    Raises:
        UsageError: an argument is not allowed, or the graph does not fit into memory.
    """
    return declare(n, d, summation, softmax=softmax, outputs=outputs).finish(outputs)
