"""The answers of a mask to a search of block sizes: each is computed once; and lower bounds for tiles of many sizes."""

from __future__ import annotations

from typing import Any

from pebblesim.language.masks import Band, Mask
from pebblesim.language.tile_ranges import Copies, Grid, TileRange


class RememberedMask(Mask):
    """A mask that caches its answers, and gives lower bounds for tiles of many sizes."""

    def __init__(self, mask: Mask) -> None:
        self.mask, self.name = mask, mask.name
        self._tiles: dict[tuple[Grid, TileRange, TileRange], int] = {}
        self._copies: dict[tuple[Grid, Copies, Copies], int] = {}
        self._pairs: dict[tuple[int, int | None], int] = {}

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
        if isinstance(self.mask, Band) and self.mask.rows == 1 and grid[0] == grid[1]:
            return _covered(grid[0], least, most, self.mask.before, self.mask.after)
        return -(-self.pairs(*grid) // most)

    def heights(self, grid: Grid, least: int, most: int) -> int:
        """Return a lower bound on the sum, over tiles of `least` to `most` columns, of the rows that see each one."""
        if isinstance(self.mask, Band) and self.mask.rows == 1 and grid[0] == grid[1]:
            return _covered(grid[0], least, most, self.mask.after, self.mask.before)
        return -(-self.pairs(*grid) // most)

    def area(self, grid: Grid, tall: tuple[int, int], wide: tuple[int, int]) -> int:
        """Return a lower bound on the pairs in tiles with an allowed pair, for tiles of sizes between these."""
        n, least_pairs = grid[0], self.pairs(*grid)
        if isinstance(self.mask, Band) and self.mask.rows == 1 and grid[0] == grid[1]:
            before, after = self.mask.before, self.mask.after
            least_pairs = max(_area(n, *tall, before, after, least_pairs), _area(n, *wide, after, before, least_pairs))
        return least_pairs


def _covered(n: int, least: int, most: int, before: int | None, after: int | None) -> int:
    """Σ of the columns that the tiles of rows see, for any number of rows between two: exact if these are one."""
    more = -(-n // most) - 1  # tiles besides the first, or the last
    first, second = _ahead(more, least, n if before is None else before), n if after is None else after
    whole = min(more, max(0, (n - second) // most))  # tiles with so many columns behind them
    return n + first + whole * second + (more - whole) * n - most * (more * (more + 1) - whole * (whole + 1)) // 2


def _ahead(tiles: int, step: int, limit: int) -> int:
    """Σ of min(limit, step·i) for 1 ≤ i ≤ tiles."""
    short = min(tiles, limit // step)
    return step * short * (short + 1) // 2 + (tiles - short) * limit


def _area(n: int, least: int, most: int, before: int | None, after: int | None, pairs: int) -> int:
    """Pairs of tiles of rows, between two numbers of them, and of the columns that they see; of `pairs`, or more.

    Besides the pairs that are allowed these are, of a tile of r rows, r(r - 1)/2 on each side that no edge cuts off.
    """
    ahead, behind = (n if limit is None else limit for limit in (before, after))
    whole = max(0, (n - behind) // most) + max(0, n // most - -(-ahead // least))
    counted = pairs + whole * least * (least - 1) // 2
    if least < most:
        return counted
    full, last = (n - 1) // least, (n - 1) % least + 1
    area = full * least**2 + last**2
    if full:
        area += least * _ahead(full - 1, least, ahead) + last * min(ahead, full * least)
        whole = min(full, max(0, (n - behind) // least))
        area += least * (whole * behind + (full - whole) * n)
        area -= least * least * (full * (full + 1) - whole * (whole + 1)) // 2
    return max(counted, area)
