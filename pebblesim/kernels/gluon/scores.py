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

from collections.abc import Callable
from dataclasses import replace

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon.block import ROWS, SHARED, Block, Buffer, filled, freed
from pebblesim.kernels.gluon.boxes import sides
from pebblesim.kernels.gluon.parts import PartsRoles
from pebblesim.kernels.gluon.parts_plan import less
from pebblesim.kernels.gluon.plan import check_block, refused
from pebblesim.kernels.gluon.roles import expecting
from pebblesim.kernels.statements import KernelProgram
from pebblesim.kernels.terms import ZERO, Choice, Held, Items, Name, Number, Term, both, call, term
from pebblesim.kernels.triton.ranges import Setting
from pebblesim.language import program as ir

K, REST = Name("k"), Name("rest")
"""The number of a part, where it is written out, and in a loop over the rest."""


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
        self.reserve("sum", "turns", "many", "taken", "last", "rest")
        self.special = {self.rows.read: self._hold, self.nest.inner: self._sum}
        if self.before is not None:
            self.special[self.before] = self._take

    @property
    def alone(self) -> int:
        """How many parts of a product are written out; the rest is a loop, whose products are compiled once.

        Where rows are reduced, those are written out whose rows are in registers, and the first one. Without reductions
        a loop would take longer on a card.
        """
        reduced = any(isinstance(getattr(each, "expr", None), ir.RowReduction) for each in self.plan.loop.body)
        return max(self.kept, 1) if reduced else self.parts

    @property
    def staggered(self) -> bool:
        """Whether blocks begin with different ones of their tiles: under a mask, which makes these differ in length."""
        return self.scope.mask is not None and self.plan.persistent

    # The warp that loads

    def staying(self, buffer: Buffer) -> list[st.Statement]:
        """The parts of the rows that stay; those that go on into registers arrive in slots of the ring."""
        k, slot = term("k"), Name("slot")
        made: list[st.Statement] = []
        if self.kept:
            full = filled(self.ring.name, slot)
            part = replace(self.copy(buffer, ZERO, self.number, k, slot), barrier=full, room=self._in_ring())
            body = [self._slot_of_rows(), *self.filling(self.ring, slot, term("phase"), [part])]
            made.append(st.For("k", ZERO, Number(self.kept), tuple(body)))
        rows = self.copy(buffer, self._room_of_rows(), self.number, k)
        filling = self.filling(buffer, self._room_of_rows(), term("turn") & 1, [rows])
        return [*made, st.For("k", Number(self.kept), Number(self.parts), tuple(filling))]

    def _room_of_rows(self, k: Term = K) -> Term:
        """Where part k of the rows is in shared memory."""
        return k - self.kept

    def _in_ring(self) -> Term:
        """A slot of the ring, as it is for a part of the rows."""
        tensor, keys = self.rows.read.tensor, self.ring.read.tensor
        room = Name(self.ring.name).index("slot")
        several = self.setting.strides.several
        return room if several(tensor) == several(keys) else room.reshape(*sides(self.setting, tensor, self.rows.box))

    def streaming(self, at: Name) -> list[st.Statement]:
        """The parts of a tile of keys."""
        keys = self.copy(self.ring, Name("slot"), at, term("k"))
        part = [self.slot(at), *self.filling(self.ring, Name("slot"), term("phase"), [keys])]
        return [st.For("k", ZERO, Number(self.parts), tuple(part), of=self.nest.inner)]

    # The warpgroups

    def slot(self, number: Term, k: Term = K) -> st.Let:
        """The slot of the ring, and the phase of its barriers, for part k of a tile of keys."""
        before = (term("filled") + self.scope.streamed_before(number)) * self.parts
        return self.scope.slot_at(before + (term("turn") + 1) * self.kept + k if self.kept else before + k)

    def _slot_of_rows(self) -> st.Let:
        """The slot of the ring, and the phase of its barriers, for part k of the rows, which goes on into registers."""
        return self.scope.slot_at(term("filled") * self.parts + term("turn") * self.kept + "k")

    def place(self, tensor: ir.Tensor, number: Term) -> Items:
        """The first row of the warpgroup's part of a tile among the rows of all tiles of a table."""
        return Items((self.in_table(tensor, self.number, number) + term("w") * ROWS, ZERO))

    def _hold(self) -> None:
        """Wait for the rows that stay; the first parts go on into registers, as the left operands of products."""
        if self.kept:
            name, layout = f"{self.rows.name}_kept", call("DotOperandLayout", 0, self.scope.layout(self.ring.rows), 2)
            loaded = Items((self._rows_of(self.ring.slot("slot")).call("load", layout),), round=True)
            wait = st.Wait(filled(self.ring.name, "slot"), Name("phase"), line=self.rows.read.line)
            keep = st.Let((name,), (loaded,), more=True)
            body = (self._slot_of_rows(), wait, keep, st.Fence(), st.Arrive(freed(self.ring.name, "slot")))
            self.say(st.Let((name,), (Items((), round=True),), "in registers"))
            self.say(st.For("k", ZERO, Number(self.kept), body, unrolled=True))
        self.say(*self._of_shared_rows(self._there))

    def _there(self, k: Name) -> st.Statement:
        """Wait for a part of the rows in shared memory."""
        return st.Wait(filled(self.rows.name, self._room_of_rows(k)), term("turn") & 1, line=self.rows.read.line)

    def _of_shared_rows(self, made: Callable[[Name], st.Statement]) -> list[st.Statement]:
        """A statement for each part of the rows in shared memory."""
        first = st.For("k", Number(self.kept), Number(self.alone), (made(K),), unrolled=True)
        rest = st.For("rest", Number(self.alone), Number(self.parts), (made(REST),))
        return [*[first] * (self.kept < self.alone), *[rest] * (self.alone < self.parts)]

    def _rows_of(self, part: Term) -> Term:
        """The warpgroup's rows of a part in shared memory."""
        return part.call("slice", term("w") * ROWS, ROWS)

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
        return w if self.before is None else Number(2) * w + (self._stored_before(number) & 1)

    def _stored_before(self, number: Term) -> Term:
        """How many tiles of the table are stored before a tile."""
        return term("filled") + self.scope.streamed_before(number)

    def _sum(self) -> None:
        """The products of all parts, one issued while the one before runs."""
        number = self.scope.numbers[self.plan.loop.range]
        to, line = self.issued_all(self.nest.product), self.nest.product.line
        (low, high), last, turns = self.scope.limits(), self.plan.turns, Name("turns")
        kept = Name(f"{self.rows.name}_kept").along("[k]")
        first = number.equals(low)
        if last:
            self.say(st.When(both(term("w") > 0, first), (st.Wait(turns.index(term("w") - 1), term("turn") & 1),)))
        begin = max(min(3 * self.parts // 4, self.plan.stages), 1) - 1  # no slot is free again before
        half, alone, to_come = self.parts // 2, self.alone, number + 1 < high

        def issued(k: Name) -> list[st.Statement]:
            rows = self._rows_of(self.rows.slot(self._room_of_rows(k)))
            if k is K and self.kept:
                rows = kept if self.kept == alone else Choice(k < self.kept, kept, rows)
            made: list[st.Statement] = [
                self.slot(number, k),
                st.Wait(filled(self.ring.name, "slot"), Name("phase")),
                st.Issue(to, rows, self.ring.slot("slot").turned(), to, k > 0 if k is K else None, line=line),
            ]
            if last and (begin < alone) == (k is K):  # the next one begins when most products of a tile are issued
                begun = both(both(k.equals(begin), term("w") < last), first)
                made.append(st.When(begun, (st.Arrive(turns.index("w")),)))
            if self.before is not None and (half < alone) == (k is K):
                made.append(st.When(both(k.equals(half), to_come), tuple(self._fetch(self.before, number + 1))))
            return made

        self._one_behind(to, issued)
        of_next = self._of_shared_rows(lambda k: st.Arrive(freed(self.rows.name, self._room_of_rows(k))))
        self.say(st.When((number + 1).equals(high), tuple(of_next)))  # those of the next tile come meanwhile

    def _one_behind(self, to: Held, issued: Callable[[Name], list[st.Statement]]) -> None:
        """Parts one after the other, each of which waits for the products of the one before; then wait for the last."""
        free, last = st.Arrive(freed(self.ring.name, "last")), st.Let(("last",), (Name("slot"),))
        before = st.Settle((to,), 1), free
        first = (*issued(K), st.When(K > 0, before), last)
        self.say(st.For("k", ZERO, Number(self.alone), first, unrolled=True))
        if self.alone < self.parts:
            self.say(*before[: self.alone == 1])  # a loop goes on with sums that were waited for
            self.say(st.For("rest", Number(self.alone), Number(self.parts), (*issued(REST), *before, last)))
        self.say(st.Settle((to,), 0), free)

    def _take(self) -> None:
        """Take a tile of another table, once it is there."""
        node, number = self.before, self.scope.numbers[self.plan.loop.range]
        assert node is not None
        at, turn = self._at(number), self._stored_before(number)
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
