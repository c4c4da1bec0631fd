"""Similarity of gradients to the exact ones: for dQ, dK and dV, and for "all", the three as one vector."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Similarity(NamedTuple):
    """The cosine of the angle to the exact gradient, and ‖difference‖ / ‖exact‖.

    Equal gradients have 1 and 0, even if both are 0; if only one is 0, the cosine is 0.
    """

    cosine: float
    l2: float


def similarities(exact: Mapping[str, Array], approximate: Mapping[str, Array]) -> dict[str, Similarity]:
    """Compute the similarities of approximate to exact gradients, by name, and for "all"."""
    pairs = {name: (g.ravel(), approximate[name].ravel()) for name, g in exact.items()}
    g, a = (np.concatenate(vectors) for vectors in zip(*pairs.values(), strict=True))
    return {name: _similarity(*pair) for name, pair in {**pairs, "all": (g, a)}.items()}


def without(gg: Mapping[str, float], ge: Mapping[str, float], ee: Mapping[str, float]) -> dict[str, Similarity]:
    """Compute the similarities of g - e to g, by name, and for "all", from ‖g‖², ⟨g, e⟩ and ‖e‖²."""
    numbers = {name: (gg[name], ge[name], ee[name]) for name in gg}
    everything = tuple(map(sum, zip(*numbers.values(), strict=True)))
    return {name: _without(*each) for name, each in {**numbers, "all": everything}.items()}


def _similarity(g: Array, a: Array) -> Similarity:
    """The cosine is 1 - ‖u - v‖²/2 for unit vectors u and v, which is accurate near 1."""
    if np.array_equal(g, a):
        return Similarity(1.0, 0.0)
    size, left = float(np.linalg.norm(g)), float(np.linalg.norm(a))
    cosine = 1 - float(np.linalg.norm(g / size - a / left)) ** 2 / 2 if size and left else 0.0
    return Similarity(cosine, float(np.linalg.norm(g - a)) / size if size else inf)


def _without(gg: float, ge: float, ee: float) -> Similarity:
    if ee <= 0:
        return Similarity(1.0, 0.0)
    left = gg - 2 * ge + ee
    cosine = (gg - ge) / (sqrt(gg) * sqrt(left)) if gg > 0 and left > 0 else 0.0
    return Similarity(cosine, sqrt(ee / gg) if gg > 0 else inf)
