"""Computational graphs of the problems: `build` them, or `plan` to learn their sizes without building."""

if __name__ != "pebblesim.graphs":
    raise ImportError(f"import this package as 'pebblesim.graphs', not {__name__!r}")

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from pebblesim.errors import UsageError
from pebblesim.language.problems import problem as find

if TYPE_CHECKING:
    from pebblesim.graphs.builder import Builder
    from pebblesim.graphs.cdag import Cdag


class Plan(NamedTuple):
    """Sizes of a graph that need not exist: numbers of vertices and edges, and bytes of memory for its arrays."""

    vertices: int
    edges: int
    bytes: int


def build(problem: str, summation: str = "chain", mask: Any = None, **options: Any) -> "Cdag":
    """The graph of a problem; sizes and options by name, as `declare` in the problem's own module takes them.

    Args:
        problem: its name.
        summation: the tree of every sum, "chain", "balanced" or "blocked:B".
        mask: booleans of shape (n_q, n_k), the pairs that may meet; None for all.
        options: sizes, of which n and d stand for all that are not given, and options.

    Raises:
        UnknownName: there is no graph for that problem.
        UsageError: a size or option is missing, unknown or not allowed, the mask does not fit the problem, or the graph
            does not fit into memory.
    """
    return _declared(problem, summation, mask, options).finish()


def plan(problem: str, summation: str = "chain", mask: Any = None, **options: Any) -> Plan:
    """The sizes of the graph that `build` would build, at once for sizes of any magnitude; errors as there.

    With a mask it takes the time and memory of a few arrays of its size.
    """
    builder = _declared(problem, summation, mask, options)
    return Plan(builder.vertices, builder.edges, builder.bytes_needed)


def _declared(problem: str, summation: str, mask: Any, options: dict[str, Any]) -> "Builder":
    solves = find(problem)
    declare: Any = solves.graph
    if declare is None:
        raise UsageError(f"problem {problem!r} has no graph; declare one with it, see docs/extending.md.")
    if isinstance(declare, str):  # one of ours: importing all of them would cost too much
        module, _, function = declare.partition(":")
        declare = getattr(import_module(module), function)
    signature = inspect.signature(declare)
    if solves.rectangle:
        options = _spelled_out(solves.rectangle.from_nd, options)
    try:
        bound = signature.bind(summation=summation, **options)
    except TypeError as error:
        takes = ", ".join(name for name in signature.parameters if name not in ("summation", "mask"))
        raise UsageError(f"graph {problem!r}: {error}; it takes {takes}.") from None
    if mask is not None:
        from pebblesim.graphs.builder import whole
        from pebblesim.graphs.masked import checked

        if "mask" not in signature.parameters:
            raise UsageError(f"graph {problem!r} has no pairs that a mask could forbid; leave the mask out.")
        if summation != "chain":
            raise UsageError(f"a graph under a mask has chains only; take summation 'chain' instead of {summation!r}.")
        queries, keys = (whole(name, bound.arguments[name]) for name in (solves.rectangle or solves).pairs or ())
        options = options | {"mask": checked(mask, (queries, keys))}
    builder: Builder = declare(summation=summation, **options)
    return builder


def _spelled_out(from_nd: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes by the names of a problem's own dimensions, where n and d stand for all that are not given."""
    found = {dim: options[short] for dim, short in from_nd.items() if dim not in options and short in options}
    short = {"n", "d"} - set(from_nd)
    return {name: value for name, value in options.items() if name not in short} | found
