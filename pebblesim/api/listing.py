"""List the problems and their schedules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pebblesim.core.kinds import checked_kinds
from pebblesim.core.results import Result, plain
from pebblesim.core.tables import in_columns
from pebblesim.language.problems import PROBLEMS, problem
from pebblesim.language.registry import Schedule, of_problem


@dataclass(frozen=True)
class Listing(Result, Mapping[str, tuple[Schedule, ...]]):
    """Schedules by the name of their problem, including your own.

    Attributes:
        schedules: the schedules of each problem.

    >>> from pebblesim import list as listed
    >>> [schedule.name for schedule in listed("linear")["linear"]]
    ['linear', 'linear-quadratic']
    """

    schedules: Mapping[str, tuple[Schedule, ...]]

    def __getitem__(self, name: str) -> tuple[Schedule, ...]:
        return self.schedules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.schedules)

    def __len__(self) -> int:
        return len(self.schedules)

    def to_dict(self) -> dict[str, Any]:
        """Return a row for each schedule."""
        every = ((name, schedule) for name, schedules in self.items() for schedule in schedules)
        rows = [
            {"problem": name, "schedule": schedule.name, "blocks": [*schedule.blocks], "needs": [*schedule.kept]}
            | {"kernels": [*schedule.kernels], "mask": schedule.maskable, "first_parts": not schedule.alike}
            | plain(schedule, "summary", "source")
            for name, schedule in every
        ]
        return {"rows": rows}

    def __str__(self) -> str:
        lines = []
        for name, schedules in self.items():
            solves = problem(name)
            sizes = ", ".join(solves.dims)
            lines.append(f"{name}: {', '.join(solves.inputs)} → {', '.join(solves.outputs)}  (sizes {sizes})")
            lines += [f"  {line}" for line in in_columns([_readings(schedule) for schedule in schedules])]
        return "\n".join([*lines, *LEGEND])


LEGEND: Final = (
    "Every schedule is counted, has a closed form, is played, and runs on numbers. T: it can be a Triton kernel, on",
    "tensor cores; C: a CUDA kernel in float32; m: it takes masks; p: it treats the first part of a dimension apart:",
    "it is no kernel.",
    "needs: what the forward pass must keep, such as O and the logarithms L of its row sums.",
)


def _readings(schedule: Schedule) -> tuple[str, str, str]:
    """Return the name of a schedule, the letters of its readings, and what it does and needs."""
    kinds = {"T": "Triton" in schedule.kernels, "C": "CUDA" in schedule.kernels, "m": schedule.maskable}
    letters = "".join(letter if has else "·" for letter, has in (*kinds.items(), ("p", not schedule.alike)))
    needs = f"  needs {', '.join(schedule.kept)}" if schedule.kept else ""
    return schedule.name, letters, f"{schedule.summary}{needs}"


@checked_kinds()
def list(problem_name: str | None = None) -> Listing:
    """List the schedules of a problem, or of all problems.

    Args:
        problem_name: a problem, such as "forward"; all by default.

    Returns:
        A mapping from names of problems to schedules, which prints as a list.

    Raises:
        UsageError: the problem is not known.

    >>> import pebblesim as ps
    >>> len(ps.list("backward")["backward"]) > 10
    True
    """
    names = tuple(PROBLEMS) if problem_name is None else (problem(problem_name).name,)
    return Listing({name: tuple(of_problem(name)) for name in names})
