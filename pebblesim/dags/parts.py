"""Proven optima of disjoint parts of a graph, added up; without recomputation. docs/dags.md has the proof.

A part is a set of vertices to compute. Each value belongs to the part with most of its events (its computation and its
uses), which alone counts its reads and writes. To all other parts it is an input of its own for each use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Final

import numpy as np

from pebblesim.dags.best_order import BestOrder
from pebblesim.dags.interval import Interval
from pebblesim.dags.optimum_states import search_states
from pebblesim.dags.orders import Task
from pebblesim.dags.start_kernel import heights
from pebblesim.dags.task_data import TaskData, components
from pebblesim.graphs.cdag import Cdag

MOST_STEPS: Final = 40
"""Most vertices to compute in a part; one of fewer than a quarter of them is solved in a fraction of a second."""

MOST_VERTICES: Final = 30_000
"""Most vertices to compute in a graph."""

MOST_STATES: Final = 60_000
"""Most states of the search in a part; where they do not suffice, what they prove counts."""

STEPS_OF_A_STATE: Final = 64
"""Steps of the search in a part for each of its states: those expanded, and those estimated and not stored."""

MEMORY: Final = 2**28
"""Bytes for the states of a part."""

WORK_IN_A_SECOND: Final = 2_000_000
"""States times edges of a part that are searched in a second."""

TO_CUT: Final = 40
"""The work that takes as long as to put a vertex into a part."""

TO_BEGIN: Final = 25
"""The work that takes as long as the first game of a part, for each of its edges."""

SIZES: Final = (16, 25, 12)
"""Vertices of parts that grow from a vertex, the first choice first; only where values may be computed again."""

LEVELS: Final = (3, 6, 2, 4)
"""Levels of depth that parts have, the first choice first."""


class Operands:
    """Operands and uses of the vertices to compute, and their levels.

    Attributes:
        order: the vertices to compute, each behind its operands.
        before, uses: distinct operands and uses of each vertex.
        least: the least input from which a path leads to each vertex, or the vertex itself.
    """

    def __init__(self, data: TaskData) -> None:
        self.data, self.before = data, data.before
        self.order: list[int] = data.task.topological.tolist()
        self.uses: list[list[int]] = [[] for _ in self.before]
        for v in self.order:
            for u in self.before[v]:
                self.uses[u].append(v)
        height, least, _ = heights(*data.operands, data.task.order)
        self.height: list[int] = height.tolist()
        self.least: list[int] = least.tolist()

    def depths(self, late: bool) -> dict[int, int]:
        """Return the level of each vertex, by the edges on the longest path to it or, if `late`, on that from it."""
        if not late:
            return {v: self.height[v] for v in self.order}
        below: dict[int, int] = {}
        for v in reversed(self.order):
            below[v] = max((below[w] + 1 for w in self.uses[v]), default=0)
        most = max(below.values(), default=0)
        return {v: most - level for v, level in below.items()}

    def parts(self, levels: int, late: bool) -> Iterator[list[int]]:
        """Cut the vertices by depth into slabs, these into what is connected, that by least inputs into small parts."""
        import networkx as nx

        depth = self.depths(late)
        lowest = min(depth.values(), default=0)
        joined = nx.Graph()
        for v in self.order:
            slab = (depth[v] - lowest) // levels
            joined.add_edge(v, (slab, v))
            joined.add_edges_from((v, (slab, u)) for u in self.before[v])
        for members in nx.connected_components(joined):
            part = sorted((v for v in members if isinstance(v, int)), key=lambda v: (self.least[v], v))
            pieces = -(-len(part) // MOST_STEPS)
            yield from (part[len(part) * k // pieces : len(part) * (k + 1) // pieces] for k in range(pieces))

    def grown(self, size: int) -> Iterator[list[int]]:
        """Cut the vertices into parts that grow from the first vertex left, by the neighbour most joined to each."""
        left = dict.fromkeys(self.order)
        while left:
            part: list[int] = []
            joined: dict[int, int] = {next(iter(left)): 0}
            while joined and len(part) < size:
                v = max(joined, key=lambda u: joined[u])  # the first of several
                del joined[v], left[v]
                part.append(v)
                for u in (*self.before[v], *self.uses[v]):
                    if u in left:
                        joined[u] = joined.get(u, 0) + 1
            yield part

    def graphs(self, parts: list[list[int]]) -> Iterator[Cdag]:
        """Yield the graph of each part."""
        part_of = {v: k for k, part in enumerate(parts) for v in part}
        home: dict[int, int] = {}
        for u, uses in enumerate(self.uses):
            if events := Counter(part_of[v] for v in ([u, *uses] if u in part_of else uses)):
                mine, most = events.most_common(1)[0]
                home[u] = mine if most > 1 else -1
        for k, part in enumerate(parts):
            yield self._graph(part, {u for v in part for u in (v, *self.before[v]) if home.get(u) == k})

    def free_graphs(self, parts: list[list[int]]) -> Iterator[Cdag]:
        """Yield the graph of each part if values may be computed again.

        Each operand that another part computes is left out. An input is in the part with most of its uses alone.
        """
        part_of = {v: k for k, part in enumerate(parts) for v in part}
        home = {
            u: Counter(part_of[v] for v in uses).most_common(1)[0][0]
            for u, uses in enumerate(self.uses)
            if uses and u not in part_of
        }
        for k, part in enumerate(parts):
            inside = set(part)
            inputs = {u for v in part for u in self.before[v] if home.get(u) == k}
            number = {v: at for at, v in enumerate(sorted(inputs | inside))}
            edges = [(number[u], number[v]) for v in part for u in self.before[v] if u in number]
            last = [number[v] for v in part if self.data.is_output[v] or not inside.intersection(self.uses[v])]
            edges_ = np.array(edges, dtype=np.int64).reshape(-1, 2)
            yield Cdag.from_edges(len(number), edges_, sorted(number[u] for u in inputs), sorted(last))

    def _graph(self, part: list[int], own: set[int]) -> Cdag:
        """Return the graph of a part that counts the reads and writes of its `own` values.

        Its vertices are numbered as in the whole graph, with the others behind, so that parts alike have equal graphs.
        """
        inside = set(part)
        waiting = [v for v in part if v not in own and self.uses[v] and not inside.intersection(self.uses[v])]
        number = {v: k for k, v in enumerate(sorted(own | inside))}
        edges = [(number[u], number[v]) for v in part for u in self.before[v] if u in own]
        inputs = [number[u] for u in own - inside]
        count = len(number)
        for v in sorted(part):
            others = sum(u not in own for u in self.before[v])
            edges += [(count + k, number[v]) for k in range(others)]
            inputs += range(count, count + others)
            count += others
        outputs = [number[v] for v in part if v not in own or self.data.is_output[v]]
        known = own.union(waiting)
        for v in waiting:  # a value whose uses all lie elsewhere: the first of them stands for all
            others = min(len(set(self.before[w]) - known) for w in self.uses[v])
            edges += [(number[v], count), *((count + 1 + k, count) for k in range(others))]
            outputs.append(count)
            inputs += range(count + 1, count + 1 + others)
            count += 1 + others
            if not self.data.is_output[v]:
                outputs.remove(number[v])
        return Cdag.from_edges(count, np.array(edges, dtype=np.int64).reshape(-1, 2), sorted(inputs), sorted(outputs))


def words(data: TaskData, seconds: float, again: bool = False) -> int:
    """Return words beyond the compulsory ones that parts cost, by the best of several ways to choose them.

    Each part is solved with an eighth of the work that is left of that for so many seconds; what is not proved counts
    0. Parts alike are solved once.

    Args:
        data: the graph and M.
        seconds: the work, in about the seconds that it takes.
        again: whether values may be computed again. Then what a part gets from others costs nothing.
    """
    left = int(seconds * WORK_IN_A_SECOND)
    operands = Operands(data)
    solved: dict[bytes, int] = {}
    best = 0
    ways: list[Callable[[], Iterator[list[int]]]]
    ways = [partial(operands.parts, levels, late) for late, levels in product((False, True), LEVELS)]
    ways[1:1] = [partial(operands.grown, size) for size in SIZES if again]
    for way in ways:
        if left <= 0:
            break
        total = 0
        left -= TO_CUT * len(operands.order)
        parts = list(way())
        for graph in operands.free_graphs(parts) if again else operands.graphs(parts):
            told = (graph.indptr, graph.preds, graph.inputs, graph.outputs)  # a vertex without operands may be computed
            alike = b"|".join(part.astype(np.int64).tobytes() for part in told)
            if alike not in solved and left > 0:
                solved[alike], work = excess(graph, data.M, left // 8, "hong-kung" if again else "no-recompute")
                left -= work
            total += solved.get(alike, 0)
        best = max(best, total)
    return best


def excess(graph: Cdag, M: int, most: int, rules: str = "no-recompute") -> tuple[int, int]:
    """Return the words beyond the compulsory ones that a part costs, or as many as most work proves, and the work."""
    total = work = 0
    for component, _ in components(Task(graph, M, rules)):
        task = Task(component, M, rules)
        best = BestOrder(task, np.random.default_rng(0))
        best.begin(float("inf"))
        least = TaskData(task, M).words
        run = Interval(task, best.io, np.empty(0, dtype=np.int64), least, "compulsory")
        work += TO_BEGIN * component.edges
        if best.io > least and (states := min(MOST_STATES, most // component.edges)) > 1:
            search_states(run, states, MEMORY, float("inf"), lambda: None, STEPS_OF_A_STATE * states)
            work += max(run.states, run.steps // STEPS_OF_A_STATE) * component.edges
        total += run.bound - least
    return total, work
