"""All bounds on a problem, and the gap of the best schedules over a range of cache sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from math import isqrt
from typing import Any, SupportsIndex

from pebblesim.core.errors import UsageError
from pebblesim.core.results import Result
from pebblesim.core.sizes import listed, whole
from pebblesim.core.tables import Sheet
from pebblesim.counting.arguments import AnyMask, BlockRule, problem_dims
from pebblesim.counting.compare import compare
from pebblesim.counting.count import Counted
from pebblesim.counting.heads import Heads
from pebblesim.dags.own import OWN
from pebblesim.language.masks import Mask, of_heads
from pebblesim.language.problems import Problem, Theta, problem
from pebblesim.language.registry import Schedule, get
from pebblesim.lower_bounds.bounds import (
    Formulation,
    LowerBound,
    Pairs,
    added_up,
    best_of_ways,
    formulation_in_words,
    largest,
    least_of_ways,
    lower_bounds,
)


@dataclass(frozen=True)
class Bounds(Result):
    """All bounds on a problem at given sizes, in words; prints as a table.

    Attributes:
        problem, dims, M: the problem and its sizes.
        pairs: Z, the number of allowed pairs under a mask; None without a mask.
        schedule: the schedule whose way of computing the lower bounds are for; None for all ways, and each bound names
            its own.
        theta: the expression inside Θ; None if the problem has none.
        theta_value: its value, to 28 digits.
        lower: all lower bounds, including those that do not apply.
        ways: the largest lower bound for each way of computing, by name; a user's own bounds count for each way.
        best: the largest bound for the schedule's way of computing. Without a schedule, the bound for all ways: the
            minimum over the ways.
        heads: the heads and sequences. All figures here are of one head; of the heads that share keys and values; or,
            under a mask for each head, of all heads of a sequence, which bounds are then added up.
        times: how often all this is computed.
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
    theta_value: Decimal | None = None
    heads: Heads = field(default_factory=Heads)
    times: int = 1

    @property
    def total(self) -> int:
        """The least words for all heads and sequences."""
        return self.best.value * self.times

    @property
    def sizes(self) -> dict[str, int]:
        """Dimensions, Z if some pairs are forbidden, and M."""
        return {**self.dims, **({} if self.pairs is None else {"Z": self.pairs}), "M": self.M}

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim bounds --json`."""
        theta = self.theta and self.theta.to_dict(self.theta_value or Decimal(0)) | {"source": self.theta.source}
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
            **({**self.heads.to_dict(), "times": self.times, "total": self.total} if self.heads.said else {}),
        }

    def latex(self) -> str:
        """Return Θ and each bound's closed form, domain and way of computing, as an `align*` environment."""
        from pebblesim.core.notation import align, domain_in_latex, in_latex, text_in_latex

        rows = [] if self.theta is None else [("Q", rf"= \Theta\left({in_latex(self.theta.expr)}\right)", "")]
        for each in self.lower:
            way = rf",\ {text_in_latex(each.way)}" if each.way else ""
            named = rf"Q_{{{text_in_latex(each.name)}}}"
            rows += [
                (named, rf"\ge {in_latex(form.expr)}", rf"\text{{for }} {domain_in_latex(form.domain)}{way}")
                for form in each.forms
            ]
        return align(rows)

    def summary(self) -> list[str]:
        """Return one line for the bound for all ways, then one line for each way of computing."""
        lines = [f"least: {self.best}"]
        if len(self.ways) > 1:
            lines += [f"  {way}: {bound.value:,} words ({bound.name})" for way, bound in self.ways.items()]
        if self.heads.said:
            lines.append(f"{self.heads}: {self.times:,} times that, {self.total:,} words")
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
    problem_name: str = "backward",
    *,
    M: int,
    schedule: str | Schedule | None = None,
    mask: AnyMask | None = None,
    pairs: int | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    batch: int = 1,
    separate: bool = False,
    **dims: int,
) -> Bounds:
    """Return all bounds on a problem: the expression inside Θ, and all lower bounds with constants.

    Args:
        problem_name: a problem, such as "backward".
        M: red pebbles, in words.
        schedule: use this schedule's way of computing: its kept inputs and its graph; by default all ways.
        mask: the allowed pairs, as for `count`.
        pairs: Z, the number of allowed pairs, instead of a mask; the bounds then hold for every mask with Z pairs.
        heads, kv_heads, batch, separate: how many there are, as for `count`; the result's `total` is for all.
        dims: the dimensions, such as n=4096, d=64.

    Returns:
        All bounds; they print as a table, and `best` is the largest that applies.

    >>> bounds("backward", n=4096, d=64, M=65536).best.name
    'D3'

    Raises:
        UsageError: a name or size is not allowed.
    """
    solves, pattern, among = problem(problem_name), of_heads(mask), Heads(heads, kv_heads, batch, separate)
    M = whole("M", M)
    if pattern is not None and pairs is not None:
        raise UsageError("a mask determines the number of pairs; give either a mask or a number of pairs.")
    if pairs is not None and among.together > 1:
        raise UsageError(
            "a number of pairs is for a head alone; give a mask, or leave out the number of heads of keys and values."
        )
    cases = among.cases(solves, dims, pattern)
    algorithm = None if schedule is None else get(schedule)
    if algorithm is not None and algorithm.problem is not solves:
        raise UsageError(f"{algorithm.name} solves {algorithm.problem.name!r}, not {solves.name!r}.")
    solves, algorithm = solves.in_dims(cases.sizes), algorithm and algorithm.in_dims(cases.sizes)
    each = [_bounds(solves, cases.sizes, M, algorithm, mask if pairs is None else pairs) for mask in cases.masks]
    return replace(_together(each), heads=among, times=cases.times)


def _bounds(
    solves: Problem, sizes: Mapping[str, int], M: int, algorithm: Schedule | None, allowed: Mask | int | None
) -> Bounds:
    formulation = None if algorithm is None else Formulation.of(algorithm)
    own = [] if allowed is not None else _own(solves, sizes, M)
    lower = [*lower_bounds(solves, sizes, M, formulation, allowed), *own]
    ways = (
        {way: largest([bound, *own]) for way, bound in best_of_ways(solves, sizes, M, allowed).items()}
        if formulation is None
        else {formulation_in_words(solves, formulation): largest(lower)}
    )
    pairs = None if allowed is None else Pairs.of(allowed, *solves.grid(sizes)).number
    theta = solves.theta.of_pairs() if solves.theta and allowed is not None else solves.theta
    return Bounds(
        problem=solves.name,
        dims=sizes,
        M=M,
        pairs=pairs,
        schedule=None if algorithm is None else algorithm.name,
        theta=theta,
        lower=lower,
        ways=ways,
        best=least_of_ways(ways) if formulation is None else largest(lower),
        theta_value=theta.value({**sizes, **({} if pairs is None else {"Z": pairs}), "M": M}) if theta else None,
    )


def _together(each: Sequence[Bounds]) -> Bounds:
    """The bounds of heads that have each their own mask, on all of them."""
    first = each[0]
    if len(each) == 1:
        return first
    alike: dict[tuple[str, str], list[LowerBound]] = {}
    for bound in (bound for one in each for bound in one.lower):
        alike.setdefault((bound.name, bound.way), []).append(bound)
    return replace(
        first,
        pairs=sum(one.pairs or 0 for one in each),
        lower=[added_up(bounds) for bounds in alike.values()],
        ways={way: added_up([one.ways[way] for one in each]) for way in first.ways},
        best=added_up([one.best for one in each]),
        theta_value=sum((one.theta_value or Decimal(0) for one in each), Decimal(0)) if first.theta else None,
    )


def _own(solves: Problem, sizes: Mapping[str, int], M: int) -> list[LowerBound]:
    """Return users' bounds on a problem in these dims, for all pairs, that are claimed with recomputation."""
    where = f"{solves.name} at M = {M}"
    return [
        LowerBound(own.name, own.words(where, **sizes, M=M), own.source, None)
        for own in OWN.values()
        if own.problem == solves.name and "hong-kung" in own.rules and set(problem(own.problem).dims) == set(sizes)
    ]


@dataclass(frozen=True)
class Gaps(Result):
    """The gap between the best schedule of a problem and the best lower bound, for several M.

    Attributes:
        problem, dims: what is computed.
        rows: for each M at which a schedule fits, the schedule with the least I/O. Its `gap` is relative to the lower
            bound for its own way of computing; `every_way` is the bound for all ways.
    """

    problem: str
    dims: Mapping[str, int]
    rows: Sequence[Counted]

    @property
    def ways(self) -> dict[str, list[str]]:
        """The best schedules, grouped by the way of computing that their bounds are for."""
        by_way: dict[str, dict[str, None]] = {}
        for row in self.rows:
            by_way.setdefault(row.lower_bound.of_way, {})[row.schedule] = None
        return {way: list(names) for way, names in by_way.items()}

    @property
    def worst(self) -> Counted:
        """The row with the largest gap."""
        return max(self.rows, key=lambda row: row.gap)

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim gaps --json`."""
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

    def parts(self) -> list[str | Sheet]:
        """What is printed: a row for each M, the ways of computing that the bounds are for, and the largest gap."""
        sizes = listed(self.dims)
        columns = ("best schedule", "bound", "M", "I/O", "lower bound", "gap", "for every way")
        rows = [
            (
                row.schedule,
                row.lower_bound.name,
                row.M,
                row.io,
                row.lower_bound.value,
                f"{row.gap:.3f}",
                f"{row.every_way.value:,} ({row.every_way.name})",
            )
            for row in self.rows
        ]
        table = Sheet(columns, rows, ("best schedule", "M", "gap", "I/O"), left=2)
        ways = [f"lower bound for {way}: {', '.join(schedules)}" for way, schedules in self.ways.items()]
        worst = f"largest gap: {self.worst.gap:.3f} at M = {self.worst.M:,} ({self.worst.schedule})"
        on_bounds = [self.worst.on_bounds] if self.worst.on_bounds else []
        return [f"{self.problem}: {sizes}", table, *ways, worst, *on_bounds]

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts()))

    def latex(self) -> str:
        """Return a row for each M, as a LaTeX `tabular` environment."""
        from pebblesim.core.notation import text_in_latex

        head = "$M$ & schedule & $Q$ & lower bound & gap"
        rows = [
            f"{row.M:,} & {text_in_latex(row.schedule)} & {row.io:,} & "
            f"{row.lower_bound.value:,} ({text_in_latex(row.lower_bound.name)}) & {row.gap:.3f}"
            for row in self.rows
        ]
        lines = " \\\\\n".join(f"  {row}" for row in (head, *rows))
        return f"\\begin{{tabular}}{{rlrrr}}\n{lines}\n\\end{{tabular}}"


def gaps(
    problem_name: str = "backward",
    *,
    schedules: Iterable[str | Schedule] | None = None,
    M: int | Sequence[int] | None = None,
    blocks: BlockRule = "fit",
    summation: str = "chain",
    steps: int = 4,
    **dims: int,
) -> Gaps:
    """Compute the gap of the best schedule at each M.

    Args:
        problem_name: a problem, such as "backward".
        schedules: names of schedules, or schedules; all of the problem by default.
        M: one M, or several; by default from the smallest feasible M to one at which everything fits into the cache.
        blocks, summation: as for `count`.
        steps: number of values of M in each doubling, if M is not given.
        dims: the dimensions, such as n=4096, d=64.

    Returns:
        The best schedule at each M, with its lower bound and gap.

    >>> result = gaps("backward", n=4096, d=64, M=[4096, 65536])
    >>> [row.M for row in result.rows], result.worst.gap < 3
    ([4096, 65536], True)

    Raises:
        UsageError: a name or size is not allowed, or no schedule fits at any M.
    """
    solves = problem(problem_name)
    sizes = problem_dims(solves, dims)
    shape: dict[str, Any] = dict(sizes)
    rows, among = [], None if schedules is None else list(schedules)
    if isinstance(M, SupportsIndex):
        M = [whole("M", M)]
    for words in _range(solves.name, sizes, steps) if M is None else M:
        row = compare(solves.name, schedules=among, M=words, blocks=blocks, summation=summation, **shape)[0]
        if row.feasible:
            rows.append(row)
    if not rows:
        raise UsageError(f"no schedule of {solves.name!r} fits at any of these M.")
    return Gaps(solves.name, sizes, rows)


def _range(name: str, dims: Mapping[str, int], steps: int) -> list[int]:
    """M = ⌊2^(k/steps)⌋, from 4 words to one M at which every input fits twice."""
    solves = problem(name).in_dims(dims)
    last = 4 * sum(_words(shape, dims) for shape in (*solves.inputs.values(), *solves.outputs.values()))
    return sorted({_root(2**k, steps) for k in range(2 * steps, last.bit_length() * steps)})


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
