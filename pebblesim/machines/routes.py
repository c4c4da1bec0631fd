"""Programs on a path of memories: where each primitive moves words, and the programs that are read off that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

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


class Share(NamedTuple):
    """The part of a range that one of several memories gets: whole tiles of `block` indices, one after the other.

    Attributes:
        lengths: sizes by name or number, the smallest of which is the most indices that the range has.
        block: indices of a tile.
        level: the number of the memories that share.
    """

    lengths: tuple[str | int, ...]
    block: str | int
    level: int

    def size(self, sizes: ir.Sizes, memories: int) -> int:
        """Return the indices of a share if there are so many memories."""
        block = ir.length(self.block, sizes)
        tiles = -(-min(ir.length(length, sizes) for length in self.lengths) // block)
        return block * -(-tiles // memories)

    def named(self, shares: dict[str, Share]) -> str:
        """Return its name among shares; it is put there if it is new. It says what is shared, and the level."""
        base = name = f"share_{self.lengths[0]}_{self.level}"
        while shares.setdefault(name, self) != self:
            number = int(name.removeprefix(base).removeprefix("_") or 1) + 1
            name = f"{base}_{number}"
        return name


@dataclass(frozen=True, eq=False)
class Nested:
    """A program on a path of memories, or on a tree with the same number of memories below each one of a level.

    Attributes:
        program: the program. Tiles of the lowest memory are tiles in it. Tiles of the memories above are parts of its
            tensors.
        lowest: the number of the lowest memory; the root is 0.
        routes: the route of each primitive that is about other memories than its tiles suggest: a `Read` or `Write`
            between two memories, or with a memory above; a `Zeros` or `Delete` of room in a memory above.
        dealt: ranges whose tiles, as many as there are memories at most, each belong to one of the memories with this
            number below the same memory above, in order. What no such loop is around belongs to the first.
        shares: of such ranges, the sizes of their tiles, by the names of these sizes.
        divided: tiles whose rows are divided among the lowest memories, and the name of the share of each.
    """

    program: ir.Program
    lowest: int = 1
    routes: Mapping[ir.Node, Route] = field(default_factory=dict)
    dealt: Mapping[ir.Range, int] = field(default_factory=dict)
    shares: Mapping[str, Share] = field(default_factory=dict)
    divided: Mapping[ir.Tile, str] = field(default_factory=dict)

    def sizes(self, sizes: ir.Sizes, memories: Sequence[int]) -> dict[str, int]:
        """Return sizes with those of shares, for so many memories of each level below one of the level above."""
        every = dict(sizes)
        for name, share in self.shares.items():  # the lengths of a share may be shares of a level above
            every[name] = share.size(every, memories[share.level - 1])
        return every

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
        """The words over the edges above memories `number`, as a program that moves them: reads go down, writes up."""
        return self._boundaries[number - 1]

    def busiest(self, number: int) -> ir.Program:
        """The words over the edge that moves the most, the first one, whose shares are whole, as a program."""
        return self._busiest[number - 1]

    def held(self, number: int) -> ir.Program:
        """A program in which tiles come and go as in a memory above the lowest: for its peak.

        Words on their way through it take up one word, one after the other.
        """
        return self._held[number - 1]

    # Each program is made once, as what is derived from it is kept with it.

    @cached_property
    def _boundaries(self) -> tuple[ir.Program, ...]:
        return tuple(map(self._boundary, range(1, self.lowest + 1)))

    @cached_property
    def _busiest(self) -> tuple[ir.Program, ...]:
        return tuple(map(self._of_first, range(1, self.lowest + 1))) if self.dealt or self.divided else self._boundaries

    @cached_property
    def _held(self) -> tuple[ir.Program, ...]:
        return tuple(map(self._holding, range(1, self.lowest)))

    def _boundary(self, number: int) -> ir.Program:
        def crossing(node: ir.Node) -> Iterator[ir.Node]:
            if isinstance(node, ir.Init):
                yield node
            elif isinstance(node, ir.Read | ir.Write):
                source, target, _ = self.route(node)
                if min(source, target) < number <= max(source, target):
                    kind = ir.Read if source < target else ir.Write
                    yield kind(node.tile, node.tensor, node.line, node.at)

        return only(self.program, crossing)

    def _of_first(self, number: int) -> ir.Program:
        def rows_of_one(node: ir.Node) -> Iterator[ir.Node]:
            """A divided tile, which no loop over shares is around, has the rows of the first share here."""
            if isinstance(node, ir.Read | ir.Write) and number == self.lowest and node.tile in self.divided:
                rows, *columns = node.tile.ranges
                share = ir.Range(rows.name, rows, self.divided[node.tile], first=True)
                part = replace(node, tile=ir.Tile(node.tile.name, (share, *columns)))
                yield ir.Loop(share, [part], True, node.line)
            else:
                yield node

        kept: dict[int, ir.Range] = {}
        program = deepcopy(only(self.boundary(number), rows_of_one), kept)
        for rng, level in self.dealt.items():
            if level <= number and id(rng) in kept:
                kept[id(rng)].first = True
        return program

    @cached_property
    def computed_by_one(self) -> ir.Program:
        """A program with the peak of the first of the lowest memories: it has only its share of the rows of tiles."""
        kept: dict[int, Any] = {}
        program = deepcopy(self.computed, kept) if self.divided else self.computed
        shares: dict[ir.Range, ir.Range] = {}
        for tile, share in self.divided.items():
            if (mine := kept.get(id(tile))) is not None:
                rows, *columns = mine.ranges
                shares.setdefault(rows, ir.Range(rows.name, rows, share, first=True))
                mine.ranges = (shares[rows], *columns)
        for rng, level in self.dealt.items():
            if shares and level == self.lowest and id(rng) in kept:
                kept[id(rng)].first = True
        mine = {id(kept[id(tile)]) for tile in self.divided if id(tile) in kept}
        for node in [node for phase in program.phases for node in ir.walk(phase.body)]:
            if isinstance(node, ir.Loop) and node.range in shares:
                node.body = [ir.Loop(shares[node.range], node.body, False, node.line)]
            elif isinstance(node, ir.Compute) and id(node.target.tile) in mine and node.target.ranges[0] in shares:
                rows, *columns = node.target.ranges
                node.target = replace(node.target, ranges=(shares[rows], *columns))
        return program

    def _holding(self, number: int) -> ir.Program:
        def holding(node: ir.Node) -> Iterator[ir.Node]:
            source, target, _ = self.route(node)
            if isinstance(node, ir.Read | ir.Write | ir.Init):
                if min(source, target) < number < max(source, target):
                    word = ir.Tile("a word", ())
                    yield ir.Zeros(word, node.line)
                    yield ir.Delete(word, True, node.line)
            elif source == target == number and isinstance(node, ir.Zeros | ir.Delete):
                yield node

        return only(self.program, holding)

    @cached_property
    def computed(self) -> ir.Program:
        """The program of the lowest memory, whose memory is all that lies above."""

        def lowest(node: ir.Node) -> Iterator[ir.Node]:
            if self.lowest in self.route(node)[:2]:
                yield node

        return only(self.program, lowest)

    @property
    def played(self) -> ir.Program:
        """The program whose moves, along their routes, are the game; without the room that tiles take up."""

        def moving(node: ir.Node) -> Iterator[ir.Node]:
            source, target, _ = self.route(node)
            if not (isinstance(node, ir.Zeros | ir.Delete) and 0 < source == target < self.lowest):
                yield node

        return only(self.program, moving)


def only(program: ir.Program, kept: Callable[[ir.Node], Iterator[ir.Node]]) -> ir.Program:
    """The program with other primitives in place of each, and without loops that are left empty."""

    def body(nodes: Iterable[ir.Node]) -> list[ir.Node]:
        some: list[ir.Node] = []
        for node in nodes:
            if isinstance(node, ir.Loop):
                inside = body(node.body)
                some += [replace(node, body=inside)] if inside else []
            else:
                some += kept(node)
        return some

    phases = [ir.Phase(phase.name, body(phase.body)) for phase in program.phases]
    return replace(program, phases=phases)
