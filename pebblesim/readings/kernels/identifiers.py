"""Identifiers of a source that is written, each given out once."""

from __future__ import annotations

import re
from collections.abc import Iterable


class Identifiers:
    """Hands out names that are like those wanted, and neither taken nor given out before."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._given = set(taken)

    def new(self, wanted: str) -> str:
        """A name like this one, of letters, digits and underscores."""
        plain = re.sub(r"\W+", "_", wanted.replace("'", "_part"), flags=re.ASCII).strip("_") or "x"
        plain = f"x{plain}" if plain[0].isdigit() else plain
        name, number = plain, 1
        while name in self._given:
            number += 1
            name = f"{plain}_{number}"
        self._given.add(name)
        return name
