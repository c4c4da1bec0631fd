"""A graph, M and rules, with data that several lower bounds share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.dags.orders import Task
from pebblesim.graphs.topology import successors


class TaskData:
    """A graph, M and rules, with data that several bounds share."""

    def __init__(self, task: Task, M: int) -> None:
        self.task, self.M, self.rules = task, M, task.rules
        graph = task.graph
        self.preds, self.indptr = graph.preds.astype(np.int64), graph.indptr.astype(np.int64)
        self.targets = np.repeat(np.arange(graph.vertices), np.diff(self.indptr))
        self.is_input, self.is_output = task.board.input == 1, task.board.output == 1
        alive = task.needed[self.targets] == 1
        self.used = np.zeros(graph.vertices, dtype=bool)
        self.used[self.preds[alive]] = True
        written = self.is_output & ~self.is_input
        read = self.is_input & self.used
        self.words = int(task.words[written].sum() + task.words[read].sum())
        # The graph without inputs, and without outputs that have successors; the words of these are counted already.
        self.inner = (task.needed == 1) & ~(written & self.used)

    def part(self, vertices: NDArray[Any]) -> tuple[NDArray[np.int64], ...]:
        """Return (start of preds, preds, start of succs, succs) of the subgraph on some vertices, numbered in order."""
        number = np.full(self.task.graph.vertices, -1, dtype=np.int64)
        number[vertices] = np.arange(len(vertices))
        u, v = number[self.preds], number[self.targets]
        inside = (u >= 0) & (v >= 0)
        u, v = u[inside], v[inside]
        order = np.argsort(v, kind="stable")
        start = np.append(0, np.cumsum(np.bincount(v, minlength=len(vertices))))
        preds = u[order]
        return start, preds, *(array.astype(np.int64) for array in successors(start, preds))
