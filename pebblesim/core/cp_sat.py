"""A CP-SAT solver of OR-tools, the optional dependency `exact`, as all exact programs of the project use it."""

from __future__ import annotations

from typing import Any


def solver(seconds: float, workers: int) -> Any:
    """Return a solver that leaves Ctrl-C to Python.

    OR-tools' own handler of Ctrl-C would stay after the search, and the next Ctrl-C would end the process.

    Args:
        seconds: the time after which a search ends.
        workers: threads of the search.

    Raises:
        ImportError: OR-tools is not installed.
    """
    from ortools.sat.python import cp_model

    made = cp_model.CpSolver()
    made.parameters.max_time_in_seconds, made.parameters.num_workers = seconds, workers
    made.parameters.catch_sigint_signal = False
    return made
