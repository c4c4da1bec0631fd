"""The plans of Gluon kernels whose sums have their terms in parts, `c` each, which a ring brings one after the other.

Some write rows of a table of pairs, and others multiply such a table: see `scores` and `product`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pebblesim.kernels.gluon.block import MOST_WARPGROUPS, ROWS, SHARED, THREADS, WIDEST, Block, Buffer, Loops, Outgoing
from pebblesim.kernels.products import factors
from pebblesim.kernels.triton.storage import padded
from pebblesim.language import program as ir

SLOTS = 4
"""Slots of the ring of a product: two tiles of 128 terms, in parts of 64, so that warpgroups need not go in step."""


def product_of(loops: Loops, sizes: ir.Sizes, tiled: Mapping[ir.Tensor, tuple[int, int]]) -> Block | None:
    """The plan of a launch that multiplies a table kept in tiles; None if it is no such launch."""
    nest, results = loops.nest, [node for node in loops.launch.block if isinstance(node, ir.Write)]
    if nest is None or len(loops.grid) != 2 or len(nest.reads) != 1 + len(nest.products):
        return None
    (own, columns), (table, *matrices), made = loops.grid, nest.reads, list(map(factors, nest.products))
    loop, expr, tile = loops.loop, nest.expr, tiled.get(table.tensor)
    sums = [each.target.tile for each in nest.products]
    if [each.right.tile for each in made] != [each.tile for each in matrices] or sums != [
        each.tile for each in results
    ]:
        return None
    if any(each.left.tile is not table.tile or each.right.transposed or each.shape[0] is not own for each in made):
        return None
    if (
        tile is None
        or nest.inner.range.parent is not loop.range
        or any(columns not in each.shape[1].around for each in made)
    ):
        return None
    block, width, deep = padded(own, sizes), padded(columns, sizes), padded(nest.inner.range, sizes)
    part = width // len(made)
    rows, terms = tile[:: -1 if expr.left.transposed else 1]
    odd = block % ROWS or block // ROWS > MOST_WARPGROUPS or not 64 <= width <= WIDEST or deep != ROWS
    if odd or (rows, terms) != (block, padded(loop.range, sizes)):
        return None
    before = {node.tile for node in loops.launch.block if isinstance(node, ir.Read)}  # sums that memory has already
    slots = min(SLOTS, SHARED // (2 * (block + width) * deep + 16))  # words of 16 bits, and two barriers
    if slots < block // ROWS:
        return None
    down, across = (deep, tile[1]) if expr.left.transposed else (tile[0], deep)
    names = [f"{each.tensor.name}_part" + f"_{at}" * (at > 0) for at, each in enumerate(matrices)]
    buffers = {table.tile: Buffer(f"{table.tensor.name}_part", table, slots, down, across, True, "")}
    for at, (name, matrix) in enumerate(zip(names, matrices, strict=True)):
        buffers[matrix.tile] = Buffer(name, matrix, slots, deep, part, True, "", first=at * part, pitch=width)
    return Block(
        **vars(loops),
        warpgroups=block // ROWS,
        sides={own: ROWS, columns: width},
        across=part,
        stages=slots,
        persistent=True,
        buffers=buffers,
        outgoing=tuple(
            Outgoing(name, each, (ROWS, part))
            for name, each in zip(names, results, strict=True)
            if each.tile not in before
        ),
    )


def scores_of(loops: Loops, sizes: ir.Sizes, stages: int) -> Block | None:
    """The plan of a launch that writes rows of a table; None if it is no such launch."""
    nest, own, loop = loops.nest, loops.own, loops.loop
    if nest is None or len(loops.grid) != 1 or len(nest.reads) != 1 or len(nest.products) != 1:
        return None
    (part,), expr = nest.reads, nest.expr
    tables = [node for node in loop.body if isinstance(node, ir.Write) and ir.over_pairs(node.tile.ranges)]
    before = [node for node in loop.body if isinstance(node, ir.Read) and ir.over_pairs(node.tile.ranges)]
    rows = [node for node in loops.launch.block if isinstance(node, ir.Read) and node.tile is expr.left.tile]
    turned = expr.left.transposed or not expr.right.transposed or expr.right.tile is not part.tile
    if len(tables) != 1 or len(before) > 1 or not rows or turned:
        return None
    if expr.left.ranges != (own, nest.inner.range) or nest.product.target.tile.ranges[0] is not own:
        return None
    deep, width = ir.length(nest.inner.range.block, sizes), ir.length(loop.range.block, sizes)
    groups, parts = ir.length(own.block, sizes) // ROWS, -(-sizes[nest.inner.range.dim] // deep)
    names = [f"{each.tensor.name}_{rng.name}" for each, rng in ((rows[0], own), (part, loop.range))]
    name, tiles = f"{tables[0].tensor.name}_tile", groups * (1 + len(before))
    return Block(
        **vars(loops),
        warpgroups=groups,
        sides={own: ROWS},
        stages=stages,
        buffers={
            rows[0].tile: Buffer(
                names[0], rows[0], parts, ROWS * groups, deep, fills=parts, freed_by=groups, across=parts
            ),
            part.tile: Buffer(names[1], part, stages, width, deep, True, fills=stages, freed_by=groups),
        },
        outgoing=(Outgoing(name, tables[0], (ROWS, width), tiles, "on its way to memory", *before),),
        turns=groups - 1,
        persistent=True,
    )


def less(plan: Block, beyond: int) -> Block:
    """The plan with so many bytes less of rows in shared memory, if registers have room for them."""
    stay, ring = plan.buffers.values()
    kept = min(max(0, -(-beyond // (2 * plan.height * stay.width))), stay.across - 1)
    registers = ROWS * (kept * stay.width // 2 + ring.rows) // THREADS  # two words of rows in each
    if not kept or registers > plan.most or ring.rows != plan.height:  # they go through slots of the ring
        return plan
    held = stay.across - kept
    rows = replace(stay, slots=held, fills=held)
    return replace(plan, buffers={**plan.buffers, stay.read.tile: rows})
