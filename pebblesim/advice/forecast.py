"""How long the kernels of a schedule take on a card, and what binds them.

A launch takes the longest of three times: what its blocks do on the multiprocessors, its bytes through L2 and its
least bytes from memory and to it. A block multiplies, works on elements, waits and writes one after the other; where
several blocks are on a multiprocessor, some of that is hidden. Blocks come in waves of as many as fit on the card;
under a mask they differ, come the longest first, and take no less than the longest of them. The rates are the card's:
bandwidths as measured, the others fitted to kernels that were measured (`cards.RATES`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from pebblesim.advice.cards import Card
from pebblesim.errors import UsageError
from pebblesim.jobs.launch_costs import LaunchCost, launch_costs
from pebblesim.jobs.tiles import TILINGS, Tiling, check, least_room, within
from pebblesim.language.masks import Mask

MANY_WAVES = 8
"""From so many waves on blocks no longer come in waves: they drift apart."""

MOST_THREADS = 2048
"""Threads on a multiprocessor."""

REGISTERS_BESIDES = 64
"""Registers of 32 bits that a thread takes for addresses and counters."""

RESERVED = 1024
"""Bytes of shared memory that each block takes besides its own."""

NEEDED = ("multiprocessors", "registers", "shared_per_multiprocessor", "l2_bandwidth")


@dataclass(frozen=True)
class LaunchForecast:
    """A launch.

    Attributes:
        cost: what it does.
        parts: seconds of "matrix units", "elements", "waiting", "reading late", "writing", "waves" (what the last,
            partly filled wave adds), "leaving" (blocks that a mask leaves nothing to do), "L2", "memory" and "launch".
        seconds: how long it takes.
        resident: blocks on a multiprocessor.
    """

    cost: LaunchCost
    parts: Mapping[str, float]
    seconds: float
    resident: int

    @property
    def binds(self) -> str:
        """L2 or memory if the rest waits for it, else the longest part of what multiprocessors do."""
        for part in ("L2", "memory"):
            if part in self.parts and self.parts["launch"] + self.parts[part] >= self.seconds:
                return part
        return max((part for part in self.parts if part not in ("L2", "memory")), key=lambda part: self.parts[part])


@dataclass(frozen=True)
class Forecast:
    """All launches of a schedule's kernels.

    Attributes:
        tiling: the schedule, and how it is cut.
        launches: for the heads that are done at once.
        rounds: how often that is done.
    """

    tiling: Tiling
    launches: tuple[LaunchForecast, ...]
    rounds: int = 1

    @property
    def seconds(self) -> float:
        """How long they take."""
        return self.rounds * sum(launch.seconds for launch in self.launches)

    @property
    def binds(self) -> str:
        """The part that most of the time goes to, over the launches by what binds each."""
        shares: dict[str, float] = {}
        for launch in self.launches:
            shares[launch.binds] = shares.get(launch.binds, 0) + launch.seconds
        return max(shares, key=lambda part: shares[part])

    def to_dict(self) -> dict[str, Any]:
        """As printed by `pebblesim advise --json`."""
        return {
            "schedule": self.tiling.schedule,
            "blocks": dict(self.tiling.blocks),
            "warps": self.tiling.warps,
            "stages": self.tiling.stages,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "binds": self.binds,
            "launches": [
                {
                    "name": launch.cost.name,
                    "times": launch.cost.times,
                    "programs": launch.cost.programs,
                    "shared": launch.cost.storage.shared,
                    "seconds": launch.seconds,
                    "binds": launch.binds,
                    "parts": dict(launch.parts),
                }
                for launch in self.launches
            ],
        }


def can_forecast(card: Card) -> bool:
    """Whether all that a forecast takes is known of a card."""
    return bool(card.rates) and all(figure in card.figures for figure in NEEDED)


def launch_forecast(cost: LaunchCost, warps: int, card: Card) -> LaunchForecast:
    """How long a launch takes, and why."""
    rate = {name: figure.value for name, figure in card.rates.items()}
    return timed(cost, warps, rate, {name: card.figures[name].value for name in NEEDED})


def timed(cost: LaunchCost, warps: int, rate: Mapping[str, float], figure: Mapping[str, float]) -> LaunchForecast:
    """The same with the rates and figures as plain numbers."""
    if not cost.working:
        return LaunchForecast(cost, {"launch": rate["launch"]}, rate["launch"] * cost.times, 1)
    resident, slots = _resident(cost, warps, figure)
    waves = cost.working / cost.times / slots  # of one launch
    alike = float(ceil(waves)) if waves <= MANY_WAVES else waves
    rounded = alike if cost.longest == 1 else max(waves, cost.longest)
    products = sum(
        operations / (rate["products"] * width / (width + rate["half_width"]))
        for width, operations in cost.products.items()
    )
    besides = {
        "elements": cost.elementwise / rate["elementwise"] * (rate["beside"] if cost.beside else 1),
        "reading late": cost.late / rate["late"],
        "writing": cost.moved.writes / rate["writing"],
    }
    waiting = cost.dots * rate["product"] + cost.passed * rate["passing"]
    busy = (products + sum(besides.values())) / cost.working  # of one block that is alone, without waiting
    shared = (products + rate["overlap"] * sum(besides.values())) / cost.working * resident
    wave = busy + waiting / cost.working
    if resident > 1:
        wave = max(wave, shared)
    scale = figure["multiprocessors"]
    parts = {
        "matrix units": products / scale,
        **{name: seconds / scale for name, seconds in besides.items()},
        "waiting": waiting / cost.working * waves * cost.times,
        "waves": (rounded - waves) * wave * cost.times,
        "leaving": (cost.programs - cost.working) * rate["leaving"] / slots,
        "L2": cost.moved.reads / figure["l2_bandwidth"],
        "memory": cost.least / rate["memory"],
        "launch": rate["launch"] * cost.times,
    }
    seconds = parts["launch"] + max(rounded * wave * cost.times, parts["L2"], parts["memory"]) + parts["leaving"]
    return LaunchForecast(cost, parts, seconds, resident)


def _resident(cost: LaunchCost, warps: int, figure: Mapping[str, float]) -> tuple[int, int]:
    """Blocks on a multiprocessor, and on the card."""
    threads, words = 32 * warps, figure["registers"] / 4
    registers = min(255, cost.storage.registers / 4 / threads + REGISTERS_BESIDES)
    resident = max(
        1,
        min(
            int(figure["shared_per_multiprocessor"] // (cost.storage.shared + RESERVED)),
            int(words // (threads * registers)),
            MOST_THREADS // threads,
        ),
    )
    return resident, resident * int(figure["multiprocessors"])


def forecast(
    tiling: Tiling, dims: Mapping[str, int], card: Card, dtype: str, heads: int = 1, mask: Mask | None = None
) -> Forecast:
    """How long the kernels of a schedule with certain tiles take.

    Args:
        tiling: a schedule and its tiles, powers of two.
        dims: dimensions of its problem.
        card: with `rates`.
        dtype: type of a word of a matrix.
        heads: how many such problems are solved together.
        mask: which pairs are allowed.

    Raises:
        UsageError: not enough is known of the card, or the tiles do not fit on it.
    """
    if not can_forecast(card):
        raise UsageError(f"nobody has measured what kernels reach on {card.name}, so that there is no forecast.")
    costs = launch_costs(tiling, dims, dtype, heads, mask)
    held = ((cost.name, cost.storage) for cost in costs)
    check(tiling, held, card.size("shared_per_block"), card.size("registers"))
    return Forecast(tiling, tuple(launch_forecast(cost, tiling.warps, card) for cost in costs))


def forecasts(
    problem_name: str,
    dims: Mapping[str, int],
    card: Card,
    dtype: str,
    heads: int = 1,
    mask: Mask | None = None,
    workspace: int | None = None,
) -> tuple[Forecast, ...]:
    """Forecasts of all kernels in `TILINGS` that fit on a card, the fastest first; none where there are no kernels.

    Args:
        problem_name, dims, card, dtype, heads, mask: as for `forecast`.
        workspace: bytes that what they make beside their outputs may take: where that is not enough, with fewer heads
            at once, and with tables for fewer rows.

    Raises:
        UsageError: the workspace is too little for any kernel that fits.
    """
    found = []
    for tiling in TILINGS.get(problem_name, ()):
        for cut, at_once in within(tiling, dims, heads, dtype, workspace):
            try:
                made = forecast(cut, dims, card, dtype, at_once, mask)
            except UsageError:
                continue
            found.append(replace(made, rounds=heads // at_once))
    if not found and workspace is not None:
        fit = forecasts(problem_name, dims, card, dtype, heads, mask)
        if fit:
            least = min(least_room(each.tiling, dims, dtype) for each in fit)
            raise UsageError(f"workspace = {workspace:,} bytes is too little for any kernel; give {least:,} or more.")
    return tuple(sorted(found, key=lambda each: each.seconds))


PASTED = {
    "a": "BLOCK_M",
    "b": "BLOCK_N",
    "c": "BLOCK_D",
    "B_r": "BLOCK_M",
    "B_c": "BLOCK_N",
    "b_r": "BLOCK_M1",
    "b_c": "BLOCK_N1",
}
"""What kernels call the blocks."""


def pasted(found: Forecast, dims: Mapping[str, int], heads: int) -> list[str]:
    """Lines to write into a kernel of one's own: its tile, how it is launched, and what each launch takes."""
    named = {PASTED.get(name, name): size for name, size in found.tiling.blocks.items()}
    width = max(size for name, size in dims.items() if name.startswith("d"))
    named.setdefault("BLOCK_D", 1 << (width - 1).bit_length())  # the whole head dimension, as tiles have it
    sizes = ", ".join(f"{name} = {size}" for name, size in named.items())
    lines = [f"  {sizes}, num_warps = {found.tiling.warps}, num_stages = {found.tiling.stages}"]
    at_once = heads // found.rounds
    for launch in found.launches:
        cost = launch.cost
        often = f"{cost.times} times " if cost.times > 1 else ""
        lines.append(
            f"  {cost.name}: {often}grid ({-(-cost.programs // at_once // cost.times)}, {at_once}), "
            f"{cost.storage.shared:,} bytes of shared memory, {launch.seconds * 1e6:,.0f} µs, mostly {launch.binds}"
        )
    if found.rounds > 1:
        lines.append(f"  all that {found.rounds} times, for {at_once} heads each")
    return lines
