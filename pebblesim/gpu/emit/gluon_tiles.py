"""Tiles of Gluon kernels for Hopper: for each schedule and width of a head, the fastest measured that spill nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pebblesim.core.errors import UsageError


@dataclass(frozen=True)
class HopperTiles:
    """Block sizes of a schedule, and slots of its rings.

    Attributes:
        schedule: its name.
        blocks: its block sizes.
        widest: largest head dimension that they are for.
        stages: slots of a ring.
        persistent: whether as many blocks as multiprocessors, with several tiles each, are faster without a mask.
    """

    schedule: str
    blocks: Mapping[str, int]
    widest: int
    stages: int = 2
    persistent: bool = False


RESIDENT = {"a": 128, "b": 128, "c": 64, "e": 256}

TILES = (
    HopperTiles("flash2-forward", {"B_r": 128, "B_c": 128}, 64, 3, persistent=True),
    HopperTiles("flash2-forward", {"B_r": 128, "B_c": 128}, 128, persistent=True),
    HopperTiles("flash2-forward", {"B_r": 128, "B_c": 64}, 256, persistent=True),
    HopperTiles("scores-stored-resident", RESIDENT, 256, 8),
    HopperTiles("scores-stored-resident", RESIDENT, 512, 8),
    HopperTiles("flash2-backward-blocked", {"B_c": 128, "b_r": 64}, 64, 3, persistent=True),
    HopperTiles("flash2-backward-blocked", {"B_c": 128, "b_r": 64}, 128, persistent=True),
    HopperTiles("small-cache-backward-resident", RESIDENT, 256, 8),
    HopperTiles("small-cache-backward-resident", RESIDENT, 512, 8),
    HopperTiles("backward-two-pass-blocked", {"B_r": 128, "b_c": 64, "B_c": 128, "b_r": 128}, 64, 3),
    HopperTiles("backward-two-pass-blocked", {"B_r": 128, "b_c": 64, "B_c": 128, "b_r": 64}, 128),
)
"""From narrow heads to wide ones."""


def tiles_of(schedule: str, dims: Mapping[str, int]) -> HopperTiles:
    """The tiles for a schedule's dimensions.

    Raises:
        UsageError: there are none; the sentence says for which there are.
    """
    widest = max((size for name, size in dims.items() if name.startswith("d")), default=1)
    offered = {each.schedule: each.widest for each in TILES}  # the widest is the last one
    if schedule not in offered:
        raise UsageError(
            f"{schedule} has no tiles for Gluon kernels; take {', '.join(offered)}, give each --block, or take "
            "--target triton."
        )
    if widest > offered[schedule]:
        raise UsageError(
            f"{schedule} has tiles for Gluon kernels up to d = {offered[schedule]}, and d is {widest}; give each "
            "--block, or take --target triton."
        )
    return next(each for each in TILES if each.schedule == schedule and widest <= each.widest)
