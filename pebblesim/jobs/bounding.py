"""All bounds on a problem side by side, and how far the best schedules are from them over a range of caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import isqrt
from typing import Any

from pebblesim.errors import UsageError
from pebblesim.jobs.arguments import BlockRule, problem_dims
from pebblesim.jobs.compare import compare
from pebblesim.jobs.count import Counted
from pebblesim.language.masks import Mask, of
from pebblesim.language.problems import Theta, problem
from pebblesim.language.registry import Schedule, get
from pebblesim.sizes import whole
from pebblesim.theory.lower_bounds import STANDARD, LowerBound, Pairs, Way, largest, lower_bounds


@dataclass(frozen=True)
class Bounds:
    """Every bound on a problem at given sizes, in words; it prints as a table.

    Attributes:
        problem, dims, M: what is bounded, and for which sizes.
        pairs: Z, the number of allowed pairs under a mask; None without.
        schedule: whose way of computing the lower bounds are for; None for that of the definitions.
        theta: the expression inside Θ; None if the problem states none.
        lower: the lower bounds, those that do not apply among them.
    """

    problem: str
    dims: Mapping[str, int]
    M: int
    pairs: int | None
    schedule: str | None
    theta: Theta | None
    lower: Sequence[LowerBound]

    @property
    def best(self) -> LowerBound:
        """The largest lower bound."""
        return largest(self.lower)

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
        head: dict[str, Any] = {"problem": self.problem, **self.dims, "M": self.M, "pairs": self.pairs}
        return head | {
            "schedule": self.schedule,
            "bound": self.theta and self.theta.to_dict(self.sizes) | {"source": self.theta.source},
            "lower_bound": {"name": self.best.name, "value": self.best.value, "source": self.best.source},
            "lower_bounds": [
                {
                    "name": each.name,
                    "value": None if each.why_not else each.value,
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

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
        theta = "not stated" if self.theta is None else f"{self.theta.expr} = {self.theta_value:,.0f}"
        lines = [f"{self.problem}: {sizes}", f"Θ           {theta}"]
        for each in self.lower:
            says = f"not here: {each.why_not}" if each.why_not else f"{each.value:,} words"
            lines.append(f"{each.name:<12}{says}" + (f" ≥ {each.form.expr}" if each.form else ""))
        return "\n".join([*lines, f"largest     {self.best.value:,} words ({self.best.source})"])


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
        schedule: whose way of computing is meant: what it keeps, and what its graph says; by default that of the
            definitions, with nothing kept.
        mask: which pairs are allowed, as for `count`.
        pairs: instead of a mask, Z, the number of allowed pairs; the bounds then hold for every mask with so many.
        dims: the dimensions, such as n=4096, d=64.

    >>> bounds("backward", n=4096, d=64, M=65536).best.name
    'D2'

    Raises:
        UsageError: a name or size that is not allowed.
    """
    solves, seen = problem(problem_name), of(mask)
    sizes, M = problem_dims(solves, dims), whole("M", M)
    way, algorithm = STANDARD, None if schedule is None else get(schedule)
    if algorithm is not None:
        if algorithm.problem is not solves:
            raise UsageError(f"{algorithm.name} solves {algorithm.problem.name!r}, not {solves.name!r}.")
        way = Way.of(algorithm)
    if seen is not None and pairs is not None:
        raise UsageError("a mask says how many pairs it allows; give either a mask or a number of pairs.")
    given = seen if pairs is None else pairs
    lower = lower_bounds(solves, sizes, M, way, given)
    return Bounds(
        problem=solves.name,
        dims=sizes,
        M=M,
        pairs=None if given is None else Pairs.of(given, sizes["n"]).number,
        schedule=None if algorithm is None else algorithm.name,
        theta=solves.theta.of_pairs() if solves.theta and given is not None else solves.theta,
        lower=lower,
    )


@dataclass(frozen=True)
class Gaps:
    """How far the best schedule of a problem is from the best lower bound, for several M.

    Attributes:
        problem, dims: what is computed.
        rows: for each M at which some schedule fits, the one with the least I/O.
    """

    problem: str
    dims: Mapping[str, int]
    rows: Sequence[Counted]

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
                "lower_bound": {"name": row.lower_bound.name, "value": row.lower_bound.value},
                "gap": row.gap,
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
    most = 4 * sum(_words(shape, dims) for shape in (*problem(name).inputs.values(), *problem(name).outputs.values()))
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
