"""Sums over all primitives of a program, without running its loops.

All tiles of a range except the last are equal: the amount of a loop's body for a full tile is multiplied by the number
of full tiles, and the amount for the last tile is added once. Sizes may be astronomically large. Under a mask the
iterations of a loop differ only in the number of remaining tiles of the inner loop, and everything is linear in that
number. So the mean over the outer loop, a fraction, represents all iterations.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from fractions import Fraction
from math import prod
from typing import Any

from pebblesim.errors import UsageError
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask
from pebblesim.language.tile_ranges import TileRange
from pebblesim.readings.loops import Times, walk

Array = Any


def words(ranges: ir.Ranges, sizes: ir.Sizes, lengths: Mapping[ir.Range, int]) -> int:
    """Return the number of elements of a tile, for the current lengths of the ranges around it."""
    product: int = 1
    for rng in ranges:
        product *= sizes[rng.name] if rng.parent is None else lengths[rng]
    return product


class LoopContext:
    """A kind of iteration: for each loop around, a full tile or the last tile, and the number of visits."""

    def __init__(self, sizes: ir.Sizes, mask: Mask | None) -> None:
        self.sizes, self.mask = sizes, mask
        self.cuts: dict[ir.Range, TileRange] = {}  # the tiles of that kind
        self.times: dict[ir.Range, Times] = {}  # visits of them, for each visit of what is around
        self.conditions: dict[ir.Range, ir.MaskCondition] = {}  # of the loops around

    def words(self, ranges: ir.Ranges) -> int:
        """Number of elements of a tile."""
        product: int = 1
        for rng in ranges:
            product *= self._length(rng)
        return product

    def allowed(self, ranges: ir.Ranges) -> Times:
        """Return the mean number of allowed elements for a tile over pairs; for any other tile, all elements."""
        if self.mask is None or not ir.over_pairs(ranges):
            return self.words(ranges)
        rows, columns = map(tile_of_whole, ranges)
        pairs, visits = self._met(rows, columns, singles=(True, True))
        return Fraction(pairs * self.words(ranges), 1) / (visits * self.words((rows, columns)))

    def with_terms(self, line: ir.Range, index: ir.Range, axis: int) -> Times:
        """Mean number of rows (axis 0) or columns (1) in the tile `line` that have an allowed pair in `index`."""
        if self.mask is None:
            return self._length(line)
        top, index = tile_of_whole(line), tile_of_whole(index)
        ends = (top, index) if axis == 0 else (index, top)
        lines, visits = self._met(*ends, singles=(axis == 0, axis == 1))
        return Fraction(lines * self._length(line), 1) / (visits * self._length(top))

    def among(self, rng: ir.Range, lines: Array) -> Times:
        """Mean number of rows or columns of a tile that are among these lines: a boolean for each, or one for all."""
        if lines.ndim == 0:
            return self._length(rng) * int(lines)
        import numpy as np

        top = tile_of_whole(rng)
        cut = self._cut(top)
        each = np.add.reduceat(lines[cut.start : cut.stop].astype(np.int64), range(0, cut.stop - cut.start, cut.block))
        visits = self._visited(top)
        return Fraction(int(each @ visits) * self._length(rng), int(visits.sum()) * self._length(top))

    def grid(self, ranges: ir.Ranges) -> tuple[int, int]:
        """The numbers of queries and of keys, where a range is over one of these."""
        return ir.grid(next(rng.pairs for rng in ranges if rng.pairs), self.sizes)

    def open(self, rng: ir.Range) -> bool:
        """Whether a loop over that range is around."""
        return rng in self.cuts

    def _enter(self, loop: ir.Loop, cut: TileRange) -> bool:
        """Go into the tiles of that kind; whether there are any."""
        rng = loop.range
        self.cuts[rng] = cut
        tiles = -(-(cut.stop - cut.start) // cut.block)
        if loop.when is None or self.mask is None:
            self.times[rng] = tiles
            return tiles > 0
        self.times.pop(rng, None)
        self.conditions.pop(rng, None)
        with_pairs, visits = self._met(loop.when.rows, loop.when.columns)
        met = tiles * visits - with_pairs if loop.when.none else with_pairs
        self.conditions[rng] = loop.when
        self.times[rng] = Fraction(met, 1) / visits if met else 0
        return met > 0

    def iterations(self, loop: ir.Loop) -> Iterator[Times]:
        rng = loop.range
        for cut in self._kinds(rng):
            if self._enter(loop, cut):
                yield self.times[rng]
        for kept in (self.cuts, self.times, self.conditions):
            kept.pop(rng, None)

    def _kinds(self, rng: ir.Range) -> Iterator[TileRange]:
        """The full tiles of a range, if there are any, and the last."""
        assert rng.parent is not None
        whole, block = self._length(rng.parent), ir.length(rng.block, self.sizes)
        start, stop = ir.stretch(rng, whole, self.sizes)
        if start == stop:
            return
        full = start + (stop - start - 1) // block * block
        if full > start:
            yield TileRange(start, full, block)
        yield TileRange(full, stop, stop - full)

    def _length(self, rng: ir.Range) -> int:
        return self.sizes[rng.name] if rng.parent is None else self.cuts[rng].block

    def _cut(self, rng: ir.Range) -> TileRange:
        if rng in self.cuts:
            return self.cuts[rng]
        return TileRange(0, self.sizes[rng.dim], self.sizes[rng.dim])

    def _met(self, rows: ir.Range, columns: ir.Range, singles: tuple[bool, bool] = (False, False)) -> tuple[int, Times]:
        """(tiles with an allowed pair, visits of them, had they one or not), over all visits of rows and columns.

        `singles`: whether tiles are of one row, and of one column.
        """
        assert self.mask is not None
        ends, cuts = (rows, columns), (self._cut(rows), self._cut(columns))
        of_rows, of_columns = (cut._replace(block=1) if one else cut for cut, one in zip(cuts, singles, strict=True))
        partners = [self._partners(rows, columns), self._partners(columns, rows)]
        visits = prod(self.times.get(each, 1) for each in {*ends, *partners[0], *partners[1]})
        if not any(partners):
            return self.mask.tiles(self.grid(ends), of_rows, of_columns), visits
        if all(partners):
            raise UsageError(TANGLED)
        axis = int(bool(partners[1]))
        met = self.mask.met(self.grid(ends), of_rows, of_columns, axis)
        if singles[axis]:
            import numpy as np

            met = np.add.reduceat(met, range(0, len(met), cuts[axis].block))
        return int(met @ self._visited(ends[axis], ends[1 - axis])), visits

    def _visited(self, top: ir.Range, *besides: ir.Range) -> Array:
        """How often each tile is visited for each visit of what is around, as conditions say, some ranges aside."""
        import numpy as np

        assert self.mask is not None
        cut = self._cut(top)
        visits = np.ones(-(-(cut.stop - cut.start) // cut.block), np.int64)
        for each in self._conditions_of(top):
            other = each.columns if each.rows is top else each.rows
            if other in besides:
                continue
            if self._partners(other, top):
                raise UsageError(TANGLED)
            met = self.mask.met(
                self.grid((top,)), self._cut(each.rows), self._cut(each.columns), int(each.columns is top)
            )
            others = self._cut(other)
            visits *= -(-(others.stop - others.start) // others.block) - met if each.none else met
        return visits

    def _conditions_of(self, top: ir.Range) -> list[ir.MaskCondition]:
        return [each for each in self.conditions.values() if top in (each.rows, each.columns)]

    def _partners(self, top: ir.Range, *besides: ir.Range) -> list[ir.Range]:
        """The other ranges of loops around that run for some tiles only of this range, or it of theirs."""
        ends = [end for each in self._conditions_of(top) for end in (each.rows, each.columns)]
        return [end for end in ends if end in self.cuts and end is not top and end not in besides]


TANGLED = (
    "under a mask this nest of loops cannot be counted: tiles of rows and of columns are left out for each other in "
    "more than one way; loops over tiles of columns go into one loop over tiles of rows, or the other way round."
)


Amounts = Callable[[ir.Node, LoopContext], Iterable[tuple[Hashable, Times]]]


def totals(body: list[ir.Node], sizes: ir.Sizes, amounts: Amounts, mask: Mask | None = None) -> Counter[Hashable]:
    """Return the sums of the amounts of all primitives, by key; `amounts(node, place)` gives (key, amount) pairs."""
    place = LoopContext(sizes, mask)
    sums: dict[Hashable, Times] = defaultdict(int)
    for node, times in walk(body, place):
        for key, amount in amounts(node, place):
            sums[key] += amount * times
    whole: Counter[Hashable] = Counter()
    for key, amount in sums.items():
        assert amount.denominator == 1, (key, amount)  # a mean times what it is the mean of
        whole[key] = int(amount)
    return whole


def tile_of_whole(rng: ir.Range) -> ir.Range:
    """The tile of a whole dimension that a range is a part of, or the dimension."""
    while rng.parent is not None and rng.parent.parent is not None:
        rng = rng.parent
    return rng
