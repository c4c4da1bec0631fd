"""The search for the least I/O under `partial`, where the terms of a vertex are added one by one.

A step adds one term: it frees space, reads the operand and the sum if they are not red, adds the term, and writes an
output that is complete. A value that is evicted but still needed is written, unless memory has its current value. This
search is for small graphs; its states are Python integers.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from itertools import combinations, count, pairwise
from typing import NamedTuple

import numpy as np

from pebblesim.dags.interval import Interval
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, pack


class _State(NamedTuple):
    """Terms added so far, red vertices, and non-inputs whose value is in memory; each set is a bit mask."""

    added: int
    red: int
    blue: int


class _Terms:
    """The terms of a graph, and functions of the terms added so far."""

    def __init__(self, run: Interval) -> None:
        board, self.M = run.task.board, run.task.M
        n = run.task.graph.vertices
        self.labels = run.task.labels.tolist()
        self.target = board.target.tolist()
        self.operand = [
            int(board.operands[board.start[e]]) if board.start[e] < board.start[e + 1] else -1
            for e in range(len(self.target))
        ]
        self.into, self.out = [0] * n, [0] * n
        for e, (u, v) in enumerate(zip(self.operand, self.target, strict=True)):
            self.into[v] |= 1 << e
            if u >= 0:
                self.out[u] |= 1 << e
        self.inputs = sum(1 << v for v in range(n) if board.input[v])
        self.outputs = sum(1 << v for v in range(n) if board.output[v] and not board.input[v])
        self.vertices = [v for v in range(n) if self.into[v] or self.out[v]]
        self.all = (1 << len(self.target)) - 1

    def of_use(self, added: int) -> int:
        """Vertices with a value that is needed: begun and not complete, or an operand of a term not yet added."""
        useful = 0
        for v in self.vertices:
            begun = self.inputs >> v & 1 or self.into[v] & added
            if begun and (self.out[v] & ~added or self.into[v] & ~added):
                useful |= 1 << v
        return useful

    def to_come(self, state: _State, useful: int) -> int:
        """Bound the I/O to come: a write of each unwritten output, a read of each needed value that is not red."""
        return (self.outputs & ~self._finished(state)).bit_count() + (useful & ~state.red).bit_count()

    def _finished(self, state: _State) -> int:
        return sum(1 << v for v in self.vertices if not self.into[v] & ~state.added) & state.blue

    def next(self, state: _State) -> Iterator[tuple[int, int, _State]]:
        """Yield (words moved, term, state) for each way to add one more term."""
        free = self._free(state)
        for e in range(len(self.target)) if free < 0 else (free,):
            if state.added >> e & 1:
                continue
            u, v = self.operand[e], self.target[e]
            if u >= 0 and self.into[u] & ~state.added:
                continue
            added = state.added | 1 << e
            needs = (1 << u if u >= 0 else 0) | 1 << v
            begun = bool(self.into[v] & state.added)
            reads = needs & ~state.red & ~(0 if begun else 1 << v)
            words = reads.bit_count()
            blue = state.blue & ~(1 << v)
            if not self.into[v] & ~added and self.outputs >> v & 1:
                words, blue = words + 1, blue | 1 << v
            useful = self.of_use(added)
            # Values that are no longer needed are deleted before this step, for free.
            spare = [w for w in self.vertices if (state.red & ~needs & useful) >> w & 1]
            over = len(spare) + needs.bit_count() - self.M
            for gone in combinations(spare, max(0, over)):
                lost = sum(1 << w for w in gone)
                written = lost & ~(blue | self.inputs)
                red = (state.red | needs) & useful & ~lost
                yield words + written.bit_count(), e, _State(added, red, (blue | written) & (useful | self.outputs))

    def _free(self, state: _State) -> int:
        """Return a term to add at once: its operand and its sum are red, and memory has no copy of the sum."""
        for e, (u, v) in enumerate(zip(self.operand, self.target, strict=True)):
            if state.added >> e & 1 or u < 0 or self.into[u] & ~state.added:
                continue
            if state.red >> u & state.red >> v & ~state.blue >> v & 1:
                return e
        return -1


def search_partial(run: Interval, limit: int, end: float, on_progress: Callable[[], None]) -> None:
    """Narrow the interval of a run; `limit` is the largest number of states."""
    board = _Terms(run)
    first = _State(0, 0, 0)
    costs = {first: 0}
    came: dict[_State, tuple[_State, int]] = {}
    number = count()
    waiting = [(board.to_come(first, board.of_use(0)), next(number), first)]
    done: set[_State] = set()
    while waiting:
        rank, _, state = heapq.heappop(waiting)
        run.states = len(costs)
        run.raise_to(rank, f"search: every game begins in one of {run.states:,} states")
        if rank >= run.io:
            break
        if state in done:
            continue
        done.add(state)
        if state.added == board.all:
            run.io = run.bound = rank
            run.moves = _moves(board, state, came)
            run.proof = f"search: no state of less I/O is left, of {run.states:,}"
            return
        if len(done) % 256 == 0:
            on_progress()
        if time.monotonic() > end:
            return
        if len(costs) > limit:
            run.ended = "memory"
            return
        for words, e, new in board.next(state):
            total = costs[state] + words
            if total < costs.get(new, run.io):
                costs[new], came[new] = total, (state, e)
                f = total + board.to_come(new, board.of_use(new.added))
                if f < run.io:
                    heapq.heappush(waiting, (f, next(number), new))
                    done.discard(new)
    run.bound, run.proof = run.io, f"search: no game is better, of {run.states:,} states"


def _moves(terms: _Terms, last: _State, came: dict[_State, tuple[_State, int]]) -> np.ndarray:
    """Return the moves along the states from the first to this one."""
    path = [last]
    order = []
    while path[-1] in came:
        state, e = came[path[-1]]
        path.append(state)
        order.append(e)
    moves: list[tuple[int, int]] = []

    def members(mask: int) -> list[int]:
        return [v for v in range(mask.bit_length()) if mask >> v & 1]

    for (old, new), e in zip(pairwise(path[::-1]), order[::-1], strict=True):
        u, v = terms.operand[e], terms.target[e]
        needs = (1 << u if u >= 0 else 0) | 1 << v
        for w in members(old.red & ~new.red & ~needs):
            if new.blue & ~old.blue & ~terms.inputs & 1 << w:
                moves.append((WRITE, w))
            moves.append((DELETE, w))
        begun = bool(terms.into[v] & old.added)
        moves += [(READ, w) for w in members(needs & ~old.red & ~(0 if begun else 1 << v))]
        moves.append((COMPUTE, terms.labels[e]))
        if not terms.into[v] & ~new.added and terms.outputs >> v & 1:
            moves.append((WRITE, v))
        moves += [(DELETE, w) for w in members((old.red | needs) & ~new.red & needs)]
    return np.array([pack(kind, v) for kind, v in moves], dtype=np.int64)
