"""The search for a better order of computation, by simulated annealing: an order is judged by its I/O."""

from __future__ import annotations

from typing import Any

import numpy as np

from pebblesim.core.jit import kernel, part
from pebblesim.dags.order_kernel import IMPOSSIBLE, NEVER, ZERO, Board, Desk, backwards, forget, forwards, judge


@part()
def _depends(start: Any, operands: Any, mark: Any, step: int) -> bool:
    """Whether a step uses a marked vertex."""
    uses = False
    for e in range(start[step], start[step + 1]):
        uses |= mark[operands[e]] == 1
    return uses


@part()
def _copy(to: Any, at: int, source: Any, first: int, size: int) -> None:
    for i in range(size):
        to[at + i] = source[first + i]


@part()
def _swap(order: Any, a: int, b: int, c: int, room: Any) -> None:
    """Exchange the adjacent segments order[a:b] and order[b:c]."""
    _copy(room, ZERO, order, a, c - a)
    _copy(order, a, room, b - a, c - b)
    _copy(order, a + c - b, room, ZERO, b - a)


@part()
def _put(order: Any, size: int, at: int, step: int) -> None:
    """Insert a step into an order of this size."""
    for i in range(size, at, -1):
        order[i] = order[i - 1]
    order[at] = step


@part()
def _take(order: Any, size: int, at: int) -> None:
    """Remove a step from an order of this size."""
    for i in range(at, size - 1):
        order[i] = order[i + 1]


@part()
def _open(board: Board, desk: Desk, order: Any, lo: int, stop: int, factor: float, none: Any) -> Any:
    """Set the desk to the state at `lo` and to the next uses from `stop` on.

    Returns:
        The event of the first operand at `lo`, the total number of events, the number of held vertices, and the number
        of events left for inserted steps.
    """
    start, operands, target = board.start, board.operands, board.target
    desk.last[:] = NEVER
    desk.after[:] = NEVER
    end = backwards(board, desk, order, order.size, ZERO)
    forwards(board, desk, order, lo, ZERO, end, ZERO, factor, IMPOSSIBLE, none)
    first, held = ZERO, ZERO
    for i in range(lo):
        step = order[i]
        first += start[step + 1] - start[step] + 1
        for e in range(start[step], start[step + 1] + 1):
            v = operands[e] if e < start[step + 1] else target[step]
            if desk.red[v]:
                forget(desk, end, board.kind, v)
                desk.held[held] = v
                held += 1
    vertices = desk.blue.size
    _copy(desk.blue_before, ZERO, desk.blue, ZERO, vertices)
    _copy(desk.born_before, ZERO, desk.born, ZERO, vertices)
    slack = desk.events.size - end
    desk.last[:] = NEVER
    behind = first + slack
    for i in range(lo, stop):
        behind += start[order[i] + 1] - start[order[i]] + 1
    backwards(board, desk, order[stop:], order.size - stop, behind)
    _copy(desk.after, ZERO, desk.last, ZERO, vertices)
    return first, end + slack, held, slack


def anneal(
    board: Board,
    desk: Desk,
    order: Any,
    lo: int,
    hi: int,
    tail: int,
    factor: float,
    again: Any,
    hot: float,
    cold: float,
    tries: int,
    seed: int,
) -> Any:
    """Improve a segment order[lo:hi] by simulated annealing, and keep the best order found.

    A change exchanges two adjacent runs of steps, if neither depends on the other; or inserts a step again before a
    step that uses its value; or removes a step. A change is judged by the I/O of the segment and the `tail` steps after
    it.

    Args:
        again: for each vertex, the step that may recompute it, or -1.
        hot, cold: temperatures at the start and at the end, in words.
        tries: number of changes to try.

    Returns:
        The new order, and the expected decrease of its I/O.
    """
    stop, spare = min(order.size, hi + tail), desk.events.size - order.size
    spare -= int((board.start[order + 1] - board.start[order]).sum())
    room, current, best = np.empty((3, stop - lo + spare), dtype=order.dtype)
    blue, born = desk.blue.copy(), desk.born.copy()
    size, gain = _anneal(
        board, desk, order, lo, hi, stop, factor, again, hot, cold, tries, seed, room, current, best
    )  # fmt: skip
    desk.blue[:] = desk.blue_before[:] = blue
    desk.born[:] = desk.born_before[:] = born
    return np.concatenate([order[:lo], best[:size], order[stop:]]), gain


@kernel(allocates=False)
def _anneal(
    board: Board,
    desk: Desk,
    order: Any,
    lo: int,
    hi: int,
    stop: int,
    factor: float,
    again: Any,
    hot: float,
    cold: float,
    tries: int,
    seed: int,
    room: Any,
    current: Any,
    best: Any,
) -> Any:
    """Put the best order found of a segment order[lo:stop] into `best`; return its size and the decrease of its I/O.

    Only steps before `hi` change; `room` and `current` are work space, and the flags of the desk are left as they are
    after the last try. Other arguments: see `anneal`.
    """
    np.random.seed(seed)
    start, operands, target = board.start, board.operands, board.target
    none = again[:0]
    first, end, held, slack = _open(board, desk, order, lo, stop, factor, none)
    size, movable, spare = stop - lo, hi - lo, slack
    _copy(current, ZERO, order, lo, size)
    _copy(best, ZERO, order, lo, size)
    best_size, start_io = size, np.int64(-1)
    io = best_io = IMPOSSIBLE
    cooling = (cold / hot) ** (1.0 / max(1, tries))
    temperature = hot
    mark = desk.mark
    for _ in range(tries):
        temperature *= cooling
        draw = np.random.random()
        kind, a, b, c, step = 0, 0, 0, 0, 0
        if start_io < 0:
            pass  # the original order is judged first
        elif again.size and draw < 0.25:
            at = np.random.randint(movable)
            if draw < 0.125:  # insert a step again
                kind = 1
                step = current[at]
                k = start[step + 1] - start[step]
                if k == 0:
                    continue
                v = operands[start[step] + np.random.randint(k)]
                step = again[v]
                if step < 0:
                    continue
                cost = start[step + 1] - start[step] + 1
                if spare < cost:
                    continue
                _put(current, size, at, step)
                spare -= cost
                size, movable, a = size + 1, movable + 1, at
            else:  # remove a step; if its value is missing, the order is judged impossible
                kind = 2
                if movable < 2:
                    continue
                step = current[at]
                earlier = False
                for i in range(at):
                    if current[i] == step:
                        earlier = True
                if not earlier:
                    continue
                spare += start[step + 1] - start[step] + 1
                _take(current, size, at)
                size, movable, a = size - 1, movable - 1, at
        else:
            if movable < 2:
                continue
            length = 1
            while length < 64 and np.random.random() < 0.5:
                length *= 2
            length = min(1 + np.random.randint(length), movable - 1)
            reach = 2
            while reach < movable and np.random.random() < 0.75:
                reach *= 2
            if draw < 0.6:  # move a run forward
                b = 1 + np.random.randint(movable - length)
                c = b + length
                for i in range(b, c):
                    for e in range(start[current[i]], start[current[i] + 1]):
                        mark[operands[e]] = 1
                a = b
                while a > 0 and b - a < reach and not mark[target[current[a - 1]]]:
                    a -= 1
                for i in range(b, c):
                    for e in range(start[current[i]], start[current[i] + 1]):
                        mark[operands[e]] = 0
                if a == b:
                    continue
                a += np.random.randint(b - a)
            else:  # move a run back
                a = np.random.randint(movable - length)
                b = a + length
                for i in range(a, b):
                    mark[target[current[i]]] = 1
                c = b
                while c < movable and c - b < reach and not _depends(start, operands, mark, current[c]):
                    c += 1
                for i in range(a, b):
                    mark[target[current[i]]] = 0
                if c == b:
                    continue
                c -= np.random.randint(c - b)
            _swap(current, a, b, c, room)
        limit = io - temperature * np.log(np.random.random() + 1e-300)
        new, _ = judge(board, desk, current, size, first, end, held, factor, np.int64(limit) + 1, none)
        if new <= limit:
            io = new
            if start_io < 0:
                start_io = io
            if io < best_io:
                _copy(best, ZERO, current, ZERO, size)
                best_size, best_io = size, io
        elif kind == 0:
            _swap(current, a, a + c - b, c, room)
        elif kind == 1:
            _take(current, size, a)
            size, movable = size - 1, movable - 1
            spare += start[step + 1] - start[step] + 1
        else:
            _put(current, size, a, step)
            size, movable = size + 1, movable + 1
            spare -= start[step + 1] - start[step] + 1
    return best_size, start_io - best_io
