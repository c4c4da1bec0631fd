"""The plan of Gluon kernels whose warpgroups divide columns: which launches they are for, and what is in shared memory.

They are for keys that are values, too, and sums too wide for one warpgroup's registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pebblesim.gpu.emit.gluon_additions import ROWS
from pebblesim.gpu.emit.gluon_plan import WIDEST, Block, refused
from pebblesim.gpu.emit.storage import padded
from pebblesim.gpu.emit.terms import Term
from pebblesim.gpu.emit.words import LEAST_SIDE
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

SHARES = 2
"""Warpgroups that divide columns."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A matrix in shared memory, in parts of its columns.

    Attributes:
        read: the primitive that reads it.
        name: of the buffer in the text.
        parts, width: parts, and columns of each.
        rows: rows of a slot.
        values: whether it is an operand of the sums, too.
    """

    read: ir.Read
    name: str
    parts: int
    width: int
    rows: int
    values: bool = False

    def slot(self, share: Term, part: Term) -> Term:
        """The number of the slot with a part of the keys of a warpgroup."""
        return share if self.parts == 1 else share * self.parts + part


@dataclass(frozen=True, eq=False, kw_only=True)
class Columns(Block):
    """A block of 64 rows whose warpgroups divide columns; in its launch, products that are added up are one sum.

    Attributes:
        held, rings: the matrices that stay, and those that are streamed, by tile.
        scores: the products of scores, in order.
        sums: the product of probabilities with values.
        last: the primitive that computes the probabilities.
        keys: keys of a warpgroup.
        wide: the range of the columns of the sums.
        width: columns of a warpgroup's sums.
        writes: the primitives that write.
    """

    held: Mapping[ir.Tile, Cut]
    rings: Mapping[ir.Tile, Cut]
    scores: tuple[ir.Compute, ...]
    sums: ir.Compute
    last: ir.Compute
    keys: int
    wide: ir.Range
    width: int
    writes: tuple[ir.Write, ...]

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
    def place(self) -> Cut | None:
        """The ring whose slots take probabilities when the scores are done with them; None if they have their own."""
        alike = (each for each in self.rings.values() if not each.values and each.parts == 1)
        return next((each for each in alike if (each.rows, each.width) == (ROWS, self.keys)), None)

    @property
    def exchanged(self) -> list[ir.Tile]:
        """The vectors that warpgroups exchange: maxima and sums of rows of pairs."""
        nodes = (node for node in self.loop.body if isinstance(node, ir.Compute))
        return [node.target.tile for node in nodes if isinstance(node.expr, ir.RowReduction)]

    def releases(self, ring: Cut) -> int:
        """Arrivals by which a slot is free: one of each warpgroup that reads it, or one if only one does."""
        return SHARES if ring.values or ring is self.place else 1


def columns_of(launch: Launch, sizes: ir.Sizes, stages: int) -> Columns | None:
    """The plan of a launch of 64 rows whose streamed keys are values, too; None if it is no such launch."""
    launch = _joined(launch)
    loops = [node for node in launch.block if isinstance(node, ir.Loop)]
    if len(launch.grid) != 1 or len(loops) != 1 or launch.around is not None or loops[0].when is not None:
        return None
    own, (loop,) = launch.grid[0].range, loops
    computes = [node for node in loop.body if isinstance(node, ir.Compute)]
    products = [node for node in computes if isinstance(node.expr, ir.MatMul)]
    if len(products) < 2 or padded(own, sizes) != ROWS or padded(loop.range, sizes) % (16 * SHARES):
        return None
    *scores, sums = products
    wide = sums.target.ranges[1]
    made = [node for node in computes if node.target.tile is scores[0].target.tile]
    if not SHARES * LEAST_SIDE <= padded(wide, sizes) <= SHARES * WIDEST or wide.parent is not None:
        return None
    if not _alike(own, loop, scores, sums) or not _vectors_alike(loop, scores[0].target.tile):
        return None
    reads = {node.tile: node for node in (*launch.block, *loop.body) if isinstance(node, ir.Read)}
    keys, width = padded(loop.range, sizes) // SHARES, padded(wide, sizes) // SHARES
    held, rings = dict[ir.Tile, Cut](), dict[ir.Tile, Cut]()
    assert isinstance(sums.expr, ir.MatMul)
    values = sums.expr.right.tile
    for node in scores:
        assert isinstance(node.expr, ir.MatMul)
        left, right = node.expr.left.tile, node.expr.right.tile
        parts, columns = SHARES if right is values else 1, padded(node.expr.left.shape[1], sizes)
        if left not in reads or right not in reads or columns > parts * WIDEST:
            return None
        held[left] = Cut(reads[left], _name(reads[left]), parts, columns // parts, ROWS)
        rings[right] = Cut(reads[right], _name(reads[right]), parts, columns // parts, keys, right is values)
    if values not in rings or len(held) + len(rings) != len(reads):
        return None
    return Columns(
        launch=launch,
        own=own,
        loop=loop,
        warpgroups=SHARES,
        stages=stages,
        held=held,
        rings=rings,
        scores=tuple(scores),
        sums=sums,
        last=made[-1],
        keys=keys,
        wide=wide,
        width=width,
        writes=tuple(node for node in launch.block if isinstance(node, ir.Write)),
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
    tile = scores[0].target.tile
    if not isinstance(sums.expr, ir.MatMul) or sums.mode != "add" or sums.expr.left.tile is not tile:
        return False
    straight_sums = not (sums.expr.left.transposed or sums.expr.right.transposed)
    turned = (isinstance(each.expr, ir.MatMul) and each.expr.right.transposed for each in scores)
    straight = (isinstance(each.expr, ir.MatMul) and not each.expr.left.transposed for each in scores)
    modes = [each.mode for each in scores] == ["new", *["add"] * (len(scores) - 1)]
    one = all(each.target.tile is tile for each in scores) and tile.ranges == (own, loop.range)
    return straight_sums and all(turned) and all(straight) and modes and one


def _vectors_alike(loop: ir.Loop, scores: ir.Tile) -> bool:
    """Whether rows are reduced alone, to a maximum or onto a sum that is else only multiplied by vectors."""
    for node in loop.body:
        if isinstance(node, ir.Compute) and any(isinstance(each, ir.RowReduction) for each in _inside(node.expr)):
            return False
        if not isinstance(node, ir.Compute) or not isinstance(node.expr, ir.RowReduction):
            continue
        if node.expr.op == "rowmax" and node.mode == "new":
            continue
        others = [
            each
            for each in loop.body
            if isinstance(each, ir.Compute)
            and each is not node
            and node.target.tile in (each.target.tile, *(ref.tile for ref in ir.refs(each.expr)))
        ]
        if node.mode != "add" or not all(_multiplied(each, node.target.tile) for each in others):
            return False
    return True


def _inside(expr: ir.Expr) -> Iterator[ir.Expr]:
    """The operands of an operation, and theirs."""
    for each in expr.operands if isinstance(expr, ir.Elementwise) else ():
        yield each
        yield from _inside(each)


def _multiplied(node: ir.Compute, tile: ir.Tile) -> bool:
    """Whether an operation multiplies a tile by another one, in its place."""
    expr = node.expr
    refs = [ref.tile for ref in ir.refs(expr)]
    return isinstance(expr, ir.Elementwise) and expr.op == "mul" and node.target.tile is tile and refs.count(tile) == 1


def _joined(launch: Launch) -> Launch:
    """The launch with two products that are added up as one sum: the second is added where the first one is."""
    if not launch.grid:
        return launch
    block = [replace(node, body=_summed(node.body)) if isinstance(node, ir.Loop) else node for node in launch.block]
    grid = (*launch.grid[:-1], replace(launch.grid[-1], body=block))
    return replace(launch, grid=grid, body=[*grid[:1]]) if len(grid) == 1 else launch


def _summed(body: list[ir.Node]) -> list[ir.Node]:
    made = list(body)
    for node in body:
        match node:
            case ir.Compute(
                mode="assign",
                target=ir.Ref(tile=first) as target,
                expr=ir.Elementwise(op="add", operands=(ir.Ref(tile=same), ir.Ref(tile=second))),
            ) if same is first:
                product = next((each for each in body if _makes(each, second)), None)
                if product is None or _uses(body, second) != 1:
                    continue
                assert isinstance(product, ir.Compute)
                made[made.index(product)] = ir.Compute(target, product.expr, "add", product.line)
                made.remove(node)
                made = [each for each in made if not (isinstance(each, ir.Delete) and each.tile is second)]
    return made


def _makes(node: ir.Node, tile: ir.Tile) -> bool:
    return (
        isinstance(node, ir.Compute)
        and node.mode == "new"
        and node.target.tile is tile
        and isinstance(node.expr, ir.MatMul)
    )


def _uses(body: list[ir.Node], tile: ir.Tile) -> int:
    """How often a tile is an operand."""
    return sum(ref.tile is tile for node in body if isinstance(node, ir.Compute) for ref in ir.refs(node.expr))
