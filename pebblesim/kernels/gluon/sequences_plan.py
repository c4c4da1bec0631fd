"""The plan of a Gluon kernel whose blocks keep rows of a bias in shared memory while sequences stream past.

Such a block has 64 rows. Each of its warpgroups has a sequence of its own at a time, with all 64 rows, rings of its own
and a warp that fills them: what they share is the bias alone. It is there tile by tile, in the order in which threads
have the accumulators of a product, and the scores of a tile start from it. Where there is room it is in float32 and
divided by the scale: so the sum of a product and a bias takes no instruction, and neither does making a 16-bit word
wider. Where a row has no column, or a column no row, the bias is -inf: then tiles need no predicate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from pebblesim.kernels.gluon.block import REGISTERS, ROWS, SHARED, Block, Buffer, Stays, loops_of
from pebblesim.kernels.gluon.plan import SMALLER_BLOCKS, held, refused, rows_of
from pebblesim.kernels.strides import OVER_PAIRS
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

BESIDE = 8 * 1024
"""Bytes of shared memory for barriers, arguments of roles, and what sums go through on their way to memory."""


def sequences_of(program: ir.Program, launch: Launch, sizes: ir.Sizes, stages: int, groups: int) -> Block:
    """Find the plan of a launch of `kernels.sequences_past`, for blocks of so many warpgroups.

    Raises:
        UsageError: it is not of the kind that this reading writes.
    """
    nodes = list(ir.walk(launch.block))
    (read,) = (node for node in nodes if isinstance(node, ir.Read) and node.tensor.name in OVER_PAIRS)
    (added,) = (node for node in nodes if _adds(node, read.tile))
    assert isinstance(added, ir.Compute)
    alone = launch.with_block(_without(launch.block, read.tile))
    plan = rows_of(program, alone, loops_of(alone), sizes, stages, True)
    if plan.warpgroups > 1:
        raise refused(program, f"a block has {plan.height} rows", f"give blocks of {ROWS} rows")
    columns = plan.loop.range
    side = ir.length(columns.block, sizes)
    tiles, buffers = -(-sizes[columns.dim] // side), _of_each(plan.buffers, groups)
    left = SHARED - BESIDE - sum(each.slots * prod(each.box) * (4 if each.vector else 2) for each in buffers.values())
    stays = Stays(read, added.target.tile, tiles, side, 4 * tiles * side * ROWS <= left)
    plan = replace(plan, late=(), stays=stays, warpgroups=groups, shares=groups, buffers=buffers)
    taken, most = held(plan, sizes), REGISTERS[groups]
    if taken >= most:
        raise refused(program, f"a thread of {launch.name} holds {taken} words in {most} registers", SMALLER_BLOCKS)
    return replace(plan, roomy=taken < plan.most)


def _adds(node: ir.Node, tile: ir.Tile) -> bool:
    """Whether a tile of the bias is added to scores."""
    return isinstance(node, ir.Compute) and isinstance(node.expr, ir.Ref) and node.expr.tile is tile


def _without(body: list[ir.Node], tile: ir.Tile) -> list[ir.Node]:
    """A body without the primitives that read, add and delete a tile."""
    kept = (
        node
        for node in body
        if not (_adds(node, tile) or (isinstance(node, ir.Read | ir.Delete) and node.tile is tile))
    )
    return [replace(node, body=_without(node.body, tile)) if isinstance(node, ir.Loop) else node for node in kept]


def _of_each(buffers: Mapping[ir.Tile, Buffer], groups: int) -> dict[ir.Tile, Buffer]:
    """Buffers with slots for each warpgroup; those that stay have the same barriers, and so have those that stream."""
    first = {
        streamed: next((each.name for each in buffers.values() if each.streamed is streamed), None)
        for streamed in (False, True)
    }
    return {
        tile: replace(
            each,
            slots=each.slots * groups,
            fills=each.fills * groups,
            freed_by=1,
            beside=None if each.name == first[each.streamed] else first[each.streamed],
        )
        for tile, each in buffers.items()
    }
