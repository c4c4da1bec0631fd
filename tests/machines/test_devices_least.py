"""Exact least words of the busiest device by constraint programs, against the bounds and the schedules."""

import itertools
import re
from functools import cache
from typing import Any

import pytest
from checkout import ROOT
from machines.test_devices import may_see
from oracle_dealing import Dealing, Least, least_words

import pebblesim as ps
from pebblesim.core import cp_sat
from pebblesim.parallel.bounds import any_memory, whole_pairs
from pebblesim.parallel.team import Team

cp_model = pytest.importorskip("ortools.sat.python.cp_model")


def of_schedules(team: Team) -> int:
    """The fewest words of a schedule, statistics of rows aside."""
    rows = ps.devices(
        n_q=team.n_q, n_k=team.n_k, d=1, P=team.P, heads=team.heads, kv_heads=team.kv_heads, backward=team.backward,
        mask="causal" if team.causal else None, ownership=team.ownership,
    ).rows  # fmt: skip
    return min(row.words - sum(row.tensors().get(name, 0) for name in "LD") for row in rows)


def least_by_listing(team: Team) -> int:
    """Try all sets of rows and keys that each device may have besides its own, in each head, one after the other."""
    row, key = (3, 4) if team.backward else (2, 2)
    pairs = list(itertools.product(range(team.heads), range(team.n_q), range(team.n_k)))
    allowed = sum(1 << k for k, (_, i, j) in enumerate(pairs) if may_see(team, i, j))
    of_devices = []
    for p in range(team.P):
        own_rows, own_keys = set(team.own_rows[p]), set(team.own_keys[p])
        rows = [(h, i) for h in range(team.heads) for i in range(team.n_q) if i not in own_rows]
        keys = [(g, j) for g in range(team.kv_heads) for j in range(team.n_k) if j not in own_keys]
        ways = []
        for more, others in itertools.product(subsets(rows), subsets(keys)):
            has = [
                (i in own_rows or (h, i) in more) and (j in own_keys or (h // team.sharing, j) in others)
                for h, i, j in pairs
            ]
            ways.append((row * len(more) + key * len(others), sum(1 << k for k, it in enumerate(has) if it) & allowed))
        of_devices.append(ways)
    reached = {0: 0}  # the fewest words of the busiest device so far, for each set of pairs
    for ways in of_devices:
        after: dict[int, int] = {}
        for have, most in reached.items():
            for words, pairs_of in ways:
                both = have | pairs_of
                after[both] = min(after.get(both, 1 << 30), max(most, words))
        reached = after
    return reached[allowed]


def subsets(lines: list[tuple[int, int]]) -> list[frozenset[tuple[int, int]]]:
    return [frozenset(some) for size in range(len(lines) + 1) for some in itertools.combinations(lines, size)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    "n_q, n_k, P, heads, kv_heads, ownership",
    [
        (2, 2, 2, 1, 1, "contiguous"),
        (2, 2, 2, 2, 2, "contiguous"),
        (2, 2, 2, 3, 1, "contiguous"),
        (3, 3, 3, 1, 1, "contiguous"),
        (4, 4, 2, 1, 1, "zig-zag"),
        (3, 3, 2, 1, 1, "striped"),
        (2, 4, 2, 1, 1, "zig-zag"),
        (1, 3, 2, 2, 1, "contiguous"),
        (3, 2, 3, 1, 1, "contiguous"),
    ],
)
def test_the_least_is_that_of_all_sets_of_rows_and_keys(
    n_q: int, n_k: int, P: int, heads: int, kv_heads: int, ownership: str, backward: bool, causal: bool
) -> None:
    team = Team(n_q, n_k, 1, 1, heads, kv_heads, P, backward, causal, ownership)
    least = least_words(team, 600)
    assert least.low == least.high == least_by_listing(team)
    assert max(any_memory(team), whole_pairs(team)) <= least.low <= of_schedules(team)


def test_a_number_of_words_that_is_not_decided_gives_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, None, None, True])  # for 0, 2, 4 and 6 words
    monkeypatch.setattr(Dealing, "possible", lambda *_: next(answers))
    assert least_words(Team.square(4, 1, 1, 1, 4)) == Least(2, 6)


TABLE = re.compile(
    r"^\| (\d) \| (\d) on (\d) \| (\w+)" + r" \| (\d+)" * 4 + r" \| (\S+)" + r" \| (\d+)" * 3, re.MULTILINE
)
SECOND = re.compile(r"^\| (\d) \| (\d) \| (\d) on (\d) \| ([a-z-]+)" + r" \| (\d+)" * 5, re.MULTILINE)
TEXT = (ROOT / "docs" / "parallel.md").read_text(encoding="utf-8")
CASES = [tuple(int(cell) if cell.isdigit() else cell for cell in line) for line in TABLE.findall(TEXT)]
OWNED = [tuple(int(cell) if cell.isdigit() else cell for cell in line) for line in SECOND.findall(TEXT)]


def slow_from(n: int, cases: list[tuple[Any, ...]]) -> list[Any]:
    return [pytest.param(case, marks=[pytest.mark.slow] * (case[0] >= n), id=str(case)) for case in cases]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bounds_and_schedules_of_the_table_in_the_docs(case: tuple[Any, ...]) -> None:
    n, heads, kv_heads, way, p1, p2, least, words, gap, bound, least_causal, words_causal = case
    team, causal = (Team.square(n, 1, heads, kv_heads, n, way == "backward", mask) for mask in (False, True))
    assert (any_memory(team), whole_pairs(team), of_schedules(team)) == (p1, p2, words)
    assert (max(any_memory(causal), whole_pairs(causal)), of_schedules(causal)) == (bound, words_causal)
    assert max(p1, p2) <= least <= words and bound <= least_causal <= words_causal
    assert gap == f"{words / least:.3f}"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", slow_from(4, CASES))
def test_the_least_of_the_table_in_the_docs(case: tuple[Any, ...]) -> None:
    n, heads, kv_heads, way, _, _, least, _, _, _, least_causal, _ = case
    for causal, found in ((False, least), (True, least_causal)):
        assert least_words(Team.square(n, 1, heads, kv_heads, n, way == "backward", causal), 600) == Least(found, found)


@pytest.mark.parametrize("case", slow_from(6, OWNED))
def test_the_table_of_ownerships_in_the_docs(case: tuple[Any, ...]) -> None:
    n, P, heads, kv_heads, ownership, bound, least, words, bound_of_all, least_of_all = case
    causal, team = (Team.square(n, 1, heads, kv_heads, P, False, mask, ownership) for mask in (True, False))
    assert [max(any_memory(each), whole_pairs(each)) for each in (causal, team)] == [bound, bound_of_all]
    assert [least_words(each, 600) for each in (causal, team)] == [
        Least(least, least),
        Least(least_of_all, least_of_all),
    ]
    assert of_schedules(causal) == words


def test_the_table_in_the_docs_has_all_sizes() -> None:
    assert {case[:4] for case in CASES} == {
        (n, *heads, way)
        for n, heads, way in itertools.product(range(2, 7), [(1, 1), (2, 2), (2, 1)], ["forward", "backward"])
    }
    assert len(OWNED) > 8


@cache
def covered(n: int, shapes: tuple[tuple[int, int], ...]) -> bool:
    """Whether device p with I rows and J keys, its own among them, for each (I, J) in turn, can have all n² pairs.

    All rectangles are listed. Those of all devices have some pairs more than n², which is how often they may overlap.
    """
    own = [1 << (n * p + p) for p in range(n)]
    later = [sum(own[p + 1 :]) for p in range(n)]
    rectangles = []
    for p, (I, J) in enumerate(shapes):
        others = [t for t in range(n) if t != p]
        rows, keys = ([(p, *more) for more in itertools.combinations(others, size - 1)] for size in (I, J))
        rectangles.append([sum(1 << (n * i + j) for i in R for j in C) for R, C in itertools.product(rows, keys)])

    def possible(p: int, have: int, spare: int) -> bool:
        if p == n:
            return have == (1 << n * n) - 1
        for pairs in rectangles[p]:
            twice = (pairs & (have & ~own[p] | later[p])).bit_count()
            if twice <= spare and possible(p + 1, have | pairs, spare - twice):
                return True
        return False

    spare = sum(I * J for I, J in shapes) - n * n
    return spare >= 0 and possible(0, 0, spare)


def two_heads_can_be_dealt(n: int, row: int, key: int, words: int) -> bool:
    """Try all numbers of rows and keys of n devices in two heads; then each head is a question of its own."""
    shapes = []
    for shape in itertools.product(range(1, n + 1), repeat=4):
        left = words - sum(cost * (has - 1) for cost, has in zip((row, key) * 2, shape, strict=True))
        if left >= 0 and all(has == n or cost > left for has, cost in zip(shape, (row, key) * 2, strict=True)):
            shapes.append(shape)
    most = max(a * b + c * d for a, b, c, d in shapes)

    def possible(start: int, chosen: tuple[tuple[int, ...], ...], pairs: int) -> bool:
        if pairs + (n - len(chosen)) * most < 2 * n * n:
            return False
        if len(chosen) == n:
            heads = (tuple(sorted((each[k : k + 2] for each in chosen), reverse=True)) for k in (0, 2))
            return all(covered(n, head) for head in heads)
        return any(
            possible(k, (*chosen, shapes[k]), pairs + a * b + c * d)
            for k, (a, b, c, d) in enumerate(shapes[start:], start)
        )

    return possible(0, (), 0)


@pytest.mark.parametrize("case", slow_from(5, [case for case in CASES if case[1:3] == (2, 2)]))
def test_no_fewer_words_are_enough_for_two_heads_by_listing_rectangles(case: tuple[Any, ...]) -> None:
    n, row, key, least = case[0], *((3, 4) if case[3] == "backward" else (2, 2)), case[6]
    fewer = max(row * i + key * j for i, j in itertools.product(range(2 * n), repeat=2) if row * i + key * j < least)
    assert two_heads_can_be_dealt(n, row, key, least)
    assert not two_heads_can_be_dealt(n, row, key, fewer)


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


@pytest.mark.one_in(3)
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
