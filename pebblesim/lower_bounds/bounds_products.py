"""Lower bounds on matrix products: C = A B, C = A B of sparse matrices, and linear attention in its linear order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pebblesim.core.errors import UsageError
from pebblesim.lower_bounds.capacities import Box, Cube
from pebblesim.lower_bounds.cutting import Bounding, Cutting, CuttingBound
from pebblesim.lower_bounds.instances import Product


def matrix_product(case: Cutting) -> Iterator[CuttingBound]:
    """Yield bound B. The three sides are symmetric. A short side has too few words for an equal share of a segment."""
    claim = case.of_products("B", "products m·k·n", [Product("C", "A", "B", ("m", "k", "n"))])
    sides = {name: case.dims[name] for name in ("k", "m", "n")}
    short = min(sides, key=lambda name: sides[name])
    long = "*".join(name for name in sides if name != short)
    form = (f"{long}*(1 + {short}**2/M) - M**2/{short}**2", 1, None)
    m, k, n = (case.dims[name] for name in ("m", "k", "n"))
    yield claim._replace(capacity=Box((m, k, n)), forms=[form, *claim.forms], unit=(f"{short}²", sides[short] ** 2))


LINEAR = [
    Product("W", "A2", "A3", ("d", "n", "d")),
    Product("XW", "X", "W", ("d", "d", "d")),
    Product("XWY", "XW", "Y", ("d", "d", "d")),
    Product("O", "A1", "XWY", ("n", "d", "d")),
]
"""A1 (X (A2ᵀ A3) Y)."""


def linear(case: Cutting) -> CuttingBound:
    """Return bound L1."""
    return case.of_products("L1", "all four products", LINEAR)


def any_order(case: Cutting) -> CuttingBound:
    """Return bound L2, for every one of the 14 orders of A1 X A2ᵀ A3 Y.

    If n ≥ d it has the products and trees of the linear order, else those of the quadratic one. Every other order has
    more trees, and more products by at least those of min(n, d) in each of them.
    """
    n, d = case.dims["n"], case.dims["d"]
    if n >= d:
        products, free, text, less = 2 * (n * d**2 + d**3), 3 * d**2, "n*d**2 + d**3", "3*d**2"
    else:
        products, free, text, less = 2 * (n**2 * d + n * d**2), n**2 + 2 * n * d, "n**2*d + n*d**2", "n**2 - 2*n*d"
    least = min(n, d)
    form = (f"4*({text})/sqrt(M) - {less} - M", 0, 4)
    what, unit = "four products in any order", ("min(n, d)²", least**2)
    return CuttingBound("L2", what, products, Cube(), [form], unit, free=free, tree=least)


def sparse_products(columns_of_A: Sequence[int], rows_of_B: Sequence[int]) -> int:
    """Number of elementary products of C = A B, from the number of nonzeros in each column of A and each row of B.

    Raises:
        UsageError: the number of columns of A differs from the number of rows of B.
    """
    if len(columns_of_A) != len(rows_of_B):
        raise UsageError(
            f"A was given {len(columns_of_A)} columns and B {len(rows_of_B)} rows; a product needs equal numbers."
        )
    return sum(a * b for a, b in zip(columns_of_A, rows_of_B, strict=True))


MATMUL = Bounding(("A", "B", "C"), matrix_product)
