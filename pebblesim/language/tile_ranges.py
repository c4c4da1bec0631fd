"""Tiles of a range of indices, and how many of them meet intervals: of a table, or of all tiles of a band at once."""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

from pebblesim.core.errors import UsageError
from pebblesim.core.floor_sums import floor_sum

Array = Any

Grid = tuple[int, int]
"""The numbers of queries and of keys; (n, n) in the square case."""

MOST_TILES = 2**24
"""Most tiles of one dimension that are looked up in a table."""

MOST_SUMS = 2**16
"""Most sums of one dimension that a sum over tiles of tiles may take."""


class TileRange(NamedTuple):
    """The indices start ... stop - 1, cut into tiles of `block`, the last of which may be ragged."""

    start: int
    stop: int
    block: int

    @property
    def number(self) -> int:
        """How many tiles there are."""
        return -(-(self.stop - self.start) // self.block)


class Copies(NamedTuple):
    """Tiles that stand in several places: `number` times, each `step` indices further on than the one before."""

    tiles: TileRange
    step: int = 0
    number: int = 1

    def each(self) -> list[TileRange]:
        """Return each of the copies.

        Raises:
            UsageError: there are too many.
        """
        if self.number > MOST_TILES:
            raise UsageError(_too_many(self.number))
        start, stop, block = self.tiles
        return [TileRange(start + at, stop + at, block) for at in (self.step * k for k in range(self.number))]


def against_whole_side(grid: Grid, block: int, axis: int) -> tuple[TileRange, TileRange]:
    """Tiles of rows (axis 0) or of columns (1), against the whole other side."""
    cuts = [TileRange(0, n, n) for n in grid]
    cuts[axis] = cuts[axis]._replace(block=block)
    return cuts[0], cuts[1]


def covered(cut: TileRange, block: int) -> tuple[Array, Array, Array]:
    """Return the distinct cases (first block, block after the last) that tiles cover, and the case of each tile."""
    import numpy as np

    starts, stops = tiles_of(cut)
    first, behind = starts // block, (stops - 1) // block + 1
    new = np.ones(len(starts), bool)  # neither of them ever falls
    new[1:] = (np.diff(first) > 0) | (np.diff(behind) > 0)
    return first[new], behind[new], np.cumsum(new) - 1


def tiles_of(cut: TileRange) -> tuple[Array, Array]:
    """Where tiles start and where they end."""
    import numpy as np

    if (cut.stop - cut.start) // cut.block > MOST_TILES:
        raise UsageError(
            f"{(cut.stop - cut.start) // cut.block:,} tiles are too many to look up in a table; take larger blocks, or "
            "a mask such as causal or window:256, which has closed forms."
        )
    starts = np.arange(cut.start, cut.stop, cut.block)
    return starts, np.minimum(starts + cut.block, cut.stop)


def cut_by(first: Array, last: Array, tiles: TileRange) -> Array:
    """How many tiles have an index of first ... last, for each of these."""
    import numpy as np

    first = np.maximum(first, tiles.start) - tiles.start
    last = np.minimum(last, tiles.stop - 1) - tiles.start
    return np.where(first <= last, last // tiles.block - first // tiles.block + 1, 0)


def tiles_in_band(rows: Copies, columns: TileRange, before: int, after: int, rows_of_query: int = 1) -> int:
    """Sum the numbers of column tiles with a pair in the band over all copies of tiles of rows.

    Query q, which has so many rows, sees the columns q - before ... q + after, as far as these exist.

    Raises:
        UsageError: see `floor_sum_of_grid`.
    """
    start, stop, block = rows.tiles
    if start >= stop or columns.start >= columns.stop:
        return 0
    full, rest = divmod(stop - start, block)
    heights = [(_Places(start, block, full, rows.step, rows.number), block)] if full else []
    if rest:
        heights.append((_Places(stop - rest, block, 1, rows.step, rows.number), rest))
    wide = columns.stop - columns.start
    all_tiles, divisor = columns.number, rows_of_query * columns.block
    tiles = 0
    for places, height in heights:
        # The tile at row r sees the columns from ⌊r / rows of a query⌋ - before on; ⌊⌊x/a⌋/b⌋ = ⌊x/ab⌋.
        offset = -rows_of_query * (before + columns.start)
        before_the_start = places.sum_of_floors(offset, divisor, rows_of_query * wide - offset, all_tiles)
        offset = height - 1 + rows_of_query * (after - columns.start + columns.block)
        up_to_the_end = places.sum_of_floors(offset, divisor, divisor * all_tiles - offset, all_tiles)
        tiles += up_to_the_end - before_the_start
    return tiles


class _Places(NamedTuple):
    """Rows at which tiles start: `number` of them, `block` apart, and again at each of `copies`, `step` apart.

    Each copy lies behind the one before.
    """

    start: int
    block: int
    number: int
    step: int
    copies: int

    def sum_of_floors(self, offset: int, divisor: int, full: int, most: int) -> int:
        """Σ of ⌊(r + offset) / divisor⌋ over the rows r; no term below 0, and `most` from the row `full` on."""
        positive = self._before(-offset)
        high = max(positive, self._before(full))
        terms = self._first(high, offset, divisor) - self._first(positive, offset, divisor)
        return terms + (self.number * self.copies - high) * most

    def _before(self, row: int) -> int:
        """How many of them are less than a row."""
        copy = min(self.copies - 1, (row - self.start) // self.step) if self.step else 0
        in_copy = -(-(row - self.start - copy * self.step) // self.block)
        return copy * self.number + min(self.number, in_copy) if row > self.start else 0

    def _first(self, count: int, offset: int, divisor: int) -> int:
        """Σ of ⌊(r + offset) / divisor⌋ over the first of the rows."""
        copies, more = divmod(count, self.number)
        start = self.start + offset
        return floor_sum_of_grid((copies, self.number), divisor, (self.step, self.block), start) + floor_sum(
            more, divisor, self.block, start + copies * self.step
        )


def _too_many(tiles: int) -> str:
    return (
        f"under a mask, {tiles:,} tiles that are cut into smaller tiles, which do not divide them, are too many to be "
        "counted one by one; take larger tiles, or a divisor."
    )


def floor_sum_of_grid(counts: Grid, m: int, steps: Grid, b: int) -> int:
    """Σ of ⌊(s₀·i + s₁·j + b) / m⌋ for i below the one count and j below the other.

    It takes a sum of one dimension for each i, or for each j, or each value that one of them has modulo m: the fewest.

    Raises:
        UsageError: these are too many.
    """
    if 0 in counts:
        return 0
    sides = zip(counts, steps, strict=True)
    (count, step), inner = sorted(sides, key=lambda side: min(side[0], m // gcd(side[1], m)))
    period = min(count, m // gcd(step, m))
    if period > MOST_SUMS:
        raise UsageError(_too_many(period))
    total = 0
    for first in range(period):
        alike = -(-(count - first) // period)  # each `period` further on, whose floors are that much higher
        higher = step * period // m if alike > 1 else 0
        total += alike * floor_sum(inner[0], m, inner[1], step * first + b)
        total += inner[0] * higher * (alike * (alike - 1) // 2)
    return total
