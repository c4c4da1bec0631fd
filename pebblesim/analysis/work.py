"""`work`: the exact number of operations of each kind in a program.

A product of two entries is a "mul", an addition an "add", a comparison of a running maximum a "max". A sum of k terms
takes k - 1 additions, or k if it is added to a value. Pairs that a mask forbids need no operations. This is more
detailed than the usual convention: 2mnk for a product of matrices, and one operation for each entry of a softmax;
`coarse` gives that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import partial

from pebblesim.analysis.masked_constants import Constants, Lines, line_of
from pebblesim.analysis.totals import LoopContext, totals
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask

KINDS = ("mul", "add", "sub", "div", "exp", "log", "max", "relu", "step", "sigmoid")


def work(program: ir.Program, sizes: ir.Sizes, mask: Mask | None = None) -> dict[str, int]:
    """Return the number of operations of each kind in `KINDS`; it is the same for any summation tree.

    Raises:
        UsageError: the program has loops under a mask that cannot be counted.
    """
    carried_out: Counter[object] = Counter()
    constants = Constants(program, sizes, mask)
    for phase in program.phases:
        carried_out += totals(phase.body, sizes, partial(_operations, _sums(phase.body), constants), mask)
    return {kind: carried_out[kind] for kind in KINDS if carried_out[kind]}


def coarse(program: ir.Program, sizes: ir.Sizes, mask: Mask | None = None) -> int:
    """Return the usual count: 2mnk for each product of matrices, and one for each exponential and each division."""
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
        may_be_empty = id(made) in constants.of_pairs or _apart(made.expr, constants) is not None
        if at.mask is None or not may_be_empty or at.mask.pairs(*at.grid((ir.index_of(made.expr),))):
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
    (line,) = (rng for rng in ranges if rng.pairs)
    return at.among(line, lines) * at.words(tuple(rng for rng in ranges if rng is not line))


def _products(node: ir.Compute, expr: ir.MatMul, constants: Constants, at: LoopContext) -> int | Fraction:
    """Number of products of two entries that the mask leaves of a product of tiles."""
    rows, terms, columns = expr.left.shape[0], expr.left.shape[1], expr.right.shape[1]
    for pairs, other in ((expr.left, columns), (expr.right, rows)):
        if ir.over_pairs(pairs.tile.ranges):
            return at.allowed(pairs.ranges) * at.words((other,))
    if ir.over_pairs((rows, columns)):
        return at.allowed((rows, columns)) * at.words((terms,))
    apart = _apart(expr, constants)
    if apart is not None:
        ref, made, other = apart
        return _with_terms(made, ref.ranges, at) * at.words((other,))
    return at.words((rows, terms, columns)) - _lines_of((rows, terms, columns), constants.left_out.get(id(node)), at)


def _apart(expr: ir.Expr, constants: Constants) -> tuple[ir.Ref, ir.Compute, ir.Range] | None:
    """Return the operand of a product whose sums are kept apart, where it is made, and the range it lacks."""
    if isinstance(expr, ir.MatMul):
        for ref, other in ((expr.left, expr.right.shape[1]), (expr.right, expr.left.shape[0])):
            if ref.tile in constants.apart:
                return ref, constants.apart[ref.tile], other
    return None


def _with_terms(node: ir.Compute, ranges: ir.Ranges, at: LoopContext, at_start: bool = False) -> int | Fraction:
    """Mean number of elements of a target that get terms, here or, from its start on, in all."""
    line = line_of(node.expr)
    if line is None:
        return at.allowed(ranges)
    place, axis = line
    index = ir.index_of(node.expr)
    while at_start and not at.open(index) and index.parent is not None:
        index = index.parent
    elements = at.with_terms(ranges[place], index, axis)
    for other in ranges[:place] + ranges[place + 1 :]:
        elements *= at.words((other,))
    return elements
