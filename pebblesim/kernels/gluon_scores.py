"""Gluon kernels of tables of pairs: rows stay in shared memory, keys are streamed, each tile of scores goes to memory.

A tile of scores is a sum over parts of the rows, `c` columns each: the rows that stay are in as many buffers, and parts
of keys are a ring. Where a ring leaves no room for all rows, the first parts stay in registers. A warpgroup has 64 rows
of each tile, works its entries out in registers, and hands them to the copy engine, which writes them while the
next tile's products run. Entries of another table that take part in that are fetched before, one tile ahead. Each
warpgroup begins when the one before has issued most of its first products: then one takes exponentials while the
products of another run, which a ring of a whole tile allows. The tables are as other kernels of the file read them,
tile by tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon_additions import ROWS, filled, freed
from pebblesim.kernels.gluon_boxes import Box
from pebblesim.kernels.gluon_plan import SHARED, THREADS, Block, Buffer, Nest, check_block, nested, refused
from pebblesim.kernels.gluon_roles import Roles, expecting
from pebblesim.kernels.statements import Program
from pebblesim.kernels.terms import NOTHING, ZERO, Choice, Group, Items, Name, Number, Term, both, call, only, term
from pebblesim.kernels.triton_loops import Piece
from pebblesim.kernels.triton_ranges import Setting
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch


@dataclass(frozen=True, eq=False, kw_only=True)
class Scores(Block):
    """A block that writes rows of a table of pairs.

    Attributes:
        nest: the loops over tiles, and over parts of a sum.
        rows: the primitive that reads the rows that stay.
        table: the one that writes a tile of the table.
        before: the one that reads a tile of another table, if any.
        width: columns of a tile of the table.
        deep: terms of a sum that a part has.
        parts: parts of a sum.
    """

    nest: Nest
    rows: ir.Read
    table: ir.Write
    before: ir.Read | None
    width: int
    deep: int
    parts: int

    @property
    def stay(self) -> Buffer:
        """The rows that stay: those of their parts that are in shared memory."""
        return self.buffers[self.rows.tile]

    @property
    def ring(self) -> Buffer:
        """The parts of keys."""
        return self.buffers[self.nest.reads[0].tile]

    @property
    def held(self) -> int:
        """How many of the rows' parts are in shared memory; those before them are in registers."""
        return self.stay.slots

    @property
    def kept(self) -> int:
        """How many of the rows' parts stay in registers."""
        return self.parts - self.held

    @property
    def turns(self) -> int:
        """The part of a first tile whose product a warpgroup issues before the next one begins."""
        return max(3 * self.parts // 4, 1) - 1

    @property
    def tiles(self) -> int:
        """Tiles of the table in shared memory, each of the rows of a warpgroup."""
        return self.warpgroups * (1 if self.before is None else 2)

    def less(self, beyond: int) -> Scores:
        """The plan with so many bytes less of rows in shared memory, if registers have room for them."""
        kept = min(max(0, -(-beyond // (2 * self.height * self.deep))), self.parts - 1)
        registers = ROWS * (kept * self.deep // 2 + self.width) // THREADS  # two words of rows in each
        if not kept or registers > self.most:
            return self
        held = self.parts - kept
        stay = replace(self.stay, slots=held, fills=held, freed_by=self.warpgroups)
        return replace(self, buffers={**self.buffers, self.rows.tile: stay})


def scores(launch: Launch, sizes: ir.Sizes, stages: int) -> Scores | None:
    """The plan of a launch that writes rows of a table; None if it is no such launch."""
    nest = nested(launch)
    if nest is None or len(launch.grid) != 1 or len(nest.reads) != 1:
        return None
    own, loop, (part,), (left, right) = launch.grid[0].range, nest.loop, nest.reads, (nest.expr.left, nest.expr.right)
    tables = [node for node in loop.body if isinstance(node, ir.Write) and ir.over_pairs(node.tile.ranges)]
    before = [node for node in loop.body if isinstance(node, ir.Read) and ir.over_pairs(node.tile.ranges)]
    rows = [node for node in launch.block if isinstance(node, ir.Read) and node.tile is left.tile]
    turned = left.transposed or not right.transposed or right.tile is not part.tile
    if len(tables) != 1 or len(before) > 1 or not rows or turned:
        return None
    if left.ranges != (own, nest.inner.range) or nest.product.target.tile.ranges[0] is not own:
        return None
    deep, width = ir.length(nest.inner.range.block, sizes), ir.length(loop.range.block, sizes)
    groups, parts = ir.length(own.block, sizes) // ROWS, -(-sizes[nest.inner.range.dim] // deep)
    names = [f"{each.tensor.name}_{rng.name}" for each, rng in ((rows[0], own), (part, loop.range))]
    stay = Buffer(names[0], rows[0], parts, ROWS * groups, deep, fills=parts, across=parts)
    ring = Buffer(names[1], part, stages, width, deep, True, fills=stages, freed_by=groups)
    return Scores(
        launch=launch,
        own=own,
        loop=loop,
        warpgroups=groups,
        stages=stages,
        buffers={rows[0].tile: stay, part.tile: ring},
        nest=nest,
        rows=rows[0],
        table=tables[0],
        before=before[0] if before else None,
        width=width,
        deep=deep,
        parts=parts,
    )


class ScoresRoles(Roles):
    """Makes the statements of both roles."""

    plan: Scores

    def __init__(self, setting: Setting, plan: Scores) -> None:
        check_block(setting.program, plan.own, setting.sizes, even=True)
        if plan.table.tensor not in setting.tables.tiled:
            raise refused(setting.program, f"line {plan.table.line} writes a table that is not kept tile by tile")
        super().__init__(setting, plan)
        self.room_of_tile = self.scope.names.new(f"{plan.table.tensor.name}_tile")
        self.plan = plan = plan.less(Program((), (), tuple(self.allocated())).shared - SHARED)
        self.held, self.ring = plan.stay.name, plan.ring.name
        self.reserve(f"{self.ring}_kept", f"{self.held}_kept")
        self.reserve(f"{self.room_of_tile}_full", "last", "slot", "phase", "sum", "turns")
        self.special = {plan.rows: self._hold, plan.nest.inner: self._sum}
        if plan.before is not None:
            self.special[plan.before] = self._take

    # Shared memory, and the warp that loads

    @property
    def boxes(self) -> Mapping[ir.Tensor, Box]:
        """The boxes of the tensors that the copy engine moves, with tiles of tables."""
        tables = (each.tensor for each in (self.plan.table, self.plan.before) if each)
        return {**super().boxes, **dict.fromkeys(tables, (ROWS, self.plan.width))}

    @property
    def streamed_words(self) -> int:
        """Words of a row of the keys."""
        return self.plan.parts * self.plan.deep

    def allocated(self) -> list[st.Room]:
        """The statements that take shared memory: rows that stay, the ring, tiles of tables, and turns."""
        plan, name = self.plan, self.room_of_tile
        return [
            *super().allocated(),
            self.room(name, plan.tiles, plan.table, "on its way to memory"),
            *[st.Barriers((f"{name}_full",), plan.tiles, (1,))] * (plan.before is not None),
            *[st.Barriers(("turns",), plan.warpgroups - 1, (1,))] * (plan.warpgroups > 1),
        ]

    def loading(self) -> list[st.Statement]:
        """The statements of the warp that loads: the rows that stay, and the parts of each tile of keys."""
        plan, k, slot = self.plan, term("k"), Name("slot")
        (low, high), at = self.limits(), Name(plan.loop.range.name)
        room = k % plan.held if plan.kept else k
        rows = self.copy(plan.stay, room, self.number * plan.height, k * plan.deep)
        stay = self.filling(plan.stay, room, k // plan.held & 1, [rows])
        keys = self.copy(plan.ring, slot, at * plan.width, k * plan.deep)
        part = [self.slot(at), *self.filling(plan.ring, slot, term("phase"), [keys])]
        parts = Number(plan.parts)
        stream = st.For("k", ZERO, parts, tuple(part), of=plan.nest.inner)
        return [st.For("k", ZERO, parts, tuple(stay)), Piece(low, high).loop(at.id, [stream], plan.loop)]

    # The warpgroups

    def slot(self, number: Term) -> st.Let:
        """The slot of the ring, and the phase of its barriers, for part k of a tile of keys."""
        return self.slot_of(Group(self.streamed_before(number) * self.plan.parts + "k"))

    def place(self, tensor: ir.Tensor, number: Term) -> Items:
        """The first row of the warpgroup's part of a tile among the rows of all tiles of a table."""
        return Items((self.in_table(tensor, self.number, number) + term("w") * ROWS, ZERO))

    def _hold(self) -> None:
        """Wait for the rows that stay; the first parts go on into registers, as the left operands of products."""
        plan, k, full = self.plan, term("k"), Name(f"{self.held}_full")
        slot, phase = (k % plan.held, k // plan.held & 1) if plan.kept else (k, ZERO)
        wait = st.Wait(full.index(slot), phase, line=plan.rows.line)
        if plan.kept:
            kept, layout = f"{self.held}_kept", call("DotOperandLayout", 0, self.scope.layout(plan.width), 2)
            loaded = Items((self._rows_of(slot).call("load", layout),), round=True)
            body = (wait, st.Let((kept,), (loaded,), more=True), st.Arrive(freed(self.held, slot)))
            self.say(st.Let((kept,), (Items((), round=True),), "in registers"))
            self.say(st.For("k", ZERO, Number(plan.kept), body, unrolled=True))
        self.say(st.For("k", Number(plan.kept), Number(plan.parts), (wait,), unrolled=True))

    def _rows_of(self, slot: Term) -> Term:
        """The warpgroup's rows of a part in shared memory."""
        return self.plan.stay.slot(slot).call("slice", term("w") * ROWS, ROWS)

    def loop(self, node: ir.Loop) -> None:
        """The tiles of keys; of another table the first tile is asked for before."""
        low, high = self.limits()
        if self.plan.before is not None:
            self.say(st.When(low < high, tuple(self._fetch(self.plan.before, low))))
        for piece in self.in_order(node):
            self.over(node, piece)
        self.say(st.Sent())

    def _fetch(self, node: ir.Read, number: Term) -> list[st.Statement]:
        """Ask for a tile of another table, once the copy engine has taken the tile that was there."""
        at, place = self._at(number), self.place(node.tensor, number)
        full = filled(self.room_of_tile, at)
        return [st.Sent(), *expecting(full, [self.copied(node, self.room_of_tile, at, place, full)])]

    def _at(self, number: Term) -> Term:
        """Where the warpgroup has its rows of a tile of the table."""
        w = term("w")
        return w if self.plan.before is None else Number(2) * w + Group(self.streamed_before(number) & 1)

    def _sum(self) -> None:
        """The products of all parts, one issued while the one before runs."""
        plan, number, k = self.plan, self.scope.numbers[self.plan.loop.range], term("k")
        to = self.issued_all(plan.nest.product)
        (low, high), last, turns = self.limits(), plan.warpgroups - 1, Name("turns")
        keys = plan.ring.slot("slot").turned()
        rows = self._rows_of(k % plan.held if plan.kept else k)
        rows = Choice(k < plan.kept, Name(f"{self.held}_kept").along("[k]"), rows) if plan.kept else rows
        first = number.equals(low)
        if last:
            self.say(st.When(both(term("w") > 0, first), (st.Wait(turns.index(term("w") - 1), ZERO),)))
        body: list[st.Statement] = [
            self.slot(number),
            st.Wait(filled(self.ring, "slot"), Name("phase")),
            st.Issue(to, rows, keys, to, k > 0, line=plan.nest.product.line),
        ]
        if last:
            begun = both(both(k.equals(plan.turns), term("w") < last), first)
            body.append(st.When(begun, (st.Arrive(turns.index("w")),)))
        if plan.before is not None:
            half = both(k.equals(plan.parts // 2), number + 1 < high)
            body.append(st.When(half, tuple(self._fetch(plan.before, Group(number + 1)))))
        self.one_behind(to, f"{self.ring}_free", "k", plan.parts, body)

    def _take(self) -> None:
        """Take a tile of another table, once it is there."""
        node, number = self.plan.before, self.scope.numbers[self.plan.loop.range]
        assert node is not None
        at, turn = self._at(number), self.streamed_before(number)
        self.say(st.Wait(filled(self.room_of_tile, at), turn // 2 & 1))
        tile = Name(self.room_of_tile).index(at).call("load", self.scope.layout(self.plan.width))
        self.say(st.Map(self.values.named(node.tile), tile, line=node.line))
        self.values.mark(node.tile, loaded=True)

    def write(self, node: ir.Write, there: bool = False) -> None:
        """Rows of the table that do not exist are 0, for which only warpgroups that have some do anything."""
        own = self.plan.own
        edge = [] if node is not self.plan.table or self.values.vanishes(node.tile, own) else self.scope.exist(own, 0)
        if edge:
            held = self.values.named(node.tile)
            beyond = (term("part") + 1) * ROWS > self.setting.size(own.dim)
            self.say(st.When(beyond, (st.Map(held, only(held, edge, NOTHING)),)))
        super().write(node, bool(edge))

    def store(self, node: ir.Write | ir.Init, at: ir.Range | None, value: Term) -> None:
        """Hand a tile of the table to the copy engine."""
        if node is not self.plan.table:
            super().store(node, at, value)
            return
        if self.plan.before is None:
            self.say(st.Sent())
        number = self.scope.numbers[self.plan.loop.range]
        room, place = Name(self.room_of_tile).index(self._at(number)), self.place(node.tensor, number)
        self.say(*st.put(room, self.values.in_words(value)))
        self.say(st.Send(f"{node.tensor.name}_tiles", place, room, line=node.line))
