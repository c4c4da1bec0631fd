"""The statements of a warpgroup in a Gluon kernel, as text: of 64 rows of a block's tile it holds the sums.

It is written as the Triton reading writes a block with tiles of 64 rows, but for products. These are issued, and waited
for where their result is used; the slot of a ring is waited for where a product first uses it, and is free again after
the wait for the last product that does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pebblesim.gpu.emit.gluon_additions import ROWS, Addition
from pebblesim.gpu.emit.gluon_each_tile import Tiles
from pebblesim.gpu.emit.gluon_plan import Buffer, Plan
from pebblesim.gpu.emit.triton_loops import Piece
from pebblesim.gpu.emit.triton_ranges import Setting
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch


@dataclass(frozen=True, eq=False)
class Issued:
    """A product that runs beside the rest.

    Attributes:
        node: the product.
        kept: names of what it uses until it is waited for, its result first.
        freed: rings of which nothing after it uses the slot, and the text of the slot's number.
    """

    node: ir.Compute
    kept: tuple[str, ...]
    freed: dict[Buffer, str]


class Consumer(Tiles):
    """Writes the statements of a warpgroup."""

    def __init__(self, setting: Setting, launch: Launch, name: str, plan: Plan) -> None:
        super().__init__(setting, launch, name, plan)
        self._issued: list[Issued] = []
        self._there: set[str] = set()  # barriers that have been waited for, of rings in this iteration
        self._late: list[ir.Compute] = []  # products of the iteration before, still to be issued
        self._operands: dict[ir.MatMul, str] = {}  # what products that were put off take from registers
        self._of_before = False  # whether a product of the iteration before is being issued
        self._depth = 1
        self._unread: dict[ir.Tile, ir.Read] = {}  # vectors of this iteration that are still in their ring
        self._added = {each.product: each for each in plan.additions}
        self._handed: set[ir.Tile] = set()  # what all warpgroups have of this iteration
        self._to_add: list[Addition] = []  # products of this iteration, for memory
        exchanged = [name for each in plan.additions for name in (each.handed, f"{each.handed}_full", each.part)]
        for name in exchanged:
            self._names.new(name)
        for buffer in plan.buffers.values():
            for name in (buffer.name, f"{buffer.name}_full", f"{buffer.name}_free"):
                self._names.new(name)

    # The block

    def _loop(self, node: ir.Loop, depth: int) -> None:
        """The tiles that are streamed; if products are put off, the first tile apart, and what is left at the end."""
        low, _ = self.limits()
        late = bool(self._plan.late)
        if late:
            number = self._names.new(node.range.name)
            self._say(depth, f"{number} = {low}")
            self._say(depth, self.slot(number) if self._plan.persistent else "slot, phase = 0, 0")
            self._iteration(node, Piece(low, low), depth, number, False)
        else:
            for buffer in self._plan.buffers.values():
                if not buffer.streamed:
                    self._await(depth, buffer)
        for piece in self._stream_pieces(node, late):
            number = self._names.new(node.range.name)
            self._say(depth, f"for {number} in {piece.range}:")
            if late:
                self._say(depth + 1, "last, last_phase = slot, phase")
            self._say(depth + 1, self.slot(number))
            self._iteration(node, piece, depth + 1, number, late)
        for buffer in self._plan.buffers.values():
            if self._plan.persistent and not buffer.streamed:
                self._say(depth, f"mbarrier.arrive({buffer.barrier}_free.index(0), count=1)")
        if self._added:
            self._say(depth, "tma.store_wait(0)")
        if late:
            self._say(depth, "last, last_phase = slot, phase")
            self._late = list(self._plan.late)
            self._there -= {ring.barrier for ring in self._plan.rings}
            self._issue_late(depth)
            self._pass_turn(depth)

    def _stream_pieces(self, loop: ir.Loop, late: bool) -> list[Piece]:
        """The pieces of a loop, from its second tile on if products are put off.

        A loop that adds to memory is one piece: with two, what they have in common is not all in registers. So is one
        whose ragged tile came first, and one whose tiles are told apart one by one: those that a mask cuts.
        """
        low, high = self.limits()
        if self._added:
            return [Piece(low, high)]
        if self.from_last():
            return [Piece("1", high, complete=True)]
        begin = ("1" if low == "0" else f"{low} + 1") if late else low
        if self._one_by_one(loop):
            self._asking = True
            return [Piece(begin, high)]
        first, *others = self._in_order(loop)
        if late:
            others = [replace(each, low=f"tl.maximum({each.low}, {begin})") for each in others]
        return [replace(first, low=begin), *others]

    def _iteration(self, node: ir.Loop, piece: Piece, depth: int, number: str, late: bool) -> None:
        """The statements of a tile; `number`: of its turn."""
        self._numbers[node.range] = self.streamed(number)
        self._turn = number if self._plan.turns else None
        if self._plan.turns and not late:
            self._take_turn(depth, "1")
        self._there -= {ring.barrier for ring in self._plan.rings}
        self._late = list(self._plan.late) if late else []
        self._handed.clear()
        self._to_add.clear()
        self._enter(node, depth, self._numbers[node.range])
        self._in_piece(node, piece, depth - 1)
        for addition in self._to_add:
            self._add(depth, addition)
        if self._issued:
            self._wait(depth, self._issued[-1].node.target.tile)

    # Reads and writes

    def _read(self, depth: int, node: ir.Read) -> None:
        buffer = self._plan.buffers.get(node.tile)
        if any(node.tile is each.write.tile for each in self._plan.additions):
            self._tile(node.tile)
            self._empty.add(node.tile)  # memory has the sum
        elif buffer is None:
            super()._read(depth, node)
        elif buffer.vector:
            self._unread[node.tile] = node
        else:
            self._loaded.add(node.tile)

    def _fetch(self, depth: int, tile: ir.Tile) -> None:
        """Bring a vector from its ring into registers, where it is first used."""
        node = self._unread.pop(tile, None)
        if node is not None:
            buffer = self._plan.buffers[tile]
            self._await(depth, buffer)
            view = f"{buffer.name}.index(slot).reshape([{buffer.rows}])"
            self._say(depth, f"{self._tile(tile)} = {view}.load({self._of_vector(tile.ranges[0])})")
            if node.tensor in self._setting.logarithms:
                self._base_2.add(tile)

    def _write(self, depth: int, node: ir.Write) -> None:
        addition = next((each for each in self._plan.additions if each.write is node), None)
        if addition is not None:
            self._to_add.append(addition)  # when all products of the iteration are on their way
            return
        self._settle(depth, node.tile)
        if node.tile in self._turned or ir.over_pairs(node.tile.ranges):
            raise self._refused(f"line {node.line} writes a matrix of pairs")
        super()._write(depth, node)

    def _hand_over(self, depth: int, addition: Addition) -> None:
        """Put the rows that the warpgroup has of an operand into shared memory, where all warpgroups read it."""
        expr = addition.product.expr
        assert isinstance(expr, ir.MatMul)
        self._settle(depth, addition.left)
        text = self._operand(expr.left, addition.product.line, expr.left.shape[1], 0, True)
        for line in addition.handing(text):
            self._say(depth, line)
        self._handed.add(addition.left)

    def _add(self, depth: int, addition: Addition) -> None:
        """Add the columns that the warpgroup has of a product to memory; what was added before has left the buffer."""
        self._settle(depth, addition.write.tile)
        for line in addition.adding(self._numbers[self._plan.loop.range], self._written(addition.write)):
            self._say(depth, line)

    # Products

    def _compute(self, depth: int, node: ir.Compute) -> None:
        self._depth = depth
        product = isinstance(node.expr, ir.MatMul)
        if node in self._plan.late and not self._of_before:
            self._put_off(depth, node)
            return
        for each in self._plan.additions:
            if product and each.left not in self._handed and each.left in {ref.tile for ref in ir.refs(node.expr)}:
                self._hand_over(depth, each)
        for ref in () if self._of_before else ir.refs(node.expr):
            self._fetch(depth, ref.tile)
            self._settle(depth, ref.tile)
        if not product:
            self._settle(depth, node.target.tile)
        elif node.mode == "add" and self._is_scaled(node) != self._waits_for_scale(node):
            raise self._refused(f"line {node.line} adds a product with the scale to one without")
        super()._compute(depth, node)
        if product:
            self._note(node)

    def _is_scaled(self, node: ir.Compute) -> bool:
        return self._scale is not None and self._makes_scores(node.expr)

    def _waits_for_scale(self, node: ir.Compute) -> bool:
        tile = node.target.tile
        return tile in self._unscaled or (self._is_scaled(node) and tile in self._empty)

    def _put_off(self, depth: int, node: ir.Compute) -> None:
        """Keep the computed operand of a product for the next iteration."""
        self._issue_late(depth)
        self._take_next_turn(depth)
        if self._issued:
            self._wait(depth, self._issued[-1].node.target.tile)
        assert isinstance(node.expr, ir.MatMul)
        self._operands[node.expr] = self._in_registers(node.expr, node.line, f"{self._tiles[node.expr.left.tile]}_late")

    def _issue_late(self, depth: int) -> None:
        """Issue the products that were put off; they use the slots of the iteration before."""
        late, self._late, self._of_before = self._late, [], True
        for node in late:
            self._compute(depth, node)
        self._of_before = False

    def _settle(self, depth: int, tile: ir.Tile) -> None:
        """Wait for a tile if it is the result of a product that is on its way."""
        if any(each.node.target.tile is tile for each in self._issued):
            self._issue_late(depth)
            self._wait(depth, tile)

    def _wait(self, depth: int, tile: ir.Tile) -> None:
        upto = max(at for at, each in enumerate(self._issued) if each.node.target.tile is tile) + 1
        done, self._issued = self._issued[:upto], self._issued[upto:]
        late = [each.node in self._plan.late for each in done]
        if any(late):
            self._take_next_turn(depth)
        kept = ", ".join(dict.fromkeys(name for each in done for name in each.kept))
        comma = "" if ", " in kept else ","
        self._say(depth, f"{kept} = warpgroup_mma_wait({len(self._issued)}, deps=({kept}{comma}))")
        if not all(late):
            self._pass_turn(depth)
        for each in done:
            for buffer, slot in each.freed.items():
                for other in self._plan.together(buffer):
                    self._fetch(depth, other.read.tile)
                self._say(depth, f"mbarrier.arrive({buffer.barrier}_free.index({slot}), count=1)")

    def _note(self, node: ir.Compute) -> None:
        assert isinstance(node.expr, ir.MatMul)
        slot = "last" if self._of_before else "slot"
        freed = {buffer: slot for buffer, last in self._plan.last.items() if last is node}
        operand = self._operands.get(node.expr)
        kept = (self._tiles[node.target.tile], *((operand,) if operand else ()))
        self._issued.append(Issued(node, kept, freed))

    def _dot(self, expr: ir.MatMul, line: int, onto: str | None, frame: bool = False) -> str:
        """A product, issued; its left operand has the rows of the warpgroup."""
        addition = next((each for each in self._plan.additions if each.product.expr is expr), None)
        if addition is not None:
            return self._dot_of_all(addition)
        left, right = (expr.right, expr.left) if frame else (expr.left, expr.right)
        held, ring = self._plan.buffers.get(left.tile), self._plan.buffers.get(right.tile)
        if ring is None or not ring.streamed or (held is not None and held.streamed):
            raise self._refused(f"the product in line {line} is of no rows that stay with a matrix that is streamed")
        if held is not None:
            first = self._in_shared(held, left.transposed ^ frame)
        elif expr in self._operands and self._of_before:
            first = self._operands[expr]
        else:
            first = self._operands[expr] = self._in_registers(expr, line, f"{self._tiles[left.tile]}_16")
        second = self._in_shared(ring, right.transposed ^ frame)
        width = ring.rows if right.transposed ^ frame else ring.width
        if onto is not None:
            return f"warpgroup_mma({first}, {second}, {onto}, is_async=True)"
        zeros = f"tl.zeros([{ROWS}, {width}], tl.float32, {self._layout(width)})"
        return f"warpgroup_mma({first}, {second}, {zeros}, use_acc=False, is_async=True)"

    def _dot_of_all(self, addition: Addition) -> str:
        """Some columns of a product of what all warpgroups computed with what stays."""
        expr, columns = addition.product.expr, addition.columns
        assert isinstance(expr, ir.MatMul)
        held = self._plan.buffers[expr.right.tile]
        self._await(self._depth, held)
        self._say(self._depth, f"mbarrier.wait({addition.handed}_full.index(slot), phase)")
        first = f"{addition.handed}.index(slot).permute((1, 0))"
        second = f"{held.name}.index(0).reshape([{held.rows}, {held.width}]).slice(w * {columns}, {columns}, dim=1)"
        zeros = f"tl.zeros([{addition.rows}, {columns}], tl.float32, {self._layout(columns)})"
        return f"warpgroup_mma({first}, {second}, {zeros}, use_acc=False, is_async=True)"

    def _in_registers(self, expr: ir.MatMul, line: int, name: str) -> str:
        """Make a computed matrix the left operand of a product, in the words of memory; the name of it."""
        self._settle(self._depth, expr.left.tile)
        text = self._operand(expr.left, line, expr.left.shape[1], 1, False)
        if "tl.trans(" in text:
            raise self._refused(f"the product in line {line} takes a computed matrix transposed")
        layout = self._layout(self._length(expr.shape[1]))
        self._say(self._depth, f"{name} = gl.convert_layout({text}, gl.DotOperandLayout(0, {layout}, 2))")
        return name

    def _in_shared(self, buffer: Buffer, transposed: bool) -> str:
        """A buffer's slot as an operand, once it is there."""
        last = "last" if self._of_before else "slot"
        if not (self._of_before and self._plan.waited_in_time(buffer)):
            self._await(self._depth, buffer)
        whole = not buffer.streamed and buffer.rows > ROWS
        at = last if buffer.streamed else "0" if whole else "w"
        view = f"{buffer.name}.index({at}).reshape([{buffer.rows}, {buffer.width}])"
        view += f".slice(w * {ROWS}, {ROWS})" * whole
        return f"{view}.permute((1, 0))" if transposed else view

    def _await(self, depth: int, buffer: Buffer) -> None:
        """Wait until a buffer, or the slot of a ring, is filled."""
        if buffer.barrier not in self._there:
            at = "last), last_phase" if self._of_before else "slot), phase"
            at = at if buffer.streamed else f"0), {self.turn}"
            self._say(depth, f"mbarrier.wait({buffer.barrier}_full.index({at})")
            self._there.add(buffer.barrier)
