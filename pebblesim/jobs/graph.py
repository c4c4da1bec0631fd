"""Graphs of problems, and the least I/O of a small one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pebblesim.errors import UsageError
from pebblesim.jobs.arguments import AnyMask, problem_dims
from pebblesim.language import masks
from pebblesim.language.problems import problem

if TYPE_CHECKING:
    from pebblesim.dags.optimum import Optimum, Progress
    from pebblesim.graphs.cdag import Cdag


def graph(problem_name: str, *, summation: str = "chain", mask: AnyMask | None = None, **options: Any) -> Cdag:
    """The computational DAG of a problem.

    Args:
        problem_name: a problem, such as "backward" or "matmul".
        summation: "chain", "balanced" or "blocked:b".
        mask: as for `count`; a graph under a mask has chains only.
        options: the dimensions, and what the graph's builder takes besides (see `pebblesim.graphs`).

    Returns:
        The graph, one vertex for each input, product, partial sum and other value.

    >>> graph("matmul", m=2, k=2, n=2)
    Cdag(20 vertices, 24 edges, tensors A B C)

    Raises:
        UsageError: a name or size that is not allowed, or the graph does not fit into this machine's memory.
    """
    from pebblesim import graphs

    solves = problem(problem_name)
    known = {*solves.dims, *(solves.rectangle.dims if solves.rectangle else ()), "n", "d"}
    given = {name: options.pop(name) for name in known & set(options)}
    dims, seen = problem_dims(solves, given), masks.of(mask)
    solves = solves.in_dims(dims)
    allowed = None if seen is None else seen.allowed(*solves.grid(dims))
    return graphs.build(solves.name, summation=summation, mask=allowed, **dims, **options)


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
    """The least I/O of any game on a graph, or an interval that holds it.

    Args:
        of: a problem, a graph such as `Cdag.from_edges(...)`, or a networkx DiGraph.
        M: red pebbles.
        rules: "hong-kung", where a vertex may be computed again, "no-recompute" or "partial".
        seconds: stop by then; without it, when it is proven or the memory is full.
        memory: bytes for states; 4 GiB by default.
        states: most states to keep, instead of `memory`.
        progress: called now and then with the part of the time that is over, the bound, the I/O and the states.
        options: of a problem, its dimensions and what else `graph` takes.

    Ctrl-C ends the search, not the call: the interval so far is returned.

    Returns:
        The least I/O, or an interval: `io` of the best game found, and `bound`, which none goes below.

    >>> optimum("matmul", m=2, k=1, n=2, M=4).io
    8

    Raises:
        Infeasible: M is too small for any game.
        UsageError: a graph was given with options, or its values have several words.
    """
    from pebblesim.dags import optimum as search

    if not isinstance(of, str) and options:
        raise UsageError(f"a graph takes no options; got {', '.join(options)}.")
    cdag = graph(of, **options) if isinstance(of, str) else of
    limit = search.MEMORY if memory is None else memory
    return search.optimum(cdag, M, rules, seconds=seconds, memory=limit, states=states, progress=progress)
