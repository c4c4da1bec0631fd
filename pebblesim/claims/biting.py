"""Where each lower bound bites: comparisons in which it is the largest bound and exceeds the compulsory words.

A bound that is never the largest where something is compared with it is not tested by the comparisons, however many
they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import isqrt, prod
from random import Random
from typing import Any, NamedTuple

from pebblesim.analysis.blocks import smallest
from pebblesim.api.graph import optimum
from pebblesim.claims.strongholds import STRONGHOLDS
from pebblesim.core.errors import BelowBound, Infeasible
from pebblesim.counting.compare import compare
from pebblesim.counting.count import count
from pebblesim.language.masks import Mask, of
from pebblesim.language.problems import PROBLEMS, Problem
from pebblesim.language.registry import Schedule, get, of_problem
from pebblesim.lower_bounds.bounds import Formulation, LowerBound, best, lower_bounds

FEW = 4
"""Comparisons of a theorem in each problem in which it bites, even if it has enough of others."""


class Case(NamedTuple):
    """Sizes at which bounds are compared; `shapes` are "rectangle", "mask" and "M about nd", where they apply."""

    solves: Problem
    sizes: Mapping[str, int]
    M: int
    mask: Mask | None
    shapes: tuple[str, ...]


@dataclass
class Bites:
    """The comparisons with counts in which one theorem bites.

    Attributes:
        number: by problem.
        shapes: how many were of rectangles, under a mask, or with M from nd/2 to 2nd.
        closest: the least words ÷ bound.
        where: the comparison of that ratio.
        sizes: the different sizes, whatever M and the mask are.
    """

    sizes: set[tuple[int, ...]] = field(default_factory=set)
    number: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    closest: Fraction | None = None
    where: str = ""

    def add(self, case: Case, ratio: Fraction, where: str) -> None:
        """Count one comparison."""
        self.number[case.solves.name] += 1
        self.shapes.update(case.shapes)
        self.sizes.add(tuple(case.sizes.values()))
        if self.closest is None or ratio < self.closest:
            self.closest, self.where = ratio, where


@dataclass
class Searched:
    """The searches of small graphs on which one theorem bites.

    Attributes:
        optima: how many were finished, so that the bound is compared with the optimum.
        met: how many of these optima equal the bound.
        ends: how many were interrupted, and had proved as many words as the bound, or more.
        open: how many were interrupted before; the best game is then all that the bound is compared with.
    """

    optima: int = 0
    met: int = 0
    ends: int = 0
    open: int = 0


class Comparison:
    """Compares bounds with counts, until each theorem has bitten often enough.

    Args:
        enough: after as many comparisons nothing more is counted for a theorem, but for `FEW` in each problem.
        draws: cases drawn for each schedule, and for all schedules of a problem together.
        tries: cases drawn at most from a theorem's own sizes (`pebblesim.claims.strongholds`), if these are too few.
        seed: of the draws.
    """

    def __init__(self, enough: int, draws: int, tries: int, seed: int = 7) -> None:
        self.enough, self.draws, self.tries, self.random = enough, draws, tries, Random(seed)
        self.bites: defaultdict[str, Bites] = defaultdict(Bites)

    def run(self) -> dict[str, Bites]:
        """Draw and compare; each comparison has sizes of its own, and one schedule, or all of a problem together.

        Raises:
            BelowBound: a schedule moves fewer words than a bound.
        """
        for solves in PROBLEMS.values():
            for schedule in (*of_problem(solves.name), None):
                for _ in range(self.draws):
                    self.compare(drawn(solves, self.random), schedule)
        for name, stronghold in STRONGHOLDS.items():
            schedules = _claimed_for(name, stronghold.problem)
            for _ in range(self.tries if schedules else 0):
                if self.bites[name].number.total() >= self.enough:
                    break
                self.compare(case_of(*stronghold.draw(self.random)), self.random.choice(schedules))
        return dict(self.bites)

    def compare(self, case: Case, schedule: Schedule | None) -> None:
        """Compare the largest bound for a schedule's way with its count; of None, that for every way with the least.

        Nothing is compared if no theorem bites, if it has bitten often enough, or if nothing fits.
        """
        if schedule is not None and case.mask is not None and not schedule.alike:
            return
        top = biting(case.solves, case.sizes, case.M, None if schedule is None else Formulation.of(schedule), case.mask)
        if top is None:
            return
        number = self.bites[top.name].number
        if number.total() >= self.enough and number[case.solves.name] >= FEW:
            return
        try:
            words, name = _least_words(case, schedule)
        except Infeasible:
            return
        sizes = ", ".join(f"{dim} = {size}" for dim, size in {**case.sizes, "M": case.M}.items())
        where = f"{name}, {sizes}" + (f", {case.mask}" if case.mask else "")
        if words < top.value:
            raise BelowBound(f"{where}: {words} words, below the {top.value} of {top.name}.")
        self.bites[top.name].add(case, Fraction(words, top.value), where)


def sizes_of_theorems(solves: Problem) -> dict[str, int]:
    """Return sizes of a problem at which all its theorems say something, as n is many times d."""
    return {dim: {"n": 1024, "d": 8}[kind] for dim, kind in solves.from_nd.items()}


def _claimed_for(theorem: str, problem: str) -> list[Schedule | None]:
    """Return the schedules for whose way of computing a theorem is claimed, and None; nothing if there is no such."""
    solves = PROBLEMS.get(problem)
    if solves is None:
        return []
    sizes = sizes_of_theorems(solves)
    schedules: list[Schedule | None] = [None]
    for schedule in of_problem(problem):
        bounds = lower_bounds(solves, sizes, 16, Formulation.of(schedule))
        schedules += [schedule] * any(bound.name == theorem and not bound.why_not for bound in bounds)
    return schedules


def biting(
    solves: Problem, sizes: Mapping[str, int], M: int, way: Formulation | None, mask: Mask | None = None
) -> LowerBound | None:
    """Return the largest bound for a way of computing, or for every way, if it exceeds the compulsory words."""
    view = solves.in_dims(sizes)
    top, compulsory = best(view, sizes, M, way, mask), lower_bounds(view, sizes, M, way or Formulation(), mask)[0]
    return top if top.value > compulsory.value else None


def _least_words(case: Case, schedule: Schedule | None) -> tuple[int, str]:
    arguments: dict[str, Any] = {**case.sizes, "M": case.M, "mask": case.mask}
    if schedule is not None:
        return count(schedule, **arguments).io, schedule.name
    row = compare(case.solves.name, **arguments)[0]
    if row.least_M is not None:
        raise Infeasible(f"nothing fits into M = {case.M}", row.least_M)
    return row.io, f"every way, {row.schedule}"


def drawn(solves: Problem, random: Random) -> Case:
    """Draw sizes of a problem, square or not, an M about d², nd or between, and a mask or none."""
    rectangle = solves.rectangle if random.random() < 0.5 else None
    view, d = rectangle or solves, random.choice([1, 2, 3, 4, 8, 16, 20, 64, 128])
    n = max(1, d * random.choice([1, 2, 4, 8, 20, 64, 96, 200, 800, 4000]) // 4) + random.choice([0, 0, 1])
    sizes = {}
    for dim, kind in view.from_nd.items():
        factor = random.choice([1, 1, 2, 4, 16, 64]) if rectangle or solves.name == "matmul" else 1
        sizes[dim] = max(1, {"n": n, "d": d}[kind] // factor)
    words = _largest(view, sizes)
    anchor = random.choice([d * d, min(sizes.values()) ** 2, words, words, isqrt(d * d * words), 64])
    M = max(4, anchor * random.choice([1, 2, 3, 4, 5, 6, 8, 11, 14, 16, 18, 20, 24, 30, 36, 48]) // 16)
    mask = None
    if view.maskable and random.random() < 0.3:
        mask = of(random.choice(["causal", f"window:{max(1, view.grid(sizes)[1] // random.choice([2, 8]))}"]))
    return case_of(solves, sizes, M, mask)


def case_of(solves: Problem, sizes: Mapping[str, int], M: int, mask: Mask | None) -> Case:
    """Name the shapes of these sizes of a problem, which are the square ones or those of its rectangle."""
    words = _largest(solves.in_dims(sizes), sizes)
    rectangle = solves.rectangle is not None and set(sizes) == set(solves.rectangle.dims)
    shapes = {"rectangle": rectangle, "mask": mask is not None, "M about nd": words <= 2 * M <= 4 * words}
    return Case(solves, sizes, M, mask, tuple(shape for shape, applies in shapes.items() if applies))


def _largest(view: Problem, sizes: Mapping[str, int]) -> int:
    """Return the words of the largest input."""
    return max(prod(sizes[dim] for dim in shape) for shape in view.inputs.values())


SMALL: tuple[tuple[str, tuple[int, ...], int], ...] = (
    # schedule whose graph is searched, the problem's dimensions in their order, M
    *(("matmul-tiled", sides, 3) for sides in ((2, 1, 2), (2, 1, 3), (3, 1, 2), (2, 2, 2))),
    ("small-cache-forward-relu", (2, 1, 1, 1), 3),
    ("small-cache-forward-relu", (2, 1, 1, 2), 3),
    ("small-cache-forward-sigmoid", (1, 2, 1, 1), 3),
    *((f"small-cache-forward-{kind}", (3, 3, 1, 1), 5) for kind in ("relu", "sigmoid")),
    *((f"small-cache-{kind}", (1, 1, 1), 3) for kind in ("relu", "sigmoid")),
    ("small-cache-relu", (2, 2, 2), 5),
    ("small-cache-relu", (1, 4, 3), 5),
    ("small-cache-relu", (6, 8, 1), 6),
    ("small-cache-relu", (4, 8, 1), 6),
    ("small-cache-relu", (3, 4, 1), 5),
    ("small-cache-sigmoid", (3, 4, 1), 5),
    ("small-cache-backward-blocked", (2, 2, 2, 2), 5),
    ("small-cache-backward-blocked", (3, 2, 1, 2), 5),
    ("small-cache-backward-blocked", (5, 3, 1, 2), 6),
    ("small-cache-backward-blocked", (5, 5, 1, 1), 6),
    ("small-cache-backward-kept", (3, 1, 1, 5), 5),
    ("small-cache-backward-kept", (3, 2, 1, 3), 6),
    ("projected-small-cache-backward-kept", (2, 1, 1, 3, 1), 5),
    ("projected-small-cache-backward-blocked", (3, 5, 1, 1, 1), 5),
    ("linear", (2, 3), 7),
    ("row-stationary-split-latent", (5, 5, 1, 1), 7),
    ("row-stationary-split-latent", (5, 5, 1, 3), 10),
)
"""Small graphs on which theorems bite, found by trying dimensions up to 8."""


def searched(states: int) -> dict[str, Searched]:
    """Search the graphs of `SMALL`, each until it is solved or has this number of states.

    Raises:
        BelowBound: a game moves fewer words than a bound.
    """
    found: defaultdict[str, Searched] = defaultdict(Searched)
    for name, numbers, M in SMALL:
        schedule = get(name)
        view = schedule.problem.rectangle or schedule.problem
        sizes = dict(zip(view.dims, numbers, strict=True))
        top = biting(schedule.problem, sizes, M, Formulation.of(schedule))
        if top is None:
            continue
        options: dict[str, Any] = {**sizes, **schedule.graph_options(smallest(schedule))}
        least = optimum(schedule.problem.name, M=M, states=states, **options)
        if least.io < top.value:
            raise BelowBound(f"{name}, {sizes}, M = {M}: a game of {least.io} words, below {top.value} of {top.name}.")
        of_name = found[top.name]
        of_name.optima += least.proven
        of_name.met += least.proven and least.io == top.value
        of_name.ends += not least.proven and least.bound >= top.value
        of_name.open += least.bound < top.value
    return dict(found)
