"""The roles of a block in a Gluon kernel: warpgroups with 64 rows each, and a warp that loads by the copy engine.

A warpgroup has a block of its own with tiles of 64 rows. Bounds of the loop that streams are those of the whole block's
tile: all its warpgroups share the stream. A buffer in shared memory has barriers `full`, at which the bytes of a slot
arrive; where slots are filled again it has others, `free`, at which each warpgroup arrives when it is done with a slot.
The warp that loads waits for these first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.kernels import statements as st
from pebblesim.kernels.facts import facts_of
from pebblesim.kernels.gluon.block import ROWS, Block, Buffer, Handed, filled, freed
from pebblesim.kernels.gluon.boxes import Box, address, corner, sides
from pebblesim.kernels.gluon.grid import Grid
from pebblesim.kernels.gluon.plan import held_transposed, refused
from pebblesim.kernels.gluon.scope import RANGES, RowsScope, RowsValues
from pebblesim.kernels.gluon.widths import columns_of_part, terms as terms_of_product
from pebblesim.kernels.passes.bias import RowsPlaces
from pebblesim.kernels.products import factors
from pebblesim.kernels.statements import terms_of, within
from pebblesim.kernels.terms import (
    ZERO,
    Held,
    Items,
    Layout,
    Name,
    Term,
    Word,
    all_of,
    call,
    own,
    sides as listed,
    term,
    total,
)
from pebblesim.kernels.triton.loops import Piece
from pebblesim.kernels.triton.ranges import Setting
from pebblesim.kernels.words import word_bytes, word_of
from pebblesim.language import program as ir

ORDER = "tiles tile turn turns place filled together side key_head"
"""Names of what says which tile a block has."""


@dataclass(frozen=True, eq=False)
class Issued:
    """A product that runs beside the rest.

    Attributes:
        tile: its result.
        kept: what it uses until it is waited for, its result first.
        frees: slots of rings that nothing uses after it.
        late: whether it was put off.
    """

    tile: ir.Tile
    kept: tuple[Term, ...]
    frees: tuple[tuple[Buffer, Any], ...]
    late: bool = False


class Roles(Grid):
    """Makes the statements of both roles of a block, and those that take shared memory before they begin."""

    values: RowsValues
    scope: RowsScope
    makes_values: type[RowsValues] = RowsValues
    of_thread = 8  # columns of a row that a thread stores, of words of 16 bits

    def __init__(self, setting: Setting, plan: Block) -> None:
        scope = RowsScope(setting, plan)
        facts = facts_of(setting, plan.launch, held_transposed(plan))
        super().__init__(self.makes_values(scope, facts), RowsPlaces(scope))
        self.plan, self.asking = plan, False  # whether each tile asks if it is cut
        self.running: list[Issued] = []  # products
        self.reserve(*ORDER.split(), *_names_of_rooms(plan), *(RANGES if scope.ranged else ()))

    def reserve(self, *names: str) -> None:
        """Keep names for what is no tile."""
        for name in names:
            self.scope.names.new(name)

    # Shared memory, and the warp that loads

    @property
    def boxes(self) -> Mapping[ir.Tensor, Box]:
        """The boxes of the tensors that the copy engine moves; first those that the warp that loads asks for."""
        outgoing = {node.tensor: each.box for each in self.plan.outgoing for node in (each.write, each.before) if node}
        return {**{each.read.tensor: each.box for each in self.plan.buffers.values()}, **outgoing}

    def allocated(self) -> list[st.Room]:
        """The statements that take shared memory, and make barriers."""
        made: list[st.Room] = []
        for each in self.plan.buffers.values():
            made.append(self.room(each.name, each.slots, each.read, "a ring" if each.streamed else "stays"))
            full, free, own_ones = f"{each.name}_full", f"{each.name}_free", each.beside is None
            made += [st.Barriers((full,), each.fills, (1,))] * own_ones
            made += [st.Barriers((free,), each.fills, (each.freed_by,), full)] * (own_ones and each.freed_by > 0)
        for tile in self.plan.handed:
            kind = "float32" if tile.reduced else self.setting.dtype
            layout = own("gl.NVMMASharedLayout.get_default_for", listed(*tile.shape[1:]), Name(f"gl.{kind}"))
            made += [st.Allocate(tile.room, kind, tile.shape, layout, tile.note)] * (not tile.inside)
            made.append(st.Barriers((f"{tile.name}_full",), tile.shape[0], (tile.arrivals,)))
        for out in self.plan.outgoing:
            made += [self.room(out.name, out.slots, out.write, out.note)] * (out.slots > 0)
            made += [st.Barriers((f"{out.name}_full",), out.slots, (1,))] * (out.before is not None)
        return [*made, *[st.Barriers(("turns",), self.plan.turns, (1,))] * (self.plan.turns > 0)]

    def loading(self) -> list[st.Statement]:
        """The statements of the warp that loads, for a tile of the grid: what stays, and what is streamed."""
        (low, high), at = self.scope.limits(), Name(self.plan.loop.range.name)
        stay = [made for each in self.plan.stay for made in self.staying(each)]
        return [*stay, Piece(low, high).loop(at.id, self.streaming(at), self.plan.loop)]

    def staying(self, buffer: Buffer) -> list[st.Statement]:
        """The statements of the warp that loads for what stays for a tile of the grid."""
        raise NotImplementedError

    def streaming(self, at: Name) -> list[st.Statement]:
        """Those for a tile that is streamed, by its turn."""
        raise NotImplementedError

    def room(self, name: str, slots: int, node: ir.Read | ir.Write, what: str) -> st.Allocate:
        """Room in shared memory for so many boxes of a tensor."""
        shape = (slots, *sides(self.setting, node.tensor, self.boxes[node.tensor]))
        layout = Name(f"{node.tensor.name}_tiles.layout")
        kind = word_of(self.scope.program, node.tensor, self.setting.dtype)
        return st.Allocate(name, kind, shape, layout, f"line {node.line}: {what}")

    def copied(self, node: ir.Read, name: str, slot: Term, corner: Items, full: Term) -> st.Fetch:
        """The copy of a box into a slot."""
        tensor = node.tensor
        taken = prod(self.boxes[tensor]) * word_bytes(self.scope.program, tensor, self.setting.dtype)
        return st.Fetch(f"{tensor.name}_tiles", corner, full, Name(name).index(slot), taken, line=node.line)

    def at(self, node: ir.Read | ir.Write, row: Term, column: Any = ZERO) -> Items:
        """The corner of a box."""
        return corner(self.setting, node.tensor, self.boxes[node.tensor], row, column)

    def copy(self, buffer: Buffer, slot: Term, number: Term, part: Any = 0, fill: Term | None = None) -> st.Fetch:
        """The copy of a box into a slot; `number`, `part`: boxes before it; `fill`: its barrier, if not the slot's."""
        full = filled(buffer.barrier, slot if fill is None else fill)
        column = part * (buffer.pitch or buffer.width)
        column = column + buffer.first if buffer.first else column
        corner = self.at(buffer.read, number * buffer.rows, column)
        return self.copied(buffer.read, buffer.name, slot, corner, full)

    def filling(
        self, buffer: Buffer, fill: Term, phase: Term, copies: list[st.Statement], times: int = 1
    ) -> list[st.Statement]:
        """Have boxes copied when a slot is free; `times`: that each copy is done."""
        free = [st.Wait(freed(buffer.barrier, fill), phase ^ 1)] * (buffer.freed_by > 0)
        return [*free, *expecting(filled(buffer.barrier, fill), copies, times)]

    def tile(self) -> list[st.Statement]:
        """The statements of a tile, without indices that nothing uses."""
        with self.apart() as made:
            note, rows = self.own_rows()
            self.say(*self.scope.met_by_all())
            self.say(st.Let(("part",), (rows,), note), *self.scope.named(self.plan.own, Name("part")))
            self.body(self.scope.launch.block)
        used = {each.id for statement in within(made) for each in terms_of(statement) if isinstance(each, Name)}
        return _without_unused(made, used)

    def own_rows(self) -> tuple[str, Term]:
        """A note on the 64 rows of a warpgroup, and their number."""
        if self.plan.shares > 1:
            return f"these {ROWS} rows, of which the warpgroup has columns", self.number
        return f"these {ROWS} rows of tile {self.number}", self.number * self.plan.warpgroups + "w"

    def addresses(self, setting: Setting, tensors: list[ir.Tensor]) -> list[st.Statement]:
        """Where the rows of the block's head begin, of tensors that threads move; `setting`: of all blocks."""
        return [st.Let((f"{tensor.name}_at",), (address(setting, tensor),)) for tensor in tensors]

    # Products that run

    def issued(self, tile: ir.Tile) -> int:
        """How many products are to be waited for until a tile is there."""
        return max((at for at, each in enumerate(self.running, 1) if each.tile is tile), default=0)

    def settle(self, tile: ir.Tile) -> None:
        """Wait for a tile if it is the result of a product that runs."""
        if number := self.issued(tile):
            self.wait(number)

    def wait(self, number: int) -> None:
        """Wait for the first products that run."""
        done, self.running = self.running[:number], self.running[number:]
        kept = tuple(dict.fromkeys(name for each in done for name in each.kept))
        self.say(st.Settle(kept, len(self.running)))
        self.ended(done)

    def ended(self, done: list[Issued]) -> None:
        """Give back slots of which products were the last use."""
        for each in done:
            for buffer, at in each.frees:
                self.give_back(buffer, at)

    def give_back(self, buffer: Buffer, at: Any) -> None:
        """Give a slot back to the warp that loads."""
        self.say(st.Arrive(freed(buffer.barrier, at)))

    def hand(self, handed: Handed, at: Any, room: Term, value: Term) -> None:
        """Put a tile into a slot, from which other warpgroups take it."""
        self.say(*st.put(room, value), st.Arrive(filled(handed.name, at)))

    def issued_all(self, product: ir.Compute) -> Held:
        """Note that sums have all their terms, and whether they are still to be multiplied by the scale; the sums."""
        tile = product.target.tile
        unscaled = self.values.state(tile).unscaled or self.values.makes_scores(product.expr)
        self.values.mark(tile, empty=False, unscaled=unscaled)
        return self.values.named(tile)

    def pieces(self) -> list[Piece]:
        """The pieces of the loop that streams."""
        return self.scope.stream(any(map(self.differs, ir.walk(self.plan.loop.body))))

    def refused(self, why: str) -> UsageError:
        """The error for a program that this reading cannot write a kernel for."""
        return refused(self.scope.program, why)

    # Statements

    def bar(self, expr: ir.Expr) -> None:
        """Mask scores; where each tile asks if it is cut, there alone."""
        if not self.asking:
            super().bar(expr)
            return
        with self.apart() as made:
            super().bar(expr)
        if made:
            self.say(st.When(self.scope.edge(), tuple(made)))

    def issue(
        self, to: Held, left: Term, right: Term, onto: Term | None, width: int, line: int, rows: int = ROWS
    ) -> None:
        """Issue a product, added to sums or alone."""
        if onto is not None:
            self.say(st.Issue(to, left, right, onto, line=line))
            return
        zeros = call("zeros", listed(rows, width), Word("float32"), self.scope.layout(width))
        self.say(st.Issue(to, left, right, zeros, Name("False"), line=line))

    def issue_over(
        self, node: ir.Compute, to: Held, left: Term, right: Term, onto: Term | None, width: int, columns: int
    ) -> None:
        """Issue a product over columns in shared memory, of those that there are; its last piece is noted elsewhere."""
        pieces = terms_of_product(factors(node).left.shape[1], self.scope.sizes)
        if sum(length for _, length in pieces) == columns:
            self.issue(to, left, right, onto, width, node.line)
            return
        for begin, length in pieces:
            self.running += [Issued(node.target.tile, (to,), (), node in self.plan.late)] * (begin > 0)
            parts = left.call("slice", begin, length, dim=1), right.call("slice", begin, length, dim=0)
            self.issue(to, *parts, to if begin else onto, width, node.line)

    def store(self, node: ir.Write | ir.Init, at: ir.Range | None, value: Term) -> None:
        """Store a matrix row by row, as its layout is or, where threads have registers left, in wide pieces."""
        ranges, scope, setting = ir.moved_part(node), self.scope, self.setting
        if len(ranges) == 1:
            super().store(node, at, value)
            return
        width, name = scope.length(ranges[1]), setting.of[node.tensor]
        layout, value = scope.layout(width), value.to(f"{name}.dtype.element_ty")
        if self.plan.roomy:
            layout = Layout.of_memory(width, self.of_thread)
            value = call("convert_layout", value, layout)
        place, where = self.entries_at(node.tensor, ranges, layout)
        self.say(st.Store(node.tensor, place, value, where, line=node.line))

    def entries_at(self, tensor: ir.Tensor, ranges: ir.Ranges, layout: Layout) -> tuple[Term, Term | None]:
        """Where the entries of a matrix's tile are in memory, in a layout, and which of them exist."""
        scope, setting, length = self.scope, self.setting, self.setting.size(ranges[1].dim)
        rows, columns = (Name(scope.names.new(each)) for each in ("down", "across"))
        sizes = enumerate((ROWS, layout.width))
        down, across = (call("arange", 0, side, call("SliceLayout", 1 - axis, layout)) for axis, side in sizes)
        before, beyond = self.columns_before(ranges[1], layout.width)
        across = across if before is None else before + across
        self.say(st.Let((rows.id,), (term("part") * ROWS + down,)), st.Let((columns.id,), (across,)))
        at_rows, at_columns = rows.along("[:, None]"), columns.along("[None, :]")
        inside = [at_rows < setting.size(ranges[0].dim)] * scope.ragged(ranges[0])
        inside += [at_columns < length] * (beyond > setting.sizes[ranges[1].dim])
        strides = setting.strides
        places = strides.places_of(tensor, rows) if tensor in strides.of else [at_rows * length]
        return total([Name(setting.of[tensor]), *places, at_columns]), all_of(inside)

    def columns_before(self, columns: ir.Range, width: int) -> tuple[Term | None, int]:
        """Columns of a matrix before those of a tile, and where the columns of all warpgroups end."""
        first = columns_of_part(columns)
        if columns not in self.plan.sides:
            return (term(first) if first else None), first + width
        before, end = term("w") * width, first + self.plan.shares * width  # divided among warpgroups
        return before + first if first else before, end


def _names_of_rooms(plan: Block) -> Iterator[str]:
    """Names of what is in shared memory, and of barriers."""
    for buffer in plan.buffers.values():
        yield from (buffer.name + end for end in ("", "_full", "_free"))
    for each in plan.handed:
        yield from [*[each.room] * (not each.inside), f"{each.name}_full"]
    for out in plan.outgoing:
        yield from [*[out.name] * (out.slots > 0), f"{out.name}_full"]


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
