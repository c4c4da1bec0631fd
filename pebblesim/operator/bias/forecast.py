"""How long the kernels of `attention` with a bias take on a card, by the model of all other kernels."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from pebblesim.advice.cards import Card
from pebblesim.advice.forecast import launch_forecast
from pebblesim.advice.launch_costs import costs_of
from pebblesim.kernels.domains import STREAMED, Call
from pebblesim.kernels.gluon.gluon import gluon
from pebblesim.kernels.passes.bias_stays import OF_PART, SPAN
from pebblesim.kernels.passes.sequences import SEQUENCES
from pebblesim.kernels.readings import read
from pebblesim.kernels.triton.triton import triton
from pebblesim.language.masks import Band
from pebblesim.operator.bias import programs as kernels
from pebblesim.operator.planning import ROOM

WHICH = {
    "O": kernels.FORWARD,
    "dQ": kernels.OF_QUERIES,
    "dK, dV": kernels.ACROSS,
    "dB": kernels.OF_BIAS,
    "v, dQ, dB": kernels.WITH_V,
}
"""Kernels by what they compute; those of dQ compute v first."""

STAYING = {"O": 1.25, "dK, dV": 0.92}
"""Factors as those of `FACTORS`, of kernels in which rows of the bias stay."""

FACTORS = {"O": 0.77, "dQ": 0.88, "dK, dV": 1.02, "dB": 1.27, "v, dQ, dB": 0.305}
"""Times on an H200 as multiples of the model's: fitted to layers that `benchmarks/gpu/bias.py` measured there."""

BEGINNING = {"v, dQ, dB": 6.9e-6}
"""Seconds of a launch beside these: blocks read their bias before the first sequence, and write dB behind the last."""


WIDE = 4
"""Bytes of a word of a sum."""


class Sizes(NamedTuple):
    """Sequences with heads of n_q queries and n_k keys, of which so many share a bias."""

    sequences: int
    sharing: int
    heads: int
    n_q: int
    n_k: int
    d: int


def names(way: str, sizes: Sizes, dtype: str, of_bias: bool, card: Card) -> str:
    """The kernels of a pass, with their tiles."""
    found = []
    for what in _passes(way, sizes, dtype, None, of_bias, card):
        tiling = _kernels(what, sizes, dtype, None, card).tiling
        sides = [side for name, side in tiling.blocks.items() if name != OF_PART][:2]
        found.append(f"{what} in tiles of {' x '.join(map(str, sides))}")
    return f"kernels with a bias: {'; '.join(found)}"


def seconds(way: str, sizes: Sizes, dtype: str, band: Band | None, of_bias: bool, card: Card) -> float:
    """Seconds of a pass; `of_bias`: with a gradient of the bias."""
    return _sum(_passes(way, sizes, dtype, band, of_bias, card), sizes, dtype, band, card)


def _passes(way: str, sizes: Sizes, dtype: str, band: Band | None, of_bias: bool, card: Card) -> tuple[str, ...]:
    """The kernels of a pass, by what they compute."""
    if way == "forward":
        return ("O",)
    if of_bias and band is None and at_once(sizes, dtype, card):
        return ("v, dQ, dB", "dK, dV")
    return ("dQ", "dK, dV", "dB")[: 2 + of_bias]


def at_once(sizes: Sizes, dtype: str, card: Card) -> bool:
    """Whether dQ and dB are computed by one kernel: on cards that it is for, where it is faster by the forecast.

    And where dQ in float32, if keys are divided among launches, takes no more than half of the room for tables.
    """
    launches = len(kernels.spans(sizes.n_k))
    room = WIDE * sizes.sequences * sizes.heads * sizes.n_q * sizes.d * (launches > 1)
    if not _streams(sizes, dtype, None, card) or room > ROOM // 2 or sizes.sharing < kernels.FEWEST_AT_ONCE:
        return False
    apart, together = (_sum(each, sizes, dtype, None, card) for each in (("dQ", "dB"), ("v, dQ, dB",)))
    return together < apart


def _streams(sizes: Sizes, dtype: str, band: Band | None, card: Card) -> bool:
    """Whether sequences may stream past rows of the bias."""
    asked = Call({"d": sizes.d}, band, dtype=dtype, card=card.name, capability=card.capability)
    return STREAMED.refusal(asked) is None


def _sum(each: tuple[str, ...], sizes: Sizes, dtype: str, band: Band | None, card: Card) -> float:
    return sum(_seconds(what, sizes, dtype, band, card) for what in each)


def _kernels(what: str, sizes: Sizes, dtype: str, band: Band | None, card: Card) -> kernels.Kernels:
    if what == "v, dQ, dB":
        return kernels.at_once(kernels.spans(sizes.n_k)[0].stop)
    if sizes.sharing > 1 and _streams(sizes, dtype, band, card):
        sides = (sizes.n_k, sizes.n_q) if what == "dK, dV" else (sizes.n_q, sizes.n_k)
        bias = kernels.Rows(*sides, sizes.sequences * sizes.heads / int(card.figures["multiprocessors"].value))
        if (found := kernels.staying(WHICH[what], (sizes.d, sizes.d), bias)) is not None:
            return found
    tiling, number = kernels.kernels_of(WHICH[what], "32 bits" if dtype == "float32" else "16 bits", sizes.d)
    while sizes.sharing % number:
        number //= 2
    return kernels.Kernels(tiling, number)


@lru_cache(maxsize=256)
def _seconds(what: str, sizes: Sizes, dtype: str, band: Band | None, card: Card) -> float:
    """Seconds of a kernel: those of the model, times its factor."""
    which, (tiling, number) = WHICH[what], (made := _kernels(what, sizes, dtype, band, card))
    program, units = kernels.program(which, made, band), int(card.figures["multiprocessors"].value)
    streams, factor = sizes.sharing if what in ("dB", "v, dQ, dB") else number, FACTORS[what]
    groups, blocks, n_k = sizes.heads * (sizes.sequences // streams), dict(tiling.blocks), sizes.n_k
    if what in STAYING and tiling.gluon:  # a block for each multiprocessor, with as many sequences as others
        groups = max(1, units // -(-(sizes.n_k if what == "dK, dV" else sizes.n_q) // next(iter(blocks.values()))))
        streams = -(-sizes.heads * sizes.sequences // groups)
        factor = STAYING[what]
    launches, beside = 1, 0
    if what == "dB":  # in parts, for all multiprocessors
        rows, columns = blocks.values()
        parts = kernels.parts_of(-(-sizes.n_q // rows) * -(-n_k // columns) * groups, sizes.sharing, units)
        streams, groups = -(-sizes.sharing // parts), groups * parts
    if what == "v, dQ, dB":
        parts = max(1, units // (-(-sizes.n_q // blocks["B_r"]) * groups))
        blocks[OF_PART], launches, n_k = -(-sizes.sharing // parts), len(kernels.spans(n_k)), blocks[SPAN]
        beside = _summed(sizes, parts, launches)
    given = {"n_q": sizes.n_q, "n_k": n_k, "d_k": sizes.d, "d_v": sizes.d, **blocks, SEQUENCES: streams}
    if tiling.gluon:
        source = gluon(program, given, dtype, band, scale=1.0, shared=1, stages=tiling.stages)
    else:
        source = triton(program, given, dtype, band, scale=1.0, far=False, shared=1, **kernels.launched(tiling))
    found = {each.launch.name: read(each.program) for each in source.kernels}
    costs = costs_of(program, tiling, given, dtype, groups, band, found)
    seconds = sum(launch_forecast(each, card).seconds for each in costs)
    begun = launches * BEGINNING.get(what, 0.0)
    return begun + factor * (launches * seconds + beside / card.rates["memory"].value)


def _summed(sizes: Sizes, parts: int, launches: int) -> int:
    """Bytes of sums in float32: parts of dB, and dQ between launches of as many keys each."""
    groups = sizes.sequences // sizes.sharing
    dB = groups * sizes.heads * sizes.n_q * sizes.n_k * WIDE * (parts + 1) * (parts > 1)
    dQ = sizes.sequences * sizes.heads * sizes.n_q * sizes.d * 2 * WIDE * (launches - 1)
    return dB + dQ
