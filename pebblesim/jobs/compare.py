"""Count several schedules of a problem side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from pebblesim.errors import Infeasible, UsageError
from pebblesim.jobs import blocks as block_rules
from pebblesim.jobs.arguments import AnyMask, BlockRule, problem_dims
from pebblesim.jobs.count import Counted, counted
from pebblesim.language import masks
from pebblesim.language.masks import Mask
from pebblesim.language.problems import problem
from pebblesim.language.registry import Schedule, get, of_problem
from pebblesim.sizes import whole
from pebblesim.tables import aligned
from pebblesim.theory.lower_bounds import LowerBound, best


@dataclass(frozen=True)
class Comparison(Sequence[Counted]):
    """Schedules of one problem for the same sizes: a sequence of rows, least I/O first, then what does not fit.

    Attributes:
        problem, dims, M, mask: what was asked.
        blocks: the block rule, or the sizes that were given.
        rows: what each schedule moves.
    """

    problem: str
    dims: Mapping[str, int]
    M: int
    blocks: BlockRule
    mask: Mask | None
    rows: tuple[Counted, ...]

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
        """The schedule that moves least among those that fit; None if none does."""
        return self.rows[0] if self.rows[0].feasible else None

    @property
    def lower_bound(self) -> LowerBound:
        """What no game with M pebbles can go below on any graph of the problem, whatever its way of computing."""
        return best(problem(self.problem).in_dims(self.dims), self.dims, self.M, None, self.mask)

    def to_dict(self, dtype: str | None = None) -> dict[str, Any]:
        """As printed by `pebblesim count --json`; with a data type, with arithmetic intensities in that type."""
        first = self.rows[0]
        head: dict[str, Any] = {"problem": self.problem, **self.dims, "M": self.M, "blocks": self.blocks}
        head |= {"bound": first.bound and first.bound.to_dict(first.sizes)}
        head |= {"lower_bound": self.lower_bound.to_dict()}
        head |= {} if self.mask is None else {"mask": str(self.mask), "pairs": first.pairs}
        return head | {"rows": [row.to_dict(dtype) for row in self.rows]}

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {size:,}" for name, size in {**self.dims, "M": self.M}.items())
        under = "" if self.mask is None else f", mask {self.mask}"
        lines = [
            (row.schedule, ", ".join(f"{name}={size}" for name, size in row.blocks.items()) or "none", row.io, row.gap)
            if row.least_M is None
            else (row.schedule, f"needs M ≥ {row.least_M:,}", None, None)
            for row in self.rows
        ]
        return f"{self.problem}: {sizes} words{under}\n{aligned(('schedule', 'blocks', 'I/O', 'gap'), lines)}"


def compare(
    names: Iterable[str] | None = None,
    *,
    problem_name: str = "backward",
    M: int,
    blocks: BlockRule = "fit",
    summation: str = "chain",
    mask: AnyMask | None = None,
    **dims: int,
) -> Comparison:
    """Count several schedules of a problem, or all of them, sorted by I/O; those that do not fit come last.

    A schedule that no blocks make fit is counted at its smallest blocks and says so by `least_M`. All schedules means
    those that a block rule can be meant for: "paper" for those whose source prints block sizes, sizes for those with
    such blocks.

    Raises:
        UsageError: a name or size that is not allowed, or a schedule of another problem.
    """
    solves = problem(problem_name)
    if isinstance(names, str):
        names = [names]
    algorithms = [get(name) for name in dict.fromkeys(names)] if names else of_problem(problem_name, mask is not None)
    if not names:
        algorithms = [algorithm for algorithm in algorithms if _follows(algorithm, blocks)]
        if not algorithms:
            raise UsageError(f"no schedule of problem {solves.name!r} has such blocks as were given: {blocks}.")
    for algorithm in algorithms:
        if algorithm.problem is not solves:
            raise UsageError(
                f"{algorithm.name} solves {algorithm.problem.name!r}, not {solves.name!r}; "
                f"add --problem {algorithm.problem.name}."
            )
    sizes, M, mask = problem_dims(solves, dims), whole("M", M), masks.of(mask)
    rows = []
    for algorithm in (each.in_dims(sizes) for each in algorithms):
        try:
            sides = block_rules.choose(algorithm, sizes, M, blocks, summation, mask)
            rows.append(counted(algorithm, sizes, M, sides, summation, mask))
        except Infeasible as error:
            given = {} if isinstance(blocks, str) else blocks
            smallest = block_rules.smallest(algorithm) | dict(given)
            rows.append(counted(algorithm, sizes, M, smallest, summation, mask, error.least_M))
    rows.sort(key=lambda row: (not row.feasible, row.least_M or 0, row.io))
    return Comparison(solves.name, sizes, M, blocks, mask, tuple(rows))


def _follows(algorithm: Schedule, rule: BlockRule) -> bool:
    """Whether a block rule can be meant for a schedule that was not named."""
    if isinstance(rule, str):
        return rule != "paper" or bool(algorithm.paper) or not algorithm.blocks
    return set(rule) <= set(algorithm.blocks)
