"""Words that values of cones of a graph move, also with recomputation, by paths that are open at first.

docs/dags.md has the proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pebblesim.dags import open_paths_kernel as kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pebblesim.dags.task_data import TaskData

    Ints = NDArray[np.int64]

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


def words(data: TaskData, seconds: float) -> int:
    """Return words beyond the compulsory ones that values of cones cost.

    A value that is read costs two words, or one if it is an output, as each is written before. So cones that have a
    value in common share these.

    Args:
        data: the graph and M.
        seconds: the work, in about the seconds that it takes; tops of cones that are left out count 0.
    """
    if seconds <= 0:
        return 0
    ends, members, reads = found(data, seconds)
    if not len(reads):
        return 0
    half = np.where(data.is_output, 2, 1)
    taken = kernel.packed(ends, members, reads, half, STEP, int(np.clip(WORK // len(members), *LOADS)))
    load = half * np.bincount(members, np.repeat(taken, np.diff(ends)), len(half)).astype(np.int64)
    return -(-2 * int(taken @ reads) // int(load.max()))


def found(data: TaskData, seconds: float) -> tuple[Ints, Ints, Ints]:
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
    ends, members, reads = [np.zeros(1, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for vertices in ways:
        usable = np.zeros(len(place), dtype=np.uint8)
        usable[vertices] = 1
        tops = vertices[np.argsort(np.arange(len(vertices)) * GOLDEN % 1)]  # those that are left out lie anywhere
        work = int(seconds / len(ways) * LINES_IN_A_SECOND)
        most = int(np.clip((4 * work // len(tops)) ** 0.5, *CONE))
        sets = kernel.cones(tops, place, start, operands, usable, is_input, data.M, most, KEPT, work)
        ends.append(sum(map(len, members)) + sets[0][1:])
        members.append(sets[1])
        reads.append(sets[2])
    return np.concatenate(ends), np.concatenate(members), np.concatenate(reads)
