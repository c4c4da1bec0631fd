"""The least I/O of a game on any DAG. The search can be stopped at any time and then gives an interval.

The search starts from the best game of `pebblesim.dags.search`, and drops states that cannot improve it. It is an A*
search: waiting states are ordered by the I/O so far plus a lower bound on the I/O to come. The least of these numbers
is a lower bound on the I/O of any game. The problem is NP-hard without recomputation and PSPACE-complete with it (Papp
& Wattenhofer 2020; Demaine & Liu 2018), so use it for small graphs, or for M that leaves little choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import PebblesimError, UnknownName, UsageError, as_given
from pebblesim.core.memory import available_memory
from pebblesim.core.results import Result, plain
from pebblesim.core.sizes import quantity, whole
from pebblesim.dags.interval import Interval
from pebblesim.dags.optimum_states import RULES, search_states, searchable
from pebblesim.dags.orders import Task, as_cdag
from pebblesim.dags.search import compile_bounds, compile_search, pebble
from pebblesim.dags.task_data import components
from pebblesim.game.referee import referee
from pebblesim.graphs.cdag import Cdag

MEMORY: Final = 4 * 2**30

ENDED: Final = {
    "time": "out of time",
    "memory": "out of memory",
    "interrupted": "interrupted",
    "size": "too large to be searched",
}
"""Why a search ended without a proof, in words."""

FIRST_STEPS: Final = 10
"""Most steps of the search for a first game, if a number of states and no time is the limit."""

Progress = Callable[[float, int, int, int], None]
"""Called with the fraction of time used (0 without a limit), the bound, the best I/O and the number of states."""


@dataclass(frozen=True, eq=False)
class Optimum(Result):
    """The least I/O of a game, or an interval that holds it, and a game.

    Attributes:
        graph: the graph.
        rules, M: of the game.
        io: words read and written by the best game found.
        bound: lower bound on the I/O of any game, in words.
        moves: the game, packed as in `pebblesim.game.moves`.
        states: number of states that the search kept.
        proof: how the bound is proved.
        ended: why the search ended: "proven", "time", "memory", "interrupted", or "size" (too large).
        seconds: running time.
    """

    graph: Cdag
    rules: str
    M: int
    io: int
    bound: int
    moves: NDArray[np.int64]
    states: int
    proof: str
    ended: str
    seconds: float

    @property
    def proven(self) -> bool:
        """Whether `io` is the least I/O."""
        return self.io == self.bound

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data, with the number of moves instead of the moves."""
        head = plain(self, "rules", "M", "io", "bound", "proven") | {"moves": len(self.moves)}
        return head | plain(self, "states", "proof", "ended") | {"seconds": round(self.seconds, 3)}

    def __str__(self) -> str:
        least = quantity(self.io, "word") if self.proven else f"{self.bound:,} to {quantity(self.io, 'word')}"
        lines = {
            "rules": self.rules,
            "M": quantity(self.M, "word"),
            "least I/O": least + ("" if self.proven else f" ({ENDED[self.ended]})"),
            "proof": self.proof,
            "game": f"{quantity(len(self.moves), 'move')}; {quantity(self.states, 'state')} kept",
        }
        return "\n".join(f"{label:<16}{value}" for label, value in lines.items())


def optimum(
    graph: Any,
    M: int,
    rules: str = "hong-kung",
    *,
    seconds: float | None = None,
    memory: int = MEMORY,
    states: int | None = None,
    progress: Progress | None = None,
) -> Optimum:
    """Find the least I/O on a graph, or the interval reached when time or memory runs out.

    Args:
        graph: a `Cdag`, or a networkx DiGraph, with one word for each vertex.
        M: red pebbles.
        rules: "hong-kung" (with recomputation), "no-recompute" or "partial".
        seconds: time limit; without it the search ends when the optimum is proven or the memory is full.
        memory: memory limit for states, in bytes; where less is left on the machine or in its container, that.
        states: limit on the number of states, instead of `memory`; without `seconds` the result is then the same in
            every run on a graph of up to some hundred vertices.
        progress: called from time to time; see `Progress`.

    Ctrl-C ends the search; the call returns the interval so far.

    >>> from pebblesim.dags.generators import generate
    >>> optimum(generate("pyramid", rows=4), M=3).io
    11

    Raises:
        Infeasible: some vertex with its predecessors needs more than M pebbles.
        UnknownName: the rule set is not known.
        UsageError: a vertex has several words, or a number is out of range.
    """
    graph = as_cdag(graph)
    if rules not in RULES:
        raise UnknownName("rule set to search under", rules, RULES)
    if getattr(graph, "weights", None) is not None:
        raise UsageError(
            "the exact search does not support vertices of several words; use `pebble`, or a graph without weights."
        )
    M = whole("M", M)
    if seconds is not None and (not isinstance(seconds, int | float) or not seconds > 0):
        raise UsageError(f"seconds = {as_given(seconds)} was given; give a number, more than 0.")
    task = Task(graph, M, rules)
    _compile(rules)
    began = time.monotonic()
    parts = [] if rules == "partial" else components(task)
    if len(parts) > 1:
        return _sum(graph, parts, M, rules, seconds, memory, states, progress, began)
    end = float("inf") if seconds is None else began + seconds
    small = searchable(task.graph, rules)  # otherwise there is no search to save time for
    left = min(5.0, (end - began) / 5) if small else min(60.0, end - began)
    steps = None
    if seconds is None and states is not None and small:
        left, steps = 60.0, FIRST_STEPS  # no clock decides, so that the result is the same on every machine
    first = pebble(graph, M=M, rules=rules, seconds=left, steps=steps, rounds=task.steps)
    run = Interval(task, first.io, first.moves, first.bound.value, first.bound.source)
    if first.interrupted:
        run.ended = "interrupted"
    elif not run.proven:
        try:
            narrow(run, states, min(whole("memory", memory), available_memory()), began, end, progress)
        except KeyboardInterrupt:
            run.ended = "interrupted"
    game = referee(graph, M, [run.moves], rules)
    if not game.complete or game.io != run.io:
        raise PebblesimError(f"the search produced a game that the referee rejects; please report it: {game}")
    ended = "proven" if run.proven else run.ended
    seconds = time.monotonic() - began
    return Optimum(graph, rules, M, run.io, run.bound, run.moves, run.states, run.proof, ended, seconds)


@cache
def _compile(rules: str) -> None:
    """Load all that a search calls, or compile it once on a machine, outside its time limit."""
    compile_search(rules)
    compile_bounds(rules)
    task = Task(Cdag.from_edges(6, [(0, 3), (1, 3), (1, 4), (2, 4), (3, 5), (4, 5)]), 3, rules)
    first = pebble(task.graph, M=3, rules=rules, steps=1, seconds=0)
    narrow(Interval(task, first.io, first.moves, 0, ""), 1000, 2**20, 0.0, float("inf"), None)


def _sum(
    graph: Cdag,
    parts: list[tuple[Cdag, NDArray[np.int64]]],
    M: int,
    rules: str,
    seconds: float | None,
    memory: int,
    states: int | None,
    progress: Progress | None,
    began: float,
) -> Optimum:
    """Solve the components one after the other, and add up their optima."""
    optima: list[Optimum] = []
    for number, (part, _) in enumerate(parts):
        left = None if seconds is None else max(0.01, (began + seconds - time.monotonic()) / (len(parts) - number))
        if optima and optima[-1].ended == "interrupted":
            left = 0.01
        optima.append(optimum(part, M, rules, seconds=left, memory=memory, states=states, progress=progress))
    moves = [each.moves & 3 | vertices[each.moves >> 2] << 2 for each, (_, vertices) in zip(optima, parts, strict=True)]
    return Optimum(
        graph,
        rules,
        M,
        sum(each.io for each in optima),
        sum(each.bound for each in optima),
        np.concatenate(moves),
        sum(each.states for each in optima),
        f"the optima of {len(parts)} connected components add up",
        next((each.ended for each in optima if not each.proven), "proven"),
        time.monotonic() - began,
    )


def narrow(run: Interval, states: int | None, memory: int, began: float, end: float, progress: Progress | None) -> None:
    """Search until the optimum is proven, the time is over or the memory is full; arguments as for `optimum`."""

    def on_progress() -> None:
        if progress is not None:
            part = 0.0 if end == float("inf") else min(1.0, (time.monotonic() - began) / (end - began))
            progress(part, run.bound, run.io, run.states)

    if run.task.rules == "partial":
        from pebblesim.dags.optimum_partial import search_partial

        search_partial(run, memory // 400 if states is None else states, end, on_progress)
        return

    # A number of states gives the same interval in every run and on every machine, which the program does not.
    program = run.task.rules == "no-recompute" and states is None and find_spec("ortools") is not None
    half = began + (end - began) / 2
    search_states(run, states, memory, half if program and end < float("inf") else end, on_progress)
    if program and not run.proven and time.monotonic() < end:
        from pebblesim.dags.constraints import solve

        solve(run, end, on_progress)
