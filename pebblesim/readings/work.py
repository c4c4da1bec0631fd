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

from pebblesim.language import program as ir
from pebblesim.language.masks import Mask
from pebblesim.readings.totals import Place, over_pairs, totals

KINDS = ("mul", "add", "sub", "div", "exp", "log", "max", "relu", "step", "sigmoid")


def work(program: ir.Program, sizes: ir.Sizes, mask: Mask | None = None) -> dict[str, int]:
    """Operations of each kind in `KINDS` that the program carries out; they are as many in any summation tree."""
    found: Counter[object] = Counter()
    folded = set() if mask is None else _folded(program)
    for phase in program.phases:
        found += totals(phase.body, sizes, partial(_operations, _sums(phase.body), folded), mask)
    return {kind: found[kind] for kind in KINDS if found[kind]}


def coarse(program: ir.Program, sizes: ir.Sizes, mask: Mask | None = None) -> int:
    """The textbook's count: 2mnk for each product of matrices, and one for each exponential and each division."""
    found = work(program, sizes, mask)
    return 2 * found.get("mul", 0) + found.get("exp", 0) + found.get("div", 0)


Sums = dict[ir.Tile, ir.Compute]  # of each tile that gets terms, where it gets them


def _sums(body: list[ir.Node]) -> Sums:
    computes = (node for node in ir.walk(body) if isinstance(node, ir.Compute))
    return {node.target.tile: node for node in computes if not isinstance(node.expr, ir.Elementwise | ir.Ref)}


def _folded(program: ir.Program) -> set[int]:
    """Ids of the elementwise computations of nothing but sums over pairs: constants in a row without pairs.

    Running values, which start from a constant, are no such sums, and inside of two loops over rows and columns all
    that is in a tile is computed.
    """
    zeros: set[ir.Tile] = set()
    tiles: set[ir.Tile] = set()
    tensors: set[str] = set()
    found: set[int] = set()

    def visit(body: list[ir.Node], loops: int) -> None:
        for node in body:
            match node:
                case ir.Loop(range=rng, body=inner):
                    visit(inner, loops + (rng.dim == ir.PAIRS and _tile_of_whole(rng)))
                case ir.Read(tile=tile, tensor=tensor) if tensor.name in tensors:
                    tiles.add(tile)
                case ir.Write(tile=tile, tensor=tensor) if tile in tiles:
                    tensors.add(tensor.name)
                case ir.Zeros(tile=tile):
                    zeros.add(tile)
                case ir.Compute(target=target, expr=ir.Elementwise() as expr):
                    if all(ref.tile in tiles for ref in ir.refs(expr)):
                        tiles.add(target.tile)
                        if loops < 2:
                            found.add(id(node))
                case ir.Compute(target=target, expr=ir.MatMul() | ir.RowReduction() as expr, mode=mode):
                    if _line(expr) is not None and (mode == "new" or target.tile in zeros):
                        tiles.add(target.tile)
                case _:
                    pass

    for phase in program.phases:
        visit(phase.body, 0)
    return found


def _tile_of_whole(rng: ir.Range) -> bool:
    return rng.parent is not None and rng.parent.parent is None


def _operations(sums: Sums, folded: set[int], node: ir.Node, at: Place) -> Iterator[tuple[str, int | Fraction]]:
    if isinstance(node, ir.Zeros):
        # the first term of a sum is not added to anything
        made = sums[node.tile]
        if _left_out(made.expr, sums) is None or at.mask is None or at.mask.pairs(at.n):
            yield "add", -_with_terms(made, node.tile.ranges, at, at_start=True)
    if not isinstance(node, ir.Compute):
        return
    expr, ranges = node.expr, node.target.ranges
    if isinstance(expr, ir.Elementwise):
        elements = at.allowed(ranges)
        if id(node) in folded:
            elements *= Fraction(at.with_terms(ranges[0], ir.Range(ir.PAIRS), 0), at.words(ranges[:1]))
        yield from _elementwise(expr, elements)
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
    part = _left_out(expr, sums)
    if part is not None:
        ref, made, other = part
        return _with_terms(made, ref.ranges, at) * at.words((other,))
    return at.words((rows, terms, columns))


def _left_out(expr: ir.Expr, sums: Sums) -> tuple[ir.Ref, ir.Compute, ir.Range] | None:
    """Of a product, the operand whose sums without terms are left out, where it is made, and the range it lacks.

    That is a sum over pairs that is used as soon as it is made, tile by tile, so that some tiles never are.
    """
    if not isinstance(expr, ir.MatMul):
        return None
    for ref, other in ((expr.left, expr.right.shape[1]), (expr.right, expr.left.shape[0])):
        made = sums.get(ref.tile)
        line = None if made is None else _line(made.expr)
        if made is not None and line is not None and ref.ranges[line[0]] is _index(expr) and _index(expr).parent:
            return ref, made, other
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
