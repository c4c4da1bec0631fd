"""Words that values of disjoint parts of a graph move, also with recomputation, by paths that are open at first.

docs/dags.md has the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pebblesim.dags.task_data import TaskData

MOST_VERTICES: Final = 10_000
"""Most vertices to compute in a graph: the ancestors of each take a bit for every vertex."""

SIDES: Final = (1.5, 1.0, 2.0, 1.25, 2.5, 1.75, 3.0)
"""Lines along a side of a part for each pebble but one, the first choice first."""

VERTICES_IN_A_SECOND: Final = 4_000
"""Vertices of parts that are judged in a second, about."""


def words(data: TaskData, seconds: float) -> int:
    """Return words beyond the compulsory ones that parts cost, by the best of several sizes of parts.

    Vertices with one operand are in no part: what follows them then has an operand from elsewhere.

    Args:
        data: the graph and M.
        seconds: the work, in about the seconds that it takes. Parts alike are judged once; what is left out counts 0.
    """
    before = data.before
    order = [v for v in data.task.topological.tolist() if len(before[v]) > 1]
    whole = Part.of(order, before)
    lines = [_ranks(Lines(whole, choose)) for choose in (min, max)]
    known: dict[tuple[object, ...], int] = {}
    best, left = 0, int(seconds * VERTICES_IN_A_SECOND)
    for side in dict.fromkeys([*(max(2, int(share * data.M)) for share in SIDES), len(order) + 1]):  # the last is all
        tiles: dict[tuple[int, ...], list[int]] = {}
        for v, ranks in zip(order, zip(*lines, strict=True), strict=True):
            tiles.setdefault(tuple(rank // side for rank in ranks), []).append(v)
        total = 0
        for tile in tiles.values():
            part = Part.of(tile, before)
            if part.alike not in known and left >= len(tile):
                known[part.alike], left = part.read(data.M - 1), left - len(tile)
            read = known.get(part.alike, 0)
            total += 2 * read - min(read, int(data.is_output[tile].sum()))  # that an output is written is compulsory
        best = max(best, total)
    return best


def _ranks(lines: Lines) -> list[int]:
    """For each vertex how many lines of several vertices begin no later than its own, less one, or 0."""
    ranks, rank = dict[int, int](), 0
    for v, line in enumerate(lines.of):
        if line == v:
            ranks[v] = max(rank - 1, 0) if v not in lines.several else rank
            rank += v in lines.several
    return [ranks[line] for line in lines.of]


class Part:
    """Vertices of a graph, numbered from 0 on so that operands come first.

    Attributes:
        inside: for each vertex its operands in the part.
        entry: whether it has an operand elsewhere.
    """

    def __init__(self, inside: list[list[int]], entry: list[bool]) -> None:
        self.inside, self.entry = inside, entry
        self.alike = (*map(tuple, inside), *entry)

    @classmethod
    def of(cls, vertices: list[int], before: list[list[int]]) -> Part:
        """Return the part of some vertices, of which operands come first; `before` has the operands of all."""
        number = {v: k for k, v in enumerate(vertices)}
        inside = [[number[u] for u in before[v] if u in number] for v in vertices]
        return cls(inside, [len(own) < len(before[v]) for own, v in zip(inside, vertices, strict=True)])

    def crossed(self) -> list[int]:
        """For each vertex lines that every path to it from an entry meets, at least; 0 for entries.

        Two sets of lines are tried, and for each path that counts of which it meets more.
        """
        above = list[int]()
        for v, operands in enumerate(self.inside):
            bits = 1 << v
            for u in operands:
                bits |= above[u]
            above.append(bits)
        sets = [Lines(self, choose) for choose in (min, max)]
        fronts, least = list[dict[int, int]](), [0] * len(self.inside)
        for v, operands in enumerate(self.inside):
            ways: dict[int, int] = {1: 1} if self.entry[v] else {}  # fewest of the second set, by those of the first
            for u in operands:
                one, two = (lines.met(u, v, above) for lines in sets)
                for first, second in fronts[u].items():
                    ways[first + one] = min(ways.get(first + one, second + two), second + two)
            fronts.append(dict(_no_worse(ways)))
            if not self.entry[v]:
                least[v] = min(map(max, fronts[v].items()), default=0)
        return least

    def read(self, room: int) -> int:
        """Return how many different values of the part are read, at least.

        Args:
            room: values of the part that may be red just behind the computation of an entry, this one among them.
        """
        return max(0, max(self.crossed(), default=0) - room)


def _no_worse(ways: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of which no other one has as few in both places."""
    fewest: int | None = None
    for first in sorted(ways):
        if fewest is None or ways[first] < fewest:
            fewest = ways[first]
            yield first, fewest


class Lines:
    """Trees of a part with no vertex in common, each of paths from one entry: every vertex follows one of its operands.

    Attributes:
        of: for each vertex its line: the entry from which it follows.
        several: the entries that other vertices follow.
    """

    def __init__(self, part: Part, choose: Callable[[Iterable[int]], int]) -> None:
        self.of, self.several = list[int](), set[int]()
        for v, operands in enumerate(part.inside):
            self.of.append(v if part.entry[v] else self.of[choose(operands)])
            if self.of[v] != v:
                self.several.add(self.of[v])

    def met(self, u: int, v: int, above: list[int]) -> bool:
        """Whether a path from u to v comes to a line that has no vertex at u or before it."""
        return not above[u] >> self.of[v] & 1
