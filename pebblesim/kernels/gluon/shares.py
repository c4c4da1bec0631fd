"""Gluon kernels of gradients of keys whose terms are divided among blocks: each has a share of the terms of two tiles.

The heads that share keys are in parts, with a copy of the keys each. Blocks do not have a part's tile each: under a
causal mask tiles of keys differ in length, so that shares of multiprocessors would not be even. Instead, tiles of keys
are in pairs, the first with the last: all pairs have as many terms. The terms of a pair, those of all parts in the
order of the queries, are dealt out in turn to as many blocks as there are multiprocessors for a pair. All blocks go
from the last query to the first for the longer tile, and back for the other one, so that at any time they stream the
same rows, which are in L2. Each block writes its own sums, as many as there are shares: the caller adds them up.
"""

from __future__ import annotations

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon.block import Block, filled, freed
from pebblesim.kernels.gluon.boxes import HEADS, SPLIT
from pebblesim.kernels.gluon.product import ProductRoles
from pebblesim.kernels.gluon.roles import expecting
from pebblesim.kernels.terms import ZERO, Name, Term, call, minimum, term
from pebblesim.kernels.triton.ranges import Setting
from pebblesim.kernels.triton.triton import APART

WHOLE = 256
"""Columns of the widest tile of a product."""


def columns_of_tile(d: int, given: int) -> int:
    """Columns of a tile of d columns, so many of which are given: wider ones where these leave no part of a tile."""
    return WHOLE if d % given and d % WHOLE == 0 else given


def shares_of(pairs: int, parts: int, multiprocessors: int) -> int:
    """Shares of the terms of so many pairs of tiles, at most one for each part of the heads; `run` has it as text."""
    return max(min(multiprocessors // pairs, parts), 1)


class SharesRoles(ProductRoles):
    """Makes the statements of both roles."""

    def __init__(self, setting: Setting, plan: Block) -> None:
        super().__init__(setting, plan)
        self.reserve("parts", "shares", "share", "groups", "pair", "low", "high", "chunk", "within", "among")

    @staticmethod
    def suits(plan: Block) -> bool:
        """Whether a product is a gradient of keys, all of whose terms are in one loop."""
        loop = plan.loop
        return len(loop.body) == 1 and (loop.when is None or loop.when.rows is loop.range)

    # The grid

    @property
    def numbers(self) -> list[str]:
        """Names of the arguments, besides sizes, by which a block finds its tiles."""
        return ["heads", "parts", "shares"]

    def grid(self) -> tuple[list[str], str]:
        """The lines of `run` that find the grid, and the grid."""
        name, size = self.plan.writes[0].tensor.name, self.setting.size(self.plan.own.dim)
        lines = [
            "    most = torch.cuda.get_device_properties(device).multi_processor_count",
            f'    parts = 1 if {APART} is None else {APART}["{name}"]',
            f"    pairs = triton.cdiv(triton.cdiv({size}, {self.plan.height}), 2) * {self.beside} * (heads // parts)",
            "    shares = max(min(most // pairs, parts), 1)",
            f"    if {APART} is not None:",
            f'        {APART}["{name}"] = shares',
        ]
        return lines, "pairs * shares, 1"

    @property
    def many(self) -> Term:
        """Tiles of all blocks."""
        return self.of_head * "shares" * (term("heads") // "parts")

    def placed(self, own: Term) -> list[st.Statement]:
        """The statements that find a block's share of the terms of two tiles, and which of them is next."""
        (number, column), tiles, wide, rank = self.named_tile, term("tiles"), term("wide"), term("rank")
        groups, block = term("groups"), call("program_id", 0)
        of_pair = wide * "shares" * groups
        first, last = (tiles + 1) // 2 - 1 - block // of_pair, tiles - 1 + tiles % 2
        shares = rank // wide % "shares", rank // wide // "shares"
        return [
            st.Let(("groups",), (term("heads") // "parts",), "of heads that share keys"),
            st.Let(("pair", "rank"), (first, block % of_pair)),
            st.Let((column.id, "share", "group"), (rank % wide, *shares)),
            st.Let((number.id,), (term("pair") + term("turn") * (last - term("pair") * 2),), "the first or its other"),
        ]

    def split_head(self) -> list[st.Statement]:
        """Find the batch, and where the sums of a share are."""
        of_batch = Name(HEADS) // "parts"
        place = term("group") % of_batch * "parts" + "share"
        return [st.Let(("batch", "key_head"), (term("group") // of_batch, place))]

    def opened(self, low: Term, high: Term) -> list[st.Statement]:
        """The statements that find which terms a tile has."""
        many = (term("high") - "low") * "parts"
        rest = many - "share" + "shares" - 1
        return [
            st.Let(("low", "high"), (low, high), "parts of terms of a part of the heads"),
            st.Let(("first", "end"), (ZERO, rest // "shares"), "those of this share"),
        ]

    # The warp that loads

    def loading(self) -> list[st.Statement]:
        """The statements of the warp that loads: from the last term to the first, and back in the second turn.

        Of as many queries as a tile has keys, terms of one part of the heads come after those of another one: they lie
        side by side in memory.
        """
        k, slot, full, within = term("k"), Name("slot"), filled("", "slot"), term("within")
        together = max(self.plan.height * self.setting.strides.shared // self.right.rows, 1)
        back = term("turn") * (term("end") - 1 - k * 2)
        at, many = (k + back) * "shares" + "share", term("parts") * together
        behind = term("chunk") * together
        side = minimum(term("high") - "low" - behind, together)
        found = [
            st.Let(("chunk", "within"), (at // many, at % many), "from the end"),
            st.Let(("side",), (side,), "terms of a part of the heads"),
            st.Let(("head", "among"), (term("group") * "parts" + within // "side", within % "side")),
            SPLIT,
        ]
        part = term("high") - 1 - behind - "among"
        free, left = st.Wait(freed("", slot), term("phase") ^ 1), self.left

        def brought(number: int) -> list[st.Statement]:
            copies = [self.copy(each, slot, part, self.named_tile[1]) for each in self.rights[:number]]
            return [free, *expecting(full, [self.copied(left.read, left.name, slot, self.place(part), full), *copies])]

        body = (*found, self.scope.slot(k - "first"), *self._of_those_that_exist(brought))
        return [st.For("k", term("first"), term("end"), body, of=self.nest.inner)]
