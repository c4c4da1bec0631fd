"""Which schedule of a problem is the best on a machine: `pebblesim advise --machine`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pebblesim.analysis.work import work
from pebblesim.core.errors import Infeasible, UsageError
from pebblesim.core.results import Result
from pebblesim.core.sizes import DTYPE_ON_MACHINES, dtype_of, listed
from pebblesim.core.tables import Sheet
from pebblesim.counting.arguments import AnyMask, problem_dims
from pebblesim.counting.heads import Heads
from pebblesim.counting.run import Run
from pebblesim.language.problems import problem
from pebblesim.language.registry import get, some_of_problem
from pebblesim.machines.counting import OnMachine
from pebblesim.machines.finding import found as found_nesting
from pebblesim.machines.machine import Machine
from pebblesim.machines.named import machine as machine_of


@dataclass(frozen=True)
class Choice(Result):
    """Schedules of a problem on a machine.

    Attributes:
        problem, dims, machine, dtype: what is computed, where, and the type of a word.
        rows: a count for each schedule that fits. If all bandwidths are known, that with the least time is the first,
            else that whose largest gap is the least.
        operations: of each of them.
        left_out: why other schedules are not there, by name.
    """

    problem: str
    dims: Mapping[str, int]
    machine: Machine
    dtype: str
    rows: tuple[OnMachine, ...]
    operations: Mapping[str, int]
    left_out: Mapping[str, str]

    def seconds(self, row: OnMachine) -> dict[str, float]:
        """Return the least seconds that each boundary and the arithmetic take, those that are known."""
        found = {each.level.name: each.seconds for each in row.boundaries if each.seconds is not None}
        if self.dtype in self.machine.peak:
            found["arithmetic"] = self.operations[row.schedule] / self.machine.peak[self.dtype]
        return found

    def limit(self, row: OnMachine) -> tuple[str, float] | None:
        """Return the name of what takes the most time, and its seconds; None if nothing is known."""
        return max(self.seconds(row).items(), key=lambda each: each[1], default=None)

    def joules(self, row: OnMachine) -> float | None:
        """Return the energy of all boundaries; None unless it is known for each."""
        known = [each.joules for each in row.boundaries if each.joules is not None]
        return sum(known) if len(known) == len(row.boundaries) else None

    @property
    def order(self) -> str:
        """A sentence on what sorts the rows."""
        unknown = [each.name for each in self.machine.levels if each.bandwidth is None]
        if not unknown:
            return "sorted by seconds: the least that the slowest boundary takes, or the arithmetic"
        return f"sorted by the largest gap, as the bandwidth to {' and '.join(unknown)} is not known"

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `pebblesim advise --machine NAME --json`."""
        rows = [
            {**row.to_dict(), "operations": self.operations[row.schedule], "least_seconds": self.seconds(row)}
            for row in self.rows
        ]
        head = {"problem": self.problem, **self.dims, "machine": self.machine.name, "dtype": self.dtype}
        return head | {"rows": rows, "left_out": dict(self.left_out)}

    def parts(self) -> list[str | Sheet]:
        """Return the parts to print: a row for each schedule."""
        names = [each.name for each in self.machine.levels]
        columns = ["schedule", "seconds", "limit", *(f"gap, {name}" for name in names)]
        columns += [*(f"words to {name}" for name in names), "joules"]
        lines: list[list[Any]] = []
        for row in self.rows:
            limit, joules = self.limit(row), self.joules(row)
            line = [row.schedule, *(("", "") if limit is None else (f"{limit[1]:.3g}", limit[0]))]
            line += [f"{each.gap:.2f}" for each in row.boundaries]
            lines.append([*line, *(each.words for each in row.boundaries), "" if joules is None else f"{joules:.3g}"])
        some = [n for n in range(len(columns)) if any(line[n] != "" for line in lines)]
        return [
            f"{problem(self.problem).heading(listed(self.dims))} on {self.rows[0].place}",
            Sheet([columns[n] for n in some], [[line[n] for n in some] for line in lines], tuple(columns), left=1),
            self.order,
            "tiles in the lowest memory and blocks, as options of `pebblesim count --machine`:",
            *(f"count {row.schedule} {row.options}" for row in self.rows),
            *(f"not here: {name}: {why}" for name, why in self.left_out.items()),
        ]

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts()))


def choose(
    problem_name: str,
    *,
    machine: str | Machine,
    dtype: str = DTYPE_ON_MACHINES,
    mask: AnyMask | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    batch: int = 1,
    separate: bool = False,
    **dims: int,
) -> Choice:
    """Count every schedule of a problem on a machine, and compare.

    Each schedule is counted with the tiles in the lowest memory that must be there, and with all that it computes in
    it; and with blocks that fill the first memory, or of equal sides. The one with the least largest gap is its row.

    Args:
        problem_name: a problem, such as "forward".
        machine: a card, a machine that comes with pebblesim, a file, or a `Machine`.
        dtype: the type of all words.
        mask, heads, kv_heads, batch, separate: as for `pebblesim.count`; the mask is one for all heads.
        dims: the dimensions, such as n=4096, d=64.

    Raises:
        UsageError: a name or size is not allowed, the machine is no path, or no schedule can be nested in it.
    """
    place = machine_of(machine) if isinstance(machine, str) else machine
    dtype, solves = dtype_of(dtype), problem(problem_name)
    among, words = Heads(heads, kv_heads, batch, separate), place.levels[0].words(dtype)
    sizes = problem_dims(solves, dims)
    place.numbers  # noqa: B018  what has no levels is refused
    rows, operations, left_out = [], dict[str, int](), dict[str, str]()
    for schedule in some_of_problem(solves.name, sizes, mask is not None):
        try:
            run = Run.of(schedule, sizes, M=words, mask=mask, heads=among)
            row = found_nesting(run, place, dtype, get("matmul-streamed"))
            if not row.feasible:
                raise UsageError("; ".join(row.overflows))
        except (UsageError, Infeasible) as error:
            left_out[schedule.name] = str(error)
            continue
        rows.append(row)
        (part,) = run.parts
        operations[row.schedule] = run.times * sum(
            work(part.program, {**row.dims, **row.blocks}, part.only_mask).values()
        )
    if not rows:
        why = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise UsageError(f"no schedule of {solves.name} can be nested in {place.name}: {why}")
    found = Choice(solves.name, sizes, place, dtype, tuple(rows), operations, left_out)

    def worth(row: OnMachine) -> tuple[float, float]:
        times = found.seconds(row)
        known = all(each.level.name in times for each in row.boundaries)
        return max(times.values()) if known else 0.0, max(each.gap for each in row.boundaries)

    return replace(found, rows=tuple(sorted(rows, key=worth)))
