"""Products of matrices in the primitives of a launch."""

from __future__ import annotations

from collections.abc import Iterable

from pebblesim.language import program as ir


def products(nodes: Iterable[ir.Node]) -> list[ir.Compute]:
    """The primitives that multiply matrices."""
    return [node for node in nodes if isinstance(node, ir.Compute) and isinstance(node.expr, ir.MatMul)]


def factors(node: ir.Compute) -> ir.MatMul:
    """The product that a primitive computes."""
    assert isinstance(node.expr, ir.MatMul)
    return node.expr
