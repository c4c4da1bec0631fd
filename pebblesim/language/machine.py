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

from pebblesim.core.errors import PebblesimError, TraceError, UsageError
from pebblesim.language import program as ir
from pebblesim.language.carried import Names
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
    label_of,
    names_of,
    same,
)
from pebblesim.language.problems import Problem
from pebblesim.language.repeats import check_repeats
from pebblesim.language.source import frame, line, what_raised, where, where_raised


class Machine:
    """The two-level memory on which a schedule is traced."""

    def __init__(self, name: str, problem: Problem, masked: bool = False) -> None:
        self._problem = problem
        pairs = problem.pairs if masked else None
        self._program = ir.Program(name, problem.dims, (), {}, (), tuple(problem.outputs), [], pairs)
        self._whole = {dim: Index(_whole_range(dim, problem)) for dim in problem.dims}
        self._indices = {index._range: index for index in self._whole.values()}
        self._scopes: list[tuple[list[ir.Node], list[ir.Tile]]] = []  # (body, tiles created in it)
        self._state: dict[ir.Tile, str] = {}  # "empty", "full", or the way it left the cache
        self._copies: dict[ir.Tile, ir.Read] = {}  # tiles that hold what was read
        self._written: set[str] = set()
        self._unused: dict[int, Value] = {}
        self._updated: Tile | None = None
        self._left_early: str | None = None
        self._implicit = False

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
        if self._program.pairs:
            raise UsageError(
                f"{self._program.name} treats the first tile of {rng.dim} apart, which is not defined under a mask; "
                "leave the mask out, or take another schedule."
            )

    def _loop(self, loop: ir.Loop, otherwise: Mapping[Tensor, float] | None) -> Iterator[Index]:
        """Trace a loop's body, which the caller runs for the index that this yields."""
        index, started, body = Index(loop.range), loop.line, self._body()
        self._indices[index._range] = index
        names = Names(line(), self._gone)
        body.append(loop)
        self._scopes.append((loop.body, []))
        try:
            yield index
        except GeneratorExit:
            self._left_early = f"line {started}"
            return
        self._name_things()
        index._range.name = index._range.name or f"{index._range.dim}'"
        self._close_scope(f"the end of the loop in line {started}")
        index._alive = False
        names.check()
        if otherwise and loop.when:
            body.append(self._left_out(loop, otherwise))

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
        if _depth(rows) > 2 or _depth(columns) > 1:
            raise TraceError(
                f"{where()}: a mask applies to tiles of {queries}, to tiles of these, and to tiles of {keys}; not to "
                "smaller tiles."
            )
        if not self._program.pairs:
            return None
        return ir.MaskCondition(rows, columns)

    def _left_out(self, loop: ir.Loop, values: Mapping[Tensor, float]) -> ir.Loop:
        """Return the loop over the skipped tiles, which writes constants."""
        assert loop.when
        rng = ir.Range(loop.range.name, loop.range.parent, loop.range.block)
        rows, columns = (rng if each is loop.range else each for each in (loop.when.rows, loop.when.columns))
        body: list[ir.Node] = []
        for tensor, value in values.items():
            if not isinstance(tensor, Tensor) or value not in CONSTANTS:
                raise TraceError(f"{where()}: otherwise takes tensors and the constants 0 or -inf.")
            if tensor._tensor.name in self._program.inputs:
                raise TraceError(f"{where()}: writes {tensor._tensor.name}, which is an input.")
            whole = tensor[:]._ranges
            ranges = (rows, columns) if tensor.over_pairs else tuple(rng if x.dim == rng.dim else x for x in whole)
            body.append(ir.Init(tensor._tensor, ranges, float(value), loop.line))
            self._written.add(tensor._tensor.name)
        return ir.Loop(rng, body, loop.independent, loop.line, ir.MaskCondition(rows, columns, none=True))

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
            if alike and self._state[other] == "full" and _overlap(other.ranges, ranges):
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
        self._state[source._expr.tile] = f"was moved in line {line()}"

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
            self._state[held] = f"was deleted in line {line()}"

    # -- expressions -----------------------------------------------------------------------------------------

    def _elementwise(self, op: str, *values: Value) -> Value:
        operands = tuple(value._use() for value in values)
        for operand in operands:
            if isinstance(operand, ir.MatMul | ir.RowReduction):
                raise TraceError(f"{where()}: a product or row sum must be computed before {op} can use it.")
            if isinstance(operand, ir.Ref) and operand.transposed:
                raise TraceError(
                    f"{where()}: {op} takes tiles that are not transposed; only products accept a transpose."
                )
        shape = max((operand.shape for operand in operands), key=len)
        for operand in operands:
            if not same(operand.shape, shape[: len(operand.shape)]):
                raise TraceError(
                    f"{where()}: shapes do not match: {op} of ({names_of(operands[0].shape)}) and "
                    f"({names_of(operands[-1].shape)})."
                )
        return Value(self, ir.Elementwise(op, operands, shape))

    def _matmul(self, left: Value, right: Value) -> Value:
        if not isinstance(left, Tile) or not isinstance(right, Tile):
            raise TraceError(f"{where()}: a product takes two tiles; compute its operands first.")
        a, b = left._use(), right._use()
        assert isinstance(a, ir.Ref) and isinstance(b, ir.Ref)
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] is not b.shape[0]:
            raise TraceError(f"{where()}: shapes do not match: ({names_of(a.shape)}) @ ({names_of(b.shape)}).")
        return Value(self, ir.MatMul(a, b, (a.shape[0], b.shape[1])))

    def _assign(self, target: Tile, value: Value) -> None:
        if not isinstance(value, Value):
            raise TraceError(f"{where()}: only an expression over tiles can be assigned.")
        expr = value._use()
        self._check_in_cache(target._expr.tile)
        _check_as_it_lies(target)
        if not isinstance(expr, ir.Elementwise):
            raise TraceError(f"{where()}: x[:] = ... takes an elementwise expression.")
        if not same(expr.shape, target._expr.shape):
            raise TraceError(
                f"{where()}: shapes do not match: ({names_of(expr.shape)}) into ({names_of(target._expr.shape)})."
            )
        self._check_resident(target._expr.tile)
        self._copies.pop(target._expr.tile, None)
        self._emit(ir.Compute(target._expr, expr, "assign", line()))

    def _add(self, target: Tile, value: Value) -> None:
        if isinstance(value, Value) and not isinstance(value._expr, ir.MatMul | ir.RowReduction):
            self._assign(target, self._elementwise("add", target, value))
            return
        if not isinstance(value, Value):
            raise TraceError(f"{where()}: += takes a product, a row sum or an elementwise expression.")
        expr = value._use()
        self._check_in_cache(target._expr.tile)
        _check_as_it_lies(target)
        if isinstance(expr, ir.RowReduction) and expr.op == "rowmax":
            raise TraceError(f"{where()}: += adds; for a running maximum use maximum(x, y).")
        if not same(expr.shape, target._expr.shape):
            raise TraceError(
                f"{where()}: shapes do not match: ({names_of(target._expr.shape)}) += ({names_of(expr.shape)})."
            )
        if any(ref.tile is target._expr.tile for ref in ir.refs(expr)):
            raise TraceError(f"{where()}: a tile cannot be a term of its own sum.")
        self._copies.pop(target._expr.tile, None)
        self._emit(ir.Compute(target._expr, expr, "add", line()))
        self._state[target._expr.tile] = "full"

    # -- bookkeeping -----------------------------------------------------------------------------------------

    def _declare(self, name: str, dims: tuple[str, ...], apart: ir.Quotient | None = None) -> Tensor:
        self._program.tensors[name] = ir.Tensor(name, dims, apart)
        return Tensor(self, self._program.tensors[name])

    def _open_phase(self, name: str) -> None:
        self._program.phases.append(ir.Phase(name))
        self._scopes.append((self._program.phases[-1].body, []))

    def _body(self) -> list[ir.Node]:
        if self._left_early:
            raise TraceError(
                f"{where()}: the loop in {self._left_early} was left with break or return; a schedule "
                "runs every loop to its end."
            )
        if not self._scopes:
            if self._program.phases and not self._implicit:
                raise TraceError(f"{where()}: a statement between phases; move it into a phase.")
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
            if self._state[tile] == "empty":
                raise TraceError(f"{where()}: {label_of(tile)} was created for a sum that gets no terms before {when}.")
            if self._state[tile] == "full":
                body.append(ir.Delete(tile, True, 0))
                self._state[tile] = f"left the cache at {when}"

    def _gone(self, value: Index | Value) -> bool:
        """Whether an index or an expression can no longer be used."""
        if isinstance(value, Index):
            return not value._alive
        refs = tuple(ir.refs(value._expr))
        alive = all(self._indices[rng]._alive for ref in refs for rng in ref.ranges)
        return not alive or any(self._state[ref.tile] not in ("empty", "full") for ref in refs)

    def _check_in_cache(self, tile: ir.Tile) -> None:
        if self._state[tile] not in ("empty", "full"):
            raise TraceError(f"{where()}: {label_of(tile)} is not in cache: it {self._state[tile]}.")

    def _check_entered_here(self, tile: ir.Tile) -> None:
        if not any(tile is entered for entered in self._scopes[-1][1]):
            raise TraceError(
                f"{where()}: {label_of(tile)} was created outside this loop, so the loop cannot delete it in "
                "every iteration."
            )

    def _check_resident(self, tile: ir.Tile) -> None:
        self._check_in_cache(tile)
        if self._state[tile] == "empty":
            raise TraceError(f"{where()}: {label_of(tile)} was never computed: it has no value yet.")

    def _name_things(self) -> None:
        """Name tiles and loops after the schedule's variables."""
        for name, value in frame().f_locals.items():
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
            raise TraceError(f"{value._line}: an expression is never computed; use m.compute(...) to make a tile.")
        for output in self._program.outputs:
            if output not in self._written:
                others = ", ".join(sorted(self._written - set(self._program.outputs)))
                written = f" The schedule writes {others}: is {output} misspelt?" if others else ""
                raise TraceError(f"{where}: output {output} is never written.{written}")
        self._program.blocks = blocks
        check_repeats(self._program)
        return self._program


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


def _whole_range(dim: str, problem: Problem) -> ir.Range:
    return ir.Range(dim, pairs=problem.pairs if dim in (problem.pairs or ()) else None)


def _check_as_it_lies(target: Tile) -> None:
    if target._expr.transposed:
        raise TraceError(f"{where()}: a transposed tile cannot be assigned to; transpose the other side.")


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
