"""Products of tiles inside a nested program, as a schedule of `matmul` computes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pebblesim.core.errors import UsageError
from pebblesim.language import program as ir
from pebblesim.machines.places import Places


class Product:
    """A product of two tiles, as the schedule of `matmul` computes it from parts of them."""

    def __init__(self, places: Places, node: ir.Compute, expr: ir.MatMul) -> None:
        self.places, self.node, self.line = places, node, node.line
        inputs, (output,) = places.product.inputs, places.product.problem.outputs
        self.operands = dict(zip(inputs, (expr.left, expr.right), strict=True))
        self.output = output
        m, k, n = places.product.problem.dims
        rows, columns = places.around(node.target.ranges)
        self.rows = places.share(rows)
        self.ranges: dict[str, ir.Range] = {m: self.rows, k: places.range(expr.left.shape[1]), n: columns}
        self.loops: dict[ir.Range, ir.Range] = {}
        self.refs: dict[ir.Tile, ir.Ref] = {}  # what stands for the tiles of the schedule of matmul
        self.fetched: set[ir.Tile] = set()  # of these, tiles of their own

    def body(self) -> Iterator[ir.Node]:
        places, target = self.places, self.node.target
        self.starts = self.node.mode == "new" or target.tile in places.empty
        self.above = not places.is_below(target.tile)
        if self.above and self.starts:
            places.empty.discard(target.tile)
            yield from places.takes_room(target.tile)
        elif self.node.mode == "new":
            yield ir.Zeros(places.enter(target.tile), self.line)
        for phase in places.product.program.phases:
            yield from places.around_shares(self.rows, self._body(phase.body), self.line)

    def range(self, rng: ir.Range) -> ir.Range:
        return self.ranges[rng.name] if rng.parent is None else self.loops[rng]

    def _block(self, block: str | int) -> str | int:
        return block if isinstance(block, int) else self.places.blocks[block]

    def _body(self, nodes: Iterable[ir.Node]) -> list[ir.Node]:
        return [new for node in nodes for new in self._node(node)]

    def _node(self, node: ir.Node) -> Iterator[ir.Node]:
        match node:
            case ir.Loop(range=rng):
                assert rng.parent is not None
                after = None if rng.after is None else self._block(rng.after)
                self.loops[rng] = ir.Range(
                    rng.name, self.range(rng.parent), self._block(rng.block), first=rng.first, after=after
                )
                yield ir.Loop(self.loops[rng], self._body(node.body), False, self.line)
            case ir.Read(tile=tile, tensor=tensor) if tensor.name in self.operands:
                yield from self._read(tile, self.operands[tensor.name])
            case ir.Zeros(tile=tile):
                yield from self._sum(tile)
            case ir.Compute(target=target, expr=ir.MatMul() as expr, mode="add"):
                shape = tuple(map(self.range, expr.shape))
                product = ir.MatMul(self._ref(expr.left), self._ref(expr.right), shape)
                yield ir.Compute(self._ref(target), product, "add", self.line)
            case ir.Write(tile=tile):
                if self.above:
                    self.fetched.discard(tile)
                    yield from self.places.stored(self.refs[tile].tile, self.node.target.tile, self.line)
            case ir.Delete(tile=tile):
                if tile in self.fetched:
                    yield ir.Delete(self.refs[tile].tile, True, self.line)
            case _:
                raise UsageError(
                    f"{self.places.product.name} cannot compute the products inside {self.places.program.name}: it "
                    "must read its operands, add to sums that start from zero, and write each once."
                )

    def _read(self, tile: ir.Tile, operand: ir.Ref) -> Iterator[ir.Node]:
        ranges = tuple(map(self.range, tile.ranges))[:: -1 if operand.transposed else 1]
        if self.places.is_below(operand.tile):
            self.refs[tile] = ir.Ref(self.places.inside[operand.tile], ranges, operand.transposed)
            return
        part, read = self.places.fetched(operand.tile, ranges, self.line)
        self.refs[tile] = ir.Ref(part, ranges, operand.transposed)
        self.fetched.add(tile)
        yield read

    def _sum(self, tile: ir.Tile) -> Iterator[ir.Node]:
        ranges, target = tuple(map(self.range, tile.ranges)), self.node.target.tile
        if not self.above:
            self.refs[tile] = ir.Ref(self.places.inside[target], ranges)
            return
        self.fetched.add(tile)
        if self.starts:
            part = ir.Tile(target.name, ranges)
            yield ir.Zeros(part, self.line)
        else:
            part, read = self.places.fetched(target, ranges, self.line, take=True)
            yield read
        self.refs[tile] = ir.Ref(part, ranges)

    def _ref(self, ref: ir.Ref) -> ir.Ref:
        """A part of a tile of the schedule of matmul, as a part of what stands for the tile."""
        mine, ranges = self.refs[ref.tile], tuple(map(self.range, ref.ranges))
        transposed = mine.transposed != ref.transposed
        return ir.Ref(mine.tile, ranges[:: -1 if mine.transposed else 1], transposed)
