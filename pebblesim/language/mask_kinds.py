"""Kinds of masks: bands, booleans for blocks of pairs, packed sequences, and BigBird.

A mask answers one question, for sizes of any magnitude: how many tiles of a grid have an allowed pair? For tiles of one
row or one column this is the number of pairs, of rows and of columns; every exact count follows from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, pairwise, product
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.language.tile_ranges import (
    Copies,
    Grid,
    TileRange,
    against_whole_side,
    covered,
    cut_by,
    tiles_in_band,
    tiles_of,
)

Array = Any

LARGEST_TABLE = 2**14
"""Largest n for which a mask is listed pair by pair: at most n² pairs, also if n_q ≠ n_k."""


class Mask(ABC):
    """The allowed pairs of queries and keys."""

    name: str

    @abstractmethod
    def tiles(self, grid: Grid, rows: TileRange, columns: TileRange) -> int:
        """Return the number of tiles of the grid of queries and keys that have an allowed pair.

        Raises:
            UsageError: the mask does not fit the grid.
        """

    def tiles_of_copies(self, grid: Grid, rows: Copies, columns: Copies) -> int:
        """Return the same as `tiles`, summed over all copies of the rows and of the columns."""
        return sum(self.tiles(grid, *pair) for pair in product(rows.each(), columns.each()))

    @abstractmethod
    def met(self, grid: Grid, rows: TileRange, columns: TileRange, axis: int = 0) -> Array:
        """Return, for each tile of rows (axis 0) or columns (1), the number of the other tiles with an allowed pair.

        Raises:
            UsageError: as for `tiles`, or there are too many tiles to list.
        """

    def empty(self, grid: Grid, block: int, axis: int) -> Array:
        """Return, for each row (axis 0) or column (1), if its tile has no allowed pair; one value if all agree."""
        rows, columns = against_whole_side(grid, block, axis)
        return (self.met(grid, rows, columns, axis) == 0).repeat(block)[: grid[axis]]

    def pairs(self, n_q: int, n_k: int | None = None) -> int:
        """Return Z, the number of allowed pairs; by default there are as many keys as queries."""
        grid = n_q, n_q if n_k is None else n_k
        return self.tiles(grid, TileRange(0, grid[0], 1), TileRange(0, grid[1], 1))

    def allowed(self, n_q: int, n_k: int | None = None) -> Array:
        """Return the mask pair by pair: booleans of shape (n_q, n_k), or (n_q, n_q).

        Raises:
            UsageError: there are too many pairs to list, or the mask does not fit these sizes.
        """
        grid = n_q, n_q if n_k is None else n_k
        if grid[0] * grid[1] > LARGEST_TABLE**2:
            raise UsageError(f"a mask is spelled out for n up to {LARGEST_TABLE:,}; `count` takes any n.")
        return self._allowed(grid)

    @abstractmethod
    def _allowed(self, grid: Grid) -> Array: ...

    @abstractmethod
    def grouped(self, rows: int, grid: Grid) -> Mask:
        """Return the mask in which each query of the grid is replaced by this number of rows, one after the other."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Band(Mask):
    """Pairs with -before ≤ j - i ≤ after; None is no limit: causal masks and sliding windows.

    If the numbers of keys and queries differ, the diagonal ends at the last query and the last key, as in decoding, so
    j - i is reduced by n_k - n_q. If not `at_end`, it begins at the first query and the first key instead. Each query i
    has this number of `rows`.
    """

    name: str
    before: int | None
    after: int | None
    at_end: bool = field(default=True, kw_only=True)
    rows: int = field(default=1, kw_only=True)

    def placed(self, grid: Grid) -> Band:
        """Return the same mask, with the limits of j - i itself."""
        shift = grid[1] - grid[0] // self.rows if self.at_end else 0
        before, after = self.before, self.after
        before, after = None if before is None else before - shift, None if after is None else after + shift
        return replace(self, before=before, after=after, at_end=False)

    def grouped(self, rows: int, grid: Grid) -> Band:
        return replace(self, rows=self.rows * rows)

    def limits(self, grid: Grid) -> tuple[int, int]:
        """The limits of i - j and of j - i."""
        band, no_limit = self.placed(grid), sum(grid)
        return (
            no_limit if band.before is None else min(no_limit, band.before),
            no_limit if band.after is None else min(no_limit, band.after),
        )

    def tiles(self, grid: Grid, rows: TileRange, columns: TileRange) -> int:
        return tiles_in_band(Copies(rows), columns, *self.limits(grid), self.rows)

    def tiles_of_copies(self, grid: Grid, rows: Copies, columns: Copies) -> int:
        return sum(tiles_in_band(rows, each, *self.limits(grid), self.rows) for each in columns.each())

    def met(self, grid: Grid, rows: TileRange, columns: TileRange, axis: int = 0) -> Array:
        before, after = self.limits(grid)
        if axis == 0:
            starts, stops = tiles_of(rows)
            first, last = starts // self.rows - before, (stops - 1) // self.rows + after
            return cut_by(first, last, columns)
        starts, stops = tiles_of(columns)
        return cut_by((starts - after) * self.rows, (stops + before) * self.rows - 1, rows)

    def empty(self, grid: Grid, block: int, axis: int) -> Array:
        import numpy as np

        if self.tiles(grid, *against_whole_side(grid, block, axis)) == -(-grid[axis] // block):
            return np.zeros((), bool)
        return super().empty(grid, block, axis)

    def _allowed(self, grid: Grid) -> Array:
        import numpy as np

        before, after = self.limits(grid)
        distance = np.arange(grid[1])[None, :] - np.arange(grid[0])[:, None] // self.rows
        return (-before <= distance) & (distance <= after)


@dataclass(frozen=True, eq=False)
class BlockMask(Mask):
    """A boolean for each block of pairs; a block has `size` = (rows, columns), or as many as fit the grid."""

    name: str
    table: Array = field(repr=False)
    size: tuple[int, int] | None = None

    def tiles(self, grid: Grid, rows: TileRange, columns: TileRange) -> int:
        return int(self.met(grid, rows, columns).sum())

    def met(self, grid: Grid, rows: TileRange, columns: TileRange, axis: int = 0) -> Array:
        import numpy as np

        sums = _sums(self, grid)
        height, width = self._size(grid)
        (top, bottom, row), (left, right, column) = covered(rows, height), covered(columns, width)
        inside = (
            sums[bottom[:, None], right]
            - sums[top[:, None], right]
            - sums[bottom[:, None], left]
            + sums[top[:, None], left]
        )
        has = (inside > 0).astype(np.float64)  # whose products are fast, and exact up to 2^53
        if axis == 1:
            return (np.bincount(row, minlength=len(top)) @ has).astype(np.int64)[column]
        return (has @ np.bincount(column, minlength=len(left))).astype(np.int64)[row]

    def _allowed(self, grid: Grid) -> Array:
        height, width = self._size(grid)
        return self._table(grid).repeat(height, axis=0).repeat(width, axis=1)[: grid[0], : grid[1]]

    def grouped(self, rows: int, grid: Grid) -> BlockMask:
        height, width = self._size(grid)
        return BlockMask(self.name, self._table(grid), (height * rows, width))

    def _table(self, grid: Grid) -> Array:
        return self.table

    def _size(self, grid: Grid) -> tuple[int, int]:
        """Rows and columns of a block of pairs."""
        shape = self._table(grid).shape
        size = self.size or tuple(-(-n // count) for n, count in zip(grid, shape, strict=True))
        square = grid[0] == grid[1]
        for n, count, block, what, name in zip(grid, shape, size, ("rows", "columns"), ("n_q", "n_k"), strict=True):
            if -(-n // block) != count:
                raise UsageError(
                    f"mask {self.name} has {count} {what} of blocks, which cannot be blocks of {block} of "
                    f"{'n' if square else name} = {n}; {_that_fits(grid)}."
                )
        if self.size is None and _is_line(grid, shape):
            what = "row" if shape[0] == 1 else "column"
            raise UsageError(f"mask {self.name} has shape {shape}, one {what} for all; {_that_fits(grid)}.")
        return size[0], size[1]


@dataclass(frozen=True)
class Packed(Mask):
    """Sequences one after the other; the rows of each attend only to its own keys, or to those that a band allows.

    Attributes:
        name: as a text.
        queries, keys: length of each sequence.
        band: which pairs of a sequence are allowed; None for all.
    """

    name: str
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    band: Band | None = None

    def tiles(self, grid: Grid, rows: TileRange, columns: TileRange) -> int:
        return _tiles_of_packed(self, grid, rows, columns)

    def met(self, grid: Grid, rows: TileRange, columns: TileRange, axis: int = 0) -> Array:
        """Each tile has one interval of tiles of the other axis in each sequence; two intervals may share a tile."""
        import numpy as np

        lines, others = (rows, columns) if axis == 0 else (columns, rows)
        starts, stops = tiles_of(lines)
        counts, behind = np.zeros(len(starts), np.int64), np.full(len(starts), -1)
        own = self._sequences(grid)
        for sequence in own:
            (start, stop), (low, high) = sequence if axis == 0 else sequence[::-1]
            here = slice(*np.searchsorted(stops, [start, stop - 1], "right"))  # the tiles with lines of it
            here = slice(here.start, min(len(starts), here.stop + 1))
            first, last = np.maximum(starts[here], start), np.minimum(stops[here], stop) - 1
            left, right = self._seen(first - start, last - start, sequence, axis)
            left = np.maximum(left + low, max(low, others.start)) - others.start
            right = np.minimum(right + low, min(high, others.stop) - 1) - others.start
            some = (first <= last) & (left <= right)
            from_, to = left // others.block, right // others.block
            counts[here] += np.where(some, to - np.maximum(from_, behind[here] + 1) + 1, 0)
            behind[here] = np.where(some, to, behind[here])
        return counts

    def pairs(self, n_q: int, n_k: int | None = None) -> int:
        lengths = zip(*self._lengths((n_q, n_q if n_k is None else n_k)), strict=True)
        return sum(q * k if self.band is None else self.band.pairs(q, k) for q, k in lengths)

    def grouped(self, rows: int, grid: Grid) -> Packed:
        band = self.band and self.band.grouped(rows, grid)
        return Packed(self.name, tuple(rows * length for length in self.queries), self.keys, band)

    def _seen(self, first: Array, last: Array, sequence: tuple[Grid, Grid], axis: int) -> tuple[Array, Array]:
        """Return the interval of keys, or of queries, with which lines of a sequence have allowed pairs."""
        import numpy as np

        if self.band is None:
            return np.zeros_like(first), np.full_like(first, sum(map(sum, sequence)))
        lengths = [stop - start for start, stop in sequence]
        before, after = self.band.limits((lengths[0], lengths[1]))
        group = self.band.rows
        if axis == 0:
            return first // group - before, last // group + after
        return (first - after) * group, (last + before + 1) * group - 1

    def _allowed(self, grid: Grid) -> Array:
        import numpy as np

        table = np.zeros(grid, bool)
        for (top, bottom), (left, right) in self._sequences(grid):
            own = bottom - top, right - left
            table[top:bottom, left:right] = True if self.band is None else self.band.allowed(*own)
        return table

    def _lengths(self, grid: Grid) -> tuple[tuple[int, ...], tuple[int, ...]]:
        for n, lengths, what in zip(grid, (self.queries, self.keys), ("queries", "keys"), strict=True):
            if sum(lengths) != n:
                raise UsageError(
                    f"mask {self.name} is of {sum(lengths):,} {what}, and there are {n:,}; the lengths of sequences "
                    "add up to all rows, those of keys behind a slash if they differ: lengths:1,1/40,60."
                )
        return self.queries, self.keys

    def _sequences(self, grid: Grid) -> list[tuple[Grid, Grid]]:
        """Return the start and end of each sequence, among the queries and among the keys."""
        ends = [[0, *accumulate(lengths)] for lengths in self._lengths(grid)]
        return list(zip(*(list(pairwise(end)) for end in ends), strict=True))


@lru_cache(maxsize=2**15)  # the schedules of a problem ask for the same tiles
def _tiles_of_packed(mask: Packed, grid: Grid, rows: TileRange, columns: TileRange) -> int:
    return int(mask.met(grid, rows, columns).sum())


@dataclass(frozen=True, eq=False)
class BigBird(BlockMask):
    """Zaheer et al. 2020: in blocks, a window about the diagonal, a few global rows and columns, and random ones."""

    block: int = 64
    window: int = 3
    globals: int = 1
    random: int = 1
    seed: int = 0

    def _table(self, grid: Grid) -> Array:
        if grid[0] != grid[1]:
            raise UsageError(f"mask {self.name} is for as many queries as keys, and these are {grid[0]} and {grid[1]}.")
        return _bigbird(-(-grid[0] // self.block), self.window, self.globals, self.random, self.seed)


def _that_fits(grid: Grid) -> str:
    """Return the allowed shapes of an array of booleans, as text."""
    square = grid[0] == grid[1]
    rows, columns = ("n", "n") if square else ("n_q", "n_k")
    return (
        f"give an array of shape (⌈{rows}/B_r⌉, ⌈{columns}/B_c⌉) for tiles of B_r x B_c pairs, or of "
        f"({rows}, {columns}) = ({grid[0]}, {grid[1]})"
    )


def _is_line(grid: Grid, shape: tuple[int, ...]) -> bool:
    """Whether a table is one row, or one column, of single keys, or queries: of another problem than this."""
    return any(shape[one] == 1 < grid[one] and shape[other] == grid[other] > 1 for one, other in ((0, 1), (1, 0)))


@lru_cache(maxsize=1)  # it may be large
def _sums(mask: BlockMask, grid: Grid) -> Array:
    """Return the numbers of allowed blocks above and to the left."""
    import numpy as np

    return np.pad(np.cumsum(np.cumsum(mask._table(grid), axis=0, dtype=np.int64), axis=1), ((1, 0), (1, 0)))


@lru_cache(maxsize=16)
def _bigbird(blocks: int, window: int, globals_: int, random: int, seed: int) -> Array:
    import numpy as np

    if blocks > LARGEST_TABLE:
        raise UsageError(f"a bigbird mask of {blocks:,} x {blocks:,} blocks is too large; take larger blocks.")
    for what, number in (("global", globals_), ("random", random)):
        if number > blocks:
            raise UsageError(
                f"a bigbird mask with {number:,} {what} blocks in a row was given, but a row has {blocks:,} blocks; "
                "take fewer, or smaller ones."
            )
    index = np.arange(blocks)
    table = abs(index[:, None] - index[None, :]) <= window // 2 if window else np.zeros((blocks, blocks), bool)
    table[:globals_], table[:, :globals_] = True, True
    rng = np.random.default_rng(seed)
    for row in table:
        row[rng.choice(blocks, size=random, replace=False)] = True
    return table
