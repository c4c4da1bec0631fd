"""Bounds of a user's own, for any DAG or for one problem, tried on proven optima before they count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from pebblesim.dags.optimum import RULES, optimum
from pebblesim.dags.orders import Task
from pebblesim.dags.samples import small_graphs
from pebblesim.errors import PebblesimError, UnknownName, UsageError
from pebblesim.graphs.cdag import Cdag

MOST_STEPS: Final = 14
"""Vertices to compute in the largest graph that a bound on a problem is tried on."""


@dataclass(frozen=True, eq=False)
class OwnBound:
    """A bound that has passed its trial; calling it calls the function.

    Attributes:
        function: gives words from a graph and M, or from the sizes of a problem and M.
        name: of the function.
        problem: the problem it is for; None for any DAG.
        rules: the rule sets under which it is claimed.
        optima: the number of proven optima that it was compared with.
        tight: how many of these it meets.
    """

    function: Callable[..., Any]
    name: str
    problem: str | None
    rules: tuple[str, ...]
    optima: int
    tight: int

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __str__(self) -> str:
        return f"{self.name}: at most each of {self.optima:,} proven optima, and equal to {self.tight:,} of them"


OWN: Final[dict[str, OwnBound]] = {}
"""All that have passed, by name."""


def bound(
    function: Callable[..., Any] | None = None, *, problem: str | None = None, rules: tuple[str, ...] = RULES[:2]
) -> Any:
    """Register a lower bound of your own; it is compared with proven optima of small graphs at once.

    As a decorator, `@bound` for any DAG, of a function of a `Cdag` and M, or `@bound(problem="matmul")`, of a function
    of the problem's sizes and M by name. What passes for any DAG is used by `pebble` and `optimum`;
    one for a problem is tried, and no more.

    Args:
        function: gives a whole number of words.
        problem: a problem's name.
        rules: where it is claimed to hold; with and without recomputation by default.

    Returns:
        An `OwnBound`, which is called as the function is, and says on how many proven optima it was tried.

    >>> @bound
    ... def outputs(graph, M):
    ...     return len(set(graph.outputs.tolist()) - set(graph.inputs.tolist()))
    >>> outputs.optima > 50
    True

    Raises:
        UnknownName: there is no such problem or rule set.
        UsageError: it exceeds an optimum, or gives no whole number; the message shows where.
    """
    if function is None:
        return lambda given: bound(given, problem=problem, rules=rules)
    for rule in rules:
        if rule not in RULES:
            raise UnknownName("rule set", rule, RULES)
    name = getattr(function, "__name__", "bound")
    optima = tight = 0
    for where, graph, M, call in _trials(function, problem):
        for rule in rules:
            found = optimum(graph, M=M, rules=rule, states=200_000)
            if not found.proven:
                continue
            try:
                value = call()
            except PebblesimError:
                raise
            except Exception as error:
                raise UsageError(f"{name} fails on {where} at M = {M}: {type(error).__name__}: {error}.") from error
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise UsageError(f"{name} gives {value!r} for {where} at M = {M}; a bound is a whole number of words.")
            if value > found.io:
                raise UsageError(
                    f"{name} gives {int(value):,} words for {where} at M = {M}, where under {rule!r} a game of "
                    f"{found.io:,} words exists; it is no lower bound."
                )
            optima, tight = optima + 1, tight + (value == found.io)
    own = OwnBound(function, name, problem, tuple(rules), optima, tight)
    OWN[name] = own
    return own


def _trials(function: Callable[..., Any], problem: str | None) -> Iterator[tuple[str, Cdag, int, Callable[[], Any]]]:
    """(what it is tried on, the graph, M, the call)."""
    if problem is None:
        for name, graph, M in small_graphs():
            yield name, graph, M, lambda graph=graph, M=M: function(graph, M)  # type: ignore[misc]
        return
    from pebblesim import graphs
    from pebblesim.language.problems import problem as find

    solves = find(problem)
    for sizes in product((1, 2, 3), repeat=len(solves.dims)):
        dims = dict(zip(solves.dims, sizes, strict=True))
        graph = graphs.build(solves.name, **dims)  # type: ignore[arg-type]
        task = Task(graph, 2**40, "no-recompute")
        if task.steps > MOST_STEPS:
            continue
        where = f"{problem} with " + ", ".join(f"{name} = {size}" for name, size in dims.items())
        for M in (task.least_M, task.least_M + 1, task.least_M + 3):
            yield where, graph, M, lambda dims=dims, M=M: function(**dims, M=M)  # type: ignore[misc]
