"""The ranges and values of a warpgroup in a Gluon kernel: a part of a block's tile, and layouts in which tiles meet."""

from __future__ import annotations

from dataclasses import replace
from math import e, log2

from pebblesim.kernels import key_ranges
from pebblesim.kernels.gluon.block import Block
from pebblesim.kernels.gluon.plan import APART
from pebblesim.kernels.key_ranges import ABOVE, BELOW, END, FIRST, SHARING
from pebblesim.kernels.statements import Let, Statement
from pebblesim.kernels.terms import (
    Layout,
    Name,
    Number,
    Term,
    Word,
    all_of,
    call,
    cdiv,
    maximum,
    minimum,
    sides,
    term,
    wide,
)
from pebblesim.kernels.triton.loops import Piece, bounds, pieces
from pebblesim.kernels.triton.ranges import Scope, Setting, along
from pebblesim.kernels.triton.values import Values
from pebblesim.language import program as ir

RANGES = ("low", "high", "all_low", "all_high", "first_at", "end_at")
"""Names of the tiles that a block streams, of the indices that all of its own meet, and of addresses of ranges."""


class RowsScope(Scope):
    """The ranges of a warpgroup: tiles of its own sides, streams of the whole block's, and layouts of vectors."""

    def __init__(self, setting: Setting, plan: Block) -> None:
        super().__init__(setting, plan.launch)
        self.plan = plan

    def length(self, rng: ir.Range) -> int:
        """Indices of a tile, of those of the warpgroup."""
        return self.plan.sides[rng] if rng in self.plan.sides else super().length(rng)

    def count(self, rng: ir.Range) -> Term:
        """The number of tiles, of those of the block."""
        if self._together(rng) > 1:  # whole tiles, so that of a table all is written
            assert rng.parent is not None
            return super().count(rng.parent) * self._together(rng)
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

    # What is streamed

    def cut(self, rng: ir.Range) -> bool:
        """Whether it is over tiles of a tile; what is streamed goes on from each tile to the next."""
        return rng is not self.plan.loop.range and super().cut(rng)

    def _together(self, rng: ir.Range) -> int:
        """How many tiles in a row are streamed if one is: those of a tile that they are cut from; of others 1."""
        return self.parts(self.plan.loop) if rng is self.plan.loop.range and super().cut(rng) else 1

    def from_last(self) -> bool:
        """Whether tiles are streamed from the last one, which may be ragged, to the first.

        With a loop of its own behind the others, the operand that is put off would go through two loops: the compiler
        takes it apart and packs it again in each iteration.
        """
        loop = self.plan.loop
        return bool(self.plan.late) and not self.plan.additions and loop.when is None and self.ragged(loop.range)

    def one_by_one(self) -> bool:
        """Whether a loop's body asks of each tile if the mask, or the end of a length, cuts it.

        That is faster where products are put off. Where a tile of scores is a sum over parts it is as fast, and half as
        much to compile: the products of all parts are written once, and not again for the tiles that are cut. Of ranges
        that are read, tiles of queries that stream past keys all have predicates: to ask would spill registers.
        """
        plan, mask, when = self.plan, self.mask, self.plan.loop.when
        if self.ranged:
            return self._of_queries
        in_parts = not plan.late and plan.nest is not None and bool(plan.outgoing)
        if when is None:
            return in_parts and self.ragged(plan.loop.range)
        if mask is None or mask.after is None or when.columns is not plan.loop.range or not (plan.late or in_parts):
            return False
        if in_parts:
            return mask.before is None
        matrices = (write.tile.ranges for write in plan.writes if len(write.tile.ranges) == 2)
        return mask.before is not None or max(self.sizes[ranges[-1].dim] for ranges in matrices) <= APART

    def limits(self) -> tuple[Term, Term]:
        """The number of the first tile that is streamed, and that after the last."""
        if self.ranged:
            return Name("low"), Name("high")
        (low, high), together = bounds(self, self.plan.loop), self._together(self.plan.loop.range)
        if together == 1 or self.mask is None:
            return low, high
        return low // together * together, high if self.before is None else cdiv(high, together) * together

    def streamed_before(self, number: Term) -> Term:
        """How many tiles are streamed before a tile."""
        return number - self.limits()[0]

    def slot(self, turn: Term) -> Let:
        """The slot of a ring, and the phase of its barriers, once so many were filled for this tile of the grid."""
        return self.slot_at(term("filled") + turn if self.plan.persistent else turn)

    def slot_at(self, turn: Term) -> Let:
        """The slot of a ring, and the phase of its barriers, once so many were filled."""
        stages = self.plan.stages
        slot = turn % stages
        return Let(("slot", "phase"), (term("w") * stages + slot if self.plan.stays else slot, turn // stages & 1))

    def slot_of(self, number: Term) -> Let:
        """The slot of a ring, and the phase of its barriers, for a tile that is streamed."""
        return self.slot(self.streamed_before(number))

    def streamed(self, turn: Term) -> Term:
        """The number of the tile that is streamed at a turn."""
        return self.limits()[1] - 1 - turn if self.from_last() else turn

    def stream(self, differs: bool) -> list[Piece]:
        """The pieces of the loop, through which a ring goes in order; from its second tile on if products are put off.

        A loop that adds to memory is one piece: with two, what they have in common is not all in registers. So is one
        whose ragged tile came first, and one whose tiles are told apart one by one: those that a mask cuts.
        `differs`: whether its body needs predicates where some pairs are not allowed.
        """
        (low, high), late = self.limits(), bool(self.plan.late)
        if self.plan.additions:
            return [Piece(low, high)]
        if self.from_last():
            return [Piece(Number(1), high, complete=True)]
        begin = low + 1 if late else low
        if self.ranged or self.one_by_one() or (self._together(self.plan.loop.range) > 1 and self.before is not None):
            return [Piece(begin, high)]
        first, *others = pieces(self, self.plan.loop, differs)
        if first.jump is not None:
            middle, _ = first.jump
            first, others = Piece(low, middle), [Piece(middle, high, whole=True)]
        if late:
            others = [replace(each, low=maximum(each.low, begin)) for each in others]
        return [replace(each, stages=None) for each in (replace(first, low=begin), *others)]

    def edge(self) -> Term:
        """The condition that some pairs of a tile are not allowed, or do not exist."""
        loop, block = self.plan.loop, self.plan.side_of_block(self.plan.loop.range) or self.length(self.plan.loop.range)
        behind = (self.numbers[loop.range] + 1) * block
        if self.ranged:
            return (behind > Name("all_high")) | (self.numbers[loop.range] * block < Name("all_low"))
        if loop.when is None:
            return behind > self.total(loop.range)
        assert self.after is not None
        start, stop = self.positions(loop.when.rows)
        last = start + self.after + 1
        if self.ragged(loop.range):
            last = minimum(last, self.total(loop.range))
        if self.before is None:
            return behind > last
        return (behind > last) | (self.numbers[loop.range] * block < stop - 1 - self.before)

    # Ranges that are read: of keys, of the block's own queries, or of queries, of its own keys

    @property
    def addresses_of_ranges(self) -> tuple[str, ...]:
        """The arguments from which ranges are read: what each of the block's own indices meets."""
        if not self.ranged:
            return ()
        return (FIRST, END) if self._of_queries else (ABOVE, BELOW)

    @property
    def _of_queries(self) -> bool:
        """Whether the block has queries of its own, and streams keys."""
        return self.plan.own.dim == (self.program.pairs or ("",))[0]

    def ranges_of_head(self) -> list[Statement]:
        """Nothing: blocks may have tiles of several heads."""
        return []

    def streamed_tiles(self) -> list[Statement]:
        """Find, for all roles, the first tile that is streamed, and the one after the last; one at least.

        So slots are counted alike for blocks without a pair, and what stays is always waited for.
        """
        if not self.ranged:
            return []
        assert self.program.pairs is not None and self.mask is not None
        queries, rows = self.setting.size(self.program.pairs[0]), self.mask.rows
        length = queries // rows if self._of_queries else self.setting.size(self.program.pairs[1])
        batch = wide("batch" if self.setting.strides.of else term("head") // SHARING)
        loop, block = self.plan.loop.range, self.length(self.plan.loop.range)
        first, end = self._met(False)
        return [
            Let(("first_at", "end_at"), tuple(Name(each) + batch * length for each in self.addresses_of_ranges)),
            Let(("high",), (maximum(minimum(cdiv(end, block), self.count(loop)), 1),)),
            Let(("low",), (minimum(first // block, term("high") - 1),)),
        ]

    def met_by_all(self) -> list[Statement]:
        """Find the first of the indices that are streamed that all of the block's own meet, and the one behind."""
        return [Let(("all_low", "all_high"), self._met(True))] if self.ranged and self.one_by_one() else []

    def _met(self, by_all: bool) -> tuple[Term, Term]:
        """The first index that some, or all, of the block's own meet, and the one after the last."""
        assert self.mask is not None
        if self._of_queries:
            return key_ranges.met("first_at", "end_at", *self.positions(self.plan.own), by_all)
        first, end = key_ranges.met("first_at", "end_at", *self.ends(self.plan.own), by_all)
        return first * self.mask.rows, end * self.mask.rows

    def ranges_of_tile(self, rng: ir.Range) -> list[Statement]:
        """Read what each of the warpgroup's own indices meets."""
        if rng is not self.plan.own:
            return []
        assert self.mask is not None
        rows, times = (self.mask.rows, 1) if self._of_queries else (1, self.mask.rows)
        exist = all_of(self.exist(rng, None))
        return key_ranges.vectors(str(self.index(rng)), exist, rows, None, ("first_at", "end_at"), times)

    # Layouts

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
        if self.ranged and not self.whole and ir.over_pairs(ranges) and stream in ranges:
            return self._in_ranges(ranges, frame)
        causal = mask is not None and mask.rows == 1 and mask.after is not None and mask.before is None
        if not causal or self.whole or not ir.over_pairs(ranges) or stream not in ranges:
            return super().pairs(ranges, frame, existing)
        columns, first = self.arange(stream), self.numbers[stream] * self.length(stream)
        rows, across = along(0, frame), along(1, frame)
        assert self.after is not None
        if ranges[0] is stream:
            limit = self.index(ranges[1]) - self.after - first
            return [limit.along(across) <= columns.along(rows)]
        last = self.index(ranges[0]) + self.after
        if existing and self.exist(stream, 1, frame):
            last = minimum(last, self.setting.size(stream.dim) - 1)
        return [columns.along(across) <= (last - first).along(rows)]

    def _in_ranges(self, ranges: ir.Ranges, frame: bool) -> list[Term]:
        """The predicate of the pairs of a tile that are in ranges; these end where what is streamed ends."""
        own, stream = self.plan.own, self.plan.loop.range
        axis = ranges.index(stream)
        columns, before = self.arange(stream).along(along(axis, frame)), self.numbers[stream] * self.length(stream)
        first, end = (
            (Name(each) - before).along(along(1 - axis, frame)) for each in key_ranges.of_tile(str(self.index(own)))
        )
        return [columns >= first, columns < end]


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

    def filled(self, tile: ir.Tile, value: Term) -> Term:
        """A tile of one value, in its layout."""
        scope, shape = self.scope, self.sides(tile)
        layout = scope.of_vector(tile.ranges[0]) if len(shape) == 1 else scope.layout(shape[1])
        return call("full", sides(*shape), value, Word("float32"), layout)

    def sigmoid(self, value: Term, times: float | None = None) -> Term:
        """σ of a value, multiplied by a number before; Gluon has exponentials only."""
        exponential = call("exp2", value * (-log2(e) * (1.0 if times is None else times)))
        return term(1.0) / (term(1.0) + exponential)
