"""How long the kernels of `attention` with a bias take on a card, by the model of all other kernels."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from pebblesim.advice.cards import Card
from pebblesim.advice.forecast import launch_forecast
from pebblesim.advice.launch_costs import costs_of
from pebblesim.kernels.readings import read
from pebblesim.kernels.sequences import SEQUENCES
from pebblesim.kernels.triton import triton
from pebblesim.language.masks import Band
from pebblesim.operator import programs_of_bias as kernels

PASSES = {"forward": ("O",), "backward": ("dQ", "dK, dV", "dB")}
"""Kernels of a pass, by what they compute."""

WHICH = {"O": kernels.FORWARD, "dQ": kernels.OF_QUERIES, "dK, dV": kernels.ACROSS, "dB": kernels.OF_BIAS}

FACTORS = {"O": 0.77, "dQ": 0.88, "dK, dV": 1.02, "dB": 1.27}
"""Times on an H200 as multiples of the model's: fitted to layers that `benchmarks/gpu/bias.py` measured there."""


class Sizes(NamedTuple):
    """Sequences with heads of n_q queries and n_k keys, of which so many share a bias."""

    sequences: int
    sharing: int
    heads: int
    n_q: int
    n_k: int
    d: int


def names(way: str, sizes: Sizes, dtype: str, of_bias: bool) -> str:
    """The kernels of a pass, with their tiles."""
    found = []
    for what in PASSES[way]:
        if of_bias or what != "dB":
            tiling = _kernels(what, sizes, dtype).tiling
            found.append(f"{what} in tiles of {' x '.join(map(str, tiling.blocks.values()))}")
    return f"kernels with a bias: {'; '.join(found)}"


def seconds(way: str, sizes: Sizes, dtype: str, band: Band | None, of_bias: bool, card: Card) -> float:
    """Seconds of a pass; `of_bias`: with a gradient of the bias."""
    return sum(
        FACTORS[what] * _seconds(what, sizes, dtype, band, card) for what in PASSES[way] if of_bias or what != "dB"
    )


def _kernels(what: str, sizes: Sizes, dtype: str) -> kernels.Kernels:
    tiling, number = kernels.kernels_of(WHICH[what], "32 bits" if dtype == "float32" else "16 bits", sizes.d)
    while sizes.sharing % number:
        number //= 2
    return kernels.Kernels(tiling, number)


@lru_cache(maxsize=256)
def _seconds(what: str, sizes: Sizes, dtype: str, band: Band | None, card: Card) -> float:
    """Seconds of a kernel by the model."""
    which, (tiling, number) = WHICH[what], (made := _kernels(what, sizes, dtype))
    program = kernels.program(which, made, band)
    at_once, units = sizes.sharing if what == "dB" else number, int(card.figures["multiprocessors"].value)
    groups = sizes.heads * (sizes.sequences // at_once)
    if what == "dB":  # in parts, for all multiprocessors
        rows, columns = tiling.blocks.values()
        parts = kernels.parts_of(-(-sizes.n_q // rows) * -(-sizes.n_k // columns) * groups, sizes.sharing, units)
        at_once, groups = -(-sizes.sharing // parts), groups * parts
    given = {"n_q": sizes.n_q, "n_k": sizes.n_k, "d_k": sizes.d, "d_v": sizes.d, **tiling.blocks, SEQUENCES: at_once}
    source = triton(program, given, dtype, band, scale=1.0, far=False, shared=1, **kernels.launched(tiling))
    found = {each.launch.name: read(each.program) for each in source.kernels}
    costs = costs_of(program, tiling, given, dtype, groups, band, found)
    return sum(launch_forecast(each, card).seconds for each in costs)
