"""Loops over copies of tensors in a Triton kernel, as text: sums and maxima of many copies at a time.

A merge of splits goes over the copies that the splits wrote. If it only adds up, or takes the maximum of, what is
computed from each copy alone, tiles of many copies are read at once, with an axis of copies before the others. So they
are if the sums are rescaled whenever the running maximum grows: then they are once for all these copies.
"""

from __future__ import annotations

from collections.abc import Container
from math import prod

from pebblesim.kernels.facts import vanishes
from pebblesim.kernels.passes.masked_once import difference
from pebblesim.kernels.statements import Copy, Map
from pebblesim.kernels.terms import (
    MINUS_INFINITY,
    NOTHING,
    Term,
    all_of,
    call,
    maximum,
    product,
    term,
    total,
    wide,
)
from pebblesim.kernels.triton.ranges import Scope
from pebblesim.kernels.triton.values import Values
from pebblesim.kernels.words import LEAST_SIDE
from pebblesim.language import program as ir

ENTRIES, FEWEST, MOST = 2**13, 4, 64
"""Entries of a tile of several copies, and the fewest and the most copies that one has."""


def parts_of_rows(scope: Scope, turned: Container[ir.Tile]) -> dict[ir.Range, int]:
    """Rows of a program where copies are merged: one of a tile of the fewest that tensor cores take; queries may be
    fewer still.

    Under a mask it is the whole tile, which meets the copies that are counted.
    """
    nodes = scope.launch.block
    loops = [node for node in nodes if isinstance(node, ir.Loop) and at_once(scope, node, turned) > 1]
    if not loops or scope.mask is not None or scope.around is not None:
        return {}
    return {
        loop.range: 1
        for loop in scope.launch.grid
        if scope.length(loop.range) == LEAST_SIDE
        and all(node.tile.ranges[0] is loop.range for each in loops for node in each.body if isinstance(node, ir.Read))
    }


def at_once(scope: Scope, loop: ir.Loop, turned: Container[ir.Tile]) -> int:
    """How many copies the tiles of a loop have; 1 if it goes over them one after the other."""
    read = [node for node in loop.body if isinstance(node, ir.Read)]
    own = {tile for node in loop.body if (tile := ir.entering(node))}
    if any(node.at is not loop.range or node.tile in turned for node in read) or not read:
        return 1
    logs = {node.tile for node in read if node.tensor in scope.setting.logarithms}
    for node in without_rescaling(loop.body, logs):
        if isinstance(node, ir.Compute):
            added = gathered(node, own)
            if node.target.tile not in own and (added is None or not _nothing(scope, added, read, logs, node)):
                return 1
        elif not isinstance(node, ir.Read | ir.Delete):
            return 1
    number = min(MOST, ENTRIES // max(prod(map(scope.length, node.tile.ranges)) for node in read))
    return number if number >= FEWEST else 1


def _nothing(scope: Scope, expr: ir.Expr, read: list[ir.Read], logs: set[ir.Tile], gathered: ir.Compute) -> bool:
    """Whether an expression adds nothing where there is no copy: logarithms are -∞ there, other words are 0."""
    if _is_maximum(gathered):
        return isinstance(expr, ir.Ref) and expr.tile in logs
    weights = {  # of which the copies that there are not have none
        node.target.tile
        for node in ir.walk(scope.launch.block)
        if isinstance(node, ir.Compute)
        and node.target.tile in logs
        and isinstance(node.expr, ir.Elementwise)
        and node.expr.op == "exp"
    }
    zero = {node.tile for node in read} - logs | weights

    def nothing(each: ir.Expr) -> bool:
        return each.tile in zero if isinstance(each, ir.Ref) else vanishes(each, nothing)

    return nothing(expr)


def read_copies(values: Values, node: ir.Read) -> Copy:
    """Read a tile of several copies."""
    assert values.copies is not None
    scope, setting, ranges = values.scope, values.scope.setting, node.tile.ranges
    to, lengths = values.named(node.tile), setting.lengths(node.tensor)
    (copies, end), alone = values.copies, f"[:{', None' * len(ranges)}]"
    axes = ["[None, :]"] if len(ranges) == 1 else ["[None, :, None]", "[None, None, :]"]
    places = [scope.index(rng).along(axis) for rng, axis in zip(ranges, axes, strict=True)]
    inside: list[Term] = [term(copies).along(alone) < end]
    for place, rng in zip(places, ranges, strict=True):
        inside += [place < setting.size(rng.dim)] * scope.ragged(rng)
    if len(ranges) == 2:
        places[0] = places[0] * lengths[-1]
    start = term(setting.of[node.tensor]) + product([wide(copies).along(alone), *lengths[1:]])
    logarithm = node.tensor in setting.logarithms
    values.several.add(node.tile)
    values.mark(node.tile, loaded=True, base_2=logarithm or values.state(node.tile).base_2)
    absent = MINUS_INFINITY if logarithm else NOTHING
    return Copy(to, node.tensor, total([start, *places]), all_of(inside), absent, line=node.line)


def gather(values: Values, node: ir.Compute) -> Map:
    """Add up several copies, or take their maximum, with what there was before."""
    added, to = gathered(node, values.several), values.named(node.target.tile)
    assert added is not None
    if _is_maximum(node):
        (before,) = (each for each in ir.refs(node.expr) if each.tile not in values.several)
        largest = call("max", values.exponent(added, node.line), axis=0)
        values.mark(node.target.tile, base_2=True)
        return Map(to, maximum(values.held(before.tile), largest), line=node.line)
    summed = call("sum", values.expr(added, node.line), axis=0)
    copies, values.copies = values.copies, None
    before_them = values.expr(_before(node, added), node.line)
    values.copies = copies
    return Map(to, before_them + summed, line=node.line)


def _is_maximum(node: ir.Compute) -> bool:
    return isinstance(node.expr, ir.Elementwise) and node.expr.op == "max" and node.mode != "add"


def gathered(node: ir.Compute, several: Container[ir.Tile]) -> ir.Expr | None:
    """The term of a sum, or of a maximum, that an operation takes with values of no copy; None if it does not."""
    tile, expr = node.target.tile, node.expr
    if node.mode == "add":
        return None if reduces(expr) or any(ref.tile is tile for ref in ir.refs(expr)) else expr
    match expr:
        case ir.Elementwise(op="add" | "max", operands=(before, added)):
            apart = not any(ref.tile in several for ref in ir.refs(before))
            return added if apart and any(ref.tile in several for ref in ir.refs(added)) and not reduces(expr) else None
    return None


def _before(node: ir.Compute, added: ir.Expr) -> ir.Expr:
    """The value that a sum is added to: the target, or the other operand."""
    if node.mode == "add":
        return node.target
    assert isinstance(node.expr, ir.Elementwise)
    return next(each for each in node.expr.operands if each is not added)


def reduces(expr: ir.Expr) -> bool:
    """Whether a product, or the sum or maximum of a row, is a part of an expression."""
    parts = getattr(expr, "operands", ())
    return isinstance(expr, ir.MatMul | ir.RowReduction) or any(map(reduces, parts))


def without_rescaling(body: list[ir.Node], logs: Container[ir.Tile]) -> list[ir.Node]:
    """The statements of a loop, without those by which a running maximum rescales sums, if they are as they should be.

    top = max(old, w); old = exp(old - top); w = exp(w - top); S = old S + w x, ...; old = top. For many w at once, top
    is the maximum of all of them, and each S is rescaled once.
    """
    match [node for node in body if not isinstance(node, ir.Read | ir.Delete)]:
        case [
            ir.Compute(mode="new", target=ir.Ref(tile=top)) as largest,
            ir.Compute(mode="assign") as falling,
            ir.Compute(mode="assign") as weight,
            *sums,
            ir.Move(tile=old, source=source) as moved,
        ] if source is top and _is_maximum(largest):
            w, own = weight.target.tile, {tile for node in body if (tile := ir.entering(node))}
            alike = [ref.tile for ref in ir.refs(largest.expr)] == [old, w] and w in logs
            falls = _falls(falling, old, top) and _falls(weight, w, top)
            others = [each for each in sums if isinstance(each, ir.Compute) and each.target.tile not in own]
            if alike and falls and all(_rescaled(each, old) for each in others):
                return [node for node in body if node not in (largest, falling, moved)]
    return body


def _falls(node: ir.Compute, tile: ir.Tile, top: ir.Tile) -> bool:
    """Whether a tile becomes e to the power of itself less the maximum."""
    match difference(node.expr):
        case (ir.Ref(tile=a), ir.Ref(tile=b)):
            return (node.target.tile, a, b) == (tile, tile, top)
    return False


def _rescaled(node: ir.Compute, factor: ir.Tile) -> bool:
    """Whether a sum becomes the factor times itself and a term."""
    match node.expr:
        case ir.Elementwise(
            op="add", operands=(ir.Elementwise(op="mul", operands=(ir.Ref(tile=a), ir.Ref(tile=s))), _)
        ):
            return node.mode == "assign" and a is factor and s is node.target.tile
    return False
