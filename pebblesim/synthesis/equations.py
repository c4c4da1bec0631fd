"""A problem as equations between tensors, derived from the declaration of its graph.

Each axis of each tensor belongs to a class. Two axes are in the same class if an equation uses one index for both. In
O = softmax(Q Kᵀ) V there are four classes: the queries, the keys, the columns of Q and the columns of V. They stay
four even if some of their sizes are equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from pebblesim.api.graph import graph
from pebblesim.game.numbering import Family
from pebblesim.language.problems import Problem
from pebblesim.language.registry import of_problem

PRIMES = (2, 3, 5, 7, 11, 13)
"""Sizes of a small graph, from which the equations are read; different dimensions have different sizes."""

OPERATIONS = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "div": "{} / {}",
    "max": "maximum({}, {})",
    "exp": "exp({})",
    "log": "log({})",
    "relu": "relu({})",
    "step": "step({})",
    "sigmoid": "sigmoid({})",
}
"""How elementwise operations are written in the language of schedules."""

Axes = tuple[int, ...]
Axis = tuple[str, int]


class Operand(NamedTuple):
    """A tensor in an equation, transposed or not."""

    name: str
    transposed: bool


@dataclass(frozen=True)
class Equation:
    """An equation: one tensor, computed from others.

    Attributes:
        name: the tensor.
        op: "matmul", "rowsum", or an elementwise operation.
        operands: for a product, the left and the right operand.
        contracted: the axis that is summed over; None for elementwise operations.
    """

    name: str
    op: str
    operands: tuple[Operand, ...]
    contracted: int | None

    @cached_property
    def uses(self) -> tuple[str, ...]:
        """The names of the operands, without repetitions."""
        return tuple(dict.fromkeys(operand.name for operand in self.operands))

    @property
    def elementwise(self) -> bool:
        """Whether each element of the result needs only one element of each operand."""
        return self.contracted is None


@dataclass(frozen=True)
class System:
    """The equations of one way of computing a problem, in an order in which they can be computed.

    Attributes:
        problem: the problem.
        options: options of the graph; they determine the way of computing.
        equations: the equations, by the tensor that each defines.
        inputs: the inputs that are used, including kept ones, in the problem's order.
        axes: for each tensor, the classes of its axes.
        dims: for each class, its dimension.
        outputs: the problem's outputs.
        storable: tensors that a schedule may keep in memory. If the only use of a tensor is an elementwise operation
            without another matrix, or a row sum, the result is stored instead of the tensor. Vectors are not
            storable either, nor tensors that can be computed elementwise from a stored one.
        pairs: the classes of queries and of keys; None if there are no pairs of them.
        masked: whether passes leave out tiles without an allowed pair.
    """

    problem: Problem
    options: Mapping[str, Any]
    equations: Mapping[str, Equation]
    inputs: tuple[str, ...]
    axes: Mapping[str, Axes]
    dims: tuple[str, ...]
    outputs: tuple[str, ...]
    storable: frozenset[str]
    pairs: tuple[int, int] | None = None
    masked: bool = False

    def free(self, name: str) -> str:
        """Return this name, or a similar one if a dimension or tensor has this name already."""
        while name in self.dims or name in self.axes:
            name += "_"
        return name

    def operands(self, names: Iterable[str]) -> set[str]:
        """Return the operands of these equations."""
        return {one for name in names for one in self.equations[name].uses}

    @property
    def machine(self) -> str:
        """The name of the parameter for the machine in a schedule."""
        return "m" if self.free("m") == "m" else self.free("machine")


def systems(problem: Problem, kept: Collection[str] | None = None, masked: bool = False) -> list[System]:
    """Return the ways to compute a problem that passes can express: those of its schedules, and else the default one.

    Ways with sums over blocks, or with a running maximum, are excluded, as are those that need other inputs from the
    forward pass than `kept`; by default they may need any.

    Raises:
        UsageError: the problem has no graph.
    """
    declared = [
        dict(schedule.graph)
        for schedule in of_problem(problem.name, problem.dims)
        if not {*schedule.graph.values()} & {*schedule.blocks}
    ]
    distinct: dict[tuple[Equation, ...], System] = {}
    for options in declared or [{}]:
        if (made := system(problem, options)) is not None:
            distinct.setdefault(tuple(made.equations.values()), made)
    allowed = {*problem.inputs, *(problem.kept if kept is None else kept)}
    return [replace(each, masked=masked) for each in distinct.values() if allowed.issuperset(each.inputs)]


def system(problem: Problem, options: Mapping[str, Any]) -> System | None:
    """Return the equations for these graph options; None if a tensor is not a plain product, row sum or elementwise."""
    sizes = dict(zip(problem.dims, PRIMES, strict=False))
    families = _families(problem, sizes, options)
    made = [family for family in families if family.op != "input"]
    if not all(_plain(family) for family in made):
        return None
    classes = _classes(families)
    number = {root: place for place, root in enumerate(dict.fromkeys(classes.values()))}
    axes = {
        family.name: tuple(number[classes[family.name, place]] for place in range(len(family.shape)))
        for family in families
    }
    equations = {}
    for family in made:
        operands = tuple(_operand(text) for text in family.operands)
        name, transposed = operands[0]
        contracted = None if family.op in OPERATIONS else axes[name][0 if transposed else 1]
        equations[family.name] = Equation(family.name, family.op, operands, contracted)
    outputs = tuple(problem.outputs)
    needed = _needed(equations, outputs)
    equations = {name: each for name, each in equations.items() if name in needed}
    return System(
        problem,
        options,
        equations,
        tuple(name for name in (*problem.inputs, *problem.kept) if name in needed and name not in equations),
        axes,
        _dims(problem, families, axes, {size: dim for dim, size in sizes.items()}),
        outputs,
        frozenset(_storable(equations, axes, outputs)),
        _pairs(problem, axes),
    )


def _pairs(problem: Problem, axes: Mapping[str, Axes]) -> tuple[int, int] | None:
    """Return the classes of queries and of keys, if each of them is one class."""
    queries, keys = ({axes[name][0] for name in names if name in axes} for names in (problem.queries, problem.keys))
    return (queries.pop(), keys.pop()) if len(queries) == len(keys) == 1 and queries != keys else None


def _families(problem: Problem, sizes: Mapping[str, int], options: Mapping[str, Any]) -> tuple[Family, ...]:
    arguments: dict[str, Any] = {**sizes, **options}
    return graph(problem.name, **arguments).families


def _operand(text: str) -> Operand:
    return Operand(text.removesuffix(".T"), text.endswith(".T"))


def _plain(family: Family) -> bool:
    """Whether a tensor is plain: no sum in blocks, no sum that starts from a value or constant, no running value."""
    in_pieces = family.blocks > 1 or family.start or family.onto or family.running
    return not in_pieces and family.op in ("matmul", "rowsum", *OPERATIONS)


def _classes(families: Iterable[Family]) -> dict[Axis, Axis]:
    """Map each axis of each tensor to the representative of its class."""
    above: dict[Axis, Axis] = {}

    def root(axis: Axis) -> Axis:
        while above[axis] != axis:
            axis = above[axis]
        return axis

    for family in families:
        mine = [(family.name, place) for place in range(len(family.shape))]
        above |= {axis: axis for axis in mine}
        others = []
        for name, transposed in map(_operand, family.operands):
            axes = [axis for axis in ((name, 0), (name, 1)) if axis in above]
            others.append(axes[::-1] if transposed else axes)
        if family.op == "matmul":
            (row, left), (right, column) = others
            same = [(row, mine[0]), (column, mine[1]), (left, right)]
        else:
            same = [pair for axes in others for pair in zip(axes, mine, strict=False)]
        for one, other in same:
            above[root(other)] = root(one)
    return {axis: root(axis) for axis in above}


def _dims(
    problem: Problem, families: Iterable[Family], axes: Mapping[str, Axes], by_size: Mapping[int, str]
) -> tuple[str, ...]:
    """Return the dimension of each class: from the shape of an input, or, if no input has this axis, from its size."""
    declared = {**problem.inputs, **problem.kept}
    dims: dict[int, str] = {}
    for family in families:
        for place, axis in enumerate(axes[family.name]):
            dims.setdefault(
                axis, declared[family.name][place] if family.name in declared else by_size[family.shape[place]]
            )
    return tuple(dims[axis] for axis in sorted(dims))


def _storable(equations: Mapping[str, Equation], axes: Mapping[str, Axes], outputs: Iterable[str]) -> set[str]:
    storable = {name for name in equations if name in outputs or not _passing(name, equations.values(), axes)}
    at_hand = set(storable)
    for name, each in equations.items():
        matrices = {one for one in each.uses if len(axes[one]) == 2}
        if each.elementwise and len(matrices) < 2 and matrices <= at_hand and name not in outputs:
            at_hand.add(name)
            storable.discard(name)
    return storable


def _passing(name: str, equations: Iterable[Equation], axes: Mapping[str, Axes]) -> bool:
    users = [equation for equation in equations if name in equation.uses]
    if len(users) != 1:
        return False
    (user,) = users
    others = [one for one in user.uses if one != name]
    return user.op == "rowsum" or (user.elementwise and all(len(axes[one]) < len(axes[name]) for one in others))


def _needed(equations: Mapping[str, Equation], outputs: Iterable[str]) -> set[str]:
    needed, waiting = set(), list(outputs)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += equations[name].uses if name in equations else ()
    return needed
