"""Block sizes in closed form: feasible, and within a constant factor of the largest that are.

The default rule, `fit`, finds the largest feasible blocks by search, so that it has no expression to reason about.
These rules do; `pebblesim verify` samples that they are feasible and that `fit` moves no more words. Products and new
sums take two pebbles more than the words of the tiles, which is why some M - 2 stand here.
"""

from __future__ import annotations

from collections.abc import Mapping

_SQUARE = {"a": "floor(sqrt(M/2)) - 1", "b": "floor(sqrt(M/2)) - 1"}
_OF_G = {"a_g": _SQUARE["a"], "b_g": _SQUARE["b"]}
_RESIDENT = {"b": "floor((M - 3)/(d + 2))"}

CLOSED_BLOCKS: Mapping[str, Mapping[str, str]] = {
    "matmul-tiled": {"b": "floor(sqrt((M - 2)/3))"},
    "matmul-streamed": _SQUARE,
    "small-cache": {"B": "floor(sqrt((M - 2)/4))"},
    "small-cache-streamed": _SQUARE,
    "small-cache-forward": {"B": "floor(sqrt((M - 2)/4))"},
    # Li et al. print B_r = min(⌈M/4d⌉, d) and B_c = ⌈M/4d⌉, which do not fit; with their roles exchanged they do.
    "large-cache": {"B_r": "floor((M - d**2 - 3*d - 2)/(4*d + 8))", "B_c": "1"},
    "row-stationary": {"B_r": "floor((M - d - 3)/(3*d + 6))", **_RESIDENT, **_OF_G},
    "row-stationary-fused": {"B_r": "floor((M - d - 3)/(3*d + 6))", **_RESIDENT},
    "row-stationary-one-pass": {"B_r": "floor((M - d - 3)/(4*d + 6))", **_RESIDENT, **_OF_G},
    "row-stationary-forward": {"B_r": "floor((M - 3)/(2*d + 4))"},
    "flash": {"B": "floor(sqrt((M - 2)/3))", "B_r": "1", "B_c": "floor((M - 2*d - 4)/(2*d + 6))"},
    "flash1-forward": {"B_r": "1", "B_c": "floor((M - 2*d - 8)/(2*d + 4))"},
    "flash2-forward": {"B_r": "floor((M - d - 6)/(2*d + 8))", "B_c": "1"},
    "flash1-backward": {"B_r": "1", "B_c": "floor((M - 4*d - 8)/(4*d + 4))"},
    "flash2-backward": {"B_r": "1", "B_c": "floor((M - 3*d - 8)/(4*d + 6))"},
    "backward-two-pass": {"B_r": "floor((M - d - 4)/(3*d + 8))", "B_c": "floor((M - 2*d - 6)/(4*d + 6))"},
    "linear": {**_SQUARE, "c": _RESIDENT["b"]},
    "small-cache-forward-streamed": _SQUARE,
    "small-cache-backward-streamed": _SQUARE,
    "small-cache-relu": _SQUARE,
    "small-cache-sigmoid": _SQUARE,
    "small-cache-forward-relu": _SQUARE,
    "small-cache-forward-sigmoid": _SQUARE,
    "row-stationary-relu": {"B_r": "floor((M - d - 3)/(3*d + 6))", **_RESIDENT, **_OF_G},
    "row-stationary-sigmoid": {"B_r": "floor((M - d - 3)/(3*d + 6))", **_RESIDENT, **_OF_G},
    "row-stationary-forward-relu": {"B_r": "floor((M - 3)/(2*d + 4))"},
    "row-stationary-forward-sigmoid": {"B_r": "floor((M - 3)/(2*d + 4))"},
    "standard-forward": {"b": "floor(sqrt((M - 2)/3))", "B_r": "floor((M - 3)/(n + 3))"},
    "standard-backward": {"b": "floor(sqrt((M - 2)/3))", "B_r": "floor((M - 3)/(2*n + 3))"},
}
