"""A streamed tile in a Gluon kernel, beside what is computed, as text: its slot, its mask, turns of warpgroups.

Where one loop goes through all tiles, each asks whether the mask cuts it: at the diagonal, and at both ends of a
window. Predicates are taken there alone. Without a mask the last tile may be ragged. Where products are put off it is
streamed first: the iteration before the loop has its predicates, and the loop none.

Two warpgroups with narrow heads take turns at the matrix units. One issues its products, and passes the turn when it
has its scores; it waits for the next turn behind its exponentials, in front of the wait for the product that was put
off. The compiler moves exponentials behind that wait, but not past a wait for a barrier.
"""

from __future__ import annotations

from pebblesim.gpu.emit.gluon_plan import APART, Plan
from pebblesim.gpu.emit.gluon_rows import Rows
from pebblesim.gpu.emit.triton_ranges import Setting
from pebblesim.gpu.emit.triton_values import bare
from pebblesim.language import program as ir
from pebblesim.language.masks import Band
from pebblesim.launches.launches import Launch


class Tiles(Rows):
    """Masks of single tiles, and turns."""

    _plan: Plan

    def __init__(self, setting: Setting, launch: Launch, name: str, plan: Plan) -> None:
        super().__init__(setting, launch, name, plan)
        self._turn: str | None = None  # number of the tile behind which the next turn is to be taken
        self._asking = False  # whether each tile asks if the mask cuts it

    # Slots

    @property
    def turn(self) -> str:
        """The phase of the barriers of what stays."""
        return "turn & 1" if self._plan.persistent else "0"

    def slot(self, number: str) -> str:
        """The slot of a ring, and the phase of its barriers, for a tile that is streamed."""
        turn = self._streamed_before(number)
        return self._slot_of(f"(filled + {turn})" if self._plan.persistent else turn)

    def from_last(self) -> bool:
        """Whether tiles are streamed from the last one, which may be ragged, to the first.

        With a loop of its own behind the others, the operand that is put off would go through two loops: the compiler
        takes it apart and packs it again in each iteration.
        """
        loop = self._plan.loop
        return bool(self._plan.late) and not self._plan.additions and loop.when is None and self._ragged(loop.range)

    def streamed(self, turn: str) -> str:
        """The number of the tile that is streamed at a turn."""
        return f"({self.limits()[1]} - 1 - {turn})" if self.from_last() else turn

    # Masks

    def _one_by_one(self, loop: ir.Loop) -> bool:
        """Whether a loop's body asks of each tile if the mask cuts it, which is faster where products are put off."""
        mask, when = self._mask, loop.when
        if when is None or not isinstance(mask, Band) or mask.after is None or when.columns is not loop.range:
            return False
        if not self._plan.late:
            return False
        widest = max(self._length(write.tile.ranges[-1]) for write in self._plan.writes if len(write.tile.ranges) == 2)
        return mask.before is not None or widest <= APART

    def _bar(self, depth: int, expr: ir.Expr) -> None:
        if not self._asking:
            super()._bar(depth, expr)
            return
        before = len(self._lines)
        super()._bar(depth + 1, expr)
        if len(self._lines) > before:
            self._lines.insert(before, "    " * depth + f"if {self._is_cut()}:")

    def _is_cut(self) -> str:
        """The condition that some pairs of a tile are not allowed, or do not exist."""
        loop, mask = self._plan.loop, self._mask
        assert loop.when is not None and isinstance(mask, Band)
        (start, stop), block = self._positions(loop.when.rows), self._length(loop.range)
        number = self._numbers[loop.range]
        last = f"{start} + {self._after} + 1"
        if self._ragged(loop.range):
            last = f"tl.minimum({last}, {self._total(loop.range)})"
        parts = [f"({number} + 1) * {block} > {last}"]
        if mask.before is not None:
            parts.append(f"{number} * {block} < {stop} - 1 - {self._before}")
        return parts[0] if len(parts) == 1 else " | ".join(f"({part})" for part in parts)

    # Turns: before a wait there were one for each streamed tile, and one more for each tile of rows

    def _take_turn(self, depth: int, before: str) -> None:
        """Wait until the other warpgroup has passed the turn."""
        self._say(depth, f"mbarrier.wait(turns.index(w), (filled + turn + {before} - w) & 1)")

    def _take_next_turn(self, depth: int) -> None:
        """Wait for the turn of the next tile's products, if that was not done at this tile."""
        if self._turn is not None:
            self._take_turn(depth, f"{bare(self._streamed_before(self._turn))} + 2")
            self._turn = None

    def _pass_turn(self, depth: int) -> None:
        if self._plan.turns:
            self._say(depth, "mbarrier.arrive(turns.index(1 - w), count=1)")
