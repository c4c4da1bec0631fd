"""Constants of a program under a mask: sums of rows and columns without an allowed pair, and values computed from them.

These constants are not computed, as stated in `pebblesim.game.numbering`. One pass through the program tracks for each
tile and tensor the rows or columns that hold a constant, 0 or -inf.
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import inf
from operator import and_, or_
from typing import Any

from pebblesim.core.sizes import tile_starts
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask

Lines = Any  # a set of rows or columns: one boolean for all, or an array of booleans
State = dict[float, Lines]  # for each constant, 0 or -inf: the rows or columns that hold it

_OF_CONSTANTS = {"exp", "log", "mul", "add", "sub", "div", "max"}


class Constants:
    """Constants of a program under a mask: sums of rows and columns without an allowed pair, and values computed from
    them.

    These constants are not computed, as stated in `pebblesim.game.numbering`.

    Attributes:
        folded: for an elementwise operation, by id, the rows or columns for which it is not computed.
        left_out: for a product, by id of its node, the terms that are left out of a sum kept in memory, or of one over
            the lines with an allowed pair alone.
        of_pairs: ids of the nodes of products whose terms are such lines.
        apart: separate sums over one tile of rows or columns, and the nodes that compute them.
    """

    def __init__(self, program: ir.Program, sizes: ir.Sizes, mask: Mask | None) -> None:
        self.folded: dict[int, Lines] = {}
        self.left_out: dict[int, Lines] = {}
        self.of_pairs: set[int] = set()
        self.apart: dict[ir.Tile, ir.Compute] = {}
        self.sizes = sizes
        self.conditions: list[ir.MaskCondition] = []  # of the enclosing loops
        self._known: dict[tuple[ir.Range, tuple[int, ...]], Lines] = {}  # many nodes of a loop visit the same lines
        self.held: dict[ir.Tile | str, State] = {}  # by tile, and by tensor in memory
        self.waiting: dict[ir.Tile, str] = {}  # partial sums that were read from memory, and their tensors
        if mask is not None:
            self.mask = mask
            for phase in program.phases:
                self._body(phase.body)

    def _body(self, body: list[ir.Node]) -> None:
        for node in body:
            match node:
                case ir.Loop():
                    self._loop(node)
                case ir.Read(tile=tile, tensor=tensor):
                    self.held[tile] = self.held.get(tensor.name, {})
                    self.waiting[tile] = tensor.name
                case ir.Write(tile=tile, tensor=tensor):
                    self._put(tensor.name, self.held.get(tile, {}), tile.ranges)
                case ir.Init(tensor=tensor, ranges=ranges, value=value):
                    self._put(tensor.name, _everywhere(value), ranges)
                case ir.Zeros(tile=tile):
                    self.held[tile] = _everywhere(0)
                case ir.Constant(tile=tile, value=value):
                    self.held[tile] = _everywhere(value)
                case ir.Move(tile=tile, source=source):
                    self.held[tile] = self.held.get(source, {})
                    self.waiting.pop(tile, None)
                    if source in self.waiting:
                        self.waiting[tile] = self.waiting.pop(source)
                case ir.Compute(target=target, expr=ir.Elementwise() as expr):
                    self._put(target.tile, self._elementwise(expr), target.ranges)
                    self.waiting.pop(target.tile, None)
                case ir.Compute():
                    self._sum(node)
                case _:
                    pass

    def _loop(self, loop: ir.Loop) -> None:
        """Values computed in a loop over pairs are no constants in it; lines that it never visits keep their state."""
        of_loop = [] if loop.when is None else [loop.when]
        self.conditions += of_loop
        before: dict[ir.Tile | str, tuple[State, Lines]] = {}
        for key, (is_sum, own, lines) in self._changes(loop).items() if loop.range.pairs else ():
            if not is_sum and not own:
                before[key] = self.held.get(key, {}), lines
                self.held[key] = {}
        self._body(loop.body)
        for key, (state, lines) in before.items():
            self.held[key] = _joined(state, self.held[key], lines)
        del self.conditions[len(self.conditions) - len(of_loop) :]

    def _changes(self, loop: ir.Loop) -> dict[ir.Tile | str, tuple[bool, bool, Lines]]:
        """Return the tiles and tensors that a loop changes.

        For each: whether the loop only adds terms to it, whether each iteration changes different rows or columns, and
        which rows or columns are changed.
        """
        inside = list(ir.walk(loop.body))
        read = {node.tile: node.tensor for node in inside if isinstance(node, ir.Read)}
        anew = {node.target.tile for node in inside if isinstance(node, ir.Compute) and not _adds(node)}
        changes: dict[ir.Tile | str, tuple[bool, bool, Lines]] = {}

        def change(key: ir.Tile | str, ranges: ir.Ranges, is_sum: bool) -> None:
            line = _line_range(ranges)
            if line is not None:
                own = any(rng.within(loop.range) for rng in ranges)
                old = changes.get(key, (True, True, False))
                changes[key] = old[0] and is_sum, old[1] and own, old[2] | self._visited(line)

        def visit(body: list[ir.Node]) -> None:
            for node in body:
                match node:
                    case ir.Loop(body=inner, when=when):
                        of_loop = [] if when is None else [when]
                        self.conditions += of_loop
                        visit(inner)
                        del self.conditions[len(self.conditions) - len(of_loop) :]
                    case ir.Compute(target=target):
                        change(target.tile, target.ranges, _adds(node))
                    case ir.Move(tile=tile):
                        change(tile, tile.ranges, False)
                    case ir.Write(tile=tile, tensor=tensor):
                        change(tensor.name, tile.ranges, read.get(tile) is tensor and tile not in anew)
                    case ir.Init(tensor=tensor, ranges=ranges):
                        change(tensor.name, ranges, False)
                    case _:
                        pass

        visit(loop.body)
        return changes

    def _put(self, key: ir.Tile | str, state: State, ranges: ir.Ranges) -> None:
        """Set the state of the rows or columns that the loops visit; keep the others."""
        line = _line_range(ranges)
        if line is not None:
            self.held[key] = _joined(self.held.get(key, {}), state, self._visited(line))

    def _visited(self, rng: ir.Range) -> Lines:
        """Return the rows or columns in tiles that the enclosing loops visit."""
        key = rng, tuple(map(id, self.conditions))
        if key not in self._known:
            self._known[key] = self._visited_by_loops(rng)
        return self._known[key]

    def _visited_by_loops(self, rng: ir.Range) -> Lines:
        import numpy as np

        visited: Lines = np.ones((), bool)
        for line in rng.around:
            visited = visited & self._inside(line)
            for condition in self.conditions:
                if line in (condition.rows, condition.columns):
                    empty = self._empty(line, int(condition.columns is line))
                    other = condition.columns if condition.rows is line else condition.rows
                    if not condition.none:
                        visited = visited & ~empty
                    elif other.parent is None:
                        visited = visited & empty
        return visited

    def _has_pairs(self, rng: ir.Range) -> bool:
        """Whether the enclosing loops run over tiles of this range that have an allowed pair, with any line."""
        ends = [(when.rows, when.columns) for when in self.conditions if not when.none]
        return any(line in rng.around and other.parent is None for pair in ends for line, other in (pair, pair[::-1]))

    def _empty(self, rng: ir.Range, axis: int) -> Lines:
        """Return the rows (axis 0) or columns (1) in tiles of the range without an allowed pair."""
        import numpy as np

        cuts = [axis_range for axis_range in rng.around if axis_range.parent is not None][::-1]
        blocks = [ir.length(cut.block, self.sizes) for cut in cuts]
        grid, whole = ir.grid(rng.pairs, self.sizes), self.sizes[rng.dim]
        if len(blocks) < 2 and not rng.apart:
            return self.mask.empty(grid, min([whole, *blocks]), axis)
        alone = self.mask.empty(grid, 1, axis)
        if not alone.ndim:
            return alone
        begin, end = ir.stretch(cuts[0], whole, self.sizes)
        inside = [begin + start for start in tile_starts(end - begin, *blocks)] if begin < end else []
        starts = sorted({0, *inside, end} - {whole})
        return np.logical_and.reduceat(alone, starts).repeat(np.diff([*starts, whole]))

    def _inside(self, rng: ir.Range) -> Lines:
        """Return the rows or columns of the part of a dimension that a range covers; one value for all of them.

        If each row and each column has a pair, nothing depends on it.
        """
        import numpy as np

        if not rng.first and rng.after is None:
            return np.ones((), bool)
        grid, whole = ir.grid(rng.pairs, self.sizes), self.sizes[rng.dim]
        if not any(self.mask.empty(grid, 1, axis).ndim for axis in (0, 1)):
            return np.ones((), bool)
        begin, end = ir.stretch(rng, whole, self.sizes)
        return (np.arange(whole) >= begin) & (np.arange(whole) < end)

    def _elementwise(self, expr: ir.Expr) -> State:
        """Return the constant part of an expression: where all its operands are constant."""
        if isinstance(expr, ir.Ref):
            return {} if ir.over_pairs(expr.tile.ranges) else self.held.get(expr.tile, {})
        assert isinstance(expr, ir.Elementwise)
        states = [self._elementwise(operand) for operand in expr.operands]
        if expr.op not in _OF_CONSTANTS or ir.over_pairs(expr.shape) or _line_range(expr.shape) is None:
            return {}
        result: State = {}
        for values in product(*states):
            value = _of_constants(expr.op, *values)
            if value in (0, -inf):
                lines = reduce(and_, (state[each] for state, each in zip(states, values, strict=True)))
                result[value] = result.get(value, False) | lines
        if result:
            self.folded[id(expr)] = reduce(or_, result.values())
        return result

    def _sum(self, node: ir.Compute) -> None:
        expr, tile = node.expr, node.target.tile
        line = line_of(expr)
        if isinstance(expr, ir.RowReduction):
            self._elementwise(expr.operand)
        if line is None:
            if isinstance(expr, ir.MatMul) and self._has_pairs(expr.left.shape[1]):
                self.of_pairs.add(id(node))
            if isinstance(expr, ir.MatMul) and (tile in self.waiting or id(node) in self.of_pairs):
                for ref in (expr.left, expr.right):
                    lines = list(self.held.get(ref.tile, {}).values())
                    if lines and expr.left.shape[1].pairs:
                        self.left_out[id(node)] = reduce(or_, lines)
            self.held[tile] = {}
        elif node.mode == "new" and ir.index_of(expr).parent is not None:
            self.apart[tile] = node
            self.held[tile] = {}
        else:
            empty = self.mask.empty(ir.grid(ir.index_of(expr).pairs, self.sizes), 1, line[1])
            maximum = isinstance(expr, ir.RowReduction) and expr.op == "rowmax"
            old = _everywhere(-inf if maximum else 0) if node.mode == "new" else self.held.get(tile, {})
            self._put(tile, {value: lines & empty for value, lines in old.items()}, node.target.ranges)


def _adds(node: ir.Compute) -> bool:
    """Whether the node only adds terms of a sum."""
    return node.mode == "add" and not isinstance(node.expr, ir.Elementwise)


def _joined(old: State, new: State, there: Lines) -> State:
    """Return the new state in some rows or columns, and the old state in the others."""
    both = {value: old.get(value, False) & ~there | new.get(value, False) & there for value in {*old, *new}}
    return {value: lines for value, lines in both.items() if lines.any()}


def _everywhere(value: float) -> State:
    import numpy as np

    return {value: np.ones((), bool)}


def _line_range(ranges: ir.Ranges) -> ir.Range | None:
    """Return the range of rows or columns of pairs that a tile holds values of;

    None if there is none, or if it is over pairs.
    """
    lines = [rng for rng in ranges if rng.pairs]
    return lines[0] if len(lines) == 1 else None


def _of_constants(op: str, *values: float) -> float:
    """Apply an operation to the constants 0 and -inf; 0/0 and (-inf) - (-inf) are 0."""
    import numpy as np

    if op in ("sub", "div") and values[0] == values[1] == (0 if op == "div" else -inf):
        return 0
    names = {"sub": "subtract", "div": "divide", "mul": "multiply", "max": "maximum"}
    with np.errstate(all="ignore"):
        return float(getattr(np, names.get(op, op))(*values))


def line_of(expr: ir.Expr) -> tuple[int, int] | None:
    """For a sum over pairs: the range of its target that is the line of pairs; whether a row (0) or column (1)."""
    if isinstance(expr, ir.RowReduction):
        return (0, 0) if ir.over_pairs(expr.operand.shape) else None
    assert isinstance(expr, ir.MatMul)
    if ir.over_pairs(expr.left.tile.ranges):
        return 0, int(expr.left.transposed)
    if ir.over_pairs(expr.right.tile.ranges):
        return 1, int(not expr.right.transposed)
    return None
