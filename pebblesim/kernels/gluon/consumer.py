"""The statements of a warpgroup in a Gluon kernel that streams: of 64 rows of a block's tile it holds the sums.

Products are issued, and waited for where their result is used; the slot of a ring is waited for where a product first
uses it, and is free again after the wait for the last product that does.

Where one loop goes through all tiles, each asks whether the mask cuts it: at the diagonal, and at both ends of a
window. Predicates are taken there alone. Without a mask the last tile may be ragged. Where products are put off it is
streamed first: the iteration before the loop has its predicates, and the loop none.

Two warpgroups with narrow heads take turns at the tensor cores. One issues its products, and passes the turn when it
has its scores; it waits for the next turn behind its exponentials, in front of the wait for the product that was put
off. The compiler moves exponentials behind that wait, but not past a wait for a barrier.
"""

from __future__ import annotations

from typing import Any

from pebblesim.kernels import statements as st
from pebblesim.kernels.gluon.block import ROWS, Addition, Block, Buffer, filled, freed
from pebblesim.kernels.gluon.roles import Issued
from pebblesim.kernels.gluon.tables import TablesRoles
from pebblesim.kernels.gluon.widths import columns_of_part
from pebblesim.kernels.products import factors
from pebblesim.kernels.terms import (
    ZERO,
    Held,
    Name,
    Number,
    Term,
    call,
    calls,
    term,
)
from pebblesim.kernels.triton.loops import Piece
from pebblesim.kernels.triton.ranges import Setting
from pebblesim.language import program as ir

TURNS = term("filled") + "turn"
"""Turns before those of a tile of rows."""

LAST = st.Let(("last", "last_phase"), (Name("slot"), Name("phase")))
"""The slot of the iteration before."""


class Consumer(TablesRoles):
    """Makes the statements of a warpgroup that streams."""

    def __init__(self, setting: Setting, plan: Block) -> None:
        super().__init__(setting, plan)
        self.waiting: Term | None = None  # number of the tile behind which the next turn is to be taken
        self._there: set[str] = set()  # barriers that have been waited for, of rings in this iteration
        self._late: list[ir.Compute] = []  # products of the iteration before, still to be issued
        self._operands: dict[ir.Compute, Name] = {}  # what products that were put off take from registers
        self._of_before = False  # whether a product of the iteration before is being issued
        self._unread: dict[ir.Tile, ir.Read] = {}  # vectors of this iteration that are still in their ring
        self._added = {each.product: each for each in plan.additions}
        self._handed: set[ir.Tile] = set()  # what all warpgroups have of this iteration
        self._to_add: list[Addition] = []  # products of this iteration, for memory

    # The warp that loads

    def staying(self, buffer: Buffer) -> list[st.Statement]:
        """The rows of all warpgroups."""
        at, parts = self.number * buffer.slots + "w", self.plan.together(buffer)
        copied = tuple(self.copy(each, Name("w"), at, fill=ZERO) for each in parts)
        copies = st.For("w", ZERO, Number(buffer.slots), copied, unrolled=True)
        return self.filling(buffer, ZERO, self.turn, [copies], buffer.slots)

    def streaming(self, at: Name) -> list[st.Statement]:
        """A tile of each ring."""
        slot, made = Name("slot"), list[st.Statement]([self.scope.slot_of(at)])
        for ring in self.plan.rings:
            together = [self.copy(each, slot, self.scope.streamed(at)) for each in self.plan.together(ring)]
            made += self.filling(ring, slot, term("phase"), list(together))
        return made

    # Slots

    @property
    def turn(self) -> Term:
        """The phase of the barriers of what stays."""
        return term("turn") & 1 if self.plan.persistent else term(0)

    # The block

    def loop(self, node: ir.Loop) -> None:
        """The tiles that are streamed; if products are put off, the first tile apart, and what is left at the end."""
        (low, _), plan, scope = self.scope.limits(), self.plan, self.scope
        late = bool(plan.late)
        if late:
            number = scope.names.new(node.range.name)
            self.say(st.Let((number,), (low,)))
            self.say(scope.slot_of(Name(number)) if plan.persistent else st.Let(("slot", "phase"), (term(0), term(0))))
            self._iteration(node, Piece(low, low), Name(number), False)
        else:
            for buffer in plan.stay:
                self._await(buffer)
        self.asking = scope.one_by_one()
        for piece in self.pieces():
            number = scope.names.new(node.range.name)
            with self.apart() as made:
                if late:
                    self.say(LAST)
                self.say(scope.slot_of(Name(number)))
                self._iteration(node, piece, Name(number), late)
            self.say(piece.loop(number, made, node))
        if plan.persistent:
            self.say(*(st.Arrive(freed(buffer.barrier, 0)) for buffer in plan.stay))
        if self.plan.outgoing:
            self.say(st.Sent())
        if late:
            self.say(LAST)
            self._late = list(plan.late)
            self._there -= {ring.barrier for ring in plan.rings}
            self._issue_late()
            self.pass_turn()

    def _iteration(self, node: ir.Loop, piece: Piece, number: Term, late: bool) -> None:
        """The statements of a tile; `number`: of its turn."""
        at = self.scope.numbers[node.range] = self.scope.streamed(number)
        self.waiting = number if self.plan.turns else None
        if self.plan.turns and not late:
            self.take_turn(TURNS + 1)
        self._there -= {ring.barrier for ring in self.plan.rings}
        self._late = list(self.plan.late) if late else []
        self._handed.clear()
        self._to_add.clear()
        self.say(*self.scope.enter(node, at))
        self.in_piece(node, piece)
        for addition in self._to_add:
            self._add(addition)
        if self.running:
            self.wait(len(self.running))

    # Turns: before a wait there were one for each streamed tile, and one more for each tile of rows

    def take_turn(self, before: Term) -> None:
        """Wait until the other warpgroup has passed the turn."""
        self.say(st.Wait(Name("turns").index("w"), (before - "w") & 1))

    def take_next_turn(self) -> None:
        """Wait for the turn of the next tile's products, if that was not done at this tile."""
        if self.waiting is not None:
            self.take_turn(TURNS + self.waiting - self.scope.limits()[0] + 2)
            self.waiting = None

    def pass_turn(self) -> None:
        """Let the other warpgroup have the next turn."""
        if self.plan.turns:
            self.say(st.Arrive(Name("turns").index(term(1) - "w")))

    # Reads and writes

    def read(self, node: ir.Read) -> None:
        """Note where a tile is; what the copy engine brings is not copied again."""
        buffer = self.plan.buffers.get(node.tile)
        if any(node.tile is each.write.tile for each in self.plan.outgoing):
            self.values.named(node.tile)
            self.values.mark(node.tile, empty=True)  # memory has the sum
        elif buffer is None:
            super().read(node)
        elif buffer.vector:
            self._unread[node.tile] = node
        else:
            self.values.mark(node.tile, loaded=True)

    def _fetch(self, tile: ir.Tile) -> None:
        """Bring a vector from its ring into registers, where it is first used."""
        node = self._unread.pop(tile, None)
        if node is not None:
            buffer = self.plan.buffers[tile]
            self._await(buffer)
            loaded = buffer.slot("slot").call("load", self.scope.of_vector(tile.ranges[0]))
            self.say(st.Map(self.values.named(tile), loaded, line=node.line))
            if node.tensor in self.setting.logarithms:
                self.values.mark(tile, base_2=True)

    def write(self, node: ir.Write) -> None:
        """Write a tile; what is added to memory is when all products of the iteration are on their way."""
        addition = next((each for each in self.plan.additions if each.sent.write is node), None)
        if addition is not None:
            self._to_add.append(addition)
            return
        self.settle(node.tile)
        super().write(node)

    def _hand_over(self, addition: Addition) -> None:
        """Put the rows that the warpgroup has of an operand into shared memory, where all warpgroups read it."""
        left, line, handed = factors(addition.product).left, addition.product.line, addition.handed
        self.settle(left.tile)
        rows = Name(handed.room).index("slot").call("slice", term("w") * ROWS, ROWS)
        value = self.values.operand(left, line, left.shape[1], 0, True)
        self.hand(handed, "slot", rows, value)
        self._handed.add(left.tile)

    def _add(self, addition: Addition) -> None:
        """Add the columns that the warpgroup has of a product to memory; what was added before has left the buffer."""
        node, (rows, columns) = addition.sent.write, addition.sent.box
        self.settle(node.tile)
        number, part = self.scope.numbers[self.plan.loop.range], Name(addition.sent.name).index("w")
        place = self.at(node, number * rows, term("w") * columns)
        stored = st.put(part.reshape(rows, columns), self.written(node))
        self.say(st.Sent(), *stored, st.Send(f"{node.tensor.name}_tiles", place, part, added=True))

    # Products

    def compute(self, node: ir.Compute) -> None:
        """Compute a tile, once the products that it needs are there."""
        product = isinstance(node.expr, ir.MatMul)
        if node in self.plan.late and not self._of_before:
            self._put_off(node)
            return
        read = {ref.tile for ref in ir.refs(node.expr)} - self._handed if product else set[ir.Tile]()
        for each in self.plan.additions:
            if each.handed.tile in read:
                self._hand_over(each)
        for ref in () if self._of_before else ir.refs(node.expr):
            self._fetch(ref.tile)
            self.settle(ref.tile)
            if not product and ref.tile not in self.values.tiles:
                why = f"line {node.line} takes entries of {ref.tile.name}, which shared memory has for products alone"
                raise self.refused(why)
        state, scaled = self.values.state(node.target.tile), self.values.makes_scores(node.expr)
        if not product:
            self.settle(node.target.tile)
        elif node.mode == "add" and scaled != (state.unscaled or (scaled and state.empty)):
            raise self.refused(f"line {node.line} adds a product with the scale to one without")
        super().compute(node)
        if product:
            self._note(node)

    def _put_off(self, node: ir.Compute) -> None:
        """Keep the computed operand of a product for the next iteration."""
        self._issue_late()
        self.take_next_turn()
        if self.running:
            self.wait(len(self.running))
        self._operands[node] = self._in_registers(node, "late")

    def _issue_late(self) -> None:
        """Issue the products that were put off; they use the slots of the iteration before."""
        late, self._late, self._of_before = self._late, [], True
        for node in late:
            self.compute(node)
        self._of_before = False

    def settle(self, tile: ir.Tile) -> None:
        """Wait for a tile if it is the result of a product that runs; before that, issue those that were put off."""
        if self.issued(tile):
            self._issue_late()
        super().settle(tile)

    def wait(self, number: int) -> None:
        """Wait for the first products that run; if some were put off, behind the next turn."""
        if any(each.late for each in self.running[:number]):
            self.take_next_turn()
        super().wait(number)

    def ended(self, done: list[Issued]) -> None:
        """Pass the turn, and give back slots."""
        if not all(each.late for each in done):
            self.pass_turn()
        super().ended(done)

    def give_back(self, buffer: Buffer, at: Any) -> None:
        """Give a slot back, once the vectors in it are in registers; some of those that are put off need a fence."""
        for other in self.plan.together(buffer):
            self._fetch(other.read.tile)
        self.say(*[st.Fence()] * (at == "slot" and _late_alone(self.plan, buffer)))
        super().give_back(buffer, at)

    def _note(self, node: ir.Compute) -> None:
        slot = "last" if self._of_before else "slot"
        frees = tuple((buffer, slot) for buffer, last in self.plan.last.items() if last is node)
        operands = [self._operands[node]] if node in self._operands else []
        tile = node.target.tile
        self.running.append(Issued(tile, (self.values.held(tile), *operands), frees, node in self.plan.late))

    def multiply(self, to: Held, onto: Term | None, node: ir.Compute, frame: bool) -> None:
        """Issue a product; its left operand has the rows of the warpgroup."""
        expr = factors(node)
        if node in self._added:
            self._multiply_all(to, self._added[node])
            return
        left, right = (expr.right, expr.left) if frame else (expr.left, expr.right)
        held, ring = self.plan.buffers.get(left.tile), self.plan.buffers.get(right.tile)
        if ring is None or not ring.streamed or (held is not None and held.streamed):
            why = f"the product in line {node.line} is of no rows that stay with a matrix that is streamed"
            raise self.refused(why)
        if held is not None:
            first = self._in_shared(held, left.transposed ^ frame)
        elif node in self._operands and self._of_before:
            first = self._operands[node]
        else:
            first = self._operands[node] = self._in_registers(node, "16")
        turned = right.transposed ^ frame
        second, width = self._in_shared(ring, turned), ring.rows if turned else ring.width
        if held is None:
            self.issue(to, first, second, onto, width, node.line)
        else:
            self.issue_over(node, to, first, second, onto, width, held.width)

    def _multiply_all(self, to: Held, addition: Addition) -> None:
        """Issue some columns of a product of what all warpgroups computed with what stays."""
        (rows, columns), handed = addition.sent.box, addition.handed
        held = self.plan.buffers[factors(addition.product).right.tile]
        self._await(held)
        self.say(st.Wait(filled(handed.name, "slot"), Name("phase")))
        first = Name(handed.room).index("slot").turned()
        second = held.slot(0).call("slice", term("w") * columns, columns, dim=1)
        self.issue(to, first, second, None, columns, addition.product.line, rows)

    def _in_registers(self, node: ir.Compute, ending: str) -> Name:
        """Make a computed matrix the left operand of a product, in the words of memory; the name of it."""
        expr, left = factors(node), factors(node).left
        name = Name(f"{self.values.tiles[left.tile]}_{ending}")
        if columns_of_part(expr.shape[1]):
            return name  # the product with the first part of the columns made it
        self.settle(left.tile)
        value = self.values.operand(left, node.line, left.shape[1], 1, False)
        if calls(value, "trans"):
            raise self.refused(f"the product in line {node.line} takes a computed matrix transposed")
        operand = call("DotOperandLayout", 0, self.scope.layout(self.scope.length(expr.shape[1])), 2)
        self.say(st.Let((name.id,), (call("convert_layout", value, operand),), line=node.line))
        return name

    def _in_shared(self, buffer: Buffer, transposed: bool) -> Term:
        """A buffer's slot as an operand, once it is there."""
        last = "last" if self._of_before else "slot"
        if not (self._of_before and self.plan.waited_in_time(buffer)):
            self._await(buffer)
        whole = not buffer.streamed and buffer.rows > ROWS
        at = last if buffer.streamed else 0 if whole else "w"
        view = buffer.slot(at).call("slice", term("w") * ROWS, ROWS) if whole else buffer.slot(at)
        return view.turned() if transposed else view

    def _await(self, buffer: Buffer) -> None:
        """Wait until a buffer, or the slot of a ring, is filled."""
        if buffer.barrier not in self._there:
            full = Name(f"{buffer.barrier}_full")
            at, phase = ("last", "last_phase") if self._of_before else ("slot", "phase")
            ring = buffer.streamed
            self.say(st.Wait(full.index(at if ring else 0), term(phase) if ring else self.turn))
            self._there.add(buffer.barrier)


def _late_alone(plan: Block, buffer: Buffer) -> bool:
    """Whether a slot has a vector that only products which are put off take, or what is made of it.

    When the slot is given back, threads may still wait for its words.
    """
    return any(_put_off(plan, each.read.tile) for each in plan.together(buffer) if each.vector)


def _put_off(plan: Block, vector: ir.Tile) -> bool:
    """Whether all products of an iteration that take a vector, or what is made of it, are put off."""
    made, taken = {vector}, list[ir.Compute]()
    for node in plan.loop.body:
        if isinstance(node, ir.Compute) and any(ref.tile in made for ref in ir.refs(node.expr)):
            if isinstance(node.expr, ir.MatMul):
                taken.append(node)
            else:
                made.add(node.target.tile)
    return bool(taken) and all(node in plan.late for node in taken)
