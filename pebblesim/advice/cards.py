"""Real cards: sizes and rates, each with its source (`cards.toml`, `factors.toml`), and users' own cards."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.core.sizes import BYTES, dtype_of

FIGURES = {
    "multiprocessors": "multiprocessors",
    "registers": "bytes of registers in a multiprocessor",
    "threads": "threads on a multiprocessor",
    "shared_per_multiprocessor": "bytes of shared memory in a multiprocessor",
    "shared_per_block": "bytes of shared memory that a block can have",
    "l2": "bytes of L2",
    "l2_partitions": "halves of L2, where each multiprocessor reads through its own",
    "l3": "bytes of a cache between L2 and memory",
    "l2_bandwidth": "bytes per second between L2 and the multiprocessors",
    "memory": "bytes of memory",
    "memory_bandwidth": "bytes per second between memory and the caches",
}
"""The figures of a card; `peak`, operations per second by data type, is separate."""

RATES = {
    "launch": "seconds between two launches",
    "start": "seconds that a launch takes until its blocks work",
    "products": "operations per second of tensor cores on a multiprocessor, for the widest instructions",
    "half_width": "columns of an instruction at which they reach half of that",
    "begin": "seconds that a loop takes before what it reads is there",
    "elementwise": "operations on elements per second on a multiprocessor",
    "masked": "pairs per second that a multiprocessor tests for a mask",
    "beside": "share of the work on elements in loops with products that these do not hide",
    "late": "bytes per second into a multiprocessor that no loop reads ahead",
    "writing": "bytes per second out of a multiprocessor",
    "leaving": "seconds that a block takes which a mask leaves nothing to do",
    "l2": "bytes per second between L2 and the multiprocessors",
    "memory": "bytes per second between memory and the caches",
}
"""The rates that the kernels of our schedules reach on a card, fitted to measurements (`pebblesim gpu calibrate`)."""

TEXTS = ("name", "device", "capability")
"""The entries of a card's file that are text."""

NEEDED = ("shared_per_block", "l2", "memory_bandwidth")
"""Figures that advice requires."""

MODEL = "H200"
"""The card whose rates, scaled, stand for those of a card that was not calibrated."""

SCALED = f"scaled from the card {MODEL}"
"""The source of such rates."""


class Figure(NamedTuple):
    """A value and its source."""

    value: float
    source: str


def _given(option: str, value: str) -> str:
    """An option of the command line, or an argument of Python, with a value."""
    return f"{option} {value}" if option.startswith("-") else f'{option}="{value}"'


class UnknownCard(UsageError):
    """No card has this name; `known` are the names of cards."""

    def __init__(self, name: str, known: tuple[str, ...], option: str) -> None:
        super().__init__(
            f"no card is called {name!r}; known: {', '.join(known)}; describe another one in a file and give its name, "
            f"as {_given(option, 'mine.toml')} (docs/advise.md), or measure the one that is here with `pebblesim gpu "
            "calibrate`."
        )
        self.known = known


@dataclass(frozen=True)
class Card:
    """A card.

    Attributes:
        name: name of the product.
        figures: the known figures, by the names of `FIGURES`.
        peak: the highest rate of dense arithmetic by data type, in operations per second.
        rates: the rates of our kernels, by the names of `RATES`; empty if they were not measured.
        besides: work of launches of each kind (`LaunchCost.kinds`) as a multiple of the model's, where it differs.
        device: the name by which its driver knows it; "" if that is not known.
        capability: its compute capability, such as "9.0"; "" if that is not known.
        scaled: whether its rates are scaled ones of another card; see `with_rates`.
    """

    name: str
    figures: Mapping[str, Figure]
    peak: Mapping[str, Figure]
    rates: Mapping[str, Figure] = field(default_factory=dict)
    besides: Mapping[str, float] = field(default_factory=dict)
    device: str = ""
    capability: str = ""
    scaled: bool = False

    def __hash__(self) -> int:
        return hash((self.name, self.device, self.capability, self.scaled))

    def size(self, figure: str) -> int:
        """Return a size in bytes that every card has."""
        return int(self.figures[figure].value)

    def rate(self, figure: str) -> float | None:
        """Return a rate, or None if it is not known."""
        known = self.figures.get(figure)
        return None if known is None else float(known.value)

    def factor(self, kinds: Iterable[str]) -> float:
        """The work of a launch of all these kinds as a multiple of the model's."""
        return prod(self.besides.get(kind, 1.0) for kind in kinds)

    @property
    def calibrated(self) -> bool:
        """Whether its rates were measured."""
        return bool(self.rates) and not self.scaled

    @property
    def l2_partitions(self) -> int:
        """Parts of L2, 1 or 2; 1 where nothing else is known."""
        return int(self.figures["l2_partitions"].value) if "l2_partitions" in self.figures else 1

    @property
    def last_cache(self) -> str:
        """The last cache before the memory, "l2" or "l3"."""
        return "l3" if "l3" in self.figures else "l2"


@cache
def cards() -> Mapping[str, Card]:
    """Return all built-in cards."""
    here = Path(__file__).parent
    tables, factors = (
        tomllib.loads((here / name).read_text(encoding="utf-8")) for name in ("cards.toml", "factors.toml")
    )
    sources = tables.pop("sources")
    tables = {key: table | {"besides": factors.get(key, {})} for key, table in tables.items()}
    return {key: _card(table, f"card {key}", sources) for key, table in tables.items()}


def caches() -> dict[str, dict[str, int]]:
    """Return the bytes of the caches of each built-in card, by what they are: those of a block first."""
    return {
        name: {
            "a block's shared memory": card.size("shared_per_block"),
            card.last_cache.upper(): card.size(card.last_cache),
        }
        for name, card in cards().items()
    }


def card(name: str, option: str = "--gpu") -> Card:
    """Return the card of a file, one that was calibrated here, or a built-in one: "H200", "RTX 4090", "4090".

    Args:
        name: the name, or the file.
        option: what gave it, for the sentence on a card that is not known.

    Raises:
        UnknownCard: the card is not known.
        UsageError: its file is damaged.
    """
    if name.endswith(".toml"):
        return from_file(Path(name))
    own = {path.stem: path for path in own_files()}
    plain = {_plain(key): key for key in (*cards(), *own)}
    wanted = _plain(name)
    if wanted not in plain:
        words = set(name.lower().split())
        named = [key for key, each in cards().items() if words and words <= set(each.name.lower().split())]
        if len(named) != 1:
            raise UnknownCard(name, (*cards(), *own), option)
        plain[wanted] = named[0]
    key = plain[wanted]
    return from_file(own[key]) if key in own else cards()[key]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def own_files() -> list[Path]:
    """The files of cards that were calibrated here, by `pebblesim gpu calibrate`."""
    folder = own_folder()
    return sorted(folder.glob("*.toml")) if folder.is_dir() else []


def own_folder() -> Path:
    """The folder of the user's configuration that holds cards: that of Typer's `get_app_dir`.

    On Linux, where cards are, it is found without Typer, whose import takes longer than all else here.
    """
    if os.name == "nt" or sys.platform == "darwin":
        from typer import get_app_dir

        return Path(get_app_dir("pebblesim")) / "cards"
    return Path(os.environ.get("XDG_CONFIG_HOME", os.path.expanduser("~/.config"))) / "pebblesim" / "cards"


def own_file(device: str) -> Path:
    """The file of the card that the driver knows by this name."""
    return own_folder() / ("-".join(re.findall(r"[a-z0-9]+", device.lower())) + ".toml")


def of_device(properties: Any) -> Card:
    """Return the card that runs here, with rates of kernels.

    Args:
        properties: what `torch.cuda.get_device_properties` returns.

    They are those that were measured here, else those of the built-in card that the driver knows by this name. Where
    it was not calibrated, the rates are those of the card `MODEL`, scaled by multiprocessors, bandwidth and peak.

    Raises:
        UsageError: the file of a calibration is damaged.
    """
    return _of_device(str(properties.name), capability_of(properties), read_figures(properties))


def capability_of(properties: Any) -> str:
    """The compute capability of a card, of whose properties `torch.cuda.get_device_properties` has told."""
    return f"{properties.major}.{properties.minor}"


@lru_cache(maxsize=16)
def _of_device(device: str, capability: str, read: tuple[tuple[str, Figure], ...]) -> Card:
    own = own_file(device)
    if own.is_file():
        return replace(from_file(own), capability=capability)
    known = next((each for each in cards().values() if each.device == device), None)
    if known is None:
        known = Card(device, {}, {}, device=device)
    return with_rates(replace(known, figures=dict(known.figures) | dict(read), capability=capability))


def read_figures(properties: Any) -> tuple[tuple[str, Figure], ...]:
    """The figures that a driver tells of its card, of those that `torch.cuda.get_device_properties` has."""
    told = {
        "multiprocessors": properties.multi_processor_count,
        "threads": properties.max_threads_per_multi_processor,
        "registers": 4 * properties.regs_per_multiprocessor,
        "shared_per_multiprocessor": properties.shared_memory_per_multiprocessor,
        "shared_per_block": properties.shared_memory_per_block_optin,
        "l2": properties.L2_cache_size,
        "memory": properties.total_memory,
    }
    clock, width = (getattr(properties, name, 0) for name in ("memory_clock_rate", "memory_bus_width"))
    if clock and width:  # kHz, two transfers a clock, and bits
        told["memory_bandwidth"] = 2 * 1000 * clock * width / 8
    return tuple((name, Figure(value, "read on the card")) for name, value in told.items())


def with_rates(card: Card) -> Card:
    """Return a card with rates of kernels: its own or, if it was not calibrated, those of the card `MODEL`, scaled.

    So kernels can be compared on it. Such times are no forecast.
    """
    if card.rates:
        return card
    model = cards()[MODEL]

    def ratio(figure: str) -> float:
        mine, theirs = card.rate(figure), model.rate(figure)
        return mine / theirs if mine and theirs else 1.0

    each = 1 / ratio("multiprocessors")
    matrix = _peak_ratio(card, model, ("bfloat16", "float16")) * each
    words = _peak_ratio(card, model, ("float32",)) * each
    bandwidth = ratio("memory_bandwidth")
    scale = {"products": matrix, "elementwise": words, "masked": words, "memory": bandwidth}
    scale |= dict.fromkeys(("late", "writing"), bandwidth * each) | {"l2": bandwidth}
    rates = {name: Figure(figure.value * scale.get(name, 1.0), SCALED) for name, figure in model.rates.items()}
    figures = {name: model.figures[name] for name in ("multiprocessors", "registers", "shared_per_multiprocessor")}
    figures["l2_bandwidth"] = Figure(model.figures["l2_bandwidth"].value * bandwidth, SCALED)
    if "shared_per_multiprocessor" not in card.figures:
        figures["shared_per_multiprocessor"] = card.figures["shared_per_block"]
    return replace(card, figures=figures | dict(card.figures), rates=rates, besides=model.besides, scaled=True)


def _peak_ratio(card: Card, model: Card, dtypes: tuple[str, ...]) -> float:
    """The card's peak for the first data type of which both are known, as a multiple of the model's; 1 if none is."""
    known = ((card.peak.get(dtype), model.peak.get(dtype)) for dtype in dtypes)
    return next((mine.value / theirs.value for mine, theirs in known if mine and theirs), 1.0)


def from_file(path: Path) -> Card:
    """Load a user's card from a TOML file with `name`, the figures, and a table `peak`; sources are not required.

    Raises:
        UsageError: the file cannot be read, lacks an entry, or has an unknown or wrong entry.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"card {str(path)!r} cannot be read: {error.strerror}; docs/advise.md shows such a file."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"card {str(path)!r} is not TOML: {error}.") from None
    return _card(table, f"card {str(path)!r}", {})


def _card(table: Mapping[str, Any], where: str, sources: Mapping[str, str]) -> Card:
    peak, (name, device, capability) = table.get("peak", {}), (table.get(key, "") for key in TEXTS)
    if not all(isinstance(each, str) for each in (name, device, capability)) or not isinstance(peak, Mapping):
        raise UsageError(
            f'{where}: it needs name = "…", the figures {", ".join(NEEDED)}, and a table [peak] by data type.'
        )
    figures = {}
    for key, entry in table.items():
        if key in (*TEXTS, "peak", "rates", "besides"):
            continue
        if key not in FIGURES:
            raise UnknownName(f"figure of a card ({where})", key, FIGURES)
        figures[key] = _figure(f"{where}: {key}", entry, sources)
    missing = [f"{key}, the {FIGURES[key]}" for key in NEEDED if key not in figures]
    if missing or not name:
        raise UsageError(f"{where}: this is missing: {'; '.join([*['name'] * (not name), *missing])}.")
    peaks = {dtype_of(key): _figure(f"{where}: peak.{key}", entry, sources) for key, entry in peak.items()}
    besides = {
        key: _figure(f"{where}: besides.{key}", entry, {}).value for key, entry in table.get("besides", {}).items()
    }
    rates = _rates(table.get("rates", {}), where, sources)
    return Card(name, figures, peaks, rates, besides, device, capability)


def _rates(table: Any, where: str, sources: Mapping[str, str]) -> Mapping[str, Figure]:
    """Return all of `RATES`, or none."""
    if not isinstance(table, Mapping) or (table and set(table) != set(RATES)):
        raise UsageError(f"{where}: a table [rates] must have all of {', '.join(RATES)}, or be left out.")
    return {key: _figure(f"{where}: rates.{key}", entry, sources) for key, entry in table.items()}


def _figure(what: str, entry: Any, sources: Mapping[str, str]) -> Figure:
    value, source = (entry.get("value"), entry.get("source")) if isinstance(entry, Mapping) else (entry, None)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise UsageError(f"{what} = {value!r} is not a size or rate; write a number above 0, in bytes or per second.")
    return Figure(value, sources.get(source, source) if source else "as given")


def words(card: Card, figure: str, dtype: str) -> int:
    """Return how many words of a data type fit into a cache.

    Raises:
        UsageError: not even one word fits.
    """
    in_words = card.size(figure) // BYTES[dtype]
    if in_words < 1:
        raise UsageError(f"{figure} = {card.size(figure)} bytes is less than one word of type {dtype}.")
    return in_words
