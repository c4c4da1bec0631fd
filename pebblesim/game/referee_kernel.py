"""The referee's inner loop. It is a separate module so that numba is imported only when a game is played."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pebblesim.core.jit import kernel
from pebblesim.game.rules import COMPLETE, COMPUTED

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Columns of a table of rules.
NEEDS, FORBIDS, SETS, CLEARS, PREDECESSORS, SOME = range(6)


@kernel(COMPLETE, COMPUTED, allocates=False)
def play(
    moves: NDArray[np.int64],
    shift: int,
    indptr: NDArray[Any],
    preds: NDArray[Any],
    state: NDArray[Any],
    table: NDArray[Any],
    places: NDArray[np.int64] | None,
    held: NDArray[np.int64],
    peak: NDArray[np.int64],
    limits: NDArray[np.int64],
    moved: NDArray[np.int64],
    words: NDArray[np.int64] | None,
    takes_over: NDArray[np.int64] | None,
    targets: Any,
    by_term: Any,
    added: Any,
    left: Any,
) -> int:
    """Play moves until one is illegal. Return the number of moves played, which is the index of the illegal one.

    The last four are None in a game without terms, `words` for one word each, `places` for a single place: these are
    compiled to loops of their own.

    Args:
        moves: packed moves, (number << shift) + row of the table. The number is that of a vertex; in a row by term it
            is that of an edge, or edges + v for a vertex v without predecessors.
        indptr, preds: predecessors of the vertices, in CSR form.
        state: flags of each vertex; changed in place.
        table: one row per kind of move, 1 << shift of them; the columns are flags (see the constants above).
        places: for each row, the bit of the pebbles that it places or removes; None if that is bit 0 for all rows.
        held, peak, limits: for each bit, words of pebbles now and at the peak, changed in place, and the most allowed.
        moved: words of the vertices that each row was played for; changed in place.
        words: number of words of each vertex.
        takes_over: the vertex whose pebble each may take over, if its deletion is the next move and the next row; -1
            for a vertex that takes over none.
        targets: the vertex that each edge leads to.
        by_term: whether each row adds a term.
        added: whether the term of each edge was added; changed in place.
        left: number of missing terms of each vertex; changed in place.
    """
    # Every index is unsigned: a negative vertex becomes a huge one, and numba need not handle negative indices.
    vertices, edges, one = np.uint64(state.size), np.uint64(preds.size), np.uint64(1)
    last = (1 << shift) - 1
    at, here = np.uint64(0), held[0]  # stored only when the next pebble is in another place
    played = 0
    for i in range(moves.size):
        row, vertex = np.uint64(moves[i] & last), np.uint64(moves[i] >> shift)
        edge = edges
        if by_term is not None and by_term[row]:
            if vertex >= edges + vertices:
                break
            edge, vertex = min(vertex, edges), np.uint64(targets[vertex]) if vertex < edges else vertex - edges
        if vertex >= vertices:
            break
        old = state[vertex]
        if old & (table[row, NEEDS] | table[row, FORBIDS]) != table[row, NEEDS]:
            break
        if table[row, SOME] and not old & table[row, SOME]:
            break
        place = np.uint64(0) if places is None else np.uint64(places[row])
        wanted = table[row, PREDECESSORS]
        new = (old & ~table[row, CLEARS]) | table[row, SETS]
        if by_term is not None:
            if edge < edges:
                if added[edge] or state[np.uint64(preds[edge])] & wanted != wanted:
                    break
                if old & np.uint64(COMPUTED) and not old >> place & one:  # a partial sum must be where its next term is
                    break
            elif by_term[row] and (left[vertex] > 0 or old & np.uint64(COMPLETE)):
                break
            if table[row, SETS] & np.uint64(COMPUTED) and left[vertex] <= np.int64(edge < edges):
                new |= np.uint64(COMPLETE)
        elif wanted:
            ready = True
            for e in range(np.uint64(indptr[vertex]), np.uint64(indptr[vertex + one])):
                if state[np.uint64(preds[e])] & wanted != wanted:
                    ready = False
                    break
            if not ready:
                break
        size = np.int64(1) if words is None else words[vertex]
        if places is not None and place != at:
            held[at] = here
            at, here = place, held[place]
        after = here + size * (np.int64(new >> place & one) - np.int64(old >> place & one))
        settled = after
        if takes_over is not None and wanted and i + 1 < moves.size:
            replaced = takes_over[vertex]
            if (
                replaced >= 0
                and moves[i + 1] == (replaced << shift) + np.int64(row) + 1
                and state[replaced] >> place & one
            ):
                settled -= np.int64(1) if words is None else words[replaced]
        if settled > peak[place]:
            if settled > limits[place]:
                break
            peak[place] = settled
        here = after
        moved[row] += size
        state[vertex] = new
        if by_term is not None and edge < edges:
            added[edge] = 1
            left[vertex] -= 1
        played += 1
    held[at] = here
    return played
