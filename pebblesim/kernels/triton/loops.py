"""Loops over tiles in a kernel: the first and last tile, and the pieces that need other predicates."""

from __future__ import annotations

from dataclasses import dataclass

from pebblesim.core.errors import UsageError
from pebblesim.kernels import key_ranges
from pebblesim.kernels.key_ranges import KeyRanges
from pebblesim.kernels.statements import For, Statement
from pebblesim.kernels.terms import ZERO, Number, Term, calls, cdiv, maximum, minimum
from pebblesim.kernels.triton.ranges import Scope
from pebblesim.language import program as ir


@dataclass(frozen=True)
class Piece:
    """Tiles that a loop runs over.

    Attributes:
        low, high: number of the first tile, and that after the last.
        whole: whether all pairs in these tiles are allowed.
        complete: whether all of their indices exist.
        jump: tiles from the first of these on are those from the second on.
        stages: iterations whose reads are in flight; None: as many as of the launch, which Triton takes for loops with
            products alone.
    """

    low: Term
    high: Term
    whole: bool = False
    complete: bool = False
    jump: tuple[Term, Term] | None = None
    stages: int | None = None

    def loop(self, number: str, body: list[Statement], of: ir.Loop | None = None) -> For:
        """The loop over these tiles."""
        return For(number, self.low, self.high, tuple(body), stages=self.stages, of=of)


def bounds(at: Scope, loop: ir.Loop) -> tuple[Term, Term]:
    """The number of the first tile that a loop runs over, and the one after that of the last."""
    if at.cut(loop.range):
        return ZERO, _end_of_parts(at, loop)
    block, within, count = at.length(loop.range), at.within(loop.range), at.count(loop.range)
    if loop.when is None or at.mask is None:
        return ZERO, count
    if loop.when.none:
        raise UsageError(f"{at.program.name}: what line {loop.line} does with no allowed pair is no Triton kernel.")
    if isinstance(at.mask, KeyRanges):
        low, end = _met(at, loop, False)
        last = minimum(cdiv(end, block), count)
        return low // block, last if _keeps_pairs(loop) else last * (low < end)
    of_columns = loop.when.columns is loop.range
    start, stop = at.positions(loop.when.rows) if of_columns else at.ends(loop.when.columns)
    rows = 1 if of_columns else at.mask.rows
    back, forth = (at.before, at.after) if of_columns else (at.after, at.before)
    low = ZERO
    if back is not None:
        first = maximum(start - back, 0) * rows
        low = (maximum(first - "start", 0) if within else first) // block
        if not (at.mask.at_end or at.setting.strides.of) and at.ragged(loop.range) and _takes_pairs(loop):
            low = maximum(low, count * (first >= at.setting.size(loop.range.dim)))  # which a ragged tile may have
    if forth is None:
        return low, count
    last = (stop + forth) * rows + (block - 1)
    return low, minimum((last - "start" if within else last) // block, count)


def _end_of_parts(at: Scope, loop: ir.Loop) -> Term:
    """The number after the last of the tiles of a tile."""
    outer = loop.range.parent
    assert outer is not None
    if outer not in at.numbers or loop.when is not None:
        raise UsageError(
            f"{at.program.name}: tiles of a tile of a tile, or those that a mask allows (line {loop.line}), "
            "cannot be in a Triton kernel; read tiles of that size in its place."
        )
    parts = at.parts(loop)
    if not at.ragged(outer):
        return Number(parts)
    return minimum(cdiv(at.total(loop.range), at.length(loop.range)) - at.numbers[outer] * parts, parts)


def _met(at: Scope, loop: ir.Loop, by_all: bool) -> tuple[Term, Term]:
    """The first index of a loop that meets some, or all, indices of the other tile, and the one after the last."""
    when = loop.when
    assert when is not None and at.mask is not None
    if when.columns is loop.range:
        return key_ranges.seen_by_rows(*at.positions(when.rows), by_all)
    low, end = key_ranges.seeing_columns(*at.ends(when.columns), at.mask.rows, by_all)
    return (maximum(low - "start", 0), end - "start") if at.within(loop.range) else (low, end)


def _around_whole(at: Scope, loop: ir.Loop, low: Term, high: Term, complete: bool) -> list[Piece]:
    """The tiles of a loop before, among and behind those in which all pairs are allowed."""
    first, end = _met(at, loop, True)
    block = at.length(loop.range)
    begin = minimum(maximum(cdiv(first, block), low), high)
    stop = minimum(maximum(end // block, begin), high)
    return [Piece(low, begin), Piece(begin, stop, whole=True, complete=complete), Piece(stop, high)]


def pieces(at: Scope, loop: ir.Loop, differs: bool) -> list[Piece]:
    """The pieces of a loop, each with the predicates that its tiles need.

    Under a causal mask tiles along the diagonal stand apart, if it makes a difference in the body: `differs`. A ragged
    tile stands apart, too, or with those along the diagonal.
    """
    (low, high), total, mask = bounds(at, loop), at.total(loop.range), at.mask
    block = at.length(loop.range)
    apart = at.ragged(loop.range) and not isinstance(total, Number) and _moves(loop)
    full = total // block if apart and not at.cut(loop.range) else None
    if apart and _of_a_split(at, loop):
        assert loop.range.parent is not None
        parts = at.parts(loop)
        complete = total // block - at.numbers[loop.range.parent] * parts
        return [Piece(low, minimum(complete, parts), complete=True), Piece(complete, high, stages=1)]
    if loop.when is not None and isinstance(mask, KeyRanges) and differs:
        return _around_whole(at, loop, low, high, full is not None)
    if loop.when is None or mask is None or mask.after is None or mask.before is not None or not differs:
        return split(low, high, full, False)
    assert at.after is not None
    if loop.when.columns is loop.range:
        start, _ = at.positions(loop.when.rows)
        most = at.count(loop.range) if full is None else full
        middle = minimum(maximum(start + at.after + 1, 0) // block, most)
        return [Piece(low, middle, whole=True, complete=full is not None), Piece(middle, high)]
    _, stop = at.ends(loop.when.columns)
    first = maximum(stop - at.after - 1, 0) * mask.rows
    if at.within(loop.range):
        first = maximum(first - "start", 0)
    middle = minimum((first + (block - 1)) // block, high)
    if full is None:
        return [Piece(low, middle), Piece(middle, high, True)]
    rest, last = split(middle, high, full, True)  # the last with those along the diagonal: one loop less
    return [Piece(low, middle + maximum(high - last.low, 0), jump=(middle, full)), rest]


def _of_a_split(at: Scope, loop: ir.Loop) -> bool:
    """Whether a loop runs over the tiles of a tile that each program has one of."""
    return at.cut(loop.range) and loop.range.parent in [each.range for each in at.launch.grid]


def split(low: Term, high: Term, full: Term | None, whole: bool) -> list[Piece]:
    """The complete tiles between two, and the last one."""
    if full is None:
        return [Piece(low, high, whole)]
    return [
        Piece(low, minimum(high, full) if calls(high, "minimum") else full, whole, complete=True),
        Piece(full if low == ZERO else maximum(low, full), high, whole, stages=1),
    ]


def fused(at: Scope, outer: ir.Loop, inner: ir.Loop) -> list[Piece]:
    """Tiles of a tile, with nothing between the loops, as one loop over the smaller tiles."""
    small, parts, total = at.length(inner.range), at.parts(inner), at.total(outer.range)
    last = at.count(outer.range) * parts if _keeps_pairs(inner) else cdiv(total, small)
    low, high = bounds(at, outer)
    stop = minimum(high * parts, last) if calls(high, "minimum") else last
    full = total // small if at.ragged(outer.range) and not isinstance(total, Number) else None
    return split(low * parts, stop, full, at.whole)


def _takes_pairs(loop: ir.Loop) -> bool:
    """Whether a loop reads tiles of pairs that perhaps a loop over the other side has written, where they have a pair.

    A loop that writes such tiles, too, reads those that one like it has written.
    """
    reads = any(isinstance(node, ir.Read) and ir.over_pairs(node.tile.ranges) for node in ir.walk(loop.body))
    return reads and not _keeps_pairs(loop)


def _keeps_pairs(loop: ir.Loop) -> bool:
    """Whether a loop writes tiles of pairs to memory: all that a loop over the other side may meet, and read.

    Keys that no query sees can lie between those of two queries of a tile, whose loop then meets them.
    """
    return any(isinstance(node, ir.Write) and ir.over_pairs(node.tile.ranges) for node in ir.walk(loop.body))


def _moves(loop: ir.Loop) -> bool:
    """Whether tiles of a loop's range enter the cache in it; else it makes no difference which of them are ragged."""
    inside = {loop.range} | {each.range for each in ir.walk(loop.body) if isinstance(each, ir.Loop)}
    return any(rng in inside for node in ir.walk(loop.body) if (tile := ir.entering(node)) for rng in tile.ranges)
