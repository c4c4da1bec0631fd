"""Labels of trees of values, the values that are cut off, and a search for trees; see `pebblesim.dags.trees`."""

from __future__ import annotations

from typing import Any

import numpy as np

from pebblesim.core.jit import kernel, part

FAR: Any = 1e18
"""More than any price."""


@part()
def _places(labels: Any, count: int) -> int:
    """The largest of the first labels, which increase, each with the number of larger ones."""
    most = 0
    for k in range(count):
        most = max(most, labels[k] + count - 1 - k)
    return most


@part()
def _cuts(
    order: Any, start: Any, operands: Any, parent: Any, root: Any, labels: Any, M: int, held: Any
) -> int:  # fmt: skip
    """The values that are cut off until each vertex of an order fits into M places, those with large labels first."""
    total = 0
    for v in order:
        count, beside = 0, 1  # an operand elsewhere in the tree may be the very value that waits there
        for u in operands[start[v] : start[v + 1]]:
            if parent[u] == v:
                at = count
                while at > 0 and held[at - 1] > labels[u]:
                    held[at] = held[at - 1]
                    at -= 1
                held[at] = labels[u]
                count += 1
            beside += parent[u] == v or root[u] != root[v]
        while count and _places(held, count) > M:
            count -= 1
            total += 1
        labels[v] = max(beside, _places(held, count))
    return total


@kernel()
def cut_off(order: Any, start: Any, operands: Any, parent: Any, M: int) -> int:
    """The values that are cut off in all trees.

    Args:
        order: the vertices to compute, operands first.
        parent: for each vertex the use whose tree it belongs to; -1 if it belongs to none.
    """
    root = np.arange(parent.size)
    for v in order[::-1]:
        if parent[v] >= 0:
            root[v] = root[parent[v]]
    labels, held = np.zeros(parent.size, np.int64), np.zeros(parent.size, np.int64)
    return _cuts(order, start, operands, parent, root, labels, M, held)


@part()
def _cheapest(v: Any, label: int, start: Any, operands: Any, free: Any, price: Any, cost: Any, found: Any) -> int:
    """List the free operands of v with trees of a label in `found`, the cheapest first; return their number."""
    count = 0
    for u in operands[start[v] : start[v + 1]]:
        if free[u] and cost[u, label] < FAR:
            at, worth = count, cost[u, label] + price[u]
            while at > 0 and cost[found[at - 1], label] + price[found[at - 1]] > worth:
                found[at] = found[at - 1]
                at -= 1
            found[at] = u
            count += 1
    return count


@part()
def _costs(
    order: Any, start: Any, operands: Any, free: Any, price: Any, built: Any, M: int, cost: Any, width: Any, found: Any
) -> None:
    """For each vertex and label up to M + 1: the least price of the values of a tree with this label, and its operands.

    A label L needs j operands with labels L - j + 1, for some j. A tree that was built has M places already.
    """
    for v in order:
        for label in range(1, M + 2):
            cost[v, label], width[v, label] = FAR, 0
            if label <= start[v + 1] - start[v] + 1 or (built[v] and label <= M):
                cost[v, label] = 0.0
                continue
            for j in range(1, 2 if built[v] else min(start[v + 1] - start[v], label) + 1):
                below = M if built[v] else label - j + 1
                if below > M or _cheapest(v, below, start, operands, free, price, cost, found) < j:
                    continue
                total = 0.0
                for k in range(j):
                    total += cost[found[k], below] + price[found[k]]
                if total < cost[v, label]:
                    cost[v, label], width[v, label] = total, j


@part()
def _tree(
    t: Any, start: Any, operands: Any, free: Any, price: Any, built: Any, M: int, cost: Any, width: Any, found: Any,
    parent: Any, new: Any, stack: Any,
) -> int:  # fmt: skip
    """Hang the values of the cheapest tree of label M + 1 on t, in `new`; return their number, or -1 if some meet."""
    count, top, stack[0, 0], stack[0, 1] = 0, 0, t, M + 1
    while top >= 0:
        v, label = stack[top]
        top -= 1
        j = width[v, label]
        below = M if built[v] else label - j + 1
        if j == 0:
            continue
        many = _cheapest(v, below, start, operands, free, price, cost, found)
        taken = 0
        for k in range(many):
            u = found[k]
            if taken < j and parent[u] < 0 and u != t:
                parent[u], new[count] = v, u
                taken, count, top = taken + 1, count + 1, top + 1
                stack[top, 0], stack[top, 1] = u, below
        if taken < j:
            return -count - 1
    return count


@part()
def _recount(
    t: Any, start: Any, operands: Any, place: Any, parent: Any, root: Any, M: int, labels: Any, members: Any, held: Any
) -> int:
    """The values that are cut off in the tree of t."""
    size, k, members[0] = 1, 0, t
    while k < size:
        v = members[k]
        root[v] = t
        for u in operands[start[v] : start[v + 1]]:
            if parent[u] == v:
                members[size] = u
                size += 1
        k += 1
    for k in range(1, size):  # operands first
        v, at = members[k], k
        while at > 0 and place[members[at - 1]] > place[v]:
            members[at] = members[at - 1]
            at -= 1
        members[at] = v
    return _cuts(members[:size], start, operands, parent, root, labels, M, held)


@kernel()
def grow(order: Any, start: Any, operands: Any, may_leave: Any, price: Any, M: int) -> Any:
    """Choose trees of which many values must be cut off; return the parent of each vertex, or -1.

    The cheapest tree that does not fit into M places is built, again and again. One value of it is cut off; what
    remains has M places, and another tree may use it, or it is used for one more.

    Args:
        may_leave: the values that a tree may have below its root.
        price: of each value.
    """
    n = may_leave.size
    parent, root, place = np.full(n, -1, np.int64), np.arange(n), np.zeros(n, np.int64)
    place[order] = np.arange(order.size)
    cost, width = np.full((n, M + 2), FAR), np.zeros((n, M + 2), np.int64)
    found, new, members, labels = np.zeros((4, n + 1), np.int64)
    stack, cut = np.zeros((n + 1, 2), np.int64), np.zeros(n, np.int64)
    free, built, refused = may_leave.copy(), np.zeros(n, np.uint8), np.zeros(n, np.uint8)
    grown = True
    while grown:
        grown = False
        _costs(order, start, operands, free, price, built, M, cost, width, found)
        for t in order[np.argsort(cost[order, M + 1])]:
            if cost[t, M + 1] >= FAR or grown:
                break
            if refused[t] or parent[t] >= 0:
                continue
            count = _tree(t, start, operands, free, price, built, M, cost, width, found, parent, new, stack)
            before = cut[t]
            for k in range(count):
                before += cut[new[k]]
            now = _recount(t, start, operands, place, parent, root, M, labels, members, found) if count > 0 else 0
            if now > before:
                cut[t], built[t], grown = now, 1, True
                for k in range(count):
                    free[new[k]] = 0
            else:
                refused[t] = 1
                for k in range(count if count >= 0 else -count - 1):
                    parent[new[k]] = -1
    return parent
