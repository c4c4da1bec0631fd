"""The I/O of an order of computation, and the game that has it.

A game is made from an order of steps. A *step* has operands and a target: under most rules it computes a vertex from
its predecessors; under `partial` it adds one term to a sum. The next use decides which values stay in the cache between
steps: the value with the latest next use is evicted first. A value that must be written before eviction counts as used
sooner (Belady 1966, with the cost of a write-back). A step may be in an order more than once: that is recomputation.

Times are *events*: each operand of each step, then its target, in order. A set of events is a tree of 64-bit words, so
finding the latest event is fast for any M.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pebblesim.core.jit import kernel, part

NEVER: Any = np.int64(2**62)
IMPOSSIBLE: Any = np.int64(2**60)
ZERO: Any = np.int64(0)
"""A 0 for calls: numba treats a literal 0 as a separate type, and compiles the function again."""

PLAIN, REPLACE, PARTIAL = range(3)  # rules for a target and a write
READ, WRITE, COMPUTE, DELETE = range(4)

_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_PLACE = np.zeros(64, dtype=np.int64)
for _i in range(64):
    _PLACE[(((1 << _i) * 0x03F79D71B4CB0A89) & (2**64 - 1)) >> 58] = _i


class Board(NamedTuple):
    """Steps on a graph: operands in CSR form and one target each; words, inputs and outputs of the vertices."""

    start: Any  # of the operands of each step
    operands: Any
    target: Any
    words: Any
    input: Any
    output: Any
    M: int
    kind: int


class Desk(NamedTuple):
    """Work space; between calls nothing is red and the sets of events are empty."""

    red: Any  # of each vertex
    blue: Any  # memory has a copy with the current value
    born: Any  # under `partial`: at least one term was added
    at: Any  # the next event of a red vertex
    last: Any  # while going backwards: the next event
    after: Any  # the next event after the current segment
    events: Any  # for each event of the segment: the next event of the same vertex
    vertex: Any  # for each event of the segment: its vertex
    clean: Any  # sets of events: red vertices that can be evicted without a write
    dirty: Any  # red vertices that must be written before eviction
    levels: Any  # where each level of a set starts
    undo: Any  # vertices with changed flags
    held: Any  # red vertices at the start of the segment
    blue_before: Any  # the flags at the start of the segment
    born_before: Any
    mark: Any  # for each vertex, a temporary mark; all 0 between uses


@part()
def _first(word: Any) -> Any:
    """Return the position of the lowest 1 bit of a nonzero word."""
    low = word & (~word + np.uint64(1))
    return _PLACE[np.int64((low * _BRUIJN) >> np.uint64(58))]


@part()
def _add(bits: Any, levels: Any, number: Any) -> None:
    for level in range(levels.size - 1):
        place = levels[level] + (number >> 6)
        before = bits[place]
        bits[place] = before | (np.uint64(1) << np.uint64(number & 63))
        if before != np.uint64(0):
            return
        number >>= 6


@part()
def _drop(bits: Any, levels: Any, number: Any) -> None:
    for level in range(levels.size - 1):
        place = levels[level] + (number >> 6)
        bits[place] &= ~(np.uint64(1) << np.uint64(number & 63))
        if bits[place] != np.uint64(0):
            return
        number >>= 6


@part()
def _least(bits: Any, levels: Any) -> Any:
    """Return the least number in a set; -1 if it is empty."""
    level = levels.size - 2
    if bits[levels[level]] == np.uint64(0):
        return np.int64(-1)
    number = np.int64(0)
    while level >= 0:
        number = (number << 6) + _first(bits[levels[level] + number])
        level -= 1
    return number


@part()
def backwards(board: Board, desk: Desk, order: Any, size: int, first: int) -> int:
    """For each event of a segment of an order, find the next event of the same vertex; return the event after the
    segment.

    `desk.last` holds the first event of each vertex after the segment; then the first event from the segment's start
    on. A step whose value is not needed is marked by -2.
    """
    start, operands, target = board.start, board.operands, board.target
    last, events, vertex = desk.last, desk.events, desk.vertex
    end = first
    for i in range(size):
        end += start[order[i] + 1] - start[order[i]] + 1
    event = end
    for i in range(size - 1, -1, -1):
        step = order[i]
        v = target[step]
        event -= 1
        vertex[event] = v
        events[event] = last[v]
        if board.kind == PARTIAL:
            last[v] = event
        elif last[v] == NEVER and not board.output[v]:
            events[event] = -2
            event -= start[step + 1] - start[step]
            continue
        else:
            last[v] = NEVER
        for e in range(start[step + 1] - 1, start[step] - 1, -1):
            u = operands[e]
            event -= 1
            vertex[event] = u
            events[event] = last[u]
            last[u] = event
    return end


@part()
def forwards(
    board: Board,
    desk: Desk,
    order: Any,
    size: int,
    first: int,
    events_in_all: int,
    held: int,
    factor: float,
    io_limit: Any,
    moves: Any,
) -> Any:
    """Return (I/O, moves, changes) of a segment with linked events, starting with `held` red vertices in `desk.held`.

    Afterwards `desk.undo` lists each vertex whose blue or born flag changed; red vertices stay red. I/O is `IMPOSSIBLE`
    if a value is missing, M is too small, or the I/O exceeds `io_limit`. Moves are stored if there is space.
    """
    start, operands, target, words = board.start, board.operands, board.target, board.words
    red, blue, born, at, events = desk.red, desk.blue, desk.born, desk.at, desk.events
    clean, dirty, levels = desk.clean, desk.dirty, desk.levels
    keep = moves.size > 0
    top = events_in_all - 1
    io, used, count, changed, event = ZERO, ZERO, ZERO, ZERO, first
    for k in range(held):
        v = desk.held[k]
        red[v] = 1
        used += words[v]
        at[v] = desk.last[v]
        if at[v] != NEVER:
            _add(clean if blue[v] and board.kind != REPLACE else dirty, levels, top - at[v])
    for i in range(size):
        step = order[i]
        v = target[step]
        a, b = start[step], start[step + 1]
        here, event = event, event + b - a + 1
        if events[event - 1] == -2:
            continue
        need = np.int64(0)
        for e in range(a, b + 1):
            u = operands[e] if e < b else v
            if not red[u]:
                need += words[u]
            elif at[u] != NEVER:
                _drop(clean if blue[u] and board.kind != REPLACE else dirty, levels, top - at[u])
        while used + need > board.M:
            c, d = _least(clean, levels), _least(dirty, levels)
            if c < 0 and d < 0:
                return IMPOSSIBLE, count, changed
            write = c < 0 or (d >= 0 and top - d - here > factor * (top - c - here))
            if write:
                gone = desk.vertex[top - d]
                _drop(dirty, levels, d)
                io += words[gone]
                blue[gone] = 1
                desk.undo[changed] = gone
                changed += 1
            else:
                gone = desk.vertex[top - c]
                _drop(clean, levels, c)
            red[gone] = 0
            used -= words[gone]
            if keep:
                if write:
                    moves[count] = gone * 4 + WRITE
                    count += 1
                if not write or board.kind != REPLACE:
                    moves[count] = gone * 4 + DELETE
                    count += 1
        for e in range(a, b + 1):
            u = operands[e] if e < b else v
            if red[u] or (e == b and not born[u]):
                continue
            if not blue[u]:
                return IMPOSSIBLE, count, changed
            io += words[u]
            used += words[u]
            red[u] = 1
            if board.kind == REPLACE:
                blue[u] = 0
                desk.undo[changed] = u
                changed += 1
            if keep:
                moves[count] = u * 4 + READ
                count += 1
        if not red[v]:
            red[v] = 1
            used += words[v]
        if keep:
            moves[count] = (step if board.kind == PARTIAL else v) * 4 + COMPUTE
            count += 1
        if board.kind == PARTIAL:
            if not born[v] or blue[v]:
                born[v], blue[v] = 1, 0
                desk.undo[changed] = v
                changed += 1
        elif board.kind == PLAIN and board.output[v] and not blue[v]:
            io += words[v]
            blue[v] = 1
            desk.undo[changed] = v
            changed += 1
            if keep:
                moves[count] = v * 4 + WRITE
                count += 1
        for e in range(a, b + 1):
            u = operands[e] if e < b else v
            at[u] = events[here + e - a]
            if at[u] != NEVER:
                _add(clean if blue[u] and board.kind != REPLACE else dirty, levels, top - at[u])
                continue
            used -= words[u]
            red[u] = 0
            written = board.output[u] and not blue[u]
            if written:
                io += words[u]
                blue[u] = 1
                desk.undo[changed] = u
                changed += 1
                if keep:
                    moves[count] = u * 4 + WRITE
                    count += 1
            if keep and not (written and board.kind == REPLACE):
                moves[count] = u * 4 + DELETE
                count += 1
        if io > io_limit:
            return IMPOSSIBLE, count, changed
    return io, count, changed


@part()
def clear(board: Board, desk: Desk, order: Any, size: int, events_in_all: int, held: int, changed: int) -> Any:
    """Restore the desk to its state before a segment; return the I/O that is certain after the segment.

    This is a read of each value of the segment that is needed later and not red.
    """
    start, operands, target, words = board.start, board.operands, board.target, board.words
    red, last, after = desk.red, desk.last, desk.after
    cost = np.int64(0)
    for k in range(held):
        v = desk.held[k]
        if last[v] == after[v] and after[v] != NEVER and _owes(board, desk, v):
            cost += words[v]
    for i in range(size):
        a, b = start[order[i]], start[order[i] + 1]
        for e in range(a, b + 1):
            v = operands[e] if e < b else target[order[i]]
            if last[v] != after[v]:
                if after[v] != NEVER and _owes(board, desk, v):
                    cost += words[v]
                last[v] = after[v]
            if red[v]:
                forget(desk, events_in_all, board.kind, v)
    for k in range(held):
        if red[desk.held[k]]:
            forget(desk, events_in_all, board.kind, desk.held[k])
    for k in range(changed):
        v = desk.undo[k]
        desk.blue[v], desk.born[v] = desk.blue_before[v], desk.born_before[v]
    return cost


@part()
def _owes(board: Board, desk: Desk, v: int) -> bool:
    return not desk.red[v] or (board.kind == PARTIAL and board.output[v] and not desk.blue[v])


@part()
def forget(desk: Desk, events_in_all: int, kind: int, v: int) -> None:
    desk.red[v] = 0
    if desk.at[v] != NEVER:
        _drop(
            desk.clean if desk.blue[v] and kind != REPLACE else desk.dirty, desk.levels, events_in_all - 1 - desk.at[v]
        )


@kernel(allocates=False)
def judge(
    board: Board,
    desk: Desk,
    order: Any,
    size: int,
    first: int,
    events_in_all: int,
    held: int,
    factor: float,
    io_limit: Any,
    moves: Any,
) -> Any:
    """Return (I/O including the certain I/O after it, moves) of a segment; the desk does not change.

    Arguments: see `forwards`.
    """
    backwards(board, desk, order, size, first)
    io, count, changed = forwards(board, desk, order, size, first, events_in_all, held, factor, io_limit, moves)
    return io + clear(board, desk, order, size, events_in_all, held, changed), count


def play(board: Board, desk: Desk, order: Any, factors: Any, moves: Any) -> Any:
    """Return (least I/O of a whole order over the factors, index of its factor, number of moves of the last one)."""
    desk.last.fill(NEVER)
    desk.after.fill(NEVER)
    best, which, count = IMPOSSIBLE, 0, 0
    for k, factor in enumerate(factors):
        io, count = judge(board, desk, order, order.size, 0, desk.events.size, 0, factor, IMPOSSIBLE, moves)
        if io < best:
            best, which = io, k
    return best, which, count


@kernel()
def leading(indptr: Any, preds: Any, order: Any, is_input: Any, is_output: Any) -> Any:
    """Mark the vertices that must be computed: outputs that are not inputs, and all their ancestors."""
    needed = np.zeros(indptr.size - 1, dtype=np.uint8)
    for i in range(order.size - 1, -1, -1):
        v = order[i]
        if is_input[v]:
            needed[v] = 0
            continue
        if is_output[v]:
            needed[v] = 1
        if needed[v]:
            for e in range(indptr[v], indptr[v + 1]):
                needed[preds[e]] = 1
    return needed
