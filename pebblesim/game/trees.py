"""The red-blue pebble game on a tree of memories, and its judge.

The root is a memory without limit: it holds the inputs at the start and must hold the outputs at the end. Every other
memory has a capacity in words and lies below another one. A value is copied one edge down or up; only leaves compute,
from operands that they hold. A path of two memories is the game of `pebblesim.game.referee`; a path of several is the
memory-hierarchy game of Savage (1995).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.core.sizes import quantity
from pebblesim.game.board import BITS, Board, Row
from pebblesim.game.moves import COMPUTE, KINDS, READ, WRITE, as_chunk
from pebblesim.game.rules import BLUE, COMPLETE, COMPUTED, INPUT, RED, RULES, Graph, Rule

TREE_RULES: Final = ("hong-kung", "no-recompute")
"""Rule sets whose moves change the pebbles of one memory, and which so have a meaning on any tree."""


@dataclass(frozen=True)
class Memory:
    """A memory below another one.

    Attributes:
        name: its name.
        capacity: words that it holds.
        above: number of the memory above: 0 for the root, k for the k-th of the others; by default the one before it.
    """

    name: str
    capacity: int
    above: int | None = None


def numbers_above(memories: Sequence[Memory]) -> list[int]:
    """For each of these memories, the number of the one above it."""
    return [before if memory.above is None else memory.above for before, memory in enumerate(memories)]


@dataclass(frozen=True)
class Tree:
    """A tree of memories: the name of its root, and the others, each after the one above it.

    Raises:
        UsageError: a capacity is no positive whole number, a memory comes before the one above it, a name comes twice,
            or there are more memories than the board has bits for.
    """

    root: str
    memories: tuple[Memory, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.memories) <= len(BITS):
            raise UsageError(
                f"{len(self.memories)} memories below the root were given; the game has 1 to {len(BITS)} of them."
            )
        for number, memory in enumerate(self.memories, 1):
            size = memory.capacity
            if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
                raise UsageError(f"the capacity of {memory.name} is {size!r}; it must be a whole number, 1 or more.")
            if not 0 <= self.above[number - 1] < number:
                raise UsageError(
                    f"{memory.name} is memory {number} and lies below memory {memory.above}; it must come after that."
                )
        if len(set(self.names)) < len(self.names):
            raise UsageError(f"memories were named {', '.join(self.names)}; each needs a name of its own.")

    @classmethod
    def path(cls, *capacities: int) -> Tree:
        """A root and memories below each other, the last of which computes."""
        return cls("L0", tuple(Memory(f"L{k}", size) for k, size in enumerate(capacities, 1)))

    @property
    def above(self) -> list[int]:
        """For each memory but the root, the number of the one above it."""
        return numbers_above(self.memories)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all memories; the root is the first."""
        return (self.root, *(memory.name for memory in self.memories))

    @cached_property
    def kinds(self) -> tuple[tuple[int, int], ...]:
        """The kinds of moves: a kind of `pebblesim.game.moves` and the memory below its edge, or where it happens.

        Only leaves compute.
        """
        inner = set(self.above)
        nodes = range(1, len(self.memories) + 1)
        return tuple((kind, node) for node in nodes for kind in range(4) if kind != COMPUTE or node not in inner)

    def moves(self, *moves: tuple[int, int, int]) -> NDArray[np.int64]:
        """Pack moves of kind, memory and vertex; a read goes down the edge above the memory, a write up.

        Raises:
            UsageError: there is no such move, such as a compute where a memory lies below.
        """
        shift = (len(self.kinds) - 1).bit_length()
        packed = []
        for kind, node, vertex in moves:
            if (kind, node) not in self.kinds:
                named = self.names[node] if 0 <= node < len(self.names) else f"memory {node}"
                what = KINDS[kind] if 0 <= kind < len(KINDS) else f"move of kind {kind}"
                raise UsageError(f"there is no {what} at {named}: moves go along edges, and only leaves compute.")
            packed.append((vertex << shift) + self.kinds.index((kind, node)))
        return np.array(packed, np.int64)

    def rows(self, rules: str) -> list[Row]:
        """The kinds of moves as rows of a table: those of two levels, with the places of each edge."""
        bits, rows = (BLUE.bit_length() - 1, *BITS), []
        names = {1 << bit: f"in {name}" for bit, name in zip(bits, self.names, strict=False)}
        names |= {INPUT: "an input", COMPUTED: "computed"}
        for kind, node in self.kinds:
            above = self.above[node - 1]
            places = {RED: 1 << bits[node], BLUE: 1 << bits[above]}
            moved = (
                sum(places.get(flag, flag) for flag in (RED, BLUE, COMPUTED, INPUT) if flags & flag)
                for flags in RULES[rules][kind]
            )
            upper, lower = self.names[above], self.names[node]
            name = {READ: f"down from {upper} to {lower}:", WRITE: f"up from {lower} to {upper}:"}
            counted = above if kind == WRITE and above else node
            memory = self.memories[counted - 1]
            full = f"{memory.name} is full, with {quantity(memory.capacity, 'word')}"
            what = name.get(kind, f"{KINDS[kind]} in {lower}:")
            rows.append(Row(what, Rule(*moved), bits[counted], names=names, full=full))
        return rows


@dataclass(frozen=True)
class TreeGame:
    """A legal game on a tree.

    Attributes:
        tree: the memories.
        moves: number of moves.
        down, up: for each memory but the root, the words that came to it from the one above, and that went there.
        peak: for each of them, the most words that it held.
        missing: outputs that are not in the root at the end, by name.
    """

    tree: Tree
    moves: int
    down: list[int]
    up: list[int]
    peak: list[int]
    missing: list[str]

    @property
    def words(self) -> list[int]:
        """For each memory but the root, the words over the edge above it."""
        return [a + b for a, b in zip(self.down, self.up, strict=True)]


def play(graph: Graph, tree: Tree, moves: Iterable[NDArray[Any]], rules: str = "hong-kung") -> TreeGame:
    """Judge a game on a tree of memories.

    Args:
        graph: the graph; at the start, its inputs are in the root.
        tree: the memories.
        moves: arrays of packed moves; see `Tree.moves`. Those of a path of two are the moves of two levels.
        rules: a name in `TREE_RULES`.

    Returns:
        The game, which may lack outputs at its end.

    Raises:
        IllegalMove: at the first illegal move; the message names the vertex, and the memory or the two ends of the
            edge.
        UnknownName: the rules are not known, or not on trees.
        UsageError: the stream holds something other than arrays of int64, or the graph's arrays are inconsistent.
    """
    if rules not in TREE_RULES:
        raise UnknownName("rule set on trees", rules, TREE_RULES)
    bits = BITS[: len(tree.memories)]
    limits = dict(zip(bits, (memory.capacity for memory in tree.memories), strict=True))
    board = Board(graph, tree.rows(rules), INPUT | BLUE | COMPLETE, limits)
    chunks = [as_chunk(chunk) for chunk in moves]
    stream = np.concatenate(chunks) if chunks else np.empty(0, np.int64)
    board.judge(stream)
    words = {kind: int(count) for kind, count in zip(tree.kinds, board.moved, strict=False)}
    down, up = ([words[kind, node] for node in range(1, len(tree.names))] for kind in (READ, WRITE))
    missing = [graph.describe(v) for v in board.missing().tolist()]
    return TreeGame(tree, stream.size, down, up, board.peak[list(bits)].tolist(), missing)
