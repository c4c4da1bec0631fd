"""The board of a game: where pebbles stand, in which places, and the one loop that moves them.

A place is a memory, and a pebble in it is a bit of its vertex: `RED` and `BLUE` in the game of two levels, further bits
where there are more memories. A kind of move at a place is a row of a table: a rule, and the place whose pebbles it
counts. So a game of two levels, of a tree of memories, or of many devices is a table, and nothing else. One word is one
pebble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import PebblesimError, UsageError
from pebblesim.game.rules import BLUE, COMPLETE, COMPUTED, RED, SUM, Graph, Rule

RED_BIT: Final = RED.bit_length() - 1

BITS: Final = (RED_BIT, *range(SUM.bit_length(), 64))
"""The bits of places with a limit: that of `RED`, and those behind the flags."""


class Row(NamedTuple):
    """A kind of move at a place.

    Attributes:
        name: the move in words.
        rule: what it needs and changes.
        bit: the bit of the pebbles that it places or removes.
        some: flags of which the vertex needs at least one; 0 if it needs no such flag.
        by_term: whether it adds one term: its number is then that of an edge, or edges + v for a vertex v without
            predecessors, and vertices are complete when all their terms were added.
        names: the flags, or groups of flags, that it looks at, each with its name, for messages.
        full: that there is no room, in words.
    """

    name: str
    rule: Rule
    bit: int = 0
    some: int = 0
    by_term: bool = False
    names: Mapping[int, str] = MappingProxyType({})
    full: str = ""


class IllegalMove(PebblesimError):
    """A move on a machine is illegal; the message has its number, the place, the vertex and the reason."""


class Board:
    """Pebbles on a graph.

    Args:
        graph: the graph.
        rows: the kinds of moves. The deletion at a place is the next row after the compute there.
        start: flags of the inputs at the start, one number or one for each.
        limits: most words of pebbles for each bit of a place; a missing one has no limit.

    Attributes:
        state: flags of each vertex.
        held, peak: words of pebbles at each bit of a place, now and at the peak.
        moved: words of the vertices that each row was played for.
        added, left: in a game by terms, whether the term of each edge was added, and the terms that each vertex lacks.

    Raises:
        UsageError: the graph's arrays are inconsistent.
    """

    def __init__(self, graph: Graph, rows: Sequence[Row], start: Any, limits: Mapping[int, int]) -> None:
        self.graph, self.rows = graph, rows
        self.indptr, self.preds, inputs, self.outputs = _checked(graph)
        self.shift = (len(rows) - 1).bit_length()
        kind: Any = np.uint8 if all(row.bit < 8 for row in rows) else np.uint64
        more = 2 ** (8 * kind().itemsize) - 1  # no vertex has all flags, so rows beyond the last are never legal
        self._table = np.full((1 << self.shift, len(Rule._fields) + 1), more, kind)
        self._table[: len(rows)] = np.array([(*row.rule, row.some) for row in rows], kind)
        self._bits = None
        if any(row.bit for row in rows):
            self._bits = np.zeros(1 << self.shift, np.int64)
            self._bits[: len(rows)] = [row.bit for row in rows]
        self.state = np.zeros(graph.vertices, kind)
        self.state[inputs] = start
        weights, takes_over = (getattr(graph, name, None) for name in ("weights", "takes_over"))
        self._words = None if weights is None else readonly(weights)
        everything = graph.vertices if self._words is None else int(self._words.sum())
        self.held, self.peak = (np.zeros(8 * kind().itemsize, np.int64) for _ in range(2))
        self._limits = np.full(self.held.size, everything)
        for place, most in limits.items():
            self._limits[place] = min(most, everything)  # it may be larger than any machine integer
        for place in {row.bit for row in rows}:
            here = self.state >> kind(place) & kind(1) != 0
            self.held[place] = self.peak[place] = int(here.sum() if self._words is None else self._words[here].sum())
        self.moved = np.zeros(1 << self.shift, np.int64)
        self.by_term = any(row.by_term for row in rows)
        self.takes_over = None if takes_over is None or self.by_term else readonly(takes_over)
        self._terms: tuple[Any, ...] = (None,) * 4
        if self.by_term:
            ends = self.indptr.astype(np.int64)
            self.left = ends[1:] - ends[:-1]
            self.targets = np.repeat(np.arange(graph.vertices), self.left)
            self.added = np.zeros(self.preds.size, np.uint8)
            by_term = np.zeros(1 << self.shift, np.uint8)
            by_term[: len(rows)] = [row.by_term for row in rows]
            self._terms = self.targets, by_term, self.added, self.left

    def play(self, chunk: NDArray[Any]) -> int:
        """Play packed moves until one is illegal. Return the number of legal ones."""
        from pebblesim.game.referee_kernel import play

        return play(
            readonly(chunk), self.shift, self.indptr, self.preds, self.state, self._table, self._bits, self.held,
            self.peak, self._limits, self.moved, self._words, self.takes_over, *self._terms,
        )  # fmt: skip

    def judge(self, moves: NDArray[Any]) -> None:
        """Play a whole game of packed moves.

        Raises:
            IllegalMove: at the first illegal move; the message says why it is.
        """
        played = self.play(moves)
        if played < moves.size:
            raise IllegalMove(f"move {played + 1}: {self.why(int(moves[played]))}")

    def missing(self) -> NDArray[Any]:
        """The outputs that are not in memory, or there without all their terms."""
        needed = self.state.dtype.type(BLUE | COMPLETE if self.by_term else BLUE)
        return self.outputs[self.state[self.outputs] & needed != needed]

    def why(self, move: int) -> str:
        """Say in words why a packed move is illegal."""
        number, kind, graph = move >> self.shift, move & (1 << self.shift) - 1, self.graph
        if kind >= len(self.rows) or not 0 <= number < (graph.edges if self.rows[kind].by_term else graph.vertices):
            return (
                f"there is no such move: there are {len(self.rows)} kinds of moves, {graph.vertices} vertices and "
                f"{graph.edges} edges"
            )
        row = self.rows[kind]
        operands, v = [], number
        if row.by_term:
            operands, v = [int(self.preds[number])], int(self.targets[number])
        elif row.rule.predecessors:
            operands = self.preds[int(self.indptr[v]) : int(self.indptr[v + 1])].tolist()
        start, state, rule = f"{row.name} {graph.describe(v)}", int(self.state[v]), row.rule
        called = "term" if row.by_term else "operand"
        for flag, name in row.names.items():
            if (rule.needs | row.some) & flag and not state & flag:
                return f"{start}: it is not {name}"
            if rule.forbids & state & flag:
                return f"{start}: it is {name}" + " already" * bool(flag & (1 << row.bit | BLUE | COMPLETE | COMPUTED))
            for u in operands:
                if rule.predecessors & flag and not int(self.state[u]) & flag:
                    return f"{start}: its {called} {graph.describe(u)} is not {name}"
        if row.by_term and self.added[number]:
            return f"{start}: its term {graph.describe(operands[0])} was added before"
        return f"{start}: {row.full}"


def _checked(graph: Graph) -> tuple[NDArray[Any], ...]:
    """Return (indptr, preds, inputs, outputs), checked so that the kernel never indexes out of bounds."""
    n, indptr, preds = graph.vertices, readonly(graph.indptr), readonly(graph.preds)
    inputs, outputs = np.asarray(graph.inputs, dtype=np.int64), np.asarray(graph.outputs, dtype=np.int64)
    if indptr.size != n + 1 or indptr[0] != 0 or indptr[-1] != preds.size or (indptr[1:] < indptr[:-1]).any():
        raise UsageError(f"indptr must be {n + 1} numbers that increase from 0 to the number of edges, {preds.size}.")
    for what, ids in ("predecessors", preds), ("inputs", inputs), ("outputs", outputs):
        if ids.size and not 0 <= ids.min() <= ids.max() < n:
            raise UsageError(f"{what} must be vertices, 0 to {n - 1}; they range from {ids.min()} to {ids.max()}.")
    return indptr, preds, inputs, outputs


def readonly(array: NDArray[Any]) -> NDArray[Any]:
    """Return the same data as a contiguous, read-only array, so that numba sees one type."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
