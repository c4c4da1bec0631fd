"""Attentions to measure: those that a card is calibrated with, and others drawn by a seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from pebblesim.core.errors import UsageError
from pebblesim.gpu.advice.cards import Card
from pebblesim.gpu.advice.forecast import Forecast, forecasts
from pebblesim.gpu.tiles import Tiling
from pebblesim.language import masks
from pebblesim.language.masks import Band

PROBLEM = {"forward": "forward", "backward": "backward-qkv"}
"""The problem of each direction."""


@dataclass(frozen=True)
class Shape:
    """An attention, forward or backward.

    Attributes:
        way: "forward" or "backward".
        n_q, n_k, d: tokens of queries and of keys, and the head dimension.
        heads: heads of keys and values of all sequences.
        group: heads of queries on each of them; their rows stand together as those of one head.
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

    def ranked(self, card: Card, within: float) -> list[Forecast]:
        """Forecasts of our kernels, the fastest first, up to a multiple of the first."""
        try:
            made = forecasts(PROBLEM[self.way], self.dims, card, "bfloat16", self.heads, self.band)
        except UsageError:
            return []
        return [each for each in made if each.seconds <= within * made[0].seconds]


@dataclass(frozen=True)
class Cell:
    """A kernel to measure: an attention, and the schedule and tiles that compute it."""

    shape: Shape
    tiling: Tiling


def calibrating(card: Card) -> list[Cell]:
    """The kernels that a card is calibrated with: long and short, even and odd, with and without a mask.

    For each shape those that scaled rates of another card put within a factor of the fastest.
    """
    cells = []
    for d in (64, 128, 256, 512):
        long, heads = (8192, 8) if d <= 128 else (4096, 8)
        for way in PROBLEM:
            shapes = [
                (Shape(way, long, long, d, heads), 3.0),
                (Shape(way, 2300, 2300, d, 12, mask="causal"), 2.0),
                (Shape(way, 1024, 1024, d, 2), 3.0),
                (Shape(way, long, long, d, heads, mask="window:1024"), 1.3),
            ]
            if way == "forward" and d <= 256:
                shapes += [(Shape(way, 1, 16384, d, 8, 4), 3.0), (Shape(way, 1, 65536, d, 8, 8), 1.5)]
            cells += [Cell(shape, each.tiling) for shape, within in shapes for each in shape.ranked(card, within)]
    return cells


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
