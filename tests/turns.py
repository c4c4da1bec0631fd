"""Tests take turns in the quick run: which ones is decided by the commit alone.

Set COMMIT_OF_TURN to a commit, as `.ci/run` does. Of a test marked `one_in(k)`, one of k cases runs by default, and
some dozen commits have run all of them; without a commit it is the same cases every time. Of the slow tests, a
few run besides, if a commit is given. `make test-all` runs all of both.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256

CASES = 10
"""Number of cases of tests that have many of them, each of which takes about a second."""

MANY = 20
"""Tests with fewer slow cases are documents, notebooks and long searches, of which there is one, up to a minute."""


def one_in(number: int, commit: str, test: str, cases: Sequence[str]) -> set[str]:
    """Return every so many of the cases of a test, in an order and from a start that the commit draws."""
    return set(drawn(commit, cases)[_drawn(f"{commit} {test}") % number :: number])


def in_turn(commit: str, slow: Iterable[str]) -> set[str]:
    """Return the slow tests, by name, that a commit is tried with."""
    ordered = drawn(commit, slow)
    cases = Counter(map(function, ordered))
    long = [name for name in ordered if cases[function(name)] < MANY]
    short = [name for name in ordered if cases[function(name)] >= MANY]
    return {*short[:CASES], *long[:1]}


def function(name: str) -> str:
    """The test that a case belongs to."""
    return name.split("[")[0]


def drawn(commit: str, names: Iterable[str]) -> list[str]:
    """The names in an order that the commit draws."""
    return sorted(names, key=lambda name: _drawn(f"{commit} {name}"))


def _drawn(text: str) -> int:
    return int.from_bytes(sha256(text.encode()).digest())
