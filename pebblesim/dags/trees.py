"""The least number of values that leave the cache while trees of values with one use each are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pebblesim.dags.task_data import TaskData


def cuts(data: TaskData) -> int:
    """Return the least number of tree values that any game without recomputation writes and reads again.

    A value that is computed, is no output and has one use belongs to the tree of that use. A tree of which no value
    leaves the cache needs as many places as its label says: v with k operands at least k + 1, and for its tree operands
    by decreasing label (Sethi & Ullman 1970) the j-th label + j - 1, as each of the others holds a place meanwhile.
    From the leaves on, the operands with the largest labels are cut off until v fits.
    """
    uses = np.bincount(data.operands[1], minlength=data.task.graph.vertices)
    in_tree = (uses == 1) & ~data.is_input & ~data.is_output
    labels: dict[int, int] = {}
    total = 0
    for v in data.task.topological.tolist():
        held = sorted(labels[u] for u in data.before[v] if in_tree[u])
        while held and max(label + k for k, label in enumerate(reversed(held))) > data.M:
            held.pop()
            total += 1
        labels[v] = max([len(data.before[v]) + 1, *(label + k for k, label in enumerate(reversed(held)))])
    return total
