"""The least words of the busiest device over all ways to deal pairs to devices, for a few tokens, by CP-SAT."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product

from pebblesim.core.errors import UsageError
from pebblesim.parallel.dealing import Dealing
from pebblesim.parallel.team import Team


@dataclass(frozen=True)
class Least:
    """The least words of the busiest device, statistics of rows aside: at least `low`, and `high` are reached.

    They are equal unless the time was too short.
    """

    low: int
    high: int


def least_words(team: Team, seconds: float = 60, workers: int = 1) -> Least:
    """Search all ways to deal the allowed pairs, each of them whole, to devices.

    A device that computes a pair has its row and its key. It moves the words of the rows and keys that it has and does
    not own, once each. So a constraint program asks for each number of words, from 0 on, which rows and keys of each
    head a device has, such that some device has both of every allowed pair; it knows nothing of schedules or bounds.

    Args:
        team: a few devices and tokens; n = P = 6 with two heads takes seconds.
        seconds: the time after which no number of words is decided that takes longer than a second.
        workers: threads of the search.

    Raises:
        UsageError: OR-tools is not installed.
    """
    row, key = team.line_words
    rows = team.heads * (team.n_q - min(each.number for each in team.own_rows))
    keys = team.kv_heads * (team.n_k - min(each.number for each in team.own_keys))
    end, undecided = time.monotonic() + seconds, None
    for words in sorted({row * i + key * j for i, j in product(range(rows + 1), range(keys + 1))}):
        try:
            found = Dealing(team, words).possible(max(1.0, end - time.monotonic()), workers)
        except ImportError:
            raise UsageError("the exact search needs OR-tools: pip install ortools.") from None
        if found:
            return Least(words if undecided is None else undecided, words)
        if found is None and undecided is None:
            undecided = words
    raise AssertionError("a device that has all rows and keys has all pairs")
