"""The state of the tracer while a schedule runs: open loops, tiles in the cache, expressions still to be computed."""

from __future__ import annotations

from typing import Literal

from pebblesim.core.errors import TraceError
from pebblesim.language import program as ir
from pebblesim.language.expressions import Index, Tensor, Tile, Value, label_of, names_of, same
from pebblesim.language.problems import Problem
from pebblesim.language.repeats import check_repeats
from pebblesim.language.source import frame, line, where


class Tracing:
    """The program as far as it is traced, and the state of each of its tiles."""

    def __init__(self, name: str, problem: Problem, masked: bool = False) -> None:
        self._problem = problem
        pairs = problem.pairs if masked else None
        self._program = ir.Program(name, problem.dims, (), {}, (), tuple(problem.outputs), [], pairs)
        self._whole = {dim: Index(_whole_range(dim, problem)) for dim in problem.dims}
        self._indices = {index._range: index for index in self._whole.values()}
        self._scopes: list[tuple[list[ir.Node], list[ir.Tile]]] = []  # (body, tiles created in it)
        self._state: dict[ir.Tile, str] = {}  # "empty", "full", or the way it left the cache
        self._copies: dict[ir.Tile, ir.Read] = {}  # tiles in the cache that hold what was read
        self._written: set[str] = set()
        self._unused: dict[int, Value] = {}
        self._updated: Tile | None = None
        self._left_early: str | None = None
        self._implicit = False

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

    def _reduced(self, op: Literal["rowsum", "rowmax"], x: Value) -> Value:
        expr = x._use()
        if isinstance(expr, ir.RowReduction | ir.MatMul) or len(expr.shape) != 2:
            raise TraceError(f"{where()}: {op} takes a tile or an elementwise expression with rows and columns.")
        return Value(self, ir.RowReduction(op, expr, expr.shape[:1]))

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

    # -- loops and tiles --------------------------------------------------------------------------------------

    def _declare(self, name: str, dims: tuple[str, ...], apart: ir.Quotient | None = None) -> Tensor:
        self._program.tensors[name] = ir.Tensor(name, dims, apart)
        return Tensor(self, self._program.tensors[name])

    def _open_phase(self, name: str) -> None:
        self._program.phases.append(ir.Phase(name))
        self._open_scope(self._program.phases[-1].body)

    def _open_scope(self, body: list[ir.Node]) -> None:
        self._scopes.append((body, []))

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
                self._leave(tile, f"left the cache at {when}")

    def _leave(self, tile: ir.Tile, how: str) -> None:
        self._state[tile] = how
        self._copies.pop(tile, None)

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
        if len(self._scopes) > self._implicit:
            raise TraceError(f"{where}: a loop or a phase was begun and never ended.")
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


def _whole_range(dim: str, problem: Problem) -> ir.Range:
    return ir.Range(dim, pairs=problem.pairs if dim in (problem.pairs or ()) else None)


def _check_as_it_lies(target: Tile) -> None:
    if target._expr.transposed:
        raise TraceError(f"{where()}: a transposed tile cannot be assigned to; transpose the other side.")
