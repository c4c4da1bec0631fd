"""The graph of a matrix product, C = A B (Hong & Kung 1981, section 6)."""

from __future__ import annotations

from pebblesim.graphs.builder import Builder, whole


def declare(m: int, k: int, n: int, summation: str = "chain") -> Builder:
    """Declare the tensors A (m, k), B (k, n) and C (m, n) to a builder; nothing is allocated yet."""
    m, k, n = whole("m", m), whole("k", k), whole("n", n)
    b = Builder(summation)
    b.outputs = ("C",)
    b.input("A", (m, k))
    b.input("B", (k, n))
    b.matmul("C", "A", "B")
    return b
