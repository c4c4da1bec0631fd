"""The gap of the best schedules of a problem over a range of cache sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from pebblesim.core.bisection import last_that
from pebblesim.core.errors import UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.results import Result, plain
from pebblesim.core.sizes import axis, listed
from pebblesim.core.tables import Sheet
from pebblesim.counting.arguments import BlockRule, problem_dims
from pebblesim.counting.best import best_of
from pebblesim.counting.compare import compare, runs_of
from pebblesim.counting.count import OF_WAY, Counted
from pebblesim.language.problems import problem
from pebblesim.language.registry import Schedule, get_all


@dataclass(frozen=True)
class Gaps(Result):
    """The gap between the best schedule of a problem and the best lower bound, for several M.

    Attributes:
        problem, dims: what is computed.
        rows: for each M at which a schedule fits, the schedule with the least I/O. Its `gap` is relative to
            `every_way`, the bound for all ways of computing, its `gap_of_way` to `lower_bound`, that for its own way.
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
        names = "M", "schedule", "io", "every_way", "gap", "lower_bound", "gap_of_way"
        rows = [plain(row, *names) for row in self.rows]
        return {"problem": self.problem, **self.dims, "rows": rows, "largest": plain(self.worst, "M", "gap")}

    def parts(self, wide: bool = False) -> list[str | Sheet]:
        """Return the parts to print: a row for each M, and the largest gap.

        `wide`: also the ways of computing behind the bounds for a schedule's own way.
        """
        sizes = listed(self.dims)
        columns = ("best schedule", "bound", "M", "I/O", "lower bound", "gap", "for its way", OF_WAY)
        rows = [
            (
                row.schedule,
                row.every_way.name,
                row.M,
                row.io,
                row.every_way.value,
                f"{row.gap:.3f}",
                f"{row.lower_bound.value:,} ({row.lower_bound.name})",
                f"{row.gap_of_way:.3f}",
            )
            for row in self.rows
        ]
        others = ("bound", "for its way", OF_WAY)
        table = Sheet(columns, rows, ("best schedule", "M", "gap", "I/O"), left=2, others=others)
        ways = [f"its way, {way}: {', '.join(schedules)}" for way, schedules in self.ways.items()]
        if problem(self.problem).kept:
            ways.append("Its way counts all that it reads of a forward pass, `bounds` what every way needs of it.")
        worst = f"largest gap: {self.worst.gap:.3f} at M = {self.worst.M:,} ({self.worst.schedule})"
        on_bounds = [self.worst.on_bounds] if self.worst.on_bounds else []
        own = dict.fromkeys(row.every_way.source for row in self.rows if row.every_way.own)
        return [problem(self.problem).heading(sizes), table, *(ways if wide else []), worst, *on_bounds, *own]

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts(wide=True)))

    def latex(self) -> str:
        """Return a row for each M, as a LaTeX `tabular` environment."""
        from pebblesim.core.notation import text_in_latex

        head = "$M$ & schedule & $Q$ & lower bound & gap & for its way & gap"
        rows = [
            f"{row.M:,} & {text_in_latex(row.schedule)} & {row.io:,} & "
            f"{row.every_way.value:,} ({text_in_latex(row.every_way.label)}) & {row.gap:.3f} & "
            f"{row.lower_bound.value:,} ({text_in_latex(row.lower_bound.label)}) & {row.gap_of_way:.3f}"
            for row in self.rows
        ]
        lines = " \\\\\n".join(f"  {row}" for row in (head, *rows))
        return f"\\begin{{tabular}}{{rlrrrrr}}\n{lines}\n\\end{{tabular}}"


@checked_kinds("steps")
def gaps(
    problem_name: str = "backward",
    *,
    schedules: Iterable[str | Schedule] | None = None,
    M: int | Sequence[int] | None = None,
    blocks: BlockRule = "best",
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
        The best schedule at each M, with its lower bounds and gaps.

    >>> result = gaps("backward", n=4096, d=64, M=[4096, 65536])
    >>> [row.M for row in result.rows], result.worst.gap < 3
    ([4096, 65536], True)

    Raises:
        UsageError: a name or size is not allowed, or no schedule fits at any M.
    """
    solves = problem(problem_name)
    sizes = problem_dims(solves, dims)
    shape: dict[str, Any] = dict(sizes)
    rows: list[Counted] = []
    among = None if schedules is None else get_all(schedules)
    for words in _range(solves.name, sizes, steps) if M is None else axis("M", M):
        runs = runs_of(solves.name, schedules=among, M=words, blocks=blocks, summation=summation, **shape)
        if (row := best_of(runs, rows[-1].schedule if rows else "")) is not None:
            rows.append(row)
    if not rows:
        counted = compare(solves.name, schedules=among, M=words, blocks=blocks, summation=summation, **shape).rows
        least, name = min((row.least_M or row.peak_red, row.schedule) for row in counted)
        raise UsageError(
            f"no schedule of {solves.name!r} fits at any of these M; {name} needs the least, M ≥ {least:,}."
        )
    return Gaps(solves.name, sizes, rows)


def _range(name: str, dims: Mapping[str, int], steps: int) -> list[int]:
    """M = ⌊2^(k/steps)⌋, from 4 words to one M at which every input fits twice."""
    solves = problem(name).in_dims(dims)
    shapes = (*solves.inputs.values(), *solves.outputs.values())
    last = 4 * sum(prod(dims[dim] for dim in shape) for shape in shapes)
    powers = (2**k for k in range(2 * steps, last.bit_length() * steps))
    return sorted({last_that(lambda root, power=power: root**steps <= power, 1, last) for power in powers})  # type: ignore[misc]
