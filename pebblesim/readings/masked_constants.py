"""What a mask makes constant in a program: the sums of rows and columns without an allowed pair, and what follows.

Nothing is computed for them, as `pebblesim.game.numbering` says. A program is gone through once, with what its tiles
and tensors hold: for which rows or columns that is a constant, 0 or -inf.
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import inf
from operator import and_, or_
from typing import Any

from pebblesim.language import program as ir
from pebblesim.language.masks import Mask
from pebblesim.readings.totals import tile_of_whole

Lines = Any  # for each row or column whether it is meant: one boolean for all, or an array of them
State = dict[float, Lines]  # of what holds values of rows or of columns: which of these are a constant, 0 or -inf

_OF_CONSTANTS = {"exp", "log", "mul", "add", "sub", "div", "max"}


class Constants:
    """What a mask makes constant in a program: the sums of rows and columns without an allowed pair, and what follows.

    Nothing is computed for them, as `pebblesim.game.numbering` says.

    Attributes:
        folded: of an elementwise operation, by id, the rows or columns for which it is not carried out.
        left_out: of a product, by id of its node, the terms that are left out of a sum that waits in memory.
        apart: the sums over one tile of rows or columns that are kept apart from the others, and where they are made.
    """

    def __init__(self, program: ir.Program, sizes: ir.Sizes, mask: Mask | None) -> None:
        self.folded: dict[int, Lines] = {}
        self.left_out: dict[int, Lines] = {}
        self.apart: dict[ir.Tile, ir.Compute] = {}
        self.sizes = sizes
        self.conditions: list[ir.MaskCondition] = []  # of the loops around
        self.held: dict[ir.Tile | str, State] = {}  # by tiles, and by tensors in memory
        self.waiting: dict[ir.Tile, str] = {}  # sums in progress that were read from memory, and of which tensor
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
        """What a loop over pairs makes anew holds values in it; afterwards, where the loop never came, the old."""
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
        """The tiles and tensors that a loop changes.

        For each whether nothing is done but terms added to it, whether each iteration changes rows or columns of its
        own, and which are changed at all.
        """
        inside = list(ir.walk(loop.body))
        read = {node.tile: node.tensor for node in inside if isinstance(node, ir.Read)}
        anew = {node.target.tile for node in inside if isinstance(node, ir.Compute) and not _adds(node)}
        changes: dict[ir.Tile | str, tuple[bool, bool, Lines]] = {}

        def change(key: ir.Tile | str, ranges: ir.Ranges, is_sum: bool) -> None:
            line = _line_range(ranges)
            if line is not None:
                own = any(_within(rng, loop.range) for rng in ranges)
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
        """A state for the rows or columns that loops get to; the others stay."""
        line = _line_range(ranges)
        if line is not None:
            self.held[key] = _joined(self.held.get(key, {}), state, self._visited(line))

    def _visited(self, rng: ir.Range) -> Lines:
        """The rows or columns in tiles that the loops around get to."""
        import numpy as np

        top = tile_of_whole(rng)
        visited: Lines = np.ones((), bool)
        for each in self.conditions:
            if top in (each.rows, each.columns):
                empty = self.mask.empty(ir.grid(top.pairs, self.sizes), self._block(top), int(each.columns is top))
                other = each.columns if each.rows is top else each.rows
                if not each.none:
                    visited = visited & ~empty
                elif other.parent is None:
                    visited = visited & empty
        return visited

    def _block(self, rng: ir.Range) -> int:
        whole = self.sizes[rng.dim]
        return min(whole, ir.length(rng.block, self.sizes)) if rng.parent else whole

    def _elementwise(self, expr: ir.Expr) -> State:
        """What of an expression is constant, all that it is made from being so."""
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
            if isinstance(expr, ir.MatMul) and tile in self.waiting:
                for ref in (expr.left, expr.right):
                    lines = list(self.held.get(ref.tile, {}).values())
                    if lines and expr.left.shape[1].pairs:
                        self.left_out[id(node)] = reduce(or_, lines)
            self.held[tile] = {}
        elif node.mode == "new" and index_of(expr).parent is not None:
            self.apart[tile] = node
            self.held[tile] = {}
        else:
            empty = self.mask.empty(ir.grid(index_of(expr).pairs, self.sizes), 1, line[1])
            maximum = isinstance(expr, ir.RowReduction) and expr.op == "rowmax"
            old = _everywhere(-inf if maximum else 0) if node.mode == "new" else self.held.get(tile, {})
            self._put(tile, {value: lines & empty for value, lines in old.items()}, node.target.ranges)


def _adds(node: ir.Compute) -> bool:
    """Whether it does nothing but add the terms of a sum."""
    return node.mode == "add" and not isinstance(node.expr, ir.Elementwise)


def _joined(old: State, new: State, there: Lines) -> State:
    """The new state in some rows or columns, the old one in the others."""
    both = {value: old.get(value, False) & ~there | new.get(value, False) & there for value in {*old, *new}}
    return {value: lines for value, lines in both.items() if lines.any()}


def _everywhere(value: float) -> State:
    import numpy as np

    return {value: np.ones((), bool)}


def _line_range(ranges: ir.Ranges) -> ir.Range | None:
    """The rows or columns of pairs that a tile has values of; None if it has none, or is over pairs."""
    lines = [rng for rng in ranges if rng.pairs]
    return lines[0] if len(lines) == 1 else None


def _within(inner: ir.Range | None, outer: ir.Range) -> bool:
    while inner is not None and inner is not outer:
        inner = inner.parent
    return inner is outer


def _of_constants(op: str, *values: float) -> float:
    """An operation on 0 and -inf; 0/0 and (-inf) - (-inf) are 0."""
    import numpy as np

    if op in ("sub", "div") and values[0] == values[1] == (0 if op == "div" else -inf):
        return 0
    names = {"sub": "subtract", "div": "divide", "mul": "multiply", "max": "maximum"}
    with np.errstate(all="ignore"):
        return float(getattr(np, names.get(op, op))(*values))


def index_of(expr: ir.Expr) -> ir.Range:
    """The range that a sum goes over."""
    if isinstance(expr, ir.MatMul):
        return expr.left.shape[1]
    assert isinstance(expr, ir.RowReduction)
    return expr.operand.shape[1]


def line_of(expr: ir.Expr) -> tuple[int, int] | None:
    """Of a sum over pairs: which range of its target is the line of pairs, and whether a row (0) or a column (1)."""
    if isinstance(expr, ir.RowReduction):
        return (0, 0) if ir.over_pairs(expr.operand.shape) else None
    assert isinstance(expr, ir.MatMul)
    if ir.over_pairs(expr.left.tile.ranges):
        return 0, int(expr.left.transposed)
    if ir.over_pairs(expr.right.tile.ranges):
        return 1, int(not expr.right.transposed)
    return None
