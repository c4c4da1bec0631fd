"""Sums over the tiles of queries and keys that a mask allows, for the words that passes move."""

from __future__ import annotations

from functools import cached_property
from itertools import product

from pebblesim.analysis.mask_answers import RememberedMask
from pebblesim.language.masks import Mask
from pebblesim.language.tile_ranges import TileRange


class PairSums:
    """Sums over tiles of pairs with an allowed pair; each is computed once.

    Attributes:
        mask: the allowed pairs.
        grid: the numbers of queries and of keys.
    """

    def __init__(self, mask: Mask, grid: tuple[int, int]) -> None:
        self.mask, self.grid = RememberedMask(mask), grid
        self._sums: dict[tuple[int, int, bool, bool, tuple[int, ...]], int] = {}

    def sum(self, blocks: tuple[int, int], rows: bool, columns: bool, firsts: tuple[int, ...] = (0, 0)) -> int:
        """Return the sum of 1 over allowed tiles, or of their rows, columns, or pairs.

        `firsts`: the number of queries, and of keys, in a first tile of a size of its own; 0 if there is none.
        """
        key = (*blocks, rows, columns, firsts)
        if key not in self._sums:
            given = zip(self.grid, blocks, (rows, columns), firsts, strict=True)
            sides = [
                _parts(0, min(n, first), first, counts) + _parts(first, n, each, counts)
                for n, each, counts, first in given
            ]
            self._sums[key] = sum(
                times * more * self.mask.tiles(self.grid, top, left) for (top, times), (left, more) in product(*sides)
            )
        return self._sums[key]

    @cached_property
    def pairs(self) -> int:
        """The number of allowed pairs."""
        return self.mask.pairs(*self.grid)

    def seen(self, side: int) -> int:
        """Return the number of queries (side 0), or of keys (1), that are in an allowed pair."""
        blocks = self.grid[0] if side else 1, 1 if side else self.grid[1]
        return self.sum(blocks, False, False)

    def met(self, side: int, most: int) -> int:
        """Return a lower bound on the others that blocks of up to `most` queries (side 0), or keys (1), see, in all."""
        own = self.mask.heights if side else self.mask.widths
        return max(own(self.grid, 1, most), self.seen(1 - side))


def _parts(start: int, stop: int, block: int, lengths: bool) -> list[tuple[TileRange, int]]:
    """Return the tiles of indices, with their length if it counts: the whole ones, and the last if it is ragged."""
    if start >= stop:
        return []
    whole = stop - (stop - start) % block
    if not lengths or whole in (start, stop):
        return [(TileRange(start, stop, block), min(stop - start, block) if lengths else 1)]
    return [(TileRange(start, whole, block), block), (TileRange(whole, stop, block), stop - whole)]
