"""`accesses`: the tiles that each thread block of a launch moves, in order, with their memory addresses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pebblesim.language import program as ir
from pebblesim.language.loops import EveryTile, operations, walk
from pebblesim.launches.batches import Batch, stretches
from pebblesim.launches.launches import Launch, blocks, shares
from pebblesim.launches.sectors import WORDS, pitch, sectors_of


class Access(NamedTuple):
    """A tile in memory: `rows` runs of `sectors` sectors, `stride` sectors apart, starting at sector `first`.

    `array` is a tensor's name, or "copies of T"; `first` counts from its start. `work` is the number of operations on
    entries that the block has done since the previous access.
    """

    array: str
    write: bool
    first: int
    rows: int
    sectors: int
    stride: int
    work: int = 0


def block_accesses(launch: Launch, sizes: ir.Sizes, workers: int, block: int) -> Iterator[Access]:
    """Yield the accesses of one thread block of a launch, in order.

    A launch for any number of blocks has one block here.
    """
    walker = _BlockWalker(launch, sizes, workers, block)
    if launch.kind == "tiles":
        return walker.body(launch.block)
    return walker.fill() if launch.kind == "fill" else walker.sum()


def batch_accesses(
    launch: Launch, sizes: ir.Sizes, batch: Batch, apart: Mapping[str, int], block: int
) -> Iterator[Access]:
    """Yield the accesses of one thread block of a launch for many heads, in order.

    Args:
        launch, sizes, batch: the launch, its sizes, and its heads, as `Batch.of` gives them for this launch.
        apart: for each array, the sectors from one head's part to the next.
        block: its number.
    """
    step, group = divmod(block, batch.groups)
    walker = _BlockWalker(launch, sizes, 1, step)
    parts = [list(walker.fill())] if launch.kind == "fill" else walker.parts()
    for part in parts:
        for head in batch.served(group):
            yield from (access._replace(first=access.first + head * apart[access.array]) for access in part)


def part_accesses(launch: Launch, sizes: ir.Sizes, block: int) -> Iterator[list[Access]]:
    """Yield the accesses of a block of tiles for one head, up to each place where it may turn to another head."""
    return _BlockWalker(launch, sizes, 1, block).parts()


def blocks_of_batch(launch: Launch, sizes: ir.Sizes, batch: Batch) -> int:
    """Number of thread blocks of a launch for many heads, as `Batch.of` gives them for this launch."""
    return number_of_blocks(launch, sizes, 1) * batch.groups


def number_of_blocks(launch: Launch, sizes: ir.Sizes, workers: int) -> int:
    """Number of blocks that `block_accesses` distinguishes."""
    return blocks(launch, sizes, workers) if launch.kind == "tiles" else 1


class _BlockWalker(EveryTile):
    def __init__(self, launch: Launch, sizes: ir.Sizes, workers: int, block: int) -> None:
        super().__init__(sizes)
        self.launch, self.block = launch, block
        self.work = 0
        self.workers = shares(launch, sizes, workers)
        for loop in reversed(launch.grid):
            size = ir.length(loop.range.block, sizes)
            tiles = -(-sizes[loop.range.dim] // size)
            block, at = divmod(block, tiles)
            self._bounds[loop.range] = at * size, min((at + 1) * size, sizes[loop.range.dim])
        if launch.split:
            rng = launch.split.range
            size = ir.length(rng.block, sizes)
            tiles = -(-sizes[rng.dim] // size)
            self.share = -(-tiles // workers) * size

    def _room(self, tensor: ir.Tensor) -> int:
        """Number of sectors of a tensor, or of one of several that are kept apart."""
        rows = self.sizes[tensor.shape[0]] if len(tensor.shape) == 2 else 1
        return rows * pitch(tensor, self.sizes) // WORDS

    def _access(self, tensor: ir.Tensor, ranges: ir.Ranges, write: bool, at: ir.Range | None = None) -> Access:
        *rows, (start, stop) = (self.bounds(rng) for rng in ranges)
        top, bottom = rows[0] if rows else (0, 1)
        stride = pitch(tensor, self.sizes) // WORDS
        name, first = tensor.name, top * stride + start // WORDS
        if at is not None:
            first += self.number(at) * self._room(tensor)
        if tensor in self.launch.copies:
            name, first = f"copies of {name}", first + self.block * self._room(tensor)
        work, self.work = self.work, 0
        return Access(name, write, first, bottom - top, sectors_of(start, stop - start), stride, work)

    def fill(self) -> Iterator[Access]:
        (node,) = self.launch.body
        assert isinstance(node, ir.Init)
        for copy in range(self.workers):
            self.block = copy
            yield self._access(node.tensor, node.ranges, True)

    def sum(self) -> Iterator[Access]:
        (tensor,) = self.launch.copies
        size = self._room(tensor)
        for row in range(size // (stride := pitch(tensor, self.sizes) // WORDS)):
            for copy in range(self.workers):
                yield Access(f"copies of {tensor.name}", False, copy * size + row * stride, 1, stride, stride)
            yield Access(tensor.name, True, row * stride, 1, stride, stride)

    def span(self, loop: ir.Loop) -> tuple[int, int]:
        begin, end = super().span(loop)
        if loop is not self.launch.split:
            return begin, end
        return begin + self.block * self.share, min(end, begin + (self.block + 1) * self.share)

    def parts(self) -> Iterator[list[Access]]:
        """Yield the accesses of the block, up to each place where it may turn to another head."""
        for part in stretches(self.launch.block):
            if isinstance(part, ir.Loop):
                yield from (list(self.body(part.body)) for _ in self.iterations(part))
            else:
                yield list(self.body(part))

    def body(self, body: list[ir.Node]) -> Iterator[Access]:
        for node, _ in walk(body, self):
            match node:
                case ir.Read(tile=tile, tensor=tensor, at=at):
                    yield self._access(tensor, tile.ranges, False, at)
                case ir.Write(tile=tile, tensor=tensor, at=at):
                    yield self._access(tensor, tile.ranges, True, at)
                case ir.Init(tensor=tensor, ranges=ranges):
                    yield self._access(tensor, ranges, True)
                case ir.Compute():
                    self.work += operations(node, self.bounds)
                case _:
                    pass
