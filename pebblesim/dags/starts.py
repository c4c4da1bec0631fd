"""Start orders for the search: several walks through a graph that keep related vertices close together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from pebblesim.dags import start_kernel as kernel
from pebblesim.dags.orders import Ints, Task

SMALL: Final = 20_000
"""On graphs of at most this many vertices all that are ready are looked at before each choice."""


def starts(task: Task) -> Iterator[tuple[str, Ints]]:
    """Yield (name, vertices in order of computation); cheap and often good orders come first."""
    graph, n = task.graph, task.graph.vertices
    indptr, preds = graph.indptr.astype(np.int64), graph.preds.astype(np.int64)
    is_input = task.board.input
    numbers = np.arange(n)
    height, low, high = kernel.heights(indptr, preds, task.order)
    sinks = graph.outputs.astype(np.int64)
    walks = {
        "first operand first": -numbers,
        "deep operand first": height * n - numbers,
        "shallow operand first": -height * n - numbers,
        "last operand first": numbers,
    }
    first, *others = walks.items()
    uses = np.zeros(n, dtype=np.int64)
    targets = np.repeat(numbers, np.diff(indptr))
    np.add.at(uses, preds[task.needed[targets] == 1], 1)
    written = sinks[is_input[sinks] == 0]

    def walk(name: str, key: Ints, last: Ints = sinks) -> tuple[str, Ints]:
        return name, kernel.depth_first(indptr, preds, is_input, last, key)

    def grouped(size: int) -> tuple[str, Ints]:
        """Sweep each group from low to high vertices.

        A vertex with a single use comes just before that use, unless it is the highest operand there. So terms are
        added as soon as they exist, in all sums of the group at about the same time.
        """
        groups = list(_split(written, low, high, size))
        ends = np.cumsum([len(group) for group in groups])
        swept, number = kernel.members(indptr, preds, is_input, height, uses, np.concatenate(groups), ends)
        return walk(f"in groups of {size}", height, swept[np.lexsort((height[swept], number))])

    yield walk(*first)
    yield "in halves of halves", _halved(task, (high, -low, height))
    if n <= SMALL:
        yield "greedily", kernel.greedy(indptr, preds, task.succ_start, task.succs, task.needed, task.words, task.M)
    # A group shares the cache with its operands; how much they take depends on the graph. These come early, for on a
    # large graph the time may not suffice for all.
    early = {task.M * parts // 20: None for parts in (18, 17, 16) if 1 < task.M * parts // 20 < len(written)}
    for size in early:
        yield grouped(size)
    yield from _strips(task, high, low, height)
    for other in others:
        yield walk(*other)
    order = task.topological.astype(np.int64)
    yield "as numbered", order if (np.diff(order) > 0).all() else _by_number(task, height)
    yield "by height", order[np.argsort(height[order], kind="stable")]
    most = min(len(written), task.M)
    sizes = {1 << power for power in range(1, most.bit_length())}
    if n <= SMALL:  # a rectangle of sums that is no square may fit where no power of two does
        sizes |= {3 << power for power in range(most.bit_length())} | {task.M * parts // 20 for parts in range(11, 16)}
    for size in sorted(sizes.difference(early), reverse=True):
        if 1 < size <= most:
            yield grouped(size)


def _halved(task: Task, keys: tuple[Ints, ...]) -> Ints:
    """Halve the vertices again and again down to M of them, each time along the key with the fewest values cut.

    No key falls along an edge, so the half with the lower keys can be computed first. The largest and the least source
    of a vertex are such keys; on a stencil, halves along them are tiles askew in time.
    """
    graph, indptr = task.graph, task.graph.indptr.astype(np.int64)
    targets = np.repeat(np.arange(graph.vertices), np.diff(indptr))
    place = np.empty(graph.vertices, dtype=np.int64)
    place[task.order] = np.arange(graph.vertices)
    reaches = [key.copy() for key in keys]
    for key, reach in zip(keys, reaches, strict=True):
        np.maximum.at(reach, graph.preds, key[targets])
    parts, waiting = [], [task.topological.astype(np.int64)]
    while waiting:
        part = waiting.pop()
        best, lower = float("inf"), None
        for key, reach in zip(keys, reaches, strict=True) if len(part) > max(task.M, 1) else ():
            of_part = key[part]
            cut = np.partition(of_part, len(part) // 2)[len(part) // 2]
            if cut == of_part.max():
                cut -= 1
            low = of_part <= cut
            smaller = min(int(low.sum()), int((~low).sum()))
            if 8 * smaller >= len(part):  # smaller slices would make it slow
                cost = int((low & (reach[part] > cut)).sum()) / smaller
                if cost < best:
                    best, lower = cost, low
        if lower is None:
            parts.append(part[np.argsort(place[part])])
        else:
            waiting += [part[~lower], part[lower]]
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _strips(task: Task, high: Ints, low: Ints, height: Ints) -> Iterator[tuple[str, Ints]]:
    """Cut the vertices along a key into strips, and sweep each along another one.

    No key falls along an edge, so a strip can be computed after those of lower keys. A strip is so wide that its values
    of one step and the operands of the next value fill the cache. In a pyramid one word a step crosses to the next one.
    """
    order = task.topological.astype(np.int64)
    width = max(1, task.M - int(np.diff(task.graph.indptr).max(initial=1)))
    first, last = turns(task)
    pairs = {
        "along the largest source": (high, height),
        "along the least source": (-low, height),
        "of height": (height, high),
        "along first operands": (first, last),
        "along last operands": (last, first),
    }
    for name, (across, along) in pairs.items():
        strip = (across[order] - across[order].min(initial=0)) // width
        yield f"in strips {name}", order[np.lexsort((across[order], height[order], along[order], strip))]


def turns(task: Task) -> tuple[Ints, Ints]:
    """For each vertex the most edges from first operands, and from last ones, of a path to it."""
    indptr, preds = task.graph.indptr.astype(np.int64), task.graph.preds.astype(np.int64)
    filled = np.flatnonzero(np.diff(indptr) > 0)
    least, most = (find.reduceat(preds, indptr[filled]) for find in (np.minimum, np.maximum))
    several = least < most
    near = [np.median((filled - end)[several]) for end in (least, most)] if several.any() else [0.0]
    return kernel.turns(indptr, preds, task.order, float(np.mean(near)))


def _by_number(task: Task, height: Ints) -> Ints:
    """Order by vertex number among the vertices that are ready."""
    import heapq

    if task.graph.vertices > 100_000:
        return task.topological.astype(np.int64)
    waiting = {int(v): 0 for v in task.topological}
    indptr, preds = task.graph.indptr, task.graph.preds
    for v in waiting:
        waiting[v] = sum(int(u) in waiting for u in preds[int(indptr[v]) : int(indptr[v + 1])])
    ready = [v for v, count in waiting.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        v = heapq.heappop(ready)
        order.append(v)
        for w in task.succs[task.succ_start[v] : task.succ_start[v + 1]].tolist():
            if w in waiting:
                waiting[w] -= 1
                if not waiting[w]:
                    heapq.heappush(ready, w)
    return np.array(order, dtype=np.int64)


def _split(sinks: Ints, low: Ints, high: Ints, size: int) -> Iterator[Ints]:
    """Split recursively as in a k-d tree, by number, least source or largest source, whichever gives the smallest cut.

    There are as few groups of at most `size` sinks as possible, about as large as each other: a cut is in the middle,
    or nearby where the key changes. The cost of a cut is the number of sources shared by both halves, estimated from
    the least and largest sources.
    """
    waiting = [sinks]
    while waiting:
        group = waiting.pop()
        if len(group) <= size:
            yield group
            continue
        groups = -(-len(group) // size)
        middle = len(group) * (groups // 2) // groups
        halves: list[tuple[int, int, list[Ints]]] = []
        for key in (low, high, np.arange(len(low))):
            order = group[np.argsort(key[group], kind="stable")]
            changes = np.flatnonzero(np.diff(key[order])) + 1
            even = changes[-(-changes // size) - (changes - len(order)) // size == groups]
            for cut in {middle, *even[np.argsort(abs(even - middle), kind="stable")[:1]].tolist()}:
                half = [order[:cut], order[cut:]]
                cost = sum(len(np.unique(end[part])) for end in (low, high) for part in half)
                halves.append((cost, len(halves), half))
        waiting += reversed(min(halves)[2])
