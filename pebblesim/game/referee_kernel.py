"""The referee's inner loop, apart so that numba is imported only when a game is played."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Columns of a rule table, and entries of `counts`.
NEEDS, FORBIDS, SETS, CLEARS, PREDECESSORS = range(5)
READS, WRITES, RED, PEAK = range(4)


@njit(cache=True, nogil=True)
def play(
    moves: NDArray[np.int64],
    indptr: NDArray[Any],
    preds: NDArray[Any],
    state: NDArray[np.uint8],
    table: NDArray[np.uint8],
    M: int,
    counts: NDArray[np.int64],
) -> int:
    """Play moves until one is illegal; return how many were played, so the position of the illegal one.

    Args:
        moves: packed moves, vertex * 4 + kind.
        indptr, preds: predecessors of the vertices, in CSR form.
        state: flags of each vertex; changed in place. Bit 0 must mean "holds a red pebble".
        table: one row per kind of move; the columns are flags (see the constants above).
        M: most red pebbles at any moment.
        counts: reads, writes, red pebbles now and at the peak; changed in place.
    """
    # Every index is unsigned: a negative vertex becomes a huge one, and numba need not handle negative indices.
    vertices, one = np.uint64(state.size), np.uint64(1)
    reads, writes, red, peak = counts[READS], counts[WRITES], counts[RED], counts[PEAK]
    played = 0
    for i in range(moves.size):
        move = moves[i]
        kind, vertex = np.uint64(move & 3), np.uint64(move >> 2)
        if vertex >= vertices:
            break
        old = state[vertex]
        if old & (table[kind, NEEDS] | table[kind, FORBIDS]) != table[kind, NEEDS]:
            break
        wanted = table[kind, PREDECESSORS]
        ready = True
        if wanted:
            for e in range(np.uint64(indptr[vertex]), np.uint64(indptr[vertex + one])):
                if state[np.uint64(preds[e])] & wanted != wanted:
                    ready = False
                    break
        if not ready:
            break
        new = (old & ~table[kind, CLEARS]) | table[kind, SETS]
        after = red + np.int64(new & 1) - np.int64(old & 1)
        if after > M:
            break
        red = after
        peak = max(peak, red)
        state[vertex] = new
        reads += kind == 0
        writes += kind == 1
        played += 1
    counts[READS], counts[WRITES], counts[RED], counts[PEAK] = reads, writes, red, peak
    return played
