"""Columns of a head in parts, where their number is far from a power of two: 192 columns are three tiles of 64.

The sides of a tile are powers of two in Gluon. Without parts a head of 192 columns is 256 in shared memory and in all
products, a quarter of which are of zeros. So before a kernel is planned, each node of its launch that has all columns
becomes one for each part: a read, a sum in registers, a write. A product over the columns becomes a sum of products.

A product over the columns takes those that there are, 16 at a time, and no zeros behind them: of 80 columns in a tile
of 128 it takes 64, and then 16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pebblesim.kernels.storage import padded
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

PART = 64
"""Columns of a part: 128 bytes of a row, which the copy engine keeps together in shared memory."""

UNDIVIDED = 128
"""Most columns of a head that are one tile, padded to a power of two."""

STEP = 16
"""Terms of an instruction for 16-bit words."""


@dataclass(eq=False)
class Part(ir.Range):
    """A part of the columns of a head, or of a tile of it; `number` is its number among these."""

    number: int = 0


def columns_of_part(rng: ir.Range) -> int:
    """The first column of a range among those that it is a part of."""
    return rng.number * PART if isinstance(rng, Part) else 0


def in_parts(rng: ir.Range, sizes: ir.Sizes) -> int:
    """Indices of a tile in a Gluon kernel: those of its parts, or its padded side."""
    return _parts(rng, sizes) * PART or padded(rng, sizes)


def terms(rng: ir.Range, sizes: ir.Sizes) -> list[tuple[int, int]]:
    """The columns of a head, or of a part of them, over which a product is: first ones and numbers, powers of two."""
    whole = rng.parent is None and rng.pairs is None
    number = sizes[rng.dim] - columns_of_part(rng) if whole or isinstance(rng, Part) else padded(rng, sizes)
    left, found = min(-(-number // STEP) * STEP, padded(rng, sizes)), list[tuple[int, int]]()
    while left:
        length = 1 << (left.bit_length() - 1)
        found.append((sum(each for _, each in found), length))
        left -= length
    return found


def divided(launch: Launch, sizes: ir.Sizes) -> Launch:
    """The launch with columns in parts: of heads far from a power of two, and of tiles of them that are none."""
    whole = {rng for node in ir.walk(launch.block) for tile in _tiles(node) for rng in tile.ranges}
    parts = {rng: [Part(f"{rng.name}_{at}", rng, PART, number=at) for at in range(_parts(rng, sizes))] for rng in whole}
    parts = {rng: made for rng, made in parts.items() if made}
    if not parts or not launch.grid:
        return launch
    return launch.with_block(_Divided(parts).body(launch.block))


def _parts(rng: ir.Range, sizes: ir.Sizes) -> int:
    """How many parts columns are divided into: all of a head, or of tiles of it; 0 if they are not divided."""
    if rng.pairs is not None:
        return 0
    if rng.parent is not None:
        length = ir.length(rng.block, sizes)
        return 0 if length % PART or length & (length - 1) == 0 else length // PART
    number = -(-sizes[rng.name] // PART)
    return number if sizes[rng.name] > UNDIVIDED and number * PART < padded(rng, sizes) else 0


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
