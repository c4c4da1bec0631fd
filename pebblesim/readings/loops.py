"""How the readings go through a program: one walk, for which each says what the iterations of a loop are.

Some look at every tile (`EveryTile`); others at one tile of each kind, since those of a kind are alike
(`pebblesim.readings.totals`, `pebblesim.readings.kernels.sectors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import prod
from typing import Protocol

from pebblesim.language import program as ir

Times = int | Fraction


class Iterations(Protocol):
    """Where a walk is."""

    def iterations(self, loop: ir.Loop) -> Iterator[Times]:
        """Be at one kind of iteration after the other; yields how often it is visited, for each visit of the loop."""


def walk(body: list[ir.Node], at: Iterations) -> Iterator[tuple[ir.Node, Times]]:
    """Each primitive that a body carries out, in order, and how often in the kinds of iterations that `at` is at."""
    for node in body:
        if isinstance(node, ir.Loop):
            for times in at.iterations(node):
                for inner, each in walk(node.body, at):
                    yield inner, each * times
        else:
            yield node, 1


def operations(node: ir.Compute, bounds: Callable[[ir.Range], tuple[int, int]]) -> int:
    """Operations on entries, for the present bounds of ranges: a multiplication and an addition together are one."""
    ranges = node.target.ranges
    if isinstance(node.expr, ir.MatMul):
        ranges = (*ranges, node.expr.left.shape[1])
    elif isinstance(node.expr, ir.RowReduction):
        ranges = node.expr.operand.shape
    return prod(stop - start for start, stop in map(bounds, ranges))


class EveryTile:
    """Iterations that are the tiles themselves, one after the other."""

    def __init__(self, sizes: ir.Sizes) -> None:
        self.sizes = sizes
        self._bounds: dict[ir.Range, tuple[int, int]] = {}

    def bounds(self, rng: ir.Range) -> tuple[int, int]:
        """The indices of a range now, as start and stop."""
        return (0, self.sizes[rng.name]) if rng.parent is None else self._bounds[rng]

    def part(self, ranges: ir.Ranges) -> tuple[slice, ...]:
        """Where a tile is in its tensor."""
        return tuple(slice(*self.bounds(rng)) for rng in ranges)

    def within(self, ref: ir.Ref) -> tuple[slice, ...]:
        """Where a part of a tile is in it."""
        starts = (self.bounds(rng)[0] for rng in ref.tile.ranges)
        return tuple(slice(p.start - s, p.stop - s) for p, s in zip(self.part(ref.ranges), starts, strict=True))

    def iterations(self, loop: ir.Loop) -> Iterator[int]:
        rng = loop.range
        assert rng.parent is not None
        size, (begin, end) = ir.length(rng.block, self.sizes), self.span(loop)
        for start in range(begin, end, size):
            self._bounds[rng] = start, min(start + size, end)
            if self.runs(loop):
                yield 1

    def span(self, loop: ir.Loop) -> tuple[int, int]:
        """From where to where a loop goes."""
        assert loop.range.parent is not None
        start, end = self.bounds(loop.range.parent)
        first, last = ir.stretch(loop.range, end - start, self.sizes)
        return start + first, start + last

    def runs(self, loop: ir.Loop) -> bool:
        """Whether a loop runs for the tile it is at."""
        return True
