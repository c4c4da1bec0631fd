"""Roles of Gluon kernels whose sums have their terms in parts: rings of parts, and tables of pairs tile by tile."""

from __future__ import annotations

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon.block import Block, Nest, freed
from pebblesim.kernels.gluon.tables import TablesRoles
from pebblesim.kernels.terms import ZERO, Held, Name, Number, term
from pebblesim.kernels.triton.ranges import Setting


class PartsRoles(TablesRoles):
    """Makes the statements of both roles where a product's parts are issued one behind the other."""

    def __init__(self, setting: Setting, plan: Block) -> None:
        super().__init__(setting, plan)
        assert plan.nest is not None
        self.nest: Nest = plan.nest
        self.reserve("last", "slot", "phase", "k")

    def one_behind(self, to: tuple[Held, ...], ring: str, parts: int, issued: list[st.Statement]) -> None:
        """A loop over parts that waits for the products before those issued; behind it, wait for the last ones."""
        free = st.Arrive(freed(ring, "last"))
        earlier = st.When(term("k") > 0, (st.Settle(to, len(to)), free))
        body = (*issued, earlier, st.Let(("last",), (Name("slot"),)))
        self.say(st.For("k", ZERO, Number(parts), body, unrolled=True), st.Settle(to, 0), free)
