"""Exact least words of the busiest device by constraint programs, against the bounds and the schedules."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

import pebblesim as ps
from pebblesim.core import cp_sat
from pebblesim.parallel.bounds import any_memory, whole_pairs
from pebblesim.parallel.least import least_words
from pebblesim.parallel.team import Team

cp_model = pytest.importorskip("ortools.sat.python.cp_model")


def of_schedules(team: Team) -> int:
    """The fewest words of a schedule, statistics of rows aside."""
    rows = ps.devices(
        n_q=team.n_q, n_k=team.n_k, d=1, P=team.P, heads=team.heads, kv_heads=team.kv_heads, backward=team.backward,
        mask="causal" if team.causal else None,
    ).rows  # fmt: skip
    return min(row.words - sum(row.tensors().get(name, 0) for name in "LD") for row in rows)


def check(team: Team, seconds: float) -> tuple[int, int]:
    least = least_words(team, seconds)
    assert any_memory(team) <= least.high and whole_pairs(team) <= least.high
    assert of_schedules(team) >= least.low
    return least.low, least.high


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("n, heads, kv_heads", [(2, 2, 1), (3, 1, 1), (3, 2, 2), (4, 1, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_the_least_over_all_whole_pairs_is_not_below_the_bounds(
    n: int, heads: int, kv_heads: int, backward: bool, causal: bool
) -> None:
    team = Team.square(n, 1, heads, kv_heads, n, backward, causal, "zig-zag" if causal else "contiguous")
    low, high = check(team, 60)
    assert low == high


TABLE = re.compile(
    r"^\| (\d) \| (\d) on (\d) \| (\w+) \| (\d+) \| (\d+) \| (\d+)(?: … (\d+))? \| (\d+) \|", re.MULTILINE
)


def table() -> list[tuple[Any, ...]]:
    text = (Path(__file__).parents[1] / "docs" / "parallel.md").read_text(encoding="utf-8")
    return [
        (int(n), int(h), int(h_kv), way, int(p1), int(p2), int(low), int(high or low), int(words))
        for n, h, h_kv, way, p1, p2, low, high, words in TABLE.findall(text)
    ]


@pytest.mark.parametrize("case", table(), ids=str)
def test_bounds_and_schedules_of_the_table_in_the_docs(case: tuple[Any, ...]) -> None:
    n, heads, kv_heads, way, p1, p2, low, high, words = case
    team = Team.square(n, 1, heads, kv_heads, n, way == "backward")
    assert (any_memory(team), whole_pairs(team), of_schedules(team)) == (p1, p2, words)
    assert max(p1, p2) <= high <= words and low <= high
    assert low == high or (n, heads) in {(5, 2), (6, 2)}


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in table() if case[6] == case[7]], ids=str)
def test_the_least_of_the_table_in_the_docs(case: tuple[Any, ...]) -> None:
    n, heads, kv_heads, way, _, _, low, _, _ = case
    team = Team.square(n, 1, heads, kv_heads, n, way == "backward")
    found = least_words(team, 30)
    assert found.low <= low <= found.high
    if n < 5:  # larger ones take minutes, more or fewer by the machine
        assert found.low == found.high


@pytest.mark.slow
def test_the_table_in_the_docs_has_all_sizes() -> None:
    assert {case[:4] for case in table()} == {
        (n, *heads, way)
        for n, heads, way in itertools.product(range(2, 7), [(1, 1), (2, 2), (2, 1)], ["forward", "backward"])
    }


class Products:
    """All ways to deal single products to devices, for P1: a value of a pair may be computed by one, used by others."""

    def __init__(self, n: int, d: int, P: int, backward: bool) -> None:
        self.model, self.n, self.d, self.P = cp_model.CpModel(), n, d, P
        self.most = self.model.new_int_var(0, 99 * n * n * d, "words")
        self.costs: list[list[Any]] = [[] for _ in range(P)]
        self.words = {
            (p, name, t, k): self.word(p, t) for p in range(P) for name in self.names(backward) for t, k in self.all()
        }
        covered: dict[Any, list[Any]] = {}
        for p, i, j in itertools.product(range(P), range(n), range(n)):
            probability = self.value(p, "P", i, j, covered, [("Q", i), ("K", j)], [])
            if not backward:
                self.products(p, probability, covered, ("PV", i, j), ("V", j), ("O", i))
                continue
            gradient = self.value(p, "dS", i, j, covered, [("dO", i), ("V", j)], [probability])
            self.products(p, probability, covered, ("PdO", i, j), ("dO", i), ("dV", j))
            self.products(p, gradient, covered, ("dSK", i, j), ("K", j), ("dQ", i))
            self.products(p, gradient, covered, ("dSQ", i, j), ("Q", i), ("dK", j))
        for ways in covered.values():
            self.model.add_bool_or(ways)
        for p in range(P):
            self.model.add(sum(self.costs[p]) <= self.most)
        self.model.minimize(self.most)

    def names(self, backward: bool) -> list[str]:
        return ["Q", "K", "V", "O"] if not backward else ["Q", "K", "V", "dO", "dQ", "dK", "dV"]

    def all(self) -> list[tuple[int, int]]:
        return list(itertools.product(range(self.n), range(self.d)))

    def word(self, p: int, token: int) -> Any:
        """Whether p has this word; free if it owns the token."""
        if token * self.P // self.n == p:
            return self.model.new_constant(1)
        has = self.model.new_bool_var("")
        self.costs[p].append(has)
        return has

    def value(self, p: int, name: str, i: int, j: int, covered: Any, lines: Any, others: list[Any]) -> Any:
        """Whether p has a pair's value: it is received for a word, or computed from whole lines."""
        fresh, received, has = (self.model.new_bool_var("") for _ in range(3))
        self.costs[p].append(received)
        self.model.add_bool_or([fresh, received, has.negated()])
        for tensor, token in lines:
            for k in range(self.d):
                self.model.add_implication(fresh, self.words[p, tensor, token, k])
        for other in others:
            self.model.add_implication(fresh, other)
        covered.setdefault((name, i, j), []).append(fresh)  # someone computes it
        return has

    def products(self, p: int, value: Any, covered: Any, name: Any, factor: Any, result: Any) -> None:
        for k in range(self.d):
            done = self.model.new_bool_var("")
            for needed in (value, self.words[p, *factor, k], self.words[p, *result, k]):
                self.model.add_implication(done, needed)
            covered.setdefault((*name, k), []).append(done)

    def least(self, seconds: float) -> tuple[int, int]:
        solver = cp_sat.solver(seconds, workers=1)
        solver.solve(self.model)
        return round(solver.best_objective_bound), round(solver.objective_value)


@pytest.mark.parametrize(
    "n, d, P, backward",
    [
        (2, 1, 2, False),
        (2, 2, 2, True),
        (4, 1, 2, False),
        (3, 2, 3, False),
        pytest.param(4, 1, 4, False, marks=pytest.mark.slow),
        pytest.param(3, 1, 3, True, marks=pytest.mark.slow),
        pytest.param(4, 2, 2, False, marks=pytest.mark.slow),
        pytest.param(4, 1, 2, True, marks=pytest.mark.slow),
        pytest.param(6, 1, 3, False, marks=pytest.mark.slow),
        pytest.param(6, 1, 2, False, marks=pytest.mark.slow),
    ],
)
def test_no_way_to_deal_single_products_is_below_P1(n: int, d: int, P: int, backward: bool) -> None:
    low, high = Products(n, d, P, backward).least(30)
    assert any_memory(Team.square(n, d, 1, 1, P, backward)) <= low <= high
    assert low <= least_words(Team.square(n, d, 1, 1, P, backward), 30).high  # whole pairs are one way
