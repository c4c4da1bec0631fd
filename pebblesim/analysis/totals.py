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
from functools import lru_cache
from math import prod
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.language import program as ir
from pebblesim.language.loops import Times, walk
from pebblesim.language.masks import Mask
from pebblesim.language.tile_ranges import Copies, TileRange

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
        self.copies_by_tile: dict[ir.Range, Copies] = {}  # of tiles of a tile: those of each tile, if a mask asks
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
        rows, columns = map(self._top, ranges)
        pairs, visits = self._met(rows, columns, singles=(True, True))
        return Fraction(pairs * self.words(ranges), 1) / (visits * self.words((rows, columns)))

    def with_terms(self, line: ir.Range, index: ir.Range, axis: int) -> Times:
        """Mean number of rows (axis 0) or columns (1) in the tile `line` that have an allowed pair in `index`."""
        if self.mask is None:
            return self._length(line)
        top, index = self._top(line), self._top(index)
        ends = (top, index) if axis == 0 else (index, top)
        lines, visits = self._met(*ends, singles=(axis == 0, axis == 1))
        return Fraction(lines * self._length(line), 1) / (visits * self._length(top))

    def among(self, rng: ir.Range, lines: Array) -> Times:
        """Mean number of rows or columns of a tile that are among these lines: a boolean for each, or one for all."""
        if lines.ndim == 0:
            return self._length(rng) * int(lines)
        import numpy as np

        top = self._top(rng)
        each = np.concatenate(
            [
                np.add.reduceat(lines[cut.start : cut.stop].astype(np.int64), range(0, cut.stop - cut.start, cut.block))
                for cut in self._cuts(top).each()
            ]
        )
        visits = self._visited(top)
        return Fraction(int(each @ visits) * self._length(rng), int(visits.sum()) * self._length(top))

    def grid(self, ranges: ir.Ranges) -> tuple[int, int]:
        """The numbers of queries and of keys, where a range is over one of these."""
        return ir.grid(next(rng.pairs for rng in ranges if rng.pairs), self.sizes)

    def open(self, rng: ir.Range) -> bool:
        """Whether a loop over that range is around."""
        return rng in self.cuts

    def iterations(self, loop: ir.Loop) -> Iterator[Times]:
        rng = loop.range
        for tiles in self._kinds(loop):
            if self._enter(loop, tiles):
                yield self.times[rng]
        for kept in (self.cuts, self.copies_by_tile, self.times, self.conditions):
            kept.pop(rng, None)

    def _enter(self, loop: ir.Loop, tiles: int) -> bool:
        """Go into this number of tiles of the current kind, for each visit of what is around; whether any runs."""
        rng = loop.range
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

    def _kinds(self, loop: ir.Loop) -> Iterator[int]:
        """Go through the full tiles of a range, if there are any, and the last; yield how many there are of each."""
        rng = loop.range
        assert rng.parent is not None
        whole, block = self._length(rng.parent), ir.length(rng.block, self.sizes)
        kinds = kinds_of(rng, whole, self.sizes)
        if not kinds:
            return
        if rng.parent.parent is None or self.mask is None or not _under_a_mask(loop):
            for kind in kinds:
                self.cuts[rng] = kind
                yield kind.number
            return
        outer = self.cuts[rng.parent]
        if whole % block == 0 and (kinds[0].start, kinds[-1].stop) == (0, whole):  # all alike, and one after the other
            self.cuts[rng], self.copies_by_tile[rng] = TileRange(0, whole, block), Copies(outer._replace(block=block))
            yield whole // block
            return
        copies = (outer.stop - outer.start) // whole
        for kind in kinds:
            self.cuts[rng] = kind
            place = TileRange(outer.start + kind.start, outer.start + kind.stop, kind.block)
            self.copies_by_tile[rng] = Copies(place, whole, copies)
            yield kind.number

    def _length(self, rng: ir.Range) -> int:
        return self.sizes[rng.name] if rng.parent is None else self.cuts[rng].block

    def _top(self, rng: ir.Range) -> ir.Range:
        """The tiles that a mask is asked about, of which a range is a part: of a dimension, or of tiles of one."""
        top = rng
        while top.parent is not None and top.parent.parent is not None and top not in self.copies_by_tile:
            top = top.parent
        return top

    def _cuts(self, top: ir.Range) -> Copies:
        """The tiles of that kind, among all indices of the dimension."""
        if top in self.copies_by_tile:
            return self.copies_by_tile[top]
        return Copies(self.cuts.get(top, TileRange(0, self.sizes[top.dim], self.sizes[top.dim])))

    def _met(self, rows: ir.Range, columns: ir.Range, singles: tuple[bool, bool] = (False, False)) -> tuple[int, Times]:
        """(tiles with an allowed pair, visits of them, had they one or not), over all visits of rows and columns.

        `singles`: whether tiles are of one row, and of one column.
        """
        assert self.mask is not None
        ends = (rows, columns)
        partners = [self._partners(rows, columns), self._partners(columns, rows)]
        around = {end.parent for end in ends if end in self.copies_by_tile}
        visits = prod(self.times.get(rng, 1) for rng in {*ends, *around, *partners[0], *partners[1]} if rng)
        if not any(partners):
            cuts = (
                cuts._replace(tiles=cuts.tiles._replace(block=1)) if one else cuts
                for cuts, one in zip(map(self._cuts, ends), singles, strict=True)
            )
            return self.mask.tiles_of_copies(self.grid(ends), *cuts), visits
        if all(partners):
            raise UsageError(TANGLED)
        axis = int(bool(partners[1]))
        return int(self._tiles_met(ends, axis, singles) @ self._visited(ends[axis], ends[1 - axis])), visits

    def _tiles_met(
        self, ends: tuple[ir.Range, ir.Range], axis: int, singles: tuple[bool, bool] = (False, False)
    ) -> Array:
        """For each tile of rows (axis 0) or of columns (1), the number of tiles of the others with an allowed pair.

        For `singles` on that axis the sum over the lines of the tile.
        """
        import numpy as np

        assert self.mask is not None
        own, others = self._cuts(ends[axis]).each(), self._cuts(ends[1 - axis]).each()
        found, grid = [], self.grid(ends)
        for cut in own:
            met = np.zeros((), np.int64)
            for other in others:
                pair = [cut, other] if axis == 0 else [other, cut]
                of_rows, of_columns = (x._replace(block=1) if one else x for x, one in zip(pair, singles, strict=True))
                met = met + self.mask.met(grid, of_rows, of_columns, axis)
            found.append(np.add.reduceat(met, range(0, len(met), cut.block)) if singles[axis] else met)
        return np.concatenate(found)

    def _visited(self, top: ir.Range, *besides: ir.Range) -> Array:
        """Number of visits of each tile of a range in one run of the loops around it, under all its conditions.

        Conditions with a range of `besides`, or with a part of one, do not count.
        """
        import numpy as np

        def tiles(rng: ir.Range) -> int:
            cuts = self._cuts(rng)
            return cuts.tiles.number * cuts.number

        visits = np.ones(tiles(top), np.int64)
        for condition in self._conditions_of(top):
            other = condition.columns if condition.rows is top else condition.rows
            if other in besides or self._parts_of(other, *besides):
                continue
            if self._partners(other, top):
                raise UsageError(TANGLED)
            met = self._tiles_met((condition.rows, condition.columns), int(condition.columns is top))
            visits *= tiles(other) - met if condition.none else met
        return visits

    def _conditions_of(self, top: ir.Range) -> list[ir.MaskCondition]:
        return [condition for condition in self.conditions.values() if top in (condition.rows, condition.columns)]

    def _partners(self, top: ir.Range, *besides: ir.Range) -> list[ir.Range]:
        """Ranges of loops around a range that share a condition with it: for some pairs of their tiles nothing runs."""
        ends = [end for condition in self._conditions_of(top) for end in (condition.rows, condition.columns)]
        return [
            end
            for end in ends
            if end in self.cuts and end is not top and end not in besides and not self._parts_of(end, *besides)
        ]

    def _parts_of(self, outer: ir.Range, *inner: ir.Range) -> bool:
        """Whether one of these is over tiles of the tile `outer`, so that a condition on it says more."""
        return any(rng in self.copies_by_tile and rng.parent is outer for rng in inner)


@lru_cache(maxsize=4096)
def _under_a_mask(loop: ir.Loop) -> bool:
    """Whether a mask is asked about the tiles of a loop: by itself, by a loop in it, or by a reduction over a tile."""
    nodes = (loop, *ir.walk(loop.body))
    asked = (node.when for node in nodes if isinstance(node, ir.Loop) and node.when)
    # a row's first term in a tile is compared with nothing
    begun = (node.expr for node in nodes if isinstance(node, ir.Compute) and node.mode == "new")
    return any(loop.range in (condition.rows, condition.columns) for condition in asked) or any(
        loop.range in expr.operand.shape for expr in begun if isinstance(expr, ir.RowReduction)
    )


TANGLED = (
    "under a mask this nest of loops cannot be counted: tiles of rows and of columns are left out for each other in "
    "more than one way; loops over tiles of columns go into one loop over tiles of rows, or the other way round."
)


def kinds_of(rng: ir.Range, whole: int, sizes: ir.Sizes) -> list[TileRange]:
    """The full tiles of a range in so many indices, if there are any, and the last; empty if there is no tile."""
    block, (start, stop) = ir.length(rng.block, sizes), ir.stretch(rng, whole, sizes)
    if start == stop:
        return []
    full = start + (stop - start - 1) // block * block
    last = TileRange(full, stop, stop - full)
    return [TileRange(start, full, block), last] if full > start else [last]


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
