"""The least I/O without recomputation as a constraint program, for graphs that are too large for the state search.

Each vertex has a time. Each use of a value is fed by a read, or by an earlier event of the same value (its computation
or another use), after which the value is kept. Each event feeds at most one use. A kept value occupies one place
between its two events; a computation occupies one place for each operand and one for the result. One cumulative
constraint counts the places. A computed value that is read needs one write. OR-tools' CP-SAT solves the program (the
optional dependency `exact`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pebblesim.core import cp_sat
from pebblesim.dags.interval import Interval
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, pack, unpack

MOST_STEPS = 150
"""Most vertices to compute in a graph for the solver."""


def solve(run: Interval, end: float, on_progress: Callable[[], None]) -> None:
    """Narrow the interval of a run until the optimum is proven or the time is over."""
    task = run.task
    if task.steps > MOST_STEPS:
        return
    from ortools.sat.python import cp_model

    model, variables = _model(run, cp_model)
    solver = cp_sat.solver(max(0.1, end - time.monotonic()) if end < float("inf") else 1e9, workers=8)

    class Watch(cp_model.CpSolverSolutionCallback):  # stores the solutions found so far
        def on_solution_callback(self) -> None:
            _keep(run, variables, self.value)
            on_progress()

    def bounded(value: float) -> None:
        run.raise_to(int(np.ceil(value - 1e-6)), "CP-SAT, a constraint program with order and kept values")
        on_progress()

    solver.best_bound_callback = bounded
    status = solver.solve(model, Watch())
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        _keep(run, variables, solver.value)
    if status != cp_model.INFEASIBLE:
        bounded(solver.best_objective_bound)


def _keep(run: Interval, variables: _Variables, value: Callable[[Any], int]) -> None:
    """Keep the solver's game if it is better."""
    board, moves = run.task.board, []
    times = {v: value(time) for v, time in variables.time_of.items()}
    kept = {(u, event) for (u, event, _), link in variables.kept.items() if value(link)}
    written = {u for u, write in variables.written.items() if value(write)}
    red: set[int] = set()
    for v in sorted(times, key=times.__getitem__):
        moves += [(READ, u) for u in variables.before[v] if u not in red]
        moves.append((COMPUTE, v))
        if v in written or board.output[v]:
            moves.append((WRITE, v))
        red |= {v, *variables.before[v]}
        gone = [u for u in (v, *variables.before[v]) if (u, v) not in kept]
        moves += [(DELETE, u) for u in gone]
        red -= set(gone)
    io = sum(kind in (READ, WRITE) for kind, _ in moves)
    if io < run.io:
        run.io, run.moves = io, np.array([pack(kind, v) for kind, v in moves], dtype=np.int64)


class _Variables(NamedTuple):
    """Variables: the time of each vertex, whether value u is kept from an event to a use, and whether it is written."""

    before: dict[int, list[int]]
    time_of: dict[int, Any]
    kept: dict[tuple[int, int, int], Any]
    written: dict[int, Any]


def _model(run: Interval, cp_model: Any) -> tuple[Any, _Variables]:
    """Build the program and its variables."""
    task = run.task
    graph, board = task.graph, task.board
    vertices = board.target.tolist()
    n = len(vertices)
    model = cp_model.CpModel()
    before = {v: sorted(set(graph.preds[int(graph.indptr[v]) : int(graph.indptr[v + 1])].tolist())) for v in vertices}
    time_of = {v: model.new_int_var(0, n - 1, f"t{v}") for v in vertices}
    model.add_all_different(time_of.values())
    uses: dict[int, list[int]] = {}
    for v, operands in before.items():
        for u in operands:
            uses.setdefault(u, []).append(v)
            if u in time_of:
                model.add(time_of[u] < time_of[v])
    intervals = [model.new_fixed_size_interval_var(time_of[v], 1, f"c{v}") for v in vertices]
    demands = [len(before[v]) + 1 for v in vertices]
    variables = _Variables(before, time_of, {}, {})
    cost: list[Any] = []
    for u, users in uses.items():
        events = ([u] if u in time_of else []) + users
        reads = []
        feeds: dict[int, list[Any]] = {event: [] for event in events}
        for w in users:
            fed = []
            for event in events:
                if event == w:
                    continue
                kept = variables.kept[u, event, w] = model.new_bool_var(f"k{u},{event},{w}")
                size = model.new_int_var(0, n, "")
                start = model.new_int_var(0, n, "")
                model.add(start == time_of[event] + 1)
                interval = model.new_optional_interval_var(start, size, time_of[w], kept, "")
                intervals.append(interval)
                demands.append(1)
                feeds[event].append(kept)
                fed.append(kept)
            read = model.new_bool_var(f"r{u},{w}")
            model.add_exactly_one([*fed, read])
            reads.append(read)
        for kept_since in feeds.values():
            if kept_since:
                model.add_at_most_one(kept_since)
        if u not in time_of:
            model.add_bool_or(reads)
        elif not board.output[u]:
            write = variables.written[u] = model.new_bool_var(f"w{u}")
            for read in reads:
                model.add_implication(read, write)
            cost.append(write)
        cost += reads
    fixed = sum(int(board.output[v]) for v in vertices)
    model.add_cumulative(intervals, demands, task.M)
    io = sum(cost) + fixed
    model.add(io >= run.bound)
    model.add(io <= run.io)
    model.minimize(io)
    times = _times(run)
    for v in vertices:
        model.add_hint(time_of[v], times[v])
    return model, variables


def _times(run: Interval) -> dict[int, int]:
    """Return the time at which the best game so far computes each vertex."""
    kinds, moved = unpack(run.moves)
    computed = moved[kinds == COMPUTE].tolist()
    return {v: k for k, v in enumerate(computed)}
