"""Attentions to measure: those that a card is calibrated with, and others drawn by a seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from pebblesim.advice.cards import Card
from pebblesim.advice.forecast import forecasts
from pebblesim.advice.tiles import PROBLEM, Tiling
from pebblesim.core.errors import UsageError
from pebblesim.kernels.domains import Call
from pebblesim.language import masks
from pebblesim.language.masks import Band


@dataclass(frozen=True)
class Shape:
    """An attention, forward or backward.

    Attributes:
        way: "forward" or "backward".
        n_q, n_k, d: tokens of queries and of keys, and the head dimension.
        heads: KV heads of all sequences.
        group: query heads on each of them; their rows stand together as those of one head.
        mask: the allowed pairs, or None for all.
    """

    way: str
    n_q: int
    n_k: int
    d: int
    heads: int
    group: int = 1
    mask: str | None = None

    @property
    def dims(self) -> dict[str, int]:
        """The dimensions of the problem, with the heads of a group as one."""
        return {"n_q": self.n_q * self.group, "n_k": self.n_k, "d_k": self.d, "d_v": self.d}

    @property
    def band(self) -> Band | None:
        """The mask on the rows of a group."""
        band = masks.of(self.mask)
        assert band is None or isinstance(band, Band)
        return band if band is None else band.grouped(self.group, (self.n_q, self.n_k))

    def ranked(self, card: Card, within: float) -> list[Cell]:
        """Our kernels, those with the fastest forecasts first, up to a multiple of the first."""
        call = Call(self.dims, self.band, shared=self.group, capability="")
        try:
            made = forecasts(PROBLEM[self.way], call, card, self.heads)
        except UsageError:
            return []
        return [Cell(self, each.tiling) for each in made if each.seconds <= within * made[0].seconds]


@dataclass(frozen=True)
class Cell:
    """A kernel to measure: an attention, and the schedule and tiles that compute it."""

    shape: Shape
    tiling: Tiling


def calibrating(widths: tuple[int, ...] = (64, 128, 256, 512)) -> list[Shape]:
    """Attentions to calibrate a card with: long and short, even and odd, few blocks and many, masked or not."""
    made = []
    for d in widths:
        long = 8192 if d <= 128 else 4096
        lengths: list[tuple[str | None, int, int]] = [
            *((None, n, heads) for n, heads in ((long, 8), (1024, 2), (4096, 1), (1900, 6), (700, 20), (5000, 1))),
            *(("causal", n, heads) for n, heads in ((2048, 8), (long, 1), (2300, 12), (4500, 1), (600, 40))),
            *(("window:1024", n, heads) for n, heads in ((long, 8), (3000, 6))),
        ]
        made += [Shape(way, n, n, d, heads, mask=mask) for way in PROBLEM for mask, n, heads in lengths]
        if d <= 256:
            decoding = ((16384, 8, 4), (65536, 8, 4), (4096, 64, 4), (9000, 16, 1))
            made += [Shape("forward", 1, n, d, heads, group) for n, heads, group in decoding]
    return made


def drawn(seed: int, number: int) -> Iterator[Shape]:
    """Shapes at random: both directions, odd lengths, few heads and many, masks, shared keys and values, decoding."""
    chance = Random(seed)
    for _ in range(number):
        way, d = chance.choice(tuple(PROBLEM)), chance.choice((64, 64, 128, 128, 128, 256, 512))
        n = round(2 ** chance.uniform(9, 14))
        n += chance.choice((0, 0, 128 - n % 128))
        tokens = 2 ** chance.uniform(12, 16)
        heads, group = max(1, round(tokens / n)), chance.choice((1, 1, 1, 4))
        mask = chance.choice((None, None, "causal", "causal", "window:1024"))
        if mask == "window:1024" and n <= 1024:
            mask = None
        if group > 1 and heads >= group:
            heads //= group
        else:
            group = 1
        n_q = 1 if way == "forward" and d <= 256 and chance.random() < 0.15 else n
        if n_q == 1:
            n, heads, group, mask = 4 * n, 8 * max(1, heads // 2), chance.choice((1, 4, 8)), None
        yield Shape(way, n_q, n, d, heads, group, mask)
