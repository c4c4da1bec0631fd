"""Gluon kernels of products with a table of pairs: tiles of the table and of a matrix are streamed past sums that stay.

A block has a tile of the result, and each warpgroup 64 of its rows. Parts of the terms, `c` each, are a ring: words of
the table, and of the matrix. What a loop over tiles of terms does beside its products, such as rescaling the sums, is
done by one warpgroup while the products of another run. The result goes through the slots of the ring, which are free
by then, and the copy engine writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon.block import ROWS, Block, filled, freed
from pebblesim.kernels.gluon.boxes import sides
from pebblesim.kernels.gluon.grid import longest_first
from pebblesim.kernels.gluon.parts import PartsRoles
from pebblesim.kernels.gluon.roles import expecting
from pebblesim.kernels.gluon.widths import columns_of_part
from pebblesim.kernels.terms import ZERO, Items, Layout, Name, Number, Term, call, maximum, minimum, term
from pebblesim.kernels.triton.grid import in_groups
from pebblesim.kernels.triton.loops import Piece
from pebblesim.kernels.triton.ranges import GROUP, Setting
from pebblesim.language import program as ir

MANY = 4
"""Tiles for each multiprocessor from which on those of a head come together, which finds more of them in L2."""


class ProductRoles(PartsRoles):
    """Makes the statements of both roles."""

    def __init__(self, setting: Setting, plan: Block) -> None:
        super().__init__(setting, plan)
        self.left, *self.rights = plan.buffers.values()
        self.right = self.rights[0]
        _, self.columns_of_grid = plan.launch.grid
        self.turned = self.nest.expr.left.transposed
        terms = self.setting.tables.tiled[self.left.read.tensor][0 if self.turned else 1]
        self.parts = terms // self.right.rows  # of a tile of terms
        self.reserve("full", "free", "first", "end", "k_first", "k_end", "wide", "group", "rank")
        self.named_tile = self.number, self.scope.number_of(self.columns_of_grid.range)

    @property
    def numbers(self) -> list[str]:
        """Names of the arguments, besides sizes, by which a block finds its tile."""
        return ["heads", *["together"] * self.from_end()]

    def together(self, streamed: str) -> str:
        """How many heads have their tiles in one order: several where a multiprocessor has few, and the end counts."""
        return f"{super().together(streamed)} if blocks < {MANY} * most else 1"

    @property
    def beside(self) -> int:
        """Tiles of columns."""
        return -(-self.setting.sizes[self.columns_of_grid.range.dim] // self.right.pitch)

    @property
    def streamed_words(self) -> int:
        """Words of a row of the matrix, all of whose columns the blocks of a head stream, in whole tiles."""
        return self.beside * self.right.pitch

    def within_tile(self, body: list[st.Statement]) -> list[st.Statement]:
        """The statements of a role, behind those that find the head, the tile, and the parts that are streamed."""
        low, high = self.scope.limits()
        end = high * self.parts
        if not self.setting.even:  # parts beyond all terms are none
            end = minimum(end, call("cdiv", self.setting.size(self.plan.loop.range.dim), self.right.rows))
        if self.turned and self.setting.mask is not None and not self.setting.strides.of:
            end = maximum(end, low * self.parts)  # keys may have no query; who gives strides leaves these out
        return super().within_tile([*self.opened(low * self.parts, end), *body])

    def opened(self, low: Term, high: Term) -> list[st.Statement]:
        """The statements that find which parts of terms a tile has."""
        return [st.Let(("first", "end"), (low, high), "parts of terms")]

    def counted(self) -> list[st.Statement]:
        """The statements that count the tiles of both sides of a head."""
        return [
            st.Let(("tiles", "wide"), (self.scope.count(self.plan.own), self.scope.count(self.columns_of_grid.range)))
        ]

    @property
    def of_head(self) -> Term:
        """The number of tiles of a head."""
        return term("tiles") * "wide"

    def placed(self, own: Term) -> list[st.Statement]:
        """The statements that find the head and the tile of a number of the grid."""
        (number, column), place, wide = self.named_tile, term("place"), term("wide")
        if self.from_end():
            found = st.Let((number.id, column.id), (place // wide, place % wide))
            return [*longest_first("place", own, self.of_head), found]
        side, note = minimum(term("tiles") - term("group") * GROUP, GROUP), "tiles of rows that share columns in L2"
        head = st.Let(("head", "place"), (own // self.of_head, own % self.of_head))
        return [head, *in_groups((number.id, column.id), place, Number(GROUP) * "wide", GROUP, side, note)]

    def fills(self) -> Term:
        """How many slots of the ring are filled for a tile, and how many its result goes through."""
        return self._sent_at(self.sends)

    @property
    def sends(self) -> int:
        """Slots through which the result goes: one for each warpgroup, if the copy engine takes it."""
        return self.plan.warpgroups * bool(self.plan.outgoing)

    def _sent_at(self, number: Any) -> Term:
        """The turn of the slot through which a warpgroup's result goes."""
        return term("end") - "first" + number

    def place(self, part: Term) -> Items:
        """Where a part of the table is among the rows of all its tiles."""
        terms, within = part // self.parts, part % self.parts * self.right.rows
        tile = (terms, self.number) if self.turned else (self.number, terms)
        begin = self.in_table(self.left.read.tensor, *tile)
        return Items((begin + within, ZERO) if self.turned else (begin, within))

    # Shared memory, and the warp that loads

    def allocated(self) -> list[st.Room]:
        """The statements that take shared memory: a ring of parts."""
        barriers = st.Barriers(("full", "free"), self.plan.stages, (1, self.plan.warpgroups), "full")
        return [*super().allocated(), barriers]

    def loading(self) -> list[st.Statement]:
        """The statements of the warp that loads: one part after the other."""
        k, slot, full = term("k"), Name("slot"), filled("", "slot")
        part = term("first") + "end" - 1 - k if self.from_end() else k
        free, left = st.Wait(freed("", slot), term("phase") ^ 1), self.left

        def brought(number: int) -> list[st.Statement]:
            copies = [self.copy(each, slot, part, self.named_tile[1]) for each in self.rights[:number]]
            return [free, *expecting(full, [self.copied(left.read, left.name, slot, self.place(part), full), *copies])]

        body = (self.scope.slot(k - "first"), *self._of_those_that_exist(brought))
        handed = (self.scope.slot(self._sent_at("k")), free, st.Arrive(full))
        send = st.For("k", ZERO, Number(self.sends), handed)
        return [st.For("k", term("first"), term("end"), body, of=self.nest.inner), *[send] * (self.sends > 0)]

    def from_end(self) -> bool:
        """Whether parts come from the last to the first: where all sums end with the same terms, as those of keys do
        under a causal mask, blocks that begin together stream the same words at the same time, and these are in L2."""
        mask, loop = self.scope.mask, self.plan.loop
        of_keys = loop.when is not None and loop.when.rows is loop.range and len(loop.body) == 1
        return of_keys and mask is not None and mask.after is not None and mask.before is None

    # Products

    def fused(self, outer: ir.Loop, inner: ir.Loop) -> None:
        """Parts one after the other, with nothing between them: a product runs while the next one is issued."""
        self.say(*self._of_those_that_exist(lambda number: self._in_a_row(inner, number)))

    def _of_those_that_exist(self, made: Callable[[int], list[st.Statement]]) -> list[st.Statement]:
        """Statements for the first parts of a tile's columns, so many of them: of the last tile, those that exist."""
        columns = self.setting.sizes[self.columns_of_grid.range.dim] - (self.beside - 1) * self.right.pitch
        whole, some = len(self.rights), -(-columns // self.right.width)
        if some >= whole or len(self.plan.loop.body) > 1:
            return made(whole)
        if self.beside == 1:
            return made(some)
        return [st.When(self.named_tile[1].equals(self.beside - 1), tuple(made(some)), tuple(made(whole)))]

    def _in_a_row(self, inner: ir.Loop, number: int) -> list[st.Statement]:
        """The products of all parts of terms with the first parts of the columns, so many of these."""
        *made, free = self._through(term("first"), term("end"), inner, number)
        return [*made, st.When(term("first") < "end", (free,))]

    def _through(
        self, low: Term, high: Term, of: ir.Loop | None = None, number: int | None = None
    ) -> tuple[st.Statement, ...]:
        """Parts of terms, each of which waits for the products of the one before; then wait for the last ones."""
        rows, to = (term("w") * ROWS, ROWS), tuple(map(self.issued_all, self.nest.products))[:number]
        left = Name(self.left.name).index("slot")
        left = left.call("slice", *rows, dim=1).turned() if self.turned else left.call("slice", *rows)
        pairs, line = zip(to, self.rights[:number], strict=True), self.nest.product.line
        issues = (st.Issue(each, left, right.slot("slot"), each, line=line) for each, right in pairs)
        issued = self.scope.slot(term("k") - "first"), st.Wait(filled("", "slot"), Name("phase")), *issues

        def free(part: Term) -> st.Statement:
            return st.Arrive(freed("", (term("filled") + part - "first" - 1) % self.plan.stages))

        body = (*issued, st.Settle(to, len(to)), st.When(term("k") > low, (free(term("k")),)))
        return st.For("k", low, high, body, of=of), st.Settle(to, 0), free(high)

    def loop(self, node: ir.Loop) -> None:
        """Tiles of terms; the last, if it is ragged, has fewer parts."""
        self.special = {self.nest.inner: self._of_tile}
        low, high = self.scope.limits()
        self.over(node, Piece(low, high))

    def _of_tile(self) -> None:
        """The parts that there are of a tile of terms."""
        low = self.scope.numbers[self.plan.loop.range] * self.parts
        high = low + self.parts if self.setting.even else minimum(low + self.parts, "end")
        self.say(st.Let(("k_first", "k_end"), (low, high)), *self._through(Name("k_first"), Name("k_end")))

    # Sums, in float32 in memory from one part to the next: threads have whole sectors of them

    def read(self, node: ir.Read) -> None:
        """Read what the sums are added to, with their layout."""
        if node.tensor not in self.setting.onto:
            super().read(node)
            return
        layout = self.layout_of(node.tile.ranges)
        place, where = self.entries_at(node.tensor, node.tile.ranges, layout)
        self.bring(node, place, where)

    def layout_of(self, ranges: ir.Ranges) -> Layout:
        """The layout of the sums of a warpgroup."""
        return self.scope.layout(self.scope.length(ranges[1]))

    def columns_before(self, columns: ir.Range, width: int) -> tuple[Term | None, int]:
        """Columns before those of a tile: of the block's tile of columns, and of parts of it."""
        first, pitch = columns_of_part(columns), self.right.pitch
        before = self.named_tile[1] * pitch
        wide = -(-self.setting.sizes[columns.dim] // pitch) * pitch
        return before + first if first else before, wide

    def store(self, node: ir.Write | ir.Init, at: ir.Range | None, value: Term) -> None:
        """Hand the sums to the copy engine in a slot that all products are done with, if they are not in float32."""
        result = next((each for each in self.plan.outgoing if each.write is node), None)
        if result is None or not isinstance(node, ir.Write):
            place, where = self.entries_at(node.tensor, ir.moved_part(node), self.layout_of(ir.moved_part(node)))
            self.say(st.Store(node.tensor, place, value, where, line=node.line))
            return
        right = next(each for each in self.rights if each.name == result.name)
        tensor, box = node.tensor, result.box
        sent: Term = Name(result.name).index("slot")
        room = sent.reshape(*box)
        if self.setting.strides.several(tensor) != self.setting.strides.several(self.right.read.tensor):
            sent = sent.reshape(*sides(self.setting, tensor, box))
        column = self.named_tile[1] * right.pitch
        place = self.at(node, term("part") * ROWS, column + right.first if right.first else column)
        if result is self.plan.outgoing[0]:
            self.say(self.scope.slot(self._sent_at("w")), st.Wait(filled("", "slot"), Name("phase")))
        self.say(*st.put(room, self.values.in_words(value)))
        self.say(st.Send(f"{tensor.name}_tiles", place, sent, line=node.line))
        if result is self.plan.outgoing[-1]:
            self.say(st.Sent(), st.Arrive(freed("", "slot"), self.plan.warpgroups))
