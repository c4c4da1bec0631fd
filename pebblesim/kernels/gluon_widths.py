"""Columns of a head in parts, where their number is far from a power of two: 192 columns are three tiles of 64.

The sides of a tile are powers of two in Gluon. Without parts a head of 192 columns is 256 in shared memory and in all
products, a quarter of which are of zeros. So before a kernel is planned, each node of its launch that has all columns
becomes one for each part: a read, a sum in registers, a write. A product over the columns becomes a sum of products.
The last part may have 16 or 32 columns: 80 columns are 64 and 16. Its box in shared memory has 64, too, of which
products take the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pebblesim.kernels.additions import added
from pebblesim.kernels.storage import padded
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

PART = 64
"""Columns of a part: 128 bytes of a row, which the copy engine keeps together in shared memory."""

LAST = (16, 32)
"""Columns that the last part may have beside `PART`."""

UNDIVIDED = 64
"""Most columns of a head that are one tile, padded to a power of two."""


@dataclass(eq=False)
class Part(ir.Range):
    """A part of the columns of a head, or of a tile of it; `number` is its number among these."""

    number: int = 0


def columns_of_part(rng: ir.Range) -> int:
    """The first column of a range among those that it is a part of."""
    return rng.number * PART if isinstance(rng, Part) else 0


def narrow(rng: ir.Range) -> int:
    """The columns of a part that has less than its box; 0 for other ranges."""
    return rng.block % PART if isinstance(rng, Part) and isinstance(rng.block, int) else 0


def in_parts(rng: ir.Range, sizes: ir.Sizes) -> int:
    """Indices of a tile in a Gluon kernel: those of its parts, or its padded side."""
    return sum(_parts(rng, sizes)) or padded(rng, sizes)


def divided(launch: Launch, sizes: ir.Sizes) -> Launch:
    """The launch with columns in parts: of heads far from a power of two, and of tiles of them that are none.

    One that adds products to memory stays as it is: warpgroups divide the columns of these.
    """
    if any(isinstance(node, ir.Loop) and added(node.body) for node in launch.block):
        return launch
    whole = {rng for node in ir.walk(launch.block) for tile in _tiles(node) for rng in tile.ranges}
    cut = {rng: made for rng in whole if (made := _parts(rng, sizes))}
    parts = {
        rng: [Part(f"{rng.name}_{at}", rng, width, number=at) for at, width in enumerate(widths)]
        for rng, widths in cut.items()
    }
    if not parts or not launch.grid:
        return launch
    return launch.with_block(_Divided(parts).body(launch.block))


def _parts(rng: ir.Range, sizes: ir.Sizes) -> list[int]:
    """The columns of each part of all of a head, or of tiles of it; none if they are not divided."""
    if rng.pairs is not None:
        return []
    if rng.parent is not None:
        length = ir.length(rng.block, sizes)
        return [] if length % PART or length & (length - 1) == 0 else [PART] * (length // PART)
    full, rest = divmod(sizes[rng.name], PART)
    last = next((width for width in (*LAST, PART) if width >= rest), PART)
    widths = [PART] * full + [last] * (rest > 0)
    return widths if sizes[rng.name] > UNDIVIDED and sum(widths) < padded(rng, sizes) else []


def _tiles(node: ir.Node) -> Iterator[ir.Tile]:
    match node:
        case ir.Compute(target=target, expr=expr):
            yield target.tile
            yield from (ref.tile for ref in ir.refs(expr))
        case ir.Read(tile=tile) | ir.Write(tile=tile) | ir.Zeros(tile=tile) | ir.Constant(tile=tile):
            yield tile


class _Divided:
    """Nodes of which each has a part of the columns."""

    def __init__(self, parts: dict[ir.Range, list[Part]]) -> None:
        self.parts = parts
        self.of: dict[tuple[ir.Tile, Part], ir.Tile] = {}

    def body(self, nodes: list[ir.Node]) -> list[ir.Node]:
        """The nodes of a body."""
        return [made for node in nodes for made in self._node(node)]

    def _node(self, node: ir.Node) -> Iterator[ir.Node]:
        match node:
            case ir.Loop(body=body):
                yield replace(node, body=self.body(body))
            case ir.Init():
                yield node
            case ir.Compute(expr=ir.MatMul(left=left) as expr) if left.shape[1] in self.parts:
                for part in self.parts[left.shape[1]]:  # terms of a sum
                    yield replace(node, expr=self._expr(expr, part), mode="add" if part.number else node.mode)
            case ir.Compute(target=target, expr=expr):
                for part in self._of(target.tile):
                    yield replace(node, target=self._ref(target, part), expr=self._expr(expr, part))
                if not self._of(target.tile):
                    yield node
            case _:
                for part in self._of(node.tile):
                    made = replace(node, tile=self._tile(node.tile, part))
                    yield replace(made, source=self._tile(made.source, part)) if isinstance(made, ir.Move) else made
                if not self._of(node.tile):
                    yield node

    def _of(self, tile: ir.Tile) -> list[Part]:
        """The parts of a tile; none if it is not divided."""
        return next((self.parts[rng] for rng in tile.ranges if rng in self.parts), [])

    def _tile(self, tile: ir.Tile, part: Part) -> ir.Tile:
        if part.parent not in tile.ranges:
            return tile
        made = self.of.get((tile, part)) or ir.Tile(f"{tile.name}_{part.number}", self._shape(tile.ranges, part))
        return self.of.setdefault((tile, part), made)

    def _ref(self, ref: ir.Ref, part: Part) -> ir.Ref:
        tile = self._tile(ref.tile, part)
        return ref if tile is ref.tile else ir.Ref(tile, tile.ranges, ref.transposed)

    def _expr(self, expr: ir.Expr, part: Part) -> ir.Expr:
        match expr:
            case ir.Ref():
                return self._ref(expr, part)
            case ir.Elementwise(operands=operands):
                made = tuple(self._expr(each, part) for each in operands)
                return replace(expr, operands=made, shape=self._shape(expr.shape, part))
            case ir.MatMul(left=left, right=right):
                return ir.MatMul(self._ref(left, part), self._ref(right, part), self._shape(expr.shape, part))
        return replace(expr, operand=self._expr(expr.operand, part))

    @staticmethod
    def _shape(shape: ir.Ranges, part: Part) -> ir.Ranges:
        return tuple(part if rng is part.parent else rng for rng in shape)
