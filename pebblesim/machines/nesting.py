"""A schedule inside a schedule: what one memory holds as a tile is computed by the memory below it, part by part.

A traced program moves tiles between memory and one cache. `nested` puts a smaller memory below that cache. A product of
two tiles becomes a schedule of `matmul` for the smaller memory, and everything else is computed row by row. Tiles that
are named as `below` live in the smaller memory itself, as accumulators do; all others stay where they were, and parts
of them are copied down and up. The result is again a program, in which each transfer has a `Route`, so that it can be
nested once more. Everything is read off it: a program for the words over each boundary, one for what each memory holds,
one that is computed by the lowest memory, and the game (`pebblesim.machines.playing`).

Several memories below each get equal shares of the rows of every computation, and of the tiles that live there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.language import program as ir
from pebblesim.language.registry import Schedule
from pebblesim.machines.places import Places
from pebblesim.machines.products import Product
from pebblesim.machines.routes import Nested, Route
from pebblesim.machines.rows import Rows


def nested(above: Nested, product: Schedule, below: Iterable[str] = (), several: bool = False) -> Nested:
    """Put a memory below the lowest one of a program, or several memories below each of them.

    Args:
        above: the program, such as `Nested(schedule.program)`.
        product: the schedule of `matmul` for the products of two tiles: sums of its own that start from zero. The
            names of its blocks get the number of the memory, such as `b_2`.
        below: names of the tiles that live in the new memory, such as accumulators.
        several: whether there are several memories, which get equal shares of the rows of what is computed, and of the
            tiles that live there.

    Raises:
        UnknownName: no tile of the program has such a name.
        UsageError: the program cannot be nested so; the message says what to do.
    """
    names = {tile.name for tile in tiles(above.program)}
    kept = tuple(below)
    for name in kept:
        if name not in names:
            raise UnknownName(f"tile of {above.program.name}", name, sorted(filter(None, names)))
    if product.problem.name != "matmul":
        raise UsageError(f"{product.name} is a schedule of {product.problem.name}; products need one of matmul.")
    if above.divided:
        raise UsageError(f"tiles of {above.program.name} are divided among several memories, which have none below.")
    return _Nesting(above, product, frozenset(kept), several).result()


def tiles(program: ir.Program) -> Iterator[ir.Tile]:
    """Yield the tiles of a program."""
    for phase in program.phases:
        yield from (tile for node in ir.walk(phase.body) if (tile := ir.entering(node)))


class _Nesting(Places):
    """The walk through a program that is nested; `body` returns the new primitives in place of some."""

    def result(self) -> Nested:
        phases = [ir.Phase(phase.name, self.body(phase.body)) for phase in self.program.phases]
        new_shares = [name for name in self.shares if name not in self.above.shares]
        blocks = (*self.program.blocks, *self.blocks.values(), *new_shares)
        program = replace(self.program, blocks=blocks, tensors=self.tensors, phases=phases)
        return Nested(program, self.lowest, self.routes, self.dealt, self.shares, self.divided)

    # -- primitives ----------------------------------------------------------------------------------------------

    def body(self, nodes: Iterable[ir.Node]) -> list[ir.Node]:
        return [new for node in nodes for new in self.node(node)]

    def node(self, node: ir.Node) -> Iterator[ir.Node]:
        if isinstance(node, ir.Loop):
            yield from self.loop(node)
        elif not self.of_lowest(node):
            yield self.routed(self._renewed(node), self.above.routes[node])
        elif isinstance(node, ir.Init):
            new = ir.Init(node.tensor, self.around(node.ranges), node.value, node.line)
            yield self.routed(new, Route(self.lowest, 0))
        elif isinstance(node, ir.Compute):
            yield from self.compute(node)
        elif self.is_below(tile := node.tile):
            yield from self.of_tile_below(node, tile)
        else:
            yield from self.of_tile_above(node, tile)

    def _renewed(self, node: ir.Node) -> ir.Node:
        """A primitive about memories further above, in the ranges of the new program."""
        assert isinstance(node, ir.Read | ir.Delete | ir.Zeros)
        if isinstance(node, ir.Zeros):  # the first that is said of a tile
            self.inside[node.tile] = ir.Tile(node.tile.name, self.around(node.tile.ranges))
        new = self.inside[node.tile]
        return replace(node, tile=new, at=self.at(node.at)) if isinstance(node, ir.Read) else replace(node, tile=new)

    def of_tile_below(self, node: ir.Node, tile: ir.Tile) -> Iterator[ir.Node]:
        route = self.above.route(node)
        match node:
            case ir.Read(at=at):
                new = replace(node, tile=self.enter(tile), at=self.at(at))
                yield self.routed(new, Route(route.source, self.lowest, route.take))
            case ir.Write(at=at):
                yield self.routed(
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
                row, inside = self.rows(tile.ranges)
                part = ir.Tile(tile.name, inside)
                by_rows = ir.Loop(row, [ir.Constant(part, value, line), *self.stored(part, tile, line)], False, line)
                assert row.parent is not None
                yield from self.around_shares(row.parent, [by_rows], line)
            case ir.Delete(line=line):
                gone = Route(self.level, self.level)
                yield from self.passing(tile, tile.ranges, gone, self.homes[tile], line)
                yield self.routed(ir.Delete(self.room.pop(tile), True, line), gone)

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
            raise self.keep(tile, "gets its first terms in a loop over a part of a dimension")
        yield self._loop(node, True, None)
        yield self._loop(node, False, node.range.block)

    def _loop(self, node: ir.Loop, first: bool, after: str | int | None) -> ir.Loop:
        old = node.range
        assert old.parent is not None
        self.ranges[old] = ir.Range(old.name, self.range(old.parent), old.block, first=first, after=after)
        new = self.ranges[old]
        if old in self.above.dealt:
            self.dealt[new] = self.above.dealt[old]
        when = node.when
        if when is not None:
            when = ir.MaskCondition(self.range(when.rows), self.range(when.columns), when.none)
        return ir.Loop(new, self.body(node.body), node.independent, node.line, when)

    # -- computations --------------------------------------------------------------------------------------------

    def compute(self, node: ir.Compute) -> Iterator[ir.Node]:
        self.check_rows(node)
        used = [ref for ref in ir.refs(node.expr) if not self.is_below(ref.tile)]
        if self.is_below(node.target.tile) and not used:
            yield self._as_it_is(node, {})
        elif isinstance(node.expr, ir.MatMul):
            yield from Product(self, node, node.expr).body()
        elif self.is_below(node.target.tile) and node.mode == "new":
            parts: dict[ir.Tile, ir.Tile] = {}
            for ref in used:
                if ref.tile not in parts:
                    part, read = self.fetched(ref.tile, self.around(ref.ranges), node.line)
                    parts[ref.tile] = self.divide(part)
                    yield read
            yield self._as_it_is(node, parts)
            yield from (ir.Delete(part, True, node.line) for part in parts.values())
        else:
            yield from Rows(self, node, used).body()

    def _as_it_is(self, node: ir.Compute, parts: Mapping[ir.Tile, ir.Tile]) -> ir.Compute:
        expr = self.expression(node.expr, lambda ref: self.ref(ref, parts), self.around)
        if node.mode == "new":
            self.enter(node.target.tile)
        return ir.Compute(self.ref(node.target, {}), expr, node.mode, node.line)
