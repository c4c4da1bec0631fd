"""The least number of values that leave the cache while trees of values are computed, also with recomputation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pebblesim.dags.trees_kernel import cut_off, grow

if TYPE_CHECKING:
    from pebblesim.dags.task_data import TaskData

MOST_VERTICES: Final = 5_000
"""Most vertices of a graph in which trees are searched, beside those of values with one use."""

MOST_PLACES: Final = 24
"""Most red pebbles for this search: a tree that does not fit has about 2^(M / 3) values or more."""

PRICES: Final = (0.03, 0.1, 0.3)
"""Prices that each use adds to that of a value, which is 1 without a use."""


def cuts(data: TaskData) -> int:
    """Return the least number of tree values that any game writes and reads again, by the best of several choices.

    A value that is computed and is no output may belong to the tree of one of its uses. A tree of which nothing is read
    needs as many places as its label says: v with k operands, without those elsewhere in its tree, at least k + 1, and
    for its tree operands by decreasing label (Sethi & Ullman 1970) the j-th label + j - 1, as each of the others holds
    a place meanwhile. From the leaves on, the operands with the largest labels are cut off until v fits.
    """
    start, operands = data.operands
    n, order = data.task.graph.vertices, data.task.topological.astype(np.int64)
    uses = np.bincount(operands, minlength=n)
    may_leave = ~data.is_input & ~data.is_output
    parent = np.full(n, -1)
    parent[operands] = np.repeat(np.arange(n), np.diff(start))
    best = int(cut_off(order, start, operands, np.where((uses == 1) & may_leave, parent, -1), data.M))
    if n <= MOST_VERTICES and data.M <= MOST_PLACES:
        for more in PRICES:
            parent = grow(order, start, operands, may_leave.astype(np.uint8), 1 + more * uses, data.M)
            best = max(best, int(cut_off(order, start, operands, parent, data.M)))
    return best
