"""Rows and columns of elements of matrices that products join."""

from __future__ import annotations

from typing import Any

import numpy as np

from pebblesim.core.jit import kernel, part


@part()
def _class(above: Any, x: int) -> int:
    while above[x] != x:
        above[x] = above[above[x]]
        x = above[x]
    return x


@part()
def _of_one(above: Any, outputs: Any, shift: int) -> bool:
    """Whether these outputs are known to be of one row (shift 0) or column (shift: number of vertices)."""
    first = _class(above, outputs[0] + shift)
    same = True
    for c in outputs:
        same = same and _class(above, c + shift) == first
    return same


@kernel()
def roots(order: Any, ends: Any, inner: Any, only: Any) -> Any:
    """For each vertex the end to which values of one use each lead from it; -1 for none. Uses come first in `order`."""
    root = np.full(ends.size, -1, dtype=np.int64)
    for v in order:
        if ends[v]:
            root[v] = v
        elif inner[v]:
            root[v] = root[only[v]]
    return root


@kernel()
def indices(n: int, operands: Any, roots: Any, start: Any, products: Any) -> Any:
    """Give each product a row i, a sum's index t and a column j, so that products with a common element share them.

    Args:
        n: number of vertices.
        operands, roots: the two inputs of each product, and the output to which it is added.
        start, products: the products of each vertex.

    Returns:
        Rows of i, t and j; -1 for products of two elements of one side, as of x·y, y·z and z·x.
    """
    above = np.arange(2 * n)
    side, t = np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    queue, outputs = np.empty(n, dtype=np.int64), np.empty(roots.size, dtype=np.int64)
    for first in range(n):
        if side[first] >= 0 or start[first] == start[first + 1]:
            continue
        queue[0], side[first], t[first] = first, 0, first
        end, at = 1, 0
        while at < end:
            a = queue[at]
            at += 1
            for e in range(start[a], start[a + 1]):
                p = products[e]
                b = operands[p, 0] + operands[p, 1] - a
                if side[b] < 0:
                    queue[end], side[b], t[b] = b, 1 - side[a], first
                    end += 1
        most = first
        for a in queue[:end]:
            if start[a + 1] - start[a] > start[most + 1] - start[most]:
                most = a
        many = start[most + 1] - start[most]
        for e in range(many):
            outputs[e] = roots[products[start[most] + e]]
        turned = not _of_one(above, outputs[:many], 0) and _of_one(above, outputs[:many], n)
        change = side[most] ^ turned  # the element of most products is of A, unless its outputs have one column
        for a in queue[:end]:
            side[a] ^= change
            shift = n * side[a]
            known = _class(above, roots[products[start[a]]] + shift)
            for e in range(start[a] + 1, start[a + 1]):
                above[_class(above, roots[products[e]] + shift)] = known
    found = np.full((roots.size, 3), -1, dtype=np.int64)
    for p in range(roots.size):
        if side[operands[p, 0]] == side[operands[p, 1]]:
            continue
        found[p, 0] = _class(above, roots[p])
        found[p, 1] = t[operands[p, 0]]
        found[p, 2] = _class(above, roots[p] + n)
    return found
