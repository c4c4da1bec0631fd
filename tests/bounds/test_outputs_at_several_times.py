"""The proof of (10), on which E9 rests, apart from graphs and referee: its steps, on games of words and pairs.

A game is made here as intervals in which a word, or a pair, is in the cache. Pairs may be made several times, for their
products with outputs of queries in one pass, and with those of keys in another. What the proof says is checked for any
number r of dead queries or keys, and for queries and keys that differ in number.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from stays import Name, Spans

import pebblesim as ps
from pebblesim.lower_bounds.bounds import LowerBound

Line = tuple[str, int]
"""A side, Q or K, and a number."""

Use = tuple[int, int, str]
"""A pair, and the sides into whose outputs it is multiplied: Q, K or both."""


class Stays(Spans):
    """When each word and each pair is in the cache; to make a pair all words of both cores are there, in turn.

    The core of a line has 2·`width` words, its output `width` more. A pair may also be saved: then it moves a word.
    """

    def __init__(self, n_q: int, n_k: int, width: int, uses: list[Use], rng: random.Random) -> None:
        super().__init__()
        self.sizes, self.width = {"Q": n_q, "K": n_k}, width
        self.saved = {("P", i, j) for i in range(n_q) for j in range(n_k) if rng.random() < 0.02}
        left = Counter[Line](line for i, j, _ in uses for line in (("Q", i), ("K", j)))
        forgets = {side: rng.choice([0, 0, 0.02, 0.3]) for side in "QKP"}
        keeps = rng.choice([0, 0.2, 0.9])
        for side in "QK":
            if rng.random() < 0.25:
                for name in self.core((side, line) for line in range(self.sizes[side])):
                    self.place(name)
        for i, j, sides in uses:
            pair = ("P", i, j)
            if pair not in self.since:
                self.place(pair)
                names = list(self.core([("Q", i), ("K", j)]))
                for name in rng.sample(names, len(names)):
                    if pair not in self.saved or rng.random() < 0.5 or name not in self.spans:
                        self.place(name)
                    self.forget(rng, forgets)
            for name in self.outputs(line for line in (("Q", i), ("K", j)) if line[0] in sides):
                self.place(name)
                self.forget(rng, forgets)
            if rng.random() >= keeps:
                self.delete(pair)
            for line in (("Q", i), ("K", j)):
                left[line] -= 1
                if not left[line] and rng.random() < 0.9:
                    for name in self.words([line]):
                        self.delete(name)
        for name in list(self.since):
            self.delete(name)

    def core(self, lines: Iterable[Line]) -> Iterator[Name]:
        return ((side, line, c) for side, line in lines for c in range(2 * self.width))

    def outputs(self, lines: Iterable[Line]) -> Iterator[Name]:
        return ((side, line, c) for side, line in lines for c in range(2 * self.width, 3 * self.width))

    def words(self, lines: Iterable[Line]) -> Iterator[Name]:
        return ((side, line, c) for side, line in lines for c in range(3 * self.width))

    def forget(self, rng: random.Random, forgets: dict[str, float]) -> None:
        """Delete words at random; a pair stays."""
        for name in list(self.since):
            if name[0] != "P" and rng.random() < forgets[name[0]] * 0.3:
                self.delete(name)


class Reading:
    """Statements of the proof about one game, for r dead queries or keys; `passes` is the side of which r are first."""

    def __init__(self, game: Stays, r: int) -> None:
        self.game, self.r = game, r
        self.ends = {
            (side, line): min(game.spans[name][-1][1] for name in game.core([(side, line)]))
            for side, many in game.sizes.items()
            for line in range(many)
        }
        first = {side: sorted(end for (own, _), end in self.ends.items() if own == side)[r - 1] for side in "QK"}
        assert first["Q"] != first["K"]
        self.passes, self.stays = ("Q", "K") if first["Q"] < first["K"] else ("K", "Q")
        self.q, self.p = first[self.passes], first[self.stays]
        columns = [
            sorted((game.spans[self.stays, line, c][-1][1], line) for line in range(game.sizes[self.stays]))[:r]
            for c in range(2 * game.width, 3 * game.width)
        ]
        column = min(columns, key=lambda each: each[-1])
        self.full, gone = column[-1][0], [(self.stays, line) for _, line in column]
        dead = [line for line, end in self.ends.items() if line[0] == self.stays and end <= self.p]
        self.stop = min(self.p, self.full)
        self.met_last = (
            dead if self.stop == self.p else gone
        )  # with these a late line that passes is red, or moves a word

    def lines(self, side: str) -> list[Line]:
        return [(side, line) for line in range(self.game.sizes[side])]

    def states(self, names: Iterable[Name], t: int) -> list[str | int]:
        return [self.game.state(name, t) for name in names]

    def dead(self, line: Line, t: int) -> bool:
        return self.ends[line] <= t

    def late(self, line: Line, t: int, core: bool = False) -> bool:
        return "late" in self.states(self.game.core([line]) if core else self.game.words([line]), t)

    def red(self, t: int) -> int:
        return sum(self.states(self.game.words([line]), t).count("red") for side in "QK" for line in self.lines(side))

    def met(self, line: Line, others: Iterable[Line], times: Iterable[int]) -> bool:
        """Whether r pairs of a line with others, or all, are red at one of the times, or were saved."""
        found = [sorted((line, other), reverse=True) for other in others]
        names = [("P", query[1], key[1]) for query, key in found]
        fit = [name in self.game.saved or any(self.game.state(name, t) == "red" for t in times) for name in names]
        return len(fit) >= self.r and all(fit)

    def check(self) -> tuple[str, int]:
        """Check each step, and the inequalities at the end; return the case, and m as the proof has it."""
        gaps = sum(len(spans) - 1 for name, spans in self.game.spans.items() if name[0] != "P")
        gone = [line for line in self.lines(self.passes) if self.dead(line, self.q)]
        assert len(gone) == self.r
        if self.full < self.q:
            assert gaps >= self.of_inputs(gone)
            return "inputs", 0
        times, passed, live = [self.q], [gone], []
        waiting = [line for line in self.lines(self.passes) if line not in gone]
        while True:
            live.append([line for line in waiting if not self.late(line, times[-1], core=True)])
            waiting = [line for line in waiting if self.late(line, times[-1], core=True)]
            ends = sorted(end for line in waiting if (end := self.ends[line]) < self.stop)
            if len(ends) < self.r:
                break
            times.append(ends[self.r - 1])
            passed.append([line for line in waiting if self.dead(line, times[-1])])
            waiting = [line for line in waiting if line not in passed[-1]]
        end = self.stop - 1
        at_end = [line for line in waiting if not self.dead(line, end)]
        late_at_end = [line for line in at_end if self.late(line, end, core=True)]
        assert len(at_end) > len(waiting) - self.r and all(self.met(line, self.met_last, [end]) for line in late_at_end)
        total = sum(map(len, live)) + len(at_end)
        assert total >= self.game.sizes[self.passes] - (len(times) + 1) * self.r + 1
        alive_at_end = [line for line in at_end if line not in late_at_end]
        to_end = self.least([*times[:-1], end], [*live[:-1], alive_at_end], passed)
        assert gaps >= max(self.least(times, live, passed), to_end)
        return ("outputs" if self.stop < self.p else "lines"), len(times) - 1

    def of_inputs(self, gone: list[Line]) -> int:
        """The number of gaps of inputs at q, where r words of a column of outputs are dead."""
        late = []
        for line in self.lines(self.passes):
            if line not in gone and self.late(line, self.q, core=True):
                assert self.met(line, self.met_last, [])
                late.append(line)
        for line in self.lines(self.stays):
            if not self.dead(line, self.q) and self.late(line, self.q, core=True):
                assert self.met(line, gone, [self.q])
                late.append(line)
        lines = sum(self.game.sizes.values()) - 2 * self.r + 1
        return 2 * self.game.width * (lines - len(late)) - self.red(self.q)

    def least(self, times: list[int], live: list[list[Line]], passed: list[list[Line]]) -> int:
        """The number of gaps at these times, as the proof counts them."""
        core, whole, least, stays = 2 * self.game.width, 3 * self.game.width, 0, self.lines(self.stays)
        for t, alive, gone in zip(times, live, passed, strict=True):
            late = [line for line in stays if self.late(line, t)]
            assert all(self.met(line, gone, [t]) for line in late)
            least += whole * (len(stays) - self.r + 1 - len(late)) + core * len(alive) - self.red(t)
        for (one, two), between in zip(pairwise(times), passed[1:], strict=True):
            same = [line for line in stays if self.same_gap(line, one, two)]
            assert all(self.met(line, between, [one, two]) for line in same)
            least -= whole * len(same)
        return least

    def same_gap(self, line: Line, one: int, two: int) -> bool:
        words = list(self.game.words([line]))
        both = zip(self.states(words, one), self.states(words, two), strict=True)
        return any(isinstance(state, int) and state == other for state, other in both)


def uses_of(n_q: int, n_k: int, rng: random.Random) -> list[Use]:
    """All pairs, by blocks of queries or of keys, more or less, for all outputs or once for each side."""

    def ordered(sides: str) -> list[Use]:
        wide, noise, turned = rng.choice([1, 1, 2, 3, 5]), rng.choice([0, 0, 0, 1, 4]), rng.random() < 0.5
        back = rng.random() < 0.5

        def key(use: Use) -> tuple[float, ...]:
            outer, inner = use[1::-1] if turned else use[:2]
            block = outer // wide
            return block + noise * rng.random(), -inner if back and block % 2 else inner, outer

        return sorted(((i, j, sides) for i in range(n_q) for j in range(n_k)), key=key)

    passes = rng.choice([("QK",), ("Q", "K"), ("K", "Q")])
    return [use for sides in passes for use in ordered(sides)]


def cases_in(seed: int, games: int, mutate: Callable[[Stays], None] = lambda _: None) -> Counter[tuple[str, int]]:
    rng, seen = random.Random(seed), Counter[tuple[str, int]]()
    for _ in range(games):
        n_q, n_k, width = rng.choice([(3, 3, 1), (6, 6, 1), (5, 8, 2), (9, 6, 1), (8, 8, 1), (10, 4, 1)])
        game = Stays(n_q, n_k, width, uses_of(n_q, n_k, rng), rng)
        mutate(game)
        for r in {1, rng.randint(1, 3)}:
            seen[Reading(game, r).check()] += 1
    return seen


@pytest.mark.one_in(2)
def test_every_step_says_what_is_so() -> None:
    seen = cases_in(seed=1, games=150)
    assert {case for case, _ in seen} == {"inputs", "outputs", "lines"}
    assert all(seen["lines", m] for m in range(4)), seen


def test_a_game_that_forgets_its_pairs_is_caught() -> None:
    def forgetful(game: Stays) -> None:
        game.spans |= {name: [(0, 1)] for name in game.spans if name[0] == "P"}

    with pytest.raises(AssertionError):
        cases_in(seed=1, games=150, mutate=forgetful)


# -- the bound ----------------------------------------------------------------------------------------------------


def e9(M: int, **sizes: Any) -> LowerBound:
    return next(each for each in ps.bounds("backward-qkv", M=M, **sizes).lower if each.name == "E9")


def least_gaps(stay: int, passing: int, d: int, M: int) -> Fraction:
    """(m + 1)(3d(n_k - r + 1) - M) + 2d(n_q - (m + 2)r + 1)/2 for the worst m, with r = 9d: each m that there can be.

    Or 2d(n_q + n_k - 2r + 1) - M. At each time a red pair counts with 3d/r for a late key, and with as much for one in
    the same gap on either side.
    """
    r = 9 * d
    assert 3 * Fraction(3 * d, r) == 1
    at_several = (
        (m + 1) * (3 * d * (stay - r + 1) - M) + Fraction(2 * d * (passing - (m + 2) * r + 1), 2)
        for m in range(max(1, passing // r))
    )
    return min(*at_several, Fraction(2 * d * (stay + passing - 2 * r + 1) - M))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("n_q", [12, 24, 100, 1000])
@pytest.mark.parametrize("n_k", [12, 40, 999])
@pytest.mark.parametrize("d", [1, 2])
def test_its_value(n_q: int, n_k: int, d: int) -> None:
    n_q, n_k = n_q * d, n_k * d
    sizes = {"n_q": n_q, "n_k": n_k, "d_k": d, "d_v": d}
    for M in {30, n_q * d // 2, n_q * d, n_k * d, 2 * min(n_q, n_k) * d, 3 * max(n_q, n_k) * d}:
        found = e9(M, **sizes)
        worst = min(least_gaps(n_q, n_k, d, M), least_gaps(n_k, n_q, d, M))
        assert found.value == max(0, d * (3 * n_q + 4 * n_k) + worst) and not found.why_not


@pytest.mark.one_in(2)
def test_where_it_is_not_proved() -> None:
    def known(**sizes: Any) -> bool:
        return any(each.name == "E9" for each in ps.bounds("backward-qkv", M=100, **sizes).lower)

    assert known(n=48, d=4) and known(n_q=48, n_k=50, d_k=4, d_v=4)
    assert not known(n=47, d=4) and not known(n=400, d=4, mask="causal") and not known(n_q=400, n_k=400, d_k=4, d_v=5)


@pytest.mark.slow
def test_schedules_are_within_half_of_it_from_twice_nd() -> None:
    n, d = 2**16, 2**7
    for M in (2 * n * d, 5 * n * d // 2):
        best = ps.compare("backward-qkv", M=M, n=n, d=d).best
        assert best and best.every_way.name == "E9" and 1 <= best.gap < 1.5
