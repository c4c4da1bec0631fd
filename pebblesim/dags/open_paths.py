"""Words that values of cones of a graph move, also with recomputation, by paths that are open at first.

docs/dags.md has the proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pebblesim.dags import open_paths_kernel as kernel
from pebblesim.dags.priced_trees_kernel import priced
from pebblesim.dags.trees import MOST_PLACES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pebblesim.dags.task_data import TaskData

    Ints = NDArray[np.int64]
    Sets = tuple[Ints, Ints, Ints]
    """Sets of values: the end of each behind a 0, their members, and how many of each are read at least."""

MOST_VERTICES: Final = 10_000
"""Most vertices to compute in a graph."""

CONE: Final = (16, 240)
"""Vertices of the largest cones, at least and at most."""

KEPT: Final = 4
"""Cones of each top that are packed."""

LINES_IN_A_SECOND: Final = 10**8
"""Lines that are compared in a second, about."""

GOLDEN: Final = (5**0.5 - 1) / 2
"""The fractional parts of its multiples lie evenly."""

STEP: Final = 0.05
"""How much the price of a value grows by a load of 1 while cones are packed."""

LOADS: Final = (200, 2_000)
"""The load of a value at which that ends, at least and at most: within some 15 or 2 % of the best packing."""

WORK: Final = 2 * 10**8
"""Members of sets that are looked at for this, about."""

PATIENCE: Final = 20
"""Rounds of new trees in which nothing more is proved, after which no more are looked for."""

CHEAPEST: Final = 1e-6
"""The least price of a value, as a share of the price for a value read: else trees would grow without need."""

TO_FIND: Final = 500
"""Work to find trees, for each vertex and label."""

WORK_IN_A_SECOND: Final = 10**9
"""Work in a second: members of sets that are looked at."""


def words(data: TaskData, seconds: float) -> int:
    """Return words beyond the compulsory ones that values of cones cost.

    A value that is read costs two words, or one if it is an output, as each is written before. So cones that have a
    value in common share these. While they do, their prices tell which trees would be better: those are added.

    Args:
        data: the graph and M.
        seconds: the work, in about the seconds that it takes; tops of cones that are left out count 0.
    """
    if seconds <= 0:
        return 0
    sets, best, since = found(data, seconds), 0, 0
    half, left = np.where(data.is_output, 2, 1), int(seconds * WORK_IN_A_SECOND)
    while len(sets[2]) and since < PATIENCE:
        taken, load, value = _packed(sets, half)
        best, since = max(best, value), 0 if value > best else since + 1
        left -= _highest(sets) * len(sets[1]) + TO_FIND * len(half) * data.M
        if left < 0 or data.M > MOST_PLACES:
            break
        price = half * np.exp(np.log1p(STEP * half) * (load - load.max()) / half)
        sets = _joined(_chosen(sets, taken > 0), _cheaper(data, sets, taken, price))
    return best


def _packed(sets: Sets, half: Ints) -> tuple[Ints, Ints, int]:
    """Return how often each set is taken, the loads of values, and the words that this proves."""
    ends, members, reads = sets
    taken = kernel.packed(*sets, half, STEP, _highest(sets))
    load = half * np.bincount(members, np.repeat(taken, np.diff(ends)), len(half)).astype(np.int64)
    return taken, load, -(-2 * int(taken @ reads) // int(load.max()))


def _highest(sets: Sets) -> int:
    """Return the load of a value at which sets have been packed: the looks at each member, about."""
    return int(np.clip(WORK // len(sets[1]), *LOADS))


def _cheaper(data: TaskData, sets: Sets, taken: Ints, price: Any) -> Sets:
    """Return trees whose values cost less for each that is read than those of half of the sets that are taken."""
    ends, members, reads = sets
    bar = float(np.median((np.add.reduceat(price[members], ends[:-1]) / reads)[taken > 0]))
    order = data.task.topological.astype(np.int64)
    place = np.zeros(len(price), dtype=np.int64)
    place[order] = np.arange(len(order))
    may_leave = (~data.is_input).astype(np.uint8)
    return priced(order, place, *data.operands, may_leave, price + CHEAPEST * bar, data.M, bar)


def _chosen(sets: Sets, chosen: Any) -> Sets:
    """Return some of the sets."""
    ends, members, reads = sets
    sizes = np.diff(ends)
    return np.append(0, np.cumsum(sizes[chosen])), members[np.repeat(chosen, sizes)], reads[chosen]


def _joined(*several: Sets) -> Sets:
    """Return sets of several kinds as one."""
    sizes, members, reads = zip(*((np.diff(ends), *rest) for ends, *rest in several), strict=True)
    return np.append(0, np.cumsum(np.concatenate(sizes))), np.concatenate(members), np.concatenate(reads)


def found(data: TaskData, seconds: float) -> Sets:
    """Return (ends, members, reads): sets of values, and how many different ones of each are read at least.

    Cones are found with all vertices, and once more without those of one operand: what follows them then has an operand
    from elsewhere.
    """
    start, operands = data.operands
    order = data.task.topological.astype(np.int64)
    place = np.zeros(len(start) - 1, dtype=np.int64)
    place[order] = np.arange(len(order))
    width, is_input = np.diff(start), data.is_input.astype(np.uint8)
    ways = [way for way in (order, order[width[order] != 1]) if len(way)]
    ways = ways[: 1 if len(ways) == 2 and len(ways[0]) == len(ways[1]) else 2]
    all_sets = [(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for vertices in ways:
        usable = np.zeros(len(place), dtype=np.uint8)
        usable[vertices] = 1
        tops = vertices[np.argsort(np.arange(len(vertices)) * GOLDEN % 1)]  # those that are left out lie anywhere
        work = int(seconds / len(ways) * LINES_IN_A_SECOND)
        most = int(np.clip((4 * work // len(tops)) ** 0.5, *CONE))
        all_sets.append(kernel.cones(tops, place, start, operands, usable, is_input, data.M, most, KEPT, work))
    return _joined(*all_sets)
