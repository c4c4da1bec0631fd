"""Capacities where pairs differ in their order of the products: what a set of families within reach lets one evaluate.

Rows that are made, and pairs that are fresh, follow from the set by closure, word by word; the sets that allow the most
products are looked for by a random climb. Nothing here knows the proofs: a capacity is a number that no set exceeds.
"""

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest

from pebblesim.language.problems import PROBLEMS
from pebblesim.lower_bounds.bounds import BOUNDS, Formulation
from pebblesim.lower_bounds.bounds_backward_qkv import ANGLES, EVEN, Weights
from pebblesim.lower_bounds.capacities import Cube
from pebblesim.lower_bounds.cutting import Cutting, CuttingBound

Family = tuple[Any, ...]
Reach = set[Family]

SOURCE = {"Q": "A1", "K": "A2", "V": "A3", "QWᵀ": "Q", "KWᵀ": "K", "A1W": "A1", "A2Wᵀ": "A2", "U": "dO"}
"""Rows that are made, and the rows of the same query or key that they are made from."""
SCORES = [("Q", "K"), ("QWᵀ", "A2"), ("A1", "KWᵀ"), ("A1W", "A2"), ("A1", "A2Wᵀ")]
OF_DP = [("dO", "V"), ("U", "A3")]
OF_QUERIES, OF_KEYS = ("A1", "Q", "QWᵀ", "A1W", "dO", "U"), ("A2", "K", "KWᵀ", "A2Wᵀ", "A3", "V")


class Attention:
    """Projected attention of a few pairs, each with an order of its own, and with P saved for some."""

    def __init__(self, rnd: random.Random) -> None:
        top = rnd.choice([2, 3, 4])
        self.n_q, self.n_k, self.d = (rnd.randint(1, top) for _ in range(3))
        self.d_k, self.d_v = rnd.randint(1, self.d), rnd.randint(1, self.d)
        grid = [(i, j) for i in range(self.n_q) for j in range(self.n_k)]
        self.pairs = rnd.sample(grid, rnd.randint(1, len(grid)))
        orders: Sequence[Sequence[Any]] = (SCORES, OF_DP, ["K", "A2"], ["Q", "A1"], [False, True])
        self.order = {pair: tuple(rnd.choice(options) for options in orders) for pair in self.pairs}
        self.cover = self._least_cover()
        self.with_W = {line for line in self.cover if rnd.random() < 0.5}
        self.width = dict.fromkeys((*OF_QUERIES, *OF_KEYS), self.d) | {"Q": self.d_k, "K": self.d_k}
        self.width |= {"V": self.d_v, "dO": self.d_v}

    def _least_cover(self) -> Sequence[tuple[str, int]]:
        lines = [("q", i) for i in range(self.n_q)] + [("k", j) for j in range(self.n_k)]
        of_size = (each for size in range(len(lines) + 1) for each in combinations(lines, size))
        return next(c for c in of_size if all(("q", i) in c or ("k", j) in c for i, j in self.pairs))

    def claim(self, problem: str, name: str) -> CuttingBound:
        solves = PROBLEMS[problem].rectangle
        dims = {dim: getattr(self, dim) for dim in solves.dims}
        case = Cutting(solves, dims, Formulation(graph={"absorbed": ("W_K", "W_V")}), None, {"Q": "A1", "K": "A2"})
        return {claim.name: claim for claim in BOUNDS[solves.bounds or ""].claims(case)}[name]

    def rows(self, columns: int) -> list[Family]:
        sides = ((OF_QUERIES, self.n_q), (OF_KEYS, self.n_k))
        return [
            (name, line, t)
            for names, number in sides
            for name in names
            for line in range(number)
            for t in range(min(columns, self.width[name]))
        ]

    def of_pairs(self) -> list[Family]:
        return [(name, pair) for name in "ΣΘ" for pair in self.pairs]

    def results(self, d_k: int, d_v: int) -> list[Family]:
        lines = [(name, i, t) for name in ("dQ", "dSA2") for i in range(self.n_q) for t in range(d_k)]
        lines += [(name, j, t) for name in ("dK", "dSᵀA1") for j in range(self.n_k) for t in range(d_k)]
        return [*lines, *(("dV", j, t) for j in range(self.n_k) for t in range(d_v))]

    def words(self, reach: Reach, columns: int) -> Callable[[str, int], set[int]]:
        """The columns of a row that can be red: those within reach, or all, if all of what it is made from can be."""

        def of_row(name: str, line: int) -> set[int]:
            every = set(range(min(columns, self.width[name])))
            if name in SOURCE and len(of_row(SOURCE[name], line)) == min(columns, self.width[SOURCE[name]]):
                return every
            return {t for t in every if (name, line, t) in reach}

        return of_row


def gradients(case: Attention, reach: Reach, weights: Sequence[int], columns: int, numbered: bool) -> int:
    """Products of dQ, dK and dV, by their weights; with all of Σ and Θ `numbered`, a free start counts, too."""
    red, number = case.words(reach, columns), 0

    def whole(i: int, j: int, rows: tuple[str, str]) -> bool:
        return all(
            len(red(name, line)) == min(columns, case.width[name]) for name, line in zip(rows, (i, j), strict=True)
        )

    for (i, j), (score, dP, right, left, kept) in case.order.items():
        P, dS = (("Σ", (i, j)) in reach, ("Θ", (i, j)) in reach)
        if not numbered:
            P = P or (not kept and whole(i, j, score))
            dS = dS or (P and whole(i, j, dP))
        for t in range(min(columns, case.d_k)):
            of_dQ, of_dK = ("dQ" if right == "K" else "dSA2", i, t), ("dK" if left == "Q" else "dSᵀA1", j, t)
            number += weights[0] * (dS and t in red(right, j) and of_dQ in reach)
            number += weights[1] * (dS and t in red(left, i) and of_dK in reach)
        for t in range(min(columns, case.d_v)):
            number += weights[2] * (P and t in red("dO", i) and ("dV", j, t) in reach)
    return number


Case = tuple[list[Family], Callable[[Reach], tuple[int, int]]]


def e3(case: Attention, _: random.Random) -> Case:
    claim, least = case.claim("projected-backward-qkv", "E3"), min(case.d_k, case.d_v)
    weights = [product.weight for product in claim.table]

    def judged(reach: Reach) -> tuple[int, int]:
        return gradients(case, reach, weights, least, numbered=False), claim.capacity(len(reach))

    return case.rows(least) + case.of_pairs() + case.results(least, least), judged


def e4(case: Attention, _: random.Random) -> Case:
    claim = case.claim("projected-backward-qkv", "E4")

    def judged(reach: Reach) -> tuple[int, int]:
        red, number = case.words(reach, case.d), 0
        for (i, j), (score, dP, _, _, kept) in case.order.items():
            rows = [(score[0], i), (score[1], j), (dP[0], i), (dP[1], j)]
            whole = not kept and all(len(red(*row)) == case.width[row[0]] for row in rows)
            number += whole or ("Σ", (i, j)) in reach or ("Θ", (i, j)) in reach
        return number, claim.capacity(len(reach))

    return case.rows(case.d) + case.of_pairs(), judged


def e1h(case: Attention, rnd: random.Random) -> Case:
    first = case.claim("projected-backward-qkv", "E1h")
    claim = rnd.choice((first, *first.others))
    light = rnd.choice([Fraction(1), Fraction(1, 2), Fraction(1, 9)])
    weight = {product.result: product.weight for product in claim.table}
    assert isinstance(claim.capacity, Cube)
    capacity = Cube(claim.capacity.w, light)
    of_score = {each.full: each.scores for each in (EVEN, *map(Weights.at, ANGLES))}[capacity.w]

    def judged(reach: Reach) -> tuple[int, int]:
        red = case.words(reach, case.d)
        number = gradients(case, reach, [weight[name] for name in ("dQ", "dK", "dV")], case.d, numbered=True)
        for (i, j), ((a, b), (u, v), _, _, kept) in case.order.items():
            if ("Σ", (i, j)) in reach and not kept:
                number += of_score * sum(t in red(a, i) and t in red(b, j) for t in range(case.d_k))
            if ("Θ", (i, j)) in reach:
                number += weight["Θ"] * sum(t in red(u, i) and t in red(v, j) for t in range(case.d_v))
        pairs = sum(family[0] in "ΣΘ" for family in reach)
        X = len(reach) - pairs + light * pairs
        return number, capacity(-(-X.numerator // X.denominator))

    return case.rows(case.d) + case.of_pairs() + case.results(case.d_k, case.d_v), judged


def e1m(case: Attention, _: random.Random) -> Case:
    claim = case.claim("projected-backward-qkv", "E1m")
    names = {"q": (("U", case.d), ("dO", case.d_v)), "k": (("A3", case.d), ("V", case.d_v))}

    def judged(reach: Reach) -> tuple[int, int]:
        number = 0
        for side, line in case.cover:
            (left, _), (right, _) = names[side]
            for a in range(case.d):
                for b in range(case.d_v):
                    number += {(left, line, a), ("W_V", a, b), (right, line, b)} <= reach
        return number, claim.capacity(len(reach))

    weights = [("W_V", a, b) for a in range(case.d) for b in range(case.d_v)]
    return weights + [(m, line, t) for side, line in case.cover for m, w in names[side] for t in range(w)], judged


def c2m(case: Attention, _: random.Random) -> Case:
    """Rows by W_Q or W_K, or by columns of W = W_Q W_Kᵀ, an element of which may be made from a row of W_Q."""
    claim, least = case.claim("projected-forward", "C2m"), min(case.d, case.d_k)
    names = {"q": ("A1", "Q", "A1W", "W_Q"), "k": ("A2", "K", "A2Wᵀ", "W_K")}

    def W(reach: Reach, a: int, b: int) -> bool:
        return ("W", a, b) in reach or all(("W_Q", a, k) in reach for k in range(case.d_k))

    def judged(reach: Reach) -> tuple[int, int]:
        number = 0
        for side, line in case.cover:
            given, made, by_W, weight = names[side]
            for a in range(case.d):
                if (side, line) not in case.with_W:
                    of = [(made, line, b) for b in range(case.d_k) if (weight, a, b) in reach]
                    number += (given, line, a) in reach and sum(each in reach for each in of)
                    continue
                left, right = (given, by_W) if side == "q" else (by_W, given)
                columns = [b for b in range(least) if (right, line, b) in reach and W(reach, a, b)]
                number += (left, line, a) in reach and len(columns)
        return number, claim.capacity(len(reach))

    families: list[Family] = [(m, a, b) for m in ("W_Q", "W_K") for a in range(case.d) for b in range(case.d_k)]
    families += [("W", a, b) for a in range(case.d) for b in range(least)]
    for side, line in case.cover:
        names_here = names[side][:2] if (side, line) not in case.with_W else (names[side][0], names[side][2])
        families += [(m, line, t) for m in names_here for t in range(case.width[m])]
    return families, judged


@pytest.mark.one_in(2)
@pytest.mark.parametrize("of", [e3, e4, e1h, e1m, c2m])
def test_no_set_of_families_within_reach_evaluates_more_than_a_capacity_in_mixed_orders(
    of: Callable[[Attention, random.Random], Case],
) -> None:
    rnd, closest = random.Random(30), Fraction(0)
    for _ in range(25):
        families, judged = of(Attention(rnd), rnd)
        chance = rnd.choice([0.3, 0.7, 1.0])
        reach, least = {family for family in families if rnd.random() < chance}, Fraction(0)
        for _ in range(40):
            new = reach ^ {rnd.choice(families)}
            number, capacity = judged(new)
            assert number <= capacity
            share = Fraction(number, max(1, capacity))
            if share >= least:
                reach, least = new, share
        closest = max(closest, least)
    assert closest > {e3: Fraction(1, 5), e1h: Fraction(2, 5)}.get(of, Fraction(4, 5))
