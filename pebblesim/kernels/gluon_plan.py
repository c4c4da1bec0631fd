"""The plan of a Gluon kernel, found in a launch before any text is written: what stays, is streamed, and is put off.

A launch for Hopper is one grid of tiles of rows and one loop that streams tiles past them. Rows of the grid's tiles are
divided among warpgroups, 64 each. A matrix read outside of the loop stays in shared memory; what is read inside is a
ring of slots there, so that all warpgroups have it from one read. Sums and scores are in registers, with the rows of
the warpgroup as their rows, and so are vectors of these rows.

Products are issued and run beside the rest. Those that end an iteration, sums that nothing in it needs any more, are
put off until the first products of the next one are issued: tensor cores work on them while exponentials are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.kernels.additions import added
from pebblesim.kernels.bias import is_bias
from pebblesim.kernels.gluon_additions import ROWS, Addition
from pebblesim.kernels.identifiers import Identifiers
from pebblesim.kernels.orientation import turned
from pebblesim.kernels.products import factors, products
from pebblesim.kernels.storage import padded
from pebblesim.kernels.terms import Name, Term
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch, lifetimes_of, peak

IN_TURNS = 64
"""Most columns of sums with which warpgroups take turns at the tensor cores: exponentials then bind, not products."""

APART = 128
"""Most columns of sums with which each tile asks if a causal mask cuts it; with wider ones two loops are faster."""

THREADS = 128
"""Threads of a warpgroup."""

MOST_WARPGROUPS = 3
"""Warpgroups with sums beside the warp that loads: a fourth would have too few registers."""

REGISTERS = {1: 240, 2: 240, 3: 160}
"""Registers of a thread, by the number of warpgroups with sums; a multiple of 8."""

LOADING_REGISTERS = 24
"""Registers of a thread of the warp that loads."""

SHARED = 227 * 1024
"""Bytes of shared memory that a block can have."""

MOST_HELD = 0.8
"""Largest part of a thread's registers for tiles, if operands of products that are put off are among them."""

TAKEN = "w head part slot phase last last_phase rows"
"""Names that no buffer may have."""

WIDEST = 256
"""Most columns of a product of `wgmma`, and most rows of a tile that the copy engine moves."""

GROUP_OF_BYTES = 16
"""Rows of matrices begin at multiples of so many bytes for the copy engine."""


@dataclass(frozen=True, eq=False)
class Buffer:
    """A tensor's boxes in shared memory, which the copy engine fills.

    Attributes:
        name: of the buffer in the text.
        read: the primitive that reads it.
        slots: how many boxes there is room for.
        rows, width: of a box; a vector has width 1.
        streamed: whether it is a ring.
        beside: the ring of matrices whose barriers a ring of vectors has.
        fills: how many barriers of each kind there are: one for each slot, or one for all.
        freed_by: arrivals by which a slot is free to be filled again; 0 if it is filled once.
        down, across: boxes of what is read at once, beneath and beside each other.
    """

    name: str
    read: ir.Read
    slots: int
    rows: int
    width: int
    streamed: bool = False
    beside: str = ""
    fills: int = 1
    freed_by: int = 0
    down: int = 1
    across: int = 1

    @property
    def barrier(self) -> str:
        """The name of its barriers, `{barrier}_full` and `{barrier}_free`."""
        return self.beside or self.name

    @property
    def vector(self) -> bool:
        """Whether it is of vectors, in float32."""
        return len(self.read.tile.ranges) == 1

    @property
    def box(self) -> tuple[int, ...]:
        """The sides of a box."""
        return (self.rows,) if self.vector else (self.rows, self.width)

    def slot(self, at: Any) -> Term:
        """A slot as a matrix, or as a vector."""
        return Name(self.name).index(at).reshape(*self.box)

    @property
    def whole(self) -> tuple[int, ...]:
        """The sides of all boxes of what is read at once."""
        return tuple(side * times for side, times in zip(self.box, (self.down, self.across), strict=False))


@dataclass(frozen=True, eq=False, kw_only=True)
class Block:
    """A block of threads.

    Attributes:
        launch: the launch that it is of.
        own: the range of the grid, whose tiles the warpgroups divide among them.
        loop: the loop that streams.
        additions: the products that are added to memory.
        warpgroups: how many have sums.
        stages: slots of a ring.
        buffers: what the copy engine brings of inputs, by tile, in the order in which it is read.
        writes: the primitives by which threads write to memory.
        persistent: whether there are as many blocks as multiprocessors, each with several tiles of the grid, one after
            the other: what the next one needs arrives while one ends.
        roomy: whether threads have registers left, in which they exchange columns before they store sums.
    """

    launch: Launch
    own: ir.Range
    loop: ir.Loop
    additions: tuple[Addition, ...] = ()
    warpgroups: int
    stages: int
    buffers: Mapping[ir.Tile, Buffer] = field(default_factory=dict)
    writes: tuple[ir.Write, ...] = ()
    persistent: bool = False
    roomy: bool = True

    @property
    def height(self) -> int:
        """Rows of the grid's tile: 64 of each warpgroup."""
        return ROWS * self.warpgroups

    @property
    def most(self) -> float:
        """Most registers of a thread for tiles, if operands of products that are put off are among them."""
        return MOST_HELD * REGISTERS[self.warpgroups]

    @property
    def across(self) -> int | None:
        """Columns of the tiles that vectors of rows meet; None for those of the streamed tiles."""
        return None

    def sides(self, sizes: ir.Sizes) -> dict[ir.Range, int]:
        """Lengths of a warpgroup's tiles, where they are not those of the schedule's."""
        return {self.own: ROWS}

    def side_of_block(self, rng: ir.Range) -> int | None:
        """The length of the block's tiles of a range of which a warpgroup has a part."""
        return self.height if rng is self.own else None


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan(Block):
    """A block whose tiles are in shared memory, and the order of its products.

    Attributes:
        late: the products that are put off to the next iteration.
        turns: whether two warpgroups take turns: one issues its products when the other has its scores.
    """

    late: tuple[ir.Compute, ...] = ()
    turns: bool = False

    @property
    def rings(self) -> list[Buffer]:
        """The rings of matrices."""
        return [buffer for buffer in self.buffers.values() if buffer.streamed and not buffer.vector]

    @property
    def last(self) -> dict[Buffer, ir.Compute]:
        """For each ring, the product that uses a slot last."""
        computes = [node for node in self.loop.body if isinstance(node, ir.Compute)]
        uses = ((self.buffers.get(ref.tile), node) for node in computes for ref in ir.refs(node.expr))
        return {buffer: node for buffer, node in uses if buffer is not None and buffer.streamed}

    def together(self, ring: Buffer) -> list[Buffer]:
        """A ring of matrices, and those of vectors that have its barriers."""
        return [buffer for buffer in self.buffers.values() if buffer.barrier == ring.barrier]

    def waited_in_time(self, buffer: Buffer) -> bool:
        """Whether a product that is not put off uses the buffer, and so has waited for it."""
        return any(
            isinstance(node, ir.Compute)
            and node not in self.late
            and any(ref.tile is buffer.read.tile for ref in ir.refs(node.expr))
            for node in self.loop.body
        )


@dataclass(frozen=True, eq=False)
class Nest:
    """A loop of a block, and a loop within that adds up the parts of products.

    Attributes:
        loop, inner: the loops.
        reads: what the inner one reads.
        product: the primitive that adds a part.
    """

    loop: ir.Loop
    inner: ir.Loop
    reads: list[ir.Read]
    product: ir.Compute

    @property
    def expr(self) -> ir.MatMul:
        """The product."""
        return factors(self.product)


def nested(launch: Launch) -> Nest | None:
    """The loops of a launch, if each block adds up the parts of products in a loop within another one."""
    loops = [node for node in launch.block if isinstance(node, ir.Loop)]
    inner = [node for loop in loops for node in loop.body if isinstance(node, ir.Loop)]
    if len(loops) != 1 or len(inner) != 1 or launch.around is not None:
        return None
    match [node for node in inner[0].body if not isinstance(node, ir.Delete)]:
        case [*reads, ir.Compute(mode="add", expr=ir.MatMul()) as product]:
            found = [node for node in reads if isinstance(node, ir.Read)]
            return Nest(loops[0], inner[0], found, product) if found == reads else None
    return None


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


def writes_of(launch: Launch) -> tuple[ir.Write, ...]:
    """The writes of a block."""
    return tuple(node for node in ir.walk(launch.block) if isinstance(node, ir.Write))


def multiplies(launch: Launch) -> bool:
    """Whether a launch has products of matrices."""
    return bool(products(ir.walk(launch.body)))


def plan(program: ir.Program, launch: Launch, sizes: ir.Sizes, stages: int, persistent: bool = False) -> Plan:
    """Find the plan of a launch with products.

    Raises:
        UsageError: it is not of the kind that this reading writes.
    """
    loops = [node for node in ir.walk(launch.block) if isinstance(node, ir.Loop)]
    if len(launch.grid) != 1 or len(loops) != 1 or loops[0] not in launch.block or launch.around is not None:
        raise refused(program, f"{launch.name} is no single loop within a grid of one dimension")
    own, loop = launch.grid[0].range, loops[0]
    groups = check_block(program, own, sizes)
    made = Plan(
        launch=launch,
        own=own,
        loop=loop,
        additions=_additions(program, own, loop, sizes, groups),
        warpgroups=groups,
        stages=stages,
        writes=writes_of(launch),
        persistent=persistent,
    )
    _check_tiles(program, made, sizes)
    made = replace(made, buffers=_buffers(program, made, sizes))
    putting_off = replace(made, late=_late(loop))
    if not made.additions and _held(putting_off, sizes) <= made.most:
        made = putting_off
    turns = persistent and groups == 2 and _narrow(loop, made.late, sizes)
    return replace(made, roomy=_held(made, sizes) < made.most, turns=turns)


def _narrow(loop: ir.Loop, late: tuple[ir.Compute, ...], sizes: ir.Sizes) -> bool:
    """Whether a loop has one product of scores, and narrow sums of others that are put off."""
    widths = [padded(node.target.tile.ranges[-1], sizes) for node in late]
    return len(products(loop.body)) == len(late) + 1 and 0 < max(widths, default=0) <= IN_TURNS


def _additions(program: ir.Program, own: ir.Range, loop: ir.Loop, sizes: ir.Sizes, groups: int) -> tuple[Addition, ...]:
    """The products that are added to memory: with the rows of the loop's tile, and a sum over those of the grid's."""
    made = []
    for node, write in added(loop.body).items():
        (rows, terms), columns = factors(node).left.shape, factors(node).right.shape[1]
        height, width = ir.length(loop.range.block, sizes), padded(columns, sizes)
        if (rows, terms) != (loop.range, own) or height % ROWS or width % (16 * groups) or columns.parent:
            why = f"line {node.line} adds {height} x {width} words to memory, and {groups} warpgroups add multiples of"
            why += f" {ROWS} x {16 * groups}, sums over the rows of the grid's tile"
            raise refused(program, why, "give other blocks, or take --target triton")
        tensor, depth = write.tensor.name, ir.length(own.block, sizes)
        handed = f"{factors(node).left.tile.name}_of_all"
        made.append(Addition(node, write, height, width // groups, depth, handed, f"{tensor}_part"))
    return tuple(made)


def _buffers(program: ir.Program, plan: Plan, sizes: ir.Sizes) -> dict[ir.Tile, Buffer]:
    names, made, own, loop = Identifiers(TAKEN.split()), dict[ir.Tile, Buffer](), plan.own, plan.loop
    whole = {ref.tile for each in plan.additions for ref in ir.refs(each.product.expr)}  # all warpgroups need all rows
    for node in ir.walk(plan.launch.block):
        streamed = node in loop.body
        if not isinstance(node, ir.Read) or is_bias(node) or (len(node.tile.ranges) == 1 and not streamed):
            continue
        if any(node.tile is each.write.tile for each in plan.additions):
            continue
        rows, *columns = node.tile.ranges
        if rows is not (loop.range if streamed else own) or node.at is not None or any(each.parent for each in columns):
            raise refused(program, f"line {node.line} reads neither whole rows of the grid's tile nor of the loop's")
        if columns and node.tensor.name not in program.inputs:
            raise refused(program, f"line {node.line} reads {node.tensor.name}, which is made by another launch")
        block = ir.length((loop.range if streamed else own).block, sizes)
        height = block if streamed or node.tile in whole else ROWS
        slots = plan.stages if streamed else block // height
        name = names.new(f"{node.tensor.name}_{rows.name}" + ("" if columns else "_ring"))
        rings = [each for each in made.values() if each.streamed and not each.vector]
        if not columns and not rings:
            raise refused(program, f"line {node.line} reads a vector before any matrix in the loop")
        width = padded(columns[0], sizes) if columns else 1
        fills, freed_by = plan.stages if streamed else 1, plan.warpgroups * (streamed or plan.persistent)
        beside, down = "" if columns else rings[-1].name, 1 if streamed else slots
        made[node.tile] = Buffer(name, node, slots, height, width, streamed, beside, fills, freed_by, down)
    return made


def held_transposed(plan: Block) -> frozenset[ir.Tile]:
    """The tiles that are held transposed. Shared memory hands an operand of what is added to memory either way."""
    others = {each.product for each in plan.additions}
    return turned(node for node in ir.walk(plan.launch.block) if node not in others)


def _check_tiles(program: ir.Program, plan: Plan, sizes: ir.Sizes) -> None:
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
    if (held := _held(plan, sizes)) >= (most := REGISTERS[plan.warpgroups]):
        why = f"a thread of {plan.launch.name} holds {held} words in {most} registers"
        raise refused(program, why, SMALLER_BLOCKS)


def _held(plan: Plan, sizes: ir.Sizes) -> int:
    """Most registers of a thread for tiles at once, with the operands of products that are put off."""
    body, transposed = plan.launch.block, held_transposed(plan)
    computed = {node.target.tile for node in ir.walk(body) if isinstance(node, ir.Compute)}
    computed |= {node.tile for node in ir.walk(body) if isinstance(node, ir.Read) and is_bias(node)}
    parts = {each.write.tile: each.rows * each.columns // THREADS for each in plan.additions}

    def words(tile: ir.Tile) -> int:
        if tile in parts:
            return parts[tile]
        return padded(tile.ranges[0 if tile in transposed else -1], sizes) // 2 if len(tile.ranges) == 2 else 1

    lives = {tile: life for tile, life in lifetimes_of(body).items() if tile in computed}
    most = peak({tile: words(tile) for tile in lives}, lives)
    return most + sum(words(factors(node).left.tile) // 2 for node in plan.late)


def _late(loop: ir.Loop) -> tuple[ir.Compute, ...]:
    """The products at the end of a loop's body, of a computed matrix with one that was read."""
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
    return tuple(found)
