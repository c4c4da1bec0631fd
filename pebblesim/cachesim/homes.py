"""Where the tiles of a program are stored on a machine without a scratchpad, and what its primitives touch there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import gcd
from typing import Literal

from pebblesim.language import program as ir

Machine = Literal["moves", "uses"]


def homes_of(nodes: Sequence[ir.Node]) -> dict[ir.Tile, ir.Tensor]:
    """Return the tensor in which a tile is stored on a machine without a scratchpad, for tiles that have one.

    A tile that was read is stored where it came from, unless it is changed and not written back only there. A computed
    tile is stored where it is written to, if this is one place from which nothing is read meanwhile. A tensor with a
    separate copy for each tile cannot be such a place, because the current copy may change during the tile's lifetime.
    """
    source: dict[ir.Tile, ir.Tensor] = {}
    goals: dict[ir.Tile, set[ir.Tensor]] = {}
    changed: set[ir.Tile] = set()
    moved: set[ir.Tile] = set()
    read: set[ir.Tensor] = set()
    tiles: dict[ir.Tile, None] = {}
    for node in nodes:
        match node:
            case ir.Read(tile=tile, tensor=tensor):
                source[tile] = tensor
                read.add(tensor)
            case ir.Write(tile=tile, tensor=tensor):
                goals.setdefault(tile, set()).add(tensor)
            case ir.Compute(target=target):
                changed.add(target.tile)
            case ir.Move(tile=tile, source=origin):
                moved |= {tile, origin}
            case _:
                pass
        if tile_in := ir.entering(node):
            tiles[tile_in] = None
    homes = {}
    for tile in tiles:
        written = goals.get(tile, set())
        if tile in source:
            if tile not in moved and (tile not in changed or written == {source[tile]}):
                homes[tile] = source[tile]
        elif len(written) == 1 and tile not in moved:
            (goal,) = written
            if goal not in read or not _read_while(nodes, tile, goal):
                homes[tile] = goal
    return {tile: home for tile, home in homes.items() if home.apart is None}


def _read_while(nodes: Sequence[ir.Node], tile: ir.Tile, tensor: ir.Tensor) -> bool:
    """Whether a tensor is read between where a tile comes in and where it leaves."""
    inside = False
    for node in nodes:
        if ir.entering(node) is tile:
            inside = True
        elif inside and isinstance(node, ir.Read) and node.tensor is tensor:
            return True
        elif ir.leaving(node) is tile:
            return False
    return False


def touches(
    nodes: Iterable[ir.Node], machine: Machine, homes: dict[ir.Tile, ir.Tensor]
) -> Iterator[tuple[ir.Tensor | ir.Tile, ir.Ranges]]:
    """Yield every part of a place that the primitives touch."""
    for node in nodes:
        match node:
            case ir.Read(tile=tile, tensor=tensor) | ir.Write(tile=tile, tensor=tensor):
                if machine == "moves" or homes.get(tile) is not tensor:
                    yield tensor, tile.ranges
            case ir.Init(tensor=tensor, ranges=ranges):
                yield tensor, ranges
            case _:
                pass
        if machine == "uses":
            refs = [*ir.refs(node.expr), node.target] if isinstance(node, ir.Compute) else []
            tiles = [node.tile, node.source] if isinstance(node, ir.Move) else []
            if tile_in := ir.entering(node):
                tiles.append(tile_in)
            for tile in tiles:
                yield homes.get(tile, tile), tile.ranges
            for ref in refs:
                yield homes.get(ref.tile, ref.tile), ref.ranges


def step_of(rng: ir.Range, top: ir.Range | None, sizes: ir.Sizes) -> int:
    """Return a common divisor of the ends of a range, from the start of `top` or of the dimension; 0 if it is all."""
    step = 0
    while rng is not top and rng.parent is not None:
        step = gcd(step, ir.length(rng.block, sizes), 0 if rng.after is None else ir.length(rng.after, sizes))
        rng = rng.parent
    return step


def longest(rng: ir.Range, sizes: ir.Sizes) -> int:
    """Return the largest number of indices of a range; 1 for one of which there is no tile."""
    if rng.parent is None:
        return sizes[rng.name]
    begin, end = ir.stretch(rng, longest(rng.parent, sizes), sizes)
    return max(1, min(end - begin, ir.length(rng.block, sizes)))
