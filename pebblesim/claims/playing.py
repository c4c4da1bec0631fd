"""Games that are recorded together with their graphs, vertex by vertex: counterexamples to claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, pack
from pebblesim.game.referee import Game, referee


class Playing:
    """A game and its graph, recorded together: each vertex with its operands, and the moves."""

    def __init__(self) -> None:
        self.vertices = 0
        self.edges: list[tuple[int, int]] = []
        self.moves: list[int] = []  # packed

    def new(self, number: int) -> list[int]:
        """Add this number of inputs; return their ids."""
        self.vertices += number
        return list(range(self.vertices - number, self.vertices))

    def read(self, *vertices: int) -> None:
        """Read inputs into the cache."""
        self.moves += [pack(READ, v) for v in vertices]

    def drop(self, *vertices: int) -> None:
        """Delete vertices from the cache."""
        self.moves += [pack(DELETE, v) for v in vertices]

    def make(self, *operands: int, dropping: Sequence[int] = ()) -> int:
        """Add a vertex and compute it, then delete some of its operands; return its id."""
        (v,) = self.new(1)
        self.edges += [(operand, v) for operand in operands]
        self.compute(v, dropping=dropping)
        return v

    def compute(self, v: int, *, dropping: Sequence[int] = ()) -> None:
        """Compute a vertex, perhaps once more, then delete some of its operands."""
        self.moves.append(pack(COMPUTE, v))
        self.drop(*dropping)

    def added(self, sums: list[tuple[int, int]], row: int, *terms: int) -> list[tuple[int, int]]:
        """Return the two sums of each row with two terms added to those of one row; the first terms start the sums."""
        if row == len(sums):
            return [*sums, (terms[0], terms[1])]
        first, second = (self.make(old, new, dropping=(old, new)) for old, new in zip(sums[row], terms, strict=True))
        return [*sums[:row], (first, second), *sums[row + 1 :]]

    def write(self, v: int) -> None:
        """Write an output, then delete it from the cache."""
        self.moves += [pack(WRITE, v), pack(DELETE, v)]

    @property
    def graph(self) -> Any:
        """The graph so far, a `Cdag`."""
        from pebblesim import Cdag

        return Cdag.from_edges(self.vertices, self.edges)

    def judged(self, M: int) -> Game:
        """Return the referee's result."""
        return referee(self.graph, M, [np.array(self.moves, np.int64)])
