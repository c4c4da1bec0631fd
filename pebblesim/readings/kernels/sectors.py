"""`sectors`: exact words and 32-byte sectors that each launch moves between the SMs and L2, for sizes however large.

Memory moves in sectors of 8 words. Rows of a matrix start at a sector (their pitch is a multiple of 8 words), so a tile
of r rows touches r times the sectors of one row, and these depend only on where its columns start modulo 8 and how many
they are. A kernel touches each sector of a tile once for each time that it moves the tile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from pebblesim.language import program as ir
from pebblesim.readings.kernels.launches import Launch, shares

WORDS = 8
"""Words in a sector: 32 bytes of float32."""

Where = tuple[int, int]  # start of a range modulo a sector, and its length


@dataclass(frozen=True)
class Moved:
    """What a launch moves: words, and sectors of 8 words."""

    words_read: int = 0
    words_written: int = 0
    sectors_read: int = 0
    sectors_written: int = 0

    def __add__(self, other: Moved) -> Moved:
        if not isinstance(other, Moved):
            return NotImplemented
        return Moved(
            self.words_read + other.words_read,
            self.words_written + other.words_written,
            self.sectors_read + other.sectors_read,
            self.sectors_written + other.sectors_written,
        )


def pitch(tensor: ir.Tensor, sizes: ir.Sizes) -> int:
    """Words from one row of a tensor to the next; a vector is one row."""
    return -(-sizes[tensor.shape[-1]] // WORDS) * WORDS


def sectors_of(start: int, words: int) -> int:
    """Sectors that so many words in a row touch, from a word on."""
    return -(-(start + words) // WORDS) - start // WORDS


def moved(launch: Launch, sizes: ir.Sizes, workers: int = 1) -> Moved:
    """What a launch moves, exactly."""
    copies = shares(launch, sizes, workers)
    whole: dict[ir.Range, Where] = {}
    if launch.kind == "sum":
        (tensor,) = launch.copies
        words, sectors = _touched(tuple(ir.Range(dim) for dim in tensor.shape), sizes, whole)
        return Moved(copies * words, words, copies * sectors, sectors)
    found: Counter[str] = Counter()
    for node in launch.body:
        times = 1 if node is launch.split else copies  # each worker does what stands around the loop
        for key, amount in _moved([node], sizes, whole).items():
            found[key] += amount * times
    return Moved(**found)


def _moved(body: list[ir.Node], sizes: ir.Sizes, at: dict[ir.Range, Where]) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in body:
        if isinstance(node, ir.Loop):
            for where, times in _iterations(node.range, sizes, at):
                at[node.range] = where
                for key, amount in _moved(node.body, sizes, at).items():
                    found[key] += amount * times
        elif isinstance(node, ir.Read | ir.Write | ir.Init):
            ranges = node.ranges if isinstance(node, ir.Init) else node.tile.ranges
            way = "read" if isinstance(node, ir.Read) else "written"
            words, sectors = _touched(ranges, sizes, at)
            found[f"words_{way}"] += words
            found[f"sectors_{way}"] += sectors
    return found


def _touched(ranges: ir.Ranges, sizes: ir.Sizes, at: dict[ir.Range, Where]) -> tuple[int, int]:
    """(words, sectors) of a tile."""
    *rows, (start, columns) = (_where(rng, sizes, at) for rng in ranges)
    height = rows[0][1] if rows else 1
    return height * columns, height * sectors_of(start, columns)


def _where(rng: ir.Range, sizes: ir.Sizes, at: dict[ir.Range, Where]) -> Where:
    return (0, sizes[rng.name]) if rng.parent is None else at[rng]


def _iterations(rng: ir.Range, sizes: ir.Sizes, at: dict[ir.Range, Where]) -> Iterator[tuple[Where, int]]:
    """The iterations of a loop by where they are, and how many are there: at most nine kinds."""
    assert rng.parent is not None
    start, whole = _where(rng.parent, sizes, at)
    block = ir.length(rng.block, sizes)
    full, period = (whole - 1) // block, WORDS // gcd(WORDS, block)
    for first in range(min(full, period)):
        yield ((start + first * block) % WORDS, block), -(-(full - first) // period)
    yield ((start + full * block) % WORDS, whole - full * block), 1
