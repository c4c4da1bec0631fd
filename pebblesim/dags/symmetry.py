"""Symmetries of a graph, as a chain of stabilizers: images of each base point under symmetries that fix earlier ones.

They are found by colour refinement and backtracking (a small version of McKay 1981): one vertex is tried as the image
of another of the same colour, and the colours are refined until each vertex has its own colour. A limit of the work can
only make the group smaller, and each permutation is checked edge by edge before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

Permutation = tuple[int, ...]
"""The image of each vertex."""


MOST_LOOKS: Final = 500_000
"""Vertices and edges that are looked at for all symmetries of a graph, about a second."""


class _Late(Exception):
    """There is no more work to do."""


class Digraph:
    """A graph with coloured vertices, in the form needed for refinement."""

    def __init__(self, before: Sequence[Sequence[int]], colours: Sequence[int]) -> None:
        self.n, self.before, self.colours = len(before), before, list(colours)
        self.behind: list[list[int]] = [[] for _ in before]
        for v, us in enumerate(before):
            for u in us:
                self.behind[u].append(v)
        self.edges = {(u, v) for v, us in enumerate(before) for u in us}
        self.looks = 0

    def refined(self, colours: list[int]) -> tuple[list[int], list[object]]:
        """Return the coarsest refinement where vertices of a colour see the same colours, and its trace.

        Raises:
            _Late: it would take more than `MOST_LOOKS`; a long path takes a round for each vertex.
        """
        trace: list[object] = []
        count = len(set(colours))
        while True:
            self.looks += self.n + 2 * len(self.edges)
            if self.looks > MOST_LOOKS:
                raise _Late
            views = [
                (colours[v], tuple(sorted(colours[u] for u in self.before[v])),
                 tuple(sorted(colours[w] for w in self.behind[v])))
                for v in range(self.n)
            ]  # fmt: skip
            kinds = sorted(set(views))
            number = {kind: k for k, kind in enumerate(kinds)}
            colours = [number[kind] for kind in views]
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


def chain(graph: Digraph) -> list[tuple[int, dict[int, Permutation]]]:
    """Return the levels (base point b, {p: a symmetry that maps b to p and fixes the base points before b}), in order.

    Levels at which only the identity is known are omitted.
    """
    # One path of the search tree: a vertex of each cell in turn gets a colour of its own until all have one.
    path: list[tuple[list[int], int]] = []
    try:
        colours, _ = graph.refined(graph.colours)
        while (b := _target(colours)) is not None:
            path.append((colours, b))
            colours, _ = graph.refined(_apart(colours, b))
    except _Late:
        return []
    identity = tuple(range(graph.n))
    known: list[Permutation] = []
    levels = []
    for colours, b in reversed(path):
        orbit = _orbit(b, known, identity)
        hopeless: set[int] = set()
        for p in range(graph.n):
            if colours[p] != colours[b] or p in orbit or p in hopeless:
                continue
            image = next(_matches(graph, _apart(colours, b), _apart(colours, p)), None)
            if image is None:
                hopeless |= set(_orbit(p, known, identity))
                continue
            known.append(image)
            orbit = _orbit(b, known, identity)
        if len(orbit) > 1:
            levels.append((b, orbit))
    return levels[::-1]


def _target(colours: list[int]) -> int | None:
    """Return a vertex of a smallest colour that has several vertices; None if there is no such colour."""
    size: dict[int, int] = {}
    for colour in colours:
        size[colour] = size.get(colour, 0) + 1
    shared = [(size[colour], v) for v, colour in enumerate(colours) if size[colour] > 1]
    return min(shared)[1] if shared else None


def _apart(colours: list[int], v: int) -> list[int]:
    """Return the same colours, except a new colour for v."""
    return [2 * colour + (u == v) for u, colour in enumerate(colours)]


def _matches(graph: Digraph, left: list[int], right: list[int]) -> Iterator[Permutation]:
    """Yield symmetries that map each vertex to a vertex of its colour, until the work is done."""
    try:
        left, trace = graph.refined(left)
        right, other = graph.refined(right)
    except _Late:
        return
    if trace != other or sorted(left) != sorted(right):
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
            yield from _matches(graph, _apart(left, b), _apart(right, p))


def _orbit(b: int, known: list[Permutation], identity: Permutation) -> dict[int, Permutation]:
    """Return the images of b under these permutations, each with a permutation that maps b to it."""
    images, waiting = {b: identity}, [b]
    while waiting:
        p = waiting.pop()
        for image in known:
            if image[p] not in images:
                images[image[p]] = tuple(image[q] for q in images[p])
                waiting.append(image[p])
    return images
