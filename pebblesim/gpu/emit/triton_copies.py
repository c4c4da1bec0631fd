"""Loops over copies of tensors in a Triton kernel, as text: sums and maxima of many copies at a time.

A merge of splits goes over the copies that the splits wrote. If it only adds up, or takes the maximum of, what is
computed from each copy alone, tiles of many copies are read at once, with an axis of copies before the others. So they
are if the sums are rescaled whenever the running maximum grows: then they are once for all these copies.
"""

from __future__ import annotations

from collections.abc import Container
from math import prod

from pebblesim.gpu.emit.triton_descriptors import Descriptors
from pebblesim.gpu.emit.triton_ranges import Setting, along
from pebblesim.gpu.emit.triton_values import MINUS_INFINITY
from pebblesim.gpu.emit.words import LEAST_SIDE
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

ENTRIES, FEWEST, MOST = 2**13, 4, 64
"""Entries of a tile of several copies, and the fewest and the most copies that one has."""


class Copies(Descriptors):
    """The loops over copies of a kernel."""

    def __init__(self, setting: Setting, launch: Launch) -> None:
        super().__init__(setting, launch)
        self._copy: tuple[str, str] | None = None  # the numbers of the copies, and the one after the last
        self._several: set[ir.Tile] = set()  # tiles of several copies
        self._finer = self._parts_of_rows()

    def _parts_of_rows(self) -> dict[ir.Range, int]:
        """Rows of a program where copies are merged: one of a tile of the fewest that matrix units take; queries may be
        fewer still.

        Under a mask it is the whole tile, which meets the copies that are counted.
        """
        loops = [node for node in self._launch.block if isinstance(node, ir.Loop) and self._at_once(node) > 1]
        if not loops or self._mask is not None or self._around is not None:
            return {}
        return {
            loop.range: 1
            for loop in self._launch.grid
            if self._length(loop.range) == LEAST_SIDE
            and all(
                node.tile.ranges[0] is loop.range for each in loops for node in each.body if isinstance(node, ir.Read)
            )
        }

    def _at_once(self, loop: ir.Loop) -> int:
        """How many copies the tiles of a loop have; 1 if it goes over them one after the other."""
        read = [node for node in loop.body if isinstance(node, ir.Read)]
        own = {tile for node in loop.body if (tile := ir.entering(node))}
        if any(node.at is not loop.range or node.tile in self._turned for node in read) or not read:
            return 1
        logs = {node.tile for node in read if node.tensor in self._setting.logarithms}
        body = without_rescaling(loop.body, logs)
        for node in body:
            if isinstance(node, ir.Compute):
                added = gathered(node, own)
                if node.target.tile not in own and (added is None or not self._nothing(added, read, node)):
                    return 1
            elif not isinstance(node, ir.Read | ir.Delete):
                return 1
        number = min(MOST, ENTRIES // max(prod(map(self._length, node.tile.ranges)) for node in read))
        return number if number >= FEWEST else 1

    def _nothing(self, expr: ir.Expr, read: list[ir.Read], gathered: ir.Compute) -> bool:
        """Whether an expression adds nothing where there is no copy: logarithms are -∞ there, other words are 0."""
        logs = {node.tile for node in read if node.tensor in self._setting.logarithms}
        if _is_maximum(gathered):
            return isinstance(expr, ir.Ref) and expr.tile in logs
        weights = {  # of which the copies that there are not have none
            node.target.tile
            for node in ir.walk(self._launch.block)
            if isinstance(node, ir.Compute)
            and node.target.tile in logs
            and isinstance(node.expr, ir.Elementwise)
            and node.expr.op == "exp"
        }
        zero = {node.tile for node in read} - logs | weights

        def vanishes(each: ir.Expr) -> bool:
            match each:
                case ir.Ref(tile=tile):
                    return tile in zero
                case ir.Elementwise(op="mul", operands=operands):
                    return any(map(vanishes, operands))
            return False

        return vanishes(expr)

    def _read_copies(self, depth: int, node: ir.Read) -> None:
        """Read a tile of several copies."""
        assert self._copy is not None
        name, lengths, ranges = self._tile(node.tile), self._lengths(node.tensor), node.tile.ranges
        (copies, end), none = self._copy, ", None" * len(ranges)
        axes = ["[None, :]"] if len(ranges) == 1 else ["[None, :, None]", "[None, None, :]"]
        places = [f"{self._index(rng)}{axis}" for rng, axis in zip(ranges, axes, strict=True)]
        inside = [f"({copies}[:{none}] < {end})"]
        for place, rng in zip(places, ranges, strict=True):
            inside += [f"({place} < {self._setting.size(rng.dim)})"] * self._ragged(rng)
        if len(ranges) == 2:
            places[0] += f" * {lengths[-1]}"
        start = f"{self._setting.of[node.tensor]} + tl.cast({copies}, tl.int64)[:{none}] * {' * '.join(lengths[1:])}"
        absent = "0.0"
        self._loaded.add(node.tile)
        self._several.add(node.tile)
        if node.tensor in self._setting.logarithms:
            self._base_2.add(node.tile)
            absent = MINUS_INFINITY
        places = [start, *places]
        self._say(depth, f"{name} = tl.load({' + '.join(places)}, mask={' & '.join(inside)}, other={absent})")

    def _gather(self, depth: int, node: ir.Compute) -> None:
        """Add up several copies, or take their maximum, with what there was before."""
        added, name, tile = gathered(node, self._several), self._tile(node.target.tile), node.target.tile
        assert added is not None
        if _is_maximum(node):
            (before,) = (each for each in ir.refs(node.expr) if each.tile not in self._several)
            earlier = self._tiles[before.tile]
            self._say(depth, f"{name} = tl.maximum({earlier}, tl.max({self._exponent(added, node.line)}, axis=0))")
            self._base_2.add(tile)
            return
        text = f"tl.sum({self._expr(added, node.line)}, axis=0)"
        self._say(depth, f"{name} = {self._of_one(_before(node, added), node.line)} + {text}")

    def _of_one(self, expr: ir.Expr, line: int) -> str:
        """An expression without copies, in a loop over them."""
        copy, self._copy = self._copy, None
        text = self._expr(expr, line)
        self._copy = copy
        return text

    def _held(self, tile: ir.Tile) -> str:
        """The name of a tile; where several copies are at once, of one that all of them share."""
        name = super()._held(tile)
        if self._copy is None or tile in self._several:
            return name
        return f"{name}[None, :{', :' * (len(tile.ranges) - 1)}]"

    def _along_rows(self, frame: bool) -> str:
        return along(0, frame) if self._copy is None else "[:, :, None]"


def _is_maximum(node: ir.Compute) -> bool:
    return isinstance(node.expr, ir.Elementwise) and node.expr.op == "max" and node.mode != "add"


def gathered(node: ir.Compute, several: Container[ir.Tile]) -> ir.Expr | None:
    """The term of a sum, or of a maximum, that an operation takes with values of no copy; None if it does not."""
    tile, expr = node.target.tile, node.expr
    if node.mode == "add":
        return None if _reduces(expr) or any(ref.tile is tile for ref in ir.refs(expr)) else expr
    match expr:
        case ir.Elementwise(op="add" | "max", operands=(before, added)):
            apart = not any(ref.tile in several for ref in ir.refs(before))
            return (
                added if apart and any(ref.tile in several for ref in ir.refs(added)) and not _reduces(expr) else None
            )
    return None


def _before(node: ir.Compute, added: ir.Expr) -> ir.Expr:
    """The value that a sum is added to: the target, or the other operand."""
    if node.mode == "add":
        return node.target
    assert isinstance(node.expr, ir.Elementwise)
    return next(each for each in node.expr.operands if each is not added)


def _reduces(expr: ir.Expr) -> bool:
    """Whether a product, or the sum or maximum of a row, is a part of an expression."""
    parts = getattr(expr, "operands", ())
    return isinstance(expr, ir.MatMul | ir.RowReduction) or any(map(_reduces, parts))


def without_rescaling(body: list[ir.Node], logs: Container[ir.Tile]) -> list[ir.Node]:
    """The statements of a loop, without those by which a running maximum rescales sums, if they are as they should be.

    top = max(old, w); old = exp(old - top); w = exp(w - top); S = old S + w x, ...; old = top. For many w at once, top
    is the maximum of all of them, and each S is rescaled once.
    """
    news = [node for node in body if isinstance(node, ir.Compute) and node.mode == "new" and _is_maximum(node)]
    moved, stated = (
        [node for node in body if isinstance(node, ir.Move)],
        [n for n in body if not isinstance(n, ir.Delete)],
    )
    if len(news) != 1 or len(moved) != 1 or moved[0] is not stated[-1] or moved[0].source is not news[0].target.tile:
        return body
    top, old = moved[0].source, moved[0].tile
    match news[0].expr:
        case ir.Elementwise(operands=(ir.Ref(tile=before), ir.Ref(tile=w))) if before is old and w in logs:
            pass
        case _:
            return body

    def falls(node: ir.Node, tile: ir.Tile) -> bool:
        """Whether a tile becomes e to the power of itself less the maximum."""
        match node:
            case ir.Compute(target=ir.Ref(tile=same), mode="assign", expr=ir.Elementwise(op="exp", operands=(inner,))):
                return same is tile and [ref.tile for ref in ir.refs(inner)] == [tile, top] and _is_difference(inner)
        return False

    falling = [node for node in body if falls(node, old)]
    weights = [node for node in body if falls(node, w)]
    if len(falling) != 1 or len(weights) != 1:
        return body
    own = {tile for node in body if (tile := ir.entering(node))}
    left: list[ir.Node] = []
    for node in body:
        if node in (news[0], falling[0], moved[0]):
            continue
        if isinstance(node, ir.Compute) and node.target.tile not in own and not _rescaled(node, old):
            return body
        left.append(node)
    return left


def _is_difference(expr: ir.Expr) -> bool:
    return isinstance(expr, ir.Elementwise) and expr.op == "sub" and all(isinstance(e, ir.Ref) for e in expr.operands)


def _rescaled(node: ir.Compute, factor: ir.Tile) -> bool:
    """Whether a sum becomes the factor times itself and a term."""
    match node.expr:
        case ir.Elementwise(
            op="add", operands=(ir.Elementwise(op="mul", operands=(ir.Ref(tile=a), ir.Ref(tile=s))), _)
        ):
            return node.mode == "assign" and a is factor and s is node.target.tile
    return False
