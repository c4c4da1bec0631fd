"""Gluon kernels whose warpgroups divide columns: for keys that are values, too, and sums too wide for one warpgroup.

Two warpgroups have the same 64 rows. Each has half of the keys of a tile, whose scores it computes, and half of the
columns of the sums. So a maximum of a row is that of both, which they exchange through shared memory, a row sum is
completed behind the loop, and each puts its probabilities where the other reads them as an operand. A tile of keys that
is also one of values is read once: it stays until both products are done with it. A ring has the parts of one tile, of
one warpgroup's keys and of one's columns, each of which is filled again as soon as its last product has ended.

From tile to tile the warpgroups exchange their halves of the keys, and so the half that is multiplied first and freed
first. A part's place then depends on the tile: the compiler keeps addresses of constant places in registers, of which
there are none left.

Where probabilities are as large as the part of the keys that only scores need, they take its place.
"""

from __future__ import annotations

from typing import Any

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon_additions import ROWS, filled, freed
from pebblesim.kernels.gluon_columns_plan import SHARES, Columns
from pebblesim.kernels.gluon_plan import Buffer
from pebblesim.kernels.gluon_roles import Roles
from pebblesim.kernels.products import factors
from pebblesim.kernels.terms import ZERO, Group, Name, Number, Term, maximum, term
from pebblesim.kernels.triton_ranges import Setting
from pebblesim.language import program as ir

IN_TURN: tuple[Term, ...] = (Name("phase"), Group(term(1) - "phase"))
"""The halves of a tile's keys, in the order in which their values are multiplied."""


def slot_of(ring: Buffer, share: Term, part: Any) -> Term:
    """The number of the slot with a part of the keys of a warpgroup."""
    return share if ring.across == 1 else share * ring.across + part


class ColumnsRoles(Roles):
    """Makes the statements of both roles."""

    plan: Columns

    def __init__(self, setting: Setting, plan: Columns) -> None:
        super().__init__(setting, plan)
        names = self.scope.names
        self._flying = False  # whether scores are on their way
        self.reserve("mine", "phase", "share")
        made = plan.probabilities.name
        self.handed = plan.place.name if plan.place else names.new(f"{made}_of_all")
        self.handed_full = names.new(f"{made}_full")
        self.exchanged = {tile: names.new(f"{tile.name}_of_all") for tile in plan.exchanged}
        self.reserve(*(f"{name}_full" for name in self.exchanged.values()))

    def which(self) -> st.Let:
        """The statement that says which rows the warpgroup has."""
        return st.Let(("part",), (self.number,), f"these {ROWS} rows, of which the warpgroup has columns")

    def columns(self, rng: ir.Range) -> tuple[list[Term], int]:
        """The number of a warpgroup's first column, and how many columns all warpgroups have."""
        return [term("w") * self.plan.width], SHARES * self.plan.width

    # Shared memory, and the warp that loads

    def allocated(self) -> list[st.Room]:
        """The statements that take shared memory: what stays, rings, and what the warpgroups exchange."""
        plan, made = self.plan, super().allocated()
        if plan.place is None:
            note = f"line {plan.sums.line}: both warpgroups read it"
            made.append(self.exchange(self.handed, (SHARES, ROWS, plan.keys), self.setting.dtype, note))
        made.append(st.Barriers((self.handed_full,), SHARES, (1,)))
        for name in self.exchanged.values():
            made.append(self.exchange(name, (SHARES, 1, ROWS), "float32"))
            made.append(st.Barriers((f"{name}_full",), SHARES, (1,)))
        return made

    def loading(self) -> list[st.Statement]:
        """The statements of the warp that loads: the rows that stay, and the halves of each tile of keys."""
        plan, made, phase = self.plan, list[st.Statement](), term("phase")
        (_, high), at, share = self.limits(), Name(plan.loop.range.name), Name("share")
        half = Group(term("each") + phase + 1) & 1
        body: list[st.Statement] = [st.Let(("share",), (half,), "first the half that is freed first")]
        for each in plan.buffers.values():
            parts, row = range(each.across), Group(at * SHARES + share) * plan.keys
            if each.streamed:
                for part in parts:
                    slot = slot_of(each, share, part)
                    body += self.filling(each, slot, phase, [self.copy(each, slot, row, part * each.width)])
            else:
                copies = [self.copy(each, Number(part), self.number * ROWS, part * each.width, ZERO) for part in parts]
                made += self.filling(each, ZERO, phase, list(copies))
        halves = st.For("each", ZERO, Number(SHARES), tuple(body), unrolled=True)
        return [*made, st.For(at.id, ZERO, high, (st.Let(("phase",), (at & 1,)), halves), of=plan.loop)]

    # Statements

    def loop(self, node: ir.Loop) -> None:
        """The tiles of keys."""
        scope, ((low, high), phase) = self.scope, (self.limits(), term("phase"))
        self.say(*(st.Wait(filled(each.name, 0), ZERO) for each in self.plan.buffers.values() if not each.streamed))
        number = scope.numbers[node.range] = Name(scope.names.new(node.range.name))
        with self.apart() as made:
            self.say(st.Let(("phase",), (number & 1,)))
            half = Group(term("w") + phase) & 1
            self.say(st.Let(("mine",), (half,), "the half of the keys whose scores the warpgroup computes"))
            self.say(*scope.named(node.range, Group(number * SHARES + "mine")))
            self.asking = scope.ragged(node.range)
            self.looped(node.body)
            self.asking = False
        self.say(st.For(number.id, low, high, tuple(made), of=node))
        for tile, op in self.plan.exchanged.items():
            if tile in self.values.tiles and op == "rowsum":
                self._exchange(tile, ZERO)

    def read(self, node: ir.Read) -> None:
        """Nothing: products wait for what they take from shared memory."""
        self.values.mark(node.tile, loaded=True)

    def cut(self) -> Term:
        """The condition that some keys of a tile do not exist."""
        loop = self.plan.loop.range
        return (self.scope.numbers[loop] + 1) * (SHARES * self.plan.keys) > self.setting.size(loop.dim)

    def compute(self, node: ir.Compute) -> None:
        """Compute a tile; scores and sums are products that wait for their operands."""
        plan = self.plan
        if node in plan.scores:
            self._score(node)
            return
        if node is plan.sums:
            self._sum()
            return
        if self._flying and plan.probabilities in {node.target.tile, *(ref.tile for ref in ir.refs(node.expr))}:
            self._settle()
        super().compute(node)
        if node.target.tile in self.exchanged and isinstance(node.expr, ir.RowReduction) and node.mode == "new":
            self._exchange(node.target.tile, Name("phase"))
        if node is plan.last:
            self._hand_over()

    def _exchange(self, tile: ir.Tile, phase: Term) -> None:
        """Make a vector that of the columns of both warpgroups."""
        held, name, w = self.values.held(tile), self.exchanged[tile], term("w")
        room, full = Name(name), Name(f"{name}_full")
        mine, others = (room.index(at).reshape(ROWS) for at in (w, term(1) - w))
        other = others.call("load", self.scope.of_vector(self.plan.own))
        self.say(*st.put(mine, held), st.Arrive(full.index(w)), st.Wait(full.index(term(1) - w), phase))
        self.say(st.Map(held, held + other if self.plan.exchanged[tile] == "rowsum" else maximum(held, other)))

    def _score(self, node: ir.Compute) -> None:
        """Issue the products of a warpgroup's keys, part after part as they arrive."""
        plan, expr, to = self.plan, factors(node), self.issued_all(node)
        held, ring = plan.buffers[expr.left.tile], plan.buffers[expr.right.tile]
        for part in range(ring.across):
            at = slot_of(ring, Name("mine"), part)
            more = part or node.mode == "add"
            self.say(st.Wait(filled(ring.name, at), Name("phase")))
            self.issue(to, held.slot(part), ring.slot(at).turned(), to if more else None, plan.keys, node.line)
        self._flying = True

    def _settle(self) -> None:
        """Wait for the scores; what only they need is free."""
        self._flying = False
        self.say(st.Settle((self.values.held(self.plan.probabilities),), 0))
        for ring in self.plan.buffers.values():
            for part in range(ring.across) if ring.streamed and ring is not self.plan.place else ():
                self._release(ring, slot_of(ring, Name("mine"), part))

    def _hand_over(self) -> None:
        """Put the warpgroup's probabilities where both read them."""
        sums, mine = self.plan.sums, Name("mine")
        left = factors(sums).left
        value = self.values.operand(left, sums.line, left.shape[1], 1, False)
        self.say(*st.put(self._probabilities(mine), value), st.Arrive(Name(self.handed_full).index(mine)))

    def _probabilities(self, share: Term) -> Term:
        """Where a warpgroup's probabilities are."""
        return Name(self.handed).index(share).reshape(ROWS, self.plan.keys)

    def _sum(self) -> None:
        """Add the products of all probabilities with the warpgroup's columns of the values."""
        plan, expr, phase = self.plan, factors(self.plan.sums), Name("phase")
        to, ring = self.issued_all(plan.sums), plan.buffers[expr.right.tile]
        for share in IN_TURN:
            at = slot_of(ring, share, Name("w"))
            self.say(st.Wait(Name(self.handed_full).index(share), phase))
            self.say(st.Wait(filled(ring.name, at), phase))
            self.say(st.Issue(to, self._probabilities(share), ring.slot(at), to, line=plan.sums.line))
        for left, share in zip(reversed(range(SHARES)), IN_TURN, strict=True):
            self.say(st.Settle((to,), left))
            self._release(ring, slot_of(ring, share, Name("w")))
            if plan.place:
                self._release(plan.place, share)

    def _release(self, ring: Buffer, at: Term) -> None:
        self.say(st.Arrive(freed(ring.name, at)))

    def store(self, node: ir.Write | ir.Init, at: ir.Range | None, value: Term) -> None:
        """Store the columns of the warpgroup; vectors of rows are alike in both."""
        if len(ir.moved_part(node)) == 2:
            super().store(node, at, value)
            return
        with self.apart() as made:
            super().store(node, at, value)
        self.say(st.When(term("w").equals(0), tuple(made)))
