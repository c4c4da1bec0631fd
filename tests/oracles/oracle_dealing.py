"""The least words of the busiest device over all ways to deal pairs to devices, for a few tokens, by CP-SAT."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from pebblesim.core import cp_sat
from pebblesim.core.errors import UsageError
from pebblesim.parallel.team import Team


class Dealing:
    """The program for one number of words; a variable for each device, head and line says whether the device has it.

    What else it says follows from that and makes it fast. The numbers of a device's rows and keys are a *shape*; the
    shapes to which these words let nothing be added are enough. A shape has a most of allowed pairs, and all shapes
    together must have those of each head. The devices that have a row have together as many keys as it has pairs.

    Args:
        team: a few devices and tokens.
        words: the most that a device moves, statistics of rows aside.
    """

    def __init__(self, team: Team, words: int) -> None:
        from ortools.sat.python import cp_model

        self.team, self.model = team, cp_model.CpModel()
        self.has_row = self._lines(team.own_rows, team.heads, team.n_q)
        self.has_key = self._lines(team.own_keys, team.kv_heads, team.n_k)
        self.rows = self._numbers(self.has_row, team.heads, team.n_q)
        self.keys = self._numbers(self.has_key, team.kv_heads, team.n_k)
        pairs = product(range(team.n_q), range(team.n_k))
        self.allowed = [(i, j) for i, j in pairs if not team.causal or j <= i + team.ahead]
        self._cover()
        self._shapes(words)

    def possible(self, seconds: float, workers: int) -> bool | None:
        """Say whether all pairs can be dealt, or return None if the time is too short."""
        from ortools.sat.python import cp_model

        status = cp_sat.solver(seconds, workers).solve(self.model)
        return {cp_model.OPTIMAL: True, cp_model.FEASIBLE: True, cp_model.INFEASIBLE: False}.get(status)

    def _lines(self, own: Any, heads: int, tokens: int) -> dict[tuple[int, int, int], Any]:
        """Whether a device has a row, or a key, of a head. It has what it owns."""
        found = {}
        for p, mine in enumerate(own):
            for h, token in product(range(heads), range(tokens)):
                owns = token in set(mine)
                found[p, h, token] = self.model.new_constant(1) if owns else self.model.new_bool_var("")
        return found

    def _numbers(self, has: Any, heads: int, tokens: int) -> dict[tuple[int, int], Any]:
        """The number of rows, or keys, of a head that a device has."""
        found = {}
        for p, h in product(range(self.team.P), range(heads)):
            found[p, h] = self.model.new_int_var(0, tokens, "")
            self.model.add(sum(has[p, h, token] for token in range(tokens)) == found[p, h])
        return found

    def _cover(self) -> None:
        """Some device has both lines of each allowed pair; the devices that have a line have enough others for it."""
        team, devices = self.team, range(self.team.P)
        of_row, of_key = (Counter(pair[side] for pair in self.allowed) for side in (0, 1))
        for h in range(team.heads):
            g = h // team.sharing
            for i, j in self.allowed:
                both = [self.model.new_bool_var("") for _ in devices]
                for p, has in enumerate(both):
                    self.model.add_implication(has, self.has_row[p, h, i])
                    self.model.add_implication(has, self.has_key[p, g, j])
                self.model.add_bool_or(both)
            for i, pairs in of_row.items():
                self._enough([(self.has_row[p, h, i], self.keys[p, g]) for p in devices], pairs)
            for j, pairs in of_key.items():
                self._enough([(self.has_key[p, g, j], self.rows[p, h]) for p in devices], pairs)

    def _enough(self, of_devices: list[tuple[Any, Any]], pairs: int) -> None:
        """The devices that have a line have, all in all, as many other lines as it has pairs."""
        parts = []
        for has, number in of_devices:
            parts.append(self.model.new_int_var(0, pairs, ""))
            self.model.add(parts[-1] <= number)
            self.model.add(parts[-1] <= pairs * has)
        self.model.add(sum(parts) >= pairs)

    def _shapes(self, words: int) -> None:
        """Each device has a shape, and all of them together have the pairs of each head."""
        team, heads, numbers = self.team, range(self.team.heads), []
        areas = [[self.model.new_int_var(0, len(self.allowed), "") for _ in heads] for _ in range(team.P)]
        for p, area in enumerate(areas):
            shapes = _shapes(team, p, words)
            tuples = [(k, *shape, *_pairs(team, p, shape)) for k, shape in enumerate(shapes)]
            numbers.append(self.model.new_int_var(0, len(shapes) - 1, ""))
            lines = [*(self.rows[p, h] for h in heads), *(self.keys[p, g] for g in range(team.kv_heads))]
            self.model.add_allowed_assignments([numbers[-1], *lines, *area], tuples)
            self.model.add(sum(area) <= max(sum(each[-team.heads :]) for each in tuples))
        totals = [sum(area[h] for area in areas) for h in heads]
        for total in totals:
            self.model.add(total >= len(self.allowed))
        if team.causal or team.n_q % team.P or team.n_k % team.P:
            return
        # Ways that differ by the numbers of devices, with their tokens, or of heads are one.
        for one, other in pairwise(numbers):
            self.model.add(one <= other)
        groups = [sum(totals[g * team.sharing : (g + 1) * team.sharing]) for g in range(team.kv_heads)]
        for more, fewer in pairwise(groups):
            self.model.add(more >= fewer)


def _shapes(team: Team, p: int, words: int) -> list[tuple[int, ...]]:
    """Rows of each head, and keys, that a device may have for some words; those to which nothing can be added."""
    row, key = team.line_words
    costs = [row] * team.heads + [key] * team.kv_heads
    own = [team.own_rows[p].number] * team.heads + [team.own_keys[p].number] * team.kv_heads
    most = [team.n_q] * team.heads + [team.n_k] * team.kv_heads
    found = []
    for shape in product(*(range(least, end + 1) for least, end in zip(own, most, strict=True))):
        left = words - sum(cost * (has - mine) for cost, has, mine in zip(costs, shape, own, strict=True))
        if left >= 0 and all(has == end or cost > left for has, end, cost in zip(shape, most, costs, strict=True)):
            found.append(shape)
    return found[::-1]


def _pairs(team: Team, p: int, shape: tuple[int, ...]) -> list[int]:
    """The most allowed pairs of each head for a shape: the device's own tokens, the last rows, and the first keys."""
    found = []
    for h in range(team.heads):
        rows, keys = shape[h], shape[team.heads + h // team.sharing]
        if not team.causal:
            found.append(rows * keys)
            continue
        own_rows, own_keys = set(team.own_rows[p]), set(team.own_keys[p])
        others = [i for i in range(team.n_q) if i not in own_rows][::-1][: rows - len(own_rows)]
        firsts = [j for j in range(team.n_k) if j not in own_keys][: keys - len(own_keys)]
        found.append(sum(j <= i + team.ahead for i in (*own_rows, *others) for j in (*own_keys, *firsts)))
    return found


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
