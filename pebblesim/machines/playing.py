"""The game of a nested schedule on its memories: the moves of its program, along their routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.game.moves import DELETE, READ, WRITE, unpack
from pebblesim.game.player import steps
from pebblesim.game.trees import Tree
from pebblesim.graphs.cdag import Cdag
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask
from pebblesim.machines.routes import Nested, Route


def moves(
    nested: Nested,
    sizes: ir.Sizes,
    graph: Cdag,
    tree: Tree,
    mask: Mask | None = None,
    memories: Sequence[int] = (),
) -> Iterator[NDArray[np.int64]]:
    """Yield the moves of a nested schedule on its memories, packed as `Tree.moves` packs them, in arrays.

    Args:
        nested: the schedule.
        sizes: the value of each dimension and block, by name.
        graph: the graph of its problem.
        tree: the path, or the tree, level by level.
        mask: the allowed pairs, if the program and the graph are under a mask.
        memories: for each level, the number of memories below one of the level above; by default one.

    Raises:
        UsageError: the program computes what the graph does not have.
    """
    rows = {kind: row for row, kind in enumerate(tree.kinds)}
    shift = (len(rows) - 1).bit_length()

    several = [*memories, *[1] * (nested.lowest - len(memories))]
    firsts = [1 + sum(prod(several[:k]) for k in range(1, level)) for level in range(1, nested.lowest + 1)]

    @cache
    def along(kind: int, route: Route, mine: tuple[int, ...]) -> NDArray[np.int64]:
        """The moves of a move of the program, for the children of that number in each level."""
        numbers, nodes = 0, []
        for first, several_here, child in zip(firsts, several, mine, strict=True):
            numbers = numbers * several_here + child
            nodes.append(first + numbers)
        return np.array([rows[move, nodes[level - 1]] for move, level in _moves(kind, route, nested.lowest)], np.int64)

    around, current = _dealt_around(nested), dict[ir.Range, int]()

    def start(rng: ir.Range) -> int:
        """The first index of the current tile of a range."""
        if rng.parent is None:
            return 0
        behind = 0 if rng.after is None else min(sizes[rng.dim], ir.length(rng.after, sizes))
        return start(rng.parent) + behind + current[rng] * ir.length(rng.block, sizes)

    def of_rows(tile: ir.Tile, child: Sequence[int], vertices: Sequence[int]) -> list[tuple[int, ...]]:
        """For words of a divided tile, the children that have their rows."""
        first, share = start(tile.ranges[0]), sizes[nested.divided[tile]]
        return [(*child[:-1], (graph.locate(v)[2][0] - first) // share) for v in vertices]

    for step in steps(nested.played, sizes, graph.families, mask=mask):
        if isinstance(step.node, ir.Loop):
            if step.tile is not None:
                current[step.node.range] = step.tile
        elif step.moves.size:
            route, child = nested.route(step.node), [0] * nested.lowest
            dealt = around.get(step.node, ())
            for rng in dealt:
                child[nested.dealt[rng] - 1] = current[rng]
            kinds, vertices = (part.tolist() for part in unpack(step.moves))
            tile: Any = step.node.target.tile if isinstance(step.node, ir.Compute) else getattr(step.node, "tile", None)
            apart = tile in nested.divided and nested.lowest not in (nested.dealt[rng] for rng in dealt)
            mine = of_rows(tile, child, vertices) if apart else [tuple(child)] * len(vertices)
            yield np.concatenate(
                [(v << shift) + along(kind, route, of) for kind, v, of in zip(kinds, vertices, mine, strict=True)]
            )


def _dealt_around(nested: Nested) -> dict[ir.Node, tuple[ir.Range, ...]]:
    """For each primitive, the dealt ranges of the loops around it."""
    found: dict[ir.Node, tuple[ir.Range, ...]] = {}

    def visit(body: list[ir.Node], ranges: tuple[ir.Range, ...]) -> None:
        for node in body:
            if isinstance(node, ir.Loop):
                visit(node.body, (*ranges, node.range) if node.range in nested.dealt else ranges)
            elif ranges:
                found[node] = ranges

    for phase in nested.program.phases:
        visit(phase.body, ())
    return found


def _moves(kind: int, route: Route, lowest: int) -> list[tuple[int, int]]:
    """The moves on the path, each a kind and a memory, for a move of the program."""
    source, target, take = route
    if kind not in (READ, WRITE):
        return [(kind, lowest)] if target or source else []  # what was only on its way leaves no pebble
    if source == target:
        return [(DELETE, source)]
    if source < target:
        edges = [(READ, node) for node in range(source + 1, target + 1)]
        left = [take, *(True for _ in edges[1:])]
    else:
        edges = [(WRITE, node) for node in range(source, target, -1)]
        left = [False, *(True for _ in edges[1:])]
    behind = [node - 1 if edge == READ else node for edge, node in edges]
    return [
        move
        for edge, node, gone in zip(edges, behind, left, strict=True)
        for move in (edge, *([(DELETE, node)] if gone else ()))
    ]
