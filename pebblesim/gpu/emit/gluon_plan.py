"""What a thread block of a Gluon kernel keeps, streams and puts off: found in a launch, before any text is written.

A launch for Hopper is one grid of tiles of rows and one loop that streams tiles past them. Rows of the grid's tiles are
divided among warpgroups, 64 each. A matrix read outside of the loop stays in shared memory; one that is read inside is
a ring of slots there. Sums and scores are in registers, with the rows of the warpgroup as their rows.

Products are issued and run beside the rest. Those that end an iteration, sums that nothing in it needs any more, are
put off until the first products of the next one are issued: matrix units work on them while exponentials are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pebblesim.core.errors import UsageError
from pebblesim.gpu.emit.identifiers import Identifiers
from pebblesim.gpu.emit.orientation import turned
from pebblesim.gpu.emit.storage import padded
from pebblesim.gpu.emit.words import WORDS
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch, lifetimes_of

ROWS = 64
"""Rows of the tiles of a warpgroup, which `wgmma` has."""

MOST_WARPGROUPS = 3
"""Warpgroups with sums beside the warp that loads: a fourth would have too few registers."""

REGISTERS = {1: 240, 2: 240, 3: 160}
"""Registers of a thread, by the number of warpgroups with sums; a multiple of 8."""

WIDEST = 256
"""Most columns of a product of `wgmma`, and most rows of a tile that the copy engine moves."""

GROUP_OF_BYTES = 16
"""Rows of matrices begin at multiples of so many bytes for the copy engine."""


@dataclass(frozen=True, eq=False)
class Buffer:
    """A matrix in shared memory, which the copy engine fills.

    Attributes:
        name: of the buffer in the text; `{name}_full` and `{name}_free` are its barriers.
        read: the primitive that reads it.
        slots: parts that are filled one by one: a ring's, or one for each warpgroup.
        rows, width: of a slot.
        streamed: whether it is a ring.
    """

    name: str
    read: ir.Read
    slots: int
    rows: int
    width: int
    streamed: bool

    @property
    def words(self) -> int:
        """Words of all slots."""
        return self.slots * self.rows * self.width


@dataclass(frozen=True, eq=False)
class Plan:
    """What a thread block does with its tiles.

    Attributes:
        own: the range of the grid, whose tiles the warpgroups divide among them.
        loop: the loop that streams.
        buffers: the matrices in shared memory, by tile, in the order in which they are read.
        late: the products that are put off to the next iteration.
        last: for each ring, the product that uses a slot last.
        warpgroups: how many have sums.
        stages: slots of a ring.
    """

    own: ir.Range
    loop: ir.Loop
    buffers: Mapping[ir.Tile, Buffer]
    late: tuple[ir.Compute, ...]
    last: Mapping[Buffer, ir.Compute]
    warpgroups: int
    stages: int

    @property
    def rings(self) -> list[Buffer]:
        """The buffers that are streamed."""
        return [buffer for buffer in self.buffers.values() if buffer.streamed]

    def shared(self, dtype: str) -> int:
        """Bytes of shared memory: the slots, and a word of 8 bytes for each barrier."""
        barriers = sum(2 * buffer.slots if buffer.streamed else 1 for buffer in self.buffers.values())
        return sum(buffer.words for buffer in self.buffers.values()) * WORDS[dtype] + 8 * barriers


def refused(program: ir.Program, why: str) -> UsageError:
    """The error for a program, or sizes, that this reading cannot write a kernel for."""
    return UsageError(
        f"{program.name}: {why}; a Gluon kernel streams the tiles of one loop past rows that stay, as in "
        "flash2-forward and backward-two-pass-blocked, with blocks of 64, 128 or 192 rows: take these, or --target "
        "triton."
    )


def multiplies(launch: Launch) -> bool:
    """Whether a launch has products of matrices."""
    return any(isinstance(node, ir.Compute) and isinstance(node.expr, ir.MatMul) for node in ir.walk(launch.body))


def plan(program: ir.Program, launch: Launch, sizes: ir.Sizes, dtype: str, stages: int) -> Plan:
    """Find the plan of a launch with products.

    Raises:
        UsageError: it is not of the kind that this reading writes.
    """
    loops = [node for node in ir.walk(launch.block) if isinstance(node, ir.Loop)]
    if len(launch.grid) != 1 or len(loops) != 1 or loops[0] not in launch.block or launch.around is not None:
        raise refused(program, f"{launch.name} is no single loop within a grid of one dimension")
    own, loop = launch.grid[0].range, loops[0]
    block = ir.length(own.block, sizes)
    if block % ROWS or not 1 <= block // ROWS <= MOST_WARPGROUPS:
        raise refused(program, f"block {own.block} is {block}")
    if stages < 2:
        raise refused(program, "a ring of one slot would be waited for by itself")
    _check_tiles(program, launch, own, sizes)
    buffers = _buffers(program, launch, own, loop, sizes, dtype, stages)
    late = _late(loop)
    if not late:
        raise refused(program, f"no product ends the loop in line {loop.line}")
    return Plan(own, loop, buffers, late, _last_uses(loop, buffers, late), block // ROWS, stages)


def _buffers(
    program: ir.Program, launch: Launch, own: ir.Range, loop: ir.Loop, sizes: ir.Sizes, dtype: str, stages: int
) -> dict[ir.Tile, Buffer]:
    names = Identifiers(["w", "i", "n", "slot", "phase", "last", "last_phase", "part", "first"])
    made: dict[ir.Tile, Buffer] = {}
    for node in ir.walk(launch.block):
        if not isinstance(node, ir.Read) or len(node.tile.ranges) == 1:
            continue
        rows, columns = node.tile.ranges
        streamed = node in loop.body
        if columns.parent is not None or rows is not (loop.range if streamed else own) or node.at is not None:
            raise refused(program, f"line {node.line} reads neither whole rows of the grid's tile nor of the loop's")
        if node.tensor.name not in program.inputs or sizes[columns.name] * WORDS[dtype] % GROUP_OF_BYTES:
            raise refused(
                program,
                f"line {node.line} reads {sizes[columns.name]} columns of {node.tensor.name}, and the copy engine takes "
                f"inputs with multiples of {GROUP_OF_BYTES // WORDS[dtype]}",
            )
        height = ir.length(loop.range.block, sizes) if streamed else ROWS
        slots = stages if streamed else ir.length(own.block, sizes) // ROWS
        made[node.tile] = Buffer(names.new(f"{node.tensor.name}_{rows.name}"), node, slots, height,
                                 padded(columns, sizes), streamed)
    return made


def _check_tiles(program: ir.Program, launch: Launch, own: ir.Range, sizes: ir.Sizes) -> None:
    """Check that all that is computed has the rows of the grid's tile as its rows, and fits into registers."""
    nodes = list(ir.walk(launch.block))
    transposed = turned(nodes)
    computed = {node.target.tile: node.line for node in nodes if isinstance(node, ir.Compute)}
    for tile, line in computed.items():
        if len(tile.ranges) == 2:
            rows, columns = tile.ranges[:: -1 if tile in transposed else 1]
            width = padded(columns, sizes)
            if rows is not own or not 16 <= width <= WIDEST or width & (width - 1):
                raise refused(program, f"line {line} has a tile of other rows, or of {width} columns")
    lives = {tile: life for tile, life in lifetimes_of(launch.block).items() if tile in computed}
    words = {
        tile: padded(tile.ranges[0 if tile in transposed else -1], sizes) // 2 if len(tile.ranges) == 2 else 2
        for tile in lives
    }
    peak = max(sum(words[t] for t, (a, b) in lives.items() if a <= at < b) for at, _ in lives.values())
    most = REGISTERS[ir.length(own.block, sizes) // ROWS]
    if peak >= most:
        raise refused(program, f"a thread of {launch.name} holds {peak} words in {most} registers")


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


def _last_uses(
    loop: ir.Loop, buffers: Mapping[ir.Tile, Buffer], late: tuple[ir.Compute, ...]
) -> dict[Buffer, ir.Compute]:
    body = [node for node in loop.body if isinstance(node, ir.Compute)]
    return {
        buffer: node
        for node in body
        for ref in ir.refs(node.expr)
        if (buffer := buffers.get(ref.tile)) is not None and buffer.streamed
    }
