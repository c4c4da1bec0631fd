"""Programs on a path of memories: where each primitive moves words, and the programs that are read off that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pebblesim.language import program as ir


class Route(NamedTuple):
    """How a primitive is meant on the path of memories, where 0 is the root.

    Attributes:
        source, target: the memories that words go from and to. If they are the same, a `Read` deletes words there, and
            after a `Zeros` and before a `Delete` they take up room there.
        take: whether the words leave the source, as new values will come in their place.
    """

    source: int
    target: int
    take: bool = False


@dataclass(frozen=True, eq=False)
class Nested:
    """A program on a path of memories.

    Attributes:
        program: the program. Tiles of the lowest memory are tiles in it. Tiles of the memories above are parts of its
            tensors.
        lowest: the number of the lowest memory; the root is 0.
        routes: the route of each primitive that is about other memories than its tiles suggest: a `Read` or `Write`
            between two memories, or with a memory above; a `Zeros` or `Delete` of room in a memory above.
    """

    program: ir.Program
    lowest: int = 1
    routes: Mapping[ir.Node, Route] = field(default_factory=dict)

    def route(self, node: ir.Node) -> Route:
        """The route of a primitive; if nothing else is said, between the root and the lowest memory, or in that."""
        if node in self.routes:
            return self.routes[node]
        match node:
            case ir.Read():
                return Route(0, self.lowest)
            case ir.Write() | ir.Init():
                return Route(self.lowest, 0)
        return Route(self.lowest, self.lowest)

    def boundary(self, number: int) -> ir.Program:
        """The words over the edge above memory `number`, as a program that moves them: reads go down, writes up."""

        def crossing(node: ir.Node) -> Iterator[ir.Node]:
            if isinstance(node, ir.Init):
                yield node
            elif isinstance(node, ir.Read | ir.Write):
                source, target, _ = self.route(node)
                if min(source, target) < number <= max(source, target):
                    kind = ir.Read if source < target else ir.Write
                    yield kind(node.tile, node.tensor, node.line, node.at)

        return self._only(crossing)

    def held(self, number: int) -> ir.Program:
        """A program in which tiles come and go as in a memory above the lowest: for its peak.

        Words on their way through it take up one word, one after the other.
        """

        def holding(node: ir.Node) -> Iterator[ir.Node]:
            source, target, _ = self.route(node)
            if isinstance(node, ir.Read | ir.Write | ir.Init):
                if min(source, target) < number < max(source, target):
                    word = ir.Tile("a word", ())
                    yield ir.Zeros(word, node.line)
                    yield ir.Delete(word, True, node.line)
            elif source == target == number and isinstance(node, ir.Zeros | ir.Delete):
                yield node

        return self._only(holding)

    @property
    def computed(self) -> ir.Program:
        """The program of the lowest memory, whose memory is all that lies above."""

        def lowest(node: ir.Node) -> Iterator[ir.Node]:
            if self.lowest in self.route(node)[:2]:
                yield node

        return self._only(lowest)

    @property
    def played(self) -> ir.Program:
        """The program whose moves, along their routes, are the game; without the room that tiles take up."""

        def moving(node: ir.Node) -> Iterator[ir.Node]:
            source, target, _ = self.route(node)
            if not (isinstance(node, ir.Zeros | ir.Delete) and 0 < source == target < self.lowest):
                yield node

        return self._only(moving)

    def _only(self, kept: Callable[[ir.Node], Iterator[ir.Node]]) -> ir.Program:
        """The program with other primitives in place of each."""

        def body(nodes: Iterable[ir.Node]) -> list[ir.Node]:
            some: list[ir.Node] = []
            for node in nodes:
                if isinstance(node, ir.Loop):
                    inside = body(node.body)
                    some += [replace(node, body=inside)] if inside else []
                else:
                    some += kept(node)
            return some

        phases = [ir.Phase(phase.name, body(phase.body)) for phase in self.program.phases]
        return replace(self.program, phases=phases)
