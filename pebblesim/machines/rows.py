"""Computations that are no products, inside a nested program: one row after the other, and a row word by word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pebblesim.language import program as ir
from pebblesim.machines.places import Places
from pebblesim.machines.routes import Route


class Rows:
    """A computation on rows: operands come down, the result goes up. Only the maximum of a row needs it whole."""

    def __init__(self, places: Places, node: ir.Compute, used: list[ir.Ref]) -> None:
        self.places, self.node, self.used, self.line = places, node, used, node.line
        self.tile, ranges, expr = node.target.tile, node.target.ranges, node.expr
        self.above = not places.is_below(self.tile)
        self.fresh = node.mode == "new" or self.tile in places.empty
        self.reduction = isinstance(expr, ir.RowReduction)
        self.row, _ = places.rows(ranges)
        columns = expr.operand.shape[1] if isinstance(expr, ir.RowReduction) else (*ranges, None)[1]
        self.column: ir.Range | None = None
        if columns is not None and not (isinstance(expr, ir.RowReduction) and expr.op == "rowmax"):
            self.column = ir.Range("column", places.range(columns), 1)
        self.once: list[ir.Node] = []  # for each row
        self.each: list[ir.Node] = []  # for each word of it
        self.parts: dict[ir.Tile, ir.Tile] = {}

    def body(self) -> Iterator[ir.Node]:
        if self.above and self.fresh:
            self.places.empty.discard(self.tile)
            yield from self.places.takes_room(self.tile)
        self._fetch()
        part, mode = self.parts.get(self.tile), self.node.mode
        if self.above and part is None:
            part, mode = self._begin()
        to = self._ref(self.node.target) if part is None else ir.Ref(part, part.ranges)
        value = self.places.expression(self.node.expr, self._ref, self._ranges)
        self.each.append(ir.Compute(to, value, mode, self.line))
        ends = self._leave(part)
        each = self.each if self.column is None else [ir.Loop(self.column, self.each, False, self.line)]
        assert self.row.parent is not None
        by_rows: list[ir.Node] = [ir.Loop(self.row, [*self.once, *each, *ends], False, self.line)]
        yield from self.places.around_shares(self.row.parent, by_rows, self.line)

    def _ranges(self, ranges: ir.Ranges) -> ir.Ranges:
        """The row and the column in place of a tile's ranges, which may be one and the same dimension."""
        _, *columns = ranges
        return (self.row, *(self.column or self.places.range(rng) for rng in columns))

    def _ref(self, ref: ir.Ref) -> ir.Ref:
        if ref.tile in self.parts:
            return ir.Ref(self.parts[ref.tile], self.parts[ref.tile].ranges)
        return ir.Ref(self.places.inside[ref.tile], self._ranges(ref.ranges))

    def _where(self, ranges: ir.Ranges) -> list[ir.Node]:
        """The primitives among which those of a tile belong: a vector has one word for each row."""
        return self.each if len(ranges) == 2 else self.once

    def _fetch(self) -> None:
        """Bring the operands down."""
        for ref in self.used:
            if ref.tile not in self.parts:
                take = ref.tile is self.tile and self.node.mode == "assign"
                part, read = self.places.fetched(ref.tile, self._ranges(ref.ranges), self.line, take)
                self.parts[ref.tile] = part
                self._where(ref.ranges).append(read)

    def _begin(self) -> tuple[ir.Tile, Literal["new", "assign", "add"]]:
        """Begin a part of the result, which is no operand; return it, and how it is computed."""
        target, where = self.node.target, self._where(self.node.target.ranges)
        part = ir.Tile(self.tile.name, self._ranges(target.ranges))
        if self.reduction and (self.node.mode == "add" or self.column is not None):
            if self.fresh:
                where.append(ir.Zeros(part, self.line))
            else:
                part, read = self.places.fetched(self.tile, part.ranges, self.line, take=True)
                where.append(read)
            return part, "add"
        if not self.fresh:  # the old words, which nothing needs, make room
            gone, home = Route(self.places.level, self.places.level), self.places.homes[self.tile]
            where += self.places.passing(self.tile, target.ranges, gone, home, self.line, part.ranges)
        return part, "new"

    def _leave(self, part: ir.Tile | None) -> list[ir.Node]:
        """Let operands leave and the result go up; return what comes at the end of a row."""
        ends: list[ir.Node] = []
        for tile, operand in self.parts.items():
            if tile is not self.tile:
                (self.each if len(operand.ranges) == 2 else ends).append(ir.Delete(operand, True, self.line))
        if part is not None:
            where = self.each if len(part.ranges) == 2 else ends
            where += self.places.stored(part, self.tile, self.line)
        return ends
