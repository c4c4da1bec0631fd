"""Streams of requests to an automatic cache: what `pebblesim.cachesim.accesses` makes and `pebblesim.cachesim` replays.

A request names an item: a word, or a block of a matrix. A request of a block represents all of its words, always in the
same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import UsageError

READ, WRITE, UPDATE, START = 1, 2, 3, 0
"""Kinds of requests: an item is read, overwritten, or both. START is not a request: an iteration of a loop begins."""

MOST_REQUESTS, MOST_ITEMS = 2**27, 2**27
"""Most requests of a stream, and most items in memory; each takes some 16 bytes."""

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


@dataclass(frozen=True)
class Stream:
    """Requests, in order.

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
