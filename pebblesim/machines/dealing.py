"""Outer schedules on several memories: the independent iterations of each phase are dealt to them."""

from __future__ import annotations

from copy import deepcopy

from pebblesim.language import program as ir
from pebblesim.machines.routes import Nested, Share


def dealt(program: ir.Program) -> Nested:
    """Deal a program to several memories below the root.

    In each phase, the tiles of an outermost loop whose iterations are independent are dealt: equal shares of them, one
    after the other. All else is done in the first memory.
    """
    mine, ranges, shares = deepcopy(program), dict[ir.Range, int](), dict[str, Share]()
    for phase in mine.phases:
        for place, node in enumerate(phase.body):
            if not (isinstance(node, ir.Loop) and node.independent and node.when is None) or node.range.apart:
                continue
            rng = node.range
            assert rng.parent is not None
            rng.parent = ir.Range(rng.name, rng.parent, Share((rng.dim,), rng.block, 1).named(shares))
            ranges[rng.parent] = 1
            phase.body[place] = ir.Loop(rng.parent, [node], True, node.line)
    mine.blocks = (*mine.blocks, *shares)
    return Nested(mine, dealt=ranges, shares=shares)
