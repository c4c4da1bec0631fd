"""Where tiles are in memory: addresses, predicates of the words that there are, and descriptors of tiles.

A descriptor says where a head's matrix is, and which tiles are read from it by the chip's own engine: an index of a
tile is all that a load needs then, in place of an address for each thread, and what is outside the matrix is 0 without
a predicate.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from pebblesim.core.errors import UsageError
from pebblesim.kernels.passes.sequences import Sequence
from pebblesim.kernels.passes.sinks import SINKS, first_of_head
from pebblesim.kernels.statements import Let, Statement
from pebblesim.kernels.strides import GRADIENT, WORDS
from pebblesim.kernels.terms import (
    ZERO,
    Items,
    Name,
    Number,
    Term,
    Word,
    call,
    maximum,
    product,
    sides,
    term,
    total,
    wide,
)
from pebblesim.kernels.triton.ranges import Scope
from pebblesim.kernels.words import is_float32, of_launch, word_bytes
from pebblesim.language import program as ir

PREFETCHED, PREFETCHED_BYTES = 32, 49152
"""Most iterations, and bytes, of reads in flight in a loop without products that goes over copies of a tensor.

An iteration takes less time than a read from L2, so there are many.
"""

ROOM = """
def room(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")
"""
"""The function that Triton calls for the memory in which descriptors are."""


class Places:
    """The places of a kernel's tiles."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.setting = scope, scope.setting
        self._described: dict[tuple[ir.Tensor, int, int], str] = {}
        launch = scope.launch
        asked = of_launch(dict.fromkeys(self.setting.described, (1,)), launch.name, ())
        if asked and launch.around is None:  # launched for several groups of rows, some reads were wrong on an H200
            for loop in (node for node in launch.block if isinstance(node, ir.Loop)):
                for node in ir.walk(loop.body):
                    if isinstance(node, ir.Read) and self._describable(node):
                        self._described.setdefault(self._box(node), scope.names.new(f"{node.tensor.name}_tiles"))

    @property
    def of_rows(self) -> tuple[str, ...]:
        """Arguments for rows that launches are repeated for."""
        return () if self.scope.around is None else ("start", "at_once")

    def at_head(self, tensors: Iterable[ir.Tensor]) -> list[Statement]:
        """Move the addresses of tensors to those of the head."""
        tensors, strides, made = list(tensors), self.setting.strides, list[Statement]()
        if strides.of and any(tensor in strides.of or tensor.name == SINKS for tensor in tensors):
            both = (call("program_id", axis).to(Word("int64")) for axis in (2, 1))
            made.append(Let(("batch", "own"), tuple(both)))
        for tensor in tensors:
            name = self.setting.of[tensor]
            if tensor in strides.of:
                made += strides.opening(tensor, name)
            elif tensor.name == SINKS and strides.of:
                made.append(Let((name,), (first_of_head(Name(name), "own", strides.shared),)))
            elif self._heads_within(tensor):
                copies, *lengths = self.setting.lengths(tensor)
                first = Name("batch") * copies * call("num_programs", 1) + "own"
                made.append(Let((name,), (product([first, *lengths]),), more=True))
            else:
                words = product([Name("head"), *self.setting.lengths(tensor)])
                made.append(Let((name,), (words,), more=True))
        return made

    def address(self, tensor: ir.Tensor, ranges: ir.Ranges, at: ir.Range | None) -> Term:
        """The addresses of a tile."""
        lengths, start, scope = self.setting.lengths(tensor), term(self.setting.of[tensor]), self.scope
        if isinstance(at, Sequence):
            if at.number:
                start = start + product([wide(Number(at.number)), *self._between_copies(tensor, lengths)])
        elif at is not None:  # of one of several tensors
            start = start + product([wide(scope.numbers[at]), *self._between_copies(tensor, lengths)])
        if len(ranges) == 1:
            row, strides = scope.index(ranges[0]), self.setting.strides
            return start + (row % strides.shared if tensor.name == SINKS and strides.of else row)
        if tensor in self.setting.tables.tiled:
            return total([start, *self._in_table(tensor, ranges)])
        (rows, columns), width, strides = ranges, lengths[-1], self.setting.strides
        at_columns, own = scope.index(columns).along("[None, :]"), tensor in strides.of
        if rows.parent is None:
            number = scope.index(rows)
            places = strides.places_of(tensor, number) if own else [number.along("[:, None]") * width]
            return total([start, *places, at_columns])
        size = scope.length(rows)
        first = scope.counted[rows] * size
        if scope.within_rows(rows) and tensor not in self.setting.tables.parts:
            first = term("start") + first
        first = wide(first) if self.setting.far else first
        if own:
            return total([start, *strides.places(tensor, first, size), at_columns])
        return start + first * width + call("arange", 0, size).along("[:, None]") * width + at_columns

    def _between_copies(self, tensor: ir.Tensor, lengths: list[Term]) -> list[Term]:
        """The words from one copy of a tensor to the next, as factors."""
        if tensor in self.setting.strides.copies:
            return [Name(self.setting.strides.copies[tensor])]
        return [call("num_programs", 1), *lengths[1:]] if self._heads_within(tensor) else lengths[1:]

    def _heads_within(self, tensor: ir.Tensor) -> bool:
        """Whether the heads of each copy of a tensor follow one another, beside matrices with copies."""
        strides = self.setting.strides
        return bool(strides.copies) and tensor.apart is not None and tensor not in strides.of

    def _in_table(self, tensor: ir.Tensor, ranges: ir.Ranges) -> list[Term]:
        """Where a tile is in a table that is kept tile by tile: 64 bits for that tile, and constants within it."""
        kept, tile, scope = self.setting.tables, self.setting.tables.tiled[tensor], self.scope
        numbers, within = [], []
        for rng, side, apart in zip(ranges, tile, (tile[1], 1), strict=True):
            number, parts = scope.counted[rng], side // scope.length(rng)
            if parts > 1:
                within.append(number % parts * scope.length(rng) * apart)
            numbers.append(number // parts)
        row, column = numbers
        from_first = term("start") // tile[0] + row if scope.within_rows(ranges[0]) else row
        column = self.in_row(tensor, from_first, column)
        row, across = row if tensor in kept.parts else from_first, self.setting.lengths(tensor)[1]
        rows, columns = (call("arange", 0, scope.length(rng)) for rng in ranges)
        in_tile = [rows.along("[:, None]") * tile[1], columns.along("[None, :]")]
        return [wide(row * across + column) * prod(tile), *within, *in_tile]

    def in_row(self, tensor: ir.Tensor, row: Term, column: Term) -> Term:
        """The number of a tile among those of its row; with two limits of a mask, these begin where it meets one."""
        kept, mask = self.setting.tables, self.scope.mask
        if kept.band is None or mask is None:
            return column
        tall, across = kept.tiled[tensor]
        return column - maximum(row * tall // mask.rows - self.scope.before, 0) // across

    def inside(self, tensor: ir.Tensor, ranges: ir.Ranges) -> list[Term]:
        """The predicates of the entries in memory; empty where all are."""
        if tensor in self.setting.tables.tiled:
            return []
        axes: list[int | None] = [None] if len(ranges) == 1 else [0, 1]
        return [each for rng, axis in zip(ranges, axes, strict=True) for each in self.scope.exist(rng, axis)]

    def written(self, tensor: ir.Tensor, ranges: ir.Ranges) -> list[Term]:
        """The predicates of the entries that are written: rows of dB, which begin where wide accesses can, in groups of
        words, whole at the end, too. A predicate of single words would have each of them written alone.
        """
        inside = self.inside(tensor, ranges)
        if tensor.name != GRADIENT or tensor not in self.setting.strides.of or not self.scope.ragged(ranges[1]):
            return inside
        keys = call("cdiv", self.setting.size(ranges[1].dim), WORDS) * WORDS
        return [*inside[:-1], self.scope.index(ranges[1]).along("[None, :]") < keys]

    def check_written(self, node: ir.Read) -> None:
        """Under a mask, a tile that is read must lie in one that was written: others may never have been."""
        scope = self.scope
        known = node.tensor.name in scope.program.inputs or node.tensor in self.setting.tables.tiled
        if known or not scope.pairs(node.tile.ranges):
            return
        for phase in scope.program.phases:
            for other in ir.walk(phase.body):
                if isinstance(other, ir.Write) and other.tensor is node.tensor:
                    read, written = (tuple(map(scope.length, each.tile.ranges)) for each in (node, other))
                    if read[0] > written[0] or read[1] > written[1]:
                        raise UsageError(
                            f"{scope.program.name}: under a mask, {node.tensor.name} is written in tiles of "
                            f"{written[0]} x {written[1]} and cannot be read in tiles of {read[0]} x {read[1]}; take "
                            "smaller blocks there."
                        )

    def prefetched(self, loop: ir.Loop) -> int:
        """Iterations of a loop over copies whose reads are in flight."""
        read = [node for node in loop.body if isinstance(node, ir.Read)]
        each = sum(
            prod(map(self.scope.length, node.tile.ranges))
            * word_bytes(self.scope.program, node.tensor, self.setting.dtype)
            for node in read
        )
        return max(2, min(PREFETCHED, PREFETCHED_BYTES // each))

    # Descriptors

    @property
    def describes(self) -> bool:
        """Whether the kernel has descriptors."""
        return bool(self._described)

    def _box(self, node: ir.Read) -> tuple[ir.Tensor, int, int]:
        """A matrix, and the rows and columns of a tile that is read from it."""
        rows, columns = map(self.scope.length, node.tile.ranges)
        return node.tensor, rows, columns

    def _describable(self, node: ir.Read) -> bool:
        """Whether a descriptor can be of the tiles of a matrix: its rows are apart by as many words each."""
        tensor, strides, ranges = node.tensor, self.setting.strides, node.tile.ranges
        if len(ranges) != 2 or node.at is not None or ranges[0].parent is None or tensor in self.setting.tables.tiled:
            return False
        if tensor in self.setting.tables.parts or is_float32(self.scope.program, tensor):
            return False
        if self.setting.dtype == "float32":
            return False
        if tensor in strides.of:
            return strides.several(tensor) == 1
        return tensor.sides(self.scope.sizes)[1] % WORDS == 0

    def descriptors(self) -> list[Statement]:
        """Define the descriptors."""
        made: list[Statement] = []
        for (tensor, rows, columns), name in self._described.items():
            height, (*_, width) = self.setting.size(tensor.shape[0]), self.setting.lengths(tensor)
            strides = self.setting.strides.of
            apart = Name(strides[tensor][2]) if tensor in strides else width
            start = Name(self.setting.of[tensor])
            parts = (Items((height, width)), Items((apart, term(1))), sides(rows, columns))
            made.append(Let((name,), (call("make_tensor_descriptor", start, *parts),)))
        return made

    def in_box(self, node: ir.Read) -> Term | None:
        """The load of a tile by a descriptor; None if there is none."""
        name = self._described.get(self._box(node)) if len(node.tile.ranges) == 2 else None
        if name is None:
            return None
        (rows, columns), scope = node.tile.ranges, self.scope
        row = scope.counted[rows] * scope.length(rows)
        row = term("start") + row if scope.within_rows(rows) else row
        column = ZERO if columns.parent is None else scope.counted[columns] * scope.length(columns)
        return Name(name).call("load", Items((row, column)))
