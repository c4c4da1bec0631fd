"""The least words of the busiest device over all ways to deal pairs to devices, for a few tokens, by CP-SAT."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from pebblesim.core import cp_sat
from pebblesim.core.errors import UsageError
from pebblesim.parallel.team import STATISTICS, Team


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
    not own, once each. So the program asks which rows and keys of each head a device has, and that some device has both
    of every allowed pair; it knows nothing of schedules or bounds.

    Args:
        team: a few devices and tokens; with n = P = 6 and two heads the search takes minutes.
        seconds: the time after which the search ends.
        workers: threads of the search.

    Raises:
        UsageError: OR-tools is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise UsageError("the exact search needs OR-tools: pip install 'pebblesim[exact]'.") from None
    model, devices = cp_model.CpModel(), range(team.P)
    row, key = _line_words(team)
    most = model.new_int_var(0, team.heads * team.n_q * row + team.kv_heads * team.n_k * key, "words")
    has_row = _lines(model, team.own_rows, team.heads, team.n_q)
    has_key = _lines(model, team.own_keys, team.kv_heads, team.n_k)
    for p in devices:
        rows = [x for (q, _, i), x in has_row.items() if q == p and i not in set(team.own_rows[p])]
        keys = [x for (q, _, j), x in has_key.items() if q == p and j not in set(team.own_keys[p])]
        model.add(row * sum(rows) + key * sum(keys) <= most)
    for h, i, j in product(range(team.heads), range(team.n_q), range(team.n_k)):
        if team.causal and j > i + team.ahead:
            continue
        both = []
        for p in devices:
            both.append(model.new_bool_var(f"pair {p} {h} {i} {j}"))
            model.add_implication(both[-1], has_row[p, h, i])
            model.add_implication(both[-1], has_key[p, h // team.sharing, j])
        model.add_bool_or(both)
    if not team.causal:
        areas = [
            _area(model, [has_row[p, h, i] for i in range(team.n_q)], [has_key[p, g, j] for j in range(team.n_k)])
            for p, h in product(devices, range(team.heads))
            for g in [h // team.sharing]
        ]
        model.add(sum(areas) >= team.heads * team.n_q * team.n_k)
    if not team.causal and team.n_q == team.n_k == team.P:
        _break_symmetry(model, team, has_row, has_key)
    model.minimize(most)
    solver = cp_sat.solver(seconds, workers)
    solver.parameters.symmetry_level = 3
    solver.solve(model)
    return Least(round(solver.best_objective_bound), round(solver.objective_value))


def _area(model: Any, rows: list[Any], keys: list[Any]) -> Any:
    """The number of rows times that of keys, which is the most pairs that they have."""
    I, J = (model.new_int_var(0, len(lines), "") for lines in (rows, keys))
    model.add(sum(rows) == I)
    model.add(sum(keys) == J)
    area = model.new_int_var(0, len(rows) * len(keys), "")
    model.add_multiplication_equality(area, [I, J])
    return area


def _break_symmetry(model: Any, team: Team, has_row: Any, has_key: Any) -> None:
    """Keep fewer of the ways that differ by the numbers of devices and their tokens or of heads, but at least one.

    Each device owns one token. The devices are in the order of their lines in the first heads that share keys, and
    these have no fewer lines than the next.
    """
    lines: dict[tuple[int, int], list[Any]] = {}
    for (p, h, _), has in has_row.items():
        lines.setdefault((p, h // team.sharing), []).append(has)
    for (p, g, _), has in has_key.items():
        lines[p, g].append(has)
    for p in range(team.P - 1):
        model.add(sum(lines[p, 0]) >= sum(lines[p + 1, 0]))
    totals = [sum(each for p in range(team.P) for each in lines[p, g]) for g in range(team.kv_heads)]
    for one, other in pairwise(totals):
        model.add(one >= other)


def _line_words(team: Team) -> tuple[int, int]:
    rows = {**team.traffic.rows_in, **team.traffic.rows_out}
    return sum(words for name, words in rows.items() if name not in STATISTICS), int(team.traffic.key)


def _lines(model: Any, own: Any, heads: int, tokens: int) -> dict[tuple[int, int, int], Any]:
    """A variable for each device, head and token: whether the device has the row, or the key. It has what it owns."""
    found = {}
    for p, mine in enumerate(own):
        for h, token in product(range(heads), range(tokens)):
            found[p, h, token] = model.new_constant(1) if token in set(mine) else model.new_bool_var(f"{p} {h} {token}")
    return found
