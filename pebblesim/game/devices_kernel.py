"""The inner loop of the referee of several devices, apart so that numba is imported only when a game is played."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pebblesim.core.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEEDS, FORBIDS, SETS, CLEARS, PREDECESSORS = range(5)
RECEIVE, SEND, COLLECT, BEGIN, ADD, DELETE = range(6)
RED, BLUE, COMPUTED, COMPLETE, OTHER = 1, 2, 4, 32, 128


@kernel(allocates=False)
def judge(
    moves: NDArray[np.int64],
    preds: NDArray[np.int64],
    targets: NDArray[np.int64],
    flags: NDArray[np.uint8],
    red: NDArray[np.int64],
    left: NDArray[np.int64],
    added: NDArray[np.uint8],
    table: NDArray[np.uint8],
    counts: NDArray[Any],
) -> int:
    """Play moves until one is illegal. Return the number of moves played, which is the index of the illegal one.

    Args:
        moves: rows of device, kind and vertex, or edge for ADD.
        preds, targets: the two ends of each edge.
        flags: flags of each vertex without RED and OTHER; changed in place.
        red: the devices with a red pebble on each vertex, as bits; changed in place.
        left: the terms that each vertex lacks; changed in place.
        added: whether the term of each edge was added; changed in place.
        table: one row per kind of move; the columns are flags (see the constants above).
        counts: words received, words of sums sent, red pebbles now and at the peak, for each device; changed in place.
    """
    vertices, edges, devices = flags.size, preds.size, counts.shape[1]
    for m in range(moves.shape[0]):
        p, kind, v = moves[m, 0], moves[m, 1], moves[m, 2]
        if p < 0 or p >= devices or kind < 0 or kind > 5 or v < 0 or v >= (edges if kind == ADD else vertices):
            return m
        mine = np.int64(1) << p
        edge = v
        if kind == ADD:
            u, v = preds[edge], targets[edge]
            wanted = table[kind, PREDECESSORS]
            if added[edge] or (flags[u] | (RED if red[u] & mine else 0)) & wanted != wanted:
                return m
        held = (red[v] & mine) != 0
        state = flags[v] | (RED if held else 0) | (OTHER if red[v] & ~mine else 0)
        if state & (table[kind, NEEDS] | table[kind, FORBIDS]) != table[kind, NEEDS]:
            return m
        gets, loses = table[kind, SETS] & RED, table[kind, CLEARS] & RED
        if kind in (ADD, BEGIN):  # what is begun needs its pebble, and is not begun again
            if flags[v] & COMPUTED and (kind == BEGIN or not held):
                return m
            flags[v] |= COMPUTED
        if kind == ADD:
            added[edge] = 1
            left[v] -= 1
        if kind in (ADD, BEGIN) and left[v] == 0:
            flags[v] |= COMPLETE
        if gets and not held:
            red[v] |= mine
            counts[2, p] += 1
            counts[3, p] = max(counts[3, p], counts[2, p])
        if loses:
            red[v] &= ~mine
            counts[2, p] -= 1
        flags[v] = (flags[v] & ~(table[kind, CLEARS] & BLUE)) | (table[kind, SETS] & BLUE)
        if kind == RECEIVE:
            counts[0, p] += 1
        if kind == SEND:
            counts[1, p] += 1
    return moves.shape[0]
