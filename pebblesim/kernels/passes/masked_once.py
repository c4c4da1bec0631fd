"""Scores that a kernel masks once: as -∞, before their maximum and their exponentials.

The exponentials are 0 where there is no pair, and so is what is multiplied by them: sums and products need no
predicates any more. Otherwise each of these has its own, and takes registers for the predicates of the whole tile.
"""

from __future__ import annotations

from collections.abc import Iterable

from pebblesim.language import program as ir


def difference(expr: ir.Expr) -> tuple[ir.Expr, ir.Expr] | None:
    """x and y of an expression exp(x - y); None if it is another one."""
    match expr:
        case ir.Elementwise(op="exp", operands=(ir.Elementwise(op="sub", operands=(x, y)),)):
            return x, y
    return None


def exponent_of(expr: ir.Expr) -> ir.Ref | None:
    """The scores of which an expression is the maximum of each row, or the exponentials less a vector of rows."""
    match expr.operand if isinstance(expr, ir.RowReduction) and expr.op == "rowmax" else difference(expr):
        case ir.Ref() as scores:
            return None if scores.transposed else scores
        case (ir.Ref() as scores, ir.Ref() as v):
            return None if scores.transposed or len(v.shape) == 2 else scores
    return None


def masked_once(nodes: Iterable[ir.Node]) -> frozenset[ir.Tile]:
    """The tiles of pairs that hold products from which only maxima and exponentials are taken, nodes in their order."""
    found: set[ir.Tile] = set()
    others: set[ir.Tile] = set()
    scores: set[ir.Tile] = set()  # tiles that hold products here
    for node in nodes:
        if isinstance(node, ir.Write) and node.tile in scores:
            others.add(node.tile)
        elif isinstance(node, ir.Move) and node.source in scores:
            others.add(node.source)
        elif isinstance(node, ir.Compute):
            asked = exponent_of(node.expr)
            others |= {ref.tile for ref in ir.refs(node.expr) if ref is not asked} & scores
            tile = node.target.tile
            if isinstance(node.expr, ir.MatMul) and ir.over_pairs(tile.ranges):
                scores.add(tile)
                found.add(tile)
            elif node.mode == "add" and tile in scores:
                others.add(tile)
            else:
                scores.discard(tile)
    return frozenset(found - others)


def columns_matter(nodes: Iterable[ir.Node]) -> bool:
    """Whether a kernel takes sums or maxima along the columns of pairs, or keeps pairs in memory.

    If not, pairs of columns that do not exist are never part of a result.
    """
    for node in nodes:
        if isinstance(node, ir.Write) and ir.over_pairs(node.tile.ranges):
            return True
        if isinstance(node, ir.Compute):
            match node.expr:
                case ir.RowReduction(operand=operand) if ir.over_pairs(operand.shape):
                    return True
                case ir.MatMul(left=left, right=right) if (ir.over_pairs(left.tile.ranges) and not left.transposed) or (
                    ir.over_pairs(right.tile.ranges) and right.transposed
                ):
                    return True
    return False
