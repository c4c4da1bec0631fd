"""A graph, M and rules, with data that several lower bounds share."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.dags.orders import Task
from pebblesim.graphs.cdag import Cdag
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

    @cached_property
    def operands(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(start, operands) of the vertices to compute: each operand once, in increasing order."""
        n = self.task.graph.vertices
        edges = self.targets * n + self.preds
        edges = np.sort(edges[self.task.needed[self.targets] == 1])
        edges = edges[np.append(True, edges[1:] > edges[:-1])[: len(edges)]]  # np.unique takes ten times as long
        return np.append(0, np.cumsum(np.bincount(edges // n, minlength=n))), edges % n

    @cached_property
    def before(self) -> list[list[int]]:
        """For each vertex its `operands`."""
        start, operands = self.operands
        return [part.tolist() for part in np.split(operands, start[1:-1])]

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


def components(task: Task) -> list[tuple[Cdag, NDArray[np.int64]]]:
    """Return the connected components of a graph without vertices that need no move, and their vertex numbers.

    Their optima add up: a game on the graph contains a game on each component, and games on components can be played in
    turn.
    """
    import networkx as nx

    graph, data = task.graph, TaskData(task, task.M)
    whole_graph = nx.Graph()
    whole_graph.add_nodes_from(np.flatnonzero(task.needed).tolist())
    alive = task.needed[data.targets] == 1
    whole_graph.add_edges_from(zip(data.preds[alive].tolist(), data.targets[alive].tolist(), strict=True))
    members = [np.array(sorted(part)) for part in nx.connected_components(whole_graph)]
    if len(members) < 2:
        return [(graph, np.arange(graph.vertices))] * len(members)
    parts = []
    number = np.zeros(graph.vertices, dtype=np.int64)
    for vertices in members:
        number[vertices] = np.arange(len(vertices))
        inside = np.zeros(graph.vertices, dtype=bool)
        inside[vertices] = True
        kept = inside[data.targets] & alive
        edges = np.column_stack([number[data.preds[kept]], number[data.targets[kept]]])
        ends = (number[vertices[flags[vertices]]] for flags in (data.is_input, data.is_output))
        parts.append((Cdag.from_edges(len(vertices), edges, *ends), vertices))
    return parts
