"""Roles whose warpgroups have their exponentials in front of the wait for products that were put off.

The compiler moves exponentials behind that wait, but not past a wait for a barrier: for the next turn, where warpgroups
take turns at the tensor cores, or else once more for a barrier at which all has arrived.
"""

from __future__ import annotations

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon.block import Block, filled
from pebblesim.kernels.gluon.tables import TablesRoles
from pebblesim.kernels.terms import Name, Term, term
from pebblesim.kernels.triton.ranges import Setting

TURNS = term("filled") + "turn"
"""Turns before those of a tile of rows."""


class TurnsRoles(TablesRoles):
    """Takes and passes turns. Before a wait there were one for each streamed tile, and one more for each of rows."""

    def __init__(self, setting: Setting, plan: Block) -> None:
        super().__init__(setting, plan)
        self.waiting: Term | None = None  # number of the tile behind which the next turn is to be taken
        self.inside = False  # whether exponentials of this iteration are still to be kept in front of a wait

    def take_turn(self, before: Term) -> None:
        """Wait until the other warpgroup has passed the turn."""
        self.say(st.Wait(Name("turns").index("w"), (before - "w") & 1))

    def take_next_turn(self) -> None:
        """Wait for the turn of the next tile's products, if that was not done at this tile."""
        if self.waiting is not None:
            self.take_turn(TURNS + self.waiting - self.scope.limits()[0] + 2)
            self.waiting = None

    def pass_turn(self) -> None:
        """Let the other warpgroup have the next turn."""
        if self.plan.turns:
            self.say(st.Arrive(Name("turns").index(term(1) - "w")))

    def keep_exponentials(self) -> None:
        """Wait once more for the words of the products that were put off."""
        if self.plan.apart and self.inside:
            ring = next(ring for ring, last in self.plan.last.items() if last is self.plan.late[-1])
            self.say(st.Keep(filled(ring.name, "last"), Name("last_phase")))
            self.inside = False
