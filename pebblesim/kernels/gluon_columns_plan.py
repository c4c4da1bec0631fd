"""The plan of Gluon kernels whose warpgroups divide columns: which launches they are for, and what is in shared memory.

They are for keys that are values, too, and sums too wide for one warpgroup's registers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pebblesim.kernels.gluon_additions import ROWS
from pebblesim.kernels.gluon_plan import WIDEST, Block, Buffer, refused, writes_of
from pebblesim.kernels.products import factors, products
from pebblesim.kernels.storage import padded
from pebblesim.kernels.triton_copies import reduces
from pebblesim.kernels.words import LEAST_SIDE
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

SHARES = 2
"""Warpgroups that divide columns."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Columns(Block):
    """A block of 64 rows whose warpgroups divide columns; in its launch, products that are added up are one sum.

    Attributes:
        scores: the products of scores, in order.
        sums: the product of probabilities with values.
        last: the primitive that computes the probabilities.
        keys: keys of a warpgroup.
        wide: the range of the columns of the sums.
        width: columns of a warpgroup's sums.
    """

    scores: tuple[ir.Compute, ...]
    sums: ir.Compute
    last: ir.Compute
    keys: int
    wide: ir.Range
    width: int

    @property
    def height(self) -> int:
        """Rows of a block: the warpgroups have the same ones."""
        return ROWS

    def sides(self, sizes: ir.Sizes) -> dict[ir.Range, int]:
        """Lengths of a warpgroup's tiles: its share of the keys, and of the columns of the sums."""
        return {self.own: ROWS, self.loop.range: self.keys, self.wide: self.width}

    def side_of_block(self, rng: ir.Range) -> int | None:
        """The length of the block's tiles of a range of which a warpgroup has a part."""
        return SHARES * self.keys if rng is self.loop.range else super().side_of_block(rng)

    @property
    def probabilities(self) -> ir.Tile:
        """The tile of scores and of probabilities."""
        return self.last.target.tile

    @property
    def place(self) -> Buffer | None:
        """The ring whose slots take probabilities when the scores are done with them; None if they have their own."""
        return next((each for each in self.buffers.values() if _takes(each, self.sums, self.keys)), None)

    @property
    def exchanged(self) -> dict[ir.Tile, str]:
        """The vectors that warpgroups exchange: maxima and sums of rows of pairs, and which of both."""
        computes = (node for node in self.loop.body if isinstance(node, ir.Compute))
        return {node.target.tile: node.expr.op for node in computes if isinstance(node.expr, ir.RowReduction)}


def _takes(buffer: Buffer, sums: ir.Compute, keys: int) -> bool:
    """Whether the slots of a ring, which only scores need, are as large as probabilities."""
    alone = buffer.read.tile not in {ref.tile for ref in ir.refs(sums.expr)} and buffer.across == 1
    return buffer.streamed and alone and buffer.box == (ROWS, keys)


def columns_of(launch: Launch, sizes: ir.Sizes, stages: int) -> Columns | None:
    """The plan of a launch of 64 rows whose streamed keys are values, too; None if it is no such launch."""
    launch = _joined(launch)
    loops = [node for node in launch.block if isinstance(node, ir.Loop)]
    if len(launch.grid) != 1 or len(loops) != 1 or launch.around is not None or loops[0].when is not None:
        return None
    own, (loop,) = launch.grid[0].range, loops
    computes = [node for node in loop.body if isinstance(node, ir.Compute)]
    multiplying = products(loop.body)
    if len(multiplying) < 2 or padded(own, sizes) != ROWS or padded(loop.range, sizes) % (16 * SHARES):
        return None
    *scores, sums = multiplying
    wide = sums.target.ranges[1]
    made = [node for node in computes if node.target.tile is scores[0].target.tile]
    if not SHARES * LEAST_SIDE <= padded(wide, sizes) <= SHARES * WIDEST or wide.parent is not None:
        return None
    if not _alike(own, loop, scores, sums) or not _vectors_alike(loop, scores[0].target.tile):
        return None
    reads = {node.tile: node for node in (*launch.block, *loop.body) if isinstance(node, ir.Read)}
    keys, width = padded(loop.range, sizes) // SHARES, padded(wide, sizes) // SHARES
    held, rings = dict[ir.Tile, Buffer](), dict[ir.Tile, Buffer]()
    values = factors(sums).right.tile
    for node in scores:
        left, right = factors(node).left.tile, factors(node).right.tile
        parts, columns = SHARES if right is values else 1, padded(factors(node).left.shape[1], sizes)
        if left not in reads or right not in reads or columns > parts * WIDEST:
            return None
        width_of, slots = columns // parts, SHARES * parts
        held[left] = Buffer(_name(reads[left]), reads[left], parts, ROWS, width_of, across=parts)
        ring = Buffer(_name(reads[right]), reads[right], slots, keys, width_of, True, "", slots, 1, SHARES, parts)
        rings[right] = replace(ring, freed_by=SHARES) if right is values or _takes(ring, sums, keys) else ring
    if values not in rings or len(held) + len(rings) != len(reads):
        return None
    return Columns(
        launch=launch,
        own=own,
        loop=loop,
        warpgroups=SHARES,
        stages=stages,
        buffers=held | rings,
        writes=writes_of(launch),
        scores=tuple(scores),
        sums=sums,
        last=made[-1],
        keys=keys,
        wide=wide,
        width=width,
    )


def check_columns(program: ir.Program, plan: Columns, persistent: bool) -> None:
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
    grid = replace(launch.grid[0], body=block)
    return replace(launch, grid=(grid,), body=[grid])


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
