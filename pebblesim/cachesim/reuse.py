"""How far apart the uses of items are, and so what LRU caches of all sizes do: one pass through a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pebblesim.cachesim.requests import AnyStream, Array

ROOM = 2**10
"""Room for distances at first, a power of 2; it grows when half of it is used."""


class Order:
    """The items of a stream in the order of their last uses."""

    def __init__(self, sizes: Array) -> None:
        from pebblesim.cachesim import kernels

        self._sizes = sizes
        self._unit = bool((sizes == 1).all())
        self._known = (kernels.unit_order if self._unit else kernels.sized_order)(len(sizes))

    def distances(self, ids: Array) -> Array:
        """For each of the next requests, the words touched since the last use of its item, including that item.

        It is 0 for a first use. A request hits in an LRU cache of M words if its distance is at most M.
        """
        from pebblesim.cachesim import kernels

        if self._unit:
            return kernels.unit_distances(ids, *self._known)
        return kernels.sized_distances(ids, self._sizes, *self._known)

    def from_the_last(self) -> Array:
        """Return the items that have been used, from the last used."""
        slots = self._known[-2]
        return np.argsort(-slots, kind="stable")[: np.count_nonzero(slots >= 0)]


@dataclass(frozen=True)
class Reuse:
    """How often an LRU of any capacity misses, by the distances of a stream; all in units of the stream.

    Attributes:
        counts: requests and words missed, words fetched and written back by an LRU of each capacity that was asked
            for: shape (4, capacities).
        compulsory: words that any cache must fetch: those whose first request is a read.
        distances: the different distances of further reads, rising.
        words: the words that are read at each of them.
        largest: words of the largest item.
    """

    counts: Array
    compulsory: int
    distances: Array
    words: Array
    largest: int

    @classmethod
    def of(cls, stream: AnyStream, capacities: Sequence[int]) -> Reuse:
        """Go through a stream once, for LRU caches of these sizes in its units."""
        from pebblesim.cachesim import kernels

        rising, place = np.unique(np.asarray(capacities, np.int64), return_inverse=True)
        counts, furthest = np.zeros((4, len(rising) + 1), np.int64), np.full(len(stream.sizes), -1, np.int32)
        table, used = np.zeros((2, ROOM), np.int64), np.zeros(2, np.int64)
        order = Order(stream.sizes)
        for ids, kinds in stream.pieces():
            distances = order.distances(ids)
            kernels.tally(ids, kinds, stream.sizes, distances, rising, counts, furthest)
            done = 0
            while (done := kernels.add_reads(ids, kinds, stream.sizes, distances, done, table, used)) < len(ids):
                table = kernels.enlarged(table)
        ended = kernels.tallied(order.from_the_last(), stream.sizes, stream.kept, rising, counts, furthest)
        distances, words = table[:, np.argsort(table[0], kind="stable")][:, len(table[0]) - used[0] :]
        return cls(ended[:, place], int(used[1]), distances, words, int(stream.sizes.max(initial=1)))

    @property
    def requested(self) -> int:
        """Words that the requests read."""
        return self.compulsory + int(self.words.sum())

    def enough(self, words: int) -> int | None:
        """Return the least capacity with which an LRU fetches at most this many words; None if none is enough."""
        spare = words - self.compulsory
        if spare < 0:
            return None
        again = int(self.words.sum()) - np.append(0, np.cumsum(self.words))  # if so many of the distances hit
        hit = int(np.argmax(again <= spare))
        return max(self.largest, int(self.distances[hit - 1]) if hit else 1)
