"""Games of tiles whose words come one by one and leave as soon as their last product is made; an oracle for tests.

A tile of sums holds, besides itself, only the words that its next products share. A row of c sums needs c + 3 pebbles,
and a tile of 2 x 2 sums 8: each product is made, a word that no later product of this term needs is deleted, and only
then is the product added. The games are made from the graph alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, pack
from pebblesim.graphs.cdag import Cdag
from pebblesim.graphs.operations import Op

Cell = tuple[int, ...]


def terms(graph: Cdag, root: int) -> tuple[list[int], list[int]]:
    """The terms of a sum that is a chain, in order, and its partial sums from the second term on."""
    sums: list[int] = []
    leaves: list[int] = []
    while graph.op[root] == Op.ADD:
        before, leaf = graph.predecessors(root).tolist()
        sums.append(root)
        leaves.append(leaf)
        root = before
    return [root, *leaves[::-1]], sums[::-1]


class Tiles:
    """A game that is made step by step; `kept` are words that stay in the cache where they are used."""

    def __init__(self, graph: Cdag, blue: Iterable[int]) -> None:
        self.graph, self.blue = graph, set(blue)
        self.red: set[int] = set()
        self.kept: set[int] = set()
        self.moves: list[int] = []

    def move(self, kind: int, vertex: int) -> None:
        self.moves.append(pack(kind, vertex))
        (self.red.discard if kind == DELETE else self.red.add)(vertex)
        if kind == WRITE:
            self.blue.add(vertex)

    def need(self, vertex: int) -> None:
        """Bring a vertex into the cache: read it, or compute it from what it needs, which then is deleted."""
        if vertex in self.red:
            return
        if vertex in self.blue:
            return self.move(READ, vertex)
        before = self.graph.predecessors(vertex).tolist()
        for each in before:
            self.need(each)
        self.move(COMPUTE, vertex)
        for each in before:
            if each not in self.kept:
                self.move(DELETE, each)

    def sources(self, vertex: int) -> set[int]:
        """The words in memory that `need` would read for a vertex."""
        if vertex in self.red or vertex in self.blue:
            return {vertex} - self.red
        return set().union(*(self.sources(each) for each in self.graph.predecessors(vertex).tolist()))

    def tile(self, name: str, cells: Sequence[Cell], result: str) -> None:
        """Compute the sums `name` of these cells term by term, and write what `result` makes of each."""
        graph, roots = self.graph, self.graph.tensor(name)
        sums = [terms(graph, int(roots[cell])) for cell in cells]
        for number in range(len(sums[0][0])):
            operands = [graph.predecessors(leaves[number]).tolist() for leaves, _ in sums]
            for at, (leaves, partial) in enumerate(sums):
                later = {each for rest in operands[at + 1 :] for each in rest}
                for each in operands[at]:
                    self.need(each)
                self.move(COMPUTE, leaves[number])
                for each in operands[at]:
                    if each not in later:
                        self.move(DELETE, each)
                if number:
                    self.move(COMPUTE, partial[number - 1])
                    self.move(DELETE, leaves[number])
                    self.move(DELETE, partial[number - 2] if number > 1 else leaves[0])
        ends = [int(graph.tensor(result)[cell]) for cell in cells]
        words = [self.sources(end) for end in ends]
        for at, end in enumerate(ends):
            self.kept = set().union(*words[at + 1 :])
            self.need(end)
            self.move(WRITE, end)
            self.move(DELETE, end)

    def tiles(self, name: str, result: str, sides: Sequence[int]) -> None:
        """Compute all sums `name` in tiles with these sides."""
        shape = self.graph.tensor(name).shape
        sides = sides[: len(shape)]
        for corner in product(*(range(0, n, side) for n, side in zip(shape, sides, strict=True))):
            spans = [range(at, min(at + side, n)) for at, side, n in zip(corner, sides, shape, strict=True)]
            self.tile(name, list(product(*spans)), result)


FORWARD = (("S", "A"), ("l", "l"), ("AV", "O"))
BACKWARD = (("S", "S"), ("h", "h"), ("v", "v"), ("Z", "f"), ("q", "p"), ("dQ", "dQ"), ("g", "g"))
"""Each sum in turn, and what is made of it before it is written."""


def game(graph: Cdag, steps: Iterable[tuple[str, str]], sides: tuple[int, int]) -> Iterator[NDArray[np.int64]]:
    """Yield the moves of a game that computes these sums in tiles with these sides, rows x columns."""
    inputs = [v for family in graph.families if family.op == "input" for v in graph.tensor(family.name).flat]
    board = Tiles(graph, map(int, inputs))
    for name, result in steps:
        board.tiles(name, result, sides if len(graph.tensor(name).shape) == 2 else (1,))
        yield np.array(board.moves, np.int64)
        board.moves = []
