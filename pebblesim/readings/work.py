"""`work`: how many operations of each kind a program carries out, exactly.

A product of two entries is a "mul", an addition an "add", a comparison of a running maximum a "max". A sum of k terms
takes k - 1 additions, or k if it is added to something. This is finer than the textbook's convention, which takes
2mnk for a product of matrices and one operation for each entry of a softmax; `coarse` gives that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pebblesim import program as ir
from pebblesim.readings.totals import Words, totals

KINDS = ("mul", "add", "sub", "div", "exp", "log", "max", "relu", "step", "sigmoid")


def work(program: ir.Program, sizes: ir.Sizes) -> dict[str, int]:
    """Operations of each kind in `KINDS` that the program carries out; they are as many in any summation tree."""
    found: Counter[object] = Counter()
    for phase in program.phases:
        found += totals(phase.body, sizes, _operations)
    return {kind: found[kind] for kind in KINDS if found[kind]}


def coarse(program: ir.Program, sizes: ir.Sizes) -> int:
    """The textbook's count: 2mnk for each product of matrices, and one for each exponential and each division."""
    found = work(program, sizes)
    return 2 * found.get("mul", 0) + found.get("exp", 0) + found.get("div", 0)


def _operations(node: ir.Node, words: Words) -> Iterator[tuple[str, int]]:
    if isinstance(node, ir.Zeros):
        yield "add", -words(node.tile.ranges)  # the first term of a sum is not added to anything
    if not isinstance(node, ir.Compute):
        return
    elements, expr = words(node.target.ranges), node.expr
    if isinstance(expr, ir.Elementwise):
        yield from _elementwise(expr, elements)
        return
    if isinstance(expr, ir.MatMul):
        terms, addition = words(expr.left.shape[1:]), "add"
        yield "mul", elements * terms
    else:
        assert isinstance(expr, ir.RowReduction)
        terms, addition = words(expr.operand.shape[1:]), "max" if expr.op == "rowmax" else "add"
        yield from _elementwise(expr.operand, elements * terms)
    yield addition, elements * (terms - (node.mode == "new"))


def _elementwise(expr: ir.Expr, elements: int) -> Iterator[tuple[str, int]]:
    if isinstance(expr, ir.Elementwise):
        yield expr.op, elements
        for operand in expr.operands:
            yield from _elementwise(operand, elements)
