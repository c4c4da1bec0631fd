"""What reaches HBM: a launch's accesses replayed through a model of the L2 cache.

The model: lines of four 32-byte sectors, the least recently used is given up first; a read fetches the sectors that
are missing, a write fetches nothing, and dirty sectors go to HBM when their line is given up, so that what is dirty at the
end of a launch stays. The blocks that the GPU holds at once move their tiles in turn, and the next block starts when one
is done. The cache is empty when a launch starts, as it is under the profiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from pebblesim import program as ir
from pebblesim.readings.accesses import Access, block_accesses, number_of_blocks
from pebblesim.readings.launches import Launch

SECTOR = 32
SECTORS_IN_A_LINE = 4
CHUNK = 2**16
"""Accesses that are replayed at a time."""


@dataclass(frozen=True)
class Hbm:
    """Bytes that a launch reads from HBM and writes to it."""

    read: int
    written: int


def replay(launch: Launch, sizes: ir.Sizes, workers: int, room: dict[str, int], *, at_once: int, capacity: int) -> Hbm:
    """Replay a launch.

    Args:
        launch, sizes, workers: as for `moved`.
        room: words of each array in memory, as `memory` gives them.
        at_once: thread blocks that the GPU holds at once.
        capacity: bytes of L2 that count.
    """
    base, lines = {}, 0
    for name, words in room.items():
        base[name] = lines * SECTORS_IN_A_LINE
        lines += -(-words * 4 // (SECTOR * SECTORS_IN_A_LINE))
    cache = _Lru(lines, capacity // (SECTOR * SECTORS_IN_A_LINE))
    stream = interleaved(launch, sizes, workers, at_once)
    while chunk := [(base[a.array] + a.first, a.rows, a.sectors, a.stride, a.write) for a in islice(stream, CHUNK)]:
        cache.take(np.array(chunk, np.int64))
    return Hbm(cache.fetched * SECTOR, cache.given_up * SECTOR)


def interleaved(launch: Launch, sizes: ir.Sizes, workers: int, at_once: int) -> Iterator[Access]:
    """The accesses of all blocks, as many at once as there can be, each in turn."""
    waiting = (block_accesses(launch, sizes, workers, b) for b in range(number_of_blocks(launch, sizes, workers)))
    running = list(islice(waiting, at_once))
    while running:
        kept = []
        for block in running:
            access = next(block, None)
            while access is None:  # this block is done, and another takes its place
                following = next(waiting, None)
                if following is None:
                    break
                block = following
                access = next(block, None)
            if access is not None:
                yield access
                kept.append(block)
        running = kept


class _Lru:
    """Lines in a ring, the least recently used first; each line of memory has a number."""

    def __init__(self, lines: int, capacity: int) -> None:
        self._next, self._previous = (np.arange(lines + 1, dtype=np.int64) for _ in range(2))
        self._valid, self._dirty = (np.zeros(lines, np.uint8) for _ in range(2))
        self._counts = np.array([max(capacity, 1), 0, 0, 0], np.int64)  # room, lines held, sectors in, sectors out

    @property
    def fetched(self) -> int:
        """Sectors that were read from HBM."""
        return int(self._counts[2])

    @property
    def given_up(self) -> int:
        """Sectors that were written to HBM."""
        return int(self._counts[3])

    def take(self, accesses: Any) -> None:
        """Rows of: first sector, rows, sectors in a row, sectors from row to row, whether it is a write."""
        _take(accesses, self._next, self._previous, self._valid, self._dirty, self._counts)


def _kernel() -> Any:
    from numba import njit

    @njit(cache=True)
    def take(accesses: Any, after: Any, before: Any, valid: Any, dirty: Any, counts: Any) -> None:
        ends = valid.size  # the ring's start and end: what follows it is the oldest line
        for n in range(accesses.shape[0]):
            first, rows, sectors, stride, write = accesses[n]
            for row in range(rows):
                for sector in range(first + row * stride, first + row * stride + sectors):
                    line, bit = sector // 4, 1 << (sector % 4)
                    if valid[line]:
                        after[before[line]], before[after[line]] = after[line], before[line]
                    else:
                        if counts[1] == counts[0]:
                            old = after[ends]
                            after[ends] = after[old]
                            before[after[old]] = ends
                            for s in range(4):
                                counts[3] += (dirty[old] >> s) & 1
                            valid[old] = dirty[old] = 0
                        else:
                            counts[1] += 1
                    newest = before[ends]
                    after[newest], before[line], after[line], before[ends] = line, newest, ends, line
                    if write:
                        dirty[line] |= bit
                    elif not valid[line] & bit:
                        counts[2] += 1
                    valid[line] |= bit

    return take


def _take(*arguments: Any) -> None:
    global _compiled
    if _compiled is None:
        _compiled = _kernel()
    _compiled(*arguments)


_compiled: Any = None
