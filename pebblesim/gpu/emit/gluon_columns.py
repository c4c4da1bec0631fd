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

from collections.abc import Mapping

from pebblesim.gpu.emit import statements as st
from pebblesim.gpu.emit.gluon_additions import FENCE, ROWS, filled, freed
from pebblesim.gpu.emit.gluon_boxes import Box, corner
from pebblesim.gpu.emit.gluon_columns_plan import SHARES, Columns, Cut
from pebblesim.gpu.emit.gluon_consumer import TURNED
from pebblesim.gpu.emit.gluon_roles import Roles
from pebblesim.gpu.emit.terms import (
    ZERO,
    Binary,
    Group,
    Name,
    Number,
    Term,
    maximum,
    sides as listed,
    term,
)
from pebblesim.gpu.emit.triton_ranges import Setting
from pebblesim.language import program as ir

IN_TURN: tuple[Term, ...] = (Name("phase"), Group(term(1) - "phase"))
"""The halves of a tile's keys, in the order in which their values are multiplied."""


class ColumnsRoles(Roles):
    """Makes the statements of both roles."""

    plan: Columns

    def __init__(self, setting: Setting, plan: Columns) -> None:
        super().__init__(setting, plan)
        names = self.scope.names
        self._flying = False  # whether scores are on their way
        for each in (*plan.held.values(), *plan.rings.values()):
            self.reserve(*(each.name + end for end in ("", "_full", "_free")))
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

    @property
    def boxes(self) -> Mapping[ir.Tensor, Box]:
        """The boxes of the tensors that the copy engine moves."""
        cuts = (*self.plan.held.values(), *self.plan.rings.values())
        return {each.read.tensor: (each.rows, each.width) for each in cuts}

    def allocated(self) -> list[st.Room]:
        """The statements that take shared memory: what stays, rings, and what the warpgroups exchange."""
        plan, made, tile = self.plan, list[st.Room](), (SHARES, ROWS, self.plan.keys)
        for each in plan.held.values():
            made += self.buffer(each.name, each.parts, each.read, "stays", 0, 1)
        for each in plan.rings.values():
            made += self.buffer(each.name, SHARES * each.parts, each.read, "a ring", plan.releases(each))
        if plan.place is None:
            note = f"line {plan.sums.line}: both warpgroups read it"
            made.append(self.exchange(self.handed, tile, self.setting.dtype, note))
        made.append(st.Barriers((self.handed_full,), SHARES, (1,)))
        for name in self.exchanged.values():
            made.append(self.exchange(name, (SHARES, 1, ROWS), "float32"))
            made.append(st.Barriers((f"{name}_full",), SHARES, (1,)))
        return made

    def loading(self) -> list[st.Statement]:
        """The statements of the warp that loads: the rows that stay, and the halves of each tile of keys."""
        plan, made = self.plan, list[st.Statement]()
        (_, high), at, share = self.limits(), Name(plan.loop.range.name), Name("share")
        for each in plan.held.values():
            parts = range(each.parts)
            copies = [self._copied(each, self.number * ROWS, part, ZERO, Number(part)) for part in parts]
            made += self.filling(filled(each.name, 0), copies)
        phase, half = term("phase"), Group(term("each") + "phase" + 1) & 1
        body: list[st.Statement] = [st.Let(("share",), (half,), "first the half that is freed first")]
        for ring in plan.rings.values():
            for part in range(ring.parts):
                slot, row = ring.slot(share, Number(part)), Group(at * SHARES + share) * plan.keys
                free = st.Wait(freed(ring.name, slot), phase ^ 1)
                body += self.filling(filled(ring.name, slot), [self._copied(ring, row, part, slot, slot)], free)
        halves = st.For("each", ZERO, Number(SHARES), tuple(body), unrolled=True)
        return [*made, st.For(at.id, ZERO, high, (st.Let(("phase",), (at & 1,)), halves), of=plan.loop)]

    def _copied(self, each: Cut, row: Term, part: int, barrier: Term, slot: Term) -> st.Fetch:
        first = corner(self.setting, each.read.tensor, row, part * each.width, each.rows)
        return self.copied(each.read, each.name, slot, first, filled(each.name, barrier))

    # Statements

    def loop(self, node: ir.Loop) -> None:
        """The tiles of keys."""
        scope, ((low, high), phase) = self.scope, (self.limits(), term("phase"))
        for each in self.plan.held.values():
            self.say(st.Wait(filled(each.name, 0), ZERO))
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
        for tile in self.plan.exchanged:
            if tile in self.values.tiles and not self._is_maximum(tile):
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

    def _is_maximum(self, tile: ir.Tile) -> bool:
        nodes = (node for node in self.plan.loop.body if isinstance(node, ir.Compute) and node.target.tile is tile)
        return any(isinstance(node.expr, ir.RowReduction) and node.expr.op == "rowmax" for node in nodes)

    def _exchange(self, tile: ir.Tile, phase: Term) -> None:
        """Make a vector that of the columns of both warpgroups."""
        held, name, w = self.values.held(tile), self.exchanged[tile], term("w")
        room, full = Name(name), Name(f"{name}_full")
        mine, others = (room.index(at).call("reshape", listed(ROWS)) for at in (w, term(1) - w))
        other = others.call("load", self.scope.of_vector(self.plan.own))
        self.say(
            st.Do(mine.call("store", held)), FENCE, st.Arrive(full.index(w)), st.Wait(full.index(term(1) - w), phase)
        )
        self.say(st.Map(held, maximum(held, other) if self._is_maximum(tile) else held + other))

    def _score(self, node: ir.Compute) -> None:
        """Issue the products of a warpgroup's keys, part after part as they arrive."""
        plan, expr = self.plan, node.expr
        assert isinstance(expr, ir.MatMul)
        to, held, ring = self.values.named(node.target.tile), plan.held[expr.left.tile], plan.rings[expr.right.tile]
        for part in range(ring.parts):
            at = ring.slot(Name("mine"), Number(part))
            rows = Name(held.name).index(part).call("reshape", listed(ROWS, held.width))
            keys = Name(ring.name).index(at).call("reshape", listed(plan.keys, ring.width)).call("permute", TURNED)
            more = part or node.mode == "add"
            onto = to if more else self.zeros(ROWS, plan.keys)
            self.say(st.Wait(filled(ring.name, at), Name("phase")))
            self.say(st.Issue(to, rows, keys, onto, None if more else Name("False"), line=node.line))
        self._flying = True
        self.issued_all(node)

    def _settle(self) -> None:
        """Wait for the scores; what only they need is free."""
        self._flying = False
        self.say(st.Settle((self.values.held(self.plan.probabilities),), 0))
        for ring in self.plan.rings.values():
            for part in range(ring.parts) if ring is not self.plan.place else ():
                self._release(ring, ring.slot(Name("mine"), Number(part)))

    def _hand_over(self) -> None:
        """Put the warpgroup's probabilities where both read them."""
        sums, mine = self.plan.sums, Name("mine")
        assert isinstance(sums.expr, ir.MatMul)
        value = self.values.operand(sums.expr.left, sums.line, sums.expr.left.shape[1], 1, False)
        self.say(
            st.Do(self._probabilities(mine).call("store", value)), FENCE, st.Arrive(Name(self.handed_full).index(mine))
        )

    def _probabilities(self, share: Term) -> Term:
        """Where a warpgroup's probabilities are."""
        return Name(self.handed).index(share).call("reshape", listed(ROWS, self.plan.keys))

    def _sum(self) -> None:
        """Add the products of all probabilities with the warpgroup's columns of the values."""
        plan, expr, phase = self.plan, self.plan.sums.expr, Name("phase")
        assert isinstance(expr, ir.MatMul)
        to, ring = self.values.named(plan.sums.target.tile), plan.rings[expr.right.tile]
        for share in IN_TURN:
            at = ring.slot(share, Name("w"))
            values = Name(ring.name).index(at).call("reshape", listed(plan.keys, ring.width))
            self.say(st.Wait(Name(self.handed_full).index(share), phase))
            self.say(st.Wait(filled(ring.name, at), phase))
            self.say(st.Issue(to, self._probabilities(share), values, to, line=plan.sums.line))
        for left, share in zip(reversed(range(SHARES)), IN_TURN, strict=True):
            self.say(st.Settle((to,), left))
            self._release(ring, ring.slot(share, Name("w")))
            if plan.place:
                self._release(plan.place, share)
        self.issued_all(plan.sums)

    def _release(self, ring: Cut, at: Term) -> None:
        self.say(st.Arrive(freed(ring.name, at)))

    def store(self, node: ir.Write | ir.Init, at: ir.Range | None, value: Term) -> None:
        """Store the columns of the warpgroup; vectors of rows are alike in both."""
        if len(ir.moved_part(node)) == 2:
            super().store(node, at, value)
            return
        with self.apart() as made:
            super().store(node, at, value)
        self.say(st.When(Binary("==", term("w"), ZERO), tuple(made)))
