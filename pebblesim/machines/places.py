"""Where words are while a program is nested: tiles of the memory above, parts of them below, and moves between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pebblesim.core.errors import UsageError
from pebblesim.language import program as ir
from pebblesim.language.registry import Schedule
from pebblesim.machines.routes import Nested, Route, Share

Home = tuple[ir.Tensor, ir.Range | None]
"""Where the words of a tile of the memory above are found: a tensor, and the tile that gives its copy, if any."""


class MustBeBelow(UsageError):
    """A program can be nested only if some tiles, `tiles`, live in the memory below."""

    def __init__(self, message: str, tiles: tuple[str, ...]) -> None:
        super().__init__(message)
        self.tiles = tiles


class Places:
    """The state of a walk through a program that is nested."""

    def __init__(self, above: Nested, product: Schedule, below: frozenset[str], several: bool) -> None:
        self.above, self.product, self.below, self.several = above, product, below, several
        self.level, self.lowest = above.lowest, above.lowest + 1
        self.program = above.program
        self.tensors = dict(self.program.tensors)
        self.blocks = {block: f"{block}_{self.lowest}" for block in product.program.blocks}
        self.routes: dict[ir.Node, Route] = {}
        self.dealt: dict[ir.Range, int] = {}
        self.shares = dict(above.shares)
        self.divided: dict[ir.Tile, str] = {}
        self.homes = self._homes()
        self.ranges: dict[ir.Range, ir.Range] = {}
        self.inside: dict[ir.Tile, ir.Tile] = {}  # tiles of the lowest memory, and their tiles in the new program
        self.room: dict[ir.Tile, ir.Tile] = {}  # tiles that take up room in the memory above, and what stands for them
        self.empty: set[ir.Tile] = set()  # of the memory above: sums without a term

    def is_below(self, tile: ir.Tile) -> bool:
        return tile.name in self.below

    # -- where the tiles of the memory above are ----------------------------------------------------------------

    def _homes(self) -> dict[ir.Tile, Home]:
        """Where each tile that stays above is: where it is written to or was read from, or in a tensor of its own."""
        read: dict[ir.Tile, Home] = {}
        written: dict[ir.Tile, Home] = {}
        changed: set[ir.Tile] = set()
        own = [node for phase in self.program.phases for node in ir.walk(phase.body) if self.of_lowest(node)]
        for node in own:
            match node:
                case ir.Read(tile=tile, tensor=tensor, at=at):
                    read[tile] = tensor, at
                case ir.Write(tile=tile, tensor=tensor, at=at):
                    if not self.is_below(tile) and written.setdefault(tile, (tensor, at)) != (tensor, at):
                        raise self.keep(tile, "is written to two tensors")
                case ir.Compute(target=ir.Ref(tile=tile), mode="assign" | "add"):
                    changed.add(tile)
                case ir.Move(tile=tile, source=source):
                    if not (self.is_below(tile) and self.is_below(source)):
                        raise self.keep(tile, f"takes over the words of {source.name or 'a tile'}", source.name)
        homes = {}
        for tile in [entered for node in own if (entered := ir.entering(node)) and not self.is_below(entered)]:
            if tile in read and written.get(tile, read[tile]) != read[tile]:
                raise self.keep(tile, "is read from one tensor and written to another")
            if tile in read and tile in changed and tile not in written:
                raise self.keep(tile, "is changed after it was read, and not written back")
            homes[tile] = written.get(tile) or read.get(tile) or self._own_home(tile)
        self._check_old_words(own, homes)
        return homes

    def _check_old_words(self, own: list[ir.Node], homes: dict[ir.Tile, Home]) -> None:
        """Refuse a tile above that still has words when others take their place in its tensor: both are there then."""
        there: dict[Home, ir.Tile] = {}  # homes of tiles that were read and not deleted yet
        for node in own:
            match node:
                case ir.Read(tile=tile) if tile in homes:
                    there[homes[tile]] = tile
                    continue
                case ir.Delete(tile=tile) if tile in homes:
                    if there.get(homes[tile]) is tile:
                        del there[homes[tile]]
                    continue
                case ir.Compute(target=ir.Ref(tile=tile)) if tile in homes:
                    home = homes[tile]
                case ir.Write(tile=tile, tensor=tensor, at=at):
                    home = tensor, at
                case _:
                    continue
            if there.get(home, tile) is not tile:
                raise self.keep(there[home], f"still has old words of {home[0].name} when {tile.name} replaces them")

    def _own_home(self, tile: ir.Tile) -> Home:
        name = base = f"{tile.name or 'tile'} in memory {self.level}"
        number = 1
        while name in self.tensors:
            number += 1
            name = f"{base} ({number})"
        self.tensors[name] = ir.Tensor(name, tuple(rng.dim for rng in tile.ranges))
        return self.tensors[name], None

    def keep(self, tile: ir.Tile, why: str, *others: str) -> MustBeBelow:
        """Say that a tile must live below, with others if some are given, and what to give for that."""
        names = tuple(filter(None, (tile.name, *others)))
        all_names = sorted({*self.below, *names})
        how = f", with --below {','.join(all_names)} (in Python: below={all_names})" if names else ""
        return MustBeBelow(
            f"{self.program.name} cannot be nested: its tile {tile.name or 'without a name'} {why}; let "
            f"{' and '.join(names) or 'it'} live in the memory below{how}.",
            names,
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
        self.inside[tile] = self.divide(ir.Tile(tile.name, self.around(tile.ranges)))
        return self.inside[tile]

    def divide(self, tile: ir.Tile) -> ir.Tile:
        """If several memories are below, they divide the rows of a new tile that lives there."""
        if self.several:
            rows = tile.ranges[0]
            if rows.parent is None:
                raise UsageError(
                    f"{self.program.name} cannot be nested: {tile.name or 'a tile'} has all rows of a matrix, which "
                    "several memories cannot divide as they divide tiles; let it stay in the memory above."
                )
            self.divided[tile] = self._share(rows)
        return tile

    def takes_room(self, tile: ir.Tile) -> Iterator[ir.Node]:
        """From here on, a tile takes up room in the memory above, if it did not so far."""
        if tile in self.room:
            return
        self.room[tile] = ir.Tile(tile.name, self.around(tile.ranges))
        yield self.routed(ir.Zeros(self.room[tile], 0), Route(self.level, self.level))

    def routed(self, node: ir.Node, route: Route) -> ir.Node:
        self.routes[node] = route
        return node

    def passing(
        self, tile: ir.Tile, ranges: ir.Ranges, route: Route, home: Home, line: int, part_of: ir.Ranges | None = None
    ) -> Iterator[ir.Node]:
        """Move words of a tile above, or delete them there: a read whose moves are made along a route, and a delete.

        The tile begins as one of zeros, so that what is read into it may be sums that still lack terms.
        """
        part = ir.Tile(tile.name, part_of or self.around(ranges))
        yield self.routed(ir.Zeros(part, line), Route(0, 0))
        yield self.routed(ir.Read(part, home[0], line, self.at(home[1])), route)
        yield self.routed(ir.Delete(part, True, line), Route(0, 0))

    def fetched(self, tile: ir.Tile, ranges: ir.Ranges, line: int, take: bool = False) -> tuple[ir.Tile, ir.Node]:
        """Return a new tile with a part of a tile above, and its read; `take`: the old words leave that memory."""
        part, (tensor, at) = ir.Tile(tile.name, ranges), self.homes[tile]
        return part, self.routed(ir.Read(part, tensor, line, self.at(at)), Route(self.level, self.lowest, take))

    def stored(self, part: ir.Tile, tile: ir.Tile, line: int) -> Iterator[ir.Node]:
        """Write a new tile to its place in a tile above."""
        tensor, at = self.homes[tile]
        yield self.routed(ir.Write(part, tensor, line, self.at(at)), Route(self.lowest, self.level))
        yield ir.Delete(part, True, line)

    def ref(self, ref: ir.Ref, parts: Mapping[ir.Tile, ir.Tile]) -> ir.Ref:
        """Return a reference in the new program: to a part that was fetched, or to a tile of the lowest memory."""
        if ref.tile in parts:
            return ir.Ref(parts[ref.tile], parts[ref.tile].ranges, ref.transposed)
        return ir.Ref(self.inside[ref.tile], self.around(ref.ranges), ref.transposed)

    def of_lowest(self, node: ir.Node) -> bool:
        """Whether a primitive is about tiles of the memory that was the lowest."""
        return not isinstance(node, ir.Loop) and self.level in self.above.route(node)[:2]

    def expression(
        self, expr: ir.Expr, ref: Callable[[ir.Ref], ir.Ref], ranges: Callable[[ir.Ranges], ir.Ranges]
    ) -> ir.Expr:
        """Return an expression with other references and ranges."""
        match expr:
            case ir.Ref():
                return ref(expr)
            case ir.MatMul(left=left, right=right):
                return ir.MatMul(ref(left), ref(right), ranges(expr.shape))
            case ir.RowReduction(op=op, operand=operand):
                return ir.RowReduction(op, self.expression(operand, ref, ranges), ranges(expr.shape))
            case ir.Elementwise(op=op, operands=operands):
                inner = tuple(self.expression(operand, ref, ranges) for operand in operands)
                return ir.Elementwise(op, inner, ranges(expr.shape))

    def rows(self, ranges: ir.Ranges) -> tuple[ir.Range, ir.Ranges]:
        """A range over the single rows of a tile, or of a share of it, and the ranges of one row."""
        rows, *columns = self.around(ranges)
        row = ir.Range("row", self.share(rows), 1)
        return row, (row, *columns)

    def share(self, rows: ir.Range) -> ir.Range:
        """If several memories are below, a range over their shares of a tile's rows; else the rows."""
        if not self.several:
            return rows
        shared = ir.Range(rows.name, rows, self._share(rows))
        self.dealt[shared] = self.lowest
        return shared

    def _share(self, rows: ir.Range) -> str:
        lengths = tuple(rng.name if rng.parent is None else rng.block for rng in rows.around)
        return Share(lengths, 1, self.lowest).named(self.shares)

    def check_rows(self, node: ir.Compute) -> None:
        """Refuse a computation in which a memory needs rows of a divided tile that others have.

        Raises:
            UsageError: it needs some.
        """
        rows = node.target.ranges[0]
        for ref in (*ir.refs(node.expr), node.target) if self.several else ():
            own, *_ = ref.tile.ranges
            if self.is_below(ref.tile) and (ref.transposed or not ref.ranges[0] is rows is own):
                how, kept = "in parts" if ref.ranges[0] is rows else "across rows", ref.tile.name
                raise UsageError(
                    f"{self.program.name} cannot be nested: several memories divide the rows of {kept}, and "
                    f"{node.target.tile.name or 'a tile'} needs them {how}; let {kept} stay in the memory above."
                )

    def around_shares(self, rows: ir.Range, body: list[ir.Node], line: int) -> list[ir.Node]:
        """A body for each share, if these are shares."""
        return [ir.Loop(rows, body, True, line)] if rows in self.dealt else body
