"""What reaches HBM: a launch's accesses replayed through a model of the L2 cache.

The model: lines of four 32-byte sectors in sets of 16, by a hash of their address; of a set, the line that was used
least recently is given up. A read fetches the sectors that are missing, a write fetches nothing. Dirty sectors go to
HBM when so many other lines of the set have been used since that the line is no longer young; what is dirty at the end
of a launch stays. The blocks that the GPU holds at once take turns by the time they have spent, and the next one starts
when one is done. The cache is empty when a launch starts, as it is under the profiler.

`CAPACITY` and `YOUNG` were fitted to an H200; docs/gpu.md says how well they do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush, heapreplace
from itertools import islice
from typing import Any

import numpy as np

from pebblesim.language import program as ir
from pebblesim.readings.kernels.accesses import Access, block_accesses, number_of_blocks
from pebblesim.readings.kernels.launches import Launch

SECTOR = 32
SECTORS_IN_A_LINE = 4
CAPACITY = 0.75
"""How much of L2 counts: what both of its halves read is kept twice."""

WAYS, YOUNG = 16, 10
"""Lines in a set, and how many of them, the last used ones, may be dirty."""

LATENCY, OPERATIONS = 2000, 10
"""What the time of a block is made of: a unit for each sector moved, so many for each access, and one for so many
operations. It decides which blocks are at the same place at the same time, and nothing else."""

CHUNK = 2**16
"""Accesses that are replayed at a time."""


@dataclass(frozen=True)
class Hbm:
    """Bytes that a launch reads from HBM and writes to it."""

    read: int
    written: int


def replay(
    launch: Launch,
    sizes: ir.Sizes,
    workers: int,
    room: dict[str, int],
    *,
    at_once: int,
    l2_bytes: int,
) -> Hbm:
    """Replay a launch.

    Args:
        launch, sizes, workers: as for `moved`.
        room: words of each array in memory, as `memory` gives them.
        at_once: thread blocks that the GPU holds at once.
        l2_bytes: the size of L2.
    """
    base: dict[str, int] = {}
    lines = 0
    for name, words in room.items():
        base[name] = lines * SECTORS_IN_A_LINE
        lines += -(-words * 4 // (SECTOR * SECTORS_IN_A_LINE))
    l2 = _Cache(lines, int(l2_bytes * CAPACITY))
    stream = interleaved(launch, sizes, workers, at_once)
    while chunk := [(base[a.array] + a.first, a.rows, a.sectors, a.stride, a.write) for a in islice(stream, CHUNK)]:
        l2.take(np.array(chunk, np.int64))
    return Hbm(l2.fetched * SECTOR, l2.given_up * SECTOR)


def interleaved(launch: Launch, sizes: ir.Sizes, workers: int, at_once: int) -> Iterator[Access]:
    """The accesses of all blocks, as many at once as there can be, each in its time."""
    waiting = (block_accesses(launch, sizes, workers, b) for b in range(number_of_blocks(launch, sizes, workers)))
    running: list[tuple[float, int, Access, Iterator[Access]]] = []
    number = 0

    def start(now: float) -> None:
        """The next block that has anything to move."""
        nonlocal number
        for block in waiting:
            if (access := next(block, None)) is not None:
                number += 1
                heappush(running, (now + access.work / OPERATIONS, number, access, block))
                return

    for _ in range(at_once):
        start(0)
    while running:
        now, own, access, block = running[0]
        yield access
        now += LATENCY + access.rows * access.sectors
        following = next(block, None)
        if following is None:
            heappop(running)
            start(now)
        else:
            heapreplace(running, (now + following.work / OPERATIONS, own, following, block))


class _Cache:
    """A cache of so many bytes, for so many lines of memory."""

    def __init__(self, lines: int, capacity: int) -> None:
        sets = max(capacity // (SECTOR * SECTORS_IN_A_LINE * WAYS), 1)
        self._tags = np.full((sets, WAYS), -1, np.int64)  # the line in each place of a set, the last used first
        self._valid, self._dirty = (np.zeros(lines, np.uint8) for _ in range(2))  # a bit for each sector
        self._counts = np.zeros(2, np.int64)  # sectors in and out

    @property
    def fetched(self) -> int:
        """Sectors that were read from HBM."""
        return int(self._counts[0])

    @property
    def given_up(self) -> int:
        """Sectors that were written to HBM."""
        return int(self._counts[1])

    def take(self, accesses: Any) -> None:
        """Rows of: first sector, rows, sectors in a row, sectors from row to row, whether it is a write."""
        _kernel()(accesses, self._tags, YOUNG, self._valid, self._dirty, self._counts)


@cache
def _kernel() -> Any:
    from numba import njit

    @njit(cache=True)
    def take(accesses: Any, tags: Any, young: int, valid: Any, dirty: Any, counts: Any) -> None:
        sets, ways = tags.shape
        for n in range(accesses.shape[0]):
            first, rows, sectors, stride, write = accesses[n]
            for row in range(rows):
                for sector in range(first + row * stride, first + row * stride + sectors):
                    line, bit = sector // 4, 1 << (sector % 4)
                    mixed = line * 0x9E3779B1 & 0xFFFFFFFF  # multiplicative hashing (Knuth)
                    home = ((mixed ^ (mixed >> 15)) * 0x85EBCA6B & 0xFFFFFFFF) % sets
                    way = 0
                    while way < ways - 1 and tags[home, way] != line:
                        way += 1
                    if tags[home, way] != line and tags[home, way] >= 0:
                        valid[tags[home, way]] = 0
                    for w in range(way, 0, -1):
                        tags[home, w] = tags[home, w - 1]
                    tags[home, 0] = line
                    if way >= young and tags[home, young] >= 0:
                        aged = tags[home, young]
                        for s in range(4):
                            counts[1] += (dirty[aged] >> s) & 1
                        dirty[aged] = 0
                    if write:
                        dirty[line] |= bit
                    elif not valid[line] & bit:
                        counts[0] += 1
                    valid[line] |= bit

    return take
