"""Symmetries of a graph, as a chain of stabilizers: what maps each base point where, while those before it stay.

Colour refinement and backtracking find them (McKay 1981 in small): two vertices of one colour are tried one for the
other, and what follows is refined until each vertex has a colour of its own. Whatever time leaves out only makes the
group smaller, and each permutation is checked edge by edge before it counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

Permutation = tuple[int, ...]
"""Where each vertex goes."""


class Digraph:
    """A graph with coloured vertices, in the form that refinement needs."""

    def __init__(self, before: Sequence[Sequence[int]], colours: Sequence[int]) -> None:
        self.n, self.before, self.colours = len(before), before, list(colours)
        self.behind: list[list[int]] = [[] for _ in before]
        for v, us in enumerate(before):
            for u in us:
                self.behind[u].append(v)
        self.edges = {(u, v) for v, us in enumerate(before) for u in us}

    def refined(self, colours: list[int]) -> tuple[list[int], list[object]]:
        """The coarsest refinement in which vertices of a colour see the same colours, and a trace to compare by."""
        trace: list[object] = []
        count = len(set(colours))
        while True:
            seen = [
                (colours[v], tuple(sorted(colours[u] for u in self.before[v])),
                 tuple(sorted(colours[w] for w in self.behind[v])))
                for v in range(self.n)
            ]  # fmt: skip
            kinds = sorted(set(seen))
            number = {kind: k for k, kind in enumerate(kinds)}
            colours = [number[kind] for kind in seen]
            trace.append(kinds)
            if len(kinds) == count:
                return colours, trace
            count = len(kinds)

    def keeps(self, image: Permutation) -> bool:
        """Whether a permutation is a symmetry."""
        return (
            sorted(image) == list(range(self.n))
            and all(self.colours[image[v]] == self.colours[v] for v in range(self.n))
            and all((image[u], image[v]) in self.edges for u, v in self.edges)
        )


def chain(graph: Digraph, seconds: float) -> list[tuple[int, dict[int, Permutation]]]:
    """(base point b, {p: a symmetry that takes b to p and leaves the base points before b where they are}), in turn.

    Levels at which only the identity is known are left out.
    """
    end = time.monotonic() + seconds
    # One path of the search tree: a vertex of each cell in turn gets a colour of its own until all have one.
    path: list[tuple[list[int], int]] = []
    colours, _ = graph.refined(graph.colours)
    while (b := _target(colours)) is not None:
        path.append((colours, b))
        colours, _ = graph.refined(_apart(colours, b))
        if time.monotonic() > end:
            return []
    identity = tuple(range(graph.n))
    known: list[Permutation] = []
    levels = []
    for colours, b in reversed(path):
        orbit = _orbit(b, known, identity)
        hopeless: set[int] = set()
        for p in range(graph.n):
            if colours[p] != colours[b] or p in orbit or p in hopeless or time.monotonic() > end:
                continue
            image = next(_matches(graph, _apart(colours, b), _apart(colours, p), end), None)
            if image is None:
                hopeless |= set(_orbit(p, known, identity))
                continue
            known.append(image)
            orbit = _orbit(b, known, identity)
        if len(orbit) > 1:
            levels.append((b, orbit))
    return levels[::-1]


def _target(colours: list[int]) -> int | None:
    """A vertex of a smallest colour that several have; None if none has."""
    size: dict[int, int] = {}
    for colour in colours:
        size[colour] = size.get(colour, 0) + 1
    shared = [(size[colour], v) for v, colour in enumerate(colours) if size[colour] > 1]
    return min(shared)[1] if shared else None


def _apart(colours: list[int], v: int) -> list[int]:
    """The same colours, but a new one for v."""
    return [2 * colour + (u == v) for u, colour in enumerate(colours)]


def _matches(graph: Digraph, left: list[int], right: list[int], end: float) -> Iterator[Permutation]:
    """Symmetries that take each vertex to one of its colour."""
    left, trace = graph.refined(left)
    right, other = graph.refined(right)
    if trace != other or sorted(left) != sorted(right) or time.monotonic() > end:
        return
    b = _target(left)
    if b is None:
        where = {colour: v for v, colour in enumerate(right)}
        image = tuple(where[colour] for colour in left)
        if graph.keeps(image):
            yield image
        return
    for p in range(graph.n):
        if right[p] == left[b]:
            yield from _matches(graph, _apart(left, b), _apart(right, p), end)


def _orbit(b: int, known: list[Permutation], identity: Permutation) -> dict[int, Permutation]:
    """Where these permutations take b, each place with one that takes it there."""
    found, waiting = {b: identity}, [b]
    while waiting:
        p = waiting.pop()
        for image in known:
            if image[p] not in found:
                found[image[p]] = tuple(image[q] for q in found[p])
                waiting.append(image[p])
    return found
