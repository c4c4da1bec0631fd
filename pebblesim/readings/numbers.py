"""`numbers`: run a program on real arrays, tile by tile, in a memory and a cache of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim import program as ir
from pebblesim.errors import UsageError

Array = NDArray[Any]

_OPERATIONS: dict[str, Callable[..., Array]] = {
    "exp": np.exp,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "log": np.log,
    "max": np.maximum,
    "relu": lambda x: np.maximum(x, 0),
    "step": lambda x: np.where(x > 0, 1.0, 0.0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
_REDUCTIONS: dict[str, Callable[..., Array]] = {"rowsum": np.sum, "rowmax": np.max}


def numbers(program: ir.Program, sizes: ir.Sizes, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Run a program.

    Args:
        program: a traced schedule.
        sizes: the value of each dimension and block, by name.
        inputs: one array for each input, of the shape that the sizes give it.

    Returns:
        The outputs, by name, in the inputs' common type.

    Raises:
        UsageError: an input is missing or has another shape.
    """
    memory = {}
    for name, tensor in program.tensors.items():
        shape = tuple(sizes[dim] for dim in tensor.shape)
        if name not in program.inputs:
            memory[name] = np.full(shape, np.nan, np.result_type(*inputs.values()))
        elif name not in inputs or inputs[name].shape != shape:
            given = inputs[name].shape if name in inputs else "nothing"
            raise UsageError(f"{program.name} needs input {name} of shape {shape}, and got {given}.")
        else:
            memory[name] = inputs[name]
    run = _Run(sizes, memory)
    for phase in program.phases:
        run.body(phase.body)
    return {name: memory[name] for name in program.outputs}


class _Run:
    def __init__(self, sizes: ir.Sizes, memory: dict[str, Array]) -> None:
        self.sizes, self.memory = sizes, memory
        self.cache: dict[ir.Tile, Array] = {}
        self.bounds: dict[ir.Range, tuple[int, int]] = {}

    def _bounds(self, rng: ir.Range) -> tuple[int, int]:
        return (0, self.sizes[rng.name]) if rng.parent is None else self.bounds[rng]

    def _part(self, ranges: ir.Ranges) -> tuple[slice, ...]:
        return tuple(slice(*self._bounds(rng)) for rng in ranges)

    def _full(self, tile: ir.Tile, value: float) -> Array:
        lengths = [stop - start for start, stop in map(self._bounds, tile.ranges)]
        return np.full(lengths, value, np.result_type(*self.memory.values()))

    def _operand(self, ref: ir.Ref) -> Array:
        """The part of a resident tile that a reference names, as a view."""
        starts = [self._bounds(rng)[0] for rng in ref.tile.ranges]
        part = tuple(slice(p.start - s, p.stop - s) for p, s in zip(self._part(ref.ranges), starts, strict=True))
        view = self.cache[ref.tile][part]
        return view.T if ref.transposed else view

    def _value(self, expr: ir.Expr) -> Array:
        match expr:
            case ir.Ref():
                return self._operand(expr)
            case ir.MatMul(left=left, right=right):
                return np.asarray(self._operand(left) @ self._operand(right))
            case ir.RowReduction(op=op, operand=operand):
                return np.asarray(_REDUCTIONS[op](self._value(operand), axis=1))
            case ir.Elementwise(op=op, operands=operands, shape=shape):
                values = [self._value(operand) for operand in operands]
                vectors_as_columns = [v[:, None] if v.ndim < len(shape) else v for v in values]
                return _OPERATIONS[op](*vectors_as_columns)

    def body(self, body: list[ir.Node]) -> None:
        for node in body:
            match node:
                case ir.Loop(range=rng, body=inner):
                    assert rng.parent is not None
                    start, stop = self._bounds(rng.parent)
                    block = ir.length(rng.block, self.sizes)
                    for first in range(start, stop, block):
                        self.bounds[rng] = (first, min(first + block, stop))
                        self.body(inner)
                case ir.Read(tile=tile, tensor=tensor):
                    self.cache[tile] = self.memory[tensor.name][self._part(tile.ranges)].copy()
                case ir.Write(tile=tile, tensor=tensor):
                    self.memory[tensor.name][self._part(tile.ranges)] = self.cache[tile]
                case ir.Init(tensor=tensor, ranges=ranges, value=value):
                    self.memory[tensor.name][self._part(ranges)] = value
                case ir.Zeros(tile=tile):
                    self.cache[tile] = self._full(tile, 0)
                case ir.Constant(tile=tile, value=value):
                    self.cache[tile] = self._full(tile, value)
                case ir.Move(tile=tile, source=source):
                    self.cache[tile] = self.cache.pop(source)
                case ir.Delete(tile=tile):
                    del self.cache[tile]
                case ir.Compute(target=target, expr=expr, mode=mode):
                    if mode == "new":
                        self.cache[target.tile] = self._value(expr)
                    elif mode == "assign":
                        self._operand(target)[...] = self._value(expr)
                    else:
                        self._operand(target)[...] += self._value(expr)
