"""Where theorems that are seldom the largest bound are: sizes, M and masks to draw for each.

They were found by trying sizes at random, and from the closed forms of docs/lower-bounds.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from random import Random
from typing import NamedTuple

from pebblesim.language.masks import Mask, of
from pebblesim.language.problems import PROBLEMS, Problem


class Span(NamedTuple):
    """Numbers from 2^low to 2^high times the product of some dimensions, each power as likely as the next."""

    low: float
    high: float
    times: tuple[str, ...] = ()

    def draw(self, random: Random, sizes: Mapping[str, int]) -> int:
        """Draw a number, 1 at least."""
        return max(1, round(prod(sizes[dim] for dim in self.times) * 2.0 ** random.uniform(self.low, self.high)))


@dataclass(frozen=True)
class Stronghold:
    """Sizes, M and masks at which a theorem is often the largest bound.

    Attributes:
        problem: its name.
        sizes: of each dimension, in an order in which those that it is a multiple of come first.
        M: red pebbles.
        window: numbers of keys in a query's window; None for all pairs.
    """

    problem: str
    sizes: Mapping[str, Span]
    M: Span
    window: Span | None = None

    def draw(self, random: Random) -> tuple[Problem, dict[str, int], int, Mask | None]:
        """Draw a problem's sizes, M and a mask, or none."""
        sizes: dict[str, int] = {}
        for dim, span in self.sizes.items():
            sizes[dim] = span.draw(random, sizes)
        M = max(4, self.M.draw(random, sizes))
        mask = None if self.window is None else of(f"window:{self.window.draw(random, sizes)}")
        return PROBLEMS[self.problem], sizes, M, mask


def _square(problem: str, d: Span, n: Span, M: Span) -> Stronghold:
    return Stronghold(problem, {"d": d, "n": n}, M)


_FEWER_PAIRS = {"n_q": Span(4, 9), "n_k": Span(-1, 1, ("n_q",)), "d": Span(0, 2, ("n_q",))}
"""Fewer pairs than weights: products with weights are most of the work."""

_D, _D2, _ND, _NN = ("d",), ("d", "d"), ("n", "d"), ("n_q", "n_q")

STRONGHOLDS: Mapping[str, Stronghold] = {
    "D1m": Stronghold(
        "backward", {"n_q": Span(4, 8), "n_k": Span(-0.5, 0.5, ("n_q",)), "d": Span(2, 5, ("n_q",))}, Span(-5, -2, _NN)
    ),
    "D1r": Stronghold("backward", {"n_q": Span(2, 9), "n_k": Span(-5, 5, ("n_q",)), "d": Span(4, 8)}, Span(1, 3, _D)),
    "D3": _square("backward", Span(1, 5), Span(5, 9, _D), Span(-4, -1, _ND)),
    "D4": _square("backward", Span(2, 7), Span(3, 8, _D), Span(-1, 3, _D2)),
    "D4r": _square("backward", Span(2, 7), Span(3, 8, _D), Span(1.6, 3, _D2)),
    "D5": _square("backward", Span(0, 4), Span(3, 5, _D), Span(-0.2, 0.8, _ND)),
    "D6": _square("backward", Span(0, 4), Span(5, 7.5, _D), Span(-0.3, 0.8, _ND)),
    "D7": _square("backward", Span(3, 7), Span(3, 8, _D), Span(-6, -0.5, _D2)),
    "C3": Stronghold(
        "forward",
        {"d_v": Span(0, 4), "d_k": Span(2.5, 5, ("d_v",)), "n_q": Span(5, 9, ("d_k",)), "n_k": Span(-1, 1, ("n_q",))},
        Span(-3, -1, ("n_k", "d_k")),
    ),
    "C4": _square("forward", Span(0, 5), Span(2.5, 4.5, _D), Span(0.1, 0.9, _ND)),
    "C5": _square("forward", Span(0, 4), Span(6, 7.5, _D), Span(-0.3, 0.9, _ND)),
    "E1": _square("backward-qkv", Span(2, 7), Span(3, 8, _D), Span(-4, 1, _D2)),
    "E1p": _square("projected-backward-qkv", Span(4, 8), Span(-1, 2, _D), Span(-7, -2, _D2)),
    "E1h": _square("backward-qkv", Span(2, 7), Span(3, 8, _D), Span(-4, 4, _D2)),
    "E2": Stronghold(
        "backward-qkv",
        {"d_k": Span(0, 3), "d_v": Span(-0.5, 0.7, ("d_k",)), "n_q": Span(2, 4.5, ("d_k",)), "n_k": Span(9, 16)},
        Span(0.4, 1.7, ("n_q", "d_k")),
        Span(-9, -1, ("n_k",)),
    ),
    "E4": Stronghold(
        "backward-qkv",
        {"d_k": Span(1, 5), "d_v": Span(-5, 5, ("d_k",)), "n_q": Span(8, 12), "n_k": Span(-1, 1, ("n_q",))},
        Span(-3, -1, ("n_k", "d_k")),
    ),
    "E5": _square("backward-qkv", Span(2, 7), Span(0, 7, _D), Span(-5, 1, _D2)),
    "E6": _square("backward-qkv", Span(2, 7), Span(0, 7, _D), Span(1, 6, _D2)),
    "E7": _square("backward-qkv", Span(0, 4), Span(4, 5.2, _D), Span(0.6, 1.5, _ND)),
    "E9": _square("backward-qkv", Span(0, 4), Span(5.3, 7.5, _D), Span(0.7, 1.5, _ND)),
    "E8": _square("backward-qkv", Span(0, 4), Span(8.5, 11, _D), Span(-1.5, 0.2, _ND)),
    "V1": Stronghold(
        "forward-latent",
        {"d_v": Span(0, 6), "d_r": Span(-2, 0, ("d_v",)), "n_q": Span(5, 9, ("d_v",)), "n_k": Span(-1, 1, ("n_q",))},
        Span(-4, -0.5, ("n_k", "d_v")),
    ),
    "V2": Stronghold(
        "forward-latent",
        {"d_v": Span(0, 6), "d_r": Span(-2, 2, ("d_v",)), "n_q": Span(2, 9, ("d_v",)), "n_k": Span(-1, 1, ("n_q",))},
        Span(-4, 2, ("d_v", "d_v")),
    ),
    "V3": Stronghold(
        "forward-latent",
        {"d_v": Span(0, 4), "d_r": Span(1.5, 5, ("d_v",)), "n_q": Span(5, 9, ("d_r",)), "n_k": Span(-1, 1, ("n_q",))},
        Span(-3, -1, ("n_k", "d_r")),
    ),
    "V4": Stronghold(
        "backward-latent",
        {"d_v": Span(0, 6), "d_r": Span(-2, 2, ("d_v",)), "n_q": Span(2, 9, ("d_v",)), "n_k": Span(-1, 1, ("n_q",))},
        Span(-4, 2, ("d_v", "d_v")),
    ),
    "V5": Stronghold(
        "backward-latent",
        {"d_v": Span(0, 3), "d_r": Span(3, 6, ("d_v",)), "n_q": Span(5, 9, ("d_r",)), "n_k": Span(-1, 1, ("n_q",))},
        Span(-3, -1, ("n_k", "d_r")),
    ),
    "L1": _square("linear", Span(4, 9), Span(-4, -1, _D), Span(-8, -1, _ND)),
    "L2": _square("linear", Span(3, 9), Span(0, 3, _D), Span(-6, -0.5, _D2)),
    "C2m": Stronghold(
        "projected-forward",
        _FEWER_PAIRS | {"n_q": Span(5, 8), "d": Span(2, 4, ("n_q",)), "d_k": Span(-1, 0, _D), "d_v": Span(-7, -4, _D)},
        Span(-5, -2, _NN),
    ),
    "E1m": Stronghold(
        "projected-backward-qkv",
        _FEWER_PAIRS | {"d_k": Span(-5, 0, _D), "d_v": Span(-1, 0, _D)},
        Span(-7, -2, _D2),
    ),
}
"""By the name of the theorem."""
