"""Unique identifiers for generated source."""

from __future__ import annotations

import string
from collections.abc import Iterable

LETTERS = frozenset(f"{string.ascii_letters}{string.digits}_")
"""Characters of a name."""


class Identifiers:
    """Create names similar to the wanted ones that are not yet used."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._given = set(taken)

    def new(self, wanted: str) -> str:
        """Return a new name similar to this one, of letters, digits and underscores."""
        letters = (each if each in LETTERS else " " for each in wanted.replace("'", "_part"))
        plain = "_".join("".join(letters).split()).strip("_") or "x"
        plain = f"x{plain}" if plain[0].isdigit() else plain
        name, number = plain, 1
        while name in self._given:
            number += 1
            name = f"{plain}_{number}"
        self._given.add(name)
        return name
