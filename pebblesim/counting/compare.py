"""Count several schedules of a problem side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, overload

from pebblesim.core.errors import UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.results import Result
from pebblesim.core.sizes import check_rule, listed
from pebblesim.core.tables import Sheet
from pebblesim.counting.arguments import AnyMask, BlockRule, problem_dims
from pebblesim.counting.checked_theta import check_theta
from pebblesim.counting.count import OF_WAY, Counted, count_run, ratio
from pebblesim.counting.heads import Heads
from pebblesim.counting.run import Run
from pebblesim.counting.totals import Totals
from pebblesim.language import masks
from pebblesim.language.masks import AnyHeads
from pebblesim.language.problems import problem
from pebblesim.language.registry import Schedule, get_all, some_of_problem
from pebblesim.lower_bounds.bounds import LowerBound, added_up
from pebblesim.lower_bounds.own import best_with_own


@dataclass(frozen=True)
class Comparison(Result, Sequence[Counted]):
    """Schedules of one problem at the same sizes: a sequence of rows, least I/O first; schedules that do not fit are
    last.

    Attributes:
        problem, dims, M, mask: what was asked.
        blocks: the block rule, or the sizes that were given.
        rows: what each schedule moves.
        named: whether the schedules were named, and are not all of the problem.
    """

    problem: str
    dims: Mapping[str, int]
    M: int
    blocks: BlockRule
    mask: AnyHeads | None
    rows: tuple[Counted, ...]
    named: bool = False

    @overload
    def __getitem__(self, index: int) -> Counted: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Counted, ...]: ...
    def __getitem__(self, index: int | slice) -> Counted | tuple[Counted, ...]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def best(self) -> Counted | None:
        """The schedule with the least I/O among those that fit, with these blocks; None if none fits."""
        return self.rows[0] if self.rows[0].feasible else None

    @property
    def lower_bound(self) -> LowerBound:
        """The lower bound for games with M pebbles on any graph of the problem, for every way of computing."""
        solves, first = problem(self.problem).in_dims(self.dims), self.rows[0]
        allowed = [part.only_mask for part in first.parts or (first,)]
        return added_up([best_with_own(solves, self.dims, self.M, None, mask) for mask in allowed])

    def to_dict(self, dtype: str | None = None) -> dict[str, Any]:
        """Return the data of `pebblesim count --json`; with a data type, it has arithmetic intensities in that type."""
        first = self.rows[0]
        head: dict[str, Any] = {"problem": self.problem, **self.dims, "M": self.M, "blocks": self.blocks}
        head |= {"bound": first.bound and first.bound.to_dict(first.bound_value or Decimal(0))}
        head |= {"lower_bound": self.lower_bound.to_dict()}
        head |= {} if self.mask is None else {"mask": str(self.mask), "pairs": first.pairs}
        head |= {"rows": [row.to_dict(dtype) for row in self.rows]}
        return head | (Totals(self.rows, dtype).to_dict() if first.heads.is_given else {})

    def parts(self, wide: bool = False, dtype: str | None = None) -> list[str | Sheet]:
        """Return the parts to print: the schedules that fit, those that need a larger cache, and what is divided by.

        Args:
            wide: with the lower bounds of all ways of computing.
            dtype: data type of a word; with it, the table has operations per byte.
        """
        first = self.rows[0]
        under = "" if first.mask is None else f", mask {first.mask} ({first.pairs:,} of {first.all_pairs:,} pairs)"
        title = problem(self.problem).heading(f"{listed({**self.dims, 'M': self.M})} words{under}")
        said = [each for each in (self._larger, self._theta, *self._lower_bounds(wide), self._kept) if each]
        return [title, self._sheet(dtype), *said, *([first.on_bounds] if first.on_bounds else [])]

    def _sheet(self, dtype: str | None) -> Sheet:
        """The table of the schedules that fit."""
        rows = [row for row in self.rows if row.least_M is None]
        larger = not all(row.feasible for row in rows)
        columns: dict[str, Callable[[Counted], Any]] = {
            "schedule": lambda row: row.schedule,
            "algorithm or source": lambda row: row.credit,
            "blocks": lambda row: row.blocks_in_words,
            **({"needs M": lambda row: "" if row.feasible else f"{row.peak_red:,}"} if larger else {}),
            "reads": lambda row: row.reads,
            "writes": lambda row: row.writes,
            "I/O": lambda row: row.io,
            "peak red": lambda row: f"{row.peak_red:,}{'' if row.feasible else ' > M'}",
            **({f"ops/byte {dtype}": lambda row: f"{row.arithmetic_intensity(dtype):.1f}"} if dtype else {}),
            **({"÷ Θ": lambda row: ratio(row.bound_ratio)} if self.rows[0].bound else {}),
            "gap": lambda row: ratio(row.gap),
            OF_WAY: lambda row: ratio(row.gap_of_way),
        }
        cells = [[made(row) for made in columns.values()] for row in rows]
        others = ("algorithm or source" if self.named else "blocks", "reads", "writes", "peak red", OF_WAY)
        return Sheet(list(columns), cells, ("schedule", "I/O", "gap", "blocks"), 3, others)

    @property
    def _larger(self) -> str:
        """The schedules that do not fit, with the cache that each needs."""
        needs = [f"{row.schedule} {row.least_M or row.peak_red:,}" for row in self.rows if not row.feasible]
        return f"needs a larger M: {', '.join(needs)}" if needs else ""

    @property
    def _theta(self) -> str:
        """A sentence on what the column ÷ Θ divides by."""
        first = self.rows[0]
        if first.bound is None:
            return f"Θ: not stated for {self.problem}"
        return f"Θ: {first.bound.written} = {first.bound_value:,.0f} ({first.bound.source})"

    def _lower_bounds(self, wide: bool) -> list[str]:
        """Sentences on what the gaps divide by; if wide, for each way of computing, too."""
        common: dict[str, list[str]] = {}  # several if the blocks of some need more pebbles than M
        names: dict[str, list[str]] = {}
        for row in self.rows:
            if row.least_M is None or len(self.rows) == 1:
                least = f"{row.every_way if wide else row.every_way.brief}{row.on_pebbles}"
                common.setdefault(least, []).append(row.schedule)
                names.setdefault(f"{row.lower_bound}{row.on_pebbles}", []).append(row.schedule)
        lines = [
            f"gap: I/O ÷ {bound}" + (f": {', '.join(schedules)}" if len(common) > 1 else "")
            for bound, schedules in common.items()
        ]
        if wide and any(bound not in common for bound in names):
            lines.append(f"{OF_WAY}: I/O ÷ the largest lower bound for the way in which a schedule computes:")
            lines += [f"  {bound}: {', '.join(schedules)}" for bound, schedules in names.items()]
        return lines

    @property
    def _kept(self) -> str:
        """That the best schedule reads a table that the forward pass must have saved, and what is best without it."""
        if "P" not in self.rows[0].kept:
            return ""
        other = next((row for row in self.rows if "P" not in row.kept and row.feasible), None)
        least = f"; of the others {other.schedule} moves the fewest words, {other.io:,}" if other else ""
        saved = "P, which the forward pass must have saved, a word for each pair"
        return f"{self.rows[0].schedule} reads {saved}{least}"

    def __str__(self) -> str:
        totals = [f"\n{Totals(self.rows, None)}"] if self.rows[0].heads.is_given else []
        return "\n".join(map(str, [*self.parts(), *totals]))


@checked_kinds()
def compare(
    problem_name: str | None = None,
    *,
    schedules: Iterable[str | Schedule] | None = None,
    M: int,
    blocks: BlockRule = "fit",
    summation: str = "chain",
    mask: AnyMask | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    batch: int = 1,
    separate: bool = False,
    **dims: int,
) -> Comparison:
    """Count several schedules of a problem, or all of them, sorted by I/O; those that do not fit come last.

    A schedule that does not fit with any blocks is counted with its smallest blocks; its `least_M` is then the smallest
    M that it needs. If no schedules are named, those are counted to which the block rule can apply: with "paper" those
    whose source prints block sizes, and with given sizes those that have these blocks. Heads and sequences are as for
    `count`.

    Args:
        problem_name: what is computed; that of the schedules by default, and "backward" if none are given.
        schedules: names of schedules, or schedules; all of the problem by default.
        M, blocks, summation, mask, heads, kv_heads, batch, separate, dims: as for `count`.

    Returns:
        A row for each schedule, least I/O first.

    >>> compare(n=4096, d=64, M=16384).best.schedule
    'row-stationary-absorbed'

    Raises:
        UsageError: a name or size that is not allowed, or a schedule of another problem.
    """
    runs = runs_of(
        problem_name,
        schedules=schedules,
        M=M,
        blocks=blocks,
        summation=summation,
        mask=mask,
        heads=Heads(heads, kv_heads, batch, separate),
        **dims,
    )
    rows = [count_run(run, fallback_to_smallest=True) for run in runs]
    rows.sort(key=lambda row: (not row.feasible, row.least_M or 0, row.io))
    return Comparison(rows[0].problem, rows[0].dims, rows[0].M, blocks, rows[0].mask, tuple(rows), bool(schedules))


def runs_of(
    problem_name: str | None,
    *,
    schedules: Iterable[str | Schedule] | None,
    M: int,
    blocks: BlockRule,
    summation: str = "chain",
    mask: AnyMask | None = None,
    heads: Heads | None = None,
    **dims: int,
) -> list[Run]:
    """Return the runs that `compare` counts for these arguments.

    Raises:
        UsageError: as for `compare`.
    """
    check_rule(blocks)
    algorithms = get_all(schedules)
    by_schedule = algorithms[0].problem.name if algorithms else "backward"
    solves = problem(by_schedule if problem_name is None else problem_name)
    check_theta(solves)
    pattern, among = masks.of_heads(mask), heads or Heads()
    if not algorithms:
        algorithms = some_of_problem(solves.name, among.dims(solves, problem_dims(solves, dims)), mask is not None)
        algorithms = [algorithm for algorithm in algorithms if _follows(algorithm, blocks)]
        if not algorithms:
            raise UsageError(f"no schedule of problem {solves.name!r} has such blocks as were given: {blocks}.")
    for algorithm in algorithms:
        if algorithm.problem is not solves:
            raise UsageError(
                f"{algorithm.name} solves {algorithm.problem.name!r}, not {solves.name!r}; "
                "count the schedules of each problem apart, with its --problem or none."
            )
    return [
        Run.of(each, dims, M=M, blocks=blocks, summation=summation, mask=pattern, heads=among) for each in algorithms
    ]


def _follows(algorithm: Schedule, rule: BlockRule) -> bool:
    """Whether a block rule can apply to a schedule that was not named."""
    if isinstance(rule, str):
        return rule != "paper" or bool(algorithm.paper) or not algorithm.blocks
    return set(rule) <= set(algorithm.blocks)
