"""Where tiles are in memory, in a Triton kernel, as text: addresses, and predicates of the words that there are."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from pebblesim.core.errors import UsageError
from pebblesim.gpu.emit.triton_values import Values
from pebblesim.gpu.emit.words import word_bytes
from pebblesim.language import program as ir

PREFETCHED, PREFETCHED_BYTES = 32, 49152
"""Most iterations, and bytes, of reads in flight in a loop without products that goes over copies of a tensor.

An iteration takes less time than a read from L2, so there are many.
"""


class Places(Values):
    """The places of a kernel's tiles."""

    def _tile(self, tile: ir.Tile) -> str:
        if tile not in self._tiles:
            self._tiles[tile] = self._names.new(tile.name)
        return self._tiles[tile]

    def _lengths(self, tensor: ir.Tensor) -> list[str]:
        return self._setting.lengths(tensor, True)

    @property
    def _of_rows(self) -> tuple[str, ...]:
        return () if self._around is None else ("start", "at_once")

    def _strides(self, tensors: Iterable[ir.Tensor]) -> tuple[str, ...]:
        """The arguments that strides of some tensors need."""
        return tuple(self._setting.strides.names(tensors))

    def _at_head(self, tensors: Iterable[ir.Tensor]) -> None:
        """Move the addresses of tensors to those of the head."""
        tensors, strides = list(tensors), self._setting.strides
        if strides.names(tensors):
            self._say(1, "batch, own = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)")
        for tensor in tensors:
            name = self._setting.of[tensor]
            lines = [f"{name} += head * {' * '.join(self._lengths(tensor))}"]
            for line in strides.opening(tensor, name) if tensor in strides.of else lines:
                self._say(1, line)

    def _place(self, tensor: ir.Tensor, ranges: ir.Ranges, at: ir.Range | None) -> str:
        """The addresses of a tile."""
        lengths, start = self._lengths(tensor), self._setting.of[tensor]
        if at is not None:  # of one of several tensors
            start += f" + tl.cast({self._numbers[at]}, tl.int64) * {' * '.join(lengths[1:])}"
        if len(ranges) == 1:
            return f"{start} + {self._index(ranges[0])}"
        if tensor in self._setting.tables.tiled:
            return f"{start} + {self._in_table(tensor, ranges)}"
        (rows, columns), width, strides = ranges, lengths[-1], self._setting.strides
        at_columns, own = f"{self._index(columns)}[None, :]", tensor in strides.of
        if rows.parent is None:
            number = self._index(rows)
            places = strides.places_of(tensor, number) if own else f"{number}[:, None] * {width}"
            return f"{start} + {places} + {at_columns}"
        size = self._length(rows)
        first = f"{self._counted[rows]} * {size}"
        if self._within_rows(rows) and tensor not in self._setting.tables.parts:
            first = f"start + {first}"
        first = f"tl.cast({first}, tl.int64)" if self._setting.far else f"({first})"
        if own:
            return f"{start} + {strides.places(tensor, first, size)} + {at_columns}"
        return f"{start} + {first} * {width} + tl.arange(0, {size})[:, None] * {width} + {at_columns}"

    def _in_table(self, tensor: ir.Tensor, ranges: ir.Ranges) -> str:
        """Where a tile is in a table that is kept tile by tile: 64 bits for that tile, and constants within it."""
        kept, tile = self._setting.tables, self._setting.tables.tiled[tensor]
        numbers, within = [], []
        for rng, side in zip(ranges, tile, strict=True):
            number, parts = self._counted[rng], side // self._length(rng)
            within.append(f"{number} % {parts} * {self._length(rng)}" if parts > 1 else "")
            numbers.append(f"{number} // {parts}" if parts > 1 else number)
        row, column = numbers
        from_first = f"(start // {tile[0]} + {row})" if self._within_rows(ranges[0]) else row
        if kept.band is not None:
            column = f"({column} - {self._first_in(from_first, *tile)})"
        row, across = row if tensor in kept.parts else from_first, self._lengths(tensor)[1]
        place = f"tl.cast({row} * {across} + {column}, tl.int64) * {prod(tile)}"
        if within[0]:
            place += f" + {within[0]} * {tile[1]}"
        if within[1]:
            place += f" + {within[1]}"
        rows, columns = (f"tl.arange(0, {self._length(rng)})" for rng in ranges)
        return f"{place} + {rows}[:, None] * {tile[1]} + {columns}[None, :]"

    def _first_in(self, row: str, tall: int, wide: int) -> str:
        """The number of the first tile that a row of tiles of a table has, under a mask with two limits."""
        assert self._mask is not None
        first = f"({row}) * {tall}" + (f" // {self._mask.rows}" if self._mask.rows > 1 else "")
        return f"tl.maximum({first} - {self._before}, 0) // {wide}"

    def _inside(self, tensor: ir.Tensor, ranges: ir.Ranges) -> str:
        """The predicate of the entries in memory; empty where all are."""
        if tensor in self._setting.tables.tiled:
            return ""
        axes: list[int | None] = [None] if len(ranges) == 1 else [0, 1]
        return " & ".join(filter(None, (self._exist(rng, axis) for rng, axis in zip(ranges, axes, strict=True))))

    def _check_written(self, node: ir.Read) -> None:
        """Under a mask, a tile that is read must lie in one that was written: others may never have been."""
        if not self._pairs(node.tile.ranges) or node.tensor.name in self._program.inputs:
            return
        for phase in self._program.phases:
            for other in ir.walk(phase.body):
                if isinstance(other, ir.Write) and other.tensor is node.tensor:
                    read, written = (tuple(map(self._length, each.tile.ranges)) for each in (node, other))
                    if read[0] > written[0] or read[1] > written[1]:
                        raise UsageError(
                            f"{self._program.name}: under a mask, {node.tensor.name} is written in tiles of "
                            f"{written[0]} x {written[1]} and cannot be read in tiles of {read[0]} x {read[1]}; take "
                            "smaller blocks there."
                        )

    def _store(self, depth: int, node: ir.Write | ir.Init, at: ir.Range | None, value: str) -> None:
        ranges = ir.moved_part(node)
        inside = self._inside(node.tensor, ranges)
        mask = f", mask={inside}" if inside else ""
        kind = f"{self._setting.of[node.tensor]}.dtype.element_ty"
        self._say(depth, f"tl.store({self._place(node.tensor, ranges, at)}, {value}.to({kind}){mask})")

    def _prefetched(self, loop: ir.Loop) -> int:
        """Iterations of a loop over copies whose reads are in flight."""
        read = [node for node in loop.body if isinstance(node, ir.Read)]
        each = sum(
            prod(map(self._length, node.tile.ranges)) * word_bytes(self._program, node.tensor, self._setting.dtype)
            for node in read
        )
        return max(2, min(PREFETCHED, PREFETCHED_BYTES // each))
