"""Streams of requests to an automatic cache: what `pebblesim.cachesim.accesses` makes and `pebblesim.cachesim` replays.

A request names an item: a word, or a block of a matrix. A request of a block represents all of its words, always in the
same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import UsageError

READ, WRITE, UPDATE, START = 1, 2, 3, 0
"""Kinds of requests: an item is read, overwritten, or both. START is not a request: an iteration of a loop begins."""

MOST_REQUESTS, MOST_ITEMS = 2**27, 2**27
"""Most requests of a stream, and most items in memory; each item takes some 16 bytes, and so does each request that is
kept."""

PIECE = 2**20
"""Requests of a stream in parts that are made and replayed at a time."""

SHORT = 2**12
"""Neighbouring parts of fewer requests are kept as one."""

MOST_WORDS = 2**62
"""Sums of sizes stay below, so that 64 bits hold them."""

Array = NDArray[Any]


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix in memory, cut into items: `rows` x `columns` words, blocks of `height` x `width`, numbered row by row.

    `name` is the name of a tensor, or of a tile with its own place, with a leading ~. `kept` says whether its words
    are needed at the end. There may be several `copies`, one after the other.
    """

    name: str
    rows: int
    columns: int
    height: int
    width: int
    first: int
    kept: bool
    copies: int = 1

    @property
    def across(self) -> int:
        """Items from one row of items to the next."""
        return -(-self.columns // self.width)

    @property
    def down(self) -> int:
        """Rows of items, of each copy."""
        return -(-self.rows // self.height)

    @property
    def items(self) -> int:
        """Number of items."""
        return self.copies * self.down * self.across

    def sizes(self) -> Array:
        """Words of each item."""
        heights, widths = (
            np.minimum(side, whole - np.arange(0, whole, side))
            for side, whole in ((self.height, self.rows), (self.width, self.columns))
        )
        return np.tile((heights[:, None] * widths).astype(np.int64).ravel(), self.copies)


Batch = tuple[Array, ...]
"""Items and kinds of requests in order and, for thread blocks, operations since the request before."""


class Part(NamedTuple):
    """Requests that are made when they are replayed, and each time again: their number, and what makes them."""

    number: int
    make: Callable[[], Batch]


def joined(parts: Iterable[Part], nothing: Batch) -> Batch:
    """Make the requests of all parts."""
    return tuple(np.concatenate(each) for each in zip(nothing, *(part.make() for part in parts), strict=True))


def kept_short(parts: Iterable[Part]) -> Iterator[Part]:
    """Make the requests of short parts, and keep neighbours together."""
    batches: list[Batch] = []
    held = 0

    def together() -> Part:
        batch = tuple(np.concatenate(each) for each in zip(*batches, strict=True))
        return Part(held, lambda: batch)

    for part in parts:
        if held and (held >= SHORT or part.number >= SHORT):
            yield together()
            batches, held = [], 0
        if part.number >= SHORT:
            yield part
        elif part.number:
            batches.append(part.make())
            held += part.number
    if held:
        yield together()


class Requested:
    """Requests of items of some sizes, in order, in parts."""

    parts: Sequence[Part]
    sizes: Array

    def pieces(self, backwards: bool = False) -> Iterator[tuple[Array, Array]]:
        """Yield items and kinds of some `PIECE` requests at a time, or of fewer; `backwards`: the last piece first."""
        pieces: list[list[Part]] = []
        number = PIECE
        for part in self.parts:
            if number + part.number > PIECE:
                pieces.append([])
                number = 0
            pieces[-1].append(part)
            number += part.number
        for piece in reversed(pieces) if backwards else pieces:
            ids, kinds = (
                piece[0].make()
                if len(piece) == 1
                else map(np.concatenate, zip(*(part.make() for part in piece), strict=True))
            )
            yield ids, kinds

    def renamed(self, items: Array, also: int = 0) -> tuple[Part, ...]:
        """The requests with other numbers for the items, and with a kind added."""
        return tuple(Part(part.number, partial(_renamed, part, items, np.uint8(also))) for part in self.parts)


@dataclass(frozen=True)
class StreamInParts(Requested):
    """Requests of which only those are in memory that are replayed; attributes as of `Stream`.

    Raises:
        UsageError: all requests together are of `MOST_WORDS` words or more.
    """

    parts: Sequence[Part]
    sizes: Array
    kept: Array
    places: tuple[StoredMatrix, ...] = ()
    unit: int = 1

    def __post_init__(self) -> None:
        if len(self) * int(self.sizes.max(initial=0)) >= MOST_WORDS:
            self.whole()

    def __len__(self) -> int:
        return sum(part.number for part in self.parts)

    def whole(self) -> Stream:
        """Make all requests."""
        ids, kinds = joined(self.parts, (np.empty(0, np.int32), np.empty(0, np.uint8)))
        return Stream(ids, kinds, self.sizes, self.kept, self.places, unit=self.unit)


def _renamed(part: Part, items: Array, also: Any) -> Batch:
    ids, kinds = part.make()
    return items[ids], kinds | also


@dataclass(frozen=True)
class Stream(Requested):
    """Requests, in order, all in memory.

    Attributes:
        ids: the item of each, from 0 on, int32.
        kinds: READ, WRITE or UPDATE for each; empty if all are reads.
        sizes: words of each item.
        kept: for each item, whether what was written must be in memory at the end; empty if all must.
        places: the matrices of the items; empty for a stream that is not from a schedule.
        starts: where the requests of each thread block begin, and the end; None if there are none.
        blocks: the number of each thread block in its grid, row by row.
        work: operations done between a request and the one before it, in thread blocks; of whole tiles, also at edges.
        unit: words that a size of 1 stands for: of a line, if items are lines.
        numbers: the number of each item, from which its set follows; None if that is its position.

    Raises:
        UsageError: all requests together are of `MOST_WORDS` words or more.
    """

    ids: Array
    kinds: Array
    sizes: Array
    kept: Array
    places: tuple[StoredMatrix, ...] = ()
    starts: Array | None = None
    blocks: Array | None = None
    work: Array | None = None
    unit: int = 1
    numbers: Array | None = None

    def __post_init__(self) -> None:
        if len(self.ids) * int(self.sizes.max(initial=0)) >= MOST_WORDS and self._words(self.ids) >= MOST_WORDS:
            raise UsageError("all requests of a stream together are of less than 2^62 words; these are of more.")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def parts(self) -> Sequence[Part]:  # type: ignore[override]
        """The requests a piece at a time."""
        return [self._part(begin) for begin in range(0, len(self.ids), PIECE)]

    def _part(self, begin: int) -> Part:
        ids, kinds = self.ids[begin : begin + PIECE], self.kinds[begin : begin + PIECE]
        return Part(len(ids), lambda: (ids, kinds))

    def _words(self, ids: Array) -> int:
        times = np.bincount(ids, minlength=len(self.sizes))
        return sum(map(mul, times.tolist(), self.sizes.tolist()))

    @property
    def requested(self) -> int:
        """Number of words that the requests read; an item that is overwritten is not read."""
        return self._words(self.ids[(self.kinds & READ) > 0] if len(self.kinds) else self.ids) * self.unit

    @property
    def plain(self) -> bool:
        """Whether all items are single words that are only read."""
        return not len(self.kinds) and bool((self.sizes == 1).all())

    @property
    def touched(self) -> int:
        """Number of different words that are touched: a larger cache has no benefit."""
        used = np.zeros(len(self.sizes), bool)
        used[self.ids] = True
        return int(self.sizes[used].sum()) * self.unit


AnyStream = Stream | StreamInParts
