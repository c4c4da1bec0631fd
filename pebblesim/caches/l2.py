"""An L2 shared by many thread blocks: the traffic to the memory behind it.

The blocks that run at once take turns by elapsed time; when one ends, the next one starts. Their accesses go to sets of
16 lines, chosen by a hash of the address; the least recently used line of a set is evicted. A read fetches missing
lines, a write fetches nothing. A dirty line is written to memory when it is no longer among the 10 youngest of its set.
A chip with several chiplets has an L2 on each.

Sets need not be simulated one by one. A line leaves when 16 other lines of its set have been used. The amount of data
used until then, relative to the cache size, is a random variable with distribution Γ(16)/16 and mean 1. So on average
such a cache behaves like LRU caches of these sizes, and one pass over reuse distances gives the results of all of them.
`CAPACITY` and `YOUNG` were fitted to an H200; docs/gpu.md states the errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, factorial
from typing import Any

import numpy as np

from pebblesim.caches.policies import lru_counts
from pebblesim.errors import UsageError
from pebblesim.language import program as ir
from pebblesim.readings.kernels.accesses import block_accesses, number_of_blocks
from pebblesim.readings.kernels.launches import Launch
from pebblesim.readings.kernels.sectors import WORDS
from pebblesim.readings.requests import MOST_REQUESTS, READ, WRITE, Stream

CAPACITY = 0.75
"""The usable fraction of L2: data read by both halves is stored twice."""

WAYS, YOUNG = 16, 10
"""Lines in a set, and how many of the most recently used ones may be dirty."""

POINTS = 32
"""Sizes of the LRU caches that represent the sets."""

LATENCY, OPERATIONS, SECTOR = 2000, 10, 32
"""The time of a block, in units: LATENCY for each request, 1 for each sector of SECTOR bytes that it moves, and 1 for
each OPERATIONS operations. The time only determines which blocks are at the same place at the same time."""

ORDERS = "head-first, row-major, grouped:G, sawtooth or swizzled:X"


@dataclass(frozen=True)
class Order:
    """The order in which thread blocks are launched.

    Attributes:
        kind: "head-first": all blocks of a head, then those of the next head. "row-major": one block of every head,
            then the next block of every head. "grouped": head-first; in a grid of two loops, `number` rows at a time,
            column by column. "sawtooth": head-first; the first blocks that run at once go through their loops forwards,
            the next ones backwards, and so on. "swizzled": each of `number` chiplets has its own heads, head-first.
        number: the number for "grouped" and "swizzled".
    """

    kind: str
    number: int = 1


def order_of(text: str) -> Order:
    """Parse an order such as "grouped:8".

    Raises:
        UsageError: there is no such order.
    """
    match = re.fullmatch(r"(head-first|row-major|sawtooth)|(grouped|swizzled):(\d{1,9})", text)
    if not match or match[3] == "0":
        raise UsageError(f"--order {text!r} was given; it is {ORDERS}.")
    return Order(match[1]) if match[1] else Order(match[2], int(match[3]))


@dataclass(frozen=True)
class Chip:
    """A chip: `at_once` blocks run at once on all chiplets together; each chiplet has `l2` bytes of L2.

    Blocks go to the chiplets in turn: one block, or with `contiguous` as many as run on a chiplet at once.
    """

    at_once: int
    l2: int
    chiplets: int = 1
    contiguous: bool = False


@dataclass(frozen=True)
class Kernel:
    """The accesses of a kernel's thread blocks for one head, with loops forwards and, for a sawtooth, backwards."""

    forth: Stream
    back: Stream | None
    columns: int
    """Blocks in a row of its grid; 1 for a grid of one loop."""
    at_once: int | None = None
    """Blocks of it that run at once on all chiplets together; None: as many as the chip's."""


@dataclass(frozen=True)
class Traffic:
    """Bytes: `requested` of L2, and `read` and `written` behind it."""

    requested: int
    read: int
    written: int

    def __add__(self, other: Traffic) -> Traffic:
        if not isinstance(other, Traffic):
            return NotImplemented
        return Traffic(self.requested + other.requested, self.read + other.read, self.written + other.written)


@dataclass(frozen=True)
class HeadsAtOnce:
    """The number of heads, how many heads each share items, and the names of the tensors whose items they share."""

    number: int
    sharing: int = 1
    shared: tuple[str, ...] = ()

    def owners(self, stream: Stream, head: Any, ids: Any) -> Any:
        """Return the owner of the requested items: the head itself, or the first head that shares them."""
        if self.sharing == 1:
            return head
        common = np.zeros(len(stream.sizes), bool)
        for place in stream.places:
            common[place.first : place.first + place.items] = place.name in self.shared
        return np.where(common[ids], head // self.sharing * self.sharing, head)


def traffic(kernels: Sequence[Kernel], heads: HeadsAtOnce, width: int, order: Order, chip: Chip) -> Traffic:
    """Simulate the traffic of all kernels, one after the other, for all heads, through L2, with words of `width` bytes.

    Raises:
        UsageError: there are too many requests.
    """
    requests = heads.number * sum(len(kernel.forth) for kernel in kernels)
    if requests > MOST_REQUESTS:
        raise UsageError(
            f"{requests:,} tiles are too many to replay, {MOST_REQUESTS:,} is the most; take larger blocks or fewer "
            "heads."
        )
    chiplets = order.number if order.kind == "swizzled" else chip.chiplets
    found = Traffic(0, 0, 0)
    for chiplet in range(chiplets):
        found += _chiplet(kernels, heads, width, order, chip, chiplets, chiplet)
    return found


def _chiplet(
    kernels: Sequence[Kernel], heads: HeadsAtOnce, width: int, order: Order, chip: Chip, chiplets: int, chiplet: int
) -> Traffic:
    ids, kinds = [np.empty(0, np.int64)], [np.empty(0, np.uint8)]
    for kernel in kernels:
        at_once = max(1, (kernel.at_once or chip.at_once) // chiplets)
        blocks, head = launched(kernel, heads.number, order)
        mine = _dealt(blocks, head, heads.number, order, chip, chiplets, chiplet, at_once)
        blocks, head = blocks[mine], head[mine]
        stream = kernel.forth
        if kernel.back is not None:
            turned = (np.arange(len(blocks)) // at_once) % 2
            blocks = blocks + turned * len(_blocks(kernel.forth))
            stream = _both(kernel.forth, kernel.back)
        who, what = turns(stream, width, blocks, at_once)
        asked = stream.ids[what]
        ids.append(heads.owners(kernel.forth, head[who], asked) * len(stream.sizes) + asked)
        kinds.append(stream.kinds[what])
    sizes = np.tile(kernels[0].forth.sizes, heads.number) * width
    kept = np.tile(kernels[0].forth.kept, heads.number)
    together = np.concatenate(ids).astype(np.int32)
    read, written = behind(Stream(together, np.concatenate(kinds), sizes, kept), chip.l2)
    return Traffic(int(sizes[together].sum()), read, written)


def launched(kernel: Kernel, heads: int, order: Order) -> tuple[Any, Any]:
    """Yield (block, head) in the order of launching; a block is given by its place in the kernel's stream."""
    number = _blocks(kernel.forth)
    row, column = np.divmod(number, kernel.columns)
    group = order.number if order.kind == "grouped" else 1
    blocks = np.lexsort((row, column, row // group)) if order.kind == "grouped" else np.argsort(number, kind="stable")
    if order.kind == "row-major":
        return np.repeat(blocks, heads), np.tile(np.arange(heads), len(blocks))
    return np.tile(blocks, heads), np.repeat(np.arange(heads), len(blocks))


def _dealt(
    blocks: Any, head: Any, heads: int, order: Order, chip: Chip, chiplets: int, chiplet: int, at_once: int
) -> Any:
    """Return the blocks of a chiplet."""
    if order.kind == "swizzled":
        return head // -(-heads // chiplets) == chiplet
    return np.arange(len(blocks)) // (at_once if chip.contiguous else 1) % chiplets == chiplet


def turns(stream: Stream, width: int, blocks: Any, at_once: int) -> tuple[Any, Any]:
    """Return the requests of these blocks of a stream in order of time, as (number in `blocks`, request)."""
    from pebblesim.caches.l2_kernel import take_turns

    assert stream.starts is not None and stream.work is not None
    spend = LATENCY + stream.sizes[stream.ids] * width / SECTOR
    return take_turns(stream.starts, stream.work / OPERATIONS, spend, blocks, at_once)


def _blocks(stream: Stream) -> Any:
    assert stream.blocks is not None
    return stream.blocks


def _both(forth: Stream, back: Stream) -> Stream:
    """Return two streams of the same blocks, one after the other."""
    assert forth.starts is not None and back.starts is not None
    assert forth.work is not None and back.work is not None
    return Stream(
        np.concatenate([forth.ids, back.ids]),
        np.concatenate([forth.kinds, back.kinds]),
        forth.sizes,
        forth.kept,
        forth.places,
        np.concatenate([forth.starts, back.starts[1:] + len(forth)]),
        np.concatenate([_blocks(forth), _blocks(back)]),
        np.concatenate([forth.work, back.work]),
    )


def replay(
    launch: Launch, sizes: ir.Sizes, workers: int, room: Mapping[str, int], *, at_once: int, l2_bytes: int
) -> tuple[int, int]:
    """Return the bytes that a launch of a generated kernel reads and writes behind an L2 that is empty at its start.

    Here the items are 32-byte sectors, which neighbouring tiles may share. What is dirty at the end is not written.

    Args:
        launch, sizes, workers: as for `pebblesim.readings.kernels.sectors.moved`.
        room: words of each array in memory, as `pebblesim.readings.kernels.cuda.memory` gives them.
        at_once: thread blocks that the GPU holds at once.
        l2_bytes: the size of L2.
    """
    from pebblesim.caches.l2_kernel import spread, take_turns

    base: dict[str, int] = {}
    sectors = 0
    for name, words in room.items():
        base[name] = sectors
        sectors += -(-words // WORDS)
    per_block = [
        list(block_accesses(launch, sizes, workers, b)) for b in range(number_of_blocks(launch, sizes, workers))
    ]
    starts = np.cumsum([0, *map(len, per_block)])
    tiles = [
        (base[a.array] + a.first, a.rows, a.sectors, a.stride, WRITE if a.write else READ, a.work)
        for block in per_block
        for a in block
    ]
    first, rows, units, stride, kinds, work = np.array(tiles, np.int64).reshape(-1, 6).T.copy()
    order = take_turns(starts, work / OPERATIONS, LATENCY + 1.0 * rows * units, np.arange(len(per_block)), at_once)[1]
    ids, kind = spread(order, first, rows, units, stride, kinds)
    stream = Stream(ids, kind, np.ones(sectors, np.int64), np.zeros(sectors, bool))
    read, written = behind(stream, l2_bytes // SECTOR)
    return read * SECTOR, written * SECTOR


def behind(stream: Stream, capacity: int) -> tuple[int, int]:
    """Return the reads and writes of a stream behind an L2 of this size, in units of the stream's sizes, rounded."""
    room = capacity * CAPACITY / WAYS
    leaves, ages = ([max(1, int(room * share)) for share in arrivals(lines)] for lines in (WAYS, YOUNG))
    sizes = np.unique([*leaves, *ages])
    _, fetched, written = lru_counts(stream, sizes)
    read, out = fetched[np.searchsorted(sizes, leaves)], written[np.searchsorted(sizes, ages)]
    return round(read.mean()), round(out.mean())


@cache
def arrivals(number: int) -> tuple[float, ...]:
    """Return equally likely values of the time of arrival `number`, with one arrival per unit of time on average.

    These are quantiles of the Erlang distribution: the time exceeds t if fewer than `number` have arrived until t.
    """

    def late(t: float) -> float:
        return exp(-t) * sum(t**k / factorial(k) for k in range(number))

    found = []
    for point in range(POINTS):
        low, high = 0.0, 10.0 * number
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if late(middle) > 1 - (point + 0.5) / POINTS else (low, middle)
        found.append(low)
    return tuple(found)
