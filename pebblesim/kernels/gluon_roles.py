"""The roles of a block in a Gluon kernel: warpgroups with 64 rows each, and a warp that loads by the copy engine.

A warpgroup has a block of its own with tiles of 64 rows. Bounds of the loop that streams are those of the whole block's
tile: all its warpgroups share the stream. A buffer in shared memory has barriers `full`, at which the bytes of a slot
arrive; where slots are filled again it has others, `free`, at which each warpgroup arrives when it is done with a slot.
The warp that loads waits for these first.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from math import e, log2, prod
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.kernels import statements as st
from pebblesim.kernels.bias import RowsPlaces
from pebblesim.kernels.facts import facts_of
from pebblesim.kernels.gluon_additions import ROWS, filled, freed
from pebblesim.kernels.gluon_boxes import SPLIT, Box, corner, sides
from pebblesim.kernels.gluon_plan import Block, Buffer, held_transposed, refused
from pebblesim.kernels.gluon_text import STREAMED_TOGETHER
from pebblesim.kernels.lowering import Lowering
from pebblesim.kernels.statements import terms_of, within
from pebblesim.kernels.terms import (
    ZERO,
    Group,
    Held,
    Items,
    Layout,
    Name,
    Number,
    Term,
    Word,
    all_of,
    bare,
    call,
    is_zero,
    minimum,
    own,
    sides as listed,
    term,
    total,
)
from pebblesim.kernels.triton_grid import in_groups, longest_last
from pebblesim.kernels.triton_loops import Piece, bounds, pieces
from pebblesim.kernels.triton_ranges import Scope, Setting, along
from pebblesim.kernels.triton_values import Values
from pebblesim.kernels.words import WORDS, word_bytes, word_of
from pebblesim.language import program as ir

ORDER = "tiles tile turn turns filled together side key_head"
"""Names of what says which tile a block has."""


class RowsScope(Scope):
    """The ranges of a warpgroup: tiles of its own sides, streams of the whole block's, and layouts of vectors."""

    def __init__(self, setting: Setting, plan: Block) -> None:
        super().__init__(setting, plan.launch)
        self.plan, self._sides = plan, plan.sides(setting.sizes)

    def length(self, rng: ir.Range) -> int:
        """Indices of a tile, of those of the warpgroup."""
        return self._sides[rng] if rng in self._sides else super().length(rng)

    def count(self, rng: ir.Range) -> Term:
        """The number of tiles, of those of the block."""
        side = self.plan.side_of_block(rng)
        return super().count(rng) if side is None else self.tiles(self.total(rng), side)

    def ends(self, rng: ir.Range) -> tuple[Term, Term]:
        """Begin and end of a tile; of the block's own range, that of all its warpgroups, which share the stream."""
        if rng is not self.plan.own:
            return super().ends(rng)
        number, block = self.numbers[rng], self.plan.height
        return number * block, self._to_the_end(rng, (number + 1) * block)

    def number_of(self, rng: ir.Range) -> Name:
        """The number of the block's tile of a range."""
        if rng not in self.numbers:
            self.numbers[rng] = Name(self.names.new(rng.name))
        number = self.numbers[rng]
        assert isinstance(number, Name)
        return number

    def layout(self, width: int) -> Layout:
        """The layout of a tile of the warpgroup."""
        return Layout(f"tile_{width}", width)

    def of_vector(self, rng: ir.Range, width: int | None = None) -> Term:
        """The layout of a vector over its rows, or over the columns of its scores."""
        width = width or self.plan.across or self.length(self.plan.loop.range)
        return call("SliceLayout", 1 if rng is self.plan.own else 0, self.layout(width))

    def arange(self, rng: ir.Range) -> Term:
        """The indices within a tile."""
        return call("arange", 0, self.length(rng), self.of_vector(rng))

    def pairs(self, ranges: ir.Ranges, frame: bool = False, existing: bool = False) -> list[Term]:
        """The predicate of allowed pairs, with what is streamed counted within its tile: these are constants."""
        stream, mask = self.plan.loop.range, self.mask
        causal = mask is not None and mask.rows == 1 and mask.after is not None and mask.before is None
        if not causal or self.whole or not ir.over_pairs(ranges) or stream not in ranges:
            return super().pairs(ranges, frame, existing)
        columns, first = self.arange(stream), self.numbers[stream] * self.length(stream)
        rows, across = along(0, frame), along(1, frame)
        assert self.after is not None
        if ranges[0] is stream:
            limit = Group(self.index(ranges[1]) - self.after - first)
            return [Group(limit.along(across) <= columns.along(rows))]
        last = self.index(ranges[0]) + self.after
        if existing and self.exist(stream, 1, frame):
            last = minimum(last, self.setting.size(stream.dim) - 1)
        return [Group(columns.along(across) <= Group(last - first).along(rows))]


class RowsValues(Values):
    """The values of a warpgroup's tiles, in layouts in which they meet."""

    scope: RowsScope

    def met(self, expr: ir.Elementwise, values: list[Term], frame: bool) -> list[Term]:
        """The operands; a vector that meets a tile of another width than the scores' takes its layout."""
        if len(expr.shape) < 2:
            return values
        width = self.scope.length(expr.shape[0 if frame else 1])
        if width == self.scope.length(self.scope.plan.loop.range):
            return values
        return [
            value
            if len(operand.shape) == 2
            else call("convert_layout", value, self.scope.of_vector(operand.shape[0], width))
            for value, operand in zip(values, expr.operands, strict=True)
        ]

    def sigmoid(self, value: Term, times: float | None = None) -> Term:
        """σ of a value, multiplied by a number before; Gluon has exponentials only."""
        exponential = call("exp2", value * (-log2(e) * (1.0 if times is None else times)))
        return Group(term(1.0) / Group(term(1.0) + exponential))


class Roles(Lowering):
    """Makes the statements of both roles of a block, and those that take shared memory before they begin."""

    values: RowsValues
    scope: RowsScope

    def __init__(self, setting: Setting, plan: Block) -> None:
        scope = RowsScope(setting, plan)
        facts = facts_of(setting, plan.launch, held_transposed(plan))
        super().__init__(RowsValues(scope, facts), RowsPlaces(scope))
        self.plan, self.asking = plan, False  # whether each tile asks if it is cut
        self.reserve(*ORDER.split())
        for buffer in plan.buffers.values():
            self.reserve(*(buffer.name + end for end in ("", "_full", "_free")))

    def reserve(self, *names: str) -> None:
        """Keep names for what is no tile."""
        for name in names:
            self.scope.names.new(name)

    # Shared memory, and the warp that loads

    @property
    def boxes(self) -> Mapping[ir.Tensor, Box]:
        """The boxes of the tensors that the copy engine moves; first those that the warp that loads asks for."""
        return {buffer.read.tensor: buffer.box for buffer in self.plan.buffers.values()}

    @property
    def streamed_words(self) -> int:
        """Words of a row of what is streamed, by which heads share L2 under a mask."""
        return sum(each.width for each in self.plan.buffers.values() if each.streamed and not each.vector)

    def allocated(self) -> list[st.Room]:
        """The statements that take shared memory, and make barriers."""
        made: list[st.Room] = []
        for each in self.plan.buffers.values():
            made.append(self.room(each.name, each.slots, each.read, "a ring" if each.streamed else "stays"))
            full, free = f"{each.name}_full", f"{each.name}_free"
            made += [st.Barriers((full,), each.fills, (1,))] * (not each.beside)
            made += [st.Barriers((free,), each.fills, (each.freed_by,), full)] * (not each.beside and each.freed_by > 0)
        return made

    @abstractmethod
    def loading(self) -> list[st.Statement]:
        """The statements of the warp that loads, for a tile of the grid."""

    def room(self, name: str, slots: int, node: ir.Read | ir.Write, what: str) -> st.Allocate:
        """Room in shared memory for so many boxes of a tensor."""
        shape = (slots, *sides(self.setting, node.tensor, self.boxes[node.tensor]))
        layout = Name(f"{node.tensor.name}_tiles.layout")
        kind = word_of(self.scope.program, node.tensor, self.setting.dtype)
        return st.Allocate(name, kind, shape, layout, f"line {node.line}: {what}")

    def exchange(self, name: str, shape: tuple[int, ...], kind: str, note: str = "") -> st.Allocate:
        """Room in shared memory for tiles that warpgroups exchange."""
        layout = own("gl.NVMMASharedLayout.get_default_for", listed(*shape[1:]), Name(f"gl.{kind}"))
        return st.Allocate(name, kind, shape, layout, note)

    def in_table(self, tensor: ir.Tensor, row: Term, column: Term) -> Term:
        """The first row of a tile among the rows of all tiles of a table."""
        down, across, tall, _ = self.setting.lengths(tensor)
        if self.setting.tables.band is not None:
            column = Group(column - self.places.first_in(row, *self.setting.tables.tiled[tensor]))
        return ((term("head") * down + row) * across + column) * tall

    def copied(self, node: ir.Read, name: str, slot: Term, corner: Items, full: Term) -> st.Fetch:
        """The copy of a box into a slot."""
        tensor = node.tensor
        taken = prod(self.boxes[tensor]) * word_bytes(self.scope.program, tensor, self.setting.dtype)
        return st.Fetch(f"{tensor.name}_tiles", corner, full, Name(name).index(slot), taken, line=node.line)

    def at(self, node: ir.Read | ir.Write, row: Term, column: Any = ZERO) -> Items:
        """The corner of a box."""
        return corner(self.setting, node.tensor, self.boxes[node.tensor], row, column)

    def copy(self, buffer: Buffer, slot: Term, row: Term, column: Any = ZERO, fill: Term | None = None) -> st.Fetch:
        """The copy of a box into a slot of a buffer; `fill`: the number of the barrier, if it is not the slot's."""
        full = filled(buffer.barrier, slot if fill is None else fill)
        return self.copied(buffer.read, buffer.name, slot, self.at(buffer.read, row, column), full)

    def filling(
        self, buffer: Buffer, fill: Term, phase: Term, copies: list[st.Statement], times: int = 1
    ) -> list[st.Statement]:
        """Have boxes copied when a slot is free; `times`: that each copy is done."""
        free = [st.Wait(freed(buffer.barrier, fill), phase ^ 1)] * (buffer.freed_by > 0)
        return [*free, *expecting(filled(buffer.barrier, fill), copies, times)]

    # The grid

    def grid(self) -> tuple[list[str], str]:
        """The lines of `run` that find the grid, and the grid."""
        setting, plan, lines = self.setting, self.plan, list[str]()
        count = f"triton.cdiv({setting.size(plan.own.dim)}, {plan.height})"
        grid = f"{count} * heads, 1" if self.numbers else f"{count}, heads"
        if setting.mask is not None:
            row = self.streamed_words * WORDS[setting.dtype]
            streamed = f"({setting.size(plan.loop.range.dim)} * {row})"
            groups = f"triton.cdiv(heads, max({STREAMED_TOGETHER} // {streamed}, 1))"
            lines.append(f"    together = triton.cdiv(heads, {groups})  # heads whose long tiles come first")
        if plan.persistent:
            lines.append("    most = torch.cuda.get_device_properties(device).multi_processor_count")
            grid = f"min({count} * heads, most), 1"
        return lines, grid

    # The block's tile

    @property
    def numbers(self) -> list[str]:
        """Names of the arguments, besides sizes, by which a block finds its tile."""
        masked = self.scope.mask is not None
        return [*["heads"] * (masked or self.plan.persistent), *["together"] * masked]

    def within_tile(self, body: list[st.Statement]) -> list[st.Statement]:
        """The statements of a role: those of a tile, behind those that find it, for each tile of the block."""
        scope, plan, name = self.scope, self.plan, self.number.id
        if not self.numbers:
            head = st.Let(("head", name), (call("program_id", 1), call("program_id", 0)))
            return [head, *self.split_head(), *body]
        opening = [*scope.opening(), st.Let(("tiles",), (scope.count(plan.own),))]
        tile, tiles = term("tile"), term("tiles")
        each: list[st.Statement] = []
        if scope.mask is None:
            each.append(st.Let(("head", name), (tile // "tiles", tile % "tiles")))
        else:
            together, note = term("together"), "heads whose long tiles come first"
            side = minimum(term("heads") - term("group") * together, together)
            each += in_groups(("head", name), tile, tiles * together, together, side, note)
        if longest_last(scope.launch, scope.launch.grid[0], scope.mask):
            each.append(st.Let((name,), (tiles - 1 - self.number,)))
        each += [*self.split_head(), *body]
        if not plan.persistent:
            return [*opening, st.Let(("tile",), (call("program_id", 0),)), *each]
        blocks, (_, high) = call("num_programs", 0), self.limits()
        turn = st.Let(("turn",), (tile // blocks,))
        filled = st.Let(("filled",), (bare(self.streamed_before(high)),), more=True)
        loop = st.For("tile", call("program_id", 0), tiles * "heads", (turn, *each, filled), step=blocks)
        return [*opening, st.Let(("filled",), (Number(0),), "slots of each ring before a tile"), loop]

    def split_head(self) -> list[st.Statement]:
        """Find the batch and the head of keys of matrices with strides."""
        return [SPLIT] if self.setting.strides.of else []

    def which(self) -> st.Let:
        """The statement that says which rows the warpgroup has."""
        number = self.number
        return st.Let(("part",), (number * self.plan.warpgroups + "w",), f"these {ROWS} rows of tile {number}")

    def tile(self) -> list[st.Statement]:
        """The statements of a tile, without indices that nothing uses."""
        with self.apart() as made:
            self.say(self.which(), *self.scope.named(self.plan.own, Name("part")))
            self.body(self.scope.launch.block)
        used = {each.id for statement in within(made) for each in terms_of(statement) if isinstance(each, Name)}
        return _without_unused(made, used)

    @property
    def number(self) -> Name:
        """The number of the block's tile."""
        return self.scope.number_of(self.plan.own)

    # What is streamed

    def limits(self) -> tuple[Term, Term]:
        """The number of the first tile that is streamed, and that after the last."""
        return bounds(self.scope, self.plan.loop)

    def streamed_before(self, number: Term) -> Term:
        """How many tiles are streamed before a tile."""
        low, _ = self.limits()
        return number if is_zero(low) else Group(number - low)

    def slot_of(self, turn: Term) -> st.Let:
        """The slot of a ring, and the phase of its barriers, once so many were filled before."""
        stages = self.plan.stages
        return st.Let(("slot", "phase"), (turn % stages, turn // stages & 1))

    def one_behind(self, name: Held, free: str, number: str, high: int, issued: list[st.Statement]) -> None:
        """A loop over parts that waits for the product before the one issued; behind it, wait for the last one."""
        freed = st.Arrive(Name(free).index("last"))
        earlier = st.When(term(number) > 0, (st.Settle((name,), 1), freed))
        body = (*issued, earlier, st.Let(("last",), (Name("slot"),)))
        self.say(st.For(number, Number(0), Number(high), body, unrolled=True), st.Settle((name,), 0), freed)

    def issued_all(self, product: ir.Compute) -> Held:
        """Note that sums have all their terms, and whether they are still to be multiplied by the scale; the sums."""
        tile = product.target.tile
        unscaled = self.values.state(tile).unscaled or self.values.makes_scores(product.expr)
        self.values.mark(tile, empty=False, unscaled=unscaled)
        return self.values.named(tile)

    def in_order(self, loop: ir.Loop) -> list[Piece]:
        """The pieces of a loop; a ring goes through all tiles in order."""
        made = pieces(self.scope, loop, any(map(self.differs, ir.walk(loop.body))))
        if made[0].jump is not None:
            (low, high), middle = self.limits(), made[0].jump[0]
            made = [Piece(low, middle), Piece(middle, high, whole=True)]
        return [replace(piece, stages=None) for piece in made]

    def refused(self, why: str) -> UsageError:
        """The error for a program that this reading cannot write a kernel for."""
        return refused(self.scope.program, why)

    # Statements

    def cut(self) -> Term:
        """The condition that some pairs of a tile are not allowed, or do not exist."""
        raise NotImplementedError

    def bar(self, expr: ir.Expr) -> None:
        """Mask scores; where each tile asks if it is cut, there alone."""
        if not self.asking:
            super().bar(expr)
            return
        with self.apart() as made:
            super().bar(expr)
        if made:
            self.say(st.When(self.cut(), tuple(made)))

    def fill(self, tile: ir.Tile, value: Term) -> None:
        """Make a tile of one value, in its layout."""
        scope = self.scope
        shape = tuple(map(scope.length, tile.ranges[:: -1 if tile in self.facts.turned else 1]))
        layout = scope.of_vector(tile.ranges[0]) if len(shape) == 1 else scope.layout(shape[1])
        self.say(st.Fill(self.values.named(tile), shape, value, layout))

    def issue(
        self, to: Held, left: Term, right: Term, onto: Term | None, width: int, line: int, rows: int = ROWS
    ) -> None:
        """Issue a product, added to sums or alone."""
        if onto is not None:
            self.say(st.Issue(to, left, right, onto, line=line))
            return
        zeros = call("zeros", listed(rows, width), Word("float32"), self.scope.layout(width))
        self.say(st.Issue(to, left, right, zeros, Name("False"), line=line))

    def store(self, node: ir.Write | ir.Init, at: ir.Range | None, value: Term) -> None:
        """Store a matrix row by row, as its layout is or, where threads have registers left, in wide pieces."""
        ranges, scope, setting = ir.moved_part(node), self.scope, self.setting
        if len(ranges) == 1:
            super().store(node, at, value)
            return
        width, length = scope.length(ranges[1]), setting.size(ranges[1].dim)
        names, name = (scope.names.new("down"), scope.names.new("across")), setting.of[node.tensor]
        layout, value = scope.layout(width), value.to(f"{name}.dtype.element_ty")
        if self.plan.roomy:
            layout = Layout(f"rows_{width}", width, stored=True)
            value = call("convert_layout", value, layout)
        rows, columns = (Name(each) for each in names)
        down, across = (
            call("arange", 0, side, call("SliceLayout", 1 - axis, layout)) for axis, side in enumerate((ROWS, width))
        )
        self.say(st.Let((rows.id,), (term("part") * ROWS + down,)))
        first, whole = self.columns(ranges[1])
        self.say(st.Let((columns.id,), (total([*first, across]),)))
        at_rows, at_columns = rows.along("[:, None]"), columns.along("[None, :]")
        inside = [Group(at_rows < setting.size(ranges[0].dim))] if scope.ragged(ranges[0]) else []
        inside += [Group(at_columns < length)] if length != Number(whole) else []
        places = [at_rows * length]
        if node.tensor in setting.strides.of:
            places = setting.strides.places_of(node.tensor, rows)
        place = total([Name(name), *places, at_columns])
        self.say(st.Store(node.tensor, place, value, all_of(inside), line=node.line))

    def columns(self, rng: ir.Range) -> tuple[list[Term], int]:
        """The number of a warpgroup's first column, and how many columns all warpgroups have."""
        return [], self.scope.length(rng)


def expecting(full: Term, copies: list[st.Statement], times: int = 1) -> list[st.Statement]:
    """Have boxes copied whose bytes arrive at a barrier; `times`: that each copy is done."""
    taken = sum(each.bytes for each in st.within(copies) if isinstance(each, st.Fetch))
    return [st.Expect(full, times * taken), *copies]


def _without_unused(body: list[st.Statement], used: set[str]) -> list[st.Statement]:
    made: list[st.Statement] = []
    for each in body:
        if isinstance(each, st.Let) and each.indices and each.names[0] not in used:
            continue
        if isinstance(each, st.For):
            each = replace(each, body=tuple(_without_unused([*each.body], used)))
        elif isinstance(each, st.When):
            bodies = (tuple(_without_unused([*body], used)) for body in (each.body, each.otherwise))
            each = st.When(each.condition, *bodies)
        made.append(each)
    return made
