"""Loops over copies of tensors in a Triton kernel, as text: sums and maxima of many copies at a time.

A merge of splits goes over the copies that the splits wrote. If it only adds up, or takes the maximum of, what is
computed from each copy alone, tiles of many copies are read at once, with an axis of copies before the others.
"""

from __future__ import annotations

from math import prod

from pebblesim.gpu.emit.triton_descriptors import Descriptors
from pebblesim.gpu.emit.triton_ranges import Setting, along
from pebblesim.gpu.emit.triton_values import MINUS_INFINITY
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

ENTRIES, FEWEST, MOST = 2**13, 4, 64
"""Entries of a tile of several copies, and the fewest and the most copies that one has."""

PARTS = 4
"""Programs of a tile of rows that are merged: one query has fewer rows than matrix units take."""


class Copies(Descriptors):
    """The loops over copies of a kernel."""

    def __init__(self, setting: Setting, launch: Launch) -> None:
        super().__init__(setting, launch)
        self._copy: tuple[str, str] | None = None  # the numbers of the copies, and the one after the last
        self._several: set[ir.Tile] = set()  # tiles of several copies
        self._finer = self._parts_of_rows()

    def _parts_of_rows(self) -> dict[ir.Range, int]:
        """Rows of a program where copies are merged: a part of a tile, since no matrix unit asks for a whole one.

        Under a mask it is the whole tile, which meets the copies that are counted.
        """
        loops = [node for node in self._launch.block if isinstance(node, ir.Loop) and self._at_once(node) > 1]
        if not loops or self._mask is not None or self._around is not None:
            return {}
        return {
            loop.range: max(1, self._length(loop.range) // PARTS)
            for loop in self._launch.grid
            if all(node.tile.ranges[0] is loop.range for each in loops for node in each.body if isinstance(node, ir.Read))
        }

    def _at_once(self, loop: ir.Loop) -> int:
        """How many copies the tiles of a loop have; 1 if it goes over them one after the other."""
        read = [node for node in loop.body if isinstance(node, ir.Read)]
        own = {tile for node in loop.body if (tile := ir.entering(node))}
        if any(node.at is not loop.range or node.tile in self._turned for node in read) or not read:
            return 1
        for node in loop.body:
            if isinstance(node, ir.Compute):
                added = _gathered(node) if node.target.tile not in own else None
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
        """Add up several copies, or take their maximum."""
        added, name = _gathered(node), self._tiles[node.target.tile]
        assert added is not None
        if _is_maximum(node):
            self._say(depth, f"{name} = tl.maximum({name}, tl.max({self._exponent(added, node.line)}, axis=0))")
        else:
            self._say(depth, f"{name} += tl.sum({self._expr(added, node.line)}, axis=0)")

    def _held(self, tile: ir.Tile) -> str:
        """The name of a tile; where several copies are at once, of one that all of them share."""
        name = super()._held(tile)
        if self._copy is None or tile in self._several:
            return name
        return f"{name}[None, :{', :' * (len(tile.ranges) - 1)}]"

    def _along_rows(self, frame: bool) -> str:
        return along(0, frame) if self._copy is None else "[:, :, None]"


def _is_maximum(node: ir.Compute) -> bool:
    return isinstance(node.expr, ir.Elementwise) and node.expr.op == "max" and node.mode == "assign"


def _gathered(node: ir.Compute) -> ir.Expr | None:
    """The term of a sum, or of a maximum, that an operation takes with its target; None if it does something else."""
    tile, expr = node.target.tile, node.expr
    if node.mode == "assign":
        match expr:
            case ir.Elementwise(op="add" | "max", operands=(ir.Ref(tile=same), other)) if same is tile:
                expr = other
            case _:
                return None
    elif node.mode != "add":
        return None
    if any(isinstance(each, ir.MatMul | ir.RowReduction) for each in (expr, *getattr(expr, "operands", ()))):
        return None
    return None if any(ref.tile is tile for ref in ir.refs(expr)) else expr
