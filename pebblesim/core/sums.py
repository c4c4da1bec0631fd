"""The names of summation trees, and what is said of a name that is not one of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pebblesim.core.errors import UnknownName, UsageError

MEANT: Final = {
    "tree": "balanced",
    "binary": "balanced",
    "pairwise": "balanced",
    "sequential": "chain",
    "linear": "chain",
}
"""Other words for the same, as the literature has them."""


def unknown_summation(given: str, known: Iterable[str]) -> UsageError:
    """Return the error for a summation that is none of those known, with the nearest of them.

    Args:
        given: what was given.
        known: the names that are allowed there; "blocked:b" stands for any number b of terms.
    """
    *names, last = (f"{name!r}{' with b > 0 terms' * (name == 'blocked:b')}" for name in known)
    near = MEANT.get(given.lower()) or UnknownName("summation", given, [name for name in known if ":" not in name]).near
    hint = f" Did you mean {near!r}?" if near else ""
    return UsageError(f"summation must be {', '.join(names)} or {last}, not {given!r}.{hint}")
