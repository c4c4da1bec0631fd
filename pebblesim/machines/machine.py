"""Machines as paths of memories: from a card of the table of cards, or from a TOML file of the user's own."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pebblesim.advice.cards import card
from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.core.sizes import bytes_of, parse_bytes

KEYS: Final = {
    "name": "its name",
    "capacity": 'its bytes, a number or a text such as "228KiB"',
    "bandwidth": "bytes per second over the edge above it",
    "energy": "joules for a byte over that edge",
    "source": "where these figures are from",
}
"""The entries of a memory in a file. Bandwidth, energy and source may be left out."""

NEEDED: Final = ("name", "capacity")


@dataclass(frozen=True)
class Level:
    """A memory of a path below the root.

    Attributes:
        name: its name.
        capacity: its size in bytes.
        bandwidth: bytes per second over the edge above it, or None.
        energy: joules for a byte over that edge, or None.
        source: where these figures are from.
    """

    name: str
    capacity: int
    bandwidth: float | None = None
    energy: float | None = None
    source: str = ""

    def words(self, dtype: str) -> int:
        """Return how many words of a type it holds.

        Raises:
            UsageError: not even one.
        """
        held = self.capacity // bytes_of(dtype)
        if held < 1:
            raise UsageError(f"{self.name} holds {self.capacity} bytes, less than one word of type {dtype}.")
        return held


@dataclass(frozen=True)
class Machine:
    """A path of memories: the name, that of the root, which has no limit, and the memories below it.

    The last memory computes.
    """

    name: str
    root: str
    levels: tuple[Level, ...]


def machine(name: str) -> Machine:
    """Return the machine of a file that ends in .toml, or a multiprocessor of a card.

    The path of a card is that of one multiprocessor: what lies beyond it, its shared memory, its registers.

    Raises:
        UsageError: the file cannot be read, or lacks an entry; or the card is not known, or its registers are not.
    """
    if name.endswith(".toml"):
        return _from_file(Path(name))
    model = card(name)
    missing = [key for key in ("shared_per_multiprocessor", "registers") if key not in model.figures]
    if missing:
        raise UsageError(
            f"the table of cards lacks {' and '.join(missing)} of {model.name}; describe its memories in a file, as "
            "docs/machines.md shows."
        )
    shared, registers = (model.figures[key] for key in ("shared_per_multiprocessor", "registers"))
    return Machine(
        f"a multiprocessor of {model.name}",
        "L2 and memory",
        (
            Level("shared memory", int(shared.value), model.rate("l2_bandwidth"), None, shared.source),
            Level("registers", int(registers.value), None, None, registers.source),
        ),
    )


def _from_file(path: Path) -> Machine:
    where = f"machine {str(path)!r}"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror}; docs/machines.md shows such a file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{where} is not TOML: {error}.") from None
    for key in table:
        if key not in ("name", "root", "memory"):
            raise UnknownName(f"entry of a machine ({where})", key, ("name", "root", "memory"))
    memories = table.get("memory", [])
    if not isinstance(memories, list) or not all(isinstance(each, Mapping) for each in memories):
        raise UsageError(f"{where}: its memories must be tables [[memory]], from the root down.")
    missing = [key for key in ("name", "root") if key not in table]
    missing += ["a table [[memory]]"] * (not memories)
    for number, each in enumerate(memories, 1):
        missing += [f"{key} of memory {number}, {KEYS[key]}" for key in NEEDED if key not in each]
    if missing:
        raise UsageError(f"{where}: this is missing: {'; '.join(missing)}.")
    names = [table["name"], table["root"], *(each["name"] for each in memories)]
    if not all(isinstance(each, str) and each for each in names) or len(set(names[1:])) < len(names[1:]):
        raise UsageError(f"{where}: names must be texts, and those of memories must differ; it has {names}.")
    return Machine(table["name"], table["root"], tuple(_level(where, each) for each in memories))


def _level(where: str, table: Mapping[str, Any]) -> Level:
    called = f"{where}: {table['name']}"
    for key in table:
        if key not in KEYS:
            raise UnknownName(f"entry of a memory ({called})", key, KEYS)
    given = table["capacity"]
    capacity = parse_bytes(f"{called}: capacity", given) if isinstance(given, str) else given
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise UsageError(f'{called}: capacity = {given!r} is not a size in bytes; write 233472 or "228KiB".')
    rates = {}
    for key in ("bandwidth", "energy"):
        value = table.get(key)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30
        ):
            raise UsageError(f"{called}: {key} = {value!r} must be a number above 0: {KEYS[key]}.")
        rates[key] = None if value is None else float(value)
    return Level(table["name"], capacity, rates["bandwidth"], rates["energy"], str(table.get("source", "")))
