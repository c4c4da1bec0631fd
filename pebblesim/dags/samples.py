"""Small graphs for testing bounds: some generated families, and random graphs with fixed seeds."""

from __future__ import annotations

import random
from collections.abc import Iterator

from pebblesim.dags.generators import generate
from pebblesim.dags.orders import Task
from pebblesim.graphs.cdag import Cdag


def small_graphs() -> Iterator[tuple[str, Cdag, int]]:
    """Yield (name, graph, M), with M at and slightly above the smallest feasible value."""
    graphs = {
        "pyramid of 4 rows": generate("pyramid", rows=4),
        "fft of 4 points": generate("fft", n=4),
        "tree of depth 3": generate("tree", depth=3),
        "matmul 2 x 2 x 2": generate("matmul", n=2),
        "stencil, 4 points, 2 steps": generate("stencil", n=4, t=2),
        "prefix sums of 5": generate("prefix-sums", n=5),
    }
    rng = random.Random(0)
    for number in range(12):
        n = rng.randint(3, 9)
        edges = [(u, v) for v in range(n) for u in range(v) if rng.random() < 0.4]
        graphs[f"random graph {number}"] = Cdag.from_edges(n, edges)
    for name, graph in graphs.items():
        least = Task(graph, 2**40, "no-recompute").least_M
        for M in (least, least + 1, least + 3):
            yield name, graph, M
