"""Gluon kernels of products with a table of pairs: tiles of the table and of a matrix are streamed past sums that stay.

A block has a tile of the result, and each warpgroup 64 of its rows. Parts of the terms, `c` each, are a ring: words of
the table, and of the matrix. What a loop over tiles of terms does beside its products, such as rescaling the sums, is
done by one warpgroup while the products of another run. The result goes through the slots of the ring, which are free
by then, and the copy engine writes it.
"""

from __future__ import annotations

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon.block import ROWS, Block, filled, freed
from pebblesim.kernels.gluon.boxes import sides
from pebblesim.kernels.gluon.parts import PartsRoles
from pebblesim.kernels.gluon.roles import expecting
from pebblesim.kernels.gluon.widths import columns_of_part
from pebblesim.kernels.terms import ZERO, Held, Items, Layout, Name, Number, Term, call, maximum, minimum, term
from pebblesim.kernels.triton.grid import in_groups, longest_last
from pebblesim.kernels.triton.loops import Piece
from pebblesim.kernels.triton.ranges import GROUP, Setting
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
        slots, tensor, box = self.plan.stages, node.tensor, result.box
        sent: Term = Name(result.name).index("w")
        room = sent.reshape(*box)
        if self.setting.strides.several(tensor) != self.setting.strides.several(self.right.read.tensor):
            sent = sent.reshape(*sides(self.setting, tensor, box))
        times = maximum(term("end") - "first" - "w" + (slots - 1), 0) // slots
        column = self.named_tile[1] * right.pitch
        place = self.at(node, term("part") * ROWS, column + right.first if right.first else column)
        self.say(
            st.Let(("filled",), (times,), "times that slot w was"),
            st.Wait(freed("", "w"), (term("filled") & 1) ^ 1),
            *st.put(room, self.values.in_words(value)),
            st.Send(f"{tensor.name}_tiles", place, sent, line=node.line),
            st.Sent(),
        )
