"""Batches of heads for which L2 does not help: what a schedule reads is what memory gives.

A tile that is used again stays in L2 if too little was moved in between. With many heads that all do the same step,
what lies between two uses is what all of them move (`pebblesim.launches.batches`). `beyond_l2` chooses so many heads
that this is more than L2 keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any

from pebblesim.advice.cards import Card
from pebblesim.analysis.totals import totals
from pebblesim.cachesim.l2 import SECTOR, replay
from pebblesim.core.errors import UsageError
from pebblesim.kernels.cuda.cuda import Kernel, memory
from pebblesim.language import program as ir
from pebblesim.launches.accesses import Access, block_accesses, number_of_blocks, part_accesses
from pebblesim.launches.batches import Batch, parked
from pebblesim.launches.sectors import moved
from pebblesim.measuring.cases import BYTES, RESERVED, Case

MOST_BLOCKS, REGISTERS, OF_THREAD = 32, 65536, 64
"""Most blocks of a multiprocessor, and its registers; and registers of a thread of these kernels."""

MANY = 100
"""The bytes that a batch moves, in sizes of L2: what is left in L2 at the end is then little."""

MEMORY = 0.65
"""The part of a card's memory that a batch may take."""

KEPT_BY_HALVES = 2 / 3
"""The part of an L2 of two halves in which lines are distinct: half of all lines are far from their only reader, and
are kept in both halves (docs/gpu.md)."""

MOST_ACCESSES = 500_000
"""Largest number of tiles for which HBM traffic is predicted; this takes some seconds."""


@dataclass(frozen=True)
class Chip:
    """A card: its multiprocessors, and in bytes their shared memory, L2, the part of it that keeps distinct lines, and
    memory."""

    multiprocessors: int
    shared: int
    l2: int
    kept: int
    memory: int

    @classmethod
    def of(cls, gpu: Mapping[str, Any]) -> Chip:
        """The card that `pebblesim.measuring.device.describe` describes."""
        kept = int(gpu["l2_bytes"] * (KEPT_BY_HALVES if gpu["capability"] in ("8.0", "9.0") else 1))
        shared = gpu["shared_bytes_per_multiprocessor"]
        return cls(gpu["multiprocessors"], shared, gpu["l2_bytes"], kept, gpu["memory_bytes"])

    @classmethod
    def of_card(cls, card: Card) -> Chip:
        """A card of cards.toml, or of a file such as it."""
        l2, shared = card.size("l2"), card.size("shared_per_multiprocessor")
        kept = int(l2 * (KEPT_BY_HALVES if card.l2_partitions > 1 else 1))
        return cls(card.size("multiprocessors"), shared, l2, kept, card.size("memory"))

    def resident(self, words: int, threads: int) -> int:
        """Blocks with so many words of shared memory and threads that a multiprocessor holds at once."""
        room = self.shared // (words * BYTES + RESERVED)
        return max(1, min(MOST_BLOCKS, room, REGISTERS // (OF_THREAD * threads)))


def beyond_l2(one: Case, chip: Chip) -> Case:
    """Return the case for as many heads as L2 needs to be of no help, or as many as memory holds.

    Two uses of a tile by one block are apart by what the blocks that run at once move in between, times the heads that
    each serves in turn; two uses by different blocks of a head, by what all heads move. Both are to be as much as L2
    holds, which is half again what it keeps of lines that are read once.
    """
    resident = chip.resident(one.shared_words, one.threads)
    at_once = resident * chip.multiprocessors
    of_head = sum(moved(kernel.launch, one.sizes).sectors for kernel in one.source.kernels) * SECTOR
    turns, heads = 1, -(-MANY * chip.l2 // of_head)
    for kernel in one.source.kernels:
        if kernel.launch.kind != "tiles":
            continue
        apart, of_block = _apart(one, kernel)
        if apart and all(len(tile.ranges) == 1 for tile in parked(kernel.launch)):
            turns = max(turns, -(-chip.l2 // (at_once * apart)))
        if of_block:
            heads = max(heads, -(-chip.l2 // of_block))
    fits = int(chip.memory * MEMORY) // one.bytes_in_memory
    turns = max(1, min(turns, fits // at_once))
    whole = -(-heads // (at_once * turns)) * at_once * turns  # so that no multiprocessor is idle at the end
    heads = whole if whole <= fits else max(fits, 1)
    if heads < at_once:
        raise UsageError(
            f"{one.schedule} takes {one.bytes_in_memory:,} bytes of memory a head at these sizes, and {at_once:,} "
            "heads run at once; give a smaller n."
        )
    return replace(one, heads=heads, turns=turns, resident=resident)


def _bytes(access: Access) -> int:
    return access.rows * access.sectors * SECTOR


def _apart(one: Case, kernel: Kernel) -> tuple[int | None, int | None]:
    """Fewest bytes that a block moves from one use of a part of a matrix to the next, and those that it moves in all if
    the next block of a head uses such parts, too; None where nothing is used again."""
    matrices = {name for name, tensor in one.program.tensors.items() if len(tensor.shape) == 2}

    def used(accesses: list[Access]) -> set[tuple[str, int, int]]:
        return {(a.array, a.first, a.sectors) for a in accesses if a.array in matrices}

    parts = [part for part in islice(part_accesses(kernel.launch, one.sizes, 0), 64) if part]
    again = [sum(map(_bytes, mine)) for mine, after in pairwise(parts) if used(mine) & used(after)]
    if number_of_blocks(kernel.launch, one.sizes, 1) == 1:
        return min(again, default=None), None
    first, second = (list(block_accesses(kernel.launch, one.sizes, 1, block)) for block in (0, 1))
    return min(again, default=None), sum(map(_bytes, first)) if used(first) & used(second) else None


def predicted(case: Case, kernel: Kernel, at_once: int, chip: Chip) -> dict[str, int | None]:
    """Return the predicted traffic of a launch for many heads; None at HBM if the replay would take too long.

    All heads do the same. So one block stands for all that run at once, so many heads for all heads as it serves, and
    a part of L2 for all of it.
    """
    exact = moved(kernel.launch, case.sizes).times(case.heads)
    made: dict[str, int | None] = {
        "words_read": exact.words_read,
        "words_written": exact.words_written,
        "sm_read": exact.sectors_read * SECTOR,
        "sm_written": exact.sectors_written * SECTOR,
        "hbm_read": None,
        "hbm_written": None,
    }
    few = max(kernel.batch.turns, round(case.heads / at_once))
    tiles = totals(kernel.launch.body, case.sizes, lambda node, _: [("moved", 1)] if _moves(node) else [])["moved"]
    if tiles * few > MOST_ACCESSES:
        return made
    batch = Batch(few, kernel.batch.turns)
    room = memory(case.source.kernels, case.program, case.sizes)
    l2 = chip.kept * few // case.heads
    read, written = replay(kernel.launch, case.sizes, 1, room, at_once=1, l2_bytes=l2, batch=batch, in_pairs=True)
    return {**made, "hbm_read": read * case.heads // few, "hbm_written": written * case.heads // few}


def _moves(node: ir.Node) -> bool:
    return isinstance(node, ir.Read | ir.Write | ir.Init)
