"""`sectors`: exact words and 32-byte sectors that each launch moves between the SMs and L2, for any sizes.

Memory moves in sectors of 8 words. Rows of a matrix start at a sector (their pitch is a multiple of 8 words), so a tile
of r rows touches r times the sectors of one row. This number depends only on the first column modulo 8 and the number
of columns. A kernel touches each sector of a tile once for each move of the tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from math import gcd

from pebblesim.language import program as ir
from pebblesim.language.loops import walk
from pebblesim.launches.launches import Launch, shares

WORDS = 8
"""Words in a sector: 32 bytes of float32."""

Where = tuple[int, int]  # start of a range modulo a sector, and its length


@dataclass(frozen=True)
class Moved:
    """Traffic of a launch: words, and sectors of 8 words."""

    words_read: int = 0
    words_written: int = 0
    sectors_read: int = 0
    sectors_written: int = 0

    @property
    def sectors(self) -> int:
        """Sectors read and written."""
        return self.sectors_read + self.sectors_written

    def times(self, heads: int) -> Moved:
        """Traffic of a launch for so many heads, each of whose arrays starts at a sector."""
        return Moved(*(heads * number for number in astuple(self)))


def pitch(tensor: ir.Tensor, sizes: ir.Sizes) -> int:
    """Distance in words between rows of a tensor; a vector is one row."""
    return -(-sizes[tensor.shape[-1]] // WORDS) * WORDS


def sectors_of(start: int, words: int) -> int:
    """Number of sectors touched by a run of words."""
    return -(-(start + words) // WORDS) - start // WORDS


def moved(launch: Launch, sizes: ir.Sizes, workers: int = 1) -> Moved:
    """Compute the exact traffic of a launch."""
    copies, at = shares(launch, sizes, workers), _Sectors(sizes)
    if launch.kind == "sum":
        (tensor,) = launch.copies
        words, sectors = at.touched(tuple(ir.Range(dim) for dim in tensor.shape))
        return Moved(copies * words, words, copies * sectors, sectors)
    read = written = sectors_read = sectors_written = 0
    for node in launch.body:
        times = 1 if node is launch.split else copies  # each worker executes the statements around the loop
        for inner, each in walk([node], at):
            if isinstance(inner, ir.Read | ir.Write | ir.Init):
                words, sectors = (int(times * each) * count for count in at.touched(ir.moved_part(inner)))
                if isinstance(inner, ir.Read):
                    read, sectors_read = read + words, sectors_read + sectors
                else:
                    written, sectors_written = written + words, sectors_written + sectors
    return Moved(read, written, sectors_read, sectors_written)


class _Sectors:
    """Iterations grouped by the start of their tiles within a sector: at most nine kinds for each loop."""

    def __init__(self, sizes: ir.Sizes) -> None:
        self.sizes = sizes
        self._at: dict[ir.Range, Where] = {}

    def touched(self, ranges: ir.Ranges) -> tuple[int, int]:
        """Return (words, sectors) of a tile."""
        *rows, (start, columns) = map(self._where, ranges)
        height = rows[0][1] if rows else 1
        return height * columns, height * sectors_of(start, columns)

    def _where(self, rng: ir.Range) -> Where:
        return (0, self.sizes[rng.name]) if rng.parent is None else self._at[rng]

    def iterations(self, loop: ir.Loop) -> Iterator[int]:
        rng = loop.range
        assert rng.parent is not None
        start, whole = self._where(rng.parent)
        block = ir.length(rng.block, self.sizes)
        full, period = (whole - 1) // block, WORDS // gcd(WORDS, block)
        for first in range(min(full, period)):
            self._at[rng] = (start + first * block) % WORDS, block
            yield -(-(full - first) // period)
        self._at[rng] = (start + full * block) % WORDS, whole - full * block
        yield 1
