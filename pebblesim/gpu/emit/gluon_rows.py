"""The 64 rows of a warpgroup in a Gluon kernel, as text: ranges, layouts in registers, and stores.

A warpgroup is written as a block of the Triton reading with tiles of 64 rows. Bounds of the loop that streams are those
of the whole block's tile: all its warpgroups share the stream.
"""

from __future__ import annotations

import re
from dataclasses import replace

from pebblesim.core.errors import UsageError
from pebblesim.gpu.emit.gluon_additions import ROWS
from pebblesim.gpu.emit.gluon_boxes import SPLIT
from pebblesim.gpu.emit.gluon_plan import Block, held_transposed, refused
from pebblesim.gpu.emit.triton_grid import longest_last
from pebblesim.gpu.emit.triton_kernel import Writer
from pebblesim.gpu.emit.triton_loops import Piece
from pebblesim.gpu.emit.triton_ranges import Setting, along
from pebblesim.gpu.emit.triton_values import bare
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

ORDER = "tiles tile turn turns filled together side key_head"
"""Names of what says which tile a block has."""


class Rows(Writer):
    """Ranges, layouts and stores of a warpgroup."""

    def __init__(self, setting: Setting, launch: Launch, name: str, plan: Block) -> None:
        super().__init__(setting, launch, name)
        self._plan, self._turned = plan, held_transposed(launch, plan.additions)
        self.widths: set[int] = set()
        self.stored: set[int] = set()
        for taken in ORDER.split():
            self._names.new(taken)

    # The block's tile

    @property
    def numbers(self) -> list[str]:
        """Names of the arguments, besides sizes, by which a block finds its tile."""
        masked = self._mask is not None
        return [*["heads"] * (masked or self._plan.persistent), *["together"] * masked]

    def opening(self) -> list[str]:
        """The lines that every role begins with: the head, the number of the block, the limits of a mask."""
        self._lines = []
        number, depth = self.number, self.depth
        if not self.numbers:
            self._say(1, f"head, {number} = tl.program_id(1), tl.program_id(0)")
            self._split_head(1)
            return self._lines
        self._opening()
        self._say(1, f"tiles = {self._count(self._plan.own)}")
        if self._plan.persistent:
            self._say(1, "filled = 0  # slots of each ring before a tile")
            self._say(1, "for tile in range(tl.program_id(0), tiles * heads, tl.num_programs(0)):")
            self._say(2, "turn = tile // tl.num_programs(0)")
        else:
            self._say(1, "tile = tl.program_id(0)")
        if self._mask is None:
            self._say(depth, f"head, {number} = tile // tiles, tile % tiles")
        else:
            self._say(depth, "group, rank = tile // (tiles * together), tile % (tiles * together)")
            self._say(
                depth, "side = tl.minimum(heads - group * together, together)  # heads whose long tiles come first"
            )
            self._say(depth, f"head, {number} = group * together + rank % side, rank // side")
        if longest_last(self._launch, self._launch.grid[0], self._mask):
            self._say(depth, f"{number} = tiles - 1 - {number}")
        self._split_head(depth)
        return self._lines

    def _split_head(self, depth: int) -> None:
        """Find the batch and the head of keys of matrices with strides."""
        if self._setting.strides.of:
            self._say(depth, SPLIT)

    def text(self) -> str:
        """The source of what a warpgroup does, but for indices that nothing uses."""
        self._lines, depth = [], self.depth
        self._say(depth, self._which())
        self._named(self._plan.own, depth, "part", "")
        self._body(self._launch.block, depth)
        text = "\n".join(self._lines)
        return "\n".join(line for line in self._lines if not _unused(line, text))

    def _which(self) -> str:
        """The line that says which rows the warpgroup has."""
        return f"part = {self.number} * {self._plan.warpgroups} + w  # these {ROWS} rows of tile {self.number}"

    def closing(self) -> list[str]:
        """The lines that each role's tile ends with."""
        _, high = self.limits()
        return [f"        filled += {bare(self._streamed_before(high))}"] * self._plan.persistent

    @property
    def depth(self) -> int:
        """The depth of a tile's statements."""
        return 2 if self._plan.persistent else 1

    @property
    def number(self) -> str:
        """The name of the number of the block's tile."""
        return self._number_of(self._plan.own)

    def _number_of(self, rng: ir.Range) -> str:
        if rng not in self._numbers:
            self._numbers[rng] = self._names.new(rng.name)
        return self._numbers[rng]

    # What is streamed

    def limits(self) -> tuple[str, str]:
        """The number of the first tile that is streamed, and that after the last."""
        return self._bounds(self._plan.loop)

    def _streamed_before(self, number: str) -> str:
        """How many tiles are streamed before a tile."""
        low, _ = self.limits()
        return number if low == "0" else f"({number} - {low})"

    def _slot_of(self, turn: str) -> str:
        """The slot of a ring, and the phase of its barriers, once so many were filled before."""
        stages = self._plan.stages
        return f"slot, phase = {turn} % {stages}, {turn} // {stages} & 1"

    def _one_behind(self, depth: int, name: str, free: str) -> None:
        """In a loop over parts k, wait for the product before the one issued; behind the loop, for the last one."""
        done = f"{name} = warpgroup_mma_wait(%d, deps=({name},))"
        freed = f"mbarrier.arrive({free}.index(last), count=1)"
        self._say(depth + 1, "if k > 0:")
        self._say(depth + 2, done % 1)
        self._say(depth + 2, freed)
        self._say(depth + 1, "last = slot")
        self._say(depth, done % 0)
        self._say(depth, freed)

    def _issued_all(self, product: ir.Compute) -> None:
        """Note that sums have all their terms, and whether they are still to be multiplied by the scale."""
        self._empty.discard(product.target.tile)
        if self._scale is not None and self._makes_scores(product.expr):
            self._unscaled.add(product.target.tile)

    # Ranges

    def _refused(self, why: str) -> UsageError:
        return refused(self._program, why)

    def _in_order(self, loop: ir.Loop) -> list[Piece]:
        """The pieces of a loop; a ring goes through all tiles in order."""
        pieces = self._pieces(loop, any(map(self._differs, ir.walk(loop.body))))
        if pieces[0].jump is not None:
            (low, high), middle = self.limits(), pieces[0].jump[0]
            pieces = [Piece(low, middle), Piece(middle, high, whole=True)]
        return [replace(piece, stages=None) for piece in pieces]

    def _length(self, rng: ir.Range) -> int:
        return ROWS if rng is self._plan.own else super()._length(rng)

    def _count(self, rng: ir.Range) -> str:
        if rng is not self._plan.own:
            return super()._count(rng)
        total, block = self._total(rng), self._plan.height
        return f"{total} // {block}" if self._setting.even else f"tl.cdiv({total}, {block})"

    def _ends(self, rng: ir.Range) -> tuple[str, str]:
        """Begin and end of a tile; of the block's own range, that of all its warpgroups, which share the stream."""
        if rng is not self._plan.own:
            return super()._ends(rng)
        number, block, size = self._numbers[rng], self._plan.height, self._setting.size(rng.dim)
        last = f"({number} + 1) * {block}"
        return f"{number} * {block}", f"tl.minimum({last}, {size})" if self._ragged(rng) else last

    def _layout(self, width: int) -> str:
        """The layout of a tile of the warpgroup."""
        self.widths.add(width)
        return f"tile_{width}"

    def _of_vector(self, rng: ir.Range, width: int | None = None) -> str:
        """The layout of a vector over its rows, or over the columns of its scores."""
        axis = 1 if rng is self._plan.own else 0
        return f"gl.SliceLayout({axis}, {self._layout(width or self._length(self._plan.loop.range))})"

    def _named(self, rng: ir.Range, depth: int, number: str, first: str) -> None:
        size = self._length(rng)
        self._indices[rng], self._counted[rng] = self._names.new(f"at_{rng.name}"), number
        self._say(depth, f"{self._indices[rng]} = {number} * {size} + tl.arange(0, {size}, {self._of_vector(rng)})")

    def _pairs(self, ranges: ir.Ranges, frame: bool = False, existing: bool = False) -> str:
        """The predicate of allowed pairs, with what is streamed counted within its tile: these are constants."""
        stream, mask = self._plan.loop.range, self._mask
        causal = mask is not None and mask.rows == 1 and mask.after is not None and mask.before is None
        causal = causal and not self._whole and ir.over_pairs(ranges)
        if not causal or stream not in ranges:
            return super()._pairs(ranges, frame, existing)
        size = self._length(stream)
        columns, first = f"tl.arange(0, {size}, {self._of_vector(stream)})", f"{self._numbers[stream]} * {size}"
        if ranges[0] is stream:
            first = f"({self._index(ranges[1])} - {self._after} - {first})"
            return f"({first}{along(1, frame)} <= {columns}{along(0, frame)})"
        last = f"{self._index(ranges[0])} + {self._after}"
        if existing and self._exist(stream, 1, frame):
            last = f"tl.minimum({last}, {self._setting.size(stream.dim)} - 1)"
        return f"({columns}{along(1, frame)} <= ({last} - {first}){along(0, frame)})"

    def _fill(self, depth: int, tile: ir.Tile, value: str) -> None:
        shape = [self._length(rng) for rng in tile.ranges[:: -1 if tile in self._turned else 1]]
        layout = self._of_vector(tile.ranges[0]) if len(shape) == 1 else self._layout(shape[1])
        self._say(depth, f"{self._tile(tile)} = tl.full({shape}, {value}, tl.float32, {layout})")

    def _elementwise(self, expr: ir.Elementwise, texts: list[str], line: int, frame: bool) -> str:
        """An operation; a vector that meets a tile of another width than the scores' takes its layout."""
        if len(expr.shape) == 2:
            width = self._length(expr.shape[0 if frame else 1])
            if width != self._length(self._plan.loop.range):
                texts = [
                    text
                    if len(operand.shape) == 2
                    else f"gl.convert_layout({text}, {self._of_vector(operand.shape[0], width)})"
                    for text, operand in zip(texts, expr.operands, strict=True)
                ]
        return super()._elementwise(expr, texts, line, frame)

    # Stores

    def _store(self, depth: int, node: ir.Write | ir.Init, at: ir.Range | None, value: str) -> None:
        ranges, kind = ir.moved_part(node), f"{self._setting.of[node.tensor]}.dtype.element_ty"
        if len(ranges) == 1:
            super()._store(depth, node, at, value)
            return
        width, length = self._length(ranges[1]), self._setting.size(ranges[1].dim)
        rows, columns, layout = self._names.new("down"), self._names.new("across"), self._layout(width)
        value = f"{value}.to({kind})"
        if self._plan.roomy:
            layout = f"rows_{width}"
            value = f"gl.convert_layout({value}, {layout})"
            self.stored.add(width)
        self._say(depth, f"{rows} = part * {ROWS} + tl.arange(0, {ROWS}, gl.SliceLayout(1, {layout}))")
        first, whole = self._columns(ranges[1])
        self._say(depth, f"{columns} = {first}tl.arange(0, {width}, gl.SliceLayout(0, {layout}))")
        inside = [f"({rows}[:, None] < {self._setting.size(ranges[0].dim)})"] if self._ragged(ranges[0]) else []
        inside += [f"({columns}[None, :] < {length})"] if length != str(whole) else []
        mask = f", mask={' & '.join(inside)}" if inside else ""
        down = f"{rows}[:, None] * {length}"
        if node.tensor in self._setting.strides.of:
            down = self._setting.strides.places_of(node.tensor, rows)
        place = f"{self._setting.of[node.tensor]} + {down} + {columns}[None, :]"
        self._say(depth, f"tl.store({place}, {value}{mask})")

    def _columns(self, rng: ir.Range) -> tuple[str, int]:
        """The text before the numbers of a warpgroup's columns, and how many columns all warpgroups have."""
        return "", self._length(rng)


def _unused(line: str, text: str) -> bool:
    """Whether a line names indices that nothing in a text uses."""
    name = line.strip().partition(" = ")[0]
    return name.startswith("at_") and len(re.findall(rf"\b{name}\b", text)) == 1
