"""The answers of a mask to a search of block sizes: each is computed once; and lower bounds for tiles of many sizes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pebblesim.core.floor_sums import floor_sum
from pebblesim.language.masks import Band, Mask
from pebblesim.language.tile_ranges import Copies, Grid, TileRange


@lru_cache(maxsize=16)  # schedules that are compared ask the same
def remembered(mask: Mask) -> RememberedMask:
    """The mask with its answers, for all who ask."""
    return RememberedMask(mask)


class RememberedMask(Mask):
    """A mask that caches its answers, and gives lower bounds for tiles of many sizes."""

    def __init__(self, mask: Mask) -> None:
        self.mask, self.name = mask, mask.name
        self._tiles: dict[tuple[Grid, TileRange, TileRange], int] = {}
        self._copies: dict[tuple[Grid, Copies, Copies], int] = {}
        self._pairs: dict[tuple[int, int | None], int] = {}
        self._covered: dict[tuple[bool, Grid, int, int], int] = {}
        self._areas: dict[tuple[Grid, tuple[int, int], tuple[int, int]], int] = {}

    def tiles(self, grid: Grid, rows: TileRange, columns: TileRange) -> int:
        key = grid, rows, columns
        if key not in self._tiles:
            self._tiles[key] = self.mask.tiles(grid, rows, columns)
        return self._tiles[key]

    def tiles_of_copies(self, grid: Grid, rows: Copies, columns: Copies) -> int:
        key = grid, rows, columns
        if key not in self._copies:
            self._copies[key] = self.mask.tiles_of_copies(grid, rows, columns)
        return self._copies[key]

    def met(self, grid: Grid, rows: TileRange, columns: TileRange, axis: int = 0) -> Any:
        return self.mask.met(grid, rows, columns, axis)

    def pairs(self, n_q: int, n_k: int | None = None) -> int:
        if (n_q, n_k) not in self._pairs:
            self._pairs[n_q, n_k] = self.mask.pairs(n_q, n_k)
        return self._pairs[n_q, n_k]

    def _allowed(self, grid: Grid) -> Any:
        return self.mask.allowed(*grid)

    def grouped(self, rows: int, grid: Grid) -> Mask:
        return self.mask.grouped(rows, grid)

    def widths(self, grid: Grid, least: int, most: int) -> int:
        """Return a lower bound on the sum, over tiles of `least` to `most` rows, of the columns that each one sees."""
        return self._lines_seen(True, grid, least, most)

    def heights(self, grid: Grid, least: int, most: int) -> int:
        """Return a lower bound on the sum, over tiles of `least` to `most` columns, of the rows that see each one."""
        return self._lines_seen(False, grid, least, most)

    def _lines_seen(self, by_rows: bool, grid: Grid, least: int, most: int) -> int:
        if not isinstance(self.mask, Band):
            return -(-self.pairs(*grid) // most)
        key = by_rows, grid, least, most
        if key not in self._covered:
            side = _Side.of_rows if by_rows else _Side.of_columns
            self._covered[key] = side(self.mask, grid).covered(least, most)
        return self._covered[key]

    def area(self, grid: Grid, tall: tuple[int, int], wide: tuple[int, int]) -> int:
        """Return a lower bound on the pairs in tiles with an allowed pair, for tiles of sizes between these."""
        pairs = self.pairs(*grid)
        if not isinstance(self.mask, Band):
            return pairs
        key = grid, tall, wide
        if key not in self._areas:
            rows, columns = _Side.of_rows(self.mask, grid), _Side.of_columns(self.mask, grid)
            self._areas[key] = max(rows.area(*tall, pairs), columns.area(*wide, pairs))
        return self._areas[key]


@dataclass(frozen=True)
class _Side:
    """One side of a band, its rows or its columns: line i sees the others from ⌊i/g⌋·h - before to ⌊i/g⌋·h + after.

    Attributes:
        lines, others: how many lines this side has, and the other one.
        group, times: g, lines that see alike, and h, others that are seen alike.
        before, after: how far a line sees.
    """

    lines: int
    others: int
    group: int
    times: int
    before: int
    after: int

    @staticmethod
    def of_rows(mask: Band, grid: Grid) -> _Side:
        return _Side(*grid, mask.rows, 1, *mask.limits(grid))

    @staticmethod
    def of_columns(mask: Band, grid: Grid) -> _Side:
        before, after = mask.limits(grid)
        return _Side(grid[1], grid[0], 1, mask.rows, mask.rows * after, mask.rows * (before + 1) - 1)

    def covered(self, least: int, most: int) -> int:
        """Σ of the others that tiles of lines see, at least, for tiles of sizes between two; exact if these are one.

        Others that several tiles see are seen on both sides of an edge between tiles.
        """
        edges = -(-self.lines // most) - 1
        last = self._before_edges(edges, least, -1, self.after + 1)
        return self._seen(0) + last - self._before_edges(edges, most, 0, -self.before)

    def area(self, least: int, most: int, pairs: int) -> int:
        """Pairs of tiles of lines and of the others that they see, at least; exact if the sizes are one.

        Besides the `pairs` that are allowed, a tile of r lines has Σ ⌊i/g⌋·h for i < r on each side that no edge cuts.
        """
        if least == most:
            start = (self.lines - 1) // least * least
            return least * self.covered(least, least) - (least - self.lines + start) * self._seen(start)
        tiles = self._whole(self.after + 1, least, most) + self._whole(-self.before, least, most)
        return pairs + tiles * self.times * floor_sum(least, self.group, 1, 0)

    def _seen(self, first: int) -> int:
        """Number of lines of the other side that the lines from `first` on see."""
        low = first // self.group * self.times - self.before
        high = (self.lines - 1) // self.group * self.times + self.after + 1
        return min(self.others, max(0, high)) - min(self.others, max(0, low))

    def _before_edges(self, edges: int, step: int, shift: int, offset: int) -> int:
        """Σ for t = 1 ... edges of ⌊(step·t + shift)/g⌋·h + offset, none below 0 or above the number of the others."""

        def below(limit: int) -> int:
            """Number of terms that are less than a limit; they are the first ones."""
            groups = -(-(limit - offset) // self.times)
            return min(edges, max(0, -(-(groups * self.group - shift) // step) - 1))

        first, last = below(0), below(self.others)
        floors = floor_sum(last - first, self.group, step, step * (first + 1) + shift)
        return self.times * floors + offset * (last - first) + self.others * (edges - last)

    def _whole(self, offset: int, least: int, most: int) -> int:
        """Whole tiles, at least, for which ⌊i/g⌋·h + offset is neither below 0 nor above the number of the others."""
        first = self.group * -(offset // self.times)
        behind = self.group * ((self.others - offset) // self.times + 1)
        return max(0, min(self.lines, behind) // most - max(0, -(-first // least)))
