"""Tasks for the kernels: boards, and orders of computation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.dags import order_kernel as kernel
from pebblesim.graphs.cdag import Cdag
from pebblesim.graphs.topology import successors, topological

Ints = NDArray[np.int64]


class Task:
    """A graph, M and rules, prepared for the kernel.

    Attributes:
        board: the steps.
        order: all vertices in a topological order.
        needed: the vertices to compute: those that lead to an output.
        topological: the needed vertices in a topological order.
        labels: the number in a step's move: its vertex; under `partial` its edge, or number of edges + vertex.
    """

    def __init__(self, graph: Cdag, M: int, rules: str) -> None:
        n = graph.vertices
        self.graph, self.rules = graph, rules
        indptr = graph.indptr.astype(np.int64)
        preds = graph.preds.astype(np.int64)
        self.weights: Ints | None = getattr(graph, "weights", None)
        self.words = np.ones(n, dtype=np.int64) if self.weights is None else self.weights
        is_input, is_output = (np.zeros(n, dtype=np.uint8) for _ in range(2))
        is_input[graph.inputs] = 1
        is_output[graph.outputs] = 1
        self.order = topological(indptr, preds)
        self.needed = needed = kernel.leading(indptr, preds, self.order, is_input, is_output)
        self.topological = self.order[needed[self.order] == 1]
        self.M = int(min(M, max(1, self.words.sum())))
        kind = {"replace": kernel.REPLACE, "partial": kernel.PARTIAL}.get(rules, kernel.PLAIN)
        degree = np.diff(indptr)
        if kind == kernel.PARTIAL:
            edges = np.flatnonzero(needed[np.repeat(np.arange(n), degree)] == 1)
            alone = np.flatnonzero((needed == 1) & (degree == 0))
            start = np.concatenate([np.arange(len(edges) + 1), np.full(len(alone), len(edges))])
            operands = preds[edges]
            target = np.concatenate([np.repeat(np.arange(n), degree)[edges], alone])
            self.labels = np.concatenate([edges, len(preds) + alone])
        else:
            steps = np.sort(self.topological).astype(np.int64)
            targets = np.repeat(np.arange(n), degree)
            # A value that a vertex uses twice, as in x·x, needs one pebble.
            _, first = np.unique(targets * n + preds, return_index=True)
            first = np.sort(first[needed[targets[first]] == 1])
            start = np.append(0, np.cumsum(np.bincount(targets[first], minlength=n)[steps]))
            operands = preds[first]
            target, self.labels = steps, steps
        self.board = kernel.Board(
            start.astype(np.int64), operands.astype(np.int32), target.astype(np.int32), self.words, is_input,
            is_output, self.M, kind,
        )  # fmt: skip
        self.steps = len(target)
        room = np.add.reduceat(np.append(self.words[operands], 0), start[:-1]) if self.steps else np.empty(0)
        room = np.where(np.diff(start) > 0, room, 0) + self.words[target]
        self.least_M = int(room.max()) if self.steps else 1
        if self.least_M > M:
            raise Infeasible(
                f"M = {M} red pebbles are too few for this graph; it needs M ≥ {self.least_M}.", self.least_M
            )
        self.succ_start, self.succs = successors(indptr, preds)

    def desk(self, extra: int = 0) -> kernel.Desk:
        """Allocate the work space, with `extra` more events than the steps have."""
        n, events = self.graph.vertices, len(self.board.operands) + self.steps + extra
        levels, size = [0], events
        while True:
            size = max(1, -(-size // 64))
            levels.append(levels[-1] + size)
            if size == 1:
                break

        def zeros(dtype: Any = np.uint8, length: int = n) -> NDArray[Any]:
            return np.zeros(length, dtype=dtype)

        blue = self.board.input.copy()
        never = np.full(n, kernel.NEVER)
        return kernel.Desk(
            zeros(), blue, self.board.input.copy() * 0, never.copy(), never.copy(), never.copy(),
            zeros(np.int64, events), zeros(np.int32, events), zeros(np.uint64, levels[-1]),
            zeros(np.uint64, levels[-1]), np.array(levels), zeros(np.int32, 4 * events + n), zeros(np.int32),
            blue.copy(), zeros(), zeros(),
        )  # fmt: skip

    def steps_of(self, vertices: NDArray[Any]) -> Iterator[tuple[str, NDArray[np.int32]]]:
        """Yield (name, steps) for each way to compute these vertices in this order.

        Under `partial` there are two ways: the terms of a vertex are added when its turn comes, or a value is added to
        all its sums as soon as it is complete.
        """
        if self.board.kind != kernel.PARTIAL:
            yield "", np.searchsorted(self.board.target, vertices).astype(np.int32)
            return
        place = np.full(self.graph.vertices, -1, dtype=np.int64)
        place[vertices] = np.arange(len(vertices))
        pulled = place[self.board.target]
        yield ", pulling terms", np.argsort(pulled, kind="stable").astype(np.int32)
        width = np.diff(self.board.start)
        operand = np.append(self.board.operands, 0)[self.board.start[:-1]]
        first = np.full(self.graph.vertices, len(vertices), dtype=np.int64)
        np.minimum.at(first, operand[width > 0], pulled[width > 0])
        pushed = np.where(width > 0, np.where(self.board.input[operand] > 0, first[operand], place[operand]), pulled)
        yield ", pushing values", np.lexsort((pulled, pushed)).astype(np.int32)

    def again(self) -> Ints:
        """For each vertex, the step that may recompute it if the rules allow it."""
        if self.rules not in ("hong-kung", "replace"):
            return np.empty(0, dtype=np.int64)
        steps = np.full(self.graph.vertices, -1, dtype=np.int64)
        steps[self.board.target] = np.arange(self.steps)
        return steps

    def events(self, order: NDArray[Any]) -> int:
        """Return how many operands and targets the steps of an order have."""
        return int(np.diff(self.board.start)[order].sum()) + len(order)

    def desk_for(self, order: NDArray[Any]) -> kernel.Desk:
        """Allocate the work space for an order, which may have steps more than once."""
        return self.desk(max(0, self.events(order) - len(self.board.operands) - self.steps))

    def moves(self, order: NDArray[Any], factor: float, io: int) -> Ints:
        """Return the game of an order, packed as in `pebblesim.game.moves`; `io` is at least its words."""
        # Words are written after they are computed or read, and deleted after either.
        moves = np.empty(2 * len(order) + 2 * io, dtype=np.int64)
        _, _, count = kernel.play(self.board, self.desk_for(order), order, np.array([factor]), moves)
        moves = moves[:count].copy()
        if self.board.kind == kernel.PARTIAL:
            steps = moves & 3 == kernel.COMPUTE
            moves[steps] = self.labels[moves[steps] >> 2] * 4 + kernel.COMPUTE
        return moves


def as_cdag(graph: Any) -> Cdag:
    """Return the graph as a `Cdag`; a networkx graph is converted.

    Raises:
        UsageError: the argument is neither.
    """
    if hasattr(graph, "indptr"):
        return graph
    if hasattr(graph, "nodes") and hasattr(graph, "edges") and hasattr(graph, "is_multigraph"):
        return Cdag.from_networkx(graph)
    raise UsageError(
        f"a graph was expected, a Cdag or a networkx DiGraph, not {type(graph).__name__}; "
        "`ps.load_graph` reads one from a file."
    )
