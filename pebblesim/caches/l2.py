"""An L2 that many thread blocks share: what reaches the memory behind it.

The blocks that a chip holds at once take turns by the time they have spent, and the next one starts when one is done.
What they move goes through an LRU of `CAPACITY` of the size of L2; what is dirty goes to memory when it is no longer
among the youngest, `YOUNG` of that. A chip of several chiplets has an L2 for each. `CAPACITY` and `YOUNG` were fitted
to an H200; docs/gpu.md says how well they do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pebblesim.errors import UsageError
from pebblesim.language import program as ir
from pebblesim.readings.accesses import MOST_REQUESTS, READ, WRITE, Stream
from pebblesim.readings.kernels.accesses import block_accesses, number_of_blocks
from pebblesim.readings.kernels.launches import Launch
from pebblesim.readings.kernels.sectors import WORDS

CAPACITY = 0.75
"""How much of L2 counts: what both halves of it read is kept twice."""

YOUNG = 0.625
"""How much of that may be dirty: what was used last."""

LATENCY, OPERATIONS, SECTOR = 2000, 10, 32
"""What the time of a block is made of: so many units for each request, one for each sector of so many bytes that it
moves, and one for so many operations. It decides which blocks are at the same place at the same time, and nothing
else."""

ORDERS = "head-first, row-major, grouped:G, sawtooth or swizzled:X"


@dataclass(frozen=True)
class Order:
    """The order in which thread blocks are launched.

    Attributes:
        kind: "head-first": all blocks of a head, then the next head. "row-major": a block for every head, then the
            next block. "grouped": head-first, and of a grid of two loops `number` rows at a time, column after column.
            "sawtooth": head-first, and as many blocks as run at once walk their loops forth, the next ones back.
            "swizzled": each of `number` chiplets has heads of its own, and does them head-first.
        number: for "grouped" and "swizzled".
    """

    kind: str
    number: int = 1


def order_of(text: str) -> Order:
    """The order that a text such as "grouped:8" stands for.

    Raises:
        UsageError: there is none.
    """
    match = re.fullmatch(r"(head-first|row-major|sawtooth)|(grouped|swizzled):(\d{1,9})", text)
    if not match or match[3] == "0":
        raise UsageError(f"--order {text!r} was given; it is {ORDERS}.")
    return Order(match[1]) if match[1] else Order(match[2], int(match[3]))


@dataclass(frozen=True)
class Chip:
    """What blocks run on: `at_once` blocks on all chiplets together, and `l2` bytes on each chiplet.

    Blocks go to the chiplets in turn: one block, or with `contiguous` as many as run on a chiplet at once.
    """

    at_once: int
    l2: int
    chiplets: int = 1
    contiguous: bool = False


@dataclass(frozen=True)
class Kernel:
    """What the thread blocks of one kernel move: for one head, with walks forth and, for a sawtooth, back."""

    forth: Stream
    back: Stream | None
    columns: int
    """Blocks in a row of its grid; 1 for a grid of one loop."""


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


def traffic(kernels: Sequence[Kernel], heads: int, width: int, order: Order, chip: Chip) -> Traffic:
    """What all kernels, one after the other, for all heads, move through L2, with words of `width` bytes.

    Raises:
        UsageError: there are too many requests.
    """
    requests = heads * sum(len(kernel.forth) for kernel in kernels)
    if requests > MOST_REQUESTS:
        raise UsageError(
            f"{requests:,} tiles are too many to replay, {MOST_REQUESTS:,} is the most; take larger blocks or fewer heads."
        )
    chiplets = order.number if order.kind == "swizzled" else chip.chiplets
    found = Traffic(0, 0, 0)
    for chiplet in range(chiplets):
        found += _chiplet(kernels, heads, width, order, chip, chiplets, chiplet)
    return found


def _chiplet(
    kernels: Sequence[Kernel], heads: int, width: int, order: Order, chip: Chip, chiplets: int, chiplet: int
) -> Traffic:
    from pebblesim.caches.kernels import lru_sized

    at_once = max(1, chip.at_once // chiplets)
    ids, kinds = [np.empty(0, np.int64)], [np.empty(0, np.uint8)]
    for kernel in kernels:
        blocks, head = launched(kernel, heads, order)
        mine = _dealt(blocks, head, heads, order, chip, chiplets, chiplet, at_once)
        blocks, head = blocks[mine], head[mine]
        stream = kernel.forth
        if kernel.back is not None:
            turned = (np.arange(len(blocks)) // at_once) % 2
            blocks = blocks + turned * len(_blocks(kernel.forth))
            stream = _both(kernel.forth, kernel.back)
        who, what = turns(stream, width, blocks, at_once)
        ids.append(head[who] * len(stream.sizes) + stream.ids[what])
        kinds.append(stream.kinds[what])
    sizes = np.tile(kernels[0].forth.sizes, heads) * width
    kept = np.tile(kernels[0].forth.kept, heads)
    together, kind, room = np.concatenate(ids), np.concatenate(kinds), int(chip.l2 * CAPACITY)
    _, read, written = lru_sized(together.astype(np.int32), kind, sizes, kept, room, int(room * YOUNG))
    return Traffic(int(sizes[together].sum()), int(read), int(written))


def launched(kernel: Kernel, heads: int, order: Order) -> tuple[Any, Any]:
    """(block, head) in the order in which they are launched; blocks by their place in the kernel's stream."""
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
    """Which of the blocks a chiplet gets."""
    if order.kind == "swizzled":
        return head // -(-heads // chiplets) == chiplet
    return np.arange(len(blocks)) // (at_once if chip.contiguous else 1) % chiplets == chiplet


def turns(stream: Stream, width: int, blocks: Any, at_once: int) -> tuple[Any, Any]:
    """The requests of these blocks of a stream in the order in which they come, as (number in `blocks`, request)."""
    from pebblesim.caches.kernels import take_turns

    assert stream.starts is not None and stream.work is not None
    spend = LATENCY + stream.sizes[stream.ids] * width / SECTOR
    return take_turns(stream.starts, stream.work / OPERATIONS, spend, blocks, at_once)


def _blocks(stream: Stream) -> Any:
    assert stream.blocks is not None
    return stream.blocks


def _both(forth: Stream, back: Stream) -> Stream:
    """Two streams of the same blocks, one after the other."""
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
    """Bytes that one launch of a generated kernel reads and writes behind L2, which is empty when it starts.

    Here tiles are 32-byte sectors, which neighbouring tiles may share. What is dirty in the end stays.

    Args:
        launch, sizes, workers: as for `pebblesim.readings.kernels.sectors.moved`.
        room: words of each array in memory, as `pebblesim.readings.kernels.cuda.memory` gives them.
        at_once: thread blocks that the GPU holds at once.
        l2_bytes: the size of L2.
    """
    from pebblesim.caches.kernels import lru_sized, spread, take_turns

    base: dict[str, int] = {}
    sectors = 0
    for name, words in room.items():
        base[name] = sectors
        sectors += -(-words // WORDS)
    per_block = [list(block_accesses(launch, sizes, workers, b)) for b in range(number_of_blocks(launch, sizes, workers))]
    starts = np.cumsum([0, *map(len, per_block)])
    tiles = [
        (base[a.array] + a.first, a.rows, a.sectors, a.stride, WRITE if a.write else READ, a.work)
        for block in per_block
        for a in block
    ]
    first, rows, units, stride, kinds, work = np.array(tiles, np.int64).reshape(-1, 6).T.copy()
    order = take_turns(starts, work / OPERATIONS, LATENCY + 1.0 * rows * units, np.arange(len(per_block)), at_once)[1]
    ids, kind = spread(order, first, rows, units, stride, kinds)
    capacity = int(l2_bytes * CAPACITY) // SECTOR
    ones, kept = np.ones(sectors, np.int64), np.zeros(sectors, bool)
    _, read, written = lru_sized(ids, kind, ones, kept, capacity, int(capacity * YOUNG))
    return int(read) * SECTOR, int(written) * SECTOR
