"""Gluon kernels of products with a table of pairs: tiles of the table and of a matrix are streamed past sums that stay.

A block has a tile of the result, and each warpgroup 64 of its rows. Parts of the terms, `c` each, are a ring: words of
the table, and of the matrix. What a loop over tiles of terms does beside its products, such as rescaling the sums, is
done by one warpgroup while the products of another run. The result goes through the slots of the ring, which are free
by then, and the copy engine writes it.
"""

from __future__ import annotations

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon_block import ROWS, Block, Buffer, filled, freed
from pebblesim.kernels.gluon_boxes import sides
from pebblesim.kernels.gluon_parts import PartsRoles
from pebblesim.kernels.gluon_roles import expecting
from pebblesim.kernels.terms import (
    ZERO,
    Held,
    Items,
    Name,
    Number,
    Term,
    all_of,
    call,
    maximum,
    minimum,
    term,
    total,
)
from pebblesim.kernels.triton_grid import in_groups, longest_last
from pebblesim.kernels.triton_loops import Piece
from pebblesim.kernels.triton_ranges import GROUP, Setting
from pebblesim.language import program as ir


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
        self.reserve("full", "free", "first", "end", "wide", "group", "rank")
        self.named_tile = self.number, self.scope.number_of(self.columns_of_grid.range)

    @property
    def numbers(self) -> list[str]:
        """Parameters for numbers of heads: none, for heads are an axis of the grid."""
        return []

    def within_tile(self, body: list[st.Statement]) -> list[st.Statement]:
        """The statements of a role, behind those that find the head, the tile, and the parts that are streamed."""
        scope, plan, own, tiles = self.scope, self.plan, call("program_id", 0), term("tiles")
        rows, columns = scope.launch.grid[0], self.columns_of_grid
        made = [*scope.opening(), st.Let(("head",), (call("program_id", 1),)), *self.split_head()]
        made.append(st.Let(("tiles", "wide"), (scope.count(plan.own), scope.count(columns.range))))
        number, column = self.named_tile
        side, note = minimum(tiles - term("group") * GROUP, GROUP), "tiles of rows that share columns in L2"
        made += in_groups((number.id, column.id), own, Number(GROUP) * "wide", GROUP, side, note)
        if longest_last(scope.launch, rows, scope.mask):
            made.append(st.Let((number.id,), (tiles - 1 - number,)))
        low, high = self.scope.limits()
        end = high * self.parts
        if not self.setting.even:  # parts beyond all terms are none
            end = minimum(end, call("cdiv", self.setting.size(plan.loop.range.dim), self.right.rows))
        return [*made, st.Let(("first", "end"), (low * self.parts, end), "parts of terms"), *body]

    def place(self, part: Term) -> Items:
        """Where a part of the table is among the rows of all its tiles."""
        terms, within = part // self.parts, part % self.parts * self.right.rows
        tile = (terms, self.number) if self.turned else (self.number, terms)
        begin = self.in_table(self.left.read.tensor, *tile)
        return Items((begin + within, ZERO) if self.turned else (begin, within))

    # Shared memory, and the warp that loads

    def grid(self) -> tuple[list[str], str]:
        """The grid: tiles of columns are in it, too."""
        setting, plan = self.setting, self.plan
        wide = -(-setting.sizes[self.columns_of_grid.range.dim] // self.right.pitch)
        return [], f"triton.cdiv({setting.size(plan.own.dim)}, {plan.height})" + f" * {wide}" * (wide > 1) + ", heads"

    def allocated(self) -> list[st.Room]:
        """The statements that take shared memory: a ring of parts."""
        barriers = st.Barriers(("full", "free"), self.plan.stages, (1, self.plan.warpgroups), "full")
        return [*super().allocated(), barriers]

    def loading(self) -> list[st.Statement]:
        """The statements of the warp that loads: one part after the other."""
        k, slot, full = term("k"), Name("slot"), filled("", "slot")
        part = term("first") + "end" - 1 - k if self.from_end() else k
        copies: list[st.Statement] = [
            self.copied(self.left.read, self.left.name, slot, self.place(part), full),
            *(self.copy(each, slot, part, self.named_tile[1]) for each in self.rights),
        ]
        free = st.Wait(freed("", slot), term("phase") ^ 1)
        body = (self.scope.slot(k - "first"), free, *expecting(full, copies))
        return [st.For("k", term("first"), term("end"), body, of=self.nest.inner)]

    def from_end(self) -> bool:
        """Whether parts come from the last to the first: where all sums end with the same terms, as those of keys do
        under a causal mask, blocks that begin together stream the same words at the same time, and these are in L2."""
        mask, loop = self.scope.mask, self.plan.loop
        of_keys = loop.when is not None and loop.when.rows is loop.range and len(loop.body) == 1
        return of_keys and mask is not None and mask.after is not None and mask.before is None

    # Products

    def fused(self, outer: ir.Loop, inner: ir.Loop) -> None:
        """Parts one after the other, with nothing between them: a product runs while the next one is issued."""
        stages, turn = self.plan.stages, term("k") - "first"
        to, issued = self._issued(turn)
        earlier = st.When(term("k") > "first", (st.Arrive(freed("", (turn - 1) % stages)),))
        body = (*issued, st.Settle(to, len(to)), earlier)
        last = st.Arrive(freed("", (term("end") - "first" - 1) % stages))
        self.say(st.For("k", term("first"), term("end"), body, of=inner), st.Settle(to, 0))
        self.say(st.When(term("first") < "end", (last,)))

    def loop(self, node: ir.Loop) -> None:
        """Tiles of terms; the last, if it is ragged, apart: it has fewer parts."""
        (low, high), size = self.scope.limits(), self.setting.size(node.range.dim)
        made, terms = [Piece(low, high)], self.parts * self.right.rows
        if not self.setting.even:
            made = [Piece(low, minimum(high, size // terms)), Piece(maximum(low, size // terms), high)]
        for piece, ragged in zip(made, (False, True), strict=False):
            self.special = {self.nest.inner: self._of_ragged_tile if ragged else self._of_tile}
            self.over(node, piece)

    def _of_tile(self) -> None:
        """The parts of a tile of terms."""
        number = self.scope.numbers[self.plan.loop.range]
        to, issued = self._issued(number * self.parts - "first" + "k")
        self.one_behind(to, "", self.parts, issued)

    def _of_ragged_tile(self) -> None:
        """The parts that there are of a tile of terms."""
        number = self.scope.numbers[self.plan.loop.range]
        to, issued = self._issued(term("k") - "first")
        body = (*issued, st.Settle(to, 0), st.Arrive(freed("", "slot")))
        self.say(st.For("k", number * self.parts, term("end"), body, of=self.nest.inner))

    def _issued(self, turn: Term) -> tuple[tuple[Held, ...], list[st.Statement]]:
        """Wait for a part, and issue its products: the sums, and the statements."""
        rows, to = (term("w") * ROWS, ROWS), tuple(map(self.issued_all, self.nest.products))
        left = Name(self.left.name).index("slot")
        left = left.call("slice", *rows, dim=1).turned() if self.turned else left.call("slice", *rows)
        pairs, line = zip(to, self.rights, strict=True), self.nest.product.line
        issues = (st.Issue(each, left, right.slot("slot"), each, line=line) for each, right in pairs)
        return to, [self.scope.slot(turn), st.Wait(filled("", "slot"), Name("phase")), *issues]

    def store(self, node: ir.Write | ir.Init, at: ir.Range | None, value: Term) -> None:
        """Hand the sums to the copy engine in a slot that all products are done with, or store what threads hold."""
        results: dict[ir.Node, Buffer] = dict(zip(self.plan.writes, self.rights, strict=True))
        right, slots, tensor = results.get(node), self.plan.stages, node.tensor
        if right is None or not isinstance(node, ir.Write):
            super().store(node, at, value)
            return
        column = self.named_tile[1] * right.pitch
        column = column + right.first if right.first else column
        result = next((each for each in self.plan.outgoing if each.write is node), None)
        if result is None:
            self._store_wide(node, column, value)
            return
        sent: Term = Name(result.name).index("w")
        room = sent.reshape(*result.box)
        if self.setting.strides.several(tensor) != self.setting.strides.several(self.right.read.tensor):
            sent = sent.reshape(*sides(self.setting, tensor, result.box))
        times = maximum(term("end") - "first" - "w" + (slots - 1), 0) // slots
        self.say(
            st.Let(("filled",), (times,), "times that slot w was"),
            st.Wait(freed("", "w"), (term("filled") & 1) ^ 1),
            *st.put(room, self.values.in_words(value)),
            st.Send(f"{tensor.name}_tiles", self.at(node, term("part") * ROWS, column), sent, line=node.line),
            st.Sent(),
        )

    def _store_wide(self, node: ir.Write, column: Term, value: Term) -> None:
        """Store sums in float32 as threads hold them: four of them have a sector next to each other."""
        rows_of, columns_of = node.tile.ranges
        width, length = self.right.width, self.setting.size(columns_of.dim)
        layout = self.scope.layout(width)
        rows, columns = (Name(self.scope.names.new(name)) for name in ("down", "across"))
        down, across = (
            call("arange", 0, side, call("SliceLayout", 1 - axis, layout)) for axis, side in enumerate((ROWS, width))
        )
        self.say(st.Let((rows.id,), (term("part") * ROWS + down,)), st.Let((columns.id,), (column + across,)))
        at_rows, at_columns = rows.along("[:, None]"), columns.along("[None, :]")
        inside = [at_rows < self.setting.size(rows_of.dim)] if self.scope.ragged(rows_of) else []
        inside += [at_columns < length] if self.setting.sizes[columns_of.dim] % self.right.pitch else []
        places = [at_rows * length]
        if node.tensor in self.setting.strides.of:
            places = self.setting.strides.places_of(node.tensor, rows)
        place = total([Name(self.setting.of[node.tensor]), *places, at_columns])
        self.say(st.Store(node.tensor, place, value, all_of(inside), line=node.line))
