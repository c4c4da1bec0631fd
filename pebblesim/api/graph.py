"""Graphs of problems, and the least I/O of small graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pebblesim.analysis.peak import IN_PLACE
from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.core.kinds import checked_kinds
from pebblesim.counting.arguments import AnyMask, problem_dims
from pebblesim.counting.run import Run
from pebblesim.language import masks
from pebblesim.language.problems import problem

if TYPE_CHECKING:
    from pebblesim.dags.optimum import Optimum, Progress
    from pebblesim.graphs import GraphSize
    from pebblesim.graphs.cdag import Cdag


@checked_kinds()
def graph(problem_name: str, *, summation: str = "chain", mask: AnyMask | None = None, **options: Any) -> Cdag:
    """Build the computational DAG of a problem.

    Args:
        problem_name: a problem, such as "backward" or "matmul".
        summation: "chain", "balanced" or "blocked:b".
        mask: as for `count`; a graph under a mask supports only chains.
        options: the dimensions, and options of the graph's builder (see `pebblesim.graphs`).

    Returns:
        The graph, with one vertex for each input, product, partial sum and other value.

    >>> graph("matmul", m=2, k=2, n=2)
    Cdag(20 vertices, 24 edges, tensors A B C)

    Raises:
        UsageError: a name or size is not allowed, or the graph does not fit into memory.
    """
    from pebblesim import graphs

    name, settings = _settings(problem_name, summation, mask, options)
    return graphs.build(name, **settings)


def graph_size(
    problem_name: str, *, summation: str = "chain", mask: AnyMask | None = None, **options: Any
) -> GraphSize:
    """Return the size of `graph` of these arguments, without building it; arguments and errors as for `graph`.

    >>> graph_size("matmul", m=2, k=2, n=2).vertices
    20
    """
    from pebblesim import graphs

    name, settings = _settings(problem_name, summation, mask, options)
    return graphs.size(name, **settings)


def _settings(
    problem_name: str, summation: str, mask: AnyMask | None, options: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """(The problem's name, the arguments of its graph's builder with all sizes spelled out.)"""
    solves = problem(problem_name)
    known = {*solves.dims, *(solves.rectangle.dims if solves.rectangle else ()), "n", "d"}
    named = {name: options.pop(name) for name in known & set(options)}
    dims, pattern = problem_dims(solves, named), masks.of(mask)
    solves = solves.in_dims(dims)
    allowed = None if pattern is None else pattern.allowed(*solves.grid(dims))
    return solves.name, {"summation": summation, "mask": allowed, **dims, **options}


def graph_of(run: Run) -> Cdag:
    """Build the graph that a part of a run is played on.

    Raises:
        UsageError: the graph does not fit into memory.
    """
    from pebblesim import graphs
    from pebblesim.graphs.in_place import in_place

    built = graphs.build(run.schedule.problem.name, **_options(run))
    return in_place(built) if run.summation == IN_PLACE else built


def size_of_graph(run: Run) -> GraphSize:
    """Return the size of `graph_of(run)`, without building it."""
    from pebblesim import graphs

    return graphs.size(run.schedule.problem.name, **_options(run))


def _options(run: Run) -> dict[str, Any]:
    summation = "chain" if run.summation == IN_PLACE else run.summation
    options = run.schedule.graph_options(run.block_sizes)
    return {"summation": summation, "mask": run.allowed, **run.dims, **options}


@checked_kinds("memory", "states")
def optimum(
    of: Any,
    *,
    M: int,
    rules: str = "hong-kung",
    seconds: float | None = None,
    memory: int | None = None,
    states: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Optimum:
    """Find the least I/O of any game on a graph, or an interval that contains it.

    Args:
        of: a graph such as `Cdag.from_edges(...)`, a networkx DiGraph, a problem, or a generator.
        M: red pebbles.
        rules: "hong-kung" (with recomputation), "no-recompute" or "partial".
        seconds: time limit; without it the search ends when the optimum is proven or the memory is full.
        memory: memory limit for states, in bytes; 4 GiB by default.
        states: limit on the number of states, instead of `memory`.
        progress: called from time to time with the fraction of time used, the bound, the I/O and the number of states.
        options: for a problem, its dimensions and options, as for `graph`; for a generator, its parameters.

    Ctrl-C ends the search; the call returns the interval so far.

    Returns:
        The least I/O, or an interval: `io` is that of the best game found, `bound` is the lower bound.

    >>> optimum("matmul", m=2, k=1, n=2, M=4).io
    8

    Raises:
        Infeasible: M is too small for any game.
        UsageError: options were given with a graph, or its vertices have several words.
    """
    from pebblesim.dags import optimum as search

    if not isinstance(of, str) and options:
        raise UsageError(f"options are not allowed with a graph; got {', '.join(options)}.")
    cdag = _named(of, options) if isinstance(of, str) else of
    limit = search.MEMORY if memory is None else memory
    return search.optimum(cdag, M, rules, seconds=seconds, memory=limit, states=states, progress=progress)


def _named(name: str, options: Mapping[str, Any]) -> Cdag:
    """Build the graph of a generator or a problem.

    Raises:
        UnknownName: there is neither.
    """
    from pebblesim.dags.generators import GENERATORS, generate
    from pebblesim.language.problems import PROBLEMS

    if name in PROBLEMS:
        return graph(name, **options)
    if name in GENERATORS:
        return generate(name, **options)
    raise UnknownName("problem or generator", name, {*PROBLEMS, *GENERATORS})
