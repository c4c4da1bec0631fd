"""Bounds of a user's own, for any DAG or for one problem, tried on proven optima before they count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Final

from pebblesim.dags.optimum import RULES, optimum
from pebblesim.dags.orders import Task
from pebblesim.dags.own import OWN, OwnBound
from pebblesim.dags.samples import small_graphs
from pebblesim.errors import UnknownName, UsageError
from pebblesim.graphs.cdag import Cdag

MOST_STEPS: Final = 14
"""Vertices to compute in the largest graph that a bound on a problem is tried on."""


def bound(
    function: Callable[..., Any] | None = None, *, problem: str | None = None, rules: tuple[str, ...] = RULES[:2]
) -> Any:
    """Register a lower bound of your own; it is compared with proven optima of small graphs at once.

    As a decorator, `@bound` for any DAG, of a function of a `Cdag` and M, or `@bound(problem="matmul")`, of a function
    of the problem's sizes and M by name. What passes for any DAG counts in `pebble` and `optimum`; one for a problem,
    if it is claimed with recomputation, in `bounds`. Both say that it is a user's own.

    Args:
        function: gives a whole number of words.
        problem: a problem's name.
        rules: where it is claimed to hold; with and without recomputation by default.

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
    own = OwnBound(function, getattr(function, "__name__", "bound"), problem, tuple(rules))
    optima = tight = 0
    for where, graph, M, words in _trials(own):
        for rule in rules:
            found = optimum(graph, M=M, rules=rule, states=200_000)
            if not found.proven:
                continue
            value = words()
            if value > found.io:
                raise UsageError(
                    f"{own.name} gives {value:,} words for {where} at M = {M}, where under {rule!r} a game of "
                    f"{found.io:,} words exists; it is no lower bound."
                )
            optima, tight = optima + 1, tight + (value == found.io)
    OWN[own.name] = own = replace(own, optima=optima, tight=tight)
    return own


def _trials(own: OwnBound) -> Iterator[tuple[str, Cdag, int, Callable[[], int]]]:
    """(what it is tried on, the graph, M, the call)."""
    if own.problem is None:
        for name, graph, M in small_graphs():
            yield name, graph, M, partial(own.words, f"{name} at M = {M}", graph, M)
        return
    from pebblesim import graphs
    from pebblesim.language.problems import problem as find

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
