"""Tiles of a range of indices, and how many of them meet intervals: of a table, or of all tiles of a band at once."""

from __future__ import annotations

from typing import Any, NamedTuple

from pebblesim.core.errors import UsageError

Array = Any

Grid = tuple[int, int]
"""The numbers of queries and of keys; (n, n) in the square case."""

MOST_TILES = 2**24
"""Most tiles of one dimension that are looked up in a table."""


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
    """The same tiles in several places: `number` times, each `step` indices further on than the one before."""

    tiles: TileRange
    step: int = 0
    number: int = 1

    def each(self) -> list[TileRange]:
        """Each of the copies."""
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


def tiles_in_band(first: int, step: int, height: int, count: int, columns: TileRange, before: int, after: int) -> int:
    """Sum the numbers of column tiles with a pair in the band over `count` row tiles of one height, `step` apart.

    The rows of a tile at r have the columns r - before ... r + height - 1 + after, as far as these exist.
    """
    # Only those tiles count that see a column at all.
    start = max(0, -(-(columns.start - after - height + 1 - first) // step))
    stop = min(count, -(-(columns.stop + before - first) // step))
    if start >= stop or columns.start >= columns.stop:
        return 0
    wide = columns.stop - columns.start
    all_tiles = -(-wide // columns.block)
    behind = first + height + after - columns.start  # where the columns that tile 0 sees end
    up_to_the_end = sum_of_ceilings(start, stop, step, behind, columns.block, wide, all_tiles)
    ahead = first - before - columns.start  # where they begin
    before_the_start = sum_of_ceilings(start, stop, step, ahead - columns.block + 1, columns.block, wide, all_tiles)
    return up_to_the_end - before_the_start


def sum_of_ceilings(start: int, stop: int, step: int, offset: int, block: int, limit: int, most: int) -> int:
    """Σ of ⌈(step·i + offset) / block⌉ for start ≤ i < stop; no term below 0, `most` where the top exceeds `limit`."""
    positive = min(stop, max(start, -(offset // step)))  # the first i whose top is above 0
    full = min(stop, max(positive, -((offset - limit) // step)))  # the first whose top exceeds the limit
    terms = full - positive
    return floor_sum(terms, block, step, step * positive + offset + block - 1) + (stop - full) * most


def floor_sum(n: int, m: int, a: int, b: int) -> int:
    """Σ_{i<n} ⌊(a·i + b) / m⌋ for a, b ≥ 0, in as many steps as Euclid's algorithm takes on a and m."""
    total = 0
    while n > 0:
        total += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        n, b = divmod(a * n + b, m)
        m, a = a, m
    return total
