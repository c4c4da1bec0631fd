"""All bounds on a problem side by side, and how far the best schedules are from them over a range of caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import isqrt
from typing import Any

from pebblesim.dags.own import OWN
from pebblesim.errors import UsageError
from pebblesim.jobs.arguments import BlockRule, problem_dims
from pebblesim.jobs.compare import compare
from pebblesim.jobs.count import Counted
from pebblesim.language.masks import Mask, of
from pebblesim.language.problems import Problem, Theta, problem
from pebblesim.language.registry import Schedule, get
from pebblesim.sizes import whole
from pebblesim.theory.lower_bounds import (
    Formulation,
    LowerBound,
    Pairs,
    best_of_ways,
    formulation_in_words,
    largest,
    least_of_ways,
    lower_bounds,
)


@dataclass(frozen=True)
class Bounds:
    """Every bound on a problem at given sizes, in words; it prints as a table.

    Attributes:
        problem, dims, M: what is bounded, and for which sizes.
        pairs: Z, the number of allowed pairs under a mask; None without.
        schedule: whose way of computing the lower bounds are for; None for all ways, each bound naming its own.
        theta: the expression inside Θ; None if the problem states none.
        lower: the lower bounds, those that do not apply among them.
        ways: the largest lower bound on each way of computing, by its name; a user's own bounds count for each.
        best: the largest for the schedule's way; without a schedule for every way, the least over the ways.
    """

    problem: str
    dims: Mapping[str, int]
    M: int
    pairs: int | None
    schedule: str | None
    theta: Theta | None
    lower: Sequence[LowerBound]
    ways: Mapping[str, LowerBound]
    best: LowerBound

    @property
    def sizes(self) -> dict[str, int]:
        """Dimensions, Z if some pairs are forbidden, and M."""
        return {**self.dims, **({} if self.pairs is None else {"Z": self.pairs}), "M": self.M}

    @property
    def theta_value(self) -> Decimal | None:
        """Value of the expression inside Θ, to 28 digits."""
        return None if self.theta is None else self.theta.value(self.sizes)

    def to_dict(self) -> dict[str, Any]:
        """As printed by `pebblesim bounds --json`."""
        theta = self.theta and self.theta.to_dict(self.sizes) | {"source": self.theta.source}
        head: dict[str, Any] = {"problem": self.problem, **self.dims, "M": self.M, "pairs": self.pairs}
        return head | {
            "schedule": self.schedule,
            "bound": theta,
            "lower_bound": self.best.to_dict(),
            "ways": [
                {"for": way or self.best.of_way, "name": b.name, "value": b.value} for way, b in self.ways.items()
            ],
            "lower_bounds": [
                {
                    "name": each.name,
                    "value": None if each.why_not else each.value,
                    "for": each.of_way,
                    "why_not": each.why_not or None,
                    "expr": each.form.expr if each.form else None,
                    "forms": [{"expr": form.expr, "domain": form.domain} for form in each.forms],
                    "source": each.source,
                    "recomputation": each.recomputation,
                    "every_tree": each.every_tree,
                }
                for each in self.lower
            ],
        }

    def summary(self) -> list[str]:
        """What holds, a line for each way of computing, and first the one for every way."""
        lines = [f"least: {self.best}"]
        if len(self.ways) > 1:
            lines += [f"  {way}: {bound.value:,} words ({bound.name})" for way, bound in self.ways.items()]
        return lines

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
        theta = "not stated" if self.theta is None else f"{self.theta.expr} = {self.theta_value:,.0f}"
        lines = [f"{self.problem}: {sizes}", f"Θ           {theta}"]
        for each in self.lower:
            says = f"not here: {each.why_not}" if each.why_not else f"{each.value:,} words"
            form = f" ≥ {each.form.expr}" if each.form else ""
            lines.append(f"{each.name:<12}{says}{form}" + (f", for {each.way}" if each.way else ""))
        return "\n".join([*lines, *self.summary()])


def bounds(
    problem_name: str,
    *,
    M: int,
    schedule: str | Schedule | None = None,
    mask: Mask | str | Any | None = None,
    pairs: int | None = None,
    **dims: int,
) -> Bounds:
    """Every bound on a problem: the expression inside Θ, and all lower bounds with constants.

    Args:
        problem_name: a problem, such as "backward".
        M: red pebbles, in words.
        schedule: whose way of computing is meant: what it keeps, and what its graph says; by default all ways.
        mask: which pairs are allowed, as for `count`.
        pairs: instead of a mask, Z, the number of allowed pairs; the bounds then hold for every mask with so many.
        dims: the dimensions, such as n=4096, d=64.

    >>> bounds("backward", n=4096, d=64, M=65536).best.name
    'D3'

    Raises:
        UsageError: a name or size that is not allowed.
    """
    solves, seen = problem(problem_name), of(mask)
    sizes, M = problem_dims(solves, dims), whole("M", M)
    algorithm = None if schedule is None else get(schedule)
    if algorithm is not None and algorithm.problem is not solves:
        raise UsageError(f"{algorithm.name} solves {algorithm.problem.name!r}, not {solves.name!r}.")
    solves, algorithm = solves.in_dims(sizes), algorithm and algorithm.in_dims(sizes)
    if seen is not None and pairs is not None:
        raise UsageError("a mask says how many pairs it allows; give either a mask or a number of pairs.")
    given = seen if pairs is None else pairs
    formulation = None if algorithm is None else Formulation.of(algorithm)
    own = [] if given is not None else _own(solves, sizes, M)
    lower = [*lower_bounds(solves, sizes, M, formulation, given), *own]
    ways = (
        {way: largest([bound, *own]) for way, bound in best_of_ways(solves, sizes, M, given).items()}
        if formulation is None
        else {formulation_in_words(solves, formulation): largest(lower)}
    )
    return Bounds(
        problem=solves.name,
        dims=sizes,
        M=M,
        pairs=None if given is None else Pairs.of(given, *solves.grid(sizes)).number,
        schedule=None if algorithm is None else algorithm.name,
        theta=solves.theta.of_pairs() if solves.theta and given is not None else solves.theta,
        lower=lower,
        ways=ways,
        best=least_of_ways(ways) if formulation is None else largest(lower),
    )


def _own(solves: Problem, sizes: Mapping[str, int], M: int) -> list[LowerBound]:
    """Users' own bounds on a problem in these dims, of all pairs, that hold with recomputation as they say."""
    where = f"{solves.name} at M = {M}"
    return [
        LowerBound(own.name, own.words(where, **sizes, M=M), own.source, None)
        for own in OWN.values()
        if own.problem == solves.name and "hong-kung" in own.rules and set(problem(own.problem).dims) == set(sizes)
    ]


@dataclass(frozen=True)
class Gaps:
    """How far the best schedule of a problem is from the best lower bound, for several M.

    Attributes:
        problem, dims: what is computed.
        rows: for each M at which some schedule fits, the one with the least I/O. Its `gap` is relative to the lower
            bound for its own way of computing; `every_way` is the bound for every way.
    """

    problem: str
    dims: Mapping[str, int]
    rows: Sequence[Counted]

    @property
    def ways(self) -> dict[str, list[str]]:
        """Whose gap is relative to which way of computing: the best schedules by the ways that their bounds are for."""
        found: dict[str, dict[str, None]] = {}
        for row in self.rows:
            found.setdefault(row.lower_bound.of_way, {})[row.schedule] = None
        return {way: list(names) for way, names in found.items()}

    @property
    def worst(self) -> Counted:
        """The row with the largest gap."""
        return max(self.rows, key=lambda row: row.gap)

    def to_dict(self) -> dict[str, Any]:
        """As printed by `pebblesim gaps --json`."""
        rows = [
            {
                "M": row.M,
                "schedule": row.schedule,
                "io": row.io,
                "lower_bound": row.lower_bound.to_dict(),
                "gap": row.gap,
                "every_way": row.every_way.to_dict(),
                "gap_of_every_way": float(Fraction(row.io, row.every_way.value)),
            }
            for row in self.rows
        ]
        return {
            "problem": self.problem,
            **self.dims,
            "rows": rows,
            "largest": {"M": self.worst.M, "gap": self.worst.gap},
        }


def gaps(
    problem_name: str, *, M: Sequence[int] | None = None, blocks: BlockRule = "fit", steps: int = 4, **dims: int
) -> Gaps:
    """The gap of the best schedule at each M.

    Args:
        problem_name: a problem, such as "backward".
        M: for which M; by default from the least that any schedule needs to the one that holds all there is.
        blocks: rule for the blocks, as for `count`.
        steps: by default, how many M to a doubling.
        dims: the dimensions, such as n=4096, d=64.

    Raises:
        UsageError: a name or size that is not allowed, or no schedule fits at any M.
    """
    solves = problem(problem_name)
    sizes = problem_dims(solves, dims)
    found = []
    for words in M or _range(solves.name, sizes, steps):
        row = compare(None, problem_name=solves.name, M=words, blocks=blocks, summation="chain", **sizes)[0]
        if row.feasible:
            found.append(row)
    if not found:
        raise UsageError(f"no schedule of {solves.name!r} fits at any of these M.")
    return Gaps(solves.name, sizes, found)


def _range(name: str, dims: Mapping[str, int], steps: int) -> list[int]:
    """M = ⌊2^(k/steps)⌋, from 4 words to one M at which every input fits twice."""
    solves = problem(name).in_dims(dims)
    most = 4 * sum(_words(shape, dims) for shape in (*solves.inputs.values(), *solves.outputs.values()))
    return sorted({_root(2**k, steps) for k in range(2 * steps, most.bit_length() * steps)})


def _words(shape: Sequence[str], dims: Mapping[str, int]) -> int:
    words = 1
    for dim in shape:
        words *= dims[dim]
    return words


def _root(x: int, steps: int) -> int:
    """⌊x^(1/steps)⌋, exactly."""
    if steps == 2:
        return isqrt(x)
    root = round(x ** (1 / steps))
    while root**steps > x:
        root -= 1
    while (root + 1) ** steps <= x:
        root += 1
    return root
