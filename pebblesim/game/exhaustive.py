"""The least I/O of a pebble game on a small graph, by a search through all games that could be better.

It is the oracle of this project: no schedule may move fewer words, and no lower bound may exceed it. The game is the
referee's, "hong-kung" or "no-recompute" (which is NP-hard, as the other is PSPACE-complete: Demaine & Liu 2018, Papp &
Wattenhofer 2020), so it is for graphs of some twenty or thirty vertices.
"""

from __future__ import annotations

import graphlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from pebblesim.errors import Infeasible, UnknownName, UsageError
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, pack
from pebblesim.sizes import whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pebblesim.game.referee import Graph

RULES: Final = ("hong-kung", "no-recompute")

MOST_VERTICES: Final = 64

STATES: Final = 4_000_000


@dataclass(frozen=True)
class Optimum:
    """The least I/O of a game, and a game that has it.

    Attributes:
        rules, M: of the game.
        io: the least number of words read and written.
        moves: a game with that I/O, packed as in `pebblesim.game.moves`.
        states: how many states the search kept.
    """

    rules: str
    M: int
    io: int
    moves: NDArray[Any]
    states: int

    def to_dict(self) -> dict[str, Any]:
        """All but the moves, of which it says how many, as plain data."""
        return {"rules": self.rules, "M": self.M, "io": self.io, "moves": len(self.moves), "states": self.states}

    def __str__(self) -> str:
        lines = {
            "rules": self.rules,
            "M": f"{self.M:,} words",
            "least I/O": f"{self.io:,} words",
            "game": f"{len(self.moves):,} moves, found among {self.states:,} states",
        }
        return "\n".join(f"{label:<16}{value}" for label, value in lines.items())


def optimum(graph: Graph, M: int, rules: str = "hong-kung", states: int = STATES) -> Optimum:
    """The least I/O on a graph.

    Args:
        graph: at most 64 vertices.
        M: red pebbles.
        rules: "hong-kung", where a vertex may be computed again, or "no-recompute".
        states: give up at that many; each takes some 60 bytes.

    Raises:
        Infeasible: some vertex with its predecessors needs more than M pebbles.
        UsageError: the graph is too large, or the states did not suffice.
        UnknownName: there is no such rule set.
    """
    import numpy as np

    from pebblesim.game import exhaustive_kernel as kernel

    if rules not in RULES:
        raise UnknownName("rule set to search under", rules, RULES)
    M, states = whole("M", M), whole("states", states)
    n = graph.vertices
    if n > MOST_VERTICES:
        raise UsageError(f"the graph has {n:,} vertices; an exhaustive search takes at most {MOST_VERTICES}.")
    inputs, outputs = ({int(v) for v in ids} for ids in (graph.inputs, graph.outputs))
    before = [
        [] if v in inputs else [int(u) for u in graph.preds[int(graph.indptr[v]) : int(graph.indptr[v + 1])]]
        for v in range(n)
    ]
    order = np.array(list(graphlib.TopologicalSorter(dict(enumerate(before))).static_order()), dtype=np.int64)
    worth = _ancestors(before, outputs - inputs)
    least_M = max((len(set(before[v])) + 1 for v in worth), default=1)
    if least_M > M:
        raise Infeasible(f"M = {M} red pebbles are too few for this graph; it needs M ≥ {least_M}.", least_M)
    preds = np.array([_mask(us) for us in before], dtype=np.uint64)
    succs = np.array([_mask(w for w in range(n) if v in before[w]) for v in range(n)], dtype=np.uint64)
    sets = np.uint64(_mask(inputs)), np.uint64(_mask(outputs - inputs))
    best, seen = None, 0
    below = sum(map(len, before)) + n + 1  # computing once, with every operand read and every result written
    for once in (True, False)[: 1 if rules == "no-recompute" else 2]:  # the first is quick, and bounds the second
        found = kernel.search(preds, succs, order, *sets, min(M, n), once, states, below)
        ended, io, last, parents, vias, reds, blues = found
        seen += len(parents)
        if ended == kernel.FULL:
            best = None
        elif ended == kernel.FOUND:
            below, path = int(io), []
            while last >= 0:
                path.append((int(vias[last]), int(reds[last]), int(blues[last])))
                last = int(parents[last])
            best = _game(path[::-1], before, outputs)
    if best is None:
        raise UsageError(
            f"{states:,} states did not suffice for this graph of {n} vertices at M = {M}; allow more states, or take "
            "a smaller graph or another M."
        )
    return Optimum(rules, M, below, np.array([pack(*move) for move in best], dtype=np.int64), seen)


def _game(path: list[tuple[int, int, int]], before: list[list[int]], outputs: set[int]) -> list[tuple[int, int]]:
    """The moves between states: (vertex computed on the way, red pebbles, blue pebbles besides the inputs)."""
    moves: list[tuple[int, int]] = []
    for (_, red, blue), (v, new_red, new_blue) in pairwise(path):
        operands = _mask(before[v])
        for u in _members(red & ~new_red & ~operands):
            if new_blue & ~blue & 1 << u:
                moves.append((WRITE, u))
            moves.append((DELETE, u))
        moves += [(READ, u) for u in _members(operands & ~red)]
        moves.append((COMPUTE, v))
        if v in outputs and not blue & 1 << v:
            moves.append((WRITE, v))
        moves += [(DELETE, u) for u in _members((red & new_red | operands | 1 << v) & ~new_red)]
    return moves


def _ancestors(before: list[list[int]], of: set[int]) -> set[int]:
    """These vertices and all that lead to them."""
    found, waiting = set(of), list(of)
    while waiting:
        new = set(before[waiting.pop()]) - found
        found |= new
        waiting += new
    return found


def _mask(vertices: Any) -> int:
    return sum(1 << v for v in set(vertices))


def _members(mask: int) -> list[int]:
    return [v for v in range(mask.bit_length()) if mask >> v & 1]
