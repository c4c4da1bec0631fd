"""Files that describe machines, in TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.core.sizes import dtype_of, parse_bytes
from pebblesim.machines.machine import Level, Machine

KEYS: Final = {
    "name": "its name",
    "capacity": 'its bytes, a number or a text such as "228KiB"',
    "above": "the name of the memory above it; by default the one before it",
    "bandwidth": "bytes per second over the edge above it",
    "energy": "joules for a byte over that edge",
    "source": "where these figures are from",
    "count": "how many of them are below each memory above; 1 by default",
}
"""The entries of a memory; only those of `NEEDED` must be there."""

NEEDED: Final = ("name", "capacity")
RATES: Final = ("bandwidth", "energy")
OF_MACHINE: Final = ("name", "root", "memory", "peak", "source")


def from_file(path: Path) -> Machine:
    """Return the machine that a file describes.

    Raises:
        UsageError: the file cannot be read, or an entry is missing, not known, or of the wrong kind; what is missing is
            said all at once.
    """
    where = f"machine {str(path)!r}"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror}; docs/machines.md shows such a file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{where} is not TOML: {error}.") from None
    for key in table:
        if key not in OF_MACHINE:
            raise UnknownName(f"entry of a machine ({where})", key, OF_MACHINE)
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
    levels = tuple(_level(where, each, names[1 : number + 1]) for number, each in enumerate(memories, 1))
    return Machine(table["name"], table["root"], levels, _peak(where, table), str(table.get("source", "")))


def _peak(where: str, table: Mapping[str, Any]) -> dict[str, float]:
    peak = table.get("peak", {})
    if not isinstance(peak, Mapping):
        raise UsageError(f"{where}: peak must be a table of rates by type, such as [peak] with float16 = 312e12.")
    return {
        dtype_of(name): _number(f"{where}: peak of {name}", value, "operations per second")
        for name, value in peak.items()
    }


def _level(where: str, table: Mapping[str, Any], before: Sequence[str]) -> Level:
    """A memory, from its table and the names of those before it, the root first."""
    called = f"{where}: {table['name']}"
    for key in table:
        if key not in KEYS:
            raise UnknownName(f"entry of a memory ({called})", key, KEYS)
    given = table["capacity"]
    capacity = parse_bytes(f"{called}: capacity", given) if isinstance(given, str) else given
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise UsageError(f'{called}: capacity = {given!r} is not a size in bytes; write 233472 or "228KiB".')
    if (above := table.get("above", before[-1])) not in before:
        raise UsageError(f"{called}: above = {above!r} must be the name of a memory before it: {', '.join(before)}.")
    count = table.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"{called}: count = {count!r} must be a whole number, 1 or more: {KEYS['count']}.")
    rates = {key: _number(f"{called}: {key}", table[key], KEYS[key]) if key in table else None for key in RATES}
    return Level(
        table["name"], capacity, before.index(above), **rates, source=str(table.get("source", "")), count=count
    )


def _number(called: str, value: Any, meaning: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise UsageError(f"{called} = {value!r} must be a number above 0: {meaning}.")
    return float(value)
