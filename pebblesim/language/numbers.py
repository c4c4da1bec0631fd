"""`numbers`: run a program on real arrays, tile by tile, with its own memory and cache.

Under a mask, the entries of a tile for pairs that are not allowed are 0, and a maximum or a sum excludes them. A row
without an allowed pair so far has maximum -inf and sum 0; there (-inf) - (-inf) and 0/0 are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import UsageError
from pebblesim.language import program as ir
from pebblesim.language.loops import EveryTile, walk
from pebblesim.language.masks import Mask

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
    "sigmoid": lambda x: np.where(x < 0, t := np.exp(-np.abs(x)), 1) / (1 + t),  # never overflows
}
_REDUCTIONS: dict[str, Callable[..., Array]] = {"rowsum": np.sum, "rowmax": np.max}


def numbers(
    program: ir.Program, sizes: ir.Sizes, inputs: Mapping[str, Array], mask: Mask | None = None
) -> dict[str, Array]:
    """Run a program.

    Args:
        program: a traced schedule.
        sizes: the value of each dimension and block, by name.
        inputs: one array of real numbers for each input, with the shape that follows from the sizes.
        mask: which pairs are allowed; then the program must be traced under a mask.

    Returns:
        The outputs, by name, in the inputs' common type; in float64 if that is a type of integers.

    Raises:
        UsageError: an input is missing, has a wrong shape, or does not contain real numbers; or exponentials of scores
            overflow, or all exponentials of a row are 0.
    """
    arrays = checked(program, sizes, inputs)
    dtype = np.result_type(*arrays.values())
    memory = {
        name: arrays[name].astype(dtype, copy=False) if name in arrays else np.full(tensor.sides(sizes), np.nan, dtype)
        for name, tensor in program.tensors.items()
    }
    run = _Run(sizes, memory, None if mask is None else mask.allowed(*program.grid(sizes)))
    faults: Any = dict.fromkeys(("over", "invalid", "divide"), "raise" if mask is None else "ignore")
    try:
        with np.errstate(**faults):
            for phase in program.phases:
                run.body(phase.body)
        run.check()
    except FloatingPointError as error:
        hint = (
            '; it takes the exponential of scores as they are: take a smaller scale, such as scale="1/sqrt(d_k)", or a '
            "schedule that subtracts the maximum of each row first, as flash2-forward does"
        )
        raise UsageError(
            f"{program.name} cannot be run on these numbers in {dtype}: {error}{hint if run.exponentials else ''}."
        ) from None
    return {name: memory[name] for name in program.outputs}


def checked(program: ir.Program, sizes: ir.Sizes, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs of a program as arrays of one floating-point type: float64 if they are integers.

    Raises:
        UsageError: an input is missing, has a wrong shape, or does not contain real numbers.
    """
    arrays = {name: np.asarray(inputs[name]) for name in program.inputs if name in inputs}
    for name in program.inputs:
        shape = tuple(sizes[dim] for dim in program.tensors[name].shape)
        if name not in arrays or arrays[name].shape != shape:
            got = f"shape {arrays[name].shape}" if name in arrays else "nothing"
            raise UsageError(f"{program.name} needs input {name} of shape {shape}, and got {got}.")
        if arrays[name].dtype.kind not in "biuf":
            raise UsageError(f"{program.name} needs real numbers for input {name}, and got {arrays[name].dtype}.")
    common = np.result_type(*arrays.values())
    dtype = common if common.kind == "f" else np.dtype(np.float64)
    return {name: array.astype(dtype, copy=False) for name, array in arrays.items()}


class _Run(EveryTile):
    def __init__(self, sizes: ir.Sizes, memory: dict[str, Array], allowed: Array | None) -> None:
        super().__init__(sizes, allowed)
        self.memory = memory
        self.dtype = np.result_type(*memory.values())
        self.cache: dict[ir.Tile, Array] = {}
        self.exponentials = False
        rows = 0 if allowed is None else len(allowed)
        self.seen = np.zeros(rows, bool)  # under a mask, rows with an exponential above 0
        self.doubtful = np.zeros(rows, bool)  # rows in which 0/0 was taken for 0, since no pair had been seen

    def _full(self, tile: ir.Tile, value: float) -> Array:
        lengths = [stop - start for start, stop in map(self.bounds, tile.ranges)]
        return np.full(lengths, value, self.dtype)

    def _operand(self, ref: ir.Ref) -> Array:
        """The part of a resident tile that a reference names, as a view."""
        view = self.cache[ref.tile][self.within(ref)]
        return view.T if ref.transposed else view

    def _value(self, expr: ir.Expr) -> Array:
        match expr:
            case ir.Ref():
                return self._operand(expr)
            case ir.MatMul(left=left, right=right, shape=shape):
                return self._masked(np.asarray(self._operand(left) @ self._operand(right)), shape)
            case ir.RowReduction(op=op, operand=operand):
                return self._reduced(op, operand)
            case ir.Elementwise(op=op, operands=operands, shape=shape):
                values = [self._value(operand) for operand in operands]
                self.exponentials |= op == "exp"
                vectors_as_columns = [v[:, None] if v.ndim < len(shape) else v for v in values]
                result = _OPERATIONS[op](*vectors_as_columns)
                if self.allowed is None:
                    return result
                if op in ("sub", "div"):
                    nothing = np.isnan(result) & _nothing_yet(*vectors_as_columns)
                    result = np.where(nothing, 0, result)
                    if op == "div" and shape[0].pairs and shape[0].dim == shape[0].pairs[0]:
                        self.doubtful[self.part(shape[:1])] |= nothing.reshape(len(nothing), -1).any(axis=1)
                result = self._masked(result, shape)
                if op == "exp":
                    if np.isposinf(result).any():
                        raise FloatingPointError("overflow encountered in exp")
                    if ir.over_pairs(shape):
                        self.seen[self.part(shape[:1])] |= (result > 0).any(axis=1)
                return result

    def check(self) -> None:
        """
        Raises:
            FloatingPointError: a row was treated as a row without pairs, but it has some.
        """
        if self.allowed is not None and (self.doubtful & ~self.seen & self.allowed.any(axis=1)).any():
            raise FloatingPointError("all exponentials of a row vanish")

    def _reduced(self, op: str, operand: ir.Expr) -> Array:
        entries = self._value(operand)
        if self.allowed is not None and op == "rowmax" and ir.over_pairs(operand.shape):
            entries = np.where(self.allowed[self.part(operand.shape)], entries, -np.inf)
        return np.asarray(_REDUCTIONS[op](entries, axis=1))

    def _masked(self, entries: Array, shape: ir.Ranges) -> Array:
        """Return the entries of a tile, with 0 for pairs that are not allowed."""
        if self.allowed is None or not ir.over_pairs(shape):
            return entries
        return np.where(self.allowed[self.part(shape)], entries, 0)

    def body(self, body: list[ir.Node]) -> None:
        for node, _ in walk(body, self):
            match node:
                case ir.Read(tile=tile, tensor=tensor):
                    self.cache[tile] = self._masked(self.memory[tensor.name][self.place(node)].copy(), tile.ranges)
                case ir.Write(tile=tile, tensor=tensor):
                    self.memory[tensor.name][self.place(node)] = self.cache[tile]
                case ir.Init(tensor=tensor, ranges=ranges, value=value):
                    self.memory[tensor.name][self.part(ranges)] = value
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


def _nothing_yet(x: Array, y: Array) -> Array:
    """Return which rows have no allowed pair so far: both maxima are -inf, or both sums are 0."""
    return (x == y) & ((x == 0) | np.isneginf(x))
