"""Computational graphs of the problems: `build` them, or `plan` to learn their sizes without building."""

if __name__ != "pebblesim.graphs":
    raise ImportError(f"import this package as 'pebblesim.graphs', not {__name__!r}")

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pebblesim.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from pebblesim.graphs.builder import Builder
    from pebblesim.graphs.cdag import Cdag

DECLARATIONS: Final = {  # of each problem, the module and its function that declares the graph
    "backward": ("backward", "declare"),
    "forward": ("forward", "declare"),
    "backward-qkv": ("backward_qkv", "declare"),
    "forward-relu": ("activation", "forward_relu"),
    "forward-sigmoid": ("activation", "forward_sigmoid"),
    "backward-relu": ("activation", "backward_relu"),
    "backward-sigmoid": ("activation", "backward_sigmoid"),
    "projected-forward": ("forward", "projected"),
    "projected-backward-qkv": ("backward_qkv", "projected"),
    "linear": ("linear", "declare"),
    "matmul": ("matmul", "declare"),
}


class Plan(NamedTuple):
    """Sizes of a graph that need not exist: numbers of vertices and edges, and bytes of memory for its arrays."""

    vertices: int
    edges: int
    bytes: int


def build(problem: str, summation: str = "chain", **options: Any) -> "Cdag":
    """The graph of a problem; sizes and options by name, as `declare` in the problem's own module takes them.

    Raises:
        UnknownName: there is no graph for that problem.
        UsageError: a size or option is missing, unknown or not allowed, or the graph does not fit into memory.
    """
    return _declared(problem, summation, options).finish()


def plan(problem: str, summation: str = "chain", **options: Any) -> Plan:
    """The sizes of the graph that `build` would build, at once for sizes of any magnitude; errors as there."""
    builder = _declared(problem, summation, options)
    return Plan(builder.vertices, builder.edges, builder.bytes_needed)


def _declared(problem: str, summation: str, options: dict[str, Any]) -> "Builder":
    if problem not in DECLARATIONS:
        raise UnknownName("graph", problem, DECLARATIONS)
    module, function = DECLARATIONS[problem]
    declare = getattr(import_module(f"pebblesim.graphs.{module}"), function)
    signature = inspect.signature(declare)
    try:
        signature.bind(summation=summation, **options)
    except TypeError as error:
        takes = ", ".join(name for name in signature.parameters if name != "summation")
        raise UsageError(f"graph {problem!r}: {error}; it takes {takes}.") from None
    builder: Builder = declare(summation=summation, **options)
    return builder
