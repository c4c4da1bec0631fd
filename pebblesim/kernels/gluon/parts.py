"""Roles of Gluon kernels whose sums have their terms in parts: rings of parts, and tables of pairs tile by tile."""

from __future__ import annotations

from collections.abc import Callable

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon.block import Block, Nest, freed
from pebblesim.kernels.gluon.tables import TablesRoles
from pebblesim.kernels.terms import ZERO, Held, Name, Number
from pebblesim.kernels.triton.ranges import Setting

Issuing = Callable[[Name], list[st.Statement]]
"""Statements that issue the products of a part, by its number: `k` of one that is written out, or `rest`."""


class PartsRoles(TablesRoles):
    """Makes the statements of both roles where a product's parts are issued one behind the other."""

    def __init__(self, setting: Setting, plan: Block) -> None:
        super().__init__(setting, plan)
        assert plan.nest is not None
        self.nest: Nest = plan.nest
        self.reserve("last", "slot", "phase", "k", "rest")

    def one_behind(self, to: tuple[Held, ...], ring: str, parts: int, issued: Issuing, alone: int) -> None:
        """Parts one after the other, each of which waits for the products before its own; then wait for the last ones.

        The first `alone` parts are written out. Others are a loop, so that their products are compiled once.
        """
        free, last = st.Arrive(freed(ring, "last")), st.Let(("last",), (Name("slot"),))
        before, k, rest = (st.Settle(to, len(to)), free), Name("k"), Name("rest")
        first = (*issued(k), st.When(k > 0, before), last)
        self.say(st.For("k", ZERO, Number(alone), first, unrolled=True))
        if alone < parts:
            self.say(*before[: alone == 1])  # a loop goes on with sums that were waited for
            self.say(st.For("rest", Number(alone), Number(parts), (*issued(rest), *before, last)))
        self.say(st.Settle(to, 0), free)
