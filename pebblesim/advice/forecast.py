"""Forecast the time of a schedule's kernels on a card, and the limiting resource.

Three limits bind the time of a launch: the work of its blocks on the multiprocessors, its bytes through L2, and its
least bytes from and to memory. In a block, matrix products, elementwise work and writing follow one another. The blocks
on a multiprocessor share it (`advice.sharing`), so one that is alone runs faster than among others, but leaves
much of the multiprocessor idle; under a mask blocks differ, and the longest run first. The rates are those of the card:
bandwidths were measured, the others were fitted to measured kernels (`cards.RATES`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pebblesim.advice.cards import SCALED, Card
from pebblesim.advice.launch_costs import LaunchCost, launch_costs
from pebblesim.advice.launch_rounds import Round
from pebblesim.advice.sharing import pace, time_of, together
from pebblesim.advice.tiles import Tiling, kernels_for, least_room, too_large, within
from pebblesim.core.errors import UsageError
from pebblesim.core.results import plain
from pebblesim.kernels.domains import Call, Refusal, expected
from pebblesim.language.masks import Mask

SHARPNESS = 4
"""Power of the times of which each binds a launch, in their joint time."""

UNSURE = 1.25
"""Factor up to which forecasts with scaled rates do not tell kernels apart."""

MOST_THREADS = 2048
"""Threads on a multiprocessor, where the card does not say."""

MOST_REGISTERS = 255
"""32-bit registers that a thread can have."""

REGISTERS_BESIDES = 64
"""32-bit registers that a thread uses for addresses and counters."""

RESERVED = 1024
"""Bytes of shared memory that the system reserves for each block."""

NEEDED = ("multiprocessors", "registers", "shared_per_multiprocessor", "l2_bandwidth")


@dataclass(frozen=True)
class LaunchForecast:
    """A launch.

    Attributes:
        cost: the operations and bytes of the launch.
        parts: seconds of "tensor cores", "elements", "mask", "reading late", "writing", "latency" (in which
            all the blocks that fit on a multiprocessor wait), "too few blocks" (in which fewer are there, or none),
            "idle blocks" (to which a mask leaves nothing to do), "L2", "memory" and "launch".
        seconds: its time.
        resident: blocks on a multiprocessor, as many as fit and there are.
    """

    cost: LaunchCost
    parts: Mapping[str, float]
    seconds: float
    resident: int

    @property
    def binds(self) -> str:
        """The limiting resource:

        L2 or memory if the rest waits for it, else the longest part of the work on multiprocessors.
        """
        others = [part for part in self.parts if part not in ("L2", "memory")]
        work = sum(self.parts[part] for part in others if part not in ("launch", "idle blocks"))
        slow = max(("L2", "memory"), key=lambda part: self.parts.get(part, 0.0))
        if self.parts.get(slow, 0.0) > max(work, self.parts["launch"]):
            return slow
        return max(others, key=lambda part: self.parts[part])

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim advise --json`."""
        cost = (f"cost.{name}" for name in ("name", "times", "programs", "warps", "stages", "storage.shared"))
        return plain(self, *cost, "seconds", "binds", "parts")


@dataclass(frozen=True)
class Forecast:
    """The forecast of all launches of a schedule's kernels.

    Attributes:
        tiling: the schedule, and its tiles.
        launches: of the heads that are done at once.
        rounds: number of times that these run.
    """

    tiling: Tiling
    launches: tuple[LaunchForecast, ...]
    rounds: int = 1

    @property
    def seconds(self) -> float:
        """The total time in seconds."""
        return self.rounds * sum(launch.seconds for launch in self.launches)

    @property
    def binds(self) -> str:
        """The resource that limits most of the time, summed over the launches by limiting resource."""
        shares: dict[str, float] = {}
        for launch in self.launches:
            shares[launch.binds] = shares.get(launch.binds, 0) + launch.seconds
        return max(shares, key=lambda part: shares[part])

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim advise --json`."""
        tiling = (f"tiling.{name}" for name in ("schedule", "blocks", "warps", "stages", "gluon"))
        return plain(self, *tiling, "rounds", "seconds", "binds", "launches")


def can_forecast(card: Card) -> bool:
    """Whether all that a forecast takes is known of a card."""
    return bool(card.rates) and all(figure in card.figures for figure in NEEDED)


def launch_forecast(cost: LaunchCost, card: Card) -> LaunchForecast:
    """How long a launch takes, and why."""
    rate = {name: figure.value for name, figure in card.rates.items()}
    rate["memory"] /= card.factor(f"{kind}, memory" for kind in cost.kinds)
    begins = card.factor(f"{kind}, launch" for kind in cost.kinds)
    rate |= {name: begins * rate[name] for name in ("launch", "start")}
    return timed(cost, rate, figures_of(card), card.factor(cost.kinds))


def figures_of(card: Card) -> dict[str, float]:
    """The figures of a card that a forecast takes, as plain numbers."""
    return {name: card.figures[name].value for name in (*NEEDED, "threads") if name in card.figures}


def timed(
    cost: LaunchCost, rate: Mapping[str, float], figure: Mapping[str, float], factor: float = 1.0
) -> LaunchForecast:
    """Forecast how long a launch takes, and why, from rates and figures of a card as plain numbers.

    The work on multiprocessors takes `factor` times as long as these say.
    """
    slots, units = resident(cost, figure), int(figure["multiprocessors"])
    idle = (cost.programs - cost.working) / (slots * units)
    if not cost.working:
        parts = {"launch": rate["launch"] * cost.times, "idle blocks": rate["leaving"] * max(cost.times, idle)}
        return LaunchForecast(cost, parts, sum(parts.values()), 1)
    spent = {
        "tensor cores": sum(
            operations * (1 + rate["half_width"] / width) / rate["products"]
            for width, operations in cost.products.items()
        ),
        "elements": (cost.elementwise + rate["beside"] * cost.beside) / rate["elementwise"],
        "mask": cost.masked / rate["masked"],
        "reading late": cost.late / rate["late"],
        "writing": cost.moved.writes / rate["writing"],
    }
    busy = sum(spent.values()) / cost.working  # seconds of one block
    alone = busy + rate["begin"] * cost.begun / cost.working
    slower = alone / busy if busy else 1.0  # a block that only leaves takes no time of its own
    rounds = ((alike, each) for alike, each in cost.rounds if each)
    work = busy * sum(
        alike * time_of(each, cost.heads, units, slots, slower, cost.side_by_side) for alike, each in rounds
    )
    parts = {name: factor * seconds / units for name, seconds in spent.items()}
    parts["latency"] = (pace(slots, slower) - 1) * sum(parts.values())
    parts["too few blocks"] = max(0.0, factor * work - sum(parts.values()))
    parts |= {
        "idle blocks": rate["leaving"] * idle,
        "L2": cost.moved.reads / rate["l2"],
        "memory": cost.least / rate["memory"],
    }
    parts["launch"] = (rate["launch"] + rate["start"]) * cost.times
    working = together((factor * work, parts["L2"], parts["memory"]), SHARPNESS)
    there = -(-cost.working // (cost.times * units))
    return LaunchForecast(cost, parts, parts["launch"] + working + parts["idle blocks"], min(slots, there))


def resident(cost: LaunchCost, figure: Mapping[str, float]) -> int:
    """Blocks that fit on a multiprocessor at the same time."""
    threads, words = 32 * cost.warps, figure["registers"] / 4
    registers = min(MOST_REGISTERS, cost.storage.registers / 4 / threads + REGISTERS_BESIDES)
    fitting = (
        figure["shared_per_multiprocessor"] // (cost.storage.shared + RESERVED),
        words // (threads * registers),
        figure.get("threads", MOST_THREADS) // threads,
    )
    return max(1, int(min(fitting)))


def forecast(
    tiling: Tiling, dims: Mapping[str, int], card: Card, dtype: str, heads: int = 1, mask: Mask | None = None
) -> Forecast:
    """Forecast the time of a schedule's kernels with given tiles.

    Args:
        tiling: a schedule and its tiles, powers of two.
        dims: dimensions of its problem.
        card: a card with `rates`.
        dtype: data type of the words of a matrix.
        heads: number of problems solved together.
        mask: the allowed pairs.

    Raises:
        UsageError: a figure of the card is missing, or the tiles do not fit on it.
    """
    if not can_forecast(card):
        raise UsageError(f"the rates of kernels on {card.name} were not measured, so there is no forecast.")
    made = if_it_fits(tiling, dims, card, dtype, heads, mask)
    if isinstance(made, Refusal):
        raise UsageError(f"{tiling}: {made}.")
    return made


def if_it_fits(
    tiling: Tiling, dims: Mapping[str, int], card: Card, dtype: str, heads: int = 1, mask: Mask | None = None
) -> Forecast | Refusal:
    """The forecast of a schedule's kernels on a card with all rates, or why their blocks do not fit there.

    Args:
        tiling, dims, card, dtype, heads, mask: as for `forecast`.
    """
    costs = launch_costs(tiling, dims, dtype, heads, mask)
    held = () if tiling.gluon else ((cost.name, cost.storage) for cost in costs)
    why = too_large(held, card.size("shared_per_block"), card.size("registers"))
    return why or Forecast(tiling, tuple(launch_forecast(cost, card) for cost in costs))


def at_least(kernel: Forecast, card: Card, dtype: str) -> float | None:
    """The least seconds in which published rates of a card allow a kernel; None if its rate of products is not known.

    Each launch takes as long as the products of the multiprocessor with most of them, its bytes from L2, and those from
    and to memory, each part once.
    """
    peak = card.peak.get(dtype)
    if peak is None:
        return None
    seconds = 0.0
    for launch in kernel.launches:
        cost, limits = launch.cost, [0.0]
        if cost.working:
            each = sum(cost.products.values()) / cost.working
            units = int(card.figures["multiprocessors"].value) if "multiprocessors" in card.figures else 1
            busiest = sum(alike * _busiest(blocks, units) for alike, blocks in cost.rounds)
            limits.append(each * busiest / (peak.value / units))
        l2 = card.figures.get("l2_bandwidth")
        if l2 and l2.source != SCALED:
            limits.append((cost.moved.reads - cost.added) / l2.value)
        limits.append(cost.least / card.figures["memory_bandwidth"].value)
        seconds += max(limits)
    return kernel.rounds * seconds


def _busiest(blocks: Round, units: int) -> float:
    """Blocks of average work, at least, on the multiprocessor that has most."""
    if not blocks:
        return 0.0
    if len(blocks) == 1:
        ((time, number),) = blocks
        return time * -(-number // units)
    return max(sum(time * number for time, number in blocks) / units, blocks[0][0])


def forecasts(
    problem_name: str, call: Call, card: Card, heads: int = 1, workspace: int | None = None
) -> tuple[Forecast, ...]:
    """Forecast the kernels of ours that are for a call and fit on a card, fastest first; empty if there are none.

    On a card whose rates are scaled ones of another, no kernel counts as faster than `at_least` says, and one that
    keeps tables in memory comes first only if it is faster by the factor `UNSURE`.

    Args:
        problem_name, call: what is computed; it has Gluon kernels where the call has the capability for them.
        card, heads: as for `forecast`.
        workspace: bytes that the tables of the kernels may take; if that is too little, fewer heads run at once, or the
            tables have fewer rows.

    Raises:
        UsageError: the workspace is too little for any kernel that fits.
    """
    dims, dtype, mask, fitting = call.dims, call.dtype, expected(call.mask), []
    for tiling in kernels_for(problem_name, call, card.size("shared_per_block")):
        for cut, at_once in within(tiling, dims, heads, dtype, workspace, mask):
            made = if_it_fits(cut, dims, card, dtype, at_once, mask)
            if isinstance(made, Forecast):
                fitting.append(replace(made, rounds=heads // at_once))
    if not fitting and workspace is not None:
        fit = forecasts(problem_name, call, card, heads)
        if fit:
            least = min(least_room(each.tiling, dims, dtype, mask) for each in fit)
            raise UsageError(f"workspace = {workspace:,} bytes is too little for any kernel; give {least:,} or more.")

    def rank(each: Forecast) -> float:
        if not card.scaled:
            return each.seconds
        tables = least_room(each.tiling, dims, dtype, mask) > 0
        return max(each.seconds, at_least(each, card, dtype) or 0.0) * (UNSURE if tables else 1.0)

    return tuple(sorted(fitting, key=rank))
