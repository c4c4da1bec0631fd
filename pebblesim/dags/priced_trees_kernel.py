"""Compiled loops that find, for prices of values, trees with few of them for each that is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from pebblesim.core.jit import kernel, part
from pebblesim.dags.trees_kernel import FAR, _cheapest, _costs, _cuts


@part()
def _widest(t: Any, start: Any, operands: Any, may_leave: Any, price: Any, M: int, cost: Any, found: Any) -> Any:
    """The number of operands, and the label of each, for which the tree of t has the least price for a value read.

    Of operands of a label L up to M, M - L + 1 fit, and each more of them is read.
    """
    least, width, below = FAR, 0, 0
    for label in range(1, M + 1):
        total = 0.0
        for k in range(_cheapest(t, label, start, operands, may_leave, price, cost, found)):
            total += cost[found[k], label] + price[found[k]]
            reads = k + label - M
            if reads > 0 and total < least * reads:
                least, width, below = total / reads, k + 1, label
    return width, below


@part()
def _hung(
    t: Any, most: int, below: int, start: Any, operands: Any, may_leave: Any, price: Any, cost: Any, width: Any,
    found: Any, parent: Any, root: Any, stack: Any, members: Any,
) -> int:  # fmt: skip
    """List t and the values of its tree, each with its parent, and return their number; none hangs on two others."""
    size, top, many = 1, -1, most
    v, label, members[0] = t, below, t
    while True:
        count = _cheapest(v, label, start, operands, may_leave, price, cost, found) if many else 0
        for k in range(min(count, many)):
            u = found[k]
            if parent[u] < 0:
                parent[u], root[u], members[size] = v, t, u
                size, top = size + 1, top + 1
                stack[top, 0], stack[top, 1] = u, label
        if top < 0:
            return size
        v, own = stack[top]
        many, top = width[v, own], top - 1
        label = own - many + 1


@kernel()
def priced(
    order: Any, place: Any, start: Any, operands: Any, may_leave: Any, price: Any, M: int, bar: float
) -> Any:  # fmt: skip
    """Return (ends, members, reads): trees without their roots, of which so many values are read at least.

    Args:
        order: the vertices to compute, operands first.
        place: of each vertex in this order.
        may_leave: the values that a tree may have below its root.
        price: of each value.
        bar: the least price for a value read of a tree that is left out.
    """
    n = may_leave.size
    cost, width, built = np.full((n, M + 2), FAR), np.zeros((n, M + 2), np.int64), np.zeros(n, np.uint8)
    found, held, members, labels = np.zeros((4, n + 1), np.int64)
    parent, root, stack = np.full(n, -1, np.int64), np.arange(n), np.zeros((n + 1, 2), np.int64)
    _costs(order, start, operands, may_leave, price, built, M, cost, width, found)
    ends, kept, reads = [0], [0], [0]
    for t in order:
        most, below = _widest(t, start, operands, may_leave, price, M, cost, found)
        if not most:
            continue
        size = _hung(
            t, most, below, start, operands, may_leave, price, cost, width, found, parent, root, stack, members
        )
        tree = members[:size][np.argsort(place[members[:size]])]
        asked, total = _cuts(tree, start, operands, parent, root, labels, M, held), 0.0
        for u in members[1:size]:
            total += price[u]
        if asked > 0 and total < bar * asked:
            kept.extend(members[1:size])
            ends.append(len(kept) - 1)
            reads.append(asked)
        for u in tree:
            parent[u], root[u] = -1, u
    return np.array(ends), np.array(kept)[1:], np.array(reads)[1:]
