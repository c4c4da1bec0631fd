"""Facts of a launch's tiles that hold wherever these are used: found before any statement is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from pebblesim.kernels.passes.masked_once import columns_matter, difference, masked_once
from pebblesim.kernels.triton.ranges import Setting
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

OF_SCORES = ("Q", "K", "Q_C", "Q_R")
"""Matrices whose products are scores, or gradients of what scores are products of."""


@dataclass(frozen=True, eq=False)
class Facts:
    """Facts of a launch's tiles.

    Attributes:
        turned: tiles that are held transposed.
        scores: tiles of matrices whose products are scores.
        maskable: scores that are masked once, before their maximum and their exponentials.
        columns_matter: whether pairs of columns that do not exist would be part of a result.
        multiplied: exponentials that become gradients of scores here.
        subtracted: logarithms that only exponents have less of: read as infinite where there are none.
        vanishing: tiles that are 0 where indices of a range do not exist, and the range.
        zero: tiles that are 0 for pairs that are not allowed, as memory is.
        reread: tensors that are read here.
        resumed: sums in memory that are to be scaled, and are read as if they had not been yet.
    """

    turned: frozenset[ir.Tile]
    scores: frozenset[ir.Tile]
    maskable: frozenset[ir.Tile]
    columns_matter: bool
    multiplied: frozenset[ir.Tile | None]
    subtracted: frozenset[ir.Tile]
    vanishing: frozenset[tuple[ir.Tile, ir.Range]]
    zero: frozenset[ir.Tile]
    reread: frozenset[ir.Tensor]
    resumed: frozenset[ir.Tile]


def facts_of(setting: Setting, launch: Launch, turned: frozenset[ir.Tile]) -> Facts:
    """Find what holds of a launch's tiles; `turned`: those that are held transposed."""
    nodes = list(ir.walk(launch.block))
    computes = [node for node in nodes if isinstance(node, ir.Compute)]
    reads = [node for node in nodes if isinstance(node, ir.Read)]
    scores = frozenset(node.tile for node in reads if node.tensor.name in OF_SCORES)
    plain = (setting.scale is None or setting.scale > 0) and not setting.softcap  # so that -inf stays what it is
    changed = {node.target.tile for node in computes if not _multiplies(node)}
    subtracted = _subtracted_logarithms(setting, computes, reads)
    added = {node.target.tile for node in computes if node.mode == "add" and makes_scores(scores, node.expr)}
    return Facts(
        turned=turned,
        scores=scores,
        maskable=masked_once(nodes) if plain else frozenset(),
        columns_matter=columns_matter(nodes),
        multiplied=frozenset(map(gradient_of, computes)),
        subtracted=subtracted,
        vanishing=_vanishing(nodes, subtracted),
        zero=frozenset(node.tile for node in reads if node.tile not in changed),
        reread=frozenset(node.tensor for node in reads),
        resumed=frozenset(node.tile for node in reads if setting.scale and node.tile in added),
    )


def makes_scores(scores: Collection[ir.Tile], made: ir.Expr) -> bool:
    """Whether it is a product of scores or of what they are a gradient of: Q or K takes part."""
    return isinstance(made, ir.MatMul) and any(ref.tile in scores for ref in ir.refs(made))


def gradient_of(node: ir.Compute) -> ir.Tile | None:
    """P, if an operation computes dS = P ∘ (dP - v), the gradient of the scores."""
    match node.expr:
        case ir.Elementwise(op="mul", operands=(ir.Ref(tile=tile), ir.Elementwise(op="sub"))):
            return tile if ir.over_pairs(tile.ranges) else None
    return None


def _subtracted_logarithms(setting: Setting, computes: list[ir.Compute], reads: list[ir.Read]) -> frozenset[ir.Tile]:
    only_there = Counter(_subtracted(node.expr) for node in computes)
    uses = Counter(ref.tile for node in computes for ref in ir.refs(node.expr))
    logs = [node.tile for node in reads if node.tensor in setting.logarithms]
    return frozenset(tile for tile in logs if only_there[tile] == uses[tile])


def _vanishing(nodes: list[ir.Node], subtracted: frozenset[ir.Tile]) -> frozenset[tuple[ir.Tile, ir.Range]]:
    """The tiles that are 0 where indices do not exist, as all that are read are: however they are defined.

    Exponentials are, if a logarithm is subtracted that is read as infinite there.
    """
    defined: list[tuple[ir.Tile, ir.Expr | None]] = []
    for node in nodes:
        match node:
            case ir.Compute(target=ir.Ref(tile=tile), expr=expr):
                defined.append((tile, expr))
            case ir.Move(tile=tile, source=source):
                defined.append((tile, ir.Ref(source, source.ranges)))
            case ir.Read(tile=tile) if tile in subtracted:
                defined.append((tile, None))
            case ir.Constant(tile=tile, value=value) if value:
                defined.append((tile, None))
    found = {(each, rng) for node in nodes if (each := ir.entering(node)) for rng in each.ranges}
    found |= {(tile, rng) for tile, _ in defined for rng in tile.ranges}

    def zeros(expr: ir.Expr, rng: ir.Range) -> bool:
        """Whether an expression is 0 where indices of a range do not exist."""
        match expr:
            case ir.Ref(tile=tile):
                return (tile, rng) in found
            case ir.MatMul(left=left, right=right):
                return any(rng in ref.shape and zeros(ref, rng) for ref in (left, right))
        logarithm = _subtracted(expr)
        if logarithm is not None:
            return logarithm.ranges == (rng,) and logarithm in subtracted
        return vanishes(expr, lambda each: zeros(each, rng))

    before = -1
    while before != len(found):
        before = len(found)
        for tile, made in defined:
            found -= {(tile, rng) for rng in tile.ranges if made is None or not zeros(made, rng)}
    return frozenset(found)


def vanishes(expr: ir.Expr, zero: Callable[[ir.Expr], bool]) -> bool:
    """Whether an expression is 0 since some factor of it is, or all that it adds up: `zero` says which of these are."""
    match expr:
        case ir.Elementwise(op="mul", operands=operands):
            return any(map(zero, operands))
        case ir.Elementwise(op="add" | "sub", operands=operands):
            return all(map(zero, operands))
    return False


def _subtracted(expr: ir.Expr) -> ir.Tile | None:
    """The vector of a difference that is an exponent, of a tile with rows and columns."""
    match difference(expr):
        case (_, ir.Ref(tile=tile)):
            return tile if len(expr.shape) == 2 and len(tile.ranges) == 1 else None
    return None


def _multiplies(node: ir.Compute) -> bool:
    """Whether an operation only multiplies the entries of its target."""
    return (
        isinstance(node.expr, ir.Elementwise)
        and node.expr.op == "mul"
        and any(isinstance(each, ir.Ref) and each.tile is node.target.tile for each in node.expr.operands)
    )
