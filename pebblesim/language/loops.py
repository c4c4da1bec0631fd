"""The walk of the readings through a program; each reading defines the iterations of a loop.

Some visit every tile (`EveryTile`); others visit one tile of each kind, because tiles of a kind are equal
(`pebblesim.analysis.totals`, `pebblesim.launches.sectors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import prod
from typing import Any, Protocol

from pebblesim.language import program as ir

Times = int | Fraction


class Iterations(Protocol):
    """The current position of a walk."""

    def iterations(self, loop: ir.Loop) -> Iterator[Times]:
        """Move to each kind of iteration in turn; yield how often it is visited for each visit of the loop."""


def walk(body: list[ir.Node], at: Iterations, times: Times = 1) -> Iterator[tuple[ir.Node, Times]]:
    """Yield each primitive of a body in order, and how often it runs in the current kinds of iterations of `at`.

    `times` is how often the body is run.
    """
    for node in body:
        if isinstance(node, ir.Loop):
            for each in at.iterations(node):
                yield from walk(node.body, at, times * each)
        else:
            yield node, times


def operations(node: ir.Compute, bounds: Callable[[ir.Range], tuple[int, int]]) -> int:
    """Number of operations on entries for the current bounds; a multiplication with an addition counts as one."""
    ranges = node.target.ranges
    if isinstance(node.expr, ir.MatMul):
        ranges = (*ranges, node.expr.left.shape[1])
    elif isinstance(node.expr, ir.RowReduction):
        ranges = node.expr.operand.shape
    return prod(stop - start for start, stop in map(bounds, ranges))


class EveryTile:
    """Iterations over every tile, one after the other; of `allowed`, over those that a mask lets run."""

    def __init__(self, sizes: ir.Sizes, allowed: Any = None) -> None:
        """`allowed`: under a mask, booleans of shape (queries, keys)."""
        self.sizes, self.allowed = sizes, allowed
        self._bounds: dict[ir.Range, tuple[int, int]] = {}

    def bounds(self, rng: ir.Range) -> tuple[int, int]:
        """Return the current indices of a range, as (start, stop)."""
        return (0, self.sizes[rng.name]) if rng.parent is None else self._bounds[rng]

    def part(self, ranges: ir.Ranges) -> tuple[slice, ...]:
        """Return the position of a tile in its tensor."""
        return tuple(slice(*self.bounds(rng)) for rng in ranges)

    def place(self, node: ir.Read | ir.Write) -> tuple[int | slice, ...]:
        """Return the position of a tile in its tensor; a tensor with copies for tiles has one more index."""
        return (*(() if node.at is None else (self.number(node.at),)), *self.part(node.tile.ranges))

    def number(self, rng: ir.Range) -> int:
        """Return the number of the range's current tile in its dimension, from 0."""
        return self.bounds(rng)[0] // ir.length(rng.block, self.sizes)

    def within(self, ref: ir.Ref) -> tuple[slice, ...]:
        """Return the position of a part within its tile."""
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
        """Return the start and stop of a loop's indices."""
        assert loop.range.parent is not None
        start, end = self.bounds(loop.range.parent)
        first, last = ir.stretch(loop.range, end - start, self.sizes)
        return start + first, start + last

    def runs(self, loop: ir.Loop) -> bool:
        """Whether a loop runs for its current tile."""
        when = loop.when
        if when is None or self.allowed is None:
            return True
        return bool(self.allowed[self.part((when.rows, when.columns))].any()) != when.none


def in_whole_tiles(program: ir.Program) -> bool:
    """Whether a program treats all tiles alike, computes with whole tiles, and multiplies no single rows or columns.

    Only such programs can run on tensor cores.
    """
    computed = [node for phase in program.phases for node in ir.walk(phase.body) if isinstance(node, ir.Compute)]
    used = [ref for node in computed for ref in (node.target, *ir.refs(node.expr))]
    products = [node.expr for node in computed if isinstance(node.expr, ir.MatMul)]
    multiplied = [rng for product in products for ref in ir.refs(product) for rng in ref.ranges]
    single = any(rng.parent and rng.block == 1 for rng in multiplied)
    return not in_parts(program) and not single and all(ref.ranges == ref.tile.ranges for ref in used)


def in_parts(program: ir.Program) -> bool:
    """Whether a program treats a first part of some dimension separately from the rest."""
    return any(loop.range.first or loop.range.after is not None for loop in _loops(program))


def asks_a_mask(program: ir.Program) -> bool:
    """Whether a program under a mask has a loop that leaves out tiles."""
    return any(loop.when is not None for loop in _loops(program))


def _loops(program: ir.Program) -> Iterator[ir.Loop]:
    yield from (node for phase in program.phases for node in ir.walk(phase.body) if isinstance(node, ir.Loop))
