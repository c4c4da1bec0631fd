"""Real cards: sizes and rates, each with its source (`cards.toml`), and users' own cards."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.core.sizes import BYTES, dtype_of

FIGURES = {
    "multiprocessors": "multiprocessors",
    "registers": "bytes of registers in a multiprocessor",
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
    "launch": "seconds that a launch takes besides",
    "products": "operations per second of matrix units on a multiprocessor, for the widest instructions",
    "half_width": "columns of an instruction at which they reach half of that",
    "product": "seconds that each product of tiles waits for the one before",
    "passing": "seconds that a computed operand takes to go through shared memory",
    "elementwise": "operations on elements per second on a multiprocessor",
    "paired": "share of half_width that remains where two products run at the same time",
    "beside": "share of the work on elements that other warps' products do not hide, where a loop has both",
    "late": "bytes per second into a multiprocessor that no loop reads ahead",
    "writing": "bytes per second out of a multiprocessor",
    "leaving": "seconds that a block takes which a mask leaves nothing to do",
    "memory": "bytes per second between memory and the caches, of a copy",
    "overlap": "share of the time of all these that counts where several blocks are on a multiprocessor",
}
"""The rates that the kernels of our schedules reach on a card, fitted to measurements (`benchmarks/gpu/fit.py`)."""

NEEDED = ("shared_per_block", "l2", "memory_bandwidth")
"""Figures that advice requires."""


class Figure(NamedTuple):
    """A value and its source."""

    value: float
    source: str


@dataclass(frozen=True)
class Card:
    """A card.

    Attributes:
        name: name of the product.
        figures: the known figures, by the names of `FIGURES`.
        peak: the highest rate of dense arithmetic by data type, in operations per second.
        rates: the rates of our kernels, by the names of `RATES`; empty if they were not measured.
    """

    name: str
    figures: Mapping[str, Figure]
    peak: Mapping[str, Figure]
    rates: Mapping[str, Figure] = field(default_factory=dict)

    def size(self, figure: str) -> int:
        """Return a size in bytes that every card has."""
        return int(self.figures[figure].value)

    def rate(self, figure: str) -> float | None:
        """Return a rate, or None if it is not known."""
        known = self.figures.get(figure)
        return None if known is None else float(known.value)

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
    tables = tomllib.loads((Path(__file__).parent / "cards.toml").read_text(encoding="utf-8"))
    sources = tables.pop("sources")
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


def card(name: str) -> Card:
    """Return the card with this name; case and spaces do not matter: "H200", "h200", "GTX 1060".

    Raises:
        UnknownName: the card is not known.
    """
    plain = {key.lower(): key for key in cards()}
    wanted = "".join(letter for letter in name.lower() if letter.isalnum())
    if wanted not in plain:
        raise UnknownName("card", name, cards())
    return cards()[plain[wanted]]


def from_file(path: Path) -> Card:
    """Load a user's card from a TOML file with `name`, the figures, and a table `peak`; sources are not required.

    Raises:
        UsageError: the file cannot be read, lacks an entry, or has an unknown or wrong entry.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--card {str(path)!r} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--card {str(path)!r} is not TOML: {error}.") from None
    return _card(table, f"--card {str(path)!r}", {})


def _card(table: Mapping[str, Any], where: str, sources: Mapping[str, str]) -> Card:
    peak = table.get("peak", {})
    if not isinstance(table.get("name"), str) or not isinstance(peak, Mapping):
        raise UsageError(
            f'{where}: it needs name = "…", the figures {", ".join(NEEDED)}, and a table [peak] by data type.'
        )
    figures = {}
    for key, entry in table.items():
        if key in ("name", "peak", "rates"):
            continue
        if key not in FIGURES:
            raise UnknownName(f"figure of a card ({where})", key, FIGURES)
        figures[key] = _figure(f"{where}: {key}", entry, sources)
    missing = [key for key in NEEDED if key not in figures]
    if missing:
        raise UsageError(f"{where}: {missing[0]} is missing, the {FIGURES[missing[0]]}.")
    peaks = {dtype_of(key): _figure(f"{where}: peak.{key}", entry, sources) for key, entry in peak.items()}
    return Card(table["name"], figures, peaks, _rates(table.get("rates", {}), where, sources))


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
