"""`work`: how many operations of each kind a program carries out, exactly.

A product of two entries is a "mul", an addition an "add", a comparison of a running maximum a "max". A sum of k terms
takes k - 1 additions, or k if it is added to something. Pairs that a mask forbids take part in nothing. This is finer
than the textbook's convention, which takes 2mnk for a product of matrices and one operation for each entry of a
softmax; `coarse` gives that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import partial, reduce
from itertools import product
from math import inf
from operator import and_, or_
from typing import Any

from pebblesim.language import program as ir
from pebblesim.language.masks import Mask
from pebblesim.readings.totals import LoopContext, over_pairs, tile_of_whole, totals

KINDS = ("mul", "add", "sub", "div", "exp", "log", "max", "relu", "step", "sigmoid")


def work(program: ir.Program, sizes: ir.Sizes, mask: Mask | None = None) -> dict[str, int]:
    """Operations of each kind in `KINDS` that the program carries out; they are as many in any summation tree.

    Raises:
        UsageError: loops under a mask that cannot be counted.
    """
    carried_out: Counter[object] = Counter()
    constants = Constants(program, sizes, mask)
    for phase in program.phases:
        carried_out += totals(phase.body, sizes, partial(_operations, _sums(phase.body), constants), mask)
    return {kind: carried_out[kind] for kind in KINDS if carried_out[kind]}


def coarse(program: ir.Program, sizes: ir.Sizes, mask: Mask | None = None) -> int:
    """The textbook's count: 2mnk for each product of matrices, and one for each exponential and each division."""
    carried_out = work(program, sizes, mask)
    return 2 * carried_out.get("mul", 0) + carried_out.get("exp", 0) + carried_out.get("div", 0)


Sums = dict[ir.Tile, ir.Compute]  # of each tile that gets terms, where it gets them


def _sums(body: list[ir.Node]) -> Sums:
    computes = (node for node in ir.walk(body) if isinstance(node, ir.Compute))
    return {node.target.tile: node for node in computes if not isinstance(node.expr, ir.Elementwise | ir.Ref)}


def _operations(
    sums: Sums, constants: Constants, node: ir.Node, at: LoopContext
) -> Iterator[tuple[str, int | Fraction]]:
    if isinstance(node, ir.Zeros):
        # the first term of a sum is not added to anything
        made = sums[node.tile]
        if at.mask is None or _apart(made.expr, constants) is None or at.mask.pairs(at.n):
            yield "add", -_with_terms(made, node.tile.ranges, at, at_start=True)
    if not isinstance(node, ir.Compute):
        return
    expr, ranges = node.expr, node.target.ranges
    if isinstance(expr, ir.Elementwise):
        yield from _elementwise(expr, ranges, constants, at)
        return
    if isinstance(expr, ir.MatMul):
        terms, addition = _products(node, expr, constants, at), "add"
        yield "mul", terms
    else:
        assert isinstance(expr, ir.RowReduction)
        terms, addition = at.allowed(expr.operand.shape), "max" if expr.op == "rowmax" else "add"
        yield from _elementwise(expr.operand, expr.operand.shape, constants, at)
    yield addition, terms - (_with_terms(node, ranges, at) if node.mode == "new" else 0)


def _elementwise(
    expr: ir.Expr, ranges: ir.Ranges, constants: Constants, at: LoopContext
) -> Iterator[tuple[str, int | Fraction]]:
    if isinstance(expr, ir.Elementwise):
        yield expr.op, at.allowed(ranges) - _lines_of(ranges, constants.folded.get(id(expr)), at)
        for operand in expr.operands:
            yield from _elementwise(operand, ranges, constants, at)


def _lines_of(ranges: ir.Ranges, lines: Lines | None, at: LoopContext) -> int | Fraction:
    """Mean number of elements of a tile in these rows or columns."""
    if lines is None:
        return 0
    (line,) = (rng for rng in ranges if rng.dim == ir.MASKED)
    return at.among(line, lines) * at.words(tuple(rng for rng in ranges if rng is not line))


def _products(node: ir.Compute, expr: ir.MatMul, constants: Constants, at: LoopContext) -> int | Fraction:
    """Number of products of two entries that the mask leaves of a product of tiles."""
    rows, terms, columns = expr.left.shape[0], expr.left.shape[1], expr.right.shape[1]
    for pairs, other in ((expr.left, columns), (expr.right, rows)):
        if over_pairs(pairs.tile.ranges):
            return at.allowed(pairs.ranges) * at.words((other,))
    if over_pairs((rows, columns)):
        return at.allowed((rows, columns)) * at.words((terms,))
    apart = _apart(expr, constants)
    if apart is not None:
        ref, made, other = apart
        return _with_terms(made, ref.ranges, at) * at.words((other,))
    return at.words((rows, terms, columns)) - _lines_of((rows, terms, columns), constants.left_out.get(id(node)), at)


def _apart(expr: ir.Expr, constants: Constants) -> tuple[ir.Ref, ir.Compute, ir.Range] | None:
    """Of a product over sums that are kept apart, the operand with them, where it is made, and the range it lacks."""
    if isinstance(expr, ir.MatMul):
        for ref, other in ((expr.left, expr.right.shape[1]), (expr.right, expr.left.shape[0])):
            if ref.tile in constants.apart:
                return ref, constants.apart[ref.tile], other
    return None


def _index(expr: ir.Expr) -> ir.Range:
    """The range that a sum goes over."""
    if isinstance(expr, ir.MatMul):
        return expr.left.shape[1]
    assert isinstance(expr, ir.RowReduction)
    return expr.operand.shape[1]


def _line(expr: ir.Expr) -> tuple[int, int] | None:
    """Of a sum over pairs: which range of its target is the line of pairs, and whether a row (0) or a column (1)."""
    if isinstance(expr, ir.RowReduction):
        return (0, 0) if over_pairs(expr.operand.shape) else None
    assert isinstance(expr, ir.MatMul)
    if over_pairs(expr.left.tile.ranges):
        return 0, int(expr.left.transposed)
    if over_pairs(expr.right.tile.ranges):
        return 1, int(not expr.right.transposed)
    return None


def _with_terms(node: ir.Compute, ranges: ir.Ranges, at: LoopContext, at_start: bool = False) -> int | Fraction:
    """Mean number of elements of a target that get terms, here or, from its start on, in all."""
    line = _line(node.expr)
    if line is None:
        return at.allowed(ranges)
    place, axis = line
    index = _index(node.expr)
    while at_start and not at.open(index) and index.parent is not None:
        index = index.parent
    elements = at.with_terms(ranges[place], index, axis)
    for other in ranges[:place] + ranges[place + 1 :]:
        elements *= at.words((other,))
    return elements


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
        for key, (is_sum, own, lines) in self._changes(loop).items() if loop.range.dim == ir.MASKED else ():
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

        top, n = tile_of_whole(rng), self.sizes[ir.MASKED]
        visited: Lines = np.ones((), bool)
        for each in self.conditions:
            if top in (each.rows, each.columns):
                empty = self.mask.empty(n, self._block(top), int(each.columns is top))
                other = each.columns if each.rows is top else each.rows
                if not each.none:
                    visited = visited & ~empty
                elif other.parent is None:
                    visited = visited & empty
        return visited

    def _block(self, rng: ir.Range) -> int:
        return min(self.sizes[ir.MASKED], ir.length(rng.block, self.sizes)) if rng.parent else self.sizes[ir.MASKED]

    def _elementwise(self, expr: ir.Expr) -> State:
        """What of an expression is constant, all that it is made from being so."""
        if isinstance(expr, ir.Ref):
            return {} if over_pairs(expr.tile.ranges) else self.held.get(expr.tile, {})
        assert isinstance(expr, ir.Elementwise)
        states = [self._elementwise(operand) for operand in expr.operands]
        if expr.op not in _OF_CONSTANTS or over_pairs(expr.shape) or _line_range(expr.shape) is None:
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
        line = _line(expr)
        if isinstance(expr, ir.RowReduction):
            self._elementwise(expr.operand)
        if line is None:
            if isinstance(expr, ir.MatMul) and tile in self.waiting:
                for ref in (expr.left, expr.right):
                    lines = list(self.held.get(ref.tile, {}).values())
                    if lines and expr.left.shape[1].dim == ir.MASKED:
                        self.left_out[id(node)] = reduce(or_, lines)
            self.held[tile] = {}
        elif node.mode == "new" and _index(expr).parent is not None:
            self.apart[tile] = node
            self.held[tile] = {}
        else:
            empty = self.mask.empty(self.sizes[ir.MASKED], 1, line[1])
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
    lines = [rng for rng in ranges if rng.dim == ir.MASKED]
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
