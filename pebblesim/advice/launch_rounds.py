"""The thread blocks of each time that a kernel is launched, by how long they take: under a mask they are not alike."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import prod

from pebblesim.kernels.triton.storage import padded
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask
from pebblesim.language.tile_ranges import TileRange
from pebblesim.launches.launches import Launch, times

Round = tuple[tuple[float, int], ...]
"""The blocks of a launch: (time, number of blocks that take it)."""

Rounds = tuple[tuple[int, Round], ...]
"""The blocks of launches one after another: (number of launches in a row that are alike, the blocks of each)."""

MOST_LISTED = 2**18
"""Tiles of rows or columns, of one head, up to which those of each launch under a mask are told apart."""


def uneven_rounds(launch: Launch, sizes: ir.Sizes, program: ir.Program, mask: Mask | None) -> Rounds:
    """The blocks of each time it is launched, for one head; empty where all blocks count as alike.

    Under a mask, tiles of a grid have different numbers of tiles; where a block has one tile, those that the mask
    leaves are alike. Of more launches than can be listed, evenly spaced ones stand for those next to them; if not even
    one launch can be listed, all blocks count as alike.
    """
    launched, grid = times(launch, sizes), {loop.range for loop in launch.grid}
    inner = [condition for condition in _conditions(launch.block) if grid & {condition.rows, condition.columns}]
    outer = [loop.when for loop in launch.grid if loop.when]
    if mask is None or not (inner or outer):
        return ()
    (when, *_), own = (inner, True) if inner else (outer, False)
    (n_q, n_k), height = program.grid(sizes), padded(when.rows, sizes)
    columns, axis = TileRange(0, n_k, padded(when.columns, sizes)), int(when.columns in grid)
    step = n_q if launch.around is None else ir.length(launch.around.range.block, sizes)
    listed = min(launched, MOST_LISTED // (columns.number if axis else -(-step // height)))
    if not listed:
        return ()
    others = [loop.range for loop in launch.grid if loop.range not in (when.rows, when.columns)]
    alike = prod(-(-sizes[rng.dim] // padded(rng, sizes)) for rng in others)
    found: list[tuple[int, Counter[int]]] = []
    for first, last in pairwise(launched * each // listed for each in range(listed + 1)):
        start = (first + last) // 2 * step
        rows = TileRange(start, min(start + step, n_q), height)
        if own:
            met = mask.met((n_q, n_k), rows, columns, axis).tolist()
            found.append((last - first, Counter(each for each in met if each or not outer)))
        else:
            met = mask.tiles((n_q, n_k), rows, columns)
            found.append((last - first, Counter({1: rows.number * columns.number - met if when.none else met})))
    work = sum(launches * each * number for launches, of_one in found for each, number in of_one.items())
    average = work / sum(launches * of_one.total() for launches, of_one in found) if work else 1.0
    return tuple(
        (launches, tuple((work / average, number * alike) for work, number in sorted(of_one.items(), reverse=True)))
        for launches, of_one in found
    )


def _conditions(body: list[ir.Node]) -> list[ir.MaskCondition]:
    """The conditions of the loops of a body."""
    return [loop.when for loop in ir.walk(body) if isinstance(loop, ir.Loop) and loop.when]
