"""The plan of a Gluon kernel, found in a launch before any text is written: what stays, is streamed, and is put off.

A launch for Hopper is one grid of tiles of rows and one loop that streams tiles past them. Rows of the grid's tiles are
divided among warpgroups, 64 each. A matrix read outside of the loop stays in shared memory; what is read inside is a
ring of slots there, so that all warpgroups have it from one read. Sums and scores are in registers, with the rows of
the warpgroup as their rows, and so are vectors of these rows.

Products are issued and run beside the rest. Those that end an iteration, sums that nothing in it needs any more, are
put off until the first products of the next one are issued: tensor cores work on them while exponentials are taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from pebblesim.core.errors import UsageError
from pebblesim.kernels.additions import added
from pebblesim.kernels.gluon.block import (
    MOST_WARPGROUPS,
    REGISTERS,
    ROWS,
    SHARED,
    THREADS,
    WIDEST,
    Addition,
    Block,
    Buffer,
    Handed,
    Loops,
    Outgoing,
)
from pebblesim.kernels.gluon.widths import Part, columns_of_part
from pebblesim.kernels.identifiers import Identifiers
from pebblesim.kernels.orientation import turned
from pebblesim.kernels.passes.bias import is_bias
from pebblesim.kernels.products import factors, products
from pebblesim.kernels.triton.storage import padded
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch, lifetimes_of, peak

IN_TURNS = 64
"""Most columns of sums with which warpgroups take turns at the tensor cores: exponentials then bind, not products."""

APART = 128
"""Most columns of sums with which each tile asks if a causal mask cuts it; with wider ones two loops are faster."""

LONG = 3
"""Least slots of a ring of which each is in use for two iterations."""

TAKEN = "w head part slot phase last last_phase rows"
"""Names that no buffer may have."""


OTHER_PROGRAM = (
    "a Gluon kernel streams the tiles of one loop past rows that stay, as in flash2-forward and "
    "backward-two-pass-blocked: take these, or --target triton"
)
OTHER_BLOCKS = "give blocks of 64, 128 or 192 rows, or leave --block out for the tiles that were measured"
SMALLER_BLOCKS = "give smaller blocks, or leave --block out for the tiles that were measured"


def refused(program: ir.Program, why: str, advice: str = OTHER_PROGRAM) -> UsageError:
    """The error for a program, or sizes, that this reading cannot write a kernel for, and what to do."""
    of = "" if why.startswith(f"{program.name} ") else f"{program.name}: "  # a launch of the same name
    return UsageError(f"{of}{why}; {advice}.")


def check_block(program: ir.Program, own: ir.Range, sizes: ir.Sizes, even: bool = False) -> int:
    """The warpgroups that divide the rows of a block; `even`: these are to be a power of two.

    Raises:
        UsageError: they do not.
    """
    block = ir.length(own.block, sizes)
    if block % ROWS or not 1 <= block // ROWS <= MOST_WARPGROUPS or (even and block & (block - 1)):
        raise refused(program, f"block {own.block} is {block}", OTHER_BLOCKS)
    return block // ROWS


def check_shared(program: ir.Program, launch: Launch, taken: int, slots: int) -> None:
    """Check that a block's bytes of shared memory are there.

    Raises:
        UsageError: they are not.
    """
    if taken > SHARED:
        why = f"{launch.name} takes {taken:,} bytes of shared memory with {slots} stages of a ring, and a block has"
        raise refused(program, f"{why} {SHARED:,}", "take fewer --stages, or smaller blocks")


def multiplies(launch: Launch) -> bool:
    """Whether a launch has products of matrices."""
    return bool(products(ir.walk(launch.body)))


def rows_of(
    program: ir.Program, launch: Launch, loops: Loops | None, sizes: ir.Sizes, stages: int, persistent: bool
) -> Block:
    """Find the plan of a launch with products that no other family is for.

    Raises:
        UsageError: it is not of the kind that this reading writes.
    """
    if loops is None or len(loops.grid) != 1 or loops.inner:
        raise refused(program, f"{launch.name} is no single loop within a grid of one dimension")
    own, loop = loops.own, loops.loop
    groups = check_block(program, own, sizes)
    additions = _additions(program, own, loop, sizes, groups, stages)
    made = Block(
        **vars(loops),
        warpgroups=groups,
        sides={own: ROWS},
        stages=stages,
        handed=tuple(each.handed for each in additions),
        outgoing=(*(each.sent for each in additions), *_tables(loops, sizes, groups)),
        additions=additions,
        persistent=persistent,
        back_and_forth=persistent,
    )
    _check_tiles(program, made, sizes)
    made = replace(made, buffers=_buffers(program, made, sizes))
    putting_off = replace(made, late=_late(made))
    if not made.additions and held(putting_off, sizes) <= made.most:
        made = putting_off
    turns = 2 * (persistent and groups == 2 and _narrow(loop, made.late, sizes))
    return replace(made, roomy=held(made, sizes) < made.most, turns=turns)


def _narrow(loop: ir.Loop, late: tuple[ir.Compute, ...], sizes: ir.Sizes) -> bool:
    """Whether a loop has one product of scores, and narrow sums of others that are put off."""
    widths = [padded(node.target.tile.ranges[-1], sizes) for node in late]
    return len(products(loop.body)) == len(late) + 1 and 0 < max(widths, default=0) <= IN_TURNS


def _additions(
    program: ir.Program, own: ir.Range, loop: ir.Loop, sizes: ir.Sizes, groups: int, stages: int
) -> tuple[Addition, ...]:
    """The products that are added to memory: with the rows of the loop's tile, and a sum over those of the grid's."""
    made = []
    for node, write in added(loop.body).items():
        (rows, terms), columns = factors(node).left.shape, factors(node).right.shape[1]
        height, width = ir.length(loop.range.block, sizes), padded(columns, sizes)
        if (rows, terms) != (loop.range, own) or height % ROWS or width % (16 * groups) or columns.parent:
            why = f"line {node.line} adds {height} x {width} words to memory, and {groups} warpgroups add multiples of"
            why += f" {ROWS} x {16 * groups}, sums over the rows of the grid's tile"
            raise refused(program, why, "give other blocks, or take --target triton")
        left, shape = factors(node).left.tile, (stages, ir.length(own.block, sizes), height)
        name, note = f"{left.name}_of_all", f"line {node.line}: all warpgroups read it"
        handed = Handed(left, name, name, shape, groups, note)
        box = height, width // groups
        made.append(
            Addition(node, handed, Outgoing(f"{write.tensor.name}_part", write, box, groups, "added to memory"))
        )
    return tuple(made)


def _tables(loops: Loops, sizes: ir.Sizes, groups: int) -> Iterator[Outgoing]:
    """Room for what the loop writes of tables of pairs: of each warpgroup's rows, as they lie in memory."""
    for node in loops.loop.body:
        if isinstance(node, ir.Write) and ir.over_pairs(node.tile.ranges):
            box = [ROWS if rng is loops.own else ir.length(rng.block, sizes) for rng in node.tile.ranges]
            yield Outgoing(f"{node.tensor.name}_tile", node, (box[0], box[1]), groups, "on its way to memory")


def _buffers(program: ir.Program, plan: Block, sizes: ir.Sizes) -> dict[ir.Tile, Buffer]:
    names, made, own, loop = Identifiers(TAKEN.split()), dict[ir.Tile, Buffer](), plan.own, plan.loop
    whole = {ref.tile for each in plan.additions for ref in ir.refs(each.product.expr)}  # all warpgroups need all rows
    for node in ir.walk(plan.launch.block):
        streamed = node in loop.body
        if not isinstance(node, ir.Read) or is_bias(node) or (len(node.tile.ranges) == 1 and not streamed):
            continue
        if any(node.tile is each.write.tile for each in plan.outgoing):
            continue
        rows, *columns = node.tile.ranges
        if rows is not (loop.range if streamed else own) or node.at is not None or not all(map(_whole, columns)):
            raise refused(program, f"line {node.line} reads neither whole rows of the grid's tile nor of the loop's")
        if columns and node.tensor.name not in program.inputs:
            raise refused(program, f"line {node.line} reads {node.tensor.name}, which is made by another launch")
        block = ir.length((loop.range if streamed else own).block, sizes)
        height = block if streamed or node.tile in whole else ROWS
        slots = plan.stages if streamed else block // height
        name = names.new(f"{node.tensor.name}_{rows.name}" + ("" if columns else "_ring"))
        rings = [each for each in made.values() if each.streamed and not each.beside]
        if not columns and not rings:
            raise refused(program, f"line {node.line} reads a vector before any matrix in the loop")
        width = padded(columns[0], sizes) if columns else 1
        fills, freed_by = plan.stages if streamed else 1, plan.warpgroups * (streamed or plan.persistent)
        first = columns_of_part(columns[0]) if columns else 0
        if not columns:
            beside: str | None = rings[-1].name
        else:
            beside = next((each.name for each in made.values() if first and _beside(each.read, node)), None)
        down = 1 if streamed else slots
        made[node.tile] = Buffer(name, node, slots, height, width, streamed, beside, fills, freed_by, down, first=first)
    return made


def _whole(columns: ir.Range) -> bool:
    """Whether a range has all columns of a head, or is one of the parts in which a kernel has them."""
    return columns.parent is None or isinstance(columns, Part)


def _beside(first: ir.Read, other: ir.Read) -> bool:
    """Whether two reads are of parts of the same rows of a matrix."""
    return first.tensor is other.tensor and first.tile.ranges[0] is other.tile.ranges[0]


def held_transposed(plan: Block) -> frozenset[ir.Tile]:
    """The tiles that are held transposed. Shared memory hands an operand of what is added to memory either way."""
    others = {each.product for each in plan.additions}
    return turned(node for node in ir.walk(plan.launch.block) if node not in others)


def _check_tiles(program: ir.Program, plan: Block, sizes: ir.Sizes) -> None:
    """Check that all that is computed has the rows of the grid's tile as its rows, and fits into registers."""
    transposed, others = held_transposed(plan), {each.product for each in plan.additions}
    computes = [node for node in ir.walk(plan.launch.block) if isinstance(node, ir.Compute) and node not in others]
    computed = {node.target.tile: node.line for node in computes}
    for tile, line in computed.items():
        if len(tile.ranges) == 2:
            rows, columns = tile.ranges[:: -1 if tile in transposed else 1]
            width = padded(columns, sizes)
            if rows is not plan.own or not 16 <= width <= WIDEST or width & (width - 1):
                raise refused(program, f"line {line} has a tile of other rows, or of {width} columns", SMALLER_BLOCKS)
    if (taken := held(plan, sizes)) >= (most := REGISTERS[plan.warpgroups]):
        why = f"a thread of {plan.launch.name} holds {taken} words in {most} registers"
        raise refused(program, why, SMALLER_BLOCKS)


def held(plan: Block, sizes: ir.Sizes) -> int:
    """Most registers of a thread for tiles at once, with the operands of products that are put off."""
    body, transposed = plan.launch.block, held_transposed(plan)
    computed = {node.target.tile for node in ir.walk(body) if isinstance(node, ir.Compute)}
    computed |= {node.tile for node in ir.walk(body) if isinstance(node, ir.Read) and is_bias(node)}
    parts = {each.write.tile: prod(each.box) // THREADS for each in plan.outgoing}

    def words(tile: ir.Tile) -> int:
        if tile in parts:
            return parts[tile]
        return padded(tile.ranges[0 if tile in transposed else -1], sizes) // 2 if len(tile.ranges) == 2 else 1

    lives = {tile: life for tile, life in lifetimes_of(body).items() if tile in computed}
    most = peak({tile: words(tile) for tile in lives}, lives)
    return most + sum(words(tile) // 2 for tile in {factors(node).left.tile for node in plan.late})


def _late(plan: Block) -> tuple[ir.Compute, ...]:
    """The products at the end of a loop's body, of a computed matrix with one that was read.

    Where another product of the iteration reads the same, a slot of its ring is in use from the begin of one iteration
    to the end of the next: with two slots there would be none to fill.
    """
    loop = plan.loop
    read = {node.tile for node in loop.body if isinstance(node, ir.Read)}
    found: list[ir.Compute] = []
    for node in reversed(loop.body):
        if isinstance(node, ir.Delete):
            continue
        if not (isinstance(node, ir.Compute) and node.mode == "add" and isinstance(node.expr, ir.MatMul)):
            break
        if node.expr.left.tile in read or node.expr.right.tile not in read:
            break
        found.insert(0, node)
    others = {ref.tile for node in products(loop.body) if node not in found for ref in ir.refs(node.expr)}
    long = any(ref.tile in read & others for node in found for ref in ir.refs(node.expr))
    return () if long and plan.stages < LONG else tuple(found)
