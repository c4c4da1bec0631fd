"""Blocks that tensor cores support, nearest to those of a block rule."""

from __future__ import annotations

from typing import Any

from pebblesim.counting.arguments import AnyMask, BlockRule
from pebblesim.counting.count import Counted, count
from pebblesim.kernels.words import LEAST_SIDE


def in_powers_of_two(
    schedule: str, *, M: int, blocks: BlockRule = "fit", mask: AnyMask | None = None, **dims: int
) -> Counted:
    """Count with blocks that tensor cores support: a rule's block sizes, rounded down to powers of two.

    Block sizes that are given do not change.

    Raises:
        UsageError, Infeasible: as for `count`.
    """
    arguments: dict[str, Any] = {"M": M, "mask": mask, **dims}
    counted = count(schedule, blocks=blocks, **arguments)
    if not isinstance(blocks, str):
        return counted
    sides = {name: max(LEAST_SIDE, 1 << (size.bit_length() - 1)) for name, size in counted.blocks.items()}
    return count(schedule, blocks=sides, **arguments)
