"""The game of a nested schedule on a path of memories: the moves of its program, along their routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pebblesim.game.moves import DELETE, READ, WRITE, unpack
from pebblesim.game.numbering import Family
from pebblesim.game.player import steps
from pebblesim.game.trees import Tree
from pebblesim.language import program as ir
from pebblesim.machines.routes import Nested, Route


def moves(nested: Nested, sizes: ir.Sizes, families: Sequence[Family], tree: Tree, mask=None) -> Iterator[NDArray[np.int64]]:
    """Yield the moves of a nested schedule on a path of as many memories, packed as `Tree.moves` packs them, in arrays.

    Args:
        nested: the schedule.
        sizes: the value of each dimension and block, by name.
        families: the numbering of the graph.
        tree: the path.

    Raises:
        UsageError: the program computes what the graph does not have.
    """
    rows = {kind: row for row, kind in enumerate(tree.kinds)}
    shift = (len(rows) - 1).bit_length()

    @cache
    def along(kind: int, route: Route) -> NDArray[np.int64]:
        return np.array([rows[move] for move in _moves(kind, route, nested.lowest)], np.int64)

    for step in steps(nested.played, sizes, families, mask=mask):
        if step.moves.size:
            route = nested.route(step.node)
            kinds, vertices = (part.tolist() for part in unpack(step.moves))
            yield np.concatenate([(v << shift) + along(kind, route) for kind, v in zip(kinds, vertices, strict=True)])


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
