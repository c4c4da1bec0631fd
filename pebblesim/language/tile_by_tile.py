"""The language of schedules on concrete tiles: each loop runs once for each of its tiles, and each move is passed on.

The statements are those of `Machine`, written a second time, without a trace. A schedule sees no difference: an index,
a block or a tile has no value here, either. Little is checked, because the trace is; the moves are there to be compared
with those of the trace.

A move is a tuple of plain values. Tiles in the cache are numbered in the order in which they enter it, and indices are
given as (start, stop).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pebblesim.core.errors import TraceError
from pebblesim.language.expressions import Block, Index, Part, Tensor, Tile, Value
from pebblesim.language.problems import Problem
from pebblesim.language.source import Line, line, where

Bounds = tuple[int, int]
Move = tuple[Any, ...]


class _Index(Index):
    """The indices start ... stop - 1 of a dimension."""

    def __init__(self, dim: str, bounds: Bounds) -> None:
        self._dim, self._bounds = dim, bounds


_Indices = tuple[_Index, ...]


class _Part(Part):
    """A part of a tensor in memory; `at` is the tile that the copy belongs to, if there is a copy for each tile."""

    def __init__(self, tensor: str, indices: _Indices, at: Bounds | None) -> None:
        self._name, self._indices, self._at_tile = tensor, indices, at

    @property
    def _place(self) -> Move:
        return self._name, self._at_tile, *[index._bounds for index in self._indices]


class _Tensor(Tensor):
    def __init__(self, name: str, shape: _Indices, apart: bool, over_pairs: bool) -> None:
        self.name = self._name = name
        self._shape, self._apart, self._over_pairs = shape, apart, over_pairs

    @property
    def shape(self) -> tuple[Index, ...]:
        return self._shape

    @property
    def over_pairs(self) -> bool:
        return self._over_pairs

    def __getitem__(self, key: Any) -> _Part:
        at = None
        if self._apart:
            first, *rest = key if isinstance(key, tuple) else (key,)
            key, at = tuple(rest) or slice(None), first._bounds
        return _Part(self._name, _chosen(key, self._shape), at)


class _Value(Value):
    """An expression: its operations, as a move, and the indices of its rows and columns."""

    _m: Any

    def __init__(self, m: TileByTile, move: Move, indices: _Indices) -> None:
        self._m, self._move, self._indices = m, move, indices


class _Tile(_Value, Tile):
    """A tile in the cache, or a part of it, as it lies there or transposed."""

    def __init__(self, m: TileByTile, number: int, indices: _Indices, transposed: bool = False) -> None:
        self._m, self._number, self._transposed = m, number, transposed
        self._move = number, *[index._bounds for index in indices], transposed
        self._indices = indices[::-1] if transposed else indices

    @property
    def shape(self) -> tuple[Index, ...]:
        return self._indices

    @property
    def T(self) -> _Tile:
        lies = self._indices[::-1] if self._transposed else self._indices
        return _Tile(self._m, self._number, lies, not self._transposed)

    def __getitem__(self, key: Any) -> _Tile:
        part = _chosen(key, self._indices)
        return _Tile(self._m, self._number, part[::-1] if self._transposed else part, self._transposed)

    def __setitem__(self, key: Any, value: Any) -> None:
        part = self[key]
        if value is not self._m._updated or value._move != part._move:  # else it is the end of x[:, j] += e
            self._m._assign(part, value)


def _chosen(key: Any, whole: _Indices) -> _Indices:
    keys = key if isinstance(key, tuple) else (key,) * len(whole)
    return tuple([full if isinstance(each, slice) else each for each, full in zip(keys, whole, strict=True)])


class TileByTile:
    """The machine, for one run of a schedule. The public methods are those of `Machine`."""

    def __init__(
        self, problem: Problem, sizes: Mapping[str, int], do: Callable[[Move], None], allowed: Any | None = None
    ) -> None:
        """
        Args:
            problem: the problem that the schedule solves.
            sizes: the value of each dimension and block.
            do: called with each move, in the frame of the schedule.
            allowed: under a mask, booleans of shape (queries, keys).
        """
        self._problem, self._sizes, self._do, self._allowed = problem, sizes, do, allowed
        self._whole = {dim: _Index(dim, (0, sizes[dim])) for dim in problem.dims}
        self._entered = 0
        self._updated: _Tile | None = None
        self._open: list[tuple[Line, int]] = []  # the line of each open loop, and its iteration, from 1
        self._left: list[tuple[Line, int]] = []  # the same when a loop was left for the first time
        self._ran_on: Line | None = None  # the line of the last loop that had several iterations

    # -- expressions -----------------------------------------------------------------------------------------

    def _own(self, value: Any) -> Any:
        if value._m is not self:
            raise TraceError(f"{where()}: uses a tile of another run of the schedule.")
        return value

    def _elementwise(self, op: str, *values: Any) -> _Value:
        indices = max([self._own(value)._indices for value in values], key=len)
        return _Value(self, (op, *[value._move for value in values]), indices)

    def _reduced(self, op: str, x: Any) -> _Value:
        return _Value(self, (op, self._own(x)._move), x._indices[:1])

    def _matmul(self, left: Any, right: Any) -> _Value:
        indices = self._own(left)._indices[0], self._own(right)._indices[1]
        return _Value(self, ("matmul", left._move, right._move), indices)

    def _assign(self, target: Any, value: Any) -> None:
        self._do(("assign", self._own(target)._move, self._own(value)._move))

    def _add(self, target: Any, value: Any) -> None:
        if value._move[0] in ("matmul", "rowsum"):
            self._do(("add", self._own(target)._move, self._own(value)._move))
        else:
            self._assign(target, self._elementwise("add", target, value))

    def _enter(self, indices: _Indices) -> _Tile:
        tile = _Tile(self, self._entered, indices)
        self._entered += 1
        return tile

    # -- structure -------------------------------------------------------------------------------------------

    def _declare(self, name: str, dims: tuple[str, ...], apart: bool = False) -> _Tensor:
        return _Tensor(name, tuple(self._whole[dim] for dim in dims), apart, dims == self._problem.pairs)

    def tensor(self, name: str, *shape: Any) -> _Tensor:
        apart = not isinstance(shape[0], Index)
        return self._declare(name, tuple(index._dim for index in shape[apart:]), apart)

    def quotient(self, dim: Index, block: Block | int) -> object:
        return dim, block

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._do(("phase", name))
        yield

    def first(self, over: Any, size: Block | int) -> Iterator[Index]:
        start, stop = over._bounds
        yield from self._loop(over._dim, [(start, min(stop, start + self._length(size)))], False, None)

    def tiles(
        self,
        over: Any,
        block: Block | int,
        *,
        independent: bool = False,
        after: Block | int | None = None,
        keys_of: Any = None,
        queries_of: Any = None,
        otherwise: Mapping[Any, float] | None = None,
    ) -> Iterator[Index]:
        (start, stop), step = over._bounds, self._length(block)
        if after is not None:
            start = min(stop, start + self._length(after))
        tiles = [(at, min(at + step, stop)) for at in range(start, stop, step)]
        others = queries_of if keys_of is None else keys_of
        if self._allowed is None or others is None:
            yield from self._loop(over._dim, tiles, independent, None)
            return
        pairs = self._allowed.T if keys_of is None else self._allowed
        met = {tile: bool(pairs[slice(*others._bounds), slice(*tile)].any()) for tile in tiles}
        yield from self._loop(over._dim, [tile for tile in tiles if met[tile]], independent, True)
        if not otherwise:
            return
        for tile in self._loop(over._dim, [tile for tile in tiles if not met[tile]], independent, False):
            pair = (others, tile) if queries_of is None else (tile, others)
            for tensor, value in otherwise.items():
                own = [tile if index._dim == over._dim else index for index in tensor._shape]
                part = _Part(tensor._name, tuple(pair if tensor.over_pairs else own), None)
                self._do(("fill", *part._place, float(value)))

    def _loop(self, dim: str, tiles: list[Bounds], independent: bool, allowed: bool | None) -> Iterator[_Index]:
        """Yield each tile; under a mask, `allowed` says whether these are the ones that it allows."""
        started, depth = line(), len(self._open)
        self._do(("loop", dim, independent, allowed))
        try:
            for number, tile in enumerate(tiles, 1):
                self._do(("tile", tile))
                self._open[depth:] = [(started, number)]
                yield _Index(dim, tile)
        except GeneratorExit:
            self._left = self._left or list(self._open)
            raise
        finally:
            del self._open[depth:]
        self._do(("end",))
        if len(tiles) > 1:
            self._ran_on = started

    def _length(self, block: Block | int) -> int:
        return self._sizes[block._name] if isinstance(block, Block) else block

    # -- primitives ------------------------------------------------------------------------------------------

    def read(self, part: Any) -> _Tile:
        part = part[:] if isinstance(part, Tensor) else part
        self._do(("read", *part._place))
        return self._enter(part._indices)

    def write(self, part: Any, value: Any) -> None:
        part = part[:] if isinstance(part, Tensor) else part
        if isinstance(value, Value):
            self._do(("write", *part._place, self._own(value)._move))
        else:
            self._do(("fill", *part._place, float(value)))

    def add(self, part: Any, value: Any) -> None:
        total = self.read(part)
        self._add(total, value)
        self.write(part, total)
        self.delete(total)

    def zeros(self, *shape: Any) -> _Tile:
        self._do(("zeros", *[index._bounds for index in shape]))
        return self._enter(shape)

    def constant(self, value: float, *shape: Any) -> _Tile:
        self._do(("constant", float(value), *[index._bounds for index in shape]))
        return self._enter(shape)

    def move(self, source: Any, target: Any) -> None:
        self._do(("move", self._own(source)._number, self._own(target)._number))

    def compute(self, value: Any) -> _Tile:
        self._do(("compute", self._own(value)._move))
        return self._enter(value._indices)

    def delete(self, *tiles: Any) -> None:
        for tile in tiles:
            self._do(("delete", self._own(tile)._number))
