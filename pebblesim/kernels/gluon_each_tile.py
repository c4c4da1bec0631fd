"""A streamed tile in a Gluon kernel, beside what is computed: its copies and slot, its mask, turns of warpgroups.

Where one loop goes through all tiles, each asks whether the mask cuts it: at the diagonal, and at both ends of a
window. Predicates are taken there alone. Without a mask the last tile may be ragged. Where products are put off it is
streamed first: the iteration before the loop has its predicates, and the loop none.

Two warpgroups with narrow heads take turns at the tensor cores. One issues its products, and passes the turn when it
has its scores; it waits for the next turn behind its exponentials, in front of the wait for the product that was put
off. The compiler moves exponentials behind that wait, but not past a wait for a barrier.
"""

from __future__ import annotations

from collections.abc import Mapping

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon_boxes import Box
from pebblesim.kernels.gluon_plan import APART, Plan
from pebblesim.kernels.gluon_roles import Roles
from pebblesim.kernels.terms import ZERO, Group, Name, Number, Term, is_zero, minimum, term
from pebblesim.kernels.triton_loops import Piece
from pebblesim.kernels.triton_ranges import Setting
from pebblesim.language import program as ir
from pebblesim.language.masks import Band

TURNS = term("filled") + "turn"
"""Turns before those of a tile of rows."""


class Tiles(Roles):
    """Copies and slots, masks of single tiles, and turns."""

    plan: Plan

    def __init__(self, setting: Setting, plan: Plan) -> None:
        super().__init__(setting, plan)
        self.waiting: Term | None = None  # number of the tile behind which the next turn is to be taken

    # Shared memory, and the warp that loads

    @property
    def boxes(self) -> Mapping[ir.Tensor, Box]:
        """The boxes of the tensors that the copy engine moves, with those of what is added to memory."""
        added = {each.write.tensor: (each.rows, each.columns) for each in self.plan.additions}
        return {**super().boxes, **added}

    def allocated(self) -> list[st.Room]:
        """The statements that take shared memory: buffers, what is exchanged and added to memory, and turns."""
        plan, made, groups = self.plan, super().allocated(), self.plan.warpgroups
        for each in plan.additions:
            shape, note = (plan.stages, each.depth, each.rows), f"line {each.product.line}: all warpgroups read it"
            made.append(self.exchange(each.handed, shape, self.setting.dtype, note))
            made.append(st.Barriers((f"{each.handed}_full",), plan.stages, (groups,)))
            made.append(self.room(each.part, groups, each.write, "added to memory"))
        return [*made, *[st.Barriers(("turns",), groups, (1,))] * plan.turns]

    def loading(self) -> list[st.Statement]:
        """The statements of the warp that loads: what stays, and the rings tile by tile."""
        plan, made = self.plan, list[st.Statement]()
        (low, high), at, slot = self.limits(), Name(plan.loop.range.name), Name("slot")
        for each in plan.buffers.values():
            if not each.streamed:
                copied = self.copy(each, Name("w"), Group(self.number * each.slots + "w") * each.rows, fill=ZERO)
                copies = st.For("w", ZERO, Number(each.slots), (copied,), unrolled=True)
                made += self.filling(each, ZERO, self.turn, [copies], each.slots)
        stream: list[st.Statement] = [self.slot(at)]
        for ring in plan.rings:
            together = [self.copy(each, slot, self.streamed(at) * each.rows) for each in plan.together(ring)]
            stream += self.filling(ring, slot, term("phase"), list(together))
        return [*made, Piece(low, high).loop(at.id, stream, plan.loop)]

    # Slots

    @property
    def turn(self) -> Term:
        """The phase of the barriers of what stays."""
        return term("turn") & 1 if self.plan.persistent else term(0)

    def slot(self, number: Term) -> st.Let:
        """The slot of a ring, and the phase of its barriers, for a tile that is streamed."""
        turn = self.streamed_before(number)
        return self.slot_of(Group(term("filled") + turn) if self.plan.persistent else turn)

    def from_last(self) -> bool:
        """Whether tiles are streamed from the last one, which may be ragged, to the first.

        With a loop of its own behind the others, the operand that is put off would go through two loops: the compiler
        takes it apart and packs it again in each iteration.
        """
        loop = self.plan.loop
        return bool(self.plan.late) and not self.plan.additions and loop.when is None and self.scope.ragged(loop.range)

    def streamed(self, turn: Term) -> Term:
        """The number of the tile that is streamed at a turn."""
        return Group(self.limits()[1] - 1 - turn) if self.from_last() else turn

    # Masks of single tiles

    def one_by_one(self, loop: ir.Loop) -> bool:
        """Whether a loop's body asks of each tile if the mask cuts it, which is faster where products are put off."""
        mask, when = self.scope.mask, loop.when
        if when is None or not isinstance(mask, Band) or mask.after is None or when.columns is not loop.range:
            return False
        if not self.plan.late:
            return False
        matrices = (write.tile.ranges for write in self.plan.writes if len(write.tile.ranges) == 2)
        return mask.before is not None or max(self.scope.length(ranges[-1]) for ranges in matrices) <= APART

    def cut(self) -> Term:
        """The condition that some pairs of a tile are not allowed, or do not exist."""
        loop, scope = self.plan.loop, self.scope
        assert loop.when is not None and scope.after is not None
        (start, stop), block = scope.positions(loop.when.rows), scope.length(loop.range)
        number, last = scope.numbers[loop.range], start + scope.after + 1
        if scope.ragged(loop.range):
            last = minimum(last, scope.total(loop.range))
        behind = (number + 1) * block > last
        if scope.before is None:
            return behind
        return Group(behind) | Group(number * block < stop - 1 - scope.before)

    # Turns: before a wait there were one for each streamed tile, and one more for each tile of rows

    def take_turn(self, before: Term) -> None:
        """Wait until the other warpgroup has passed the turn."""
        self.say(st.Wait(Name("turns").index("w"), Group(before - "w") & 1))

    def take_next_turn(self) -> None:
        """Wait for the turn of the next tile's products, if that was not done at this tile."""
        if self.waiting is not None:
            low, _ = self.limits()
            before = TURNS + self.waiting
            self.take_turn((before if is_zero(low) else before - low) + 2)
            self.waiting = None

    def pass_turn(self) -> None:
        """Let the other warpgroup have the next turn."""
        if self.plan.turns:
            self.say(st.Arrive(Name("turns").index(term(1) - "w")))
