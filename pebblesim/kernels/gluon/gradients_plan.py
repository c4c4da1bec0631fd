"""The plan of the Gluon kernels for dQ and dB at once: what a block keeps, and what the copy engine brings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pebblesim.kernels.gluon.block import ROWS, Block, Buffer, Handed, loops_of
from pebblesim.kernels.passes.bias import BIAS
from pebblesim.kernels.passes.bias_stays import BEFORE, FACTOR
from pebblesim.kernels.passes.sequences import SEQUENCES
from pebblesim.kernels.products import factors, products
from pebblesim.kernels.triton.storage import padded
from pebblesim.kernels.words import LEAST_SIDE
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

SHARES = {64: 2, 32: 3}
"""Warpgroups that divide the keys of a block, by the keys of a tile: three have registers for small ones."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Gradients(Block):
    """A block of these kernels.

    Attributes:
        keys: the loop over tiles of keys.
        tiles, side: how many tiles of keys a warpgroup has, and keys of each.
        bias, sums, rows: what stays, the bias and its gradient, and dQ of a sequence.
        before: what other keys have added to dQ, if there is that.
        factor: rows of O, if v is computed from them: one slot, as threads have them in registers soon.
    """

    keys: ir.Loop
    tiles: int
    side: int
    bias: ir.Read
    sums: ir.Tile
    rows: ir.Tile
    before: Buffer | None
    factor: Buffer | None

    @property
    def whole(self) -> int:
        """Tiles of keys that all lengths have."""
        return self.shares * (self.tiles - 1)


def gradients_of(launch: Launch, sizes: ir.Sizes, stages: int) -> Gradients | None:
    """The plan of a launch that keeps rows of the bias and of its gradient; None if it is no such launch."""
    loops = loops_of(launch)
    if loops is None or len(loops.grid) != len(("parts", "rows", "span")) or loops.loop.range.dim != SEQUENCES:
        return None
    (_, rows, span), (keys,) = loops.grid, (node for node in loops.loop.body if isinstance(node, ir.Loop))
    (bias,) = (node for node in launch.block if isinstance(node, ir.Read) and node.tensor.name == BIAS)
    (write,) = (node for node in launch.block if isinstance(node, ir.Write))
    *_, product = products(keys.body)
    side = ir.length(keys.range.block, sizes)
    shares = SHARES.get(side, 2)
    tiles, left = divmod(ir.length(span.block, sizes), shares * side)
    widths = [padded(factors(each).left.shape[1], sizes) for each in products(keys.body)[:2]]
    if left or ir.length(rows.block, sizes) != ROWS or min(widths) < LEAST_SIDE:
        return None
    result = product.target.tile
    room, buffers = (1, ROWS, padded(result.ranges[1], sizes)), dict[ir.Tile, Buffer]()
    reads = {node.tensor.name: node for node in loops.loop.body if isinstance(node, ir.Read)}
    if (node := reads.get(BEFORE)) is not None:
        buffers[result] = Buffer(node.tensor.name, node, *room, streamed=True, freed_by=1)
    if (node := reads.get(FACTOR)) is not None:
        width = padded(node.tile.ranges[1], sizes)
        buffers[node.tile] = Buffer(f"{FACTOR}_i", node, 1, ROWS, width, streamed=True, freed_by=shares)
    before = buffers.get(result)
    place, note = "dQ_part" if before is None else before.name, "of the keys of some warpgroups"
    part = Handed(result, "dQ_part", place, room, 1, note, before is not None, reduced="sum")
    return Gradients(
        **{**vars(loops), "grid": (rows, span)},
        warpgroups=shares,
        shares=shares,
        sides={rows: ROWS},
        across=side,
        stages=stages,
        buffers=dict(_buffers([*loops.loop.body, *keys.body], keys, shares, tiles, sizes, stages)) | buffers,
        handed=(part,),
        keys=keys,
        tiles=tiles,
        side=side,
        bias=bias,
        sums=write.tile,
        rows=result,
        before=before,
        factor=next((each for each in buffers.values() if each is not before), None),
    )


def _buffers(
    nodes: Iterable[ir.Node], keys: ir.Loop, shares: int, tiles: int, sizes: ir.Sizes, stages: int
) -> Iterator[tuple[ir.Tile, Buffer]]:
    """The rings: of a sequence the rows and vectors of the block, and all tiles of keys; with the barriers of one."""
    first: str | None = None
    reads = [node for node in nodes if isinstance(node, ir.Read) and node.tensor.name not in (BEFORE, FACTOR)]
    for node in sorted(reads, key=lambda each: len(each.tile.ranges) == 1):  # a vector has the barriers of a matrix
        rng, *columns = node.tile.ranges
        rows, width, down = ir.length(rng.block, sizes), padded(columns[0], sizes) if columns else 1, 1
        if rng is keys.range:  # all keys of a warpgroup are a box, if those are a power of two
            all_keys = rows * tiles
            rows, down = (rows, shares * tiles) if all_keys & (all_keys - 1) else (all_keys, shares)
        name = f"{node.tensor.name}_{rng.name}" + ("" if columns else "_ring")
        yield node.tile, Buffer(name, node, stages * down, rows, width, True, first, stages, shares, down)
        first = first or name
