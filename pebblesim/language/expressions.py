"""The objects of a schedule: tensors in memory, tiles in the cache, indices, and expressions over tiles.

They are symbols: each represents all its values at once. A `Tracer` creates and checks them; `Machine` is the one that
schedules get.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

from pebblesim.core.errors import TraceError
from pebblesim.language import program as ir
from pebblesim.language.source import where

if TYPE_CHECKING:
    from pebblesim.language.problems import Problem

CONSTANTS = (0, float("-inf"))


class _Symbol:
    """A symbol for all values at once.

    It has no truth value, cannot be compared, and cannot be converted to a number.
    """

    _what = "symbol"
    __hash__ = object.__hash__

    def _refuse(self, *_: object) -> NoReturn:
        raise TraceError(
            f"{where()}: a schedule is traced once for all sizes, so it cannot use the value of {self._what}; "
            "write a separate loop instead."
        )

    __bool__ = __int__ = __index__ = __len__ = __iter__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


class Block(_Symbol):
    """A block size: the annotation of a schedule's block arguments, which `tiles` uses to cut a dimension."""

    _what = "a block size"

    def __init__(self, name: str) -> None:
        self._name = name


class Quotient(_Symbol):
    """The number of tiles of a dimension, as the first dimension of tensors."""

    _what = "a number of tiles"

    def __init__(self, quotient: ir.Quotient) -> None:
        self._quotient = quotient


class Index(_Symbol):
    """A tile of a dimension, or the whole dimension."""

    _what = "an index"

    def __init__(self, rng: ir.Range) -> None:
        self._range = rng
        self._alive = True


class _InMemory:
    """Data in memory; it must be read into the cache before use."""

    def _refuse(self, *_: object) -> NoReturn:
        raise TraceError(f"{where()}: computes with data in memory; use m.read(...) to bring a tile into the cache.")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = _refuse

    @property
    def T(self) -> NoReturn:
        self._refuse()


class Part(_InMemory):
    """A part of a tensor in memory."""

    def __init__(self, tensor: ir.Tensor, ranges: ir.Ranges, at: ir.Range | None = None) -> None:
        self._tensor, self._ranges, self._at = tensor, ranges, at


class Tracer(Protocol):
    """The machine that symbols belong to, as far as they use it."""

    _problem: Problem
    _whole: dict[str, Index]
    _indices: dict[ir.Range, Index]
    _unused: dict[int, Value]
    _updated: Tile | None

    def _name_things(self) -> None: ...

    def _check_resident(self, tile: ir.Tile) -> None: ...

    def _elementwise(self, op: str, *values: Value) -> Value: ...

    def _reduced(self, op: Literal["rowsum", "rowmax"], x: Value) -> Value: ...

    def _matmul(self, left: Value, right: Value) -> Value: ...

    def _assign(self, target: Tile, value: Value) -> None: ...

    def _add(self, target: Tile, value: Value) -> None: ...


class Tensor(_InMemory):
    """A tensor in memory, with a `name`; `T[i, k]` is a part of it, `T` the whole tensor."""

    def __init__(self, m: Tracer, tensor: ir.Tensor) -> None:
        self._m, self._tensor, self.name = m, tensor, tensor.name

    @property
    def shape(self) -> tuple[Index, ...]:
        """Dimensions of the tensor, for use in loops."""
        return tuple(self._m._whole[dim] for dim in self._tensor.shape)

    @property
    def over_pairs(self) -> bool:
        """Whether its entries belong to pairs of a query and a key, which a mask may forbid."""
        return self._tensor.shape == self._m._problem.pairs

    def __getitem__(self, key: Any) -> Part:
        self._m._name_things()
        whole, apart = tuple(index._range for index in self.shape), self._tensor.apart
        what = f"{self._tensor.name} has shape ({', '.join(self._tensor.shape)})"
        if apart is None:
            return Part(self._tensor, ranges_of(key, whole, what))
        what = f"{self._tensor.name} has shape ({', '.join((str(apart), *self._tensor.shape))})"
        first, *rest = key if isinstance(key, tuple) else (key,)
        if not isinstance(first, Index) or not first._alive or not is_tile_of(first._range, apart):
            raise TraceError(
                f"{where()}: {what}; its first index must be that of an open loop over the tiles of {apart.dim} by "
                f"{apart.block}."
            )
        return Part(self._tensor, ranges_of(tuple(rest) or slice(None), whole, what), first._range)


class Value(_Symbol):
    """An expression over tiles that is not computed yet."""

    _what = "a tile"

    def __init__(self, m: Tracer, expr: ir.Expr) -> None:
        self._m, self._expr, self._line = m, expr, where()
        if not isinstance(expr, ir.Ref):
            m._unused[id(self)] = self

    def _use(self) -> ir.Expr:
        """Return its expression for use inside another one; all its tiles must be in the cache and hold values."""
        for ref in ir.refs(self._expr):
            self._m._check_resident(ref.tile)
            for rng in ref.ranges:
                if not self._m._indices[rng]._alive:
                    part = f"a part of {label_of(ref.tile)} by index {rng.name}"
                    raise TraceError(f"{where()}: {part} is used after its loop.")
        self._m._unused.pop(id(self), None)
        return self._expr

    def __add__(self, other: Value) -> Value:
        return _elementwise("add", self, other)

    def __sub__(self, other: Value) -> Value:
        return _elementwise("sub", self, other)

    def __mul__(self, other: Value) -> Value:
        return _elementwise("mul", self, other)

    def __truediv__(self, other: Value) -> Value:
        return _elementwise("div", self, other)

    def __matmul__(self, other: Value) -> Value:
        return self._m._matmul(self, other)


class Tile(Value):
    """A tile in the cache, a part of a tile, or its transpose."""

    _expr: ir.Ref

    @property
    def shape(self) -> tuple[Index, ...]:
        """The indices of its rows and columns, for use in loops."""
        return tuple(self._m._indices[rng] for rng in self._expr.shape)

    @property
    def T(self) -> Tile:
        """Transpose of the tile; no words are moved."""
        return Tile(self._m, ir.Ref(self._expr.tile, self._expr.ranges, not self._expr.transposed))

    def __getitem__(self, key: Any) -> Tile:
        self._m._name_things()
        what = f"tile {self._expr.tile.name or 'here'} has {len(self._expr.ranges)} dimensions"
        ranges, transposed = ranges_of(key, self._expr.shape, what), self._expr.transposed
        return Tile(self._m, ir.Ref(self._expr.tile, ranges[::-1] if transposed else ranges, transposed))

    def __setitem__(self, key: Any, value: Value) -> None:
        target, updated = self[key]._expr, self._m._updated
        if value is updated and (value._expr.tile, value._expr.ranges) == (target.tile, target.ranges):
            return  # Python ends `x[:, j] += e` by assigning the updated part to x[:, j]
        self._m._assign(self[key], value)

    def __iadd__(self, value: Value) -> Tile:
        self._m._add(self, value)
        self._m._updated = self
        return self


def _elementwise(op: str, *values: Value) -> Value:
    for value in values:
        if not isinstance(value, Value):
            raise TraceError(f"{where()}: {op} takes tiles and expressions over tiles; use m.read(...) to read a tile.")
    return values[0]._m._elementwise(op, *values)


def _reduced(op: Literal["rowsum", "rowmax"], x: Value) -> Value:
    if not isinstance(x, Value):
        raise TraceError(f"{where()}: {op} takes a tile or an expression over tiles; use m.read(...) to read a tile.")
    return x._m._reduced(op, x)


def _function(op: str, means: str, returns: str, applied: Callable[[Any, Value], Value]) -> Callable[[Value], Value]:
    def function(x: Value) -> Value:
        return applied(op, x)

    function.__name__ = function.__qualname__ = op
    function.__doc__ = f"""{means}.

    Args:
        x: a tile, or an expression of tiles.

    Returns:
        {returns}, for `m.compute` or an assignment.
    """
    return function


def _of_each_element(op: str, means: str) -> Callable[[Value], Value]:
    return _function(op, f"{means}, element by element", "An expression of the same shape", _elementwise)


exp = _of_each_element("exp", "The exponential")
log = _of_each_element("log", "The natural logarithm")
relu = _of_each_element("relu", "max(x, 0)")
step = _of_each_element("step", "1 where x is positive and 0 elsewhere (the derivative of relu)")
sigmoid = _of_each_element("sigmoid", "1 / (1 + exp(-x))")


def maximum(x: Value, y: Value) -> Value:
    """The elementwise maximum of two tiles.

    Args:
        x, y: tiles, or expressions of tiles, of one shape.

    Returns:
        An expression of the same shape, for `m.compute` or an assignment.
    """
    return _elementwise("max", x, y)


_COLUMN = "A column, one entry for each row of x"
rowsum = _function("rowsum", "The sum of each row (x · 1 in the paper)", _COLUMN, _reduced)
rowmax = _function("rowmax", "The maximum of each row", _COLUMN, _reduced)


def ranges_of(key: Any, whole: ir.Ranges, what: str) -> ir.Ranges:
    """Return the ranges of an index expression such as [i, :]."""
    keys = key if isinstance(key, tuple) else (key,)
    if len(keys) == 1 and isinstance(keys[0], slice):
        keys = keys * len(whole)
    if len(keys) != len(whole):
        raise TraceError(f"{where()}: {what}, but got {len(keys)} indices.")
    ranges = []
    for index, full in zip(keys, whole, strict=True):
        if isinstance(index, slice) and index == slice(None):
            ranges.append(full)
        elif isinstance(index, Index) and index._alive and is_part_of(index._range, full):
            ranges.append(index._range)
        elif isinstance(index, Index) and not index._alive:
            raise TraceError(f"{where()}: index {index._range.name} is used after its loop.")
        else:
            raise TraceError(f"{where()}: {what}; index it with loops over that dimension or with ':'.")
    return tuple(ranges)


def is_tile_of(rng: ir.Range, tiles: ir.Quotient) -> bool:
    """Whether a range is one of these tiles of a dimension."""
    return rng.parent is not None and rng.parent.parent is None and (rng.dim, rng.block) == (tiles.dim, tiles.block)


def is_part_of(inner: ir.Range, outer: ir.Range) -> bool:
    """Whether a range is part of another one: of the whole dimension, or of the same tile."""
    return inner.dim == outer.dim if outer.parent is None else inner.within(outer)


def same(a: ir.Ranges, b: ir.Ranges) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def names_of(ranges: ir.Ranges) -> str:
    return ", ".join(rng.name for rng in ranges)


def label_of(tile: ir.Tile) -> str:
    return tile.name or f"a tile of shape ({names_of(tile.ranges)})"
