"""Tiles of Gluon kernels for Hopper: for each schedule and width of a head, the fastest measured that spill nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pebblesim.core.errors import UsageError


@dataclass(frozen=True)
class HopperTiles:
    """Block sizes of a schedule, and slots of its rings.

    Attributes:
        schedule: its name.
        blocks: its block sizes.
        widest: largest head dimension that they are for.
        stages: slots of a ring.
        apart: those of launches that have others, by the name of the phase.
    """

    schedule: str
    blocks: Mapping[str, int]
    widest: int
    stages: int = 2
    apart: Mapping[str, int] = field(default_factory=dict)


TILES = (
    HopperTiles("flash2-forward", {"B_r": 128, "B_c": 128}, 128),
    HopperTiles("flash2-forward", {"B_r": 128, "B_c": 64}, 256),
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
    found = next((each for each in TILES if each.schedule == schedule and widest <= each.widest), None)
    if found is None:
        offered = ", ".join(f"{each.schedule} to d = {each.widest}" for each in TILES)
        raise UsageError(
            f"{schedule} with d = {widest} has no tiles for Gluon kernels; give each --block, or take --target triton "
            f"(there are tiles for {offered})."
        )
    return found
