"""The statements of Gluon kernels whose blocks keep rows of a bias while sequences stream past.

All heads, and for each head all sequences that share a bias, are one list, which is cut into as many parts as there are
multiprocessors for each tile of 64 rows. A block has a tile, and a part of the list: sequences of one or a few heads.
Blocks of all tiles that have the same part run side by side, so that what one of them reads the others find in L2.
Warpgroups take turns at the sequences of a head, and each has a warp that loads for it alone; rows of the bias are
there until all of them are done with these. The plan is that of `sequences_plan`.
"""

from __future__ import annotations

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon.block import ROWS, Block, Buffer, filled, freed
from pebblesim.kernels.gluon.boxes import HEADS
from pebblesim.kernels.gluon.consumer import Consumer
from pebblesim.kernels.passes.bias import divisible
from pebblesim.kernels.strides import WORDS, whole_groups
from pebblesim.kernels.terms import (
    MINUS_INFINITY,
    ONE,
    ZERO,
    Held,
    Layout,
    Name,
    Number,
    Term,
    Word,
    call,
    maximum,
    minimum,
    only,
    term,
    total,
    wide,
)
from pebblesim.kernels.triton.loops import Piece
from pebblesim.kernels.triton.ranges import Setting
from pebblesim.language import program as ir

TAKEN = "several each all_of_them begin end matrix r group batch again at_rows at_columns entries tile"
"""Names of what says which sequences a block has."""

GROUP = Name("w")
"""The number of a warpgroup: of its slots of what stays, too."""


def again_in(loop: str) -> Term:
    """0, as a number of each iteration of a loop: what depends on it does not stay in registers in the other loops."""
    return minimum(loop, 0)


class SequencesRoles(Consumer):
    """Makes the statements of a warpgroup, and of the warp that loads for it."""

    def __init__(self, setting: Setting, plan: Block) -> None:
        super().__init__(setting, plan)
        assert plan.stays is not None
        self.stays = plan.stays
        self.reserve(
            *TAKEN.split(),
            "taken",
            "first",
            "behind",
            "missed",
            *(self.stays.room + end for end in ("", "_full", "_free")),
        )
        self.operands: dict[ir.Tile, Name] = {}  # rows that stay for a sequence, in registers

    @property
    def numbers(self) -> list[str]:
        """Names of the arguments by which a block finds its sequences: how many share a bias, it has, and there are."""
        return ["several", "each", "all_of_them"]

    def grid(self) -> tuple[list[str], str]:
        """The lines of `run` that find the grid, and the grid."""
        plan, setting, bias = self.plan, self.setting, self.stays.read.tensor.name
        own, columns = (setting.size(rng.dim) for rng in (plan.own, plan.loop.range))
        tiles, side = self.stays.tiles, self.stays.side
        return [
            f"    if triton.cdiv({columns}, {side}) != {tiles}:",
            f'        raise ValueError("these kernels are for {tiles} tiles of {side} columns")',
            f"    several, all_of_them, tiles = {bias}_ptr.shape[1], heads, triton.cdiv({own}, {ROWS})",
            "    units = torch.cuda.get_device_properties(device).multi_processor_count",
            f"    each = max(triton.cdiv(all_of_them, max(units // tiles, 1)), {plan.warpgroups})",
        ], "tiles, triton.cdiv(all_of_them, each)"

    def allocated(self) -> list[st.Room]:
        """The statements that take shared memory, and make barriers."""
        stays = self.stays
        layout, note = Name(f"order_{stays.side}"), f"line {stays.read.line}: stays for all sequences"
        room = st.Allocate(stays.room, self.kind, (stays.tiles, ROWS, stays.side), layout, note)
        names, groups = [f"{stays.room}_{what}" for what in ("full", "free")], (self.plan.warpgroups,)
        barriers = [st.Barriers((names[0],), 1, groups), st.Barriers((names[1],), 1, groups, names[0])]
        return [*super().allocated(), room, *barriers]

    def addresses(self, setting: Setting, tensors: list[ir.Tensor]) -> list[st.Statement]:
        """Where the rows of a sequence's head begin; the bias has another place for the rows of the block."""
        return super().addresses(setting, [each for each in tensors if each is not self.stays.read.tensor])

    @property
    def kind(self) -> str:
        """The type of what stays."""
        return "float32" if self.stays.wide else self.setting.dtype

    @property
    def scale(self) -> float:
        """The factor of the scores."""
        return 1.0 if self.setting.scale is None else float(self.setting.scale)

    def over_scale(self, bias: Term) -> Term:
        """A bias in float32, and divided by the scale."""
        return bias.to(Word("float32")) * (1.0 / self.scale)

    # The block: a part of the sequences

    def within_tile(self, body: list[st.Statement]) -> list[st.Statement]:
        """The statements of a role: for each sequence, behind those that find the rows and, in warpgroups, the bias."""
        plan, several = self.plan, Name("several")
        consumes = any(isinstance(each, st.Issue) for each in st.within(body))
        low, high = self.scope.limits()
        of_sequence = [
            st.Let(("batch",), (term("group") * several + "r",)),
            st.Let(("head",), (term("batch") * HEADS + "key_head",)),
            *body,
            st.Let(("turn",), (ONE,), more=True),
            st.Let(("filled",), (high - low,), more=True),
        ]
        before = term("matrix") * several
        of_rows: list[st.Statement] = [
            st.Let(("group", "key_head"), (term("matrix") // HEADS, term("matrix") % HEADS)),
            *(self.kept() if consumes else []),
            st.For(
                "r",
                maximum(term("begin") - before, ZERO) + GROUP,
                minimum(term("end") - before, several),
                tuple(of_sequence),
                step=Number(plan.warpgroups),
            ),
            *[st.Arrive(freed(self.stays.room, 0))] * consumes,
        ]
        return [
            *self.scope.opening(),
            st.Let((self.number.id, "begin"), (call("program_id", 0), call("program_id", 1) * "each")),
            st.Let(("end",), (minimum(term("begin") + "each", "all_of_them"),)),
            st.Let(("turn", "filled"), (ZERO, ZERO), "sequences, and slots of each ring, before one"),
            st.For("matrix", term("begin") // several, call("cdiv", "end", several), tuple(of_rows)),
        ]

    def own_rows(self) -> tuple[str, Term]:
        """As for the others, in each sequence anew: else where they are written stays in registers, and these spill."""
        return "the 64 rows of the block, for a sequence of the warpgroup", self.number + again_in("r")

    def kept(self) -> list[st.Statement]:
        """The statements that put the block's rows of the bias into shared memory, some tiles for each warpgroup.

        Threads read 16 bytes at once: what one load leaves of a sector may have left L1 when another one asks for it.
        """
        stays, setting, plan = self.stays, self.setting, self.plan
        layout, bias = Layout.of_memory(stays.side), stays.read.tensor
        batch, head, row = setting.strides.of[bias]
        start = Name(f"{bias.name}_ptr") + wide("group") * batch * WORDS + wide("key_head") * head
        indices = [
            call("arange", 0, side, call("SliceLayout", 1 - axis, layout))
            for axis, side in enumerate((ROWS, stays.side))
        ]
        rows, across = Name("at_rows").along("[:, None]"), Name("at_columns").along("[None, :]")
        own, columns = (setting.size(rng.dim) for rng in (plan.own, plan.loop.range))
        edge, there = dict[str, Term](), list[Term]()
        if not setting.even:
            edge = {"mask": (rows < own) & (across < whole_groups(columns)), "other": MINUS_INFINITY}
            there = [across < columns]
        loaded = call("load", total([start, rows * row, across]), **edge).to(Word("float32"))
        entries = divisible(Name("entries"), self.scale, self.kind)
        kept = entries * (1.0 / self.scale) if stays.wide else entries.to(Word(self.kind))
        tile = [
            st.Let(("at_columns",), ((term("tile") + again_in("matrix")) * stays.side + indices[1],)),
            st.Let(("entries",), (only(loaded, there, MINUS_INFINITY),)),
            *st.put(Name(stays.room).index("tile"), kept),
        ]
        full, again = filled(stays.room, 0), (term("matrix") - term("begin") // "several") & 1
        return [
            st.Let(("again",), (again,)),
            st.Wait(freed(stays.room, 0), term("again") ^ 1),
            st.Let(("at_rows",), ((self.number + again_in("matrix")) * ROWS + indices[0],)),
            st.For("tile", GROUP, Number(stays.tiles), tuple(tile), step=Number(plan.warpgroups)),
            st.Arrive(full),
            st.Wait(full, term("again")),
        ]

    # The warp that loads

    def staying(self, buffer: Buffer) -> list[st.Statement]:
        """The rows of a sequence."""
        copies = [self.copy(each, GROUP, self.number, fill=GROUP) for each in self.plan.together(buffer)]
        return self.filling(buffer, GROUP, self.turn, list(copies))

    # The sequence

    def loop(self, node: ir.Loop) -> None:
        """The tiles that are streamed, behind the rows that stay: these are in registers, and their slots are free."""
        for buffer in self.plan.stay:
            self.say(st.Wait(filled(buffer.barrier, GROUP), self.turn))
            for each in self.plan.together(buffer):
                self._take(each)
            self.say(st.Fence(), st.Arrive(freed(buffer.barrier, GROUP)))
        number = self.scope.names.new(node.range.name)
        low, high = self.scope.limits()
        with self.apart() as made:
            self.say(self.scope.slot_of(Name(number)))
            piece = Piece(low, high, complete=True)
            self._iteration(node, piece, Name(number), False)
        self.say(piece.loop(number, made, node))

    def _take(self, buffer: Buffer) -> None:
        """Bring rows that stay into registers, as a left operand."""
        name = self.operands[buffer.read.tile] = Name(self.scope.names.new(f"{buffer.name}_16"))
        layout = call("DotOperandLayout", 0, self.scope.layout(self.stays.side), 2)
        self.say(st.Let((name.id,), (buffer.slot(GROUP).call("load", layout),), line=buffer.read.line))

    def read(self, node: ir.Read) -> None:
        """Note where a tile is; a vector is in registers before products are issued, and not waited for behind them."""
        super().read(node)
        if (buffer := self.plan.buffers.get(node.tile)) is not None and buffer.vector:
            self._fetch(node.tile)

    def multiply(self, to: Held, onto: Term | None, node: ir.Compute, frame: bool) -> None:
        """Issue a product; the scores start from the bias."""
        if node.target.tile is self.stays.scores and onto is None:
            at = self.scope.numbers[self.plan.loop.range]
            onto = Name(self.stays.room).index(at).call("load", self.scope.layout(self.stays.side))
            onto = onto if self.stays.wide else self.over_scale(onto)
            self.values.biased.add(node.target.tile)
        super().multiply(to, onto, node, frame)

    def _in_shared(self, buffer: Buffer, transposed: bool) -> Term:
        """A buffer's slot as an operand; rows that stay are in registers."""
        kept = self.operands.get(buffer.read.tile)
        if kept is None:
            return super()._in_shared(buffer, transposed)
        if transposed:
            raise self.refused(f"line {buffer.read.line} reads rows that are an operand transposed")
        return kept
