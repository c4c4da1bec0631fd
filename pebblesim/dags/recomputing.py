"""Orders that compute values again in the place of reading them.

In strips, what lies beside the beginning of a strip is computed again, along a band across the strips before it. For
graphs with few inputs, a vertex has a label: the places in which it is computed if nothing that leads to it is stored,
operands with large labels first. Where no label exceeds M less the inputs, every output is computed with no word moved
except the compulsory ones; it may take very many computations. What exceeds M, or some number of computations, is
stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from pebblesim.dags import recomputing_kernel as kernel
from pebblesim.dags.orders import Ints, Task
from pebblesim.dags.start_kernel import heights
from pebblesim.dags.starts import SMALL, turns

MOST_STEPS: Final = 20_000_000
"""Most computations of an order."""

STEPS_IN_A_SECOND: Final = 500_000
"""Computations that are listed and played in a second, about."""

WORK: Final = (float("inf"), 1e7, 1e5, 1e3)
"""Computations for one value above which it is stored, those with the fewest words first."""

MOST_PLACES: Final = 4_096
"""Most red pebbles: to find the value of the least worth, all that are in the cache are looked at."""


def in_strips(task: Task) -> Iterator[tuple[str, Ints]]:
    """Yield (name, vertices in order of computation): strips along one of two keys of a graph that is not large.

    No key falls along an edge. A strip is swept along slanted lines, so it needs at its beginning only values of a band
    as high as it is wide, which the band of the strips before it leads to. On a grid each strip but the first one so
    has fewer values to read, by its width.
    """
    order, first, last = task.topological.astype(np.int64), *turns(task)
    if len(order) > SMALL:
        return
    height = heights(task.graph.indptr.astype(np.int64), task.graph.preds.astype(np.int64), task.order)[0]
    for name, across, along in (("first", first[order], last[order]), ("last", last[order], first[order])):
        slanted = np.lexsort((-across, height[order], across + along))
        swept = np.lexsort((height[order], along, across))
        for width in range(max(1, task.M - 2), task.M):
            if int(across.max(initial=0)) // width * len(order) > MOST_STEPS:
                continue
            for high in range(max(1, task.M - 2), task.M):
                parts = [slanted[:0]]
                for begin in range(0, int(across.max(initial=0)) + 1, width):
                    parts.append(swept[(across[swept] < begin) & (along[swept] < high)])
                    parts.append(slanted[(across[slanted] >= begin) & (across[slanted] < begin + width)])
                again = np.concatenate(parts)
                if len(again) <= 3 * len(order):
                    yield f"in strips along {name} operands, computing their beginnings again", order[again]


def recomputing(task: Task, limit: int) -> Iterator[tuple[str, Ints]]:
    """Yield (name, vertices in order of computation) with recomputation; at most one order has no value stored.

    Args:
        task: a graph whose values are single words, and M.
        limit: the most computations of an order.
    """
    board, n = task.board, task.graph.vertices
    used = int(board.input[np.bincount(board.operands, minlength=n) > 0].sum())
    if task.M > MOST_PLACES or 2 * used > task.M:  # inputs that leave the cache would be read again and again
        return
    width = np.zeros(n, dtype=np.int64)
    width[board.target] = np.diff(board.start)
    start, operands = np.append(0, np.cumsum(width)), board.operands.astype(np.int64)
    for most in WORK:
        label, work, stored = kernel.plan(task.order, start, operands, board.input, task.M, most)
        worth = kernel.worths(task.topological, start, operands, board.output, work, stored)
        large_first = operands[np.lexsort((-label[operands], np.repeat(np.arange(n), width)))]
        order = kernel.steps(
            task.topological, start, large_first, board.input, board.output, stored, worth, task.M, limit
        )
        if len(order):
            yield "computing again" + (f" what takes up to {most:,.0f} steps" if most < float("inf") else ""), order
            if most == float("inf") and np.array_equal(stored, board.input):
                return
