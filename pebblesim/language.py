"""The language of schedules: what a schedule may say, and the tracer that turns it into a program.

A schedule is a function `def name(m, A, B, *, B_r, B_c)`: `m` is the machine below, then come the problem's
inputs, then, as keyword-only parameters, its block sizes. It is run once, on symbols: `for i in m.tiles(n, B)`
runs its body once, for a tile that stands for all tiles.

    m.tiles(dim, block)        loop over the tiles of a dimension, or of a tile
    m.read(T[i, k])            memory → cache: a tile
    m.write(T[i, j], x)        cache → memory; `m.write(T, 0)` fills it with a constant
    m.zeros(i, j)              make room for a sum
    m.constant(0, i)           a tile of a constant, 0 or -inf
    m.compute(expr)            a new tile
    x[:] = expr                in place
    acc += a @ b               add the terms of a product or a row sum
    m.move(y, x)               x takes over the words of y, and its own leave the cache
    m.delete(x)                a tile leaves the cache (at the end of its loop it does so by itself)
    a @ b, a.T, + - * /, exp, log, maximum, rowsum, rowmax

An expression is not a tile: it is computed element by element, with no room for intermediates but a pebble or two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any, Literal, NoReturn

from pebblesim import program as ir
from pebblesim.errors import PebblesimError, TraceError
from pebblesim.problems import Problem

__all__ = ["Block", "Index", "Machine", "Tensor", "Tile", "Value", "exp", "log", "maximum", "rowmax", "rowsum", "trace"]


CONSTANTS = (0, float("-inf"))


class _Symbol:
    """What stands for all its values at once, and so has no truth value, no order and no number."""

    _what = "symbol"
    __hash__ = object.__hash__

    def _refuse(self, *_: object) -> NoReturn:
        raise TraceError(
            f"{_where()}: a schedule is traced once for all sizes, so it cannot look at the value of {self._what}; "
            "use a loop of its own instead."
        )

    __bool__ = __int__ = __index__ = __len__ = __iter__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


class Block(_Symbol):
    """A block size."""

    _what = "a block size"

    def __init__(self, name: str) -> None:
        self._name = name


class Index(_Symbol):
    """A tile of a dimension, or the whole of it."""

    _what = "an index"

    def __init__(self, rng: ir.Range) -> None:
        self._range = rng
        self._alive = True


class Tensor:
    """A tensor in memory; `T[i, k]` names a part of it, `T` the whole."""

    def __init__(self, m: Machine, tensor: ir.Tensor) -> None:
        self._m, self._tensor = m, tensor

    @property
    def shape(self) -> tuple[Index, ...]:
        """Its dimensions, to be looped over."""
        return tuple(self._m._whole[dim] for dim in self._tensor.shape)

    def __getitem__(self, key: Any) -> tuple[Tensor, ir.Ranges]:
        whole = tuple(index._range for index in self.shape)
        return self, _ranges(key, whole, f"{self._tensor.name} has shape ({', '.join(self._tensor.shape)})")


class Value(_Symbol):
    """An expression over tiles, not yet computed."""

    _what = "a tile"

    def __init__(self, m: Machine, expr: ir.Expr) -> None:
        self._m, self._expr, self._line = m, expr, _where()
        if not isinstance(expr, ir.Ref):
            m._unused[id(self)] = self

    def _use(self) -> ir.Expr:
        """Its expression, as a part of another: all its tiles must be in cache, with something in them."""
        for ref in ir.refs(self._expr):
            self._m._check_resident(ref.tile)
            for rng in ref.ranges:
                if not self._m._indices[rng]._alive:
                    raise TraceError(f"{_where()}: a part of {_label(ref.tile)} by index {rng.name} outlives its loop.")
        self._m._unused.pop(id(self), None)
        return self._expr

    def __add__(self, other: Value) -> Value:
        return self._m._elementwise("add", self, other)

    def __sub__(self, other: Value) -> Value:
        return self._m._elementwise("sub", self, other)

    def __mul__(self, other: Value) -> Value:
        return self._m._elementwise("mul", self, other)

    def __truediv__(self, other: Value) -> Value:
        return self._m._elementwise("div", self, other)

    def __matmul__(self, other: Value) -> Value:
        return self._m._matmul(self, other)


class Tile(Value):
    """A tile in cache, or a part of one, or its transpose."""

    _expr: ir.Ref

    @property
    def shape(self) -> tuple[Index, ...]:
        """The indices of its rows and columns, to be looped over."""
        return tuple(self._m._indices[rng] for rng in self._expr.shape)

    @property
    def T(self) -> Tile:
        """Its transpose: the same words, read the other way."""
        return Tile(self._m, ir.Ref(self._expr.tile, self._expr.ranges, not self._expr.transposed))

    def __getitem__(self, key: Any) -> Tile:
        what = f"tile {self._expr.tile.name or 'here'} has {len(self._expr.ranges)} dimensions"
        ranges, transposed = _ranges(key, self._expr.shape, what), self._expr.transposed
        return Tile(self._m, ir.Ref(self._expr.tile, ranges[::-1] if transposed else ranges, transposed))

    def __setitem__(self, key: Any, value: Value) -> None:
        target, updated = self[key]._expr, self._m._updated
        if value is updated and (value._expr.tile, value._expr.ranges) == (target.tile, target.ranges):
            return  # `x[:, j] += e` ends in x[:, j] = the part that was just updated
        self._m._assign(self[key], value)

    def __iadd__(self, value: Value) -> Tile:
        self._m._add(self, value)
        self._m._updated = self
        return self


def exp(x: Value) -> Value:
    """The exponential, element by element."""
    return x._m._elementwise("exp", x)


def log(x: Value) -> Value:
    """The natural logarithm, element by element."""
    return x._m._elementwise("log", x)


def maximum(x: Value, y: Value) -> Value:
    """The larger of two, element by element."""
    return x._m._elementwise("max", x, y)


def rowsum(x: Value) -> Value:
    """The sum of each row, the paper's x · 1."""
    return _reduced("rowsum", x)


def rowmax(x: Value) -> Value:
    """The maximum of each row."""
    return _reduced("rowmax", x)


def _reduced(op: Literal["rowsum", "rowmax"], x: Value) -> Value:
    expr = x._use()
    if isinstance(expr, ir.RowReduction | ir.MatMul) or len(expr.shape) != 2:
        raise TraceError(f"{_where()}: {op} takes a tile or an elementwise expression with rows and columns.")
    return Value(x._m, ir.RowReduction(op, expr, expr.shape[:1]))


class Machine:
    """The two-level memory that a schedule runs on, as it is being traced."""

    def __init__(self, name: str, problem: Problem) -> None:
        self._problem = problem
        self._program = ir.Program(name, problem.dims, (), {}, (), tuple(problem.outputs), [])
        self._whole = {dim: Index(ir.Range(dim)) for dim in problem.dims}
        self._indices = {index._range: index for index in self._whole.values()}
        self._scopes: list[tuple[list[ir.Node], list[ir.Tile]]] = []  # (body, tiles that entered in it)
        self._state: dict[ir.Tile, str] = {}  # "empty", "full", or how it left the cache
        self._written: set[str] = set()
        self._unused: dict[int, Value] = {}
        self._updated: Tile | None = None
        self._left_early: str | None = None
        self._implicit = False

    # -- structure -------------------------------------------------------------------------------------------

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A named part of the schedule; no tile outlives it."""
        if self._left_early:
            self._body()  # says so
        if self._scopes:
            raise TraceError(
                f"{_where()}: phase {name!r} starts inside "
                f"{'statements that belong to no phase' if self._implicit else 'another phase or a loop'}; "
                "phases follow one another at the top of a schedule."
            )
        if any(phase.name == name for phase in self._program.phases):
            raise TraceError(f"{_where()}: there is a phase {name!r} already; each has a name of its own.")
        self._open_phase(name)
        yield
        self._close_scope(f"the end of phase {name!r}")

    def tiles(self, over: Index, block: Block | int, *, independent: bool = False) -> Iterator[Index]:
        """Loop over the tiles of a dimension or of a tile, `block` indices each, the last one ragged.

        Args:
            over: a dimension (from a tensor's shape) or an index of an outer loop.
            block: a block size of the schedule, or a number.
            independent: the iterations may run in parallel.
        """
        line = _line()
        body = self._body()
        if not isinstance(over, Index) or not over._alive:
            raise TraceError(f"{_where()}: tiles takes a dimension, or the index of a loop that is still open.")
        if isinstance(block, bool) or not (isinstance(block, Block) or (isinstance(block, int) and block > 0)):
            raise TraceError(f"{_where()}: a block is a block size of the schedule or a positive number.")
        index = Index(ir.Range("", over._range, block._name if isinstance(block, Block) else block))
        self._indices[index._range] = index
        loop = ir.Loop(index._range, [], independent, line)
        body.append(loop)
        self._scopes.append((loop.body, []))
        try:
            yield index
        except GeneratorExit:
            self._left_early = f"line {line}"
            return
        self._name_things()
        index._range.name = index._range.name or f"{index._range.dim}'"
        self._close_scope(f"the end of the loop in line {line}")
        index._alive = False

    def tensor(self, name: str, *shape: Index) -> Tensor:
        """A tensor in memory, to be written: an output of the problem or an intermediate."""
        if name in self._program.tensors:
            raise TraceError(f"{_where()}: tensor {name} exists already.")
        dims = tuple(index._range.name for index in shape if isinstance(index, Index) and index._range.parent is None)
        if len(dims) != len(shape) or len(dims) not in (1, 2):
            raise TraceError(f"{_where()}: the shape of {name} must be one or two whole dimensions.")
        results = {**self._problem.outputs, **self._problem.extra}
        expected = results.get(name, dims)
        if dims != tuple(expected):
            raise TraceError(f"{_where()}: output {name} has shape ({', '.join(expected)}), not ({', '.join(dims)}).")
        if name in self._problem.extra:
            self._program.outputs += (name,)
        return self._declare(name, dims)

    # -- primitives ------------------------------------------------------------------------------------------

    def read(self, part: Tensor | tuple[Tensor, ir.Ranges]) -> Tile:
        """Memory → cache."""
        tensor, ranges = _part(part)
        if tensor.name not in self._program.inputs and tensor.name not in self._written:
            raise TraceError(f"{_where()}: reads {tensor.name}, which nobody has written.")
        tile = self._enter(ranges, "full")
        self._emit(ir.Read(tile, tensor, _line()))
        return Tile(self, ir.Ref(tile, tile.ranges))

    def write(self, part: Tensor | tuple[Tensor, ir.Ranges], value: Tile | float) -> None:
        """Cache → memory: a tile that has been computed; or a constant, 0 or -inf."""
        tensor, ranges = _part(part)
        if tensor.name in self._program.inputs:
            raise TraceError(f"{_where()}: writes {tensor.name}, which is an input.")
        if not isinstance(value, Value) and value in CONSTANTS:
            self._emit(ir.Init(tensor, ranges, float(value), _line()))
        elif not isinstance(value, Tile):
            raise TraceError(f"{_where()}: writes what was never computed; m.compute(...) makes a tile of it.")
        else:
            ref = value._expr
            self._check_resident(ref.tile)
            if ref.transposed or ref.ranges != ref.tile.ranges or not _same(ref.ranges, ranges):
                raise TraceError(
                    f"{_where()}: a tile of shape ({_names(ref.shape)}) does not fit {tensor.name}[{_names(ranges)}]; "
                    "whole tiles are written, to the part of a tensor with the same indices."
                )
            self._emit(ir.Write(ref.tile, tensor, _line()))
        self._written.add(tensor.name)

    def zeros(self, *shape: Index) -> Tile:
        """Make room for a sum; shape as (rows, columns), or (rows,) for a vector."""
        tile = self._enter(_open(shape), "empty")
        self._emit(ir.Zeros(tile, _line()))
        return Tile(self, ir.Ref(tile, tile.ranges))

    def constant(self, value: float, *shape: Index) -> Tile:
        """A tile with 0 or -inf in each element, which has that value from the start; shape as for `zeros`."""
        if value not in CONSTANTS:
            raise TraceError(f"{_where()}: a constant is 0 or -inf, not {value!r}.")
        tile = self._enter(_open(shape), "full")
        self._emit(ir.Constant(tile, float(value), _line()))
        return Tile(self, ir.Ref(tile, tile.ranges))

    def move(self, source: Tile, target: Tile) -> None:
        """`target` takes over the words of `source`, which is a tile no more; the words it had are gone."""
        if not isinstance(source, Tile) or not isinstance(target, Tile):
            raise TraceError(f"{_where()}: move takes two tiles.")
        self._check_resident(source._expr.tile)
        self._check_entered_here(source._expr.tile)
        self._check_in_cache(target._expr.tile)
        if source._expr.tile is target._expr.tile or not _same(source._expr.tile.ranges, target._expr.tile.ranges):
            raise TraceError(f"{_where()}: move takes two tiles of the same shape.")
        self._emit(ir.Move(target._expr.tile, source._expr.tile, _line()))
        self._state[target._expr.tile] = "full"
        self._state[source._expr.tile] = f"was moved in line {_line()}"

    def compute(self, value: Value) -> Tile:
        """A new tile that holds the value of an expression."""
        if isinstance(value, Tile) or not isinstance(value, Value):
            raise TraceError(f"{_where()}: compute takes an expression such as a @ b or exp(x), and gives a new tile.")
        expr = value._use()
        tile = self._enter(expr.shape, "full")
        target = ir.Ref(tile, tile.ranges)
        self._emit(ir.Compute(target, expr, "new", _line()))
        return Tile(self, target)

    def delete(self, *tiles: Tile) -> None:
        """The tiles leave the cache."""
        for tile in tiles:
            held = tile._expr.tile
            self._check_in_cache(held)
            self._check_entered_here(held)
            self._emit(ir.Delete(held, False, _line()))
            self._state[held] = f"was deleted in line {_line()}"

    # -- expressions -----------------------------------------------------------------------------------------

    def _elementwise(self, op: str, *values: Value) -> Value:
        if not all(isinstance(value, Value) for value in values):
            raise TraceError(f"{_where()}: {op} takes tiles and expressions over tiles only.")
        operands = tuple(value._use() for value in values)
        for operand in operands:
            if isinstance(operand, ir.MatMul | ir.RowReduction):
                raise TraceError(f"{_where()}: a product or row sum must be computed before {op} can use it.")
            if isinstance(operand, ir.Ref) and operand.transposed:
                raise TraceError(f"{_where()}: {op} takes tiles as they lie; a transpose enters only products.")
        shape = max((operand.shape for operand in operands), key=len)
        for operand in operands:
            if not _same(operand.shape, shape[: len(operand.shape)]):
                raise TraceError(
                    f"{_where()}: shapes do not match: {op} of ({_names(operands[0].shape)}) and "
                    f"({_names(operands[-1].shape)})."
                )
        return Value(self, ir.Elementwise(op, operands, shape))

    def _matmul(self, left: Value, right: Value) -> Value:
        if not isinstance(left, Tile) or not isinstance(right, Tile):
            raise TraceError(f"{_where()}: a product takes two tiles; compute its operands first.")
        a, b = left._use(), right._use()
        assert isinstance(a, ir.Ref) and isinstance(b, ir.Ref)
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] is not b.shape[0]:
            raise TraceError(f"{_where()}: shapes do not match: ({_names(a.shape)}) @ ({_names(b.shape)}).")
        return Value(self, ir.MatMul(a, b, (a.shape[0], b.shape[1])))

    def _assign(self, target: Tile, value: Value) -> None:
        if not isinstance(value, Value):
            raise TraceError(f"{_where()}: only an expression over tiles can be put in place.")
        expr = value._use()
        self._check_in_cache(target._expr.tile)
        if not isinstance(expr, ir.Elementwise):
            raise TraceError(f"{_where()}: x[:] = ... takes an elementwise expression.")
        if not _same(expr.shape, target._expr.shape):
            raise TraceError(
                f"{_where()}: shapes do not match: ({_names(expr.shape)}) into ({_names(target._expr.shape)})."
            )
        self._check_resident(target._expr.tile)
        self._emit(ir.Compute(target._expr, expr, "assign", _line()))

    def _add(self, target: Tile, value: Value) -> None:
        if isinstance(value, Value) and not isinstance(value._expr, ir.MatMul | ir.RowReduction):
            self._assign(target, self._elementwise("add", target, value))
            return
        if not isinstance(value, Value):
            raise TraceError(f"{_where()}: += takes a product, a row sum or an elementwise expression.")
        expr = value._use()
        self._check_in_cache(target._expr.tile)
        if isinstance(expr, ir.RowReduction) and expr.op == "rowmax":
            raise TraceError(f"{_where()}: += adds; for a running maximum use maximum(x, y).")
        if not _same(expr.shape, target._expr.shape):
            raise TraceError(
                f"{_where()}: shapes do not match: ({_names(target._expr.shape)}) += ({_names(expr.shape)})."
            )
        if any(ref.tile is target._expr.tile for ref in ir.refs(expr)):
            raise TraceError(f"{_where()}: a tile cannot be a term of its own sum.")
        self._emit(ir.Compute(target._expr, expr, "add", _line()))
        self._state[target._expr.tile] = "full"

    # -- bookkeeping -----------------------------------------------------------------------------------------

    def _declare(self, name: str, dims: tuple[str, ...]) -> Tensor:
        self._program.tensors[name] = ir.Tensor(name, dims)
        return Tensor(self, self._program.tensors[name])

    def _open_phase(self, name: str) -> None:
        self._program.phases.append(ir.Phase(name))
        self._scopes.append((self._program.phases[-1].body, []))

    def _body(self) -> list[ir.Node]:
        if self._left_early:
            raise TraceError(
                f"{_where()}: the loop in {self._left_early} was left with break or return; a schedule "
                "runs every loop to its end."
            )
        if not self._scopes:
            if self._program.phases and not self._implicit:
                raise TraceError(f"{_where()}: a statement between phases; put it into one.")
            self._implicit = True
            self._open_phase(self._program.name)
        self._name_things()
        return self._scopes[-1][0]

    def _emit(self, node: ir.Node) -> None:
        self._body().append(node)

    def _enter(self, ranges: ir.Ranges, state: str) -> ir.Tile:
        self._body()
        tile = ir.Tile("", ranges)
        self._scopes[-1][1].append(tile)
        self._state[tile] = state
        return tile

    def _close_scope(self, when: str) -> None:
        body, tiles = self._scopes.pop()
        for tile in tiles:
            if self._state[tile] in ("empty", "full"):
                body.append(ir.Delete(tile, True, 0))
                self._state[tile] = f"left the cache at {when}"

    def _check_in_cache(self, tile: ir.Tile) -> None:
        if self._state[tile] not in ("empty", "full"):
            raise TraceError(f"{_where()}: {_label(tile)} is not in cache: it {self._state[tile]}.")

    def _check_entered_here(self, tile: ir.Tile) -> None:
        if not any(tile is entered for entered in self._scopes[-1][1]):
            raise TraceError(
                f"{_where()}: {_label(tile)} came in outside this loop, which cannot make it leave in every iteration."
            )

    def _check_resident(self, tile: ir.Tile) -> None:
        self._check_in_cache(tile)
        if self._state[tile] == "empty":
            raise TraceError(f"{_where()}: {_label(tile)} was never computed: it has room, but no value yet.")

    def _name_things(self) -> None:
        """Give tiles and loops the names that the schedule's own variables have."""
        frame = _frame()
        for name, value in frame.f_locals.items():
            if isinstance(value, Tile) and not value._expr.tile.name and value._expr.ranges == value._expr.tile.ranges:
                value._expr.tile.name = name
            elif isinstance(value, Index) and not value._range.name:
                value._range.name = name

    def _finish(self, blocks: tuple[str, ...], where: str) -> ir.Program:
        if self._left_early:
            raise TraceError(f"{where}: the loop in {self._left_early} was left with break or return.")
        if self._implicit:
            self._close_scope("the end of the schedule")
        for value in self._unused.values():
            raise TraceError(f"{value._line}: an expression is never computed; m.compute(...) makes a tile of it.")
        for output in self._program.outputs:
            if output not in self._written:
                raise TraceError(f"{where}: output {output} is never written.")
        self._program.blocks = blocks
        return self._program


def trace(
    function: Callable[..., None], name: str, problem: Problem, inputs: tuple[str, ...], blocks: tuple[str, ...]
) -> ir.Program:
    """Run a schedule once on symbols.

    Raises:
        TraceError: it does what no cache could do; the message names its source line.
    """
    m = Machine(name, problem)
    shapes = {**problem.inputs, **problem.kept}
    tensors = [m._declare(tensor, tuple(shapes[tensor])) for tensor in inputs]
    m._program.inputs = inputs
    try:
        function(m, *tensors, **{block: Block(block) for block in blocks})
    except PebblesimError:
        raise
    except Exception as error:
        frames = ((frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__))
        *_, place = (
            (function.__code__.co_filename, function.__code__.co_firstlineno),
            *((file, line) for file, line in frames if file != __file__),
        )
        raise TraceError(f"{place[0]}:{place[1]}: {type(error).__name__}: {error}") from error
    return m._finish(blocks, f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}")


def _frame() -> Any:
    """The innermost frame that is not the tracer's: the schedule's."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename in (__file__, contextmanager.__code__.co_filename):
        frame = frame.f_back
    return frame


def _line() -> int:
    return int(_frame().f_lineno)


def _where() -> str:
    frame = _frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _open(shape: tuple[Index, ...]) -> ir.Ranges:
    if len(shape) not in (1, 2):
        raise TraceError(f"{_where()}: a shape has rows, or rows and columns, and got {len(shape)} indices.")
    for index in shape:
        if not isinstance(index, Index) or not index._alive:
            raise TraceError(f"{_where()}: a shape is made of dimensions and indices of loops that are still open.")
    return tuple(index._range for index in shape)


def _part(part: Tensor | tuple[Tensor, ir.Ranges]) -> tuple[ir.Tensor, ir.Ranges]:
    if isinstance(part, Tensor):
        part = part[:]
    if not (isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], Tensor)):
        raise TraceError(f"{_where()}: expected a part of a tensor in memory, such as A1[i, k].")
    return part[0]._tensor, part[1]


def _ranges(key: Any, whole: ir.Ranges, what: str) -> ir.Ranges:
    """The ranges that an index expression such as [i, :] names."""
    keys = key if isinstance(key, tuple) else (key,)
    if len(keys) == 1 and isinstance(keys[0], slice):
        keys = keys * len(whole)
    if len(keys) != len(whole):
        raise TraceError(f"{_where()}: {what}, but got {len(keys)} indices.")
    ranges = []
    for given, full in zip(keys, whole, strict=True):
        if isinstance(given, slice) and given == slice(None):
            ranges.append(full)
        elif isinstance(given, Index) and given._alive and _inside(given._range, full):
            ranges.append(given._range)
        elif isinstance(given, Index) and not given._alive:
            raise TraceError(f"{_where()}: index {given._range.name} is used after its loop.")
        else:
            raise TraceError(f"{_where()}: {what}; index it with loops over that dimension or with ':'.")
    return tuple(ranges)


def _inside(inner: ir.Range | None, outer: ir.Range) -> bool:
    """Whether a range is a part of another: of the same dimension, or of that very tile."""
    if outer.parent is None:
        return inner is not None and inner.dim == outer.dim
    while inner is not None and inner is not outer:
        inner = inner.parent
    return inner is outer


def _same(a: ir.Ranges, b: ir.Ranges) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def _names(ranges: ir.Ranges) -> str:
    return ", ".join(rng.name for rng in ranges)


def _label(tile: ir.Tile) -> str:
    return tile.name or f"a tile of shape ({_names(tile.ranges)})"
