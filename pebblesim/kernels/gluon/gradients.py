"""Gluon kernels for dQ and dB at once: rows of the bias and of dB stay, while sequences that share them stream past.

A block has 64 rows of queries and all keys, of which each of two or three warpgroups has a part: their bias in shared
memory, and their dB in registers. A slot of the ring has all that is read of a sequence. A warpgroup takes its keys
tile by tile: scores begin as the bias, which is held in float32 and divided by the scale, so that adding it costs
nothing; dS is added to dB, and multiplied by keys from registers while the next tile's scores are computed.

Row sums v of dO ∘ O are read, or computed from the rows of a sequence by each warpgroup, and written by one.

So each warpgroup has the part of dQ of its keys. The last one puts it into shared memory, each other adds its own to
what is there, and the first writes the sum. It waits for the others alone: these go on with the next sequence, so that
one takes exponentials while another waits for its products. Where dQ goes on with what other keys have added to it, the
copy engine brings that to the same place, and the last warpgroup adds its own, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon.block import ROWS, filled, freed
from pebblesim.kernels.gluon.boxes import COPY
from pebblesim.kernels.gluon.gradients_plan import Gradients
from pebblesim.kernels.gluon.roles import Issued, Roles
from pebblesim.kernels.gluon.scope import RowsValues
from pebblesim.kernels.passes.bias import divisible
from pebblesim.kernels.passes.sequences import SEQUENCES
from pebblesim.kernels.products import factors, products
from pebblesim.kernels.strides import WORDS, whole_groups
from pebblesim.kernels.terms import (
    NOTHING,
    ONE,
    ZERO,
    Held,
    Items,
    Layout,
    Name,
    Number,
    Term,
    Word,
    all_of,
    call,
    constant,
    maximum,
    minimum,
    only,
    own,
    sides,
    term,
    total,
    wide,
)
from pebblesim.kernels.triton.ranges import Setting
from pebblesim.language import program as ir

TURN = "turn"
"""The name of the number of a sequence, from the first of its block on."""

BEGINNING, FEWEST, BETWEEN = 10, 11, 2
"""Sequences that a block could have in the time that it takes to read its rows of a bias, and to write those of dB; the
fewest of a block, with these; and those that it could have in the time that it loses between two heads."""

AFTER = st.Let((TURN,), (ONE,), more=True)
"""The statement that counts the sequences of a block."""


@dataclass(frozen=True, eq=False)
class Tile:
    """The primitives for a tile of keys: the products of scores and of dP, those that follow, and that of dQ."""

    number: int
    scores: ir.Compute
    gradient: ir.Compute
    others: tuple[ir.Compute, ...]
    product: ir.Compute


class GradientsValues(RowsValues):
    """The values of a warpgroup's tiles: all vectors are of rows of scores."""

    def met(self, expr: ir.Elementwise, values: list[Term], frame: bool) -> list[Term]:
        """The operands, which are in layouts in which they meet."""
        return values


class GradientsLoads(Roles):
    """Finds the sequences of a block, and makes the statements of the warp that loads."""

    plan: Gradients

    def __init__(self, setting: Setting, plan: Gradients) -> None:
        super().__init__(setting, plan)
        self.reserve("matrix", "p", "begin", "end", "first", "behind", "each", "all_of_them", "whole", TURN, COPY)
        (self.part,) = plan.handed
        self.ring = plan.rings[0]

    # The block's tile

    @property
    def numbers(self) -> list[str]:
        """Names of the arguments by which a block finds its sequences: how many it has, there are, and a head has."""
        return ["each", "all_of_them", "whole"]

    def grid(self) -> tuple[list[str], str]:
        """A block for each tile of rows, and for each part of the sequences of all heads."""
        keys, own = (self.setting.size(dim) for dim in (self.plan.keys.range.dim, self.plan.own.dim))
        least, most = (tiles * self.plan.side for tiles in (self.plan.whole, self.plan.shares * self.plan.tiles))
        sums = self.plan.sums.name
        return [
            f"    if not {least} < {keys} <= {most}:",
            f'        raise ValueError("these kernels are for {least + 1} to {most} keys")',
            *_divided(own, self.setting.size(SEQUENCES)),
            f"    if {sums}_ptr.shape[1] < parts:",
            '        raise ValueError("dB has no room for the parts of these sequences")',
        ], "tiles, triton.cdiv(all_of_them, each)"

    def within_tile(self, body: list[st.Statement]) -> list[st.Statement]:
        """The statements of a role: for each head of a block, behind those that find its first and last sequence."""
        part, before = call("program_id", 1), term("matrix") * "whole"
        several = term("whole") - self.setting.size(SEQUENCES)
        first, behind = maximum(term("begin") - before - several, 0), minimum(term("end") - before, "whole") - several
        adds = any(isinstance(each, st.Issue) for each in st.within(body))
        of_head = [
            st.Let(("batch", "key_head"), (term("matrix") // "own", term("matrix") % "own")),
            *[st.Let(("p",), (part - before // "each",), "of the parts of the head")] * adds,
            st.Let(("first", "behind"), (first, behind)),
            *body,
        ]
        return [
            st.Let((self.number.id, "begin"), (call("program_id", 0), part * "each")),
            st.Let(("end",), (minimum(term("begin") + "each", "all_of_them"),)),
            st.Let((TURN,), (ZERO,), "sequences before one"),
            st.For("matrix", term("begin") // "whole", call("cdiv", "end", "whole"), tuple(of_head)),
        ]

    def addresses(self, setting: Setting, tensors: list[ir.Tensor]) -> list[st.Statement]:
        """Where the rows of the block's head begin; those of a sequence's dQ are found for each."""
        strides, made = setting.strides, list[st.Statement]()
        over_pairs = {self.plan.bias.tensor, *(each.tensor for each in self.plan.writes if each.tile is self.plan.sums)}
        for tensor in tensors:
            if tensor not in strides.of:  # v, of all sequences in order
                continue
            batch, head, _ = strides.of[tensor]
            first = wide("batch") * batch * WORDS
            if tensor in strides.inner:
                number, within = strides.inner[tensor]
                first = wide(term("batch") // number) * batch * WORDS + wide(term("batch") % number) * within * WORDS
            elif tensor in over_pairs:
                first = first + wide("p") * strides.copies[tensor] * WORDS
            place = total([term(setting.of[tensor]), first, wide("key_head") * head])
            made.append(st.Let((f"{tensor.name}_at" if tensor in over_pairs else f"{tensor.name}_first",), (place,)))
        return made

    # Shared memory, and the warp that loads

    def allocated(self) -> list[st.Room]:
        """The statements that take shared memory; the bias lies there as threads have it in registers."""
        shape = (self.plan.shares * self.plan.tiles, ROWS, self.plan.side)
        layout = own("gl.SharedLinearLayout", _as_in_registers(self.plan.side))
        room = st.Allocate("bias_of_all", "float32", shape, layout, f"line {self.plan.bias.line}: stays")
        made = [each for each in super().allocated() if f"{self.part.name}_full" not in getattr(each, "names", ())]
        return [*made, st.Barriers((f"{self.part.name}_full",), self.plan.shares, (1,)), room]

    def loading(self) -> list[st.Statement]:
        """All that is read of a sequence, for each of the block's part."""
        number, plan = Name(COPY), self.plan
        fetched, copies = 0, list[st.Statement]()
        for each in plan.together(self.ring):
            if each.down == 1:
                made = self.copy(each, Name("slot"), self.number, fill=Name("slot"))
                copies.append(made)
            else:
                made = self.copy(each, term("slot") * each.down + "at", Name("at"), fill=Name("slot"))
                copies.append(st.For("at", ZERO, Number(each.down), (made,), unrolled=True))
            fetched += each.down * made.bytes
        free, full = (of(self.ring.barrier, Name("slot")) for of in (freed, filled))
        body = [
            self.scope.slot(Name(TURN)),
            st.Let(("head",), (self.head_of(number),)),
            st.Wait(free, term("phase") ^ 1),
        ]
        body += [st.Expect(full, fetched), *copies]
        for alone in (plan.factor, plan.before):
            if alone is not None:
                body += self.filling(alone, ZERO, term(TURN) & 1, [self.copy(alone, ZERO, self.number)])
        body.append(AFTER)
        return [st.For(number.id, Name("first"), Name("behind"), tuple(body), of=plan.loop)]

    def head_of(self, sequence: Name) -> Term:
        """The number of a head of a sequence, among those of all."""
        return (term("batch") * self.setting.size(SEQUENCES) + sequence) * "own" + "key_head"


class GradientsRoles(GradientsLoads):
    """Makes the statements of warpgroups."""

    makes_values = GradientsValues
    of_thread = 4  # dQ is in float32 where it is to go on

    def __init__(self, setting: Setting, plan: Gradients) -> None:
        super().__init__(setting, plan)
        self.reserve("bias_of_all", "at_rows", "at_columns", "at_j")
        self.sums: list[Held] = []  # of dB, for each tile of keys
        self.operands: dict[ir.Tile, Term] = {}  # what products take from registers
        self.tile_now = 0

    # What stays

    def fill(self, tile: ir.Tile, value: Term) -> None:
        """Make a tile of one value; of dB that of each tile of keys."""
        if tile is not self.plan.sums:
            super().fill(tile, value)
            return
        side = self.plan.side
        for _ in range(self.plan.tiles):
            held = Held(self.scope.names.new(tile.name), tile)
            zeros = call("full", sides(ROWS, side), value, Word("float32"), self.scope.layout(side))
            self.say(st.Map(held, zeros))
            self.sums.append(held)

    def read(self, node: ir.Read) -> None:
        """The warpgroup's part of the bias, divided by the scale, into shared memory; else nothing, but that dQ begins.

        What is before it is added by one warpgroup, behind its products.
        """
        if node.tile is self.plan.rows:
            self.node(ir.Zeros(node.tile, node.line))
            return
        if node is not self.plan.bias:
            self.values.mark(node.tile, loaded=True, cleared=True)  # what does not exist comes as 0
            return
        side, at = self.plan.side, term("w") * self.plan.tiles + "k"
        layout = Layout.of_memory(side, 2)  # whole sectors, and shared memory without conflicts
        down, across = (
            call("arange", 0, length, call("SliceLayout", 1 - axis, layout)) for axis, length in enumerate((ROWS, side))
        )
        rows, columns = Name("at_rows").along("[:, None]"), Name("at_columns").along("[None, :]")
        held, scale = self.values.named(node.tile), self.values.factor
        (_, _, pitch) = self.setting.strides.of[node.tensor]
        place = total([term(self.setting.of[node.tensor]), rows * pitch, columns])
        left_out = constant(float("-inf") if scale > 0 else float("inf"))

        def of_tile(exist: list[Term], there: list[Term]) -> list[st.Statement]:
            return [
                st.Copy(held, node.tensor, place, all_of(exist), NOTHING, line=node.line),
                st.Map(held, held.to(Word("float32"))),
                st.Map(held, only(divisible(held, scale) * (1.0 / scale), there, left_out)),
            ]

        index = st.Let(("at_rows", "at_columns"), (term("part") * ROWS + down, at * side + across))
        body = index, *self._of_tile(at, rows, columns, of_tile), st.Put(Name("bias_of_all").index(at), held)
        # with one fence for all of them, so that all loads are on their way at once
        self.say(st.For("k", ZERO, Number(self.plan.tiles), body, unrolled=True), st.Fence())

    def _rows(self) -> Term:
        return self.scope.index(self.plan.own).along("[:, None]")

    def _columns(self, tile: Term) -> Term:
        side = self.plan.side
        return tile * side + call("arange", 0, side, call("SliceLayout", 0, self.scope.layout(side)))

    def _of_tile(
        self, tile: Term, rows: Term, columns: Term, made: Callable[[list[Term], list[Term]], list[st.Statement]]
    ) -> list[st.Statement]:
        """The statements for a tile of keys, of the predicates of its rows and columns that memory has, these in groups
        of 8 words, and of the columns that exist.

        Only tiles behind those that all lengths have ask for columns. Each warpgroup knows its own when it is compiled,
        so that most have no such predicates: texts that run once take as long as they are.
        """
        if self.setting.even:
            return made([], [])
        queries, keys = (self.setting.size(rng.dim) for rng in (self.plan.own, self.plan.keys.range))
        exist, whole = [rows < queries], self.plan.whole
        ragged = made([*exist, columns < whole_groups(keys)], [columns < keys])
        return [st.When(tile < whole, tuple(made(exist, [])), tuple(ragged))] if whole else ragged

    # A sequence

    def loop(self, node: ir.Loop) -> None:
        """The sequences that stream past; what is computed for each tile of keys is written one after the other."""
        number = Name(COPY)
        with self.apart() as made:
            self.say(self.scope.slot(Name(TURN)), st.Wait(filled(self.ring.barrier, Name("slot")), Name("phase")))
            beside = [each for each in node.body if _is_of_vector(each)]
            for each in node.body:
                if each is self.plan.keys:
                    self._operands()
                    self._tiles([*self._unrolled()], beside)
                    self.say(st.Arrive(freed(self.ring.barrier, Name("slot"))))
                elif each not in beside:
                    self.node(each)
        self.say(st.For(number.id, Name("first"), Name("behind"), (*made, AFTER), of=node))

    def _operands(self) -> None:
        """Take the rows of a sequence into registers, which all products of it have as left operands, and vectors."""
        operand = call("DotOperandLayout", 0, self.scope.layout(self.plan.side), 2)
        for tile, buffer in self.plan.buffers.items():
            if buffer.down > 1 or buffer is self.plan.before:
                continue
            layout, held = self.scope.of_vector(tile.ranges[0]) if buffer.vector else operand, self.values.named(tile)
            alone = buffer is self.plan.factor
            self.say(*[st.Wait(filled(buffer.barrier, ZERO), term(TURN) & 1)] * alone)
            room = buffer.slot(ZERO if alone else "slot")
            self.say(st.Map(held, room.call("load", layout), line=buffer.read.line))
            self.operands[tile] = held
            if buffer.vector and buffer.read.tensor in self.setting.logarithms:
                self.values.mark(tile, base_2=True)

    def _unrolled(self) -> Iterator[Tile]:
        """The primitives of each tile of keys, whose results are tiles of their own."""
        nodes = [node for node in self.plan.keys.body if isinstance(node, ir.Compute)]
        results = {node.target.tile for node in nodes} - {self.plan.sums, self.plan.rows}
        scores, gradient, product = products(nodes)
        known = (scores, gradient, product)
        others = [node for node in nodes if node not in known and not _is_apart(node, self.plan)]
        for number in range(self.plan.tiles):
            mine = {tile: replace(tile) for tile in results}

            def own_tile(part: ir.Part, mine: dict[ir.Tile, ir.Tile] = mine) -> ir.Part:
                return mine.get(part, part) if isinstance(part, ir.Tile) else part

            made = [ir.rebuilt(node, own_tile) for node in (scores, gradient, *others, product)]
            yield Tile(number, made[0], made[1], tuple(made[2:-1]), made[-1])

    def _tiles(self, made: list[Tile], beside: list[ir.Node]) -> None:
        """The tiles of keys; the product of dQ is waited for with the scores of the next tile.

        `beside`: what is computed, and written, while the first products run.
        """
        for tile in made:
            self.tile_now = tile.number
            self.compute(tile.scores)
            self.compute(tile.gradient)
            for node in beside if tile is made[0] else ():
                self.node(node)
            self.settle(tile.scores.target.tile)
            for node in tile.others:
                self.compute(node)
            self._add(tile)
            self.compute(tile.product)
        self.settle(self.plan.rows)

    def _add(self, tile: Tile) -> None:
        """Add dS to dB, and make it an operand."""
        left = factors(tile.product).left.tile
        held = self.values.held(left)
        self.say(st.Map(self.sums[tile.number], held, more=True, line=tile.product.line))
        name = Name(self.scope.names.new(f"{left.name}_16"))
        layout = call("DotOperandLayout", 0, self.scope.layout(self.part.shape[-1]), 2)
        self.say(st.Let((name.id,), (call("convert_layout", self.values.in_words(held), layout),)))
        self.operands[left] = name

    def compute(self, node: ir.Compute) -> None:
        """Compute a tile, once the products that it needs are there.

        dB is named in the wait for the product of dQ: else the compiler adds all tiles at the end of a sequence, and
        until then keeps what they are made of.
        """
        product = isinstance(node.expr, ir.MatMul)
        if isinstance(node.expr, ir.RowReduction):
            super().compute(node)
            sums, layout = self.values.held(node.target.tile), self.scope.of_vector(self.plan.own)
            self.say(st.Map(sums, call("convert_layout", sums, layout), line=node.line))
            assert self.plan.factor is not None
            self.say(st.Fence(), st.Arrive(freed(self.plan.factor.barrier, ZERO)))
            return
        if not product:
            for tile in (node.target.tile, *(ref.tile for ref in ir.refs(node.expr))):
                self.settle(tile)
        super().compute(node)
        if product:
            of_rows = node.target.tile is self.plan.rows
            kept = (self.operands[factors(node).left.tile], self.sums[self.tile_now]) if of_rows else ()
            self.running.append(Issued(node.target.tile, (self.values.held(node.target.tile), *kept), ()))

    def multiply(self, to: Held, onto: Term | None, node: ir.Compute, frame: bool) -> None:
        """Issue a product with the tile of keys; scores begin as the bias."""
        expr = factors(node)
        buffer = self.plan.buffers[expr.right.tile]
        mine, side = term("w") * self.plan.tiles + self.tile_now, self.plan.side
        right = buffer.slot(term("slot") * buffer.down + (mine if buffer.rows == side else "w"))
        if buffer.rows > side:
            right = right.call("slice", self.tile_now * side, side)
        if expr.right.transposed:
            right = right.turned()
        if node.mode == "new" and expr.left.tile in self.facts.scores:
            onto = Name("bias_of_all").index(mine).call("load", self.scope.layout(self.plan.side))
        left = self.operands[expr.left.tile]
        self.issue(to, left, right, onto, self.scope.length(expr.shape[1]), node.line)

    # What is written

    def write(self, node: ir.Write) -> None:
        """Write dQ of a sequence, the sum of all warpgroups' parts, or its v, which each of them has, or dB."""
        if node.tile is self.plan.sums:
            self._write_sums(node)
            return
        if len(node.tile.ranges) == 1:
            self._write_vector(node)
            return
        held, turn, w, before = self.values.held(node.tile), term(TURN) & 1, term("w"), self.plan.before
        room = Name(self.part.room).index(0) if before is None else before.slot(0)
        there = room.call("load", self.scope.layout(self.part.shape[-1]))
        others = st.Wait(filled(self.part.name, w + 1), turn), st.Map(held, there, more=True)
        mine: tuple[st.Statement, ...] = (st.Wait(filled(self.part.name, 0), turn ^ 1),)
        free: tuple[st.Statement, ...] = (st.Arrive(filled(self.part.name, 0)),)
        if before is not None:
            begun = st.Map(held, there * (1.0 / self.values.factor), more=True)
            mine = st.Wait(filled(before.barrier, 0), turn), begun
            free = st.Fence(), st.Arrive(freed(before.barrier, 0))
        self.say(st.When(w.equals(self.plan.shares - 1), mine, others))
        with self.apart() as first:
            at = term(f"{node.tensor.name}_first") + wide(COPY) * self.setting.strides.copies[node.tensor] * WORDS
            self.say(*free, st.Let((self.setting.of[node.tensor],), (at,)))  # where the rows of the sequence begin
            super().write(node)
        with self.apart() as behind:
            self.hand(self.part, w, room, held)
        self.say(st.When(w.equals(0), tuple(first), tuple(behind)))

    def _write_vector(self, node: ir.Write) -> None:
        """Write v of a sequence, by the last warpgroup: the first writes dQ."""
        rows, length = self.scope.index(self.plan.own), self.setting.size(self.plan.own.dim)
        place = total([Name(f"{node.tensor.name}_ptr") + wide(self.head_of(Name(COPY))) * length, rows])
        where = [] if self.setting.even else [rows < length]
        store = st.Store(node.tensor, place, self.written(node), all_of(where), line=node.line)
        self.say(st.When(term("w").equals(self.plan.shares - 1), (store,)))

    def _write_sums(self, node: ir.Write) -> None:
        """Write dB of each tile of keys: four threads write 8 words of a row, a sector, whole at its end, too."""
        (_, _, pitch), columns = self.setting.strides.of[node.tensor], Name("at_j").along("[None, :]")
        rows = self._rows()
        place = total([term(self.setting.of[node.tensor]), rows * pitch, columns])
        for number, held in enumerate(self.sums):
            tile, value = (
                term("w") * self.plan.tiles + number,
                held.to(f"{self.setting.of[node.tensor]}.dtype.element_ty"),
            )

            def stored(exist: list[Term], there: list[Term], value: Term = value) -> list[st.Statement]:
                return [st.Store(node.tensor, place, value, all_of(exist), line=node.line)]

            self.say(st.Let(("at_j",), (self._columns(tile),)), *self._of_tile(tile, rows, columns, stored))


def _divided(rows: Term, sequences: Term) -> list[str]:
    """The lines of `run` that divide the sequences of all heads into parts.

    There are as many parts as multiprocessors for each tile of rows, or fewer, if blocks of one head each have less to
    do. Else a head has `BEGINNING` sequences more than there are, for which its blocks read its bias and write its dB:
    so they have as much to do, where one has two heads, too.

    `parts` are the most blocks that a head is spread over, where `each` block has a share of the heads in a row: a head
    may begin at any place of a share whose length does not divide that of a head.
    """
    return [
        f"    tiles, whole = triton.cdiv({rows}, {ROWS}), {sequences} + {BEGINNING}",
        "    groups = max(torch.cuda.get_device_properties(device).multi_processor_count // tiles, 1)",
        f"    each = max(triton.cdiv(heads * whole, groups), {FEWEST})",
        f"    if heads <= groups and triton.cdiv({sequences}, groups // heads) <= each + {BETWEEN}:",
        f"        each = triton.cdiv({sequences}, groups // heads)",
        f"        whole = triton.cdiv({sequences}, each) * each",
        "    all_of_them = heads * whole",
        "    parts = triton.cdiv(whole - 1, each) + (each % whole > 0) if whole % each else whole // each",
    ]


def _is_of_vector(node: ir.Node) -> bool:
    """Whether a vector is computed or written."""
    tile = node.target.tile if isinstance(node, ir.Compute) else node.tile if isinstance(node, ir.Write) else None
    return tile is not None and len(tile.ranges) == 1


def _is_apart(node: ir.Compute, plan: Gradients) -> bool:
    """Whether a primitive adds a tile of the bias to scores, which begin as it, or dS to dB."""
    return node.target.tile is plan.sums or any(ref.tile is plan.bias.tile for ref in ir.refs(node.expr))


def _as_in_registers(width: int) -> Items:
    """Where words of a tile of 64 rows lie in shared memory: those of a thread are next to each other, four at a time.

    A thread of a product has two columns of a row, and of the row 8 behind it, of each 8 columns: with these as the
    lowest bits of a place, threads read 16 bytes each, one after the other.
    """
    columns = [(0, 1 << bit) for bit in range(3, (width - 1).bit_length())]
    places = [(0, 1), (8, 0), (0, 2), (0, 4), (1, 0), (2, 0), (4, 0), (16, 0), (32, 0), *columns]
    return Items(tuple(sides(*each) for each in places))
