"""Loops over tiles in a Triton kernel, as text: the first and last tile, and the pieces that need other predicates."""

from __future__ import annotations

from dataclasses import dataclass

from pebblesim.core.errors import UsageError
from pebblesim.gpu.emit import key_ranges
from pebblesim.gpu.emit.key_ranges import KeyRanges
from pebblesim.gpu.emit.triton_ranges import Ranges
from pebblesim.language import program as ir


@dataclass(frozen=True)
class Piece:
    """Tiles that a loop runs over.

    Attributes:
        low, high: number of the first tile, and that after the last, as text.
        whole: whether all pairs in these tiles are allowed.
        complete: whether all of their indices exist.
        jump: tiles from the first of these on are those from the second on.
        stages: iterations whose reads are in flight; None: as many as of the launch, which Triton takes for loops with
            products alone.
    """

    low: str
    high: str
    whole: bool = False
    complete: bool = False
    jump: tuple[str, str] | None = None
    stages: int | None = None

    @property
    def range(self) -> str:
        """The range of a Python loop."""
        if self.stages is None:
            return f"range({f'{self.low}, {self.high}'.removeprefix('0, ')})"
        return f"tl.range({self.low}, {self.high}, num_stages={self.stages})"


class Loops(Ranges):
    """The loops of a kernel."""

    def _bounds(self, loop: ir.Loop) -> tuple[str, str]:
        """The number of the first tile that a loop runs over, and the one after that of the last."""
        if self._cut(loop.range):
            assert loop.range.parent is not None
            if loop.range.parent not in self._numbers or loop.when is not None:
                raise UsageError(
                    f"{self._program.name}: tiles of a tile of a tile, or those that a mask allows (line {loop.line}), "
                    "cannot be in a Triton kernel; read tiles of that size in its place."
                )
            parts, block = self._parts(loop), self._length(loop.range)
            if not self._ragged(loop.range.parent):
                return "0", str(parts)
            total, number = self._total(loop.range), self._numbers[loop.range.parent]
            tiles = str(-(-int(total) // block)) if total.isdecimal() else f"tl.cdiv({total}, {block})"
            return "0", f"tl.minimum({tiles} - {number} * {parts}, {parts})"
        block, within, count = self._length(loop.range), self._within(loop.range), self._count(loop.range)
        if loop.when is None or self._mask is None:
            return "0", count
        if loop.when.none:
            raise UsageError(
                f"{self._program.name}: what line {loop.line} does with no allowed pair is no Triton kernel."
            )
        if isinstance(self._mask, KeyRanges):
            low, end = self._met(loop, False)
            last = f"tl.minimum(tl.cdiv({end}, {block}), {count})"
            return f"{low} // {block}", last if _keeps_pairs(loop) else f"{last} * ({low} < {end})"
        of_columns = loop.when.columns is loop.range
        start, stop = self._positions(loop.when.rows) if of_columns else self._ends(loop.when.columns)
        before, after, several = self._before, self._after, 1 if of_columns else self._mask.rows
        back, forth = (before, after) if of_columns else (after, before)
        rows = "" if several == 1 else f" * {several}"
        low = "0"
        if back is not None:
            first = f"tl.maximum({start} - {back}, 0){rows}"
            low = f"tl.maximum({first} - start, 0) // {block}" if within else f"{first} // {block}"
        if forth is None:
            return low, count
        last = f"{stop} + {forth} + {block - 1}" if several == 1 else f"({stop} + {forth}){rows} + {block - 1}"
        return low, f"tl.minimum(({last}{' - start' * within}) // {block}, {count})"

    def _met(self, loop: ir.Loop, by_all: bool) -> tuple[str, str]:
        """The first index of a loop that meets some, or all, indices of the other tile, and the one after the last."""
        when = loop.when
        assert when is not None and self._mask is not None
        if when.columns is loop.range:
            return key_ranges.seen_by_rows(*self._positions(when.rows), by_all)
        low, end = key_ranges.seeing_columns(*self._ends(when.columns), self._mask.rows, by_all)
        return (f"tl.maximum({low} - start, 0)", f"({end} - start)") if self._within(loop.range) else (low, end)

    def _around_whole(self, loop: ir.Loop, low: str, high: str, complete: bool) -> list[Piece]:
        """The tiles of a loop before, among and behind those in which all pairs are allowed."""
        first, end = self._met(loop, True)
        block = self._length(loop.range)
        begin = f"tl.minimum(tl.maximum(tl.cdiv({first}, {block}), {low}), {high})"
        stop = f"tl.minimum(tl.maximum({end} // {block}, {begin}), {high})"
        return [Piece(low, begin), Piece(begin, stop, whole=True, complete=complete), Piece(stop, high)]

    def _pieces(self, loop: ir.Loop, differs: bool) -> list[Piece]:
        """The pieces of a loop, each with the predicates that its tiles need.

        Under a causal mask tiles along the diagonal stand apart, if it makes a difference in the body: `differs`. A
        ragged tile stands apart, too, or with those along the diagonal.
        """
        (low, high), total, mask = self._bounds(loop), self._total(loop.range), self._mask
        apart = self._ragged(loop.range) and not total.isdecimal() and _moves(loop)
        full = f"{total} // {self._length(loop.range)}" if apart and not self._cut(loop.range) else None
        if apart and self._of_a_split(loop):
            assert loop.range.parent is not None
            parts = self._parts(loop)
            complete = f"{total} // {self._length(loop.range)} - {self._numbers[loop.range.parent]} * {parts}"
            return [Piece(low, f"tl.minimum({complete}, {parts})", complete=True), Piece(complete, high, stages=1)]
        if loop.when is not None and isinstance(mask, KeyRanges) and differs:
            return self._around_whole(loop, low, high, full is not None)
        if loop.when is None or mask is None or mask.after is None or mask.before is not None or not differs:
            return self._split(low, high, full, False)
        block, several = self._length(loop.range), mask.rows
        if loop.when.columns is loop.range:
            start, _ = self._positions(loop.when.rows)
            most = full or self._count(loop.range)
            middle = f"tl.minimum(tl.maximum({start} + {self._after} + 1, 0) // {block}, {most})"
            return [Piece(low, middle, whole=True, complete=full is not None), Piece(middle, high)]
        _, stop = self._ends(loop.when.columns)
        first = f"tl.maximum({stop} - {self._after} - 1, 0)" + (f" * {several}" if several > 1 else "")
        if self._within(loop.range):
            first = f"tl.maximum({first} - start, 0)"
        middle = f"tl.minimum(({first} + {block - 1}) // {block}, {high})"
        if full is None:
            return [Piece(low, middle), Piece(middle, high, True)]
        rest, last = self._split(middle, high, full, True)  # the last with those along the diagonal: one loop less
        return [Piece(low, f"{middle} + tl.maximum({high} - {last.low}, 0)", jump=(middle, full)), rest]

    def _of_a_split(self, loop: ir.Loop) -> bool:
        """Whether a loop runs over the tiles of a tile that each program has one of."""
        return self._cut(loop.range) and loop.range.parent in [each.range for each in self._launch.grid]

    def _split(self, low: str, high: str, full: str | None, whole: bool) -> list[Piece]:
        """The complete tiles between two, and the last one."""
        if full is None:
            return [Piece(low, high, whole)]
        return [
            Piece(low, f"tl.minimum({high}, {full})" if "minimum" in high else full, whole, complete=True),
            Piece(full if low == "0" else f"tl.maximum({low}, {full})", high, whole, stages=1),
        ]


def _keeps_pairs(loop: ir.Loop) -> bool:
    """Whether a loop writes tiles of pairs to memory: all that a loop over the other side may meet, and read.

    Keys that no query sees can lie between those of two queries of a tile, whose loop then meets them.
    """
    return any(isinstance(node, ir.Write) and ir.over_pairs(node.tile.ranges) for node in ir.walk(loop.body))


def _moves(loop: ir.Loop) -> bool:
    """Whether tiles of a loop's range enter the cache in it; else it makes no difference which of them are ragged."""
    inside = {loop.range} | {each.range for each in ir.walk(loop.body) if isinstance(each, ir.Loop)}
    return any(rng in inside for node in ir.walk(loop.body) if (tile := ir.entering(node)) for rng in tile.ranges)
