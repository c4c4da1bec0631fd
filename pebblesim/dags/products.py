"""Products of matrices within a graph: elementary products that are added up into outputs, found by structure alone.

docs/dags.md has the argument. What the search for indices finds need not be right: any indices give a true bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pebblesim.dags import products_kernel as kernel
from pebblesim.lower_bounds.capacities import Box, least_words

if TYPE_CHECKING:
    from pebblesim.dags.task_data import TaskData

Ints = NDArray[np.int64]


class Products(NamedTuple):
    """Vertices that multiply two inputs, and the outputs to which they are added.

    Attributes:
        operands: the two inputs of each product.
        roots: the output of each.
    """

    operands: Ints
    roots: Ints


def products_in(data: TaskData) -> Products:
    """Find the computed vertices of two operands, both inputs, that lead to an output without uses, and to no other.

    On the way from a product to its output, each value has one use and is no output itself.
    """
    n, (start, operands) = data.task.graph.vertices, data.operands
    uses, degree = np.bincount(operands, minlength=n), np.diff(start)
    only = np.full(n, -1, dtype=np.int64)
    only[operands] = np.repeat(np.arange(n), degree)  # the use, where there is one
    ends = data.is_output & (uses == 0)
    inner = ~data.is_output & (uses == 1)
    root = kernel.roots(data.task.topological[::-1].astype(np.int64), ends, inner, only)
    found = np.flatnonzero((degree == 2) & (root >= 0))
    pairs = operands[start[found][:, None] + np.arange(2)] if len(found) else np.empty((0, 2), dtype=np.int64)
    both = data.is_input[pairs].all(axis=1)
    return Products(pairs[both], root[found[both]])


def indices(products: Products, vertices: int) -> Ints:
    """Return i, t and j for each product of an A[i, t] and a B[t, j] that is added to C[i, j].

    Operands that are multiplied with each other, directly or by way of others, have one t; they are of two sides, of
    which one is A's. Outputs to which products with one element of A (of B) are added are of one row (column).
    """
    operands = products.operands.ravel()
    start = np.append(0, np.cumsum(np.bincount(operands, minlength=vertices)))
    return kernel.indices(vertices, products.operands, products.roots, start, np.argsort(operands, kind="stable") // 2)


def words(data: TaskData) -> int:
    """Return the words that any game moves, with recomputation or without; 0 if there are too few products."""
    products = products_in(data)
    found = indices(products, data.task.graph.vertices)
    found = np.unique(found[found[:, 0] >= 0], axis=0)
    if not len(found):
        return 0
    i, t, j = (len(np.unique(column)) for column in found.T)
    least = least_words(len(found), Box((i, t, j)), data.M)
    moved = np.zeros(data.task.graph.vertices, dtype=np.bool_)
    moved[data.is_output & ~data.is_input] = True
    moved[data.is_input & data.used] = True
    moved[products.operands] = moved[products.roots] = False
    return 0 if least is None else least + int(moved.sum())
