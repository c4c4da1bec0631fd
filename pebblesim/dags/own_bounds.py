"""Lower bounds defined by users, for any DAG or for one problem; they are tested on proven optima before use."""

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
"""Most vertices to compute in a graph on which a bound for a problem is tested."""


@dataclass(frozen=True, eq=False)
class OwnBound:
    """A bound that has passed its tests; calling it calls the function.

    Attributes:
        function: computes words from a graph and M, or from the sizes of a problem and M.
        name: name of the function.
        problem: the problem that it bounds; None for any DAG.
        rules: the rule sets under which it is claimed to hold.
        optima: number of proven optima in the test.
        tight: number of these optima that it equals.
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
"""All bounds that have passed, by name."""


def bound(
    function: Callable[..., Any] | None = None, *, problem: str | None = None, rules: tuple[str, ...] = RULES[:2]
) -> Any:
    """Register a lower bound of your own. It is immediately compared with proven optima of small graphs.

    Use it as a decorator: `@bound` for a function of a `Cdag` and M (any DAG), or `@bound(problem="matmul")` for a
    function of the problem's sizes and M, given by name. `pebble` and `optimum` use bounds for any DAG that pass. A
    bound for a problem is only tested.

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
        UsageError: the bound exceeds an optimum, or is not a whole number; the message names the graph and M.
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
                    f"{found.io:,} words exists; it is not a lower bound."
                )
            optima, tight = optima + 1, tight + (value == found.io)
    own = OwnBound(function, name, problem, tuple(rules), optima, tight)
    OWN[name] = own
    return own


def _trials(function: Callable[..., Any], problem: str | None) -> Iterator[tuple[str, Cdag, int, Callable[[], Any]]]:
    """Yield (description, graph, M, call) for each test."""
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
