"""`rounding`: bounds on the float32 error of a program's outputs, entry by entry.

The program is run in float64. Each value has a bound on the error that float32 can have at this point (running error
analysis; Higham, Accuracy and Stability of Numerical Algorithms, section 3.3), for sums in any order. An operation adds
half a unit in the last place, exp and log two units, as CUDA states for its library. Squares of the unit roundoff are
ignored next to the unit roundoff itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.language import program as ir
from pebblesim.language.loops import EveryTile, walk

Array = NDArray[Any]

UNIT = 2.0**-24
"""Unit roundoff of float32: half a unit in the last place."""

LIBRARY = 4 * UNIT
"""Error of exp and log: two units in the last place."""

VALUE, BASE, MASS, ADDS = range(4)
"""Layers of an array: its value; a bound on its error, without the additions of a sum in progress; the sum of the
magnitudes of its terms; and the number of additions."""


def rounding(
    program: ir.Program, sizes: ir.Sizes, inputs: Mapping[str, Array], workers: int = 1
) -> dict[str, tuple[Array, Array]]:
    """Return (value, bound on the float32 error) of each output, for inputs that are rounded to float32 themselves.

    Args:
        program, sizes, inputs: as for `numbers`.
        workers: the largest number of parts in which a sum may be computed.
    """
    run = _BoundedRun(program, sizes, inputs, workers)
    for phase in program.phases:
        run.body(phase.body)
    return {name: (run.memory[name][VALUE], run.error(run.memory[name])) for name in program.outputs}


class _BoundedRun(EveryTile):
    def __init__(self, program: ir.Program, sizes: ir.Sizes, inputs: Mapping[str, Array], workers: int) -> None:
        super().__init__(sizes)
        self.workers = workers
        self.cache: dict[ir.Tile, Array] = {}
        self.memory = {name: np.full((4, *tensor.sides(sizes)), np.nan) for name, tensor in program.tensors.items()}
        for name in program.inputs:
            self.memory[name][:] = _exact(inputs[name], UNIT * np.abs(inputs[name]))

    def error(self, x: Array) -> Array:
        """Return the bound for additions in any order, where a sum may be computed in one part for each worker."""
        return x[BASE] + np.where(x[ADDS] > 0, (x[ADDS] + self.workers) * UNIT * x[MASS], 0)

    def _part(self, ranges: ir.Ranges) -> tuple[slice, ...]:
        return (slice(None), *self.part(ranges))

    def _view(self, ref: ir.Ref) -> Array:
        return self.cache[ref.tile][(slice(None), *self.within(ref))]

    def _operand(self, ref: ir.Ref) -> tuple[Array, Array]:
        view = self._view(ref)
        value, error = view[VALUE], self.error(view)
        return (value.T, error.T) if ref.transposed else (value, error)

    def _elementwise(self, expr: ir.Expr, dimensions: int) -> tuple[Array, Array]:
        if isinstance(expr, ir.Ref):
            value, error = self._operand(expr)
            return (value[:, None], error[:, None]) if value.ndim < dimensions else (value, error)
        assert isinstance(expr, ir.Elementwise)
        return _operation(expr.op, *(self._elementwise(operand, dimensions) for operand in expr.operands))

    def _value(self, expr: ir.Expr) -> Array:
        """Return the value of an expression, with its error bound."""
        if isinstance(expr, ir.MatMul):
            (a, da), (b, db) = self._operand(expr.left), self._operand(expr.right)
            big_a, big_b = np.abs(a) + da, np.abs(b) + db
            mass, adds = big_a @ big_b, float(a.shape[1])  # a rounding for each product, and each addition but one
            return np.stack([a @ b, np.abs(a) @ db + da @ big_b, mass, np.full(mass.shape, adds)])
        if isinstance(expr, ir.RowReduction):
            x, dx = self._elementwise(expr.operand, 2)
            if expr.op == "rowmax":
                return _exact(x.max(axis=1), dx.max(axis=1))
            mass = (np.abs(x) + dx).sum(axis=1)
            return np.stack([x.sum(axis=1), dx.sum(axis=1), mass, np.full(mass.shape, float(x.shape[1]))])
        return _exact(*self._elementwise(expr, len(expr.shape)))

    def body(self, body: list[ir.Node]) -> None:
        for node, _ in walk(body, self):
            match node:
                case ir.Read(tile=tile, tensor=tensor):
                    self.cache[tile] = self.memory[tensor.name][(slice(None), *self.place(node))].copy()
                case ir.Write(tile=tile, tensor=tensor):
                    self.memory[tensor.name][(slice(None), *self.place(node))] = self.cache[tile]
                case ir.Init(tensor=tensor, ranges=ranges, value=value):
                    part = self.memory[tensor.name][self._part(ranges)]
                    part[:] = _exact(np.full(part.shape[1:], value), np.zeros(part.shape[1:]))
                case ir.Zeros(tile=tile) | ir.Constant(tile=tile):
                    shape = [b - a for a, b in map(self.bounds, tile.ranges)]
                    value = node.value if isinstance(node, ir.Constant) else 0.0
                    self.cache[tile] = _exact(np.full(shape, value), np.zeros(shape))
                case ir.Move(tile=tile, source=source):
                    self.cache[tile] = self.cache.pop(source)
                case ir.Delete(tile=tile):
                    del self.cache[tile]
                case ir.Compute(target=target, expr=expr, mode="new"):
                    self.cache[target.tile] = self._value(expr)
                case ir.Compute(target=target, expr=expr, mode="assign"):
                    self._view(target)[...] = self._value(expr)
                case ir.Compute(target=target, expr=expr):
                    term, onto = self._value(expr), self._view(target)
                    onto += term
                    onto[ADDS] += 1


def _exact(value: Array, error: Array) -> Array:
    """A value that is not a sum in progress."""
    finite = np.isfinite(value)  # minus infinity, where a maximum starts, is exact
    return np.stack([value, np.where(finite, error, 0), np.where(finite, np.abs(value), 0), np.zeros(np.shape(value))])


def _operation(op: str, *operands: tuple[Array, Array]) -> tuple[Array, Array]:
    """(value, error) of an operation on operands with errors."""
    (a, da), (b, db) = operands[0], operands[-1]
    match op:
        case "add":
            value, error = a + b, da + db
        case "sub":
            value, error = a - b, da + db
        case "mul":
            value, error = a * b, da * np.abs(b) + db * np.abs(a) + da * db
        case "div":
            value = a / b
            error = (da + np.abs(value) * db) / np.maximum(np.abs(b) - db, np.finfo(float).tiny)
        case "max":
            return np.maximum(a, b), np.maximum(da, db)
        case "relu":
            return np.maximum(a, 0), da
        case "step":
            return np.where(a > 0, 1.0, 0.0), np.where(np.abs(a) <= da, 1.0, 0.0)
        case "exp":
            value = np.exp(a)
            return value, value * np.expm1(np.where(value > 0, da, 0)) + LIBRARY * value
        case "log":
            value = np.log(a)
            return value, da / (a - da) + LIBRARY * np.abs(value)
        case _:
            assert op == "sigmoid"
            value = 1 / (1 + np.exp(-a))
            return value, da / 4 + (LIBRARY + 2 * UNIT) * value
    return value, error + UNIT * (np.abs(value) + error)
