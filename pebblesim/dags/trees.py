"""The least number of values that leave the cache while trees of values with one use each are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pebblesim.dags.trees_kernel import cut_off

if TYPE_CHECKING:
    from pebblesim.dags.task_data import TaskData


def cuts(data: TaskData) -> int:
    """Return the least number of tree values that any game without recomputation writes and reads again.

    A value that is computed, is no output and has one use belongs to the tree of that use. A tree of which no value
    leaves the cache needs as many places as its label says: v with k operands at least k + 1, and for its tree operands
    by decreasing label (Sethi & Ullman 1970) the j-th label + j - 1, as each of the others holds a place meanwhile.
    From the leaves on, the operands with the largest labels are cut off until v fits.
    """
    start, operands = data.operands
    uses = np.bincount(operands, minlength=data.task.graph.vertices)
    in_tree = (uses == 1) & ~data.is_input & ~data.is_output
    return int(cut_off(data.task.topological, start, operands, in_tree, data.M))
