"""Computational graphs of the problems: `build` makes a graph, `size` gives its size without building it."""

if __name__ != "pebblesim.graphs":
    raise ImportError(f"import this package as 'pebblesim.graphs', not {__name__!r}")

import inspect
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from pebblesim.core.errors import UsageError, as_given
from pebblesim.core.kinds import check_kind
from pebblesim.language.problems import problem as find

if TYPE_CHECKING:
    from pebblesim.graphs.builder import Builder
    from pebblesim.graphs.cdag import Cdag


class GraphSize(NamedTuple):
    """Size of a graph that is not built yet: numbers of vertices and edges, and bytes of memory for its arrays."""

    vertices: int
    edges: int
    bytes: int


def build(problem: str, summation: str = "chain", mask: Any = None, **options: Any) -> "Cdag":
    """Build the graph of a problem. Sizes and options are those of `declare` in the module of the problem's graph.

    Args:
        problem: its name.
        summation: the tree of every sum, "chain", "balanced" or "blocked:B".
        mask: booleans of shape (n_q, n_k), the allowed pairs; None if all pairs are allowed.
        options: sizes and options; n and d stand for all sizes that are not given.

    Raises:
        UnknownName: the problem has no graph.
        UsageError: a size or option is missing, unknown or not allowed, the mask does not fit the problem, or the graph
            does not fit into memory.
    """
    return _declared(problem, summation, mask, options).finish()


def size(problem: str, summation: str = "chain", mask: Any = None, **options: Any) -> GraphSize:
    """Return the size of the graph that `build` would build, in constant time; errors as for `build`.

    With a mask it needs the time and memory of a few arrays of the mask's size.
    """
    builder = _declared(problem, summation, mask, options)
    return GraphSize(builder.vertices, builder.edges, builder.bytes_needed)


def _declared(problem: str, summation: str, mask: Any, options: dict[str, Any]) -> "Builder":
    solves = find(problem)
    declare: Any = solves.graph
    if declare is None:
        raise UsageError(f"problem {problem!r} has no graph; declare one with the problem, see docs/extending.md.")
    if isinstance(declare, str):  # a built-in graph: importing all of them would be slow
        module, _, function = declare.partition(":")
        declare = getattr(import_module(module), function)
    signature = _signature(declare)
    if solves.rectangle:
        options = _spelled_out(solves.rectangle.from_nd, options)
    try:
        bound = signature.bind(summation=summation, **options)
    except TypeError as error:
        takes = ", ".join(name for name in signature.parameters if name not in ("summation", "mask"))
        raise UsageError(f"graph {problem!r}: {error}; it takes {takes}.") from None
    for name, value in options.items():
        _check_option(name, value, str(signature.parameters[name].annotation))
    if mask is not None:
        from pebblesim.graphs.builder import whole
        from pebblesim.graphs.masked import checked

        if "mask" not in signature.parameters:
            raise UsageError(f"graph {problem!r} has no pairs of queries and keys; leave the mask out.")
        if summation != "chain":
            raise UsageError(
                f"a graph under a mask supports only chains; use summation 'chain' instead of {summation!r}."
            )
        queries, keys = (whole(name, bound.arguments[name]) for name in (solves.rectangle or solves).pairs or ())
        options = options | {"mask": checked(mask, (queries, keys))}
    builder: Builder = declare(summation=summation, **options)
    return builder


def _signature(declare: Any) -> inspect.Signature:
    """Return the arguments that a graph takes, without those that its problem settles, such as the activation."""
    signature = inspect.signature(declare)
    settled = getattr(declare, "keywords", {})
    return signature.replace(parameters=[each for name, each in signature.parameters.items() if name not in settled])


def _check_option(name: str, value: Any, annotation: str) -> None:
    """Check an option that is a flag, a word, or several words; sizes are checked where they are used.

    Raises:
        UsageError: it is of another kind.
    """
    if annotation in ("str | Iterable[str]", "tuple[str, ...]"):
        if not isinstance(value, Iterable) or not all(isinstance(each, str) for each in value):
            raise UsageError(f"{name} = {as_given(value)} was given; {name} must be names.")
    elif not annotation.startswith("int"):
        check_kind(name, value, annotation)


def _spelled_out(from_nd: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return sizes by the names of the problem's own dimensions; n and d stand for all sizes that are not given."""
    spelled = {dim: options[short] for dim, short in from_nd.items() if dim not in options and short in options}
    short = {"n", "d"} - set(from_nd)
    return {name: value for name, value in options.items() if name not in short} | spelled
