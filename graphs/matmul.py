"""The graph of a matrix product, C = A B (Hong & Kung 1981, section 6)."""

from __future__ import annotations

from pebblesim.graphs.builder import Builder, whole
from pebblesim.graphs.cdag import Cdag


def declare(m: int, k: int, n: int, summation: str = "chain") -> Builder:
    """Tell a builder the tensors A (m, k), B (k, n) and C (m, n); nothing is allocated yet."""
    m, k, n = whole("m", m), whole("k", k), whole("n", n)
    b = Builder(summation)
    b.input("A", (m, k))
    b.input("B", (k, n))
    b.matmul("C", "A", "B")
    return b


def build(m: int, k: int, n: int, summation: str = "chain") -> Cdag:
    """The graph of C = A B with A (m, k) and B (k, n).

    Raises:
        UsageError: a size is below 1, the summation is unknown, or the graph does not fit into memory.
    """
    return declare(m, k, n, summation).finish(outputs=("C",))
