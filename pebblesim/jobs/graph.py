"""Graphs of problems, and the least I/O of a small one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pebblesim.errors import UsageError
from pebblesim.jobs.arguments import AnyMask, problem_dims
from pebblesim.language import masks
from pebblesim.language.problems import problem

if TYPE_CHECKING:
    from pebblesim.game.exhaustive import Optimum
    from pebblesim.game.referee import Graph
    from pebblesim.graphs.cdag import Cdag


def graph(problem_name: str, *, summation: str = "chain", mask: AnyMask | None = None, **options: Any) -> Cdag:
    """The computational DAG of a problem.

    Args:
        problem_name: a problem, such as "backward" or "matmul".
        summation: "chain", "balanced" or "blocked:b".
        mask: as for `count`; a graph under a mask has chains only.
        options: the dimensions, and what the graph's builder takes besides (see `pebblesim.graphs`).
    """
    from pebblesim import graphs

    solves = problem(problem_name)
    given = {name: options.pop(name) for name in {*solves.dims, "n", "d"} & set(options)}
    dims, seen = problem_dims(solves, given), masks.of(mask)
    allowed = None if seen is None else seen.allowed(dims["n"])
    return graphs.build(solves.name, summation=summation, mask=allowed, **dims, **options)


def optimum(
    of: str | Graph,
    *,
    M: int,
    rules: str = "hong-kung",
    states: int | None = None,
    **options: Any,
) -> Optimum:
    """The least I/O of any game on a small graph, found by exhaustive search.

    Args:
        of: a problem, or a graph such as `Cdag.from_edges(...)`.
        M: red pebbles.
        rules: "hong-kung", where a vertex may be computed again, or "no-recompute".
        states: most states to keep, some 60 bytes each; 4 million by default.
        options: of a problem, its dimensions and what else `graph` takes.

    >>> optimum("matmul", m=2, k=1, n=2, M=4).io
    8

    Raises:
        Infeasible: M is too small for any game.
        UsageError: the graph has more than 64 vertices, or the states did not suffice.
    """
    from pebblesim.game import exhaustive

    if not isinstance(of, str) and options:
        raise UsageError(f"a graph takes no options; got {', '.join(options)}.")
    cdag = graph(of, **options) if isinstance(of, str) else of
    return exhaustive.optimum(cdag, M, rules, exhaustive.STATES if states is None else states)
