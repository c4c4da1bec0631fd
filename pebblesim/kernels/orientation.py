"""Which tiles of sums a kernel computes transposed, because all products that follow want them so.

Tensor cores take a computed left operand from registers as it is; one that is to be transposed goes through shared
memory, and its registers are spilled meanwhile. So where a tile is used transposed only, Bᵀ Aᵀ is computed in the place
of A B, and everything between the two products is done in that orientation.
"""

from __future__ import annotations

from collections.abc import Iterable

from pebblesim.kernels.passes.bias import BIAS, TRANSPOSED
from pebblesim.language import program as ir


def turned(nodes: Iterable[ir.Node]) -> frozenset[ir.Tile]:
    """The tiles of a block that are held transposed.

    Tiles that meet entry by entry share an orientation: it is the transposed one if no tile among them is read from
    memory, reduced along its rows or cut into parts, if some product takes one as its transposed left operand, and if
    none takes one as its left operand as it is. A bias is read in its own orientation and meets them in either one.
    """
    groups: dict[ir.Tile, set[ir.Tile]] = {}
    wanted: set[ir.Tile] = set()
    kept: set[ir.Tile] = set()
    either: set[ir.Tile] = set()
    for node in nodes:
        if isinstance(node, ir.Read):
            (either if node.tensor.name in (BIAS, TRANSPOSED) else kept).add(node.tile)
        elif isinstance(node, ir.Move):
            _join(groups, [node.tile, node.source])
        elif isinstance(node, ir.Compute):
            used = [ref for ref in (node.target, *ir.refs(node.expr)) if len(ref.tile.ranges) == 2]
            used = [ref for ref in used if ref.tile not in either]
            kept |= {ref.tile for ref in used if ref.ranges != ref.tile.ranges}
            if isinstance(node.expr, ir.MatMul):
                (wanted if node.expr.left.transposed else kept).add(node.expr.left.tile)
            elif isinstance(node.expr, ir.RowReduction) or any(ref.transposed for ref in used):
                kept |= {ref.tile for ref in used}
            else:
                _join(groups, [ref.tile for ref in used])
    return frozenset(tile for each in wanted if not kept & (group := groups.get(each, {each})) for tile in group)


def _join(groups: dict[ir.Tile, set[ir.Tile]], tiles: list[ir.Tile]) -> None:
    """Put tiles, and those that they are with, into one group."""
    together = {other for tile in tiles for other in groups.get(tile, {tile})}
    for tile in together:
        groups[tile] = together
