"""The errors that a user can see. Each message is one sentence: what was given, what is allowed, what to do."""

from __future__ import annotations

from collections.abc import Iterable

MOST_LETTERS = 100
"""The most letters of a value in a message; more would hide the sentence."""


def as_given(value: object) -> str:
    """Return how Python writes a value, in one line of at most `MOST_LETTERS` letters.

    >>> as_given("x" * 1000)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # Python writes no number of more than 4,300 digits
        text = f"a number of {value.bit_length():,} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"


class PebblesimError(Exception):
    """Base class of all errors that pebblesim raises; the command line prints the message and exits with 2."""


class UsageError(PebblesimError):
    """An argument or option has a value that is not allowed."""


class NoSizes(UsageError):
    """A problem needs sizes, and none were given."""


class Infeasible(PebblesimError):
    """M red pebbles are too few. `least_M` is the smallest number of words that is enough."""

    def __init__(self, message: str, least_M: int) -> None:
        super().__init__(message)
        self.least_M = least_M


class BelowBound(PebblesimError):
    """A schedule moves fewer words than the lower bound for its way of computing: it computes something else."""


class TraceError(PebblesimError):
    """A schedule does something that is impossible on a cache; the message names the line of the schedule."""


class LeftOut(UserWarning):
    """A schedule of a user cannot be compared with the others; the message names it and says why."""


class UnknownName(UsageError):
    """A name is not in a registry; the message suggests `near`, a similar name, or lists all if there is none.

    `kind` is what the name should be: a schedule, a problem, a data type.
    """

    SHOWN = 24  # a longer list would hide the sentence

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        import difflib

        names = sorted(known)
        text = name if isinstance(name, str) else ""
        similar = difflib.get_close_matches(text, names, n=1, cutoff=0.65)
        beginning = (known for known in names if text and known.startswith(text))
        self.kind, self.near = kind, next(iter(similar), None) or next(beginning, None)
        shown = ", ".join(repr(each) if "," in each else each for each in names[: self.SHOWN])
        more = f", and {len(names) - self.SHOWN} more" if len(names) > self.SHOWN else ""
        known_names = f"known: {shown}{more}." if names else "there are none."
        hint = f"did you mean {self.near!r}?" if self.near else known_names
        super().__init__(f"no {kind} is called {as_given(name)}; {hint}")
