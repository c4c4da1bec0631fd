"""The language of schedules: its statements, and the tracer that turns a schedule into a program.

A schedule is a function `def name(m, A, B, *, B_r, B_c)`: `m` is the machine below; then come the problem's inputs; the
keyword-only parameters are its block sizes. The function runs once, on symbols: `for i in m.tiles(n, B)` runs its body
once, for a symbolic tile that represents all tiles.

    m.tiles(dim, block)        loop over the tiles of a dimension, or of a tile
    m.first(dim, r)            only the first r indices of a dimension: tiles read here stay during the inner loops
    m.tiles(dim, b, after=r)   loop over the tiles of the other indices, if there are any
    m.tiles(n, b, keys_of=i)   under a mask, only the tiles of columns that some row of tile i may attend to
    m.tiles(n, b, queries_of=j)  only the tiles of rows that may attend to some column of tile j
    m.quotient(n, B)           ⌈n/B⌉, a tensor's first dimension: a separate copy for each tile of n, as T[i, r, c]
    m.read(T[i, k])            memory → cache: a tile
    m.write(T[i, j], x)        cache → memory; `m.write(T, 0)` fills it with a constant
    m.zeros(i, j)              make room for a sum
    m.constant(0, i)           a tile of a constant, 0 or -inf
    m.compute(expr)            a new tile
    x[:] = expr                in place
    acc += a @ b               add the terms of a product or a row sum
    m.move(y, x)               x takes over the words of y, and its own leave the cache
    m.delete(x)                a tile leaves the cache (at the end of its loop it does so by itself)
    a @ b, a.T, + - * /, exp, log, relu, step, sigmoid, maximum, rowsum, rowmax

Words in the cache must not be read again: in the game a value has one pebble, no matter which tile holds it. An
expression is not a tile: it is computed element by element, and intermediates need only one or two pebbles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from pebblesim.core.errors import PebblesimError, TraceError
from pebblesim.language import program as ir
from pebblesim.language.expressions import (
    CONSTANTS,
    Block,
    Index,
    Part,
    Quotient,
    Tensor,
    Tile,
    Value,
    is_part_of,
    names_of,
    same,
)
from pebblesim.language.problems import Problem
from pebblesim.language.source import line, what_raised, where, where_raised
from pebblesim.language.tracing import Tracing


class Machine(Tracing):
    """The two-level memory on which a schedule is traced."""

    # -- structure -------------------------------------------------------------------------------------------

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Start a named phase of the schedule; all tiles leave the cache at its end."""
        if self._left_early:
            self._body()  # says so
        if self._scopes:
            raise TraceError(
                f"{where()}: phase {name!r} starts inside "
                f"{'statements that belong to no phase' if self._implicit else 'another phase or a loop'}; "
                "phases must be at the top level of a schedule, one after another."
            )
        if any(phase.name == name for phase in self._program.phases):
            raise TraceError(f"{where()}: phase {name!r} exists already; give each phase a different name.")
        self._open_phase(name)
        yield
        self._close_scope(f"the end of phase {name!r}")

    def tiles(
        self,
        over: Index,
        block: Block | int,
        *,
        independent: bool = False,
        after: Block | int | None = None,
        keys_of: Index | None = None,
        queries_of: Index | None = None,
        otherwise: Mapping[Tensor, float] | None = None,
    ) -> Iterator[Index]:
        """Loop over the tiles of a dimension or of a tile, with `block` indices each; the last tile may be ragged.

        Args:
            over: a dimension (from a tensor's shape) or an index of an outer loop.
            block: a block size of the schedule, or a number.
            independent: the iterations may run in parallel.
            after: skip this number of first indices of a dimension, which `first` covers; there may be no others.
            keys_of: under a mask, run only for tiles of columns that have an allowed pair with these rows.
            queries_of: under a mask, run only for tiles of rows that have an allowed pair with these columns.
            otherwise: constants, 0 or -inf, to write to parts of tensors for each tile that the loop skips.
        """
        started = line()
        self._body()
        if not isinstance(over, Index) or not over._alive:
            raise TraceError(f"{where()}: tiles takes a dimension, or the index of an open loop.")
        self._check_left_out(otherwise or {})
        rng = ir.Range("", over._range, _block(block), after=None if after is None else _block(after))
        self._check_part(rng)
        yield from self._loop(
            ir.Loop(rng, [], independent, started, self._condition(rng, keys_of, queries_of)), otherwise
        )

    def first(self, over: Index, size: Block | int) -> Iterator[Index]:
        """Loop once, over the first `size` indices of a dimension, or over all if there are fewer.

        Tiles that are read here before an inner loop stay while it runs; `tiles(…, after=size)` covers the others.
        """
        started = line()
        self._body()
        if not isinstance(over, Index):
            raise TraceError(f"{where()}: first takes a dimension.")
        rng = ir.Range("", over._range, _block(size), first=True)
        self._check_part(rng)
        yield from self._loop(ir.Loop(rng, [], False, started), None)

    def _check_part(self, rng: ir.Range) -> None:
        if not rng.first and rng.after is None:
            return
        if rng.parent is None or rng.parent.parent is not None:
            raise TraceError(f"{where()}: only a whole dimension is cut into a first part and the others.")

    def _loop(self, loop: ir.Loop, otherwise: Mapping[Tensor, float] | None) -> Iterator[Index]:
        """Trace a loop's body, which the caller runs for the index that this yields."""
        self._emit(loop)
        for index in self._iterations(loop):
            self._indices[index._range] = index
            self._open_scope(loop.body)
            try:
                yield index
            except GeneratorExit:
                self._left_early = f"line {loop.line}"
                return
            self._name_things()
            index._range.name = index._range.name or f"{index._range.dim}'"
            self._close_scope(f"the end of the loop in line {loop.line}")
            index._alive = False
        if otherwise and loop.when:
            self._leave_out(loop, otherwise)

    def _iterations(self, loop: ir.Loop) -> Iterator[Index]:
        """Yield an index for each time that a loop's body is run: one, which stands for all tiles."""
        yield Index(loop.range)

    def _condition(self, tiles: ir.Range, keys_of: Index | None, queries_of: Index | None) -> ir.MaskCondition | None:
        """Return the condition of a loop; None without a mask."""
        other = queries_of if keys_of is None else keys_of
        if other is None:
            return None
        if keys_of is not None and queries_of is not None:
            raise TraceError(f"{where()}: give either keys_of or queries_of, not both.")
        option = "queries_of" if keys_of is None else "keys_of"
        queries, keys = self._problem.pairs or (tiles.dim, tiles.dim)
        tiled, wanted = (queries, keys) if keys_of is None else (keys, queries)
        if tiles.dim != tiled:
            raise TraceError(f"{where()}: a loop with {option} must run over {tiled}, not over {tiles.dim}.")
        if not isinstance(other, Index) or not other._alive or other._range.dim != wanted:
            raise TraceError(f"{where()}: {option} takes dimension {wanted} or an open loop over it.")
        rows, columns = (other._range, tiles) if queries_of is None else (tiles, other._range)
        within_first = columns.parent is not None and columns.parent.first
        if _depth(rows) > 2 or _depth(columns) > 1 + within_first:
            raise TraceError(
                f"{where()}: a mask applies to tiles of {queries}, to tiles of these, to tiles of {keys}, and to tiles "
                f"of the first {keys}; not to smaller tiles."
            )
        if not self._program.pairs:
            return None
        return ir.MaskCondition(rows, columns)

    def _check_left_out(self, values: Mapping[Tensor, float]) -> None:
        if not isinstance(values, Mapping):
            raise TraceError(f"{where()}: otherwise takes tensors and the constants 0 or -inf.")
        for tensor, value in values.items():
            if not isinstance(tensor, Tensor) or isinstance(value, Value) or value not in CONSTANTS:
                raise TraceError(f"{where()}: otherwise takes tensors and the constants 0 or -inf.")
            if tensor._tensor.name in self._program.inputs:
                raise TraceError(f"{where()}: writes {tensor._tensor.name}, which is an input.")

    def _leave_out(self, loop: ir.Loop, values: Mapping[Tensor, float]) -> None:
        """Write constants for the tiles that a loop skips, in a loop over these."""
        assert loop.when
        sides = loop.when.rows, loop.when.columns

        def pair(tile: ir.Range) -> tuple[ir.Range, ir.Range]:
            rows, columns = (tile if side is loop.range else side for side in sides)
            return rows, columns

        rng = ir.Range(loop.range.name, loop.range.parent, loop.range.block)
        skipped = ir.Loop(rng, [], loop.independent, loop.line, ir.MaskCondition(*pair(rng), none=True))
        for index in self._loop(skipped, None):
            tile = index._range
            for tensor, value in values.items():
                whole = tensor[:]._ranges
                ranges = pair(tile) if tensor.over_pairs else tuple(tile if x.dim == tile.dim else x for x in whole)
                self._emit(ir.Init(tensor._tensor, ranges, float(value), loop.line))
                self._written.add(tensor._tensor.name)

    def quotient(self, dim: Index, block: Block | int) -> Quotient:
        """Return ⌈dim/block⌉, the first dimension of a tensor that has a separate copy for each tile of a dimension."""
        if not isinstance(dim, Index) or dim._range.parent is not None:
            raise TraceError(f"{where()}: quotient takes a whole dimension, such as Q.shape[0], and a block.")
        return Quotient(ir.Quotient(dim._range.dim, _block(block)))

    def tensor(self, name: str, *shape: Index | Quotient) -> Tensor:
        """Declare a tensor in memory to write to: an output of the problem or an intermediate.

        Its shape is one or two whole dimensions, optionally preceded by a `quotient`.
        """
        if name in self._program.tensors:
            raise TraceError(f"{where()}: tensor {name} exists already.")
        apart = shape[0]._quotient if shape and isinstance(shape[0], Quotient) else None
        shape = shape[1:] if apart else shape
        dims = tuple(index._range.name for index in shape if isinstance(index, Index) and index._range.parent is None)
        if len(dims) != len(shape) or len(dims) not in (1, 2):
            raise TraceError(f"{where()}: the shape of {name} must be one or two whole dimensions.")
        results = {**self._problem.outputs, **self._problem.extra}
        expected = results.get(name, dims)
        if dims != tuple(expected) or (apart and name in results):
            described = ", ".join((*([str(apart)] if apart else ()), *dims))
            raise TraceError(f"{where()}: output {name} has shape ({', '.join(expected)}), not ({described}).")
        if name in self._problem.extra:
            self._program.outputs += (name,)
        return self._declare(name, dims, apart)

    # -- primitives ------------------------------------------------------------------------------------------

    def read(self, part: Tensor | Part) -> Tile:
        """Read a part of a tensor: memory → cache."""
        tensor, ranges, at = _part(part)
        if tensor.name not in self._program.inputs and tensor.name not in self._written:
            raise TraceError(f"{where()}: reads {tensor.name}, which was never written.")
        for other, copy in self._copies.items():
            alike = copy.tensor is tensor and copy.at is at
            if alike and _overlap(other.ranges, ranges):
                raise TraceError(
                    f"{where()}: {tensor.name}[{names_of(ranges)}] is already in the cache, "
                    f"since line {int(copy.line)}; use that tile or a part of it."
                )
        tile = self._enter(ranges, "full")
        self._copies[tile] = ir.Read(tile, tensor, line(), at)
        self._emit(self._copies[tile])
        return Tile(self, ir.Ref(tile, tile.ranges))

    def write(self, part: Tensor | Part, value: Tile | float) -> None:
        """Write a computed tile, or a constant 0 or -inf: cache → memory."""
        tensor, ranges, at = _part(part)
        if tensor.name in self._program.inputs:
            raise TraceError(f"{where()}: writes {tensor.name}, which is an input.")
        if not isinstance(value, Value) and value in CONSTANTS:
            if tensor.apart:
                raise TraceError(f"{where()}: {tensor.name} is kept apart for tiles; write tiles to it, no constant.")
            self._emit(ir.Init(tensor, ranges, float(value), line()))
        elif not isinstance(value, Tile):
            raise TraceError(
                f"{where()}: writes an expression that was not computed; use m.compute(...) to make a tile."
            )
        else:
            ref = value._expr
            self._check_resident(ref.tile)
            if ref.transposed or ref.ranges != ref.tile.ranges or not same(ref.ranges, ranges):
                raise TraceError(
                    f"{where()}: a tile of shape ({names_of(ref.shape)}) does not fit "
                    f"{tensor.name}[{names_of(ranges)}]; a whole tile must be written to the part of a tensor "
                    "with the same indices."
                )
            self._emit(ir.Write(ref.tile, tensor, line(), at))
        self._written.add(tensor.name)

    def add(self, part: Tensor | Part, value: Value) -> None:
        """Add to a part of a tensor: it is read, added to and written, two words for each element.

        Where a loop's iterations share only such sums, they can run in parallel if memory adds by itself.
        """
        total = self.read(part)
        total._expr.tile.name = f"{_part(part)[0].name}_added"
        total += value
        self.write(part, total)
        self.delete(total)

    def zeros(self, *shape: Index) -> Tile:
        """Create a tile for a sum that starts at 0, of shape (rows, columns), or (rows,) for a vector."""
        tile = self._enter(_open(shape), "empty")
        self._emit(ir.Zeros(tile, line()))
        return Tile(self, ir.Ref(tile, tile.ranges))

    def constant(self, value: float, *shape: Index) -> Tile:
        """Create a tile whose elements all have the value 0 or -inf; shape as for `zeros`."""
        if value not in CONSTANTS:
            raise TraceError(f"{where()}: a constant must be 0 or -inf, not {value!r}.")
        tile = self._enter(_open(shape), "full")
        self._emit(ir.Constant(tile, float(value), line()))
        return Tile(self, ir.Ref(tile, tile.ranges))

    def move(self, source: Tile, target: Tile) -> None:
        """Move the words of `source` to `target`.

        The old words of `target` are deleted, and `source` is no longer a tile.
        """
        if not isinstance(source, Tile) or not isinstance(target, Tile):
            raise TraceError(f"{where()}: move takes two tiles.")
        self._check_resident(source._expr.tile)
        self._check_entered_here(source._expr.tile)
        self._check_in_cache(target._expr.tile)
        if source._expr.tile is target._expr.tile or not same(source._expr.tile.ranges, target._expr.tile.ranges):
            raise TraceError(f"{where()}: move takes two tiles of the same shape.")
        self._copies.pop(target._expr.tile, None)
        self._emit(ir.Move(target._expr.tile, source._expr.tile, line()))
        self._state[target._expr.tile] = "full"
        self._leave(source._expr.tile, f"was moved in line {line()}")

    def compute(self, value: Value) -> Tile:
        """Compute an expression into a new tile."""
        if isinstance(value, Tile) or not isinstance(value, Value):
            raise TraceError(f"{where()}: compute takes an expression such as a @ b or exp(x), and returns a new tile.")
        expr = value._use()
        tile = self._enter(expr.shape, "full")
        target = ir.Ref(tile, tile.ranges)
        self._emit(ir.Compute(target, expr, "new", line()))
        return Tile(self, target)

    def delete(self, *tiles: Tile) -> None:
        """Delete tiles from the cache."""
        for tile in tiles:
            if not isinstance(tile, Tile):
                raise TraceError(f"{where()}: delete takes tiles.")
            held = tile._expr.tile
            self._check_in_cache(held)
            self._check_entered_here(held)
            self._emit(ir.Delete(held, False, line()))
            self._leave(held, f"was deleted in line {line()}")


def trace(
    function: Callable[..., None],
    name: str,
    problem: Problem,
    inputs: tuple[str, ...],
    blocks: tuple[str, ...],
    masked: bool = False,
) -> ir.Program:
    """Run a schedule once on symbols. With `masked`, its loops state which tiles they skip under a mask.

    Raises:
        TraceError: the schedule does something impossible on a cache; the message names its source line.
    """
    beginning = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
    m = Machine(name, problem, masked)
    shapes = {**problem.inputs, **problem.kept}
    tensors = [m._declare(tensor, tuple(shapes[tensor])) for tensor in inputs]
    m._program.inputs = inputs
    try:
        function(m, *tensors, **{block: Block(block) for block in blocks})
    except PebblesimError:
        raise
    except Exception as error:
        what = what_raised(error, inputs, blocks)
        raise TraceError(f"{where_raised(error, beginning)}: {what}") from error
    return m._finish(blocks, beginning)


def _overlap(a: ir.Ranges, b: ir.Ranges) -> bool:
    """Whether two parts of a tensor overlap in every iteration: in each dimension, one contains the other."""
    return all(is_part_of(x, y) or is_part_of(y, x) for x, y in zip(a, b, strict=True))


def _depth(rng: ir.Range) -> int:
    """0 for a whole dimension, 1 for its tiles, 2 for tiles of these."""
    return 0 if rng.parent is None else 1 + _depth(rng.parent)


def _open(shape: tuple[Index, ...]) -> ir.Ranges:
    if len(shape) not in (1, 2):
        raise TraceError(f"{where()}: a shape is (rows,) or (rows, columns); got {len(shape)} indices.")
    for index in shape:
        if not isinstance(index, Index) or not index._alive:
            raise TraceError(f"{where()}: a shape must consist of dimensions and indices of open loops.")
    return tuple(index._range for index in shape)


def _block(block: Block | int) -> str | int:
    """A block's name, or its size."""
    if isinstance(block, Block):
        return block._name
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise TraceError(f"{where()}: a block must be a block size of the schedule or a positive number.")
    return block


def _part(part: Tensor | Part) -> tuple[ir.Tensor, ir.Ranges, ir.Range | None]:
    if isinstance(part, Tensor):
        part = part[:]
    if not isinstance(part, Part):
        raise TraceError(f"{where()}: expected a part of a tensor in memory, such as A1[i, k].")
    return part._tensor, part._ranges, part._at
