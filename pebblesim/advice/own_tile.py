"""A tile of the user's as one of our kernels: with warps whose registers hold it, or why there is no forecast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log2

from pebblesim.advice.cards import Card
from pebblesim.advice.forecast import MOST_REGISTERS, REGISTERS_BESIDES, Forecast, if_it_fits
from pebblesim.advice.launch_costs import LaunchCost, launch_costs
from pebblesim.advice.tiles import Tiling
from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import assigned
from pebblesim.kernels.words import LEAST_SIDE
from pebblesim.language.masks import Mask

WARPS = (4, 8)
"""Warps of a block that are tried: rates are known for these."""

STAGES = (3, 4, 2)
"""Copies of operands that are tried; of settings with one forecast the first is taken."""


@dataclass(frozen=True)
class OwnTile:
    """The user's tile as a schedule's kernel.

    Attributes:
        schedule, blocks: the tile; blocks that were not given are those of the fastest kernel of the schedule.
        forecast: the forecast with the warps and stages that are fastest; None if no setting fits.
        spilling: warps with which a thread would hold more than its registers, and how many it would hold.
        why: why no kernel has the tile; empty if one has, or if all spill.
        measured: whether kernels with this tile were measured on the card, if it was calibrated.
        given: the blocks that the user gave. Where the schedule has not all of them, the tile is its nearest one.
    """

    schedule: str
    blocks: Mapping[str, int]
    forecast: Forecast | None = None
    spilling: Mapping[int, int] = field(default_factory=dict)
    why: str = ""
    measured: bool = False
    given: Mapping[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of blocks that were given, and that the schedule has not."""
        return tuple(name for name in self.given if name not in self.blocks)

    def judged(self, best: Forecast) -> str:
        """A sentence on the tile beside the kernel that is advised."""
        said = f"your tile, {self.schedule} {assigned(self.blocks)}"
        if self.missing:
            said = f"your tile: {self.schedule} has no block {', '.join(self.missing)}, its blocks are "
            said += f"{', '.join(self.blocks)}; of its tiles the nearest is {assigned(self.blocks)}"
        elif filled := [name for name in self.blocks if name not in self.given]:
            said += f" ({', '.join(filled)} not given)"
        spilling = "; ".join(
            f"with {warps} warps it spills: a thread holds {held} registers of tiles, besides some "
            f"{REGISTERS_BESIDES}, and has {MOST_REGISTERS}"
            for warps, held in self.spilling.items()
        )
        if self.forecast is None:
            return f"{said}: {self.why or f'no forecast, {spilling}'}"
        tiling = self.forecast.tiling
        said += ", Gluon: " if tiling.gluon else f", {tiling.warps} warps, {tiling.stages} stages: "
        said += f"{self.forecast.seconds / best.seconds:.2f} x the time of the first"
        said += f"; {spilling}" if spilling else ""
        if not self.measured:
            said += "; this tile was not measured: of others that were not, some took a quarter longer than forecast"
        return said


def own_tiles(
    blocks: Mapping[str, int],
    ranked: Sequence[Forecast],
    dims: Mapping[str, int],
    card: Card,
    dtype: str,
    heads: int,
    mask: Mask | None,
) -> Iterator[OwnTile]:
    """The user's tile as a Triton kernel of each schedule that has such blocks, and as those of Gluon that have it.

    If the schedule of the fastest kernel has not all of these blocks, its tile that is nearest is the first.

    A tile is taken to spill if a thread holds more registers than there are, unless a kernel of the schedule that is
    offered holds as many: those were compiled, and do not spill.

    Args:
        blocks: the blocks that the user gave.
        ranked: forecasts of the kernels that are offered, the fastest first.
        dims, card, dtype, heads, mask: as for `forecast`.
    """
    if ranked and not set(blocks) <= set(ranked[0].tiling.blocks):
        near = nearest(blocks, [each for each in ranked if each.tiling.schedule == ranked[0].tiling.schedule])
        yield OwnTile(near.tiling.schedule, near.tiling.blocks, near, measured=True, given=blocks)
    for each in ranked:
        tiling = each.tiling
        if tiling.gluon and blocks.items() <= tiling.blocks.items():
            yield OwnTile(tiling.schedule, tiling.blocks, each, measured=True, given=blocks)
    triton = [each for each in ranked if not each.tiling.gluon]
    for schedule in dict.fromkeys(each.tiling.schedule for each in triton):
        offered = [each for each in triton if each.tiling.schedule == schedule]
        if not set(blocks) <= set(offered[0].tiling.blocks):
            continue
        tile = {**offered[0].tiling.blocks, **blocks}
        if wrong := {name: size for name, size in blocks.items() if size < LEAST_SIDE or size & (size - 1)}:
            why = "no kernel, sides of tiles on tensor cores are powers of two from "
            why += f"{LEAST_SIDE} on, unlike {assigned(wrong)}"
            yield OwnTile(schedule, tile, why=why, given=blocks)
            continue
        try:
            yield replace(_fastest(schedule, tile, offered, dims, card, dtype, heads, mask), given=blocks)
        except UsageError as refused:  # by the emitter, whose program a forecast reads
            yield OwnTile(schedule, tile, why=f"no kernel, {refused}".removesuffix("."), given=blocks)


def nearest(blocks: Mapping[str, int], offered: Sequence[Forecast]) -> Forecast:
    """The kernel whose sides are the fewest times larger or smaller than those given; of equals the first.

    A side that was not given is compared with the one that is called the same but for the letter's case, as B_r and b_r
    are both rows of queries.
    """

    def apart(kernel: Forecast) -> float:
        asked = {name: blocks.get(name, blocks.get(name.swapcase()[:1] + name[1:])) for name in kernel.tiling.blocks}
        return sum(abs(log2(kernel.tiling.blocks[name] / size)) for name, size in asked.items() if size)

    return min(offered, key=apart)


def _fastest(
    schedule: str,
    tile: Mapping[str, int],
    offered: Sequence[Forecast],
    dims: Mapping[str, int],
    card: Card,
    dtype: str,
    heads: int,
    mask: Mask | None,
) -> OwnTile:
    """The tile with the warps and stages that have the shortest forecast."""
    holds: dict[str, int] = {}
    for each in offered:
        for launch in each.launches:
            holds[launch.cost.name] = max(holds.get(launch.cost.name, 0), registers_of(launch.cost))
    found: list[Forecast] = []
    spilling: dict[int, int] = {}
    why = ""
    for warps in WARPS:
        too_many = [
            held
            for cost in launch_costs(Tiling(schedule, tile, warps), dims, dtype, heads, mask)
            if (held := registers_of(cost)) > max(MOST_REGISTERS - REGISTERS_BESIDES, holds.get(cost.name, 0))
        ]
        if too_many:
            spilling[warps] = max(too_many)
            continue
        for stages in STAGES:
            made = if_it_fits(Tiling(schedule, tile, warps, stages), dims, card, dtype, heads, mask)
            if isinstance(made, Forecast):
                found.append(made)
            else:
                why = f"does not fit, {made.why}"
    measured = next((each for each in offered if dict(each.tiling.blocks) == dict(tile)), None)
    if measured is not None:
        return OwnTile(schedule, tile, measured, spilling, measured=True)
    if not found:
        return OwnTile(schedule, tile, spilling=spilling, why=why)
    return OwnTile(schedule, tile, min(found, key=lambda each: each.seconds), spilling)


def registers_of(cost: LaunchCost) -> int:
    """32-bit registers of a thread that the tiles of a launch take."""
    return -(-cost.storage.registers // (4 * 32 * cost.warps))
