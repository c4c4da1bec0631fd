"""Measured times of other attentions beside ours on the same card, for sizes that were measured or lie between such.

`measured.json` has useful operations a second, by card, pass, widths, mask and kernel (`python
benchmarks/gpu/measured.py` makes it of the rows of races). Widths and masks are taken as they are, since kernels pad
widths and skip tiles in steps; between two lengths the rate is interpolated over log n. FFPA was raced on shapes drawn
by seeds only, which have other lengths: its time is that of its rate at the nearest of these, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any, Final, NamedTuple

from pebblesim.advice.amounts import ratio

FILE: Final = Path(__file__).parent / "measured.json"

OURS: Final = "ours"
"""The kernel of pebblesim that was the fastest at a size."""

OTHERS: Final = {
    "cudnn": "cuDNN",
    "flash": "PyTorch's flash",
    "flex": "FlexAttention",
    "ffpa": "FFPA",
    "efficient": "PyTorch's efficient",
    "math": "unfused PyTorch",
}
"""Names of other attentions, by those in the rows."""

WIDE: Final = 256
"""The largest head dimension of cuDNN and of PyTorch's flash. FFPA is for larger ones."""

ROWS: Final = 65536
"""Rows of queries in all heads of the measurements that are interpolated."""

FULL: Final = ROWS // 2
"""Rows of queries in all heads from which on rates are taken for other numbers of heads: they fill a card."""

NEAR: Final = 2
"""Factor between lengths up to which the rate of a raced kernel at one is taken for the other."""


class Shape(NamedTuple):
    """A kind of attention: "forward" or "backward", the head dimensions, and "" or "causal"."""

    way: str
    d_k: int
    d_v: int
    mask: str


@dataclass(frozen=True)
class Measured:
    """Measured times for an attention.

    Attributes:
        seconds: by kernel, the fastest first.
        lengths: (n,) where n was measured, or the two lengths between which rates are interpolated; () if nothing is
            known.
        exact: whether this very size was measured.
        why: why nothing is known.
        raced: by kernel that was raced on drawn shapes only, the time at its rate there, and the length of that race.
        estimated: where nothing is known, the kernel that PyTorch takes and its estimated time (`pytorch_times`).
    """

    seconds: Mapping[str, float]
    lengths: tuple[int, ...] = ()
    exact: bool = False
    why: str = ""
    raced: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    estimated: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim advise --json`; seconds are those of the GPU for all heads."""
        return {"seconds": dict(self.seconds), "lengths": [*self.lengths], "exact": self.exact} | {
            "why": self.why or None,
            "raced": {kernel: {"seconds": seconds, "n": n} for kernel, (seconds, n) in self.raced.items()},
            "estimated": dict(self.estimated),
        }


def measured(
    device: str, shape: Shape, sides: tuple[int, int], heads: int, kv_heads: int, dtype: str, operations: int
) -> Measured:
    """Measured times for an attention, or why there are none.

    Args:
        device: the card, as its driver names it.
        shape: the pass, widths and mask.
        sides: numbers of queries and keys.
        heads, kv_heads: numbers of heads, of all sequences together.
        dtype: data type of a word.
        operations: useful operations of all heads, as races count them (`useful`).
    """
    comparable = sides[0] == sides[1] and dtype == "bfloat16" and sides[0] * heads >= FULL
    raced = _raced(device, shape, sides[0], operations) if comparable else {}
    return replace(_in_grid(device, shape, sides, (heads, kv_heads), dtype, operations), raced=raced)


def _raced(device: str, shape: Shape, n: int, operations: int) -> dict[str, tuple[float, int]]:
    """By kernel, the time at its rate in the race whose length is nearest to n, and that length."""
    found = {}
    for kernel, rates in _races().get(device, {}).get(shape, {}).items():
        length = min(rates, key=lambda each: abs(log(each / n)))
        if max(length, n) <= NEAR * min(length, n):
            found[kernel] = (ratio(operations, rates[length] * 1e12), length)
    return found


def _in_grid(
    device: str, shape: Shape, sides: tuple[int, int], groups: tuple[int, int], dtype: str, operations: int
) -> Measured:
    """Measured times by the rows that have the same rows of queries at each length, or why there are none."""
    found = _rows().get(device)
    (n, keys), (heads, kv_heads), none = sides, groups, Measured
    if found is None:
        return none({}, why=f"on this card; on {' and '.join(_rows())} they were")
    if dtype != "bfloat16":
        return none({}, why=f"with words of {dtype}")
    if heads != kv_heads:
        return none({}, why="with heads that share keys and values")
    if n != keys:
        return none({}, why="with fewer or more queries than keys")
    if shape.mask not in ("", "causal"):
        return none({}, why=f"under mask {shape.mask}")
    if shape not in found:
        near = _listed({each.d_k for each in found if each.way == shape.way and each.d_k == each.d_v})
        return none({}, why=f"at these head dimensions; at {near} they were")
    kernels = found[shape]
    if any((n, heads) in by for by in kernels.values()):
        return _of({kernel: by[n, heads] for kernel, by in kernels.items() if (n, heads) in by}, operations, (n,), True)
    if n * heads < FULL:
        return none({}, why=f"with as few as {n * heads:,} rows of queries in all heads")
    lengths = sorted({n for by in kernels.values() for n, heads in by if n * heads == ROWS})
    if not lengths[0] <= n <= lengths[-1]:
        return none({}, why=f"at n = {n:,}; from {lengths[0]:,} to {lengths[-1]:,} they were")
    between = (n,) if n in lengths else next((a, b) for a, b in pairwise(lengths) if a < n < b)
    rates = {}
    for kernel, by in kernels.items():
        known = [by.get((length, ROWS // length)) for length in between]
        if None not in known:
            rates[kernel] = _between(n, between, [each for each in known if each])
    return _of(rates, operations, between, False)


def _between(n: int, lengths: tuple[int, ...], rates: list[int]) -> float:
    if len(lengths) == 1:
        return rates[0]
    a, b = lengths
    return rates[0] + (rates[1] - rates[0]) * log(n / a) / log(b / a)


def _of(rates: Mapping[str, float], operations: int, lengths: tuple[int, ...], exact: bool) -> Measured:
    seconds = {kernel: ratio(operations, rate * 1e12) for kernel, rate in rates.items()}
    return Measured(dict(sorted(seconds.items(), key=lambda each: each[1])), lengths, exact)


def _listed(widths: set[int]) -> str:
    """The widths as text, such as "64, 96 and 128"."""
    *most, last = map(str, sorted(widths))
    return f"{', '.join(most)} and {last}" if most else last


def useful(shape: Shape, n: int, heads: int) -> int:
    """Useful operations as races count them: 2 (d_k + d_v) for each pair forward, 2 (3 d_k + 2 d_v) backward."""
    each = shape.d_k + shape.d_v if shape.way == "forward" else 3 * shape.d_k + 2 * shape.d_v
    return 2 * n * n * each * heads // (2 if shape.mask else 1)


@cache
def _rows() -> dict[str, dict[Shape, dict[str, dict[tuple[int, int], int]]]]:
    """Useful TFLOP/s by card, shape, kernel and (n, heads)."""
    return {
        card: {
            Shape(each["way"], each["d_k"], each["d_v"], each["mask"]): {
                kernel: {(n, heads): rate for n, heads, rate, *_ in rows} for kernel, rows in each["tflops"].items()
            }
            for each in shapes
            if each["tflops"]
        }
        for card, shapes in _file().items()
    }


@cache
def _races() -> dict[str, dict[Shape, dict[str, dict[int, float]]]]:
    """Useful TFLOP/s by card, shape, kernel and n, of kernels that were raced on drawn shapes only."""
    return {
        card: {
            Shape(each["way"], each["d_k"], each["d_v"], each["mask"]): {
                kernel: {n: rate for n, _, rate in rows} for kernel, rows in each["raced"].items()
            }
            for each in shapes
            if "raced" in each
        }
        for card, shapes in _file().items()
    }


@cache
def _file() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text(encoding="utf-8")))
