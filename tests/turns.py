"""Slow tests take turns in the quick run: which ones is decided by the commit alone.

Set COMMIT_OF_TURN to a commit, as `.ci/run` does, and each run without the slow tests has a few of them besides.
"""

from collections import Counter
from collections.abc import Iterable
from hashlib import sha256

CASES = 30
"""Number of cases of tests that have many of them, each of which takes about a second."""

MANY = 20
"""Tests with fewer slow cases are documents, notebooks and long searches, of which there is one, up to a minute."""


def in_turn(commit: str, slow: Iterable[str]) -> set[str]:
    """Return the slow tests, by name, that a commit is tried with."""
    ordered = sorted(slow, key=lambda name: sha256(f"{commit} {name}".encode()).digest())
    cases = Counter(map(_function, ordered))
    long = [name for name in ordered if cases[_function(name)] < MANY]
    short = [name for name in ordered if cases[_function(name)] >= MANY]
    return {*short[:CASES], *long[:1]}


def _function(name: str) -> str:
    return name.split("[")[0]
