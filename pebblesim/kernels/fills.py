"""A pass over launches: a tensor that begins with a constant is filled by blocks that were to run anyway.

A launch before the fill, whose blocks are tiles of the same rows, fills these rows of the tensor, too. So one launch
less waits for the host, and nothing else is moved.
"""

from __future__ import annotations

from dataclasses import replace

from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch


def filled_before(made: list[Launch]) -> list[Launch]:
    """The launches, without fills that the launch before them does."""
    found = list[Launch]()
    for launch in made:
        with_fill = _filling(found[-1], launch) if found else None
        found[-1 if with_fill else len(found) :] = [with_fill or launch]
    return found


def _filling(before: Launch, fill: Launch) -> Launch | None:
    """A launch that also fills a matrix; None if its blocks are no tiles of rows, in which columns come in tiles."""
    if fill.kind != "fill" or before.kind != "tiles" or before.around is not None or len(before.grid) != 1:
        return None
    (node,), (rows,) = fill.body, before.grid
    tiles = [each.range.block for each in rows.body if isinstance(each, ir.Loop)]
    if not isinstance(node, ir.Init) or len(node.ranges) != 2 or before.body != [rows] or not tiles:
        return None
    down, across = node.ranges
    if rows.range.parent is None or rows.range.parent.name != down.name or across.pairs is not None:
        return None
    columns = ir.Range("k", across, tiles[0])
    stores = ir.Loop(columns, [replace(node, ranges=(rows.range, columns))], False, node.line)
    loop = replace(rows, body=[*rows.body, stores])
    return replace(before, body=[loop], grid=(loop,))
