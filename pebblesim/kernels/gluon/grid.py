"""The grid of a Gluon kernel: which tiles a block has, one after the other, and in which order.

Where a block has several tiles, what the next one needs arrives while one ends. Under a mask tiles differ in length:
those of several heads are in one order, the longest first, and each block has one of them. If a multiprocessor has as
many as the longest one streams, and L2 all that heads stream, shares are even enough for blocks with several tiles.
Where rounds of tiles go from long to short and back in turn, and groups of heads, too, all shares are even.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon.block import Block
from pebblesim.kernels.gluon.boxes import SPLIT
from pebblesim.kernels.gluon.scope import RowsScope
from pebblesim.kernels.gluon.text import STREAMED_TOGETHER
from pebblesim.kernels.key_ranges import SHARING
from pebblesim.kernels.lowering import Lowering
from pebblesim.kernels.terms import Name, Number, Term, call, minimum, term
from pebblesim.kernels.triton.grid import in_groups, longest_last
from pebblesim.kernels.words import WORDS


class Grid(Lowering):
    """Finds the tile, or the tiles, of a block."""

    scope: RowsScope
    plan: Block

    @property
    def number(self) -> Name:
        """The number of the block's tile."""
        return self.scope.number_of(self.plan.own)

    @property
    def streamed_words(self) -> int:
        """Words of a row of what is streamed, by which heads share L2 under a mask."""
        parts = self.plan.stay[0].across if self.plan.nest else 1
        rings = (each for each in self.plan.buffers.values() if each.streamed and not each.vector)
        return parts * sum(each.width for each in rings)

    @property
    def beside(self) -> int:
        """Tiles of the grid with the same rows: one, if it has one dimension."""
        return 1

    def grid(self) -> tuple[list[str], str]:
        """The lines of `run` that find the grid, and the grid."""
        setting, plan, lines = self.setting, self.plan, list[str]()
        count = f"triton.cdiv({setting.size(plan.own.dim)}, {plan.height})" + f" * {self.beside}" * (self.beside > 1)
        grid = f"{count} * heads, 1" if self.numbers else f"{count}, heads"
        size = setting.size(plan.loop.range.dim)
        streamed = f"({size} * {self.streamed_words * WORDS[setting.dtype]})"
        if plan.persistent:
            lines.append("    most = torch.cuda.get_device_properties(device).multi_processor_count")
            grid = f"min({count} * heads, most), 1"
        if plan.persistent and setting.mask is not None and not plan.back_and_forth:
            longest = f"triton.cdiv({size}, {self.scope.length(plan.loop.range)})"
            lines.append(f"    blocks = {count} * heads")
            lines.append(f"    several = triton.cdiv(blocks, most) >= {longest}  # tiles, for shares that are even")
            grid = f"min(blocks, most) if several and 2 * heads * {streamed} <= {STREAMED_TOGETHER} else blocks, 1"
        if "together" in self.numbers:
            lines.append(f"    together = {self.together(streamed)}  # heads whose long tiles come first")
        if "groups" in self.numbers:
            lines.append("    groups = triton.cdiv(heads, together)")
        return lines, grid

    def together(self, streamed: str) -> str:
        """How many heads have their tiles in one order: as many as have what they stream in L2, these bytes each."""
        return f"triton.cdiv(heads, triton.cdiv(heads, max({STREAMED_TOGETHER} // {streamed}, 1)))"

    @property
    def back_and_forth(self) -> bool:
        """Whether the rounds of tiles go from long to short and back in turn."""
        return self.plan.back_and_forth and self.scope.mask is not None

    @property
    def numbers(self) -> list[str]:
        """Names of the arguments, besides sizes, by which a block finds its tile."""
        masked = self.scope.mask is not None
        shares = self.scope.ranged and not self.setting.strides.of  # else the batch says where ranges are
        ordered = [*["together"] * masked, *["groups"] * self.back_and_forth]
        return [*["heads"] * (masked or self.plan.persistent), *ordered, *[SHARING] * shares]

    def within_tile(self, body: list[st.Statement]) -> list[st.Statement]:
        """The statements of a role: those of a tile, behind those that find it, for each tile of the block."""
        scope, plan, name = self.scope, self.plan, self.number.id
        if not self.numbers:
            head = st.Let(("head", name), (call("program_id", 1), call("program_id", 0)))
            return [head, *self.split_head(), *body]
        own, each = term("place" if plan.persistent and self.back_and_forth else "tile"), list[st.Statement]()
        if self.staggered:
            first = call("program_id", 0)
            own, place = term("taken"), (term("turn") + first) % "many" * call("num_programs", 0)
            each.append(st.Let(("taken",), (first + place,), "blocks begin with different ones of theirs"))
        each += self.placed(own)
        each += [*self.from_long_to_short(), *self.split_head(), *scope.streamed_tiles(), *body]
        opening = [*scope.opening(), *self.counted()]
        if not plan.persistent:
            return [*opening, st.Let(("tile",), (call("program_id", 0),)), *each]
        blocks = call("num_programs", 0)
        turn = [st.Let(("turn",), (term("tile") // blocks,)), *self.turned_round(blocks) * self.back_and_forth]
        if self.staggered:
            opening.append(
                st.Let(("many",), ((self.many - 1 - call("program_id", 0)) // blocks + 1,), "tiles of a block")
            )
        filled = st.Let(("filled",), (self.fills(),), more=True)
        loop = st.For("tile", call("program_id", 0), self.many, (*turn, *each, filled), step=blocks)
        return [*opening, st.Let(("filled",), (Number(0),), "slots of each ring before a tile"), loop]

    def from_long_to_short(self) -> Iterator[st.Let]:
        """The statements that number a head's tiles from the longest one on.

        Where rounds go back and forth, groups of heads do, too: a jump from short tiles to long ones in the middle of a
        round would leave shares uneven. The last group begins with the longest.
        """
        last, number = longest_last(self.scope.launch, self.scope.launch.grid[0], self.scope.mask), self.number
        turned = term("tiles") - 1 - number
        if self.plan.persistent and self.back_and_forth:
            left = term("groups") - 1 - "group"
            again = call("where", (left & 1).equals(int(not last)), turned, number)
            yield st.Let((number.id,), (again,), "groups of heads from long to short, and back")
        elif last:
            yield st.Let((number.id,), (turned,))

    def turned_round(self, blocks: Term) -> list[st.Statement]:
        """The statements that find the place of a block's tile: in each second round before the last from its end."""
        turn, again = term("turn"), call("cdiv", self.many, blocks) - 1 - "turn"
        place = call("where", (again & 1).equals(1), (turn * 2 + 1) * blocks - 1 - "tile", term("tile"))
        return [st.Let(("place",), (place,), "rounds from long to short, and back")]

    def counted(self) -> list[st.Statement]:
        """The statements that count the tiles of a side of a head."""
        return [st.Let(("tiles",), (self.scope.count(self.plan.own),))]

    @property
    def of_head(self) -> Term:
        """The number of tiles of a head."""
        return term("tiles")

    @property
    def staggered(self) -> bool:
        """Whether blocks that have several tiles begin with different ones of theirs: under a mask, where the longest
        come first, all blocks would begin a tile at the same time, and ask memory for its rows."""
        return False

    @property
    def many(self) -> Term:
        """The number of tiles of all heads."""
        return self.of_head * "heads"

    def placed(self, own: Term) -> Iterable[st.Statement]:
        """The statements that find the head and the tile of a number of the grid."""
        name, tiles = self.number.id, self.of_head
        if self.scope.mask is None:
            return [st.Let(("head", name), (own // tiles, own % tiles))]
        return longest_first(name, own, tiles)

    def fills(self) -> Term:
        """How many slots of each ring are filled for a tile."""
        return self.scope.streamed_before(self.scope.limits()[1])

    def split_head(self) -> list[st.Statement]:
        """Find the batch and the head of keys of matrices with strides."""
        return [SPLIT] if self.setting.strides.of else []


def longest_first(name: str, own: Term, tiles: Term) -> Iterator[st.Let]:
    """Find the head and the tile that a number stands for, of so many of each head: those of several heads together."""
    together, note = term("together"), "heads whose long tiles come first"
    side = minimum(term("heads") - term("group") * together, together)
    return in_groups(("head", name), own, tiles * together, together, side, note)
