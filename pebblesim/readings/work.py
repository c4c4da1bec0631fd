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
from functools import partial

from pebblesim import program as ir
from pebblesim.masks import Mask
from pebblesim.readings.totals import Place, over_pairs, totals

KINDS = ("mul", "add", "sub", "div", "exp", "log", "max", "relu", "step", "sigmoid")


def work(program: ir.Program, sizes: ir.Sizes, mask: Mask | None = None) -> dict[str, int]:
    """Operations of each kind in `KINDS` that the program carries out; they are as many in any summation tree."""
    found: Counter[object] = Counter()
    for phase in program.phases:
        found += totals(phase.body, sizes, partial(_operations, _sums(phase.body)), mask)
    return {kind: found[kind] for kind in KINDS if found[kind]}


def coarse(program: ir.Program, sizes: ir.Sizes, mask: Mask | None = None) -> int:
    """The textbook's count: 2mnk for each product of matrices, and one for each exponential and each division."""
    found = work(program, sizes, mask)
    return 2 * found.get("mul", 0) + found.get("exp", 0) + found.get("div", 0)


Sums = dict[ir.Tile, ir.Compute]  # of each tile that gets terms, where it gets them


def _sums(body: list[ir.Node]) -> Sums:
    computes = (node for node in ir.walk(body) if isinstance(node, ir.Compute))
    return {node.target.tile: node for node in computes if not isinstance(node.expr, ir.Elementwise | ir.Ref)}


def _operations(sums: Sums, node: ir.Node, at: Place) -> Iterator[tuple[str, int | Fraction]]:
    if isinstance(node, ir.Zeros):
        # the first term of a sum is not added to anything
        yield "add", -_with_terms(sums[node.tile], node.tile.ranges, at, at_start=True)
    if not isinstance(node, ir.Compute):
        return
    expr, ranges = node.expr, node.target.ranges
    if isinstance(expr, ir.Elementwise):
        yield from _elementwise(expr, at.allowed(ranges))
        return
    if isinstance(expr, ir.MatMul):
        terms, addition = _products(expr, sums, at), "add"
        yield "mul", terms
    else:
        assert isinstance(expr, ir.RowReduction)
        terms, addition = at.allowed(expr.operand.shape), "max" if expr.op == "rowmax" else "add"
        yield from _elementwise(expr.operand, terms)
    yield addition, terms - (_with_terms(node, ranges, at) if node.mode == "new" else 0)


def _elementwise(expr: ir.Expr, elements: int | Fraction) -> Iterator[tuple[str, int | Fraction]]:
    if isinstance(expr, ir.Elementwise):
        yield expr.op, elements
        for operand in expr.operands:
            yield from _elementwise(operand, elements)


def _products(expr: ir.MatMul, sums: Sums, at: Place) -> int | Fraction:
    """Number of products of two entries that the mask leaves of a product of tiles."""
    rows, terms, columns = expr.left.shape[0], expr.left.shape[1], expr.right.shape[1]
    for pairs, other in ((expr.left, columns), (expr.right, rows)):
        if over_pairs(pairs.tile.ranges):
            return at.allowed(pairs.ranges) * at.words((other,))
    if over_pairs((rows, columns)):
        return at.allowed((rows, columns)) * at.words((terms,))
    made = sums.get(expr.left.tile)
    if made is not None and _kept_apart(made):  # its sums without terms are left out
        return _with_terms(made, expr.left.ranges, at) * at.words((columns,))
    return at.words((rows, terms, columns))


def _kept_apart(made: ir.Compute) -> bool:
    """Whether it is a sum over one tile of the pairs' rows or columns, and the others are summed apart from it."""
    expr = made.expr
    return made.mode == "new" and isinstance(expr, ir.MatMul) and _line(expr) is not None and bool(_index(expr).parent)


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


def _with_terms(node: ir.Compute, ranges: ir.Ranges, at: Place, at_start: bool = False) -> int | Fraction:
    """Mean number of elements of a target that get terms, here or, from its start on, in all."""
    line = _line(node.expr)
    if line is None:
        return at.allowed(ranges)
    place, axis = line
    index = _index(node.expr)
    while at_start and not at.open(index) and index.parent is not None:
        index = index.parent
    found = at.with_terms(ranges[place], index, axis)
    for other in ranges[:place] + ranges[place + 1 :]:
        found *= at.words((other,))
    return found
