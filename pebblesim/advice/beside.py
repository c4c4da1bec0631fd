"""Tiles that readers expect, measured beside the one that is offered: their forecasts, so that they can be compared.

The forecast of a tile that is not among those that a card was calibrated with may be a quarter too short, and would
then stand before a kernel that is faster. These tiles were measured beside an offered one (`beside.toml`), and are
forecast to take as many times as long as they did, or what the model says if that is longer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pebblesim.advice.cards import Card
from pebblesim.advice.forecast import Forecast, forecast
from pebblesim.advice.tiles import Tiling
from pebblesim.kernels.domains import Call
from pebblesim.language.masks import Mask


def beside(
    ranked: Sequence[Forecast], dims: Mapping[str, int], card: Card, dtype: str, heads: int, mask: Mask | None
) -> list[Forecast]:
    """Forecasts of the tiles that were measured on this card beside one of those that are offered.

    Args:
        ranked: forecasts of the kernels that are offered.
        dims, card, dtype, heads, mask: as for `forecast`.
    """
    made = []
    for row in _measured().get(card.device, ()):
        schedule, blocks = row["schedule"], row["blocks"]
        like = next((each for each in ranked if _same(each.tiling, schedule, row["beside"])), None)
        if like is None or like.rounds > 1 or any(_same(each.tiling, schedule, blocks) for each in ranked):
            continue
        tiling = Tiling(schedule, blocks, row["warps"], row["stages"], widths=tuple(row["widths"]))
        if tiling.refusal(Call(dims, mask)):
            continue
        own = forecast(tiling, dims, card, dtype, heads, mask)
        made.append(_slower(own, row["all" if mask is None else "causal"] * like.seconds / own.seconds))
    return made


def _same(tiling: Tiling, schedule: str, blocks: Mapping[str, int]) -> bool:
    return tiling.schedule == schedule and dict(tiling.blocks) == blocks


def _slower(made: Forecast, factor: float) -> Forecast:
    """A forecast of at least `factor` times the seconds."""
    if factor <= 1:
        return made
    launches = (
        replace(each, parts={part: factor * own for part, own in each.parts.items()}, seconds=factor * each.seconds)
        for each in made.launches
    )
    return replace(made, launches=tuple(launches))


@cache
def _measured() -> dict[str, list[dict[str, Any]]]:
    """The tiles that were measured, by the name that a card's driver gives it."""
    with (Path(__file__).parent / "beside.toml").open("rb") as file:
        return tomllib.load(file)
