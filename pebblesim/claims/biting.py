"""Where each lower bound bites: comparisons in which it is the largest bound and exceeds the compulsory words.

A bound that is never the largest where anything is compared with it is not tested by these comparisons, however many
they are. The last section of docs/lower-bounds.md is the table, from a run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import isqrt, prod
from random import Random
from typing import Any

from pebblesim import graphs
from pebblesim.analysis.blocks import smallest
from pebblesim.analysis.peak import peak_red
from pebblesim.api.graph import optimum
from pebblesim.core.errors import BelowBound, Infeasible
from pebblesim.counting.compare import compare
from pebblesim.counting.count import count
from pebblesim.language.masks import Mask, of
from pebblesim.language.problems import PROBLEMS, Problem
from pebblesim.language.registry import Schedule, of_problem
from pebblesim.lower_bounds.bounds import Formulation, best, lower_bounds

COMPULSORY = "compulsory"

FEW = 4
"""Comparisons of a theorem in each problem in which it bites."""


@dataclass
class Bites:
    """The comparisons in which one theorem is the largest bound and exceeds the compulsory words.

    Attributes:
        number: by problem.
        shapes: how many were of rectangles, under a mask, or with M from nd/2 to 2nd.
        closest: the least words compared ÷ the bound.
        where: the comparison of that ratio.
    """

    number: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    closest: Fraction | None = None
    where: str = ""

    def add(self, problem: str, ratio: Fraction, where: str, shapes: list[str]) -> None:
        """Count one comparison."""
        self.number[problem] += 1
        self.shapes.update(shapes)
        if self.closest is None or ratio < self.closest:
            self.closest, self.where = ratio, where


@dataclass
class Searched:
    """The searches of small graphs on which one theorem is the largest bound and exceeds the compulsory words.

    Attributes:
        optima: how many were finished, so that the bound is held against the optimum.
        ends: how many were interrupted and proved the bound or more.
        open: how many were interrupted below the bound; the best game is then all that it is held against.
        met: how many optima equal the bound.
        problems: the problems with an optimum or such an end.
    """

    optima: int = 0
    ends: int = 0
    open: int = 0
    met: int = 0
    problems: Counter[str] = field(default_factory=Counter)

    def add(self, problem: str, value: int, end: int, proven: bool) -> None:
        """Count one search, whose lower end is `end`."""
        self.optima += proven
        self.ends += not proven and end >= value
        self.open += end < value
        self.met += proven and end == value
        if end >= value:
            self.problems[problem] += 1


def against_counts(enough: int, draws: int, seed: int = 7) -> dict[str, Bites]:
    """Compare bounds with counts until each theorem has bitten often enough.

    Args:
        enough: after as many comparisons nothing more is counted for a theorem, but for `FEW` in each problem.
        draws: sizes drawn for each schedule, and for all schedules of a problem together.
        seed: of the draws.

    Raises:
        BelowBound: a schedule moves fewer words than a bound.
    """
    random, found = Random(seed), defaultdict[str, Bites](Bites)
    for solves in PROBLEMS.values():
        schedules = of_problem(solves.name)
        for schedule in [*schedules, None]:
            for _ in range(draws):
                _compare(solves, schedule, random, found, enough)
    return dict(found)


def _compare(solves: Problem, schedule: Schedule | None, random: Random, found: dict[str, Bites], enough: int) -> None:
    """Draw sizes, and compare the largest bound for a schedule's way with its count, or that for every way with all."""
    view, sizes, M, mask, shapes = drawn(solves, random)
    if schedule is not None and mask is not None and not schedule.alike:
        mask, shapes = None, [each for each in shapes if each != "mask"]
    way = None if schedule is None else Formulation.of(schedule)
    top = best(view, sizes, M, way, mask)
    number = found[top.name].number
    if top.name == COMPULSORY or (number.total() >= enough and number[solves.name] >= FEW):
        return
    least = lower_bounds(view, sizes, M, way or Formulation(), mask)[0]
    if top.value <= least.value:
        return
    try:
        words, name = _least_words(solves, schedule, sizes, M, mask)
    except Infeasible:
        return
    where = f"{name}, {', '.join(f'{dim}={size}' for dim, size in sizes.items())}, M={M}" + (
        f", {mask}" if mask else ""
    )
    if words < top.value:
        raise BelowBound(f"{where} moves {words} words, below {top.value} of {top.name}")
    found[top.name].add(solves.name, Fraction(words, top.value), where, shapes)


def _least_words(
    solves: Problem, schedule: Schedule | None, sizes: Mapping[str, int], M: int, mask: Mask | None
) -> tuple[int, str]:
    if schedule is not None:
        return count(schedule, M=M, mask=mask, **sizes).io, schedule.name  # type: ignore[arg-type]
    row = compare(solves.name, M=M, mask=mask, **sizes)[0]  # type: ignore[arg-type]
    if row.least_M is not None:
        raise Infeasible(f"M = {M}", row.least_M)
    return row.io, f"all, {row.schedule}"


def drawn(solves: Problem, random: Random) -> tuple[Problem, dict[str, int], int, Mask | None, list[str]]:
    """Draw sizes of a problem, square or not, an M about d², nd or between, and a mask or none."""
    rectangle = solves.rectangle if random.random() < 0.5 else None
    view, d = rectangle or solves, random.choice([1, 2, 3, 4, 8, 16, 20, 64, 128])
    n = random.choice([d // 4, d // 2, d, 2 * d, 5 * d, 16 * d, 24 * d, 50 * d, 200 * d, 1000 * d]) + random.choice(
        [0, 0, 1]
    )
    sizes = {}
    for dim, kind in view.from_nd.items():
        factor = random.choice([1, 1, 2, 4, 16, 64]) if rectangle or solves.name == "matmul" else 1
        sizes[dim] = max(1, {"n": n, "d": d}[kind] // factor)
    words = max(prod(sizes[dim] for dim in shape) for shape in view.inputs.values())
    anchor = random.choice([d * d, min(sizes.values()) ** 2, words, words, isqrt(d * d * words), 64])
    M = max(4, anchor * random.choice([1, 2, 3, 4, 5, 6, 8, 11, 14, 16, 18, 20, 24, 30, 36, 48]) // 16)
    mask = None
    if view.maskable and random.random() < 0.3:
        _, keys = view.grid(sizes)
        mask = of(random.choice(["causal", f"window:{max(1, keys // random.choice([2, 8]))}"]))
    shapes = ["rectangle"] * bool(rectangle) + ["mask"] * (mask is not None)
    shapes += ["M about nd"] * (words <= 2 * M <= 4 * words)
    return view, sizes, M, mask, shapes


def against_optima(most_vertices: int, states: int, searches: int) -> dict[str, Searched]:
    """Compare bounds with the least I/O of small graphs, where they exceed the compulsory words.

    Args:
        most_vertices: of a graph that is searched.
        states: of each search; a search that is interrupted proves a lower end.
        searches: at most as many for each theorem and problem, the smallest graphs first.

    Raises:
        BelowBound: a game moves fewer words than a bound.
    """
    found = defaultdict[str, Searched](Searched)
    for (name, _), cases in _small_graphs(most_vertices).items():
        for _, problem, options, M, value in sorted(cases, key=lambda case: case[0])[:searches]:
            least = optimum(graphs.build(problem, **options), M=M, states=states)
            if least.io < value:
                raise BelowBound(f"{problem}, {options}, M = {M}: a game of {least.io} words, below {value} of {name}")
            found[name].add(problem, value, least.bound, least.proven)
    return dict(found)


def _small_graphs(most_vertices: int) -> dict[tuple[str, str], list[tuple[int, str, dict[str, Any], int, int]]]:
    """(vertices, problem, options of the graph, M, bound) of each theorem and problem, where the theorem bites."""
    cases = defaultdict[tuple[str, str], list[tuple[int, str, dict[str, Any], int, int]]](list)
    for solves in PROBLEMS.values():
        view, known = solves.rectangle or solves, set()
        for schedule in of_problem(solves.name):
            way, ones = Formulation.of(schedule), smallest(schedule)
            key = str((way.kept, way.outputs, schedule.graph_options(ones)))
            if key in known:
                continue
            known.add(key)
            for numbers in product((1, 2, 3), repeat=len(view.dims)):
                sizes = dict(zip(view.dims, numbers, strict=True))
                options: dict[str, Any] = {**sizes, **schedule.graph_options(ones)}
                vertices = graphs.size(solves.name, **options).vertices
                if vertices > most_vertices:
                    continue
                least_M = peak_red(schedule.in_dims(sizes).program, {**sizes, **ones})
                for M in (least_M, least_M + 1):
                    top = best(view, sizes, M, way)
                    if top.value > lower_bounds(view, sizes, M, way)[0].value:
                        cases[top.name, solves.name].append((vertices, solves.name, options, M, top.value))
    return dict(cases)
