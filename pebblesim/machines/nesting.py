"""A schedule inside a schedule: what one memory holds as a tile is computed by the memory below it, part by part.

A traced program moves tiles between memory and one cache. `nested` puts a smaller memory below that cache. A product of
two tiles becomes a schedule of `matmul` for the smaller memory, and everything else is computed row by row. Tiles that
are named as `below` live in the smaller memory itself, as accumulators do; all others stay where they were, and parts
of them are copied down and up. The result is again a program, in which each transfer has a `Route`, so that it can be
nested once more. Everything is read off it: a program for the words over each boundary, one for what each memory holds,
one that is computed by the lowest memory, and the game (`pebblesim.machines.playing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.language import program as ir
from pebblesim.language.registry import Schedule

Home = tuple[ir.Tensor, ir.Range | None]
"""Where the words of a tile of the memory above are found: a tensor, and the tile that gives its copy, if any."""


class Route(NamedTuple):
    """What a primitive means on the path of memories, where 0 is the root.

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
        """The route of a primitive: between the root and the lowest memory, or in that memory, if nothing else is said."""
        if node in self.routes:
            return self.routes[node]
        match node:
            case ir.Read():
                return Route(0, self.lowest)
            case ir.Write() | ir.Init():
                return Route(self.lowest, 0)
        return Route(self.lowest, self.lowest)

    def boundary(self, number: int) -> ir.Program:
        """The words over the edge above memory `number`, as a program that only moves them, down by reads, up by writes."""

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
        """What a memory above the lowest holds, as a program in which tiles come and go: for its peak.

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


def nested(above: Nested, product: Schedule, below: Iterable[str] = ()) -> Nested:
    """Put a memory below the lowest one of a program.

    Args:
        above: the program, such as `Nested(schedule.program)`.
        product: the schedule of `matmul` for the products of two tiles: sums of its own that start from zero. The
            names of its blocks get the number of the memory, such as `b_2`.
        below: names of the tiles that live in the new memory, such as accumulators.

    Raises:
        UnknownName: no tile of the program has such a name.
        UsageError: the program cannot be nested so; the message says what to do.
    """
    names = {tile.name for tile in _tiles(above.program)}
    kept = tuple(below)
    for name in kept:
        if name not in names:
            raise UnknownName(f"tile of {above.program.name}", name, sorted(filter(None, names)))
    if product.problem.name != "matmul":
        raise UsageError(f"{product.name} is a schedule of {product.problem.name}; products need one of matmul.")
    if above.program.pairs is not None:
        raise UsageError("a program under a mask cannot be nested; use it without the mask.")
    return _Nesting(above, product, frozenset(kept)).result()


def _tiles(program: ir.Program) -> Iterator[ir.Tile]:
    for phase in program.phases:
        yield from (tile for node in ir.walk(phase.body) if (tile := ir.entering(node)))


class _Nesting:
    """The walk through a program that is nested; `body` returns the new primitives in place of some."""

    def __init__(self, above: Nested, product: Schedule, below: frozenset[str]) -> None:
        self.above, self.product, self.below = above, product, below
        self.level, self.lowest = above.lowest, above.lowest + 1
        self.program = above.program
        self.tensors = dict(self.program.tensors)
        self.blocks = {block: f"{block}_{self.lowest}" for block in product.program.blocks}
        self.routes: dict[ir.Node, Route] = {}
        self.homes = self._homes()
        self.ranges: dict[ir.Range, ir.Range] = {}
        self.inside: dict[ir.Tile, ir.Tile] = {}  # tiles of the lowest memory, and their tiles in the new program
        self.room: dict[ir.Tile, ir.Tile] = {}  # tiles that take up room in the memory above, and what stands for them
        self.empty: set[ir.Tile] = set()  # of the memory above: sums without a term

    def result(self) -> Nested:
        phases = [ir.Phase(phase.name, self.body(phase.body)) for phase in self.program.phases]
        blocks = (*self.program.blocks, *self.blocks.values())
        program = replace(self.program, blocks=blocks, tensors=self.tensors, phases=phases)
        return Nested(program, self.lowest, self.routes)

    def is_below(self, tile: ir.Tile) -> bool:
        return tile.name in self.below

    # -- where the tiles of the memory above are ----------------------------------------------------------------

    def _homes(self) -> dict[ir.Tile, Home]:
        """Where each tile that stays above is: where it is written to or was read from, or in a tensor of its own."""
        read: dict[ir.Tile, Home] = {}
        written: dict[ir.Tile, Home] = {}
        changed: set[ir.Tile] = set()
        own = [node for phase in self.program.phases for node in ir.walk(phase.body) if self._of_lowest(node)]
        for node in own:
            match node:
                case ir.Read(tile=tile, tensor=tensor, at=at):
                    read[tile] = tensor, at
                case ir.Write(tile=tile, tensor=tensor, at=at):
                    if not self.is_below(tile) and written.setdefault(tile, (tensor, at)) != (tensor, at):
                        raise UsageError(self._keep(tile, "is written to two tensors"))
                case ir.Compute(target=ir.Ref(tile=tile), mode="assign" | "add"):
                    changed.add(tile)
                case ir.Move(tile=tile, source=source):
                    if not (self.is_below(tile) and self.is_below(source)):
                        raise UsageError(self._keep(tile, f"takes over the words of {source.name or 'a tile'}"))
        homes = {}
        for tile in (tile for node in own if (tile := ir.entering(node)) and not self.is_below(tile)):
            if tile in read and written.get(tile, read[tile]) != read[tile]:
                raise UsageError(self._keep(tile, "is read from one tensor and written to another"))
            if tile in read and tile in changed and tile not in written:
                raise UsageError(self._keep(tile, "is changed after it was read, and not written back"))
            homes[tile] = written.get(tile) or read.get(tile) or self._own_home(tile)
        return homes

    def _own_home(self, tile: ir.Tile) -> Home:
        name = base = f"{tile.name or 'tile'} in memory {self.level}"
        number = 1
        while name in self.tensors:
            number += 1
            name = f"{base} ({number})"
        self.tensors[name] = ir.Tensor(name, tuple(rng.dim for rng in tile.ranges))
        return self.tensors[name], None

    def _keep(self, tile: ir.Tile, why: str) -> str:
        """Say that a tile must live below."""
        return (
            f"{self.program.name} cannot be nested: its tile {tile.name or 'without a name'} {why}; let it live in the "
            "memory below, with below=[...]."
        )

    # -- ranges and tiles of the new program ---------------------------------------------------------------------

    def range(self, rng: ir.Range) -> ir.Range:
        return self.ranges.get(rng, rng)

    def around(self, ranges: ir.Ranges) -> ir.Ranges:
        return tuple(map(self.range, ranges))

    def at(self, at: ir.Range | None) -> ir.Range | None:
        return None if at is None else self.range(at)

    def enter(self, tile: ir.Tile) -> ir.Tile:
        """Return the tile of the new program for one that lives in the lowest memory."""
        self.inside[tile] = ir.Tile(tile.name, self.around(tile.ranges))
        return self.inside[tile]

    def takes_room(self, tile: ir.Tile) -> Iterator[ir.Node]:
        """From here on, a tile takes up room in the memory above, if it did not so far."""
        if tile in self.room:
            return
        self.room[tile] = ir.Tile(tile.name, self.around(tile.ranges))
        yield self._routed(ir.Zeros(self.room[tile], 0), Route(self.level, self.level))

    def _routed(self, node: ir.Node, route: Route) -> ir.Node:
        self.routes[node] = route
        return node

    def passing(
        self, tile: ir.Tile, ranges: ir.Ranges, route: Route, home: Home, line: int, part_of: ir.Ranges | None = None
    ) -> Iterator[ir.Node]:
        """Move words of a tile above, or delete them there: a read whose moves are made along a route, and a delete.

        The tile begins as one of zeros, so that what is read into it may be sums that still lack terms.
        """
        part = ir.Tile(tile.name, part_of or self.around(ranges))
        yield self._routed(ir.Zeros(part, line), Route(0, 0))
        yield self._routed(ir.Read(part, home[0], line, self.at(home[1])), route)
        yield self._routed(ir.Delete(part, True, line), Route(0, 0))

    def fetched(self, tile: ir.Tile, ranges: ir.Ranges, line: int, take: bool = False) -> tuple[ir.Tile, ir.Node]:
        """Return a new tile with a part of a tile above, and its read; `take`: the old words leave that memory."""
        part, (tensor, at) = ir.Tile(tile.name, ranges), self.homes[tile]
        return part, self._routed(ir.Read(part, tensor, line, self.at(at)), Route(self.level, self.lowest, take))

    def stored(self, part: ir.Tile, tile: ir.Tile, line: int) -> Iterator[ir.Node]:
        """Write a new tile to its place in a tile above."""
        tensor, at = self.homes[tile]
        yield self._routed(ir.Write(part, tensor, line, self.at(at)), Route(self.lowest, self.level))
        yield ir.Delete(part, True, line)

    def ref(self, ref: ir.Ref, parts: Mapping[ir.Tile, ir.Tile]) -> ir.Ref:
        """Return a reference in the new program: to a part that was fetched, or to a tile of the lowest memory."""
        if ref.tile in parts:
            return ir.Ref(parts[ref.tile], parts[ref.tile].ranges, ref.transposed)
        return ir.Ref(self.inside[ref.tile], self.around(ref.ranges), ref.transposed)

    # -- primitives ----------------------------------------------------------------------------------------------

    def body(self, nodes: Iterable[ir.Node]) -> list[ir.Node]:
        return [new for node in nodes for new in self.node(node)]

    def node(self, node: ir.Node) -> Iterator[ir.Node]:
        if isinstance(node, ir.Loop):
            yield from self.loop(node)
        elif not self._of_lowest(node):
            yield self._routed(self._renewed(node), self.above.routes[node])
        elif isinstance(node, ir.Init):
            new = ir.Init(node.tensor, self.around(node.ranges), node.value, node.line)
            yield self._routed(new, Route(self.lowest, 0))
        elif isinstance(node, ir.Compute):
            yield from self.compute(node)
        elif self.is_below(tile := node.tile):
            yield from self.of_tile_below(node, tile)
        else:
            yield from self.of_tile_above(node, tile)

    def _of_lowest(self, node: ir.Node) -> bool:
        """Whether a primitive is about tiles of the memory that was the lowest."""
        return not isinstance(node, ir.Loop) and self.level in self.above.route(node)[:2]

    def _renewed(self, node: ir.Node) -> ir.Node:
        """A primitive about memories further above, in the ranges of the new program."""
        assert isinstance(node, ir.Read | ir.Delete | ir.Zeros)
        if isinstance(node, ir.Zeros):  # the first that is said of a tile
            self.enter(node.tile)
        new = self.inside[node.tile]
        return replace(node, tile=new, at=self.at(node.at)) if isinstance(node, ir.Read) else replace(node, tile=new)

    def of_tile_below(self, node: ir.Node, tile: ir.Tile) -> Iterator[ir.Node]:
        route = self.above.route(node)
        match node:
            case ir.Read(at=at):
                new = replace(node, tile=self.enter(tile), at=self.at(at))
                yield self._routed(new, Route(route.source, self.lowest, route.take))
            case ir.Write(at=at):
                yield self._routed(
                    replace(node, tile=self.inside[tile], at=self.at(at)), Route(self.lowest, route.target)
                )
            case ir.Zeros() | ir.Constant():
                yield replace(node, tile=self.enter(tile))
            case ir.Move(source=source):
                yield replace(node, tile=self.inside[tile], source=self.inside[source])
            case ir.Delete():
                yield replace(node, tile=self.inside[tile])

    def of_tile_above(self, node: ir.Node, tile: ir.Tile) -> Iterator[ir.Node]:
        route = self.above.route(node)
        match node:
            case ir.Read():
                yield from self.takes_room(tile)
                yield from self.passing(tile, tile.ranges, route, self.homes[tile], node.line)
            case ir.Write():
                yield from self.passing(tile, tile.ranges, route, self.homes[tile], node.line)
            case ir.Zeros():
                self.empty.add(tile)
            case ir.Constant(value=value, line=line):
                yield from self.takes_room(tile)
                row, inside = self._rows(tile.ranges)
                part = ir.Tile(tile.name, inside)
                yield ir.Loop(row, [ir.Constant(part, value, line), *self.stored(part, tile, line)], False, line)
            case ir.Delete(line=line):
                gone = Route(self.level, self.level)
                yield from self.passing(tile, tile.ranges, gone, self.homes[tile], line)
                yield self._routed(ir.Delete(self.room.pop(tile), True, line), gone)

    def loop(self, node: ir.Loop) -> Iterator[ir.Node]:
        """A loop; if a sum above gets its first terms in it, its first iteration apart from the others.

        If each iteration adds to another part of the sum, each is a first one.
        """
        computed = [inner.target for inner in ir.walk(node.body) if isinstance(inner, ir.Compute)]
        begun = dict.fromkeys(ref.tile for ref in computed if ref.tile in self.empty)
        if all(node.range in ref.ranges for ref in computed if ref.tile in begun):
            for tile in begun:
                yield from self.takes_room(tile)
            yield self._loop(node, node.range.first, node.range.after)
            return
        if node.range.first or node.range.after is not None:
            (tile, *_) = begun
            raise UsageError(self._keep(tile, "gets its first terms in a loop over a part of a dimension"))
        yield self._loop(node, True, None)
        yield self._loop(node, False, node.range.block)

    def _loop(self, node: ir.Loop, first: bool, after: str | int | None) -> ir.Loop:
        old = node.range
        assert old.parent is not None
        self.ranges[old] = ir.Range(old.name, self.range(old.parent), old.block, first=first, after=after)
        new = self.ranges[old]
        return ir.Loop(new, self.body(node.body), node.independent, node.line)

    # -- computations --------------------------------------------------------------------------------------------

    def compute(self, node: ir.Compute) -> Iterator[ir.Node]:
        used = [ref for ref in ir.refs(node.expr) if not self.is_below(ref.tile)]
        if self.is_below(node.target.tile) and not used:
            yield self._as_it_is(node, {})
        elif isinstance(node.expr, ir.MatMul):
            yield from _Product(self, node, node.expr).body()
        elif self.is_below(node.target.tile) and node.mode == "new":
            parts: dict[ir.Tile, ir.Tile] = {}
            for ref in used:
                if ref.tile not in parts:
                    parts[ref.tile], read = self.fetched(ref.tile, self.around(ref.ranges), node.line)
                    yield read
            yield self._as_it_is(node, parts)
            yield from (ir.Delete(part, True, node.line) for part in parts.values())
        else:
            yield from self._row_by_row(node, used)

    def _as_it_is(self, node: ir.Compute, parts: Mapping[ir.Tile, ir.Tile]) -> ir.Compute:
        expr = self._expression(node.expr, lambda ref: self.ref(ref, parts), self.range)
        if node.mode == "new":
            self.enter(node.target.tile)
        return ir.Compute(self.ref(node.target, {}), expr, node.mode, node.line)

    def _expression(
        self, expr: ir.Expr, ref: Callable[[ir.Ref], ir.Ref], rng: Callable[[ir.Range], ir.Range]
    ) -> ir.Expr:
        """Return an expression with other references and ranges."""
        match expr:
            case ir.Ref():
                return ref(expr)
            case ir.MatMul(left=left, right=right):
                return ir.MatMul(ref(left), ref(right), tuple(map(rng, expr.shape)))
            case ir.RowReduction(op=op, operand=operand):
                return ir.RowReduction(op, self._expression(operand, ref, rng), tuple(map(rng, expr.shape)))
            case ir.Elementwise(op=op, operands=operands):
                inner = tuple(self._expression(operand, ref, rng) for operand in operands)
                return ir.Elementwise(op, inner, tuple(map(rng, expr.shape)))

    def _rows(self, ranges: ir.Ranges) -> tuple[ir.Range, ir.Ranges]:
        """A range over the single rows of a tile, and the ranges of one row."""
        rows, *columns = self.around(ranges)
        row = ir.Range("row", rows, 1)
        return row, (row, *columns)

    def _row_by_row(self, node: ir.Compute, used: list[ir.Ref]) -> Iterator[ir.Node]:
        """Compute what is no product one row after the other, and a row one word after the other, unless it is a maximum.

        Operands come down, the result goes up.
        """
        target, expr, line = node.target, node.expr, node.line
        row, inside = self._rows(target.ranges)
        above = not self.is_below(target.tile)
        fresh = node.mode == "new" or target.tile in self.empty
        if above and fresh:
            self.empty.discard(target.tile)
            yield from self.takes_room(target.tile)
        columns = expr.operand.shape[1] if isinstance(expr, ir.RowReduction) else (*target.ranges, None)[1]
        by_word = columns is not None and not (isinstance(expr, ir.RowReduction) and expr.op == "rowmax")
        new = {target.ranges[0]: row}
        if by_word and columns is not None:
            new[columns] = ir.Range("column", self.range(columns), 1)

        def part_of(ranges: ir.Ranges) -> ir.Ranges:
            return tuple(new.get(rng) or self.range(rng) for rng in ranges)

        once: list[ir.Node] = []  # for each row
        each: list[ir.Node] = []  # for each word of it
        parts: dict[ir.Tile, ir.Tile] = {}
        leaving: list[tuple[list[ir.Node], ir.Tile]] = []
        for ref in used:
            if ref.tile not in parts:
                parts[ref.tile], read = self.fetched(
                    ref.tile, part_of(ref.ranges), line, take=ref.tile is target.tile and node.mode == "assign"
                )
                where = each if len(ref.ranges) == 2 else once
                where.append(read)
                if ref.tile is not target.tile:
                    leaving.append((where, parts[ref.tile]))
        part, mode = parts.get(target.tile), node.mode
        of_result = each if len(target.ranges) == 2 else once
        if above and part is None:
            part = ir.Tile(target.tile.name, part_of(target.ranges))
            if mode == "assign":
                if not fresh:  # the old words, which nothing needs, make room
                    gone = Route(self.level, self.level)
                    of_result += self.passing(target.tile, target.ranges, gone, self.homes[target.tile], line, part.ranges)
                mode = "new"
            elif isinstance(expr, ir.RowReduction) and (mode == "add" or by_word):
                mode = "add"
                if fresh:
                    of_result.append(ir.Zeros(part, line))
                else:
                    part, read = self.fetched(target.tile, part.ranges, line, take=True)
                    of_result.append(read)

        def ref_of_part(ref: ir.Ref) -> ir.Ref:
            if ref.tile in parts:
                return ir.Ref(parts[ref.tile], parts[ref.tile].ranges)
            return ir.Ref(self.inside[ref.tile], part_of(ref.ranges))

        to = ref_of_part(target) if part is None else ir.Ref(part, part.ranges)
        value = self._expression(expr, ref_of_part, lambda rng: new.get(rng) or self.range(rng))
        each.append(ir.Compute(to, value, mode, line))
        ends = [ir.Delete(tile, True, line) for where, tile in leaving if where is once]
        each += [ir.Delete(tile, True, line) for where, tile in leaving if where is each]
        result = [] if part is None else list(self.stored(part, target.tile, line))
        if of_result is each:
            each += result
        else:
            ends += result
        if by_word and columns is not None:
            each = [ir.Loop(new[columns], each, False, line)]
        yield ir.Loop(row, [*once, *each, *ends], False, line)


class _Product:
    """A product of two tiles, as the schedule of `matmul` computes it from parts of them."""

    def __init__(self, nesting: _Nesting, node: ir.Compute, expr: ir.MatMul) -> None:
        self.nesting, self.node, self.line = nesting, node, node.line
        inputs, (output,) = nesting.product.inputs, nesting.product.problem.outputs
        self.operands = dict(zip(inputs, (expr.left, expr.right), strict=True))
        self.output = output
        m, k, n = nesting.product.problem.dims
        rows, columns = nesting.around(node.target.ranges)
        self.ranges: dict[str, ir.Range] = {m: rows, k: nesting.range(expr.left.shape[1]), n: columns}
        self.loops: dict[ir.Range, ir.Range] = {}
        self.refs: dict[ir.Tile, ir.Ref] = {}  # what stands for the tiles of the schedule of matmul
        self.fetched: set[ir.Tile] = set()  # of these, tiles of their own

    def body(self) -> Iterator[ir.Node]:
        nesting, target = self.nesting, self.node.target
        self.starts = self.node.mode == "new" or target.tile in nesting.empty
        self.above = not nesting.is_below(target.tile)
        if self.above and self.starts:
            nesting.empty.discard(target.tile)
            yield from nesting.takes_room(target.tile)
        elif self.node.mode == "new":
            yield ir.Zeros(nesting.enter(target.tile), self.line)
        for phase in nesting.product.program.phases:
            yield from self._body(phase.body)

    def range(self, rng: ir.Range) -> ir.Range:
        return self.ranges[rng.name] if rng.parent is None else self.loops[rng]

    def _block(self, block: str | int) -> str | int:
        return block if isinstance(block, int) else self.nesting.blocks[block]

    def _body(self, nodes: Iterable[ir.Node]) -> list[ir.Node]:
        return [new for node in nodes for new in self._node(node)]

    def _node(self, node: ir.Node) -> Iterator[ir.Node]:
        match node:
            case ir.Loop(range=rng):
                assert rng.parent is not None
                after = None if rng.after is None else self._block(rng.after)
                self.loops[rng] = ir.Range(
                    rng.name, self.range(rng.parent), self._block(rng.block), first=rng.first, after=after
                )
                yield ir.Loop(self.loops[rng], self._body(node.body), False, self.line)
            case ir.Read(tile=tile, tensor=tensor) if tensor.name in self.operands:
                yield from self._read(tile, self.operands[tensor.name])
            case ir.Zeros(tile=tile):
                yield from self._sum(tile)
            case ir.Compute(target=target, expr=ir.MatMul() as expr, mode="add"):
                shape = tuple(map(self.range, expr.shape))
                product = ir.MatMul(self._ref(expr.left), self._ref(expr.right), shape)
                yield ir.Compute(self._ref(target), product, "add", self.line)
            case ir.Write(tile=tile):
                if self.above:
                    self.fetched.discard(tile)
                    yield from self.nesting.stored(self.refs[tile].tile, self.node.target.tile, self.line)
            case ir.Delete(tile=tile):
                if tile in self.fetched:
                    yield ir.Delete(self.refs[tile].tile, True, self.line)
            case _:
                raise UsageError(
                    f"{self.nesting.product.name} cannot compute the products inside {self.nesting.program.name}: it "
                    "must read its operands, add to sums that start from zero, and write each once."
                )

    def _read(self, tile: ir.Tile, operand: ir.Ref) -> Iterator[ir.Node]:
        ranges = tuple(map(self.range, tile.ranges))[:: -1 if operand.transposed else 1]
        if self.nesting.is_below(operand.tile):
            self.refs[tile] = ir.Ref(self.nesting.inside[operand.tile], ranges, operand.transposed)
            return
        part, read = self.nesting.fetched(operand.tile, ranges, self.line)
        self.refs[tile] = ir.Ref(part, ranges, operand.transposed)
        self.fetched.add(tile)
        yield read

    def _sum(self, tile: ir.Tile) -> Iterator[ir.Node]:
        ranges, target = tuple(map(self.range, tile.ranges)), self.node.target.tile
        if not self.above:
            self.refs[tile] = ir.Ref(self.nesting.inside[target], ranges)
            return
        self.fetched.add(tile)
        if self.starts:
            part = ir.Tile(target.name, ranges)
            yield ir.Zeros(part, self.line)
        else:
            part, read = self.nesting.fetched(target, ranges, self.line, take=True)
            yield read
        self.refs[tile] = ir.Ref(part, ranges)

    def _ref(self, ref: ir.Ref) -> ir.Ref:
        """A part of a tile of the schedule of matmul, as a part of what stands for the tile."""
        mine, ranges = self.refs[ref.tile], tuple(map(self.range, ref.ranges))
        transposed = mine.transposed != ref.transposed
        return ir.Ref(mine.tile, ranges[:: -1 if mine.transposed else 1], transposed)
