"""The plan of Gluon kernels whose warpgroups divide columns: which launches they are for, and what is in shared memory.

They are for sums too wide for one warpgroup's registers, and for keys that are values, too.
"""

from __future__ import annotations

from dataclasses import replace

from pebblesim.kernels.gluon.block import ROWS, WIDEST, Block, Buffer, Handed, loops_of
from pebblesim.kernels.gluon.plan import refused
from pebblesim.kernels.products import factors, products
from pebblesim.kernels.triton.copies import reduces
from pebblesim.kernels.triton.storage import padded
from pebblesim.kernels.words import LEAST_SIDE
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

SHARES = 2
"""Warpgroups that divide columns."""


def _takes(buffer: Buffer, values: ir.Tile, keys: int) -> bool:
    """Whether the slots of a ring, which only scores need, are as large as probabilities."""
    return buffer.read.tile is not values and buffer.across == 1 and buffer.box == (ROWS, keys)


def columns_of(launch: Launch, sizes: ir.Sizes, stages: int) -> Block | None:
    """The plan of a launch of 64 rows with wide sums, or whose keys are values; None if it is no such launch."""
    loops = loops_of(_joined(launch))
    if loops is None or len(loops.grid) != 1 or loops.inner or loops.loop.when is not None:
        return None
    launch, own, loop = loops.launch, loops.own, loops.loop
    multiplying = products(loop.body)
    if len(multiplying) < 2 or padded(own, sizes) != ROWS or padded(loop.range, sizes) % (16 * SHARES):
        return None
    *scores, sums = multiplying
    wide = sums.target.ranges[1]
    if not SHARES * LEAST_SIDE <= padded(wide, sizes) <= SHARES * WIDEST or wide.parent is not None:
        return None
    if not _alike(own, loop, scores, sums) or not _vectors_alike(loop, scores[0].target.tile):
        return None
    nodes = (*launch.block, *loop.body)
    reads = {node.tile: node for node in nodes if isinstance(node, ir.Read) and len(node.tile.ranges) == 2}
    keys, width = padded(loop.range, sizes) // SHARES, padded(wide, sizes) // SHARES
    held, rings = dict[ir.Tile, Buffer](), dict[ir.Tile, Buffer]()
    values = factors(sums).right.tile
    for node in scores:
        left, right = factors(node).left.tile, factors(node).right.tile
        columns = padded(factors(node).left.shape[1], sizes)
        parts = SHARES if right is values or columns > WIDEST else 1
        if left not in reads or right not in reads or columns > parts * WIDEST:
            return None
        held[left] = Buffer(_name(reads[left]), reads[left], parts, ROWS, columns // parts, across=parts)
        ring = _ring(reads[right], keys, columns // parts, parts)
        rings[right] = replace(ring, freed_by=SHARES) if right is values or _takes(ring, values, keys) else ring
    if values in reads and values not in rings and width * SHARES > WIDEST:  # else a warpgroup has all columns
        rings[values] = _ring(reads[values], keys, width, SHARES)
    if values not in rings or len(held) + len(rings) != len(reads):
        return None
    inside = next((ring.name for ring in rings.values() if _takes(ring, values, keys)), None)
    made, note = scores[0].target.tile, f"line {sums.line}: both warpgroups read it"
    room = inside or f"{made.name}_of_all"
    handed_over = [Handed(made, made.name, room, (SHARES, ROWS, keys), 1, note, inside is not None)]
    for each in loop.body:
        if isinstance(each, ir.Compute) and isinstance(each.expr, ir.RowReduction):
            tile, name = each.target.tile, f"{each.target.tile.name}_of_all"
            handed_over.append(Handed(tile, name, name, (SHARES, 1, ROWS), 1, reduced=each.expr.op))
    return Block(
        **vars(loops),
        warpgroups=SHARES,
        shares=SHARES,
        sides={own: ROWS, loop.range: keys, wide: width},
        stages=stages,
        buffers=held | rings,
        handed=tuple(handed_over),
    )


def _ring(read: ir.Read, keys: int, width: int, parts: int) -> Buffer:
    """The slots of a tile that is streamed: the keys of each share, in parts of its columns."""
    slots = SHARES * parts
    return Buffer(_name(read), read, slots, keys, width, True, None, slots, 1, SHARES, parts)


def check_columns(program: ir.Program, plan: Block, persistent: bool) -> None:
    """Check the options of a launch whose warpgroups divide columns.

    Raises:
        UsageError: they are not for it.
    """
    if persistent:
        raise refused(program, "blocks that divide columns have one tile each", "leave --persistent out")
    if plan.stages != SHARES:
        why = f"rings have the {SHARES} halves of a tile where warpgroups divide columns, and --stages {plan.stages}"
        raise refused(program, f"{why} was given", "leave --stages out")


def _name(read: ir.Read) -> str:
    return f"{read.tensor.name}_{read.tile.ranges[0].name}"


def _alike(own: ir.Range, loop: ir.Loop, scores: list[ir.Compute], sums: ir.Compute) -> bool:
    """Whether scores are of rows that stay with streamed ones, and sums of probabilities with streamed rows."""
    tile, expr = scores[0].target.tile, factors(sums)
    turned = all(each.right.transposed and not each.left.transposed for each in map(factors, scores))
    modes = [each.mode for each in (*scores, sums)] == ["new", *["add"] * len(scores)]
    one = all(each.target.tile is tile for each in scores) and tile.ranges == (own, loop.range)
    return turned and modes and one and expr.left.tile is tile and not (expr.left.transposed or expr.right.transposed)


def _vectors_alike(loop: ir.Loop, scores: ir.Tile) -> bool:
    """Whether rows are reduced alone, to a maximum or onto a sum that is else only multiplied by vectors."""
    for node in loop.body:
        if isinstance(node, ir.Compute) and any(map(reduces, getattr(node.expr, "operands", ()))):
            return False
        if not isinstance(node, ir.Compute) or not isinstance(node.expr, ir.RowReduction):
            continue
        if node.expr.op == "rowmax" and node.mode == "new":
            continue
        computed = (each for each in loop.body if isinstance(each, ir.Compute) and each is not node)
        others = [each for each in computed if node.target.tile in _tiles(each)]
        if node.mode != "add" or not all(_multiplied(each, node.target.tile) for each in others):
            return False
    return True


def _multiplied(node: ir.Compute, tile: ir.Tile) -> bool:
    """Whether an operation multiplies a tile by another one, in its place."""
    expr = node.expr
    refs = [ref.tile for ref in ir.refs(expr)]
    return isinstance(expr, ir.Elementwise) and expr.op == "mul" and node.target.tile is tile and refs.count(tile) == 1


def _joined(launch: Launch) -> Launch:
    """The launch with two products that are added up as one sum: the second is added where the first one is."""
    if len(launch.grid) != 1:
        return launch
    block = [replace(node, body=_summed(node.body)) if isinstance(node, ir.Loop) else node for node in launch.block]
    return launch.with_block(block)


def _summed(body: list[ir.Node]) -> list[ir.Node]:
    made = list(body)
    for node in body:
        match node:
            case ir.Compute(
                mode="assign",
                target=ir.Ref(tile=first) as target,
                expr=ir.Elementwise(op="add", operands=(ir.Ref(tile=same), ir.Ref(tile=second))),
            ) if same is first:
                match [each for each in body if isinstance(each, ir.Compute) and second in _tiles(each)]:
                    case [ir.Compute(mode="new", expr=ir.MatMul() as expr, line=line) as product, last] if last is node:
                        made[made.index(product)] = ir.Compute(target, expr, "add", line)
                        gone = [node, *(each for each in made if isinstance(each, ir.Delete) and each.tile is second)]
                        made = [each for each in made if each not in gone]
    return made


def _tiles(node: ir.Compute) -> list[ir.Tile]:
    """The tiles of a primitive."""
    return [node.target.tile, *(ref.tile for ref in ir.refs(node.expr))]
