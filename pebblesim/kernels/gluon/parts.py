"""Roles of Gluon kernels whose sums have their terms in parts: rings of parts, and tables of pairs tile by tile."""

from __future__ import annotations

from pebblesim.kernels.gluon.block import Block, Nest
from pebblesim.kernels.gluon.tables import TablesRoles
from pebblesim.kernels.triton.ranges import Setting


class PartsRoles(TablesRoles):
    """Makes the statements of both roles where a product's parts are issued one behind the other."""

    def __init__(self, setting: Setting, plan: Block) -> None:
        super().__init__(setting, plan)
        assert plan.nest is not None
        self.nest: Nest = plan.nest
        self.reserve("slot", "phase", "k")
