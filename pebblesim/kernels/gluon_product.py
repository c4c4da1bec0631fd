"""Gluon kernels of products with a table of pairs: tiles of the table and of a matrix are streamed past sums that stay.

A block has a tile of the result, and each warpgroup 64 of its rows. Parts of the terms, `c` each, are a ring: words of
the table, and of the matrix. What a loop over tiles of terms does beside its products, such as rescaling the sums, is
done by one warpgroup while the products of another run. The result goes through the slots of the ring, which are free
by then, and the copy engine writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon_additions import ROWS
from pebblesim.kernels.gluon_boxes import Box, several, sides
from pebblesim.kernels.gluon_plan import MOST_WARPGROUPS, SHARED, WIDEST, Block, Nest, nested
from pebblesim.kernels.gluon_roles import Roles, expecting
from pebblesim.kernels.storage import padded
from pebblesim.kernels.terms import ZERO, Group, Held, Items, Name, Number, Term, call, is_zero, maximum, minimum, term
from pebblesim.kernels.triton_grid import in_groups, longest_last
from pebblesim.kernels.triton_loops import Piece
from pebblesim.kernels.triton_ranges import GROUP, Setting
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

SLOTS = 4
"""Slots of the ring: two tiles of 128 terms, in parts of 64, so that warpgroups need not go in step."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Product(Block):
    """A block that multiplies a table of pairs.

    Attributes:
        columns: the range of the grid over columns of the result.
        nest: the loops over tiles of terms, and over their parts.
        table, matrix: those that read a part of the table, and of the matrix.
        result: the one that writes the sums.
        tall, wide: sides of a tile of the table in memory.
        width: columns of the result.
        deep: terms of a part.
    """

    columns: ir.Range
    nest: Nest
    table: ir.Read
    matrix: ir.Read
    result: ir.Write
    tall: int
    wide: int
    width: int
    deep: int

    @property
    def across(self) -> int:
        """Columns of the tiles that vectors of rows meet."""
        return self.width

    @property
    def turned(self) -> bool:
        """Whether the table is multiplied transposed."""
        return self.nest.expr.left.transposed

    @property
    def parts(self) -> int:
        """Parts of a tile of terms."""
        return (self.tall if self.turned else self.wide) // self.deep

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot of the ring, of words of 16 bits."""
        return 2 * (ROWS * self.warpgroups + self.width) * self.deep


def product_of(launch: Launch, sizes: ir.Sizes, tiled: Mapping[ir.Tensor, tuple[int, int]]) -> Product | None:
    """The plan of a launch that multiplies a table kept in tiles; None if it is no such launch."""
    nest, results = nested(launch), [node for node in launch.block if isinstance(node, ir.Write)]
    if nest is None or len(launch.grid) != 2 or len(results) != 1 or len(nest.reads) != 2:
        return None
    (own, columns), (table, matrix), product = (each.range for each in launch.grid), nest.reads, nest.product
    expr, tile = nest.expr, tiled.get(table.tensor)
    operands = expr.left.tile, expr.right.tile, expr.right.transposed, product.target.ranges
    if operands != (table.tile, matrix.tile, False, (own, columns)) or results[0].tile is not product.target.tile:
        return None
    if tile is None or nest.inner.range.parent is not nest.loop.range:
        return None
    block, width, deep = padded(own, sizes), padded(columns, sizes), padded(nest.inner.range, sizes)
    rows, terms = tile[:: -1 if expr.left.transposed else 1]
    odd = block % ROWS or block // ROWS > MOST_WARPGROUPS or not 64 <= width <= WIDEST or deep != ROWS
    if odd or (rows, terms) != (block, padded(nest.loop.range, sizes)):
        return None
    made = Product(
        launch=launch,
        own=own,
        loop=nest.loop,
        warpgroups=block // ROWS,
        stages=2,
        columns=columns,
        nest=nest,
        table=table,
        matrix=matrix,
        result=results[0],
        tall=tile[0],
        wide=tile[1],
        width=width,
        deep=deep,
    )
    slots = min(SLOTS, SHARED // (made.slot_bytes + 16))
    return replace(made, stages=slots) if slots >= made.warpgroups else None


class ProductRoles(Roles):
    """Makes the statements of both roles."""

    plan: Product

    def __init__(self, setting: Setting, plan: Product) -> None:
        super().__init__(setting, plan)
        names = self.scope.names
        self.left, self.right = (names.new(f"{each.tensor.name}_part") for each in (plan.table, plan.matrix))
        self.reserve("full", "free", "slot", "phase", "last", "first", "end", "wide", "k", "group", "rank")
        self.named_tile = self.number, self.column

    @property
    def numbers(self) -> list[str]:
        """Parameters for numbers of heads: none, for heads are an axis of the grid."""
        return []

    @property
    def column(self) -> Name:
        """The number of its tile of columns."""
        return self.scope.number_of(self.plan.columns)

    def within_tile(self, body: list[st.Statement]) -> list[st.Statement]:
        """The statements of a role, behind those that find the head, the tile, and the parts that are streamed."""
        scope, plan, own, tiles = self.scope, self.plan, call("program_id", 0), term("tiles")
        rows, columns = scope.launch.grid
        made = [*scope.opening(), st.Let(("head",), (call("program_id", 1),)), *self.split_head()]
        made.append(st.Let(("tiles", "wide"), (scope.count(plan.own), scope.count(columns.range))))
        number, column = self.named_tile
        side, note = minimum(tiles - term("group") * GROUP, GROUP), "tiles of rows that share columns in L2"
        made += in_groups((number.id, column.id), own, Number(GROUP) * "wide", GROUP, side, note)
        if longest_last(scope.launch, rows, scope.mask):
            made.append(st.Let((number.id,), (tiles - 1 - number,)))
        low, high = self.limits()
        end = Group(high) * plan.parts if plan.parts > 1 else high
        if not self.setting.even:  # parts beyond all terms are none
            end = minimum(end, call("cdiv", self.setting.size(plan.loop.range.dim), plan.deep))
        first = low if is_zero(low) else Group(low) * plan.parts
        return [*made, st.Let(("first", "end"), (first, end), "parts of terms"), *body]

    def place(self, part: Term) -> Items:
        """Where a part of the table is among the rows of all its tiles."""
        plan, terms, within = self.plan, part // self.plan.parts, part % self.plan.parts * self.plan.deep
        begin = self.in_table(plan.table.tensor, *((terms, self.number) if plan.turned else (self.number, terms)))
        return Items((begin + within, ZERO) if plan.turned else (begin, within))

    # Shared memory, and the warp that loads

    @property
    def boxes(self) -> Mapping[ir.Tensor, Box]:
        """The boxes of the tensors that the copy engine moves."""
        plan = self.plan
        table = (plan.deep, plan.wide) if plan.turned else (plan.tall, plan.deep)
        matrix, result = (plan.deep, plan.width), (ROWS, plan.width)
        return {plan.table.tensor: table, plan.matrix.tensor: matrix, plan.result.tensor: result}

    def grid(self) -> tuple[list[str], str]:
        """The grid: tiles of columns are in it, too."""
        setting, plan = self.setting, self.plan
        wide = -(-setting.sizes[plan.columns.dim] // plan.width)
        return [], f"triton.cdiv({setting.size(plan.own.dim)}, {plan.height})" + f" * {wide}" * (wide > 1) + ", heads"

    def allocated(self) -> list[st.Room]:
        """The statements that take shared memory: a ring of parts."""
        plan, operands = self.plan, ((self.left, self.plan.table), (self.right, self.plan.matrix))
        rooms = [self.room(name, plan.stages, node, "a ring") for name, node in operands]
        return [*rooms, st.Barriers(("full", "free"), plan.stages, (1, plan.warpgroups), "full")]

    def loading(self) -> list[st.Statement]:
        """The statements of the warp that loads: one part after the other."""
        plan, k, slot, full = self.plan, term("k"), Name("slot"), Name("full").index("slot")
        terms = self.at(plan.matrix, k * plan.deep, self.column * plan.width)
        copies: list[st.Statement] = [
            self.copied(plan.table, self.left, slot, self.place(k), full),
            self.copied(plan.matrix, self.right, slot, terms, full),
        ]
        free = st.Wait(Name("free").index(slot), term("phase") ^ 1)
        body = (self.slot_of(Group(k - "first")), free, *expecting(full, copies))
        return [st.For("k", term("first"), term("end"), body, of=plan.nest.inner)]

    # Products

    def fused(self, outer: ir.Loop, inner: ir.Loop) -> None:
        """Parts one after the other, with nothing between them: a product runs while the next one is issued."""
        stages, turn, free = self.plan.stages, term("k") - "first", Name("free")
        to, issued = self._issued(turn)
        earlier = st.When(term("k") > "first", (st.Arrive(free.index((turn - 1) % stages)),))
        body = (*issued, st.Settle((to,), 1), earlier)
        last = st.Arrive(free.index((term("end") - "first" - 1) % stages))
        self.say(st.For("k", term("first"), term("end"), body, of=inner), st.Settle((to,), 0))
        self.say(st.When(term("first") < "end", (last,)))

    def loop(self, node: ir.Loop) -> None:
        """Tiles of terms; the last, if it is ragged, apart: it has fewer parts."""
        (low, high), size = self.limits(), self.setting.size(node.range.dim)
        made, terms = [Piece(low, high)], self.plan.parts * self.plan.deep
        if not self.setting.even:
            made = [Piece(low, minimum(high, size // terms)), Piece(maximum(low, size // terms), high)]
        for piece, ragged in zip(made, (False, True), strict=False):
            self.special = {self.plan.nest.inner: self._of_ragged_tile if ragged else self._of_tile}
            self.over(node, piece)

    def _of_tile(self) -> None:
        """The parts of a tile of terms."""
        plan, number = self.plan, self.scope.numbers[self.plan.loop.range]
        to, issued = self._issued(number * plan.parts - "first" + "k")
        self.one_behind(to, "free", "k", plan.parts, issued)

    def _of_ragged_tile(self) -> None:
        """The parts that there are of a tile of terms."""
        plan, number = self.plan, self.scope.numbers[self.plan.loop.range]
        to, issued = self._issued(term("k") - "first")
        body = (*issued, st.Settle((to,), 0), st.Arrive(Name("free").index("slot")))
        self.say(st.For("k", number * plan.parts, term("end"), body, of=plan.nest.inner))

    def _issued(self, turn: Term) -> tuple[Held, list[st.Statement]]:
        """Wait for a part, and issue its product: the sums, and the statements."""
        plan, rows, to = self.plan, (term("w") * ROWS, ROWS), self.issued_all(self.plan.nest.product)
        left = Name(self.left).index("slot")
        left = left.call("slice", *rows, dim=1).turned() if plan.turned else left.call("slice", *rows)
        right = Name(self.right).index("slot").reshape(plan.deep, plan.width)
        full = st.Wait(Name("full").index("slot"), Name("phase"))
        return to, [self.slot_of(Group(turn)), full, st.Issue(to, left, right, to, line=plan.nest.product.line)]

    def store(self, node: ir.Write | ir.Init, at: ir.Range | None, value: Term) -> None:
        """Hand the sums to the copy engine in a slot that all products are done with."""
        if node is not self.plan.result:
            super().store(node, at, value)
            return
        slots, tensor, width = self.plan.stages, node.tensor, self.plan.width
        sent: Term = Name(self.right).index("w")
        room = sent.reshape(ROWS, width)
        if several(self.setting, tensor) != several(self.setting, self.plan.matrix.tensor):
            sent = sent.reshape(*sides(self.setting, tensor, self.boxes[tensor]))
        filled = maximum(term("end") - "first" - "w" + (slots - 1), 0) // slots
        place = self.at(node, term("part") * ROWS, self.column * width)
        self.say(
            st.Let(("filled",), (filled,), "times that slot w was"),
            st.Wait(Name("free").index("w"), Group(term("filled") & 1) ^ 1),
            *st.put(room, self.values.in_words(value)),
            st.Send(f"{tensor.name}_tiles", place, sent, line=node.line),
            st.Sent(),
        )
