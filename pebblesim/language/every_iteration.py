"""Whether a schedule does in every iteration what its trace says: it runs again, tile by tile, at a few small sizes.

A loop's body is traced once, for all its iterations. Python state that one iteration hands to another, or one run of
the schedule to another, is lost in the trace. So the function runs again on concrete tiles, and each of its moves must
be the next one that the traced program makes at these sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pebblesim.core.errors import PebblesimError, TraceError
from pebblesim.core.sizes import listed
from pebblesim.language import program as ir
from pebblesim.language.expressions import Block
from pebblesim.language.loops import EveryTile
from pebblesim.language.problems import Problem
from pebblesim.language.small_sizes import small_sizes
from pebblesim.language.source import Line, frame, what_raised, where_is, where_raised
from pebblesim.language.tile_by_tile import Bounds, Move, TileByTile

ADVICE = (
    "A loop's body is traced once, for all its iterations: write a separate loop for what differs (m.first, and "
    "m.tiles with after=), and keep what changes in a tile (x[:] = ..., x += ...)."
)
AGAIN = "What a schedule does must not depend on chance, on time, or on what an earlier run of it left behind."

STRUCTURE = ("phase", "loop", "tile", "end")
"""Moves that move nothing."""


def check_every_iteration(function: Callable[..., None], program: ir.Program, problem: Problem) -> None:
    """Run a schedule tile by tile, and compare its moves with those of its trace, a program with or without a mask.

    Raises:
        TraceError: they differ; the message names the line of the schedule and says what the two do.
    """
    for number, sizes in enumerate(small_sizes(program)):
        allowed = _mask(number, *program.grid(sizes)) if program.pairs else None
        _Run(_Traced(program, sizes, allowed), problem).check(function, program)


def _mask(number: int, queries: int, keys: int) -> Any:
    """Return the allowed pairs: causal, a window, or drawn ones, in turn."""
    import numpy as np

    after = np.arange(keys) - np.arange(keys - queries, keys)[:, None]
    drawn = np.random.default_rng(number).random((queries, keys)) < 0.5
    return (after <= 0, abs(after) < 3, drawn)[number % 3]


class _Traced(EveryTile):
    """The moves of a traced program, in the form of `TileByTile`, each with its line."""

    def __init__(self, program: ir.Program, sizes: ir.Sizes, allowed: Any) -> None:
        super().__init__(sizes, allowed)
        self.moves: list[Move] = []
        self.lines: list[int] = []
        self.tiles: list[ir.Tile] = []  # by their numbers
        self._numbers: dict[ir.Tile, int] = {}
        for phase in program.phases:
            if phase.name != program.name:  # else the schedule is one phase, without saying so
                self._do(("phase", phase.name), 0)
            self._run(phase.body)

    def _do(self, move: Move, line: int) -> None:
        self.moves.append(move)
        self.lines.append(line)

    def _run(self, body: list[ir.Node]) -> None:
        for node in body:
            if isinstance(node, ir.Loop):
                allowed = None if node.when is None else not node.when.none
                self._do(("loop", node.range.dim, node.independent, allowed), node.line)
                for _ in self.iterations(node):
                    self._do(("tile", self._bounds[node.range]), node.line)
                    self._run(node.body)
                self._do(("end",), node.line)
            elif not (isinstance(node, ir.Delete) and node.implied):
                self._do(self._move(node), node.line)

    def _move(self, node: ir.Node) -> Move:
        match node:
            case ir.Compute(target=target, expr=expr, mode="new"):
                value = self._value(expr)
                self._enter(target.tile)
                return "compute", value
            case ir.Compute(target=target, expr=expr, mode=mode):
                return mode, self._value(target), self._value(expr)
            case ir.Read(tile=tile, tensor=tensor, at=at):
                self._enter(tile)
                return "read", tensor.name, at and self.bounds(at), *map(self.bounds, tile.ranges)
            case ir.Write(tile=tile, tensor=tensor, at=at):
                bounds = [*map(self.bounds, tile.ranges)]
                return "write", tensor.name, at and self.bounds(at), *bounds, (self._numbers[tile], *bounds, False)
            case ir.Init(tensor=tensor, ranges=ranges, value=value):
                return "fill", tensor.name, None, *map(self.bounds, ranges), value
            case ir.Zeros(tile=tile):
                self._enter(tile)
                return "zeros", *map(self.bounds, tile.ranges)
            case ir.Constant(tile=tile, value=value):
                self._enter(tile)
                return "constant", value, *map(self.bounds, tile.ranges)
            case ir.Move(tile=tile, source=source):
                return "move", self._numbers[source], self._numbers[tile]
            case ir.Delete(tile=tile):
                return "delete", self._numbers[tile]
        raise AssertionError(node)

    def _enter(self, tile: ir.Tile) -> None:
        self._numbers[tile] = len(self.tiles)
        self.tiles.append(tile)

    def _value(self, expr: ir.Expr) -> Move:
        match expr:
            case ir.Ref(tile=tile, ranges=ranges, transposed=transposed):
                return self._numbers[tile], *map(self.bounds, ranges), transposed
            case ir.Elementwise(op=op, operands=operands):
                return op, *map(self._value, operands)
            case ir.RowReduction(op=op, operand=operand):
                return op, self._value(operand)
            case ir.MatMul(left=left, right=right):
                return "matmul", self._value(left), self._value(right)


class _Run:
    """One run of a schedule, move by move beside its trace."""

    def __init__(self, traced: _Traced, problem: Problem) -> None:
        self.traced, self.problem = traced, problem
        self.machine = TileByTile(problem, traced.sizes, self._do, traced.allowed)
        self.lines: list[tuple[int, str]] = []  # the number and the file of the line of each move
        self.fault: TraceError | None = None

    def check(self, function: Callable[..., None], program: ir.Program) -> None:
        """
        Raises:
            TraceError: the run is not what the trace says.
        """
        shapes = {**self.problem.inputs, **self.problem.kept}
        tensors = [self.machine._declare(name, tuple(shapes[name])) for name in program.inputs]
        try:
            function(self.machine, *tensors, **{block: Block(block) for block in program.blocks})
        except PebblesimError as error:
            self.fault = self.fault or self._impossible(str(error))
        except Exception as error:
            what = what_raised(error, program.inputs, program.blocks)
            self.fault = self.fault or self._impossible(f"{where_raised(error, program.name)}: {what}")
        if self.fault is None and len(self.lines) < len(self.traced.moves):
            self.fault = self._difference(None)
        if self.fault:
            raise self.fault

    def _do(self, move: Move) -> None:
        at, moves, here = len(self.lines), self.traced.moves, frame()
        self.lines.append((here.f_lineno, here.f_code.co_filename))
        if self.fault is None and (at >= len(moves) or move != moves[at]):
            self.fault = self._difference(move)
        if self.fault:
            raise self.fault  # again, if the schedule has caught it

    # -- what is said of a fault -----------------------------------------------------------------------------

    def _difference(self, done: Move | None) -> TraceError:
        """Return the fault that a move is not the next one of the trace; None stands for the end of the schedule."""
        sizes = listed(self.traced.sizes)
        if self.machine._left:
            loop, iteration = self.machine._left[-1]
            return TraceError(
                f"{loop.where}: this loop is left in iteration {iteration} ({sizes}), by break, return or a shorter "
                "sequence beside it; a schedule runs every loop to its end."
            )
        moves, lines = self.traced.moves, self.traced.lines
        at = len(self.lines) - (done is not None)
        while at and moves[at - 1][0] not in STRUCTURE and self.lines[at - 1][0] != lines[at - 1]:
            at -= 1  # the same move, but of another line
            done = moves[at]
        expected, place = (moves[at], lines[at]) if at < len(moves) else (None, 0)
        mine = Line(*self.lines[at]) if done else place
        said = self._said(done, mine), self._said(expected, place)
        when, advice = self._context()
        here = where_is(place if expected and expected[0] not in STRUCTURE else mine)
        return TraceError(
            f"{here}: {when} the schedule does not do what its trace says: {said[0]}, where in the trace {said[1]} "
            f"({sizes}). {advice}"
        )

    def _impossible(self, error: str) -> TraceError:
        when, advice = self._context()
        return TraceError(
            f"{error.removesuffix('.')}. This happens {when} ({listed(self.traced.sizes)}), not in the trace. {advice}"
        )

    def _context(self) -> tuple[str, str]:
        """Return where the run is, and what to do."""
        machine = self.machine
        for loop, iteration in reversed(machine._left or machine._open):
            if iteration > 1:
                return f"in iteration {iteration} of the loop in line {loop}", ADVICE
        if machine._ran_on:
            return f"after all iterations of the loop in line {machine._ran_on}", ADVICE
        return "when it runs again", AGAIN

    def _said(self, move: Move | None, number: int) -> str:
        match move:
            case None:
                return "the schedule ends"
            case "phase", name:
                return f"phase {name!r} begins"
            case "tile", _:
                return f"another iteration of the loop in line {number} begins"
            case ("end",):
                return f"the loop in line {number} ends"
            case "loop", dim, independent, _:
                return f"{'an independent' if independent else 'a'} loop over {dim} begins in line {number}"
            case "read" | "write" as verb, name, _, *ranges:
                what = f"{verb}s {_part(name, [each for each in ranges if len(each) == 2])}"
            case "fill", name, _, *ranges, value:
                what = f"writes {value:g} to {_part(name, ranges)}"
            case "zeros" | "constant", *_:
                what = "makes a tile"
            case "compute", value:
                what = f"computes {self._written(value)}"
            case "add" | "assign" as mode, target, value:
                what = f"{'adds to' if mode == 'add' else 'sets'} {self._written(target)}: {self._written(value)}"
            case "move", source, target:
                what = f"moves {self._name(source)} to {self._name(target)}"
            case "delete", number_of_tile:
                what = f"deletes {self._name(number_of_tile)}"
        return f"line {number} {what}"

    def _name(self, tile: int) -> str:
        return self.traced.tiles[tile].name or "a tile"

    def _written(self, value: Move) -> str:
        match value:
            case int() as tile, *ranges, transposed:
                return _part(self._name(tile), ranges) + (".T" if transposed else "")
            case op, *operands:
                return f"{op}({', '.join(map(self._written, operands))})"
        raise AssertionError(value)


def _part(name: str, ranges: Sequence[Bounds]) -> str:
    return f"{name}[{', '.join(f'{start}:{stop}' for start, stop in ranges)}]"
