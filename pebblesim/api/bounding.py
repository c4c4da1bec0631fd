"""All bounds on a problem, and the gap of the best schedules over a range of cache sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.results import Result, plain
from pebblesim.core.sizes import listed, whole
from pebblesim.counting.arguments import AnyMask
from pebblesim.counting.best import best_of
from pebblesim.counting.checked_theta import check_theta
from pebblesim.counting.compare import runs_of
from pebblesim.counting.heads import Heads
from pebblesim.language.catalogue import is_built_in
from pebblesim.language.masks import Mask, of_heads
from pebblesim.language.problems import Problem, Theta, problem
from pebblesim.language.registry import Schedule, get, of_problem
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
from pebblesim.lower_bounds.own import own_bounds


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
                    "name": bound.name,
                    "value": None if bound.why_not else bound.value,
                    "for": bound.of_way,
                    "why_not": bound.why_not or None,
                    "expr": bound.form.expr if bound.form else None,
                    "forms": [plain(form, "expr", "domain") for form in bound.forms],
                    **plain(bound, "source", "recomputation", "every_tree"),
                }
                for bound in self.lower
            ],
            **({**self.heads.to_dict(), "times": self.times, "total": self.total} if self.heads.is_given else {}),
        }

    def latex(self) -> str:
        """Return Θ with its source, and each bound's closed form, domain and way of computing, as `align*`."""
        from pebblesim.core.notation import IO, align, domain_in_latex, in_latex, text_in_latex

        rows = []
        if self.theta is not None:  # its source says for which sizes
            rows.append((IO, rf"= \Theta\left({in_latex(self.theta.expr)}\right)", text_in_latex(self.theta.source)))
        for bound in self.lower:
            way = rf",\ {text_in_latex(bound.way)}" if bound.way else ""
            named = rf"{IO}_{{{text_in_latex(bound.name)}}}"
            rows += [
                (named, rf"\ge {in_latex(form.expr)}", rf"\text{{for }} {domain_in_latex(form.domain)}{way}")
                for form in bound.forms
            ]
            if bound.own:  # words at these sizes are all that is known of it
                says = text_in_latex(f"at {listed(self.sizes)}, a user's own, without proof")
                rows.append((named, rf"\ge {bound.value}", rf"\quad {says}"))
        return align(rows)

    def summary(self) -> list[str]:
        """Return one line for the bound for all ways, then one line for each way of computing."""
        lines = [f"any game moves at least {self.best}"]
        if len(self.ways) > 1:
            lines += [f"  {way}: {bound.value:,} words ({bound.name})" for way, bound in self.ways.items()]
        if self.schedule is None and problem(self.problem).kept:
            lines.append(
                "Inputs saved by the forward pass are counted only for ways of computing that read them; with "
                "--schedule, and in `gaps` for a schedule's own way, all that the schedule reads are counted."
            )
        if self.heads.is_given:
            lines.append(f"{self.heads}: {self.times:,} times that, {self.total:,} words")
        return lines

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
        theta = "not stated" if self.theta is None else f"{self.theta.expr} = {self.theta_value:,.0f}"
        lines = [f"{self.problem}: {sizes}", f"Θ           {theta}"]
        for bound in self.lower:
            says = f"not here: {bound.why_not}" if bound.why_not else f"{bound.value:,} words"
            form = f" ≥ {bound.form.expr}" if bound.form else ""
            lines.append(f"{bound.name:<12}{says}{form}" + (f", for {bound.way}" if bound.way else ""))
        return "\n".join([*lines, *self.summary()])


@checked_kinds("pairs")
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
        schedule: use this schedule's way of computing: its saved inputs and its graph; by default all ways.
        mask: the allowed pairs, as for `count`.
        pairs: Z, the number of allowed pairs, instead of a mask; the bounds then hold for every mask with Z pairs.
        heads, kv_heads, batch, separate: how many there are, as for `count`; the result's `total` is for all.
        dims: the dimensions, such as n=4096, d=64.

    Returns:
        All bounds; they print as a table, and `best` is the largest that applies.

    >>> bounds("backward", n=4096, d=64, M=65536).best.name
    'D3'

    Raises:
        UsageError: a name or size is not allowed; or a user's bound exceeds the words of a schedule, or a user's Θ is
            not one.
    """
    solves, pattern, among = problem(problem_name), of_heads(mask), Heads(heads, kv_heads, batch, separate)
    M = whole("M", M)
    if pattern is not None and pairs is not None:
        raise UsageError("a mask determines the number of pairs; give either a mask or a number of pairs.")
    if pairs is not None and among.heads_per_problem > 1:
        raise UsageError("a number of pairs is for a head alone; give a mask, or leave out the number of KV heads.")
    cases = among.cases(solves, dims, pattern)
    algorithm = None if schedule is None else get(schedule)
    if algorithm is not None and algorithm.problem is not solves:
        raise UsageError(f"{algorithm.name} solves {algorithm.problem.name!r}, not {solves.name!r}.")
    solves, algorithm = solves.in_dims(cases.sizes), algorithm and algorithm.in_dims(cases.sizes)
    each = [_bounds(solves, cases.sizes, M, algorithm, mask if pairs is None else int(pairs)) for mask in cases.masks]
    return replace(_together(each), heads=among, times=cases.times)


def _bounds(
    solves: Problem, sizes: Mapping[str, int], M: int, algorithm: Schedule | None, allowed: Mask | int | None
) -> Bounds:
    formulation = None if algorithm is None else Formulation.of(algorithm)
    own = [] if allowed is not None else own_bounds(solves, sizes, M)
    lower = [*lower_bounds(solves, sizes, M, formulation, allowed), *own]
    ways = (
        {way: largest([bound, *own]) for way, bound in best_of_ways(solves, sizes, M, allowed).items()}
        if formulation is None
        else {formulation_in_words(solves, formulation): largest(lower)}
    )
    pairs = None if allowed is None else Pairs.of(allowed, *solves.grid(sizes)).number
    check_theta(solves)
    if not isinstance(allowed, int):
        proved = formulation is not None or is_built_in(solves.values)
        for claimed in own if proved else [*own, least_of_ways(ways)]:
            _refuse_above_counts(solves, sizes, M, allowed, claimed)
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


def _refuse_above_counts(
    solves: Problem, sizes: Mapping[str, int], M: int, mask: Mask | None, claimed: LowerBound
) -> None:
    """Refuse a lower bound for every way of computing that exceeds the least count.

    Raises:
        UsageError: a schedule of the problem moves fewer words; the message names it.
    """
    names = [schedule.name for schedule in of_problem(solves.name, sizes, mask is not None)]
    runs = runs_of(solves.name, schedules=names, M=M, blocks="best", mask=mask, **dict(sizes)) if names else []  # type: ignore[arg-type]
    row = best_of(runs)
    if row is not None and row.io < claimed.value:
        raise UsageError(
            f"{claimed.name} gives {claimed.value:,} words for {solves.name} with {listed(sizes)} at M = {M:,}, where "
            f"{row.schedule} with blocks {row.blocks_in_words} moves {row.io:,} words: it is not a lower bound, unless "
            f"{row.schedule} computes something else, which `play` shows."
        )


def _together(each: Sequence[Bounds]) -> Bounds:
    """The bounds of heads that have each their own mask, on all of them."""
    first, *others = each
    if not others:
        return first
    alike: dict[tuple[str, str], list[LowerBound]] = {}
    for bound in (bound for one in each for bound in one.lower):
        alike.setdefault((bound.name, bound.way), []).append(bound)
    return replace(
        first,
        pairs=sum(one.pairs for one in each if one.pairs is not None),
        lower=[added_up(bounds) for bounds in alike.values()],
        ways={way: added_up([one.ways[way] for one in each]) for way in first.ways},
        best=added_up([one.best for one in each]),
        theta_value=sum((one.theta_value or Decimal(0) for one in each), Decimal(0)) if first.theta else None,
    )
