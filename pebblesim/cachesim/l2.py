"""An L2 shared by many thread blocks: the traffic to the memory behind it.

The blocks that run at once take turns by elapsed time; when one ends, the next one starts in its place. L2 has one or
two partitions. With two, each multiprocessor is on the side of one partition, and each line has its home in one. A line
is looked for on the side of the reader, then at home, then in memory, and is kept in both: so what both sides read is
held twice, and so is what only the far side reads. Each partition evicts the line that was used longest ago there, and
asking the near one does not make the line younger at home. A written line is held like a read one, and is dirty at home
only. It goes to memory when it is evicted there, or when more than about half of the partition is dirty. A read fetches
missing sectors, a write fetches nothing. A chip with several chiplets has an L2 on each.

A set may have to hold more than its part of the lines, or less. So a partition consists of `GROUPS` groups of sets; on
average over them, as much fits as the partition has. All this was measured on an H200 (docs/gpu.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from pebblesim.cachesim.requests import MOST_REQUESTS, READ, WRITE, Stream
from pebblesim.core.errors import UsageError, as_given
from pebblesim.language import program as ir
from pebblesim.launches.accesses import batch_accesses, block_accesses, blocks_of_batch, number_of_blocks
from pebblesim.launches.batches import ONE, Batch, apart
from pebblesim.launches.launches import Launch
from pebblesim.launches.sectors import WORDS

SPREAD, GROUPS = 0.08, 4
"""Standard deviation of what a set must hold, relative to the mean, and groups of sets that stand for the sets."""

DIRTY = 0.47
"""The largest fraction of a partition that is dirty."""

CLUSTER = 16
"""Consecutive blocks on the same side, about those of a cluster of multiprocessors."""

LINE, CHUNK, ALIGNED = 128, 4096, 512
"""Bytes of a line; bytes in a row with the same home; and what the address of an array is a multiple of."""

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
        raise UsageError(f"--order {as_given(text)} was given; it is {ORDERS}.")
    return Order(match[1]) if match[1] else Order(match[2], int(match[3]))


@dataclass(frozen=True)
class Chip:
    """A chip: `at_once` blocks run at once on all chiplets together; each chiplet has `l2` bytes of L2.

    Blocks go to the chiplets in turn: one block, or with `contiguous` as many as run on a chiplet at once. An L2 has
    one or two `partitions`.
    """

    at_once: int
    l2: int
    chiplets: int = 1
    contiguous: bool = False
    partitions: int = 1


@dataclass(frozen=True)
class Accesses:
    """The accesses of a kernel's thread blocks for one head, with loops forwards and, for a sawtooth, backwards."""

    forth: Stream
    back: Stream | None
    columns: int
    """Blocks in a row of its grid; 1 for a grid of one loop."""
    at_once: int | None = None
    """Blocks of it that run at once on all chiplets together; None: as many as the chip's."""
    number: int = 0
    """The launch of its program that it is; several kernels are the same launch, for other rows."""


@dataclass(frozen=True)
class L2Bytes:
    """Bytes: `requested` of L2, and `read` and `written` behind it."""

    requested: int
    read: int
    written: int

    def __add__(self, other: L2Bytes) -> L2Bytes:
        if not isinstance(other, L2Bytes):
            return NotImplemented
        return L2Bytes(self.requested + other.requested, self.read + other.read, self.written + other.written)


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


def traffic(kernels: Sequence[Accesses], heads: HeadsAtOnce, width: int, order: Order, chip: Chip) -> L2Bytes:
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
    total = L2Bytes(0, 0, 0)
    for chiplet in range(chiplets):
        total += _chiplet(kernels, heads, width, order, chip, chiplets, chiplet)
    return total


def _chiplet(
    kernels: Sequence[Accesses], heads: HeadsAtOnce, width: int, order: Order, chip: Chip, chiplets: int, chiplet: int
) -> L2Bytes:
    made = []
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
        who, what, sides = turns(stream, width, blocks, at_once, chip.partitions)
        asked = stream.ids[what]
        ids = heads.owners(kernel.forth, head[who], asked) * len(stream.sizes) + asked
        made.append((ids.astype(np.int32), stream.kinds[what], sides))
    sizes = np.tile(kernels[0].forth.sizes, heads.number) * width
    kept = np.tile(kernels[0].forth.kept, heads.number)
    ids, kinds, sides = map(np.concatenate, zip(*made, strict=True))
    read, written = behind_tiles(Requests(ids, kinds, sides), sizes, kept, chip.l2, chip.partitions)
    return L2Bytes(int(sizes[ids].sum()), read, written)


@dataclass(frozen=True)
class Requests:
    """Requests to L2, in order: item, READ or WRITE or both, and side that it comes from, of each."""

    ids: Any
    kinds: Any
    sides: Any


def launched(kernel: Accesses, heads: int, order: Order) -> tuple[Any, Any]:
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


def turns(stream: Stream, width: int, blocks: Any, at_once: int, partitions: int) -> tuple[Any, Any, Any]:
    """Return the requests of these blocks of a stream in order of time, as (number in `blocks`, request, side)."""
    from pebblesim.cachesim.l2_kernel import take_turns

    assert stream.starts is not None and stream.work is not None
    spend = LATENCY + stream.sizes[stream.ids] * width / SECTOR
    who, what, places = take_turns(stream.starts, stream.work / OPERATIONS, spend, blocks, at_once)
    return who, what, sides_of(places[who], partitions)


def sides_of(places: Any, partitions: int) -> Any:
    """Return the side of each place where a block runs."""
    return (places // CLUSTER % partitions).astype(np.uint8)


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
    launch: Launch,
    sizes: ir.Sizes,
    workers: int,
    room: Mapping[str, int],
    *,
    at_once: int,
    l2_bytes: int,
    partitions: int = 1,
    batch: Batch = ONE,
    in_pairs: bool = False,
) -> tuple[int, int]:
    """Return the bytes that a launch of a generated kernel reads and writes behind an L2 that is empty at its start.

    Here the items are lines of four sectors, which neighbouring tiles may share. What is dirty at the end is not
    written.

    Args:
        launch, sizes, workers: as for `pebblesim.launches.sectors.moved`.
        room: words of each array in memory, as `pebblesim.kernels.cuda.cuda.memory` gives them.
        at_once: thread blocks that the GPU holds at once.
        l2_bytes, partitions: the size of L2, and the number of its partitions, 1 or 2.
        batch: the heads of the launch, as `Batch.of` gives them for it.
        in_pairs: whether memory gives two sectors at a time, 64 bytes, where one of them is read.
    """
    from pebblesim.cachesim.l2_kernel import lines_of, take_turns, through

    base: dict[str, int] = {}
    sectors = 0
    between = {name: apart(words) // WORDS for name, words in room.items()}
    for name, words in room.items():
        base[name] = sectors
        all_words = words if batch.heads == 1 else batch.heads * apart(words)
        sectors += -(-all_words * SECTOR // WORDS // ALIGNED) * ALIGNED // SECTOR
    if batch.heads == 1:
        made = (block_accesses(launch, sizes, workers, b) for b in range(number_of_blocks(launch, sizes, workers)))
    else:
        number = blocks_of_batch(launch, sizes, batch)
        made = (batch_accesses(launch, sizes, batch, between, b) for b in range(number))
    per_block = [list(accesses) for accesses in made]
    starts = np.cumsum([0, *map(len, per_block)])
    tiles = [
        (base[a.array] + a.first, a.rows, a.sectors, a.stride, WRITE if a.write else READ, a.work)
        for block in per_block
        for a in block
    ]
    first, rows, units, stride, kinds, work = np.array(tiles, np.int64).reshape(-1, 6).T.copy()
    spend = LATENCY + 1.0 * rows * units
    who, what, places = take_turns(starts, work / OPERATIONS, spend, np.arange(len(per_block)), at_once)
    ids, asked, each, sides = lines_of(what, sides_of(places[who], partitions), first, rows, units, stride, kinds)
    if in_pairs:
        both = np.array([3 * bool(bits & 3) + 12 * bool(bits & 12) for bits in range(16)], np.uint8)
        asked = np.where(each & READ, both[asked], asked)
    lines = np.arange(sectors * SECTOR // LINE)
    home, group = _dealt_lines(lines, partitions)
    pieces = home, group, np.full(len(lines), LINE), np.full(len(lines), SECTOR), np.zeros(len(lines), bool)
    moved = through(ids, asked, each, sides, *pieces, *_rooms(l2_bytes, partitions))
    return int(moved[0]), int(moved[1])


def behind_tiles(requests: Requests, sizes: Any, kept: Any, capacity: int, partitions: int) -> tuple[int, int]:
    """Return the bytes read and written behind an L2 of this size, where items are tiles of `sizes` bytes.

    A tile has equal parts in all groups of sets of both partitions. What is dirty at the end is written if `kept`.
    """
    from pebblesim.cachesim.l2_kernel import through

    pieces = GROUPS * partitions
    piece = np.arange(pieces)
    size = (np.outer(sizes, piece + 1) // pieces - np.outer(sizes, piece) // pieces).ravel()
    home = np.tile((piece % partitions).astype(np.uint8), len(sizes))
    group = np.tile(np.stack(_groups(piece // partitions), 1).astype(np.uint8), (len(sizes), 1))
    whole = np.ones(len(requests.ids), np.uint8)
    arguments = requests.ids, whole, requests.kinds, requests.sides, home, group, size, size, kept
    moved = through(*arguments, *_rooms(capacity, partitions))
    return int(moved[0]), int(moved[1])


def _rooms(capacity: int, partitions: int) -> tuple[Any, Any]:
    """Return the bytes of each group of sets in each partition, and how many of them may be dirty."""
    shares = [NormalDist(1, SPREAD).inv_cdf((group + 0.5) / GROUPS) / GROUPS for group in range(GROUPS)]
    room = np.array([[int(capacity * share / partitions) for share in shares]] * 2)
    return room, np.floor(room * DIRTY).astype(np.int64)


def _groups(number: Any) -> tuple[Any, Any]:
    """Return the groups of pieces in both partitions: a full one here says nothing about the one there."""
    return number, (2 * number + 1) % (GROUPS + 1)


def _dealt_lines(lines: Any, partitions: int) -> tuple[Any, Any]:
    """Return the home of lines, a parity of the address, and their groups, mixed (MurmurHash3's finalizer)."""
    home, rest = np.zeros(len(lines), np.int64), lines * LINE // CHUNK
    while rest.any():
        home, rest = home ^ rest & 1, rest >> 1
    mixed = lines.astype(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed = (mixed ^ mixed >> np.uint64(33)) * np.uint64(factor)
    mixed >>= np.uint64(33)
    group = np.stack([mixed % np.uint64(GROUPS), mixed // np.uint64(GROUPS) % np.uint64(GROUPS)], 1)
    return (home % partitions).astype(np.uint8), group.astype(np.uint8)
