"""Gluon kernels whose warpgroups divide columns: for sums too wide for one warpgroup, and keys that are values, too.

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
from pebblesim.kernels.gluon.block import ROWS, Block, Buffer, Handed, filled
from pebblesim.kernels.gluon.columns_plan import SHARES
from pebblesim.kernels.gluon.roles import Issued, Roles
from pebblesim.kernels.products import factors, products
from pebblesim.kernels.terms import ZERO, Name, Number, Term, maximum, term
from pebblesim.kernels.triton.ranges import Setting
from pebblesim.language import program as ir

IN_TURN: tuple[Term, ...] = (Name("phase"), term(1) - "phase")
"""The halves of a tile's keys, in the order in which their values are multiplied."""


def slot_of(ring: Buffer, share: Term, part: Any) -> Term:
    """The number of the slot with a part of the keys of a warpgroup."""
    return share * ring.across + (part if ring.across > 1 else 0)


class ColumnsRoles(Roles):
    """Makes the statements of both roles."""

    def __init__(self, setting: Setting, plan: Block) -> None:
        super().__init__(setting, plan)
        (*self.scores, self.sums), self.keys = products(plan.loop.body), plan.sides[plan.loop.range]
        self.handed, *exchanged = plan.handed
        self.exchanged = {each.tile: each for each in exchanged}
        self.place = next((each for each in plan.rings if each.name == self.handed.room), None)  # of probabilities
        made = self.handed.tile
        self.last = [node for node in plan.loop.body if isinstance(node, ir.Compute) and node.target.tile is made][-1]
        self.reserve("mine", "phase", "share")

    # Shared memory, and the warp that loads

    def staying(self, buffer: Buffer) -> list[st.Statement]:
        """All parts of the rows."""
        copies = (self.copy(buffer, Number(part), self.number, part, ZERO) for part in range(buffer.across))
        return self.filling(buffer, ZERO, term("phase"), [*copies])

    def streaming(self, at: Name) -> list[st.Statement]:
        """The halves of a tile of keys, and of values, if these are others."""
        phase, share, made = term("phase"), Name("share"), list[st.Statement]([st.Let(("phase",), (at & 1,))])
        half = (term("each") + phase + 1) & 1
        of_scores = [self.plan.buffers[factors(node).right.tile] for node in self.scores]
        for rings in (of_scores, [each for each in self.plan.rings if each not in of_scores]):
            body: list[st.Statement] = [st.Let(("share",), (half,), "first the half that is freed first")]
            for ring in rings:
                for part in range(ring.across):
                    slot = slot_of(ring, share, part)
                    body += self.filling(ring, slot, phase, [self.copy(ring, slot, at * SHARES + share, part)])
            made += [st.For("each", ZERO, Number(SHARES), tuple(body), unrolled=True)] * (rings != [])
        return made

    # Statements

    def loop(self, node: ir.Loop) -> None:
        """The tiles of keys."""
        scope, ((low, high), phase) = self.scope, (self.scope.limits(), term("phase"))
        self.say(*(st.Wait(filled(each.name, 0), ZERO) for each in self.plan.stay))
        number = scope.numbers[node.range] = Name(scope.names.new(node.range.name))
        with self.apart() as made:
            self.say(st.Let(("phase",), (number & 1,)))
            half = (term("w") + phase) & 1
            self.say(st.Let(("mine",), (half,), "the half of the keys whose scores the warpgroup computes"))
            self.say(*scope.named(node.range, number * SHARES + "mine"))
            self.asking = scope.ragged(node.range)
            self.looped(node.body)
            self.asking = False
        self.say(st.For(number.id, low, high, tuple(made), of=node))
        for tile, each in self.exchanged.items():
            if tile in self.values.tiles and each.reduced == "rowsum":
                self._exchange(each, ZERO)

    def read(self, node: ir.Read) -> None:
        """Vectors; else nothing: products wait for what they take from shared memory."""
        if node.tile not in self.plan.buffers:
            super().read(node)
            return
        self.values.mark(node.tile, loaded=True)

    def fill(self, tile: ir.Tile, value: Term) -> None:
        """Make a tile of one value; sums of rows begin with a part of it each, since they are added up at the end."""
        added = tile in self.exchanged and self.exchanged[tile].reduced == "rowsum"
        super().fill(tile, Number(value.value / SHARES) if added and isinstance(value, Number) else value)

    def compute(self, node: ir.Compute) -> None:
        """Compute a tile; scores and sums are products that wait for their operands."""
        if node in self.scores:
            self._score(node)
            return
        if node is self.sums:
            self._sum()
            return
        for tile in (node.target.tile, *(ref.tile for ref in ir.refs(node.expr))):
            self.settle(tile)
        super().compute(node)
        if node.target.tile in self.exchanged and isinstance(node.expr, ir.RowReduction) and node.mode == "new":
            self._exchange(self.exchanged[node.target.tile], Name("phase"))
        if node is self.last:
            self._hand_over()

    def _exchange(self, handed: Handed, phase: Term) -> None:
        """Make a vector that of the columns of both warpgroups."""
        held, w, other = self.values.held(handed.tile), term("w"), term(1) - "w"
        mine, others = (Name(handed.room).index(at).reshape(ROWS) for at in (w, other))
        self.hand(handed, w, mine, held)
        self.say(st.Wait(filled(handed.name, other), phase))
        theirs = others.call("load", self.scope.of_vector(self.plan.own))
        self.say(st.Map(held, held + theirs if handed.reduced == "rowsum" else maximum(held, theirs)))

    def _score(self, node: ir.Compute) -> None:
        """Issue the products of a warpgroup's keys, part after part as they arrive."""
        plan, expr, to = self.plan, factors(node), self.issued_all(node)
        held, ring = plan.buffers[expr.left.tile], plan.buffers[expr.right.tile]
        slots = [slot_of(ring, Name("mine"), part) for part in range(ring.across)]
        for part, at in enumerate(slots):
            more = part or node.mode == "add"
            self.say(st.Wait(filled(ring.name, at), Name("phase")))
            self.issue(to, held.slot(part), ring.slot(at).turned(), to if more else None, self.keys, node.line)
        frees = () if ring is self.place else tuple((ring, at) for at in slots)
        self.running.append(Issued(node.target.tile, (to,), frees))

    def _hand_over(self) -> None:
        """Put the warpgroup's probabilities where both read them."""
        left, mine = factors(self.sums).left, Name("mine")
        value = self.values.operand(left, self.sums.line, left.shape[1], 1, False)
        self.hand(self.handed, mine, self._probabilities(mine), value)

    def _probabilities(self, share: Term) -> Term:
        """Where a warpgroup's probabilities are."""
        return Name(self.handed.room).index(share).reshape(*self.handed.shape[1:])

    def _sum(self) -> None:
        """Add the products of all probabilities with the warpgroup's columns of the values."""
        to, phase, line = self.issued_all(self.sums), Name("phase"), self.sums.line
        ring = self.plan.buffers[factors(self.sums).right.tile]
        for share in IN_TURN:
            at = slot_of(ring, share, Name("w"))
            self.say(st.Wait(filled(self.handed.name, share), phase), st.Wait(filled(ring.name, at), phase))
            self.say(st.Issue(to, self._probabilities(share), ring.slot(at), to, line=line))
            frees = ((ring, at),) if self.place is None else ((ring, at), (self.place, share))
            self.running.append(Issued(self.sums.target.tile, (to,), frees))
        for _ in IN_TURN:
            self.wait(1)

    def store(self, node: ir.Write | ir.Init, at: ir.Range | None, value: Term) -> None:
        """Store the columns of the warpgroup; vectors of rows are alike in both."""
        if len(ir.moved_part(node)) == 2:
            super().store(node, at, value)
            return
        with self.apart() as made:
            super().store(node, at, value)
        self.say(st.When(term("w").equals(0), tuple(made)))
