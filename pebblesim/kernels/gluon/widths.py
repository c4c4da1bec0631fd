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
from typing import Any

from pebblesim.kernels.triton.storage import padded
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
    """The tiles of a primitive, first the one that it makes, moves or deletes."""
    match node:
        case ir.Compute(target=target, expr=expr):
            yield target.tile
            yield from (ref.tile for ref in ir.refs(expr))
        case ir.Loop() | ir.Init():
            pass
        case _:
            yield node.tile


class _Divided:
    """Nodes of which each has a part of the columns."""

    def __init__(self, parts: dict[ir.Range, list[Part]]) -> None:
        self.parts = parts
        self.of: dict[tuple[ir.Tile, Part], ir.Tile] = {}

    def body(self, nodes: list[ir.Node]) -> list[ir.Node]:
        """The nodes of a body."""
        return [made for node in nodes for made in self._nodes(node)]

    def _nodes(self, node: ir.Node) -> list[ir.Node]:
        """The nodes in the place of one."""
        match node:
            case ir.Loop(body=body):
                return [replace(node, body=self.body(body))]
            case ir.Compute(expr=ir.MatMul(left=left)) if left.shape[1] in self.parts:  # terms of a sum
                made = [self._part(node, part) for part in self.parts[left.shape[1]]]
                return [made[0], *(replace(each, mode="add") for each in made[1:])]
        ranges = next((tile.ranges for tile in _tiles(node)), ())
        parts = next((self.parts[rng] for rng in ranges if rng in self.parts), [])
        return [self._part(node, part) for part in parts] or [node]

    def _part(self, node: ir.Node, part: Part) -> Any:
        """A node of a part of the columns."""

        def own(each: ir.Part) -> ir.Part:
            if isinstance(each, ir.Range):
                return part if each is part.parent else each
            if isinstance(each, ir.Tensor) or part.parent not in each.ranges:
                return each
            if (each, part) not in self.of:
                ranges: ir.Ranges = ir.rebuilt(each.ranges, own)
                self.of[each, part] = ir.Tile(f"{each.name}_{part.number}", ranges)
            return self.of[each, part]

        return ir.rebuilt(node, own)
