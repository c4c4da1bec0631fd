"""Kernels that were chosen and written before: in a package, in the place of schedules, forecasts and printers.

`package` writes the table and the texts, and copies this file beside them with the modules that launch kernels. There
it takes the place of `planning`, of `texts`, and of all that these import.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cache, lru_cache
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pebblesim.core.errors import UsageError
from pebblesim.kernels import releases
from pebblesim.operator.launching.boxes import gluon_lost
from pebblesim.operator.once import warn_once
from pebblesim.operator.packages.frozen_names import filled_in, name_of

HERE = Path(__file__).resolve().parent

TABLE: dict[str, Any] = json.loads((HERE / "table.json").read_text(encoding="utf-8"))
"""The table of the package; read at once, since torch.compile does not trace what reads a file."""

ROOM = 2**30
"""Bytes that score matrices and their gradients may take."""

BEGIN_WITH_SINKS = False
"""Whether the package has kernels whose softmaxes begin with sinks: O and L get them afterwards."""

Dims = tuple[tuple[str, int], ...]
"""Sizes by name."""


@dataclass(frozen=True)
class Band:
    """Pairs with -before ≤ j - i ≤ after, counted from the first query and key or from the last ones."""

    name: str
    before: int | None
    after: int | None
    at_end: bool = field(default=True, kw_only=True)
    rows: int = field(default=1, kw_only=True)


class Card(NamedTuple):
    """The card of a device, as kernels are chosen for it."""

    name: str
    capability: str


class Tiling(NamedTuple):
    """A kernel of a class of calls.

    Attributes:
        of: the class, and its number there.
        named: its schedule and tiles, as text.
        gluon: whether it is written in Gluon.
        adds: whether memory adds its sums, in another order at each call.
        multiple: lengths are to be multiples of this.
        sides: sides of tiles that lengths may be multiples of, for which there are other texts; None if there are none.
        tables: for each table that it keeps, bytes of a word and factors of their number: a dimension, its tiles' side,
            the most tiles, words of each.
        texts: names of files, by "even" and "dense".
        fills, kernels, takes: as of `texts.Written`.
    """

    of: tuple[str, int]
    named: str
    gluon: bool
    adds: bool
    multiple: int
    sides: dict[str, int] | None
    tables: list[tuple[int, list[tuple[str, int, int | None, int]]]]
    texts: dict[str, str]
    fills: list[tuple[str, float]]
    kernels: list[str]
    takes: list[str]

    def __hash__(self) -> int:
        return hash(self.of)

    def bytes(self, dims: dict[str, int]) -> int:
        """Bytes of its tables for one head."""
        whole = 0
        for word, factors in self.tables:
            for name, side, most, each in factors:
                tiles = -(-dims[name] // side)
                word *= each * (tiles if most is None else min(tiles, most))
            whole += word
        return whole


class Forecast(NamedTuple):
    """A kernel, and how often it runs for some heads at a time."""

    tiling: Tiling
    rounds: int
    seconds: float = 0.0


class Choice(NamedTuple):
    """A kernel for some lengths, whether its tiles divide them, bytes of its tables; None, as no pass is cut."""

    forecast: Forecast
    even: bool
    bytes: int
    cut: None = None


@cache
def kernels_of(name: str) -> tuple[Tiling, ...]:
    """The kernels of a class of calls."""
    return tuple(Tiling((name, at), **each) for at, each in enumerate(TABLE["classes"][name]["kernels"]))


@lru_cache(maxsize=4096)
def chosen(way: str, dims: Dims, heads: int, dtype: str, pattern: Any, room: int | None, card: Card) -> Choice:
    """Choose the kernels of a pass, as `planning.chosen` does, for lengths of the table from these up.

    Raises:
        UsageError: the table has no kernels for this call.
    """
    sizes, made = dict(dims), TABLE
    if card.capability != made["capability"]:
        raise UsageError(
            f"this package is for {made['card']}, compute capability {made['capability']}, and {card.name} has "
            f"{card.capability}; emit a package for it, with --card."
        )
    name = name_of(way, (sizes["d_k"], sizes["d_v"]), pattern.mask, pattern.shared, pattern.softcap != 0)
    if name not in made["classes"]:
        raise UsageError(lacking(sizes["d_k"], pattern.shared))
    lengths = made["lengths"]
    row, column = (
        min(bisect_left(lengths, n), len(lengths) - 1) for n in (-(-sizes["n_q"] // pattern.shared), sizes["n_k"])
    )
    near = min(range(len(made["heads"])), key=lambda at: abs(log(made["heads"][at] / heads)))
    tilings = kernels_of(name)
    kernel = next(
        tilings[at]
        for at in made["classes"][name]["grid"][row][column][near]
        if (pattern.gluon or not tilings[at].gluon)
        and not (pattern.same_bits and tilings[at].adds)
        and not any(sizes[n] % tilings[at].multiple for n in ("n_q", "n_k"))
    )
    each = kernel.bytes(sizes)
    if each > ROOM and max(sizes["n_q"] // pattern.shared, sizes["n_k"]) > lengths[-1]:
        raise UsageError(
            f"the kernels of this package would keep {each:,} bytes of tables for each head here; give up to "
            f"{lengths[-1]:,} tokens, for which they were chosen."
        )
    at_once = heads
    if room is not None and heads * each > room:
        at_once = max((n for n in range(1, heads + 1) if heads % n == 0 and n * each <= room), default=1)
    even = kernel.sides is not None and not any(sizes[n] % side for n, side in kernel.sides.items())
    return Choice(Forecast(kernel, heads // at_once), even, at_once * each)


def lacking(d: int, shared: int) -> str:
    """Say that the package has no kernels for heads of a dimension, or for so many on each head of keys."""
    return (
        f"this package has kernels for head dimensions up to {TABLE['widths'][-1]}, and for "
        f"{', '.join(map(str, TABLE['shared']))} heads of queries on each head of keys; the call has head dimension "
        f"{d} and {shared} heads on each: give others, or emit a package for them."
    )


def chosen_for_latent(dims: Dims, heads: int, dtype: str, pattern: Any, card: Card) -> None:
    """Kernels that read keys and values together: no package has them."""


def groups_of(*given: Any) -> int:
    """Heads that share keys are in one part: no package has kernels for several."""
    return 1


class Written(NamedTuple):
    """As `texts.Written`."""

    text: str
    fills: list[tuple[str, float]]
    kernels: list[str]
    takes: tuple[str, ...]
    sums: bool = False


def written(
    tiling: Tiling, widths: Dims, even: bool, far: bool, dense: bool, dtype: str, pattern: Any, scale: float
) -> Written:
    """The text of a kernel, as `texts.written` has it for this type, scale and cap.

    Raises:
        UsageError: matrices of a head have 2³¹ words or more.
    """
    if far:
        raise UsageError("this package has no kernels for heads of 2^31 words or more; give fewer tokens.")
    name = tiling.texts[f"{'even' if even else 'any'} {'dense' if dense else 'strided'}"]
    text = (HERE / "kernels" / name).read_text(encoding="utf-8")
    text = filled_in(text, dict(widths)["d_k"], dtype, scale, pattern.softcap)
    return Written(text, tiling.fills, tiling.kernels, tuple(tiling.takes))


@lru_cache(maxsize=64)
def card_of(device: torch.device) -> Card:
    """The card of a device; on the CPU one without kernels of its own."""
    if device.type != "cuda":
        return Card(device.type, "")
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return Card(torch.cuda.get_device_name(device), capability)


def say_lost(way: str, best: Choice, choice: Choice) -> None:
    """Warn, once, that a pass does not get the kernels for its card, if there are any for it."""
    if best.forecast.tiling.gluon:
        warn_once(f"{gluon_lost()}: the kernels for Hopper cards do not run; {releases.INSTALL}.", key="lost")
