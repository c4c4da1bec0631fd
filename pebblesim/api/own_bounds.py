"""Lower bounds defined by users, for any DAG or for one problem.

They are tested before use: on proven optima of small graphs, and, if they are for a problem, on counts of its schedules
at sizes that no search reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Final

from pebblesim.analysis.equal_blocks import counts_of_equal_blocks
from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.sizes import listed
from pebblesim.dags.optimum import optimum
from pebblesim.dags.optimum_states import RULES
from pebblesim.dags.orders import Task
from pebblesim.dags.samples import small_graphs
from pebblesim.graphs.cdag import Cdag
from pebblesim.language.catalogue import is_built_in
from pebblesim.language.problems import PROBLEMS, Problem, problem as find
from pebblesim.language.registry import of_problem
from pebblesim.lower_bounds.own import OWN, OwnBound

MOST_STEPS: Final = 14
"""Most vertices to compute in a graph on which a bound for a problem is tested."""

COUNTED: Final = ((64, 8), (64, 64), (4096, 64), (2**20, 128))
"""Sizes n and d at which a bound for a problem is compared with counts."""


@checked_kinds()
def bound(
    function: Callable[..., Any] | None = None, *, problem: str | None = None, rules: tuple[str, ...] = RULES[:2]
) -> Any:
    """Register a lower bound of your own. It is immediately compared with proven optima of small graphs.

    A bound for a problem that is claimed with recomputation is also compared with counts of all its schedules, for n up
    to a million.

    Use it as a decorator: `@bound` for a function of a `Cdag` and M (any DAG), or `@bound(problem="matmul")` for a
    function of the problem's sizes and M, given by name. `pebble` and `optimum` use bounds for any DAG that pass;
    `bounds` uses those for a problem that are claimed with recomputation. Results name them as a user's own.

    Args:
        function: returns a whole number of words.
        problem: a problem's name.
        rules: the rules under which it is claimed to hold; by default with and without recomputation.

    Returns:
        An `OwnBound`. It is called like the function, and tells the number of proven optima in the test.

    >>> @bound
    ... def outputs(graph, M):
    ...     return len(set(graph.outputs.tolist()) - set(graph.inputs.tolist()))
    >>> outputs.optima > 50
    True

    Raises:
        UnknownName: the problem or rule set is not known.
        UsageError: the bound exceeds an optimum or a count, or is not a whole number; the message names the graph, or
            the schedule and its sizes, and M.
    """
    if function is None:
        return lambda decorated: bound(decorated, problem=problem, rules=rules)
    for rule in rules:
        if rule not in RULES:
            raise UnknownName("rule set", rule, RULES)
    own = OwnBound(function, getattr(function, "__name__", "bound"), problem, tuple(rules))
    optima = tight = 0
    for where, graph, M, words in _trials(own):
        for rule in rules:
            least = _least_io(graph, M, rule)
            if least is None:
                continue
            value = words()
            if value > least:
                raise UsageError(
                    f"{own.name} gives {value:,} words for {where} at M = {M}, where under {rule!r} a game of "
                    f"{least:,} words exists; it is not a lower bound."
                )
            optima, tight = optima + 1, tight + (value == least)
    if own.problem is not None and "hong-kung" in rules:
        _refuse_what_a_schedule_undercuts(own, find(own.problem))
    OWN[own.name] = own = replace(own, optima=optima, tight=tight)
    return own


@dataclass(frozen=True)
class Own:
    """The problems and bounds of the user, which another process does not know."""

    problems: tuple[Problem, ...]
    bounds: tuple[OwnBound, ...]

    @classmethod
    def known(cls) -> Own:
        """Return those known to this process."""
        problems = (problem for problem in PROBLEMS.values() if not is_built_in(problem.values))
        return cls(tuple(problems), tuple(OWN.values()))

    def declare(self) -> None:
        """Make them known to this process."""
        for problem in self.problems:
            PROBLEMS[problem.name] = problem
        for bound in self.bounds:
            OWN[bound.name] = bound

    @property
    def bounds_of_problems(self) -> list[OwnBound]:
        """The bounds that are for one problem, and not for any DAG."""
        return [bound for bound in self.bounds if bound.problem is not None]


def _least_io(graph: Cdag, M: int, rule: str) -> int | None:
    """The least I/O, searched for once with the same bounds; None if it was not proven."""
    parts = (part.tobytes() for part in (graph.preds, graph.indptr, graph.inputs, graph.outputs))
    key = (*parts, M, rule, *(own.function for own in OWN.values()))
    if key not in _LEAST_IO:
        result = optimum(graph, M=M, rules=rule, states=200_000)
        _LEAST_IO[key] = result.io if result.proven else None
    return _LEAST_IO[key]


_LEAST_IO: dict[tuple[object, ...], int | None] = {}


def _trials(own: OwnBound) -> Iterator[tuple[str, Cdag, int, Callable[[], int]]]:
    """Yield (description, graph, M, call) for each test."""
    if own.problem is None:
        for name, graph, M in small_graphs():
            yield name, graph, M, partial(own.words, f"{name} at M = {M}", graph, M)
        return
    from pebblesim import graphs

    solves = find(own.problem)
    for sizes in product((1, 2, 3), repeat=len(solves.dims)):
        dims = dict(zip(solves.dims, sizes, strict=True))
        graph = graphs.build(solves.name, **dims)  # type: ignore[arg-type]
        task = Task(graph, 2**40, "no-recompute")
        if task.steps > MOST_STEPS:
            continue
        where = f"{own.problem} with " + ", ".join(f"{name} = {size}" for name, size in dims.items())
        for M in (task.least_M, task.least_M + 1, task.least_M + 3):
            yield where, graph, M, partial(own.words, f"{where} at M = {M}", **dims, M=M)


def _refuse_what_a_schedule_undercuts(own: OwnBound, solves: Problem) -> None:
    """Refuse a bound above the words of a schedule, at the smallest M in which its game fits.

    Raises:
        UsageError: the bound exceeds a count.
    """
    for n, d in COUNTED:
        dims = {dim: {"n": n, "d": d}[kind] for dim, kind in solves.from_nd.items()}
        for schedule, blocks, counted in counts_of_equal_blocks(of_problem(solves.name, dims), dims, (1, 8, d, n)):
            M, words = counted.peak_red, counted.total.io
            where = f"{solves.name} with {listed(dims)} at M = {M:,}"
            value = own.words(where, **dims, M=M)
            if value > words:
                sides = f" with {listed(blocks)}" if blocks else ""
                raise UsageError(
                    f"{own.name} gives {value:,} words for {where}, where the schedule {schedule.name}{sides} moves "
                    f"{words:,} words; it is not a lower bound."
                )
