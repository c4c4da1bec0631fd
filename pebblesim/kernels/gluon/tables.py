"""Roles of Gluon kernels that read or write tables of pairs, which lie in memory tile by tile."""

from __future__ import annotations

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon.block import ROWS, Outgoing
from pebblesim.kernels.gluon.roles import Roles
from pebblesim.kernels.terms import NOTHING, Items, Name, Term, only, term
from pebblesim.language import program as ir


class TablesRoles(Roles):
    """Knows where tiles of tables are, and hands those of a warpgroup to the copy engine."""

    def write(self, node: ir.Write) -> None:
        """Write a tile, by the copy engine if it is one of a table."""
        table = next((each for each in self.plan.outgoing if each.write is node), None)
        if table is None or not ir.over_pairs(node.tile.ranges):
            super().write(node)
            return
        if node.tensor not in self.setting.tables.tiled:
            raise self.refused(f"line {node.line} writes a table that is not kept tile by tile")
        self.send(node, Name(table.name).index("w"), self.place_of_part(node, table))

    def in_table(self, tensor: ir.Tensor, row: Term, column: Term) -> Term:
        """The first row of a tile among the rows of all tiles of a table."""
        down, across, tall, _ = self.setting.lengths(tensor)
        return ((term("head") * down + row) * across + self.places.in_row(tensor, row, column)) * tall

    def send(self, node: ir.Write, room: Term, place: Items, emptied: bool = False) -> None:
        """Have the copy engine write a tile of a table. Its rows of the block that do not exist are 0, for which only
        warpgroups that have some do anything.

        `room`: where the tile is to be as it is held; `emptied`: whether what was there before has left.
        """
        own, held, turned = self.plan.own, self.values.named(node.tile), node.tile in self.facts.turned
        edge = [] if self.values.vanishes(node.tile, own) else self.scope.exist(own, int(turned), turned)
        if edge:
            beyond = (term("part") + 1) * ROWS > self.setting.size(own.dim)
            self.say(st.When(beyond, (st.Map(held, only(held, edge, NOTHING)),)))
        where = self.nonzero(node, own if edge else None)
        if self.asking and where:
            self.say(st.When(self.scope.edge(), (st.Map(held, only(held, where, NOTHING)),)))
            where = []
        value = self.values.in_words(only(self.written(node), where, NOTHING))
        self.say(*[st.Sent()] * (not emptied), *st.put(room.turned() if turned else room, value))
        self.say(st.Send(f"{node.tensor.name}_tiles", place, room, line=node.line))

    def place_of_part(self, node: ir.Write, table: Outgoing) -> Items:
        """Where the warpgroup's part of a tile is among the rows of all tiles of a table."""
        at, inside = list[Term](), list[Term]()
        for rng, side, whole in zip(node.tile.ranges, table.box, self.setting.tables.tiled[node.tensor], strict=True):
            number, times = self.scope.counted[rng], whole // side  # of parts of the warpgroup's sides
            at.append(number // times)
            inside.append(number % times * side)
        return Items((self.in_table(node.tensor, *at) + inside[0], inside[1]))
