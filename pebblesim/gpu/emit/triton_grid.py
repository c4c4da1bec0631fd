"""The grid of a Triton kernel, as text: which tiles each of its programs has, and which leave at once."""

from __future__ import annotations

from pebblesim.core.errors import UsageError
from pebblesim.gpu.emit.bands import launched_across
from pebblesim.gpu.emit.key_ranges import KeyRanges, seen_by_rows
from pebblesim.gpu.emit.triton_copies import Copies
from pebblesim.gpu.emit.triton_ranges import GROUP
from pebblesim.language import program as ir
from pebblesim.language.masks import Band
from pebblesim.launches.launches import Launch


class Grid(Copies):
    """The grid of a kernel."""

    @property
    def programs(self) -> str:
        """How many programs it is launched with for each head, as text of Python."""
        counts = (
            self._launched(loop).replace("tl.minimum", "min").replace("tl.", "triton.") for loop in self._launch.grid
        )
        return " * ".join(f"({each})" if "//" in each else each for each in counts) or "1"

    def _grid(self) -> None:
        loops = self._launch.grid
        if not loops:
            return
        numbers = [self._names.new(loop.range.name) for loop in loops]
        counts = [self._launched(loop) for loop in loops]
        if len(loops) == 1:
            self._say(1, f"{numbers[0]} = tl.program_id(0)")
        elif len(loops) == 2:
            self._say(1, f"tall, wide = {counts[0]}, {counts[1]}")
            self._say(1, f"group, rank = tl.program_id(0) // ({GROUP} * wide), tl.program_id(0) % ({GROUP} * wide)")
            even = counts[0].isdecimal() and int(counts[0]) % GROUP == 0
            height = str(GROUP) if even else f"tl.minimum(tall - group * {GROUP}, {GROUP})"
            self._say(1, f"{numbers[0]}, {numbers[1]} = group * {GROUP} + rank % {height}, rank // {height}")
        else:
            raise UsageError(f"{self._program.name}: more than two loops of independent tiles in one launch.")
        for loop, number in zip(loops, numbers, strict=True):
            if longest_last(self._launch, loop, self._mask):
                self._say(1, f"{number} = {self._count(loop.range)} - 1 - {number}  # the longest first")
            if launched_across(loop, self._mask, self._sizes) is not None:
                self._say(1, f"{number} += {self._bounds(loop)[0]}")
            self._enter(loop, 1, number)
            self._numbers[loop.range] = number
        for loop in loops:
            if loop.when is not None and self._mask is not None:
                self._guard(loop)

    def _launched(self, loop: ir.Loop) -> str:
        """The number of tiles of a loop of the grid that are launched, as text."""
        count, across = self._count(loop.range), launched_across(loop, self._mask, self._sizes)
        return count if across is None else f"tl.minimum({count}, {across})"

    def _guard(self, loop: ir.Loop) -> None:
        """Leave where the mask says so: where a tile has no allowed pair, or, if `when.none`, where it has one."""
        when = loop.when
        assert when is not None
        (top, bottom), (left, right) = self._positions(when.rows), self._ends(when.columns)
        out = [f"({left} >= {self._setting.size(when.columns.dim)})"]
        out = [] if launched_across(loop, self._mask, self._sizes) is None else out
        if self._after is not None:
            out.append(f"({left} - {bottom} >= {self._after})")
        if self._before is not None:
            out.append(f"({top} - {right} >= {self._before})")
        if isinstance(self._mask, KeyRanges) and None not in (when.rows.parent, when.columns.parent):
            first, end = seen_by_rows(top, bottom, False)
            out += [f"({left} >= {end})", f"({right} <= {first})"]
        if out:
            self._say(1, f"if {'not ' if when.none else ''}({' | '.join(out)}):")
            self._say(2, "return")
        elif when.none:
            self._say(1, "return")


def longest_last(launch: Launch, loop: ir.Loop, mask: Band | None) -> bool:
    """Whether the later tiles of rows in a grid meet more columns than the earlier ones, and so take longer."""
    return (
        mask is not None
        and (mask.after is not None or isinstance(mask, KeyRanges))
        and any(
            isinstance(node, ir.Loop) and node.when is not None and node.when.rows is loop.range
            for node in ir.walk(launch.block)
        )
    )
