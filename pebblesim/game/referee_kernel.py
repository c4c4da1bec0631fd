"""The referee's inner loop. It is a separate module so that numba is imported only when a game is played."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pebblesim.core.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Columns of a rule table, and entries of `counts`.
NEEDS, FORBIDS, SETS, CLEARS, PREDECESSORS = range(5)
READS, WRITES, RED, PEAK = range(4)


@kernel(allocates=False)
def play(
    moves: NDArray[np.int64],
    indptr: NDArray[Any],
    preds: NDArray[Any],
    state: NDArray[np.uint8],
    table: NDArray[np.uint8],
    M: int,
    counts: NDArray[np.int64],
    words: NDArray[np.int64] | None,
    takes_over: NDArray[np.int64] | None,
) -> int:
    """Play moves until one is illegal. Return the number of moves played, which is the index of the illegal one.

    Args:
        moves: packed moves, vertex * 4 + kind.
        indptr, preds: predecessors of the vertices, in CSR form.
        state: flags of each vertex; changed in place. Bit 0 must mean "holds a red pebble".
        table: one row per kind of move; the columns are flags (see the constants above).
        M: most red pebbles at any moment.
        counts: reads, writes, red pebbles now and at the peak, in words; changed in place.
        words: number of words of each vertex; None for one word each, which is compiled to a separate loop.
        takes_over: the vertex whose pebble each may take over, if its deletion is the next move; -1, or None, for none.
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
        size = np.int64(1) if words is None else words[vertex]
        after = red + size * (np.int64(new & 1) - np.int64(old & 1))
        settled = after
        if takes_over is not None and kind == 2 and i + 1 < moves.size:
            replaced = takes_over[vertex]
            if replaced >= 0 and moves[i + 1] == replaced * 4 + 3 and state[replaced] & 1:
                settled -= np.int64(1) if words is None else words[replaced]
        if settled > M:
            break
        red = after
        peak = max(peak, settled)
        state[vertex] = new
        reads += size * (kind == 0)
        writes += size * (kind == 1)
        played += 1
    counts[READS], counts[WRITES], counts[RED], counts[PEAK] = reads, writes, red, peak
    return played


@kernel(allocates=False)
def play_by_term(
    moves: NDArray[np.int64],
    indptr: NDArray[Any],
    preds: NDArray[Any],
    targets: NDArray[np.int64],
    state: NDArray[np.uint8],
    table: NDArray[np.uint8],
    M: int,
    counts: NDArray[np.int64],
    words: NDArray[np.int64],
    added: NDArray[np.uint8],
    left: NDArray[np.int64],
    complete: int,
) -> int:
    """Like `play`, but vertices take their terms one by one. The number of a compute is an edge, or edges + v for
    vertex v.

    Args:
        targets: the vertex that each edge leads to.
        words: number of words of each vertex.
        added: whether the term of each edge was added; changed in place.
        left: number of missing terms of each vertex; changed in place.
        complete: the flag of a vertex with all its terms.
    """
    edges, vertices = preds.size, state.size
    played = 0
    for i in range(moves.size):
        kind, number = moves[i] & 3, moves[i] >> 2
        if number < 0 or number >= (edges + vertices if kind == 2 else vertices):
            break
        v, done = number, np.uint8(0)
        if kind == 2:
            v = targets[number] if number < edges else number - edges
            terms = np.int64(indptr[v + 1]) - np.int64(indptr[v])
            if number < edges:
                wanted = table[kind, PREDECESSORS]
                if added[number] or state[preds[number]] & wanted != wanted:
                    break
                if left[v] < terms and not state[v] & 1:  # a partial sum must be in the cache
                    break
            elif terms > 0 or state[v] & complete:
                break
            if left[v] <= 1:
                done = np.uint8(complete)
        old = state[v]
        if old & (table[kind, NEEDS] | table[kind, FORBIDS]) != table[kind, NEEDS]:
            break
        new = (old & ~table[kind, CLEARS]) | table[kind, SETS] | done
        after = counts[RED] + words[v] * (np.int64(new & 1) - np.int64(old & 1))
        if after > M:
            break
        counts[RED] = after
        counts[PEAK] = max(counts[PEAK], after)
        counts[READS] += words[v] * (kind == 0)
        counts[WRITES] += words[v] * (kind == 1)
        state[v] = new
        if kind == 2 and number < edges:
            added[number] = 1
            left[v] -= 1
        played += 1
    return played
