"""A block of a Hopper kernel as data: its streams, its roles, and what they hand to each other in shared memory.

A block has two roles. The producer, one warp, copies boxes into shared memory by the copy engine (TMA). The consumers,
one to three warpgroups, multiply them on tensor cores (wgmma), with accumulators in registers. All six families of
kernels are this record, and one builder (`roles`) makes the producer, shared memory and the grid of each from it:

- A `Buffer` is what the producer brings of one read of the schedule: boxes that stay for a whole tile of the grid, or a
  ring of stages through which the tiles of one loop stream. At its barriers `full` the bytes of a slot arrive; at its
  barriers `free` each consumer arrives when it is done with a slot. Several buffers may have the barriers of one.
- A `Handed` tile goes from one consumer to the others: operands that all of them multiply, maxima and sums of rows.
- An `Outgoing` tile goes from a consumer to memory by the copy engine, stored or added to what is there.
- `sides` says how consumers divide the block's tile: each has 64 rows of its own or, if `shares` have the same rows, a
  part of the columns.
- Products are issued in the order of the schedule, and run beside what follows. Their accumulators are waited for where
  they are first used; those in `late` an iteration later; those of a `Nest`, whose terms come in parts, a part later.

| family | streams | stays | late | consumers divide | goes out by the copy engine |
|---|---|---|---|---|---|
| rows | matrices and vectors of a loop | rows of the grid's tile | sums at its end | rows | products that are added |
| scores | parts of keys | parts of rows | one part | rows | tiles of a table of pairs |
| product | parts of a table and of a matrix | accumulators | one part | rows | the result, through the ring |
| columns | halves of keys that are values | rows | none | keys, columns of sums | nothing |
| sequences | those of a loop, for each warpgroup | rows of a bias, and of a sequence | none | sequences | nothing |
| gradients | all of a sequence | rows of a bias and of its gradient | a tile of keys | keys | nothing |

What only a consumer of one family knows is the order of its statements, in `consumer`, `scores`,
`product`, `columns`, `sequences` and `gradients`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pebblesim.kernels.products import factors, products
from pebblesim.kernels.terms import Name, Term
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

ROWS = 64
"""Rows of the tiles of a warpgroup, which `wgmma` has."""

THREADS = 128
"""Threads of a warpgroup."""

MOST_WARPGROUPS = 3
"""Warpgroups with sums beside the warp that loads: a fourth would have too few registers."""

REGISTERS = {1: 240, 2: 240, 3: 160, 4: 120}
"""Registers of a thread, by the number of warpgroups with sums; a multiple of 8."""

LOADING_REGISTERS = 24
"""Registers of a thread of the warp that loads."""

SHARED = 227 * 1024
"""Bytes of shared memory that a block can have."""

MOST_HELD = 0.8
"""Largest part of a thread's registers for tiles, if operands of products that are put off are among them."""

WIDEST = 256
"""Most columns of a product of `wgmma`, and most rows of a tile that the copy engine moves."""


def filled(name: str, at: Any) -> Term:
    """The barrier of a slot at which its bytes arrive."""
    return Name(f"{name}_full" if name else "full").index(at)


def freed(name: str, at: Any) -> Term:
    """The barrier of a slot at which those arrive who are done with it."""
    return Name(f"{name}_free" if name else "free").index(at)


@dataclass(frozen=True, eq=False)
class Buffer:
    """A tensor's boxes in shared memory, which the copy engine fills.

    Attributes:
        name: of the buffer in the text.
        read: the primitive that reads it.
        slots: how many boxes there is room for.
        rows, width: of a box; a vector has width 1.
        streamed: whether it is a ring.
        beside: the name of barriers that it shares with another buffer; None if it has some of its own.
        fills: how many barriers of each kind there are: one for each slot, or one for all.
        freed_by: arrivals by which a slot is free to be filled again; 0 if it is filled once.
        down, across: boxes of what is read at once, beneath and beside each other.
        first: the first column of the part that it has of what is read at once.
        pitch: columns of what is read at once, where it has a part of them; else 0.
    """

    name: str
    read: ir.Read
    slots: int
    rows: int
    width: int
    streamed: bool = False
    beside: str | None = None
    fills: int = 1
    freed_by: int = 0
    down: int = 1
    across: int = 1
    first: int = 0
    pitch: int = 0

    @property
    def barrier(self) -> str:
        """The name of its barriers, `{barrier}_full` and `{barrier}_free`."""
        return self.name if self.beside is None else self.beside

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


@dataclass(frozen=True, eq=False)
class Handed:
    """Slots of shared memory through which consumers hand tiles to each other.

    Attributes:
        tile: what they hand to each other.
        name: `{name}_full` are the barriers, at which a slot's consumers arrive.
        room: the name of the slots.
        shape: how many they are, and the sides of a tile.
        arrivals: how many consumers put a part of a tile into a slot.
        note: what for.
        inside: whether the slots are those of a ring.
        reduced: in float32, "rowmax" or "rowsum" of a vector, of which each consumer has that of its columns, or "sum"
            of a tile, of which each has some terms; else "".
    """

    tile: ir.Tile
    name: str
    room: str
    shape: tuple[int, ...]
    arrivals: int
    note: str = ""
    inside: bool = False
    reduced: str = ""


@dataclass(frozen=True, eq=False)
class Outgoing:
    """Slots of shared memory from which the copy engine takes tiles to memory.

    Attributes:
        name: of the room.
        write: the primitive that writes them.
        box: sides of a tile.
        slots: how many there are; 0 if they are those of a ring.
        note: what for.
        before: the primitive that reads a tile of another table, which comes to the slot before.
    """

    name: str
    write: ir.Write
    box: tuple[int, int]
    slots: int = 0
    note: str = ""
    before: ir.Read | None = None


@dataclass(frozen=True, eq=False)
class Addition:
    """A product that is added to memory: of a matrix that all warpgroups computed, with one that stays.

    Each warpgroup computes some rows of the left operand, which it hands to all, and some columns of the product. The
    copy engine adds these to memory, where many blocks add to the same words.

    Attributes:
        product: the primitive that computes it.
        handed: the left operand, transposed: terms of each sum, and rows.
        sent: what the copy engine adds: rows and columns of a warpgroup's part.
    """

    product: ir.Compute
    handed: Handed
    sent: Outgoing


@dataclass(frozen=True, eq=False)
class Stays:
    """Rows of a bias that stay in shared memory while sequences stream past.

    Attributes:
        read: the primitive that reads them, whole.
        scores: the tile whose products start from a tile of them.
        tiles, side: how many tiles they are, and columns of each.
        wide: whether they are there in float32, and divided by the scale; else in the words of the matrices.
    """

    read: ir.Read
    scores: ir.Tile
    tiles: int
    side: int
    wide: bool

    @property
    def room(self) -> str:
        """The name of the room, and with `_full` of its barrier."""
        return f"{self.read.tile.name}_rows"


@dataclass(frozen=True, eq=False)
class Nest:
    """A loop within the loop of a block, that adds up the parts of products.

    Attributes:
        inner: the loop.
        reads: what the inner one reads.
        products: the primitives that add a part, each to some columns of the sums.
    """

    inner: ir.Loop
    reads: list[ir.Read]
    products: list[ir.Compute]

    @property
    def product(self) -> ir.Compute:
        """The first of the products."""
        return self.products[0]

    @property
    def expr(self) -> ir.MatMul:
        """The first of the products."""
        return factors(self.product)


@dataclass(frozen=True, eq=False)
class Loops:
    """The loops of a launch, by which a family of kernels is found for it.

    Attributes:
        launch: the launch.
        grid: the ranges of its grid.
        loop: the loop that streams, the one of each block.
        inner: whether that has loops within.
        nest: the single loop within it, if it does nothing but add up the parts of products.
    """

    launch: Launch
    grid: tuple[ir.Range, ...]
    loop: ir.Loop
    inner: bool
    nest: Nest | None

    @property
    def own(self) -> ir.Range:
        """The range whose tiles warpgroups divide."""
        return self.grid[0]


def loops_of(launch: Launch) -> Loops | None:
    """The loops of a launch; None if its blocks have none, or several one after the other, or it is repeated."""
    loops = [node for node in launch.block if isinstance(node, ir.Loop)]
    if len(loops) != 1 or not launch.grid or launch.around is not None:
        return None
    within, nest = [node for node in ir.walk(loops[0].body) if isinstance(node, ir.Loop)], None
    if len(within) == 1:
        nodes = [node for node in within[0].body if not isinstance(node, ir.Delete)]
        reads = [node for node in nodes if isinstance(node, ir.Read)]
        made = [node for node in products(nodes) if node.mode == "add"]
        nest = Nest(within[0], reads, made) if made and nodes == [*reads, *made] else None
    loop, grid = loops[0], tuple(each.range for each in launch.grid)
    if nest is None and loop.body == within and within[0].range.parent is loop.range:  # one loop over the smaller tiles
        joined = replace(within[0], when=loop.when)
        launch = launch.with_block([joined if node is loop else node for node in launch.block])
        return Loops(launch, grid, joined, False, None)
    return Loops(launch, grid, loop, bool(within), nest)


@dataclass(frozen=True, eq=False, kw_only=True)
class Block(Loops):
    """A block of threads: the loops of a launch, and how they are divided.

    Attributes:
        warpgroups: how many have sums.
        shares: how many of these have the same rows, and divide columns or sequences.
        sides: lengths of a warpgroup's tiles, where they are not those of the schedule's.
        across: columns of the tiles that vectors of rows meet; None for those of the streamed tiles.
        stages: slots of a ring.
        buffers: what the copy engine brings of inputs, by tile, in the order in which it is read.
        handed: what warpgroups hand to each other.
        outgoing: what the copy engine takes to memory.
        additions: the products that are added to memory.
        late: the products that are put off to the next iteration.
        turns: how many warpgroups wait for one another: they take turns, so that one issues its products when the other
            has its scores, or begin one after the other.
        persistent: whether there are as many blocks as multiprocessors, each with several tiles of the grid, one after
            the other: what the next one needs arrives while one ends.
        back_and_forth: whether the rounds of its tiles go from long to short and back in turn, under a mask.
        roomy: whether threads have registers left, in which they exchange columns before they store sums.
        stays: what stays while sequences stream past, of which each warpgroup then has one at a time.
    """

    warpgroups: int
    shares: int = 1
    sides: Mapping[ir.Range, int]
    across: int | None = None
    stages: int
    buffers: Mapping[ir.Tile, Buffer] = field(default_factory=dict)
    handed: tuple[Handed, ...] = ()
    outgoing: tuple[Outgoing, ...] = ()
    additions: tuple[Addition, ...] = ()
    late: tuple[ir.Compute, ...] = ()
    turns: int = 0
    persistent: bool = False
    back_and_forth: bool = False
    roomy: bool = True
    stays: Stays | None = None

    @property
    def writes(self) -> list[ir.Write]:
        """The primitives that write to memory."""
        return [node for node in ir.walk(self.launch.block) if isinstance(node, ir.Write)]

    @property
    def height(self) -> int:
        """Rows of the grid's tile."""
        return ROWS * self.warpgroups // self.shares

    @property
    def most(self) -> float:
        """Most registers of a thread for tiles, if operands of products that are put off are among them."""
        return MOST_HELD * REGISTERS[self.warpgroups]

    def side_of_block(self, rng: ir.Range) -> int | None:
        """The length of the block's tiles of a range of which a warpgroup has a part."""
        if rng is self.own:
            return self.height
        return self.shares * self.sides[rng] if rng in self.sides else None

    @property
    def rings(self) -> list[Buffer]:
        """The rings of matrices with barriers of their own."""
        return [buffer for buffer in self.buffers.values() if buffer.streamed and not buffer.beside]

    @property
    def stay(self) -> list[Buffer]:
        """The buffers that stay, with barriers of their own."""
        return [buffer for buffer in self.buffers.values() if not buffer.streamed and not buffer.beside]

    @property
    def last(self) -> dict[Buffer, ir.Compute]:
        """For each ring with barriers of its own, the product that uses a slot of it or those beside it last."""
        computes = [node for node in self.loop.body if isinstance(node, ir.Compute)]
        uses = ((self.buffers.get(ref.tile), node) for node in computes for ref in ir.refs(node.expr))
        last = {each.barrier: node for each, node in uses if each is not None and each.streamed and not each.vector}
        return {ring: last[ring.name] for ring in self.rings if ring.name in last}

    def together(self, ring: Buffer) -> list[Buffer]:
        """A buffer with barriers of its own, and those that share them: parts of its columns, and vectors."""
        return [buffer for buffer in self.buffers.values() if buffer.barrier == ring.barrier]

    def waited_in_time(self, buffer: Buffer) -> bool:
        """Whether a product that is not put off uses the buffer, and so has waited for it."""
        return any(
            isinstance(node, ir.Compute)
            and node not in self.late
            and any(ref.tile is buffer.read.tile for ref in ir.refs(node.expr))
            for node in self.loop.body
        )
