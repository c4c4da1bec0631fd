"""Masks: the pairs (row i of Q, row j of K) that attention may use, as a property of a problem.

A mask answers one question, for sizes of any magnitude: how many tiles of a grid have an allowed pair? For tiles of one
row or one column this is the number of pairs, of rows and of columns; every exact count follows from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.core.files import load_numpy
from pebblesim.core.sizes import parse_size, separated
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

KNOWN = (
    "dense, causal, window:W, band:W (each with :start if its diagonal starts at the first key, not at the last), "
    "lengths:3,5,8 (sequences, each for itself, or :causal behind it), "
    "bigbird:BLOCK:WINDOW:GLOBAL:RANDOM[:SEED], or a file of booleans such as mask.npy"
)


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
    j - i is reduced by n_k - n_q. With `from_start` it begins at the first query and the first key instead. Each query
    i has this number of `rows`.
    """

    name: str
    before: int | None
    after: int | None
    from_start: bool = False
    rows: int = 1

    def placed(self, grid: Grid) -> Band:
        """Return the same mask, with the limits of j - i itself."""
        shift = 0 if self.from_start else grid[1] - grid[0] // self.rows
        before, after = self.before, self.after
        before, after = None if before is None else before - shift, None if after is None else after + shift
        return Band(self.name, before, after, True, self.rows)

    def grouped(self, rows: int, grid: Grid) -> Band:
        return Band(self.name, self.before, self.after, self.from_start, self.rows * rows)

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
            left, right = np.maximum(left, 0) + low, np.minimum(right, high - low - 1) + low
            left, right = (
                np.maximum(left, others.start) - others.start,
                np.minimum(right, others.stop - 1) - others.start,
            )
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


@dataclass(frozen=True, eq=False)
class HeadMasks:
    """A mask for each head: each head is counted under its own.

    Attributes:
        name: as a text.
        each: the masks, all of one shape.
    """

    name: str
    each: tuple[BlockMask, ...] = field(repr=False)

    def check(self, grid: Grid, heads: int) -> None:
        """
        Raises:
            UsageError: the number of masks is not the number of heads, or they do not fit the grid.
        """
        if len(self.each) != heads:
            shape = ", ".join(map(str, (heads, *grid)))
            raise UsageError(
                f"mask {self.name} is of {len(self.each):,} head{'s' * (len(self.each) > 1)}, and there "
                f"{'is' if heads == 1 else 'are'} {heads:,}; give an array of shape (heads, n_q, n_k) = ({shape}), or "
                f"say how many heads there are."
            )
        try:
            self.each[0]._size(grid)
        except UsageError as error:
            raise UsageError(f"{str(error).removesuffix('.')}, behind a first dimension of {heads} heads.") from None

    def among(self, sharing: int, grid: Grid) -> tuple[BlockMask, ...]:
        """Return the masks if groups of heads are counted as one head, with the rows of one position adjacent."""
        groups = (self.each[first : first + sharing] for first in range(0, len(self.each), sharing))
        return self.each if sharing == 1 else tuple(_side_by_side(self.name, group, grid) for group in groups)

    def __str__(self) -> str:
        return f"{self.name}, one for each head"


def _side_by_side(name: str, heads: Sequence[BlockMask], grid: Grid) -> BlockMask:
    """The mask of heads whose rows alternate: row i of the first, of the second, ..., then row i + 1 of the first."""
    import numpy as np

    height, width = heads[0]._size(grid)
    rows = [mask._table(grid).repeat(height, axis=0)[: grid[0]] for mask in heads]
    return BlockMask(name, np.stack(rows, axis=1).reshape(len(heads) * grid[0], -1), (1, width))


AnyHeads = Mask | HeadMasks
"""One mask for all heads, or one for each."""


def from_text(text: str) -> Mask | None:
    """Return the mask for a text such as "causal" or "window:256", or for a file's name; None for "dense".

    Raises:
        UsageError: there is no such mask or file, or the file does not contain a boolean table.
    """
    kind, *numbers = text.split(":")
    if text == "dense":
        return None
    from_start = numbers[-1:] == ["start"]
    widths = numbers[:-1] if from_start else numbers
    if kind == "causal" and not widths:
        return Band(text, None, 0, from_start)
    if kind in ("window", "band") and len(widths) == 1:
        width = _number(text, widths[0])
        return Band(text, width - 1 if kind == "window" else width, 0 if kind == "window" else width, from_start)
    if kind == "bigbird" and len(numbers) in (4, 5):
        block, window, globals_, random, *seed = (_number(text, number) for number in numbers)
        if block < 1:
            raise UsageError(f"mask {text!r}: a block has at least one row.")
        return BigBird(text, None, (block, block), block, window, globals_, random, *seed)
    if kind == "lengths" and numbers:
        return _packed(text, numbers[0], numbers[1:])
    if text.endswith(".npy"):
        return from_array(_load(text), Path(text).name)
    raise UsageError(f"mask {text!r} is not known; it is {KNOWN}.")


def from_array(table: Array, name: str = "blocks", size: tuple[int, int] | None = None) -> BlockMask:
    """Return a mask from booleans, one for each pair or for each block of pairs, of shape (⌈n/B_r⌉, ⌈n/B_c⌉).

    Args:
        table: booleans, or numbers 0 and 1.
        name: its name in messages.
        size: (B_r, B_c), the rows and columns of a block; by default those that fit n.

    Raises:
        UsageError: the table is not of this form.
    """
    import numpy as np

    booleans = np.asarray(table)
    if booleans.ndim != 2 or 0 in booleans.shape:
        heads = "; `count`, `bounds`, `sweep` and `cache` take a mask for each head" if booleans.ndim == 3 else ""
        raise UsageError(
            f"mask {name} has shape {booleans.shape}; it must have rows and columns, one for each block of pairs"
            f"{heads}."
        )
    kind = booleans.dtype.kind
    if kind != "b" and (kind not in "iuf" or not np.isin(booleans, (0, 1)).all()):
        raise UsageError(f"mask {name} holds {booleans.dtype} values other than 0 and 1; it must be booleans.")
    return BlockMask(name, booleans.astype(bool), size)


def of(mask: Mask | str | Array | None) -> Mask | None:
    """Return the mask for an argument: a `Mask`, a text for `from_text`, an array for `from_array`, or None."""
    if mask is None or isinstance(mask, Mask):
        return mask
    return from_text(mask) if isinstance(mask, str) else from_array(mask)


def of_heads(mask: AnyHeads | str | Array | None) -> AnyHeads | None:
    """Like `of`; but an array, or a file, of three dimensions has a mask for each head.

    Raises:
        UsageError: as for `of`.
    """
    if isinstance(mask, HeadMasks):
        return mask
    if isinstance(mask, str) and mask.endswith(".npy"):
        name, table = Path(mask).name, _load(mask)
    elif mask is None or isinstance(mask, str | Mask):
        return of(mask)
    else:
        import numpy as np

        name, table = "blocks", np.asarray(mask)
    if table.ndim != 3 or 0 in table.shape:
        return from_array(table, name)
    return HeadMasks(name, tuple(from_array(each, f"{name}[{head}]") for head, each in enumerate(table)))


def _number(text: str, number: str) -> int:
    least = 0 if text.startswith(("band", "bigbird")) else 1
    if number == "0" and least == 0:
        return 0
    try:
        return parse_size("a number in a mask", number)
    except UsageError:
        raise UsageError(
            f"mask {text!r}: {number!r} is not a whole number, {least} or more, such as 256, 4k or 2^20; a mask is "
            f"{KNOWN}."
        ) from None


def _packed(text: str, lengths: str, within: list[str]) -> Packed:
    sides = [tuple(_number(text, each) for each in separated("lengths", side)) for side in lengths.split("/")]
    band = from_text(":".join(within)) if within else None
    if len(sides) > 2 or len(sides[0]) != len(sides[-1]) or not isinstance(band, Band | None):
        raise UsageError(
            f"mask {text!r}: it is lengths:3,5,8 for sequences of that many rows, or lengths:1,1/40,60 for queries and "
            "keys; :causal, :window:W or :band:W may follow."
        )
    return Packed(text, sides[0], sides[-1], band)


def _load(path: str) -> Array:
    if not Path(path).is_file():
        raise UsageError(f"mask {path!r}: there is no such file.")
    return load_numpy(path, f"mask {path!r}")


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
