"""The data of the story: schedules as pseudo-code that the page runs, their closed forms, and lower bounds."""

from __future__ import annotations

from typing import Any, Final

from pebblesim.analysis.formula import formula
from pebblesim.core.notation import written
from pebblesim.language.problems import problem
from pebblesim.language.registry import get
from pebblesim.language.text import text
from pebblesim.views.explore.content import bounds_at, exact_code, schedule_data

SCHEDULES: Final = {
    "forward": ("standard-forward", "flash1-forward", "flash2-forward", "small-cache-forward-streamed"),
    "backward-qkv": (
        "standard-backward",
        "flash2-backward",
        "backward-two-pass",
        "small-cache-backward-streamed",
    ),
}
"""The schedules of the story, by problem."""


def data() -> dict[str, Any]:
    """Return the problems of the story, each with its schedules and its lower bounds for as many queries as keys."""
    return {"problems": [_problem(name, schedules) for name, schedules in SCHEDULES.items()]}


def _problem(name: str, schedules: tuple[str, ...]) -> dict[str, Any]:
    return {
        "name": name,
        "schedules": [of_schedule(each) for each in schedules],
        "bounds": {"equal": bounds_at(problem(name), "equal", None)},
    }


def of_schedule(name: str) -> dict[str, Any]:
    """Return a schedule: what `explore` has of it, its pseudo-code, the tensors, and words by tensor and by phase."""
    schedule = get(name)
    solves = schedule.problem
    made = schedule_data(schedule, solves.rectangle or solves)
    assert made is not None, f"the page chooses no blocks for {name}"
    program = schedule.program
    form = formula(program)
    phases = {each: sum(words) for each, words in form.by_phase.items()}
    return {
        **made,
        "text": text(program),
        "tensors": {tensor.name: [*tensor.shape] for tensor in program.tensors.values()},
        "inputs": [*program.inputs],
        "outputs": [*program.outputs],
        "byTensor": {each: exact_code(sum(words)) for each, words in form.by_tensor.items()},
        "byPhase": {each: {"text": written(words), "words": exact_code(words)} for each, words in phases.items()},
    }
