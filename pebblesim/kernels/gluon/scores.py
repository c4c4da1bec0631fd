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

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon.block import ROWS, SHARED, Block, Buffer, filled, freed
from pebblesim.kernels.gluon.parts import PartsRoles
from pebblesim.kernels.gluon.parts_plan import less
from pebblesim.kernels.gluon.plan import check_block, refused
from pebblesim.kernels.gluon.roles import expecting
from pebblesim.kernels.statements import KernelProgram
from pebblesim.kernels.terms import ZERO, Choice, Items, Name, Number, Term, both, call, term
from pebblesim.kernels.triton.ranges import Setting
from pebblesim.language import program as ir


class ScoresRoles(PartsRoles):
    """Makes the statements of both roles."""

    def __init__(self, setting: Setting, plan: Block) -> None:
        check_block(setting.program, plan.own, setting.sizes, even=True)
        (tiles,) = plan.outgoing
        self.table, self.before, self.room_of_tile = tiles.write, tiles.before, tiles.name
        if self.table.tensor not in setting.tables.tiled:
            raise refused(setting.program, f"line {self.table.line} writes a table that is not kept tile by tile")
        super().__init__(setting, plan)
        self.plan = less(plan, KernelProgram((), (), tuple(self.allocated())).shared - SHARED)
        self.rows, self.ring = self.plan.buffers.values()
        self.parts, self.kept = self.rows.across, self.rows.across - self.rows.slots  # of these, some in registers
        self.reserve(f"{self.ring.name}_kept", f"{self.rows.name}_kept")
        self.reserve("sum", "turns")
        self.special = {self.rows.read: self._hold, self.nest.inner: self._sum}
        if self.before is not None:
            self.special[self.before] = self._take

    # The warp that loads

    def staying(self, buffer: Buffer) -> list[st.Statement]:
        """The parts of the rows that stay."""
        k, (room, turn) = term("k"), self._room_of_rows()
        rows = self.copy(buffer, room, self.number, k)
        return [st.For("k", ZERO, Number(self.parts), tuple(self.filling(buffer, room, turn, [rows])))]

    def _room_of_rows(self) -> tuple[Term, Term]:
        """Where part k of the rows is in shared memory, and the phase of its barriers."""
        k, held = term("k"), self.rows.slots
        return (k % held, k // held & 1) if self.kept else (k, ZERO)

    def streaming(self, at: Name) -> list[st.Statement]:
        """The parts of a tile of keys."""
        keys = self.copy(self.ring, Name("slot"), at, term("k"))
        part = [self.slot(at), *self.filling(self.ring, Name("slot"), term("phase"), [keys])]
        return [st.For("k", ZERO, Number(self.parts), tuple(part), of=self.nest.inner)]

    # The warpgroups

    def slot(self, number: Term) -> st.Let:
        """The slot of the ring, and the phase of its barriers, for part k of a tile of keys."""
        return self.scope.slot(self.scope.streamed_before(number) * self.parts + "k")

    def place(self, tensor: ir.Tensor, number: Term) -> Items:
        """The first row of the warpgroup's part of a tile among the rows of all tiles of a table."""
        return Items((self.in_table(tensor, self.number, number) + term("w") * ROWS, ZERO))

    def _hold(self) -> None:
        """Wait for the rows that stay; the first parts go on into registers, as the left operands of products."""
        slot, phase = self._room_of_rows()
        wait = st.Wait(filled(self.rows.name, slot), phase, line=self.rows.read.line)
        if self.kept:
            name, layout = f"{self.rows.name}_kept", call("DotOperandLayout", 0, self.scope.layout(self.ring.rows), 2)
            loaded = Items((self._rows_of(slot).call("load", layout),), round=True)
            body = (wait, st.Let((name,), (loaded,), more=True), st.Fence(), st.Arrive(freed(self.rows.name, slot)))
            self.say(st.Let((name,), (Items((), round=True),), "in registers"))
            self.say(st.For("k", ZERO, Number(self.kept), body, unrolled=True))
        self.say(st.For("k", Number(self.kept), Number(self.parts), (wait,), unrolled=True))

    def _rows_of(self, slot: Term) -> Term:
        """The warpgroup's rows of a part in shared memory."""
        return self.rows.slot(slot).call("slice", term("w") * ROWS, ROWS)

    def loop(self, node: ir.Loop) -> None:
        """The tiles of keys; of another table the first tile is asked for before."""
        low, high = self.scope.limits()
        if self.before is not None:
            self.say(st.When(low < high, tuple(self._fetch(self.before, low))))
        self.asking = self.scope.one_by_one()
        for piece in self.pieces():
            self.over(node, piece)
        self.asking = False
        self.say(st.Sent())

    def _fetch(self, node: ir.Read, number: Term) -> list[st.Statement]:
        """Ask for a tile of another table, once the copy engine has taken the tile that was there."""
        at, place = self._at(number), self.place(node.tensor, number)
        full = filled(self.room_of_tile, at)
        return [st.Sent(), *expecting(full, [self.copied(node, self.room_of_tile, at, place, full)])]

    def _at(self, number: Term) -> Term:
        """Where the warpgroup has its rows of a tile of the table."""
        w = term("w")
        return w if self.before is None else Number(2) * w + (self.scope.streamed_before(number) & 1)

    def _sum(self) -> None:
        """The products of all parts, one issued while the one before runs."""
        number, k = self.scope.numbers[self.plan.loop.range], term("k")
        to = self.issued_all(self.nest.product)
        (low, high), last, turns = self.scope.limits(), self.plan.turns, Name("turns")
        rows = self._rows_of(self._room_of_rows()[0])
        rows = Choice(k < self.kept, Name(f"{self.rows.name}_kept").along("[k]"), rows) if self.kept else rows
        first = number.equals(low)
        if last:
            self.say(st.When(both(term("w") > 0, first), (st.Wait(turns.index(term("w") - 1), ZERO),)))
        body: list[st.Statement] = [
            self.slot(number),
            st.Wait(filled(self.ring.name, "slot"), Name("phase")),
            st.Issue(to, rows, self.ring.slot("slot").turned(), to, k > 0, line=self.nest.product.line),
        ]
        if last:  # the next one begins when most products of a first tile are issued
            begun = both(both(k.equals(max(3 * self.parts // 4, 1) - 1), term("w") < last), first)
            body.append(st.When(begun, (st.Arrive(turns.index("w")),)))
        if self.before is not None:
            half = both(k.equals(self.parts // 2), number + 1 < high)
            body.append(st.When(half, tuple(self._fetch(self.before, number + 1))))
        self.one_behind((to,), self.ring.name, self.parts, body)

    def _take(self) -> None:
        """Take a tile of another table, once it is there."""
        node, number = self.before, self.scope.numbers[self.plan.loop.range]
        assert node is not None
        at, turn = self._at(number), self.scope.streamed_before(number)
        self.say(st.Wait(filled(self.room_of_tile, at), turn // 2 & 1))
        tile = Name(self.room_of_tile).index(at).call("load", self.scope.layout(self.ring.rows))
        self.say(st.Map(self.values.named(node.tile), tile, line=node.line))
        self.values.mark(node.tile, loaded=True)

    def write(self, node: ir.Write) -> None:
        """Hand a tile of the table to the copy engine."""
        if node is not self.table:
            super().write(node)
            return
        number = self.scope.numbers[self.plan.loop.range]
        room, place = Name(self.room_of_tile).index(self._at(number)), self.place(node.tensor, number)
        self.send(node, room, place, emptied=self.before is not None)
