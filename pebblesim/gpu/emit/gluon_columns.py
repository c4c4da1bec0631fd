"""Gluon kernels whose warpgroups divide columns: for keys that are values, too, and sums too wide for one warpgroup.

Two warpgroups have the same 64 rows. Each has half of the keys of a tile, whose scores it computes, and half of the
columns of the sums. So a maximum of a row is that of both, which they exchange through shared memory, a row sum is
completed behind the loop, and each puts its probabilities where the other reads them as an operand. A tile of keys that
is also one of values is read once: it stays until both products are done with it. A ring has the parts of one tile, of
one warpgroup's keys and of one's columns, each of which is filled again as soon as its last product has ended.

From tile to tile the warpgroups exchange their halves of the keys, and so the half that is multiplied first and freed
first. A part's place then depends on the tile: the compiler keeps addresses of constant places in registers, of which
there are none left.

Where probabilities are as large as the part of the keys that only scores need, they take its place.
"""

from __future__ import annotations

from pebblesim.gpu.emit.gluon_additions import ROWS
from pebblesim.gpu.emit.gluon_boxes import corner, described, sides
from pebblesim.gpu.emit.gluon_columns_plan import SHARES, Columns, Cut
from pebblesim.gpu.emit.gluon_rows import Rows
from pebblesim.gpu.emit.gluon_writer import GluonWriter, tiles_of
from pebblesim.gpu.emit.triton_ranges import Setting
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

IN_TURN = ("phase", "(1 - phase)")
"""The halves of a tile's keys, in the order in which their values are multiplied, as text."""


class ColumnsRows(Rows):
    """Writes the statements of a warpgroup."""

    _plan: Columns

    def __init__(self, setting: Setting, launch: Launch, name: str, plan: Columns) -> None:
        super().__init__(setting, launch, name, plan)
        self._flying = False  # whether scores are on their way
        self._asking = False
        for each in (*plan.held.values(), *plan.rings.values()):
            for end in ("", "_full", "_free"):
                self._names.new(each.name + end)
        for taken in ("mine", "phase", "share"):
            self._names.new(taken)
        made = plan.probabilities.name
        self.handed = plan.place.name if plan.place else self._names.new(f"{made}_of_all")
        self.handed_full = self._names.new(f"{made}_full")
        self.exchanged = {tile: self._names.new(f"{tile.name}_of_all") for tile in plan.exchanged}
        for name in self.exchanged.values():
            self._names.new(f"{name}_full")

    # Ranges

    def _which(self) -> str:
        return f"part = {self.number}  # these {ROWS} rows, of which the warpgroup has columns"

    def _length(self, rng: ir.Range) -> int:
        if rng is self._plan.loop.range:
            return self._plan.keys
        return self._plan.width if rng is self._plan.wide else super()._length(rng)

    def _count(self, rng: ir.Range) -> str:
        if rng is not self._plan.loop.range:
            return super()._count(rng)
        total, block = self._total(rng), SHARES * self._plan.keys
        return f"{total} // {block}" if self._setting.even else f"tl.cdiv({total}, {block})"

    def _named(self, rng: ir.Range, depth: int, number: str, first: str) -> None:
        number = f"({number} * {SHARES} + mine)" if rng is self._plan.loop.range else number
        super()._named(rng, depth, number, first)

    def _columns(self, rng: ir.Range) -> tuple[str, int]:
        return f"w * {self._plan.width} + ", SHARES * self._plan.width

    # Statements

    def _loop(self, node: ir.Loop, depth: int) -> None:
        for each in self._plan.held.values():
            self._say(depth, f"mbarrier.wait({each.name}_full.index(0), 0)")
        number, (low, high) = self._names.new(node.range.name), self.limits()
        self._numbers[node.range] = number
        self._say(depth, f"for {number} in range({f'{low}, {high}'.removeprefix('0, ')}):")
        self._say(depth + 1, f"phase = {number} & 1")
        self._say(depth + 1, "mine = (w + phase) & 1  # the half of the keys whose scores the warpgroup computes")
        self._enter(node, depth + 1, number)
        self._asking = self._ragged(node.range)
        self._looped(node.body, depth + 1)
        self._asking = False
        for tile in self._plan.exchanged:
            if tile in self._tiles and not self._is_maximum(tile):
                self._exchange(depth, tile, "0")

    def _read(self, depth: int, node: ir.Read) -> None:
        """Nothing: products wait for what they take from shared memory."""
        self._loaded.add(node.tile)

    def _bar(self, depth: int, expr: ir.Expr) -> None:
        """Mask scores, in a tile that some of its keys do not exist in."""
        if not self._asking:
            super()._bar(depth, expr)
            return
        before, loop = len(self._lines), self._plan.loop.range
        super()._bar(depth + 1, expr)
        if len(self._lines) > before:
            end = f"({self._numbers[loop]} + 1) * {SHARES * self._plan.keys}"
            self._lines.insert(before, "    " * depth + f"if {end} > {self._setting.size(loop.dim)}:")

    def _compute(self, depth: int, node: ir.Compute) -> None:
        plan = self._plan
        if node in plan.scores:
            self._score(depth, node)
            return
        if node is plan.sums:
            self._sum(depth)
            return
        if self._flying and plan.probabilities in {node.target.tile, *(ref.tile for ref in ir.refs(node.expr))}:
            self._settle(depth)
        super()._compute(depth, node)
        if node.target.tile in self.exchanged and isinstance(node.expr, ir.RowReduction) and node.mode == "new":
            self._exchange(depth, node.target.tile, "phase")
        if node is plan.last:
            self._hand_over(depth)

    def _is_maximum(self, tile: ir.Tile) -> bool:
        nodes = (node for node in self._plan.loop.body if isinstance(node, ir.Compute) and node.target.tile is tile)
        return any(isinstance(node.expr, ir.RowReduction) and node.expr.op == "rowmax" for node in nodes)

    def _exchange(self, depth: int, tile: ir.Tile, phase: str) -> None:
        """Make a vector that of the columns of both warpgroups."""
        name, room = self._tiles[tile], self.exchanged[tile]
        self._say(depth, f"{room}.index(w).reshape([{ROWS}]).store({name})")
        self._say(depth, "fence_async_shared()")
        self._say(depth, f"mbarrier.arrive({room}_full.index(w), count=1)")
        self._say(depth, f"mbarrier.wait({room}_full.index(1 - w), {phase})")
        other = f"{room}.index(1 - w).reshape([{ROWS}]).load({self._of_vector(self._plan.own)})"
        both = f"tl.maximum({name}, {other})" if self._is_maximum(tile) else f"{name} + {other}"
        self._say(depth, f"{name} = {both}")

    def _score(self, depth: int, node: ir.Compute) -> None:
        """Issue the products of a warpgroup's keys, part after part as they arrive."""
        plan, expr = self._plan, node.expr
        assert isinstance(expr, ir.MatMul)
        name, held, ring = self._tile(node.target.tile), plan.held[expr.left.tile], plan.rings[expr.right.tile]
        for part in range(ring.parts):
            at = ring.slot("mine", str(part))
            self._say(depth, f"mbarrier.wait({ring.name}_full.index({at}), phase)")
            rows = f"{held.name}.index({part}).reshape([{ROWS}, {held.width}])"
            keys = f"{ring.name}.index({at}).reshape([{plan.keys}, {ring.width}]).permute((1, 0))"
            zeros = f"tl.zeros([{ROWS}, {plan.keys}], tl.float32, {self._layout(plan.keys)}), use_acc=False"
            onto = name if part or node.mode == "add" else zeros
            self._say(depth, f"{name} = warpgroup_mma({rows}, {keys}, {onto}, is_async=True)")
        self._flying = True
        self._issued_all(node)

    def _settle(self, depth: int) -> None:
        """Wait for the scores; what only they need is free."""
        plan, name = self._plan, self._tiles[self._plan.probabilities]
        self._flying = False
        self._say(depth, f"{name} = warpgroup_mma_wait(0, deps=({name},))")
        for ring in plan.rings.values():
            for part in range(ring.parts) if ring is not plan.place else ():
                self._release(depth, ring, ring.slot("mine", str(part)))

    def _hand_over(self, depth: int) -> None:
        """Put the warpgroup's probabilities where both read them."""
        plan, expr = self._plan, self._plan.sums.expr
        assert isinstance(expr, ir.MatMul)
        text = self._operand(expr.left, plan.sums.line, expr.left.shape[1], 1, False)
        self._say(depth, f"{self._probabilities('mine')}.store({text})")
        self._say(depth, "fence_async_shared()")
        self._say(depth, f"mbarrier.arrive({self.handed_full}.index(mine), count=1)")

    def _probabilities(self, share: str) -> str:
        """Where a warpgroup's probabilities are."""
        return f"{self.handed}.index({share}).reshape([{ROWS}, {self._plan.keys}])"

    def _sum(self, depth: int) -> None:
        """Add the products of all probabilities with the warpgroup's columns of the values."""
        plan, expr = self._plan, self._plan.sums.expr
        assert isinstance(expr, ir.MatMul)
        name, ring = self._tile(plan.sums.target.tile), plan.rings[expr.right.tile]
        for share in IN_TURN:
            at = ring.slot(share, "w")
            self._say(depth, f"mbarrier.wait({self.handed_full}.index({share}), phase)")
            self._say(depth, f"mbarrier.wait({ring.name}_full.index({at}), phase)")
            values = f"{ring.name}.index({at}).reshape([{plan.keys}, {ring.width}])"
            rows = self._probabilities(share)
            self._say(depth, f"{name} = warpgroup_mma({rows}, {values}, {name}, is_async=True)")
        for left, share in zip(reversed(range(SHARES)), IN_TURN, strict=True):
            self._say(depth, f"{name} = warpgroup_mma_wait({left}, deps=({name},))")
            self._release(depth, ring, ring.slot(share, "w"))
            if plan.place:
                self._release(depth, plan.place, share)
        self._issued_all(plan.sums)

    def _release(self, depth: int, ring: Cut, at: str) -> None:
        self._say(depth, f"mbarrier.arrive({ring.name}_free.index({at}), count=1)")

    def _store(self, depth: int, node: ir.Write | ir.Init, at: ir.Range | None, value: str) -> None:
        """Store the columns of the warpgroup; vectors of rows are alike in both."""
        if len(ir.moved_part(node)) == 1:
            self._say(depth, "if w == 0:")
            depth += 1
        super()._store(depth, node, at, value)


class ColumnsKernel(GluonWriter[ColumnsRows]):
    """Writes the kernel of a launch whose warpgroups divide columns."""

    _block: Columns

    def __init__(self, setting: Setting, name: str, plan: Columns) -> None:
        loaded = (each.read.tensor for each in (*plan.held.values(), *plan.rings.values()))
        super().__init__(setting, plan.launch, name, plan, ColumnsRows, loaded, ())

    @property
    def helpers(self) -> set[str]:
        """Names of shared functions that the text uses."""
        return {"fence_async_shared"}

    @property
    def _cuts(self) -> list[Cut]:
        """All matrices in shared memory, those that stay first."""
        return [*self._block.held.values(), *self._block.rings.values()]

    def _described(self) -> list[str]:
        return [
            f"    {tiles} = {described(self._setting, each.read.tensor, each.rows, each.width)}"
            for tiles, each in zip(tiles_of(*(each.read.tensor for each in self._cuts)), self._cuts, strict=True)
        ]

    @property
    def _shared(self) -> list[str]:
        held, rings = self._block.held.values(), self._block.rings.values()
        return [
            *(f"{each.name}{end}" for each in held for end in ("", "_full")),
            *(f"{each.name}{end}" for each in rings for end in ("", "_full", "_free")),
        ]

    @property
    def _own(self) -> list[str]:
        rows = self._consumer
        exchanged = [f"{name}{end}" for name in rows.exchanged.values() for end in ("", "_full")]
        return [*[rows.handed] * (self._block.place is None), rows.handed_full, *exchanged]

    def _loading(self) -> list[str]:
        plan, rows, lines = self._block, self._consumer, list[str]()
        (_, high), at = rows.limits(), plan.loop.range.name
        for each in plan.held.values():
            bytes_ = each.parts * each.slot_bytes(self._setting.dtype)
            lines.append(f"mbarrier.expect({each.name}_full.index(0), {bytes_})")
            for part in range(each.parts):
                lines.append(self._copied(each, f"{rows.number} * {ROWS}", part, "0", str(part)))
        lines += [f"for {at} in range({high}):", f"    phase = {at} & 1", f"    for each in gl.static_range({SHARES}):"]
        lines.append("        share = (each + phase + 1) & 1  # first the half that is freed first")
        for ring in plan.rings.values():
            for part in range(ring.parts):
                slot, bytes_ = ring.slot("share", str(part)), ring.slot_bytes(self._setting.dtype)
                lines += [
                    f"        mbarrier.wait({ring.name}_free.index({slot}), phase ^ 1)",
                    f"        mbarrier.expect({ring.name}_full.index({slot}), {bytes_})",
                    "        " + self._copied(ring, f"({at} * {SHARES} + share) * {plan.keys}", part, slot, slot),
                ]
        return lines

    def _copied(self, each: Cut, row: str, part: int, barrier: str, slot: str) -> str:
        (tiles,) = tiles_of(each.read.tensor)
        place = f"{each.name}_full.index({barrier}), {each.name}.index({slot})"
        first = corner(self._setting, each.read.tensor, row, str(part * each.width), each.rows)
        return f"tma.async_copy_global_to_shared({tiles}, {first}, {place})"

    def _allocated(self) -> list[str]:
        plan, rows, lines, word = self._block, self._consumer, list[str](), f"gl.{self._setting.dtype}"
        for each in self._cuts:
            (tiles,), slots = tiles_of(each.read.tensor), each.parts
            ring = each in plan.rings.values()
            slots *= SHARES if ring else 1
            box = sides(self._setting, each.read.tensor, each.rows, each.width)
            lines += [
                f"    {each.name} = gl.allocate_shared_memory({word}, [{slots}, 1, {box}], {tiles}.layout)"
                f"  # line {each.read.line}: {'a ring' if ring else 'stays'}",
                f"    {each.name}_full = barriers({slots if ring else 1}, 1)",
                *[f"    {each.name}_free = barriers({slots}, {plan.releases(each)})"] * ring,
            ]
        if plan.place is None:
            shape, layout = f"[{ROWS}, {plan.keys}]", "gl.NVMMASharedLayout.get_default_for"
            lines.append(
                f"    {rows.handed} = gl.allocate_shared_memory({word}, [{SHARES}, {ROWS}, {plan.keys}], "
                f"{layout}({shape}, {word}))  # line {plan.sums.line}: both warpgroups read it"
            )
        lines.append(f"    {rows.handed_full} = barriers({SHARES}, 1)")
        layout = f"gl.NVMMASharedLayout.get_default_for([1, {ROWS}], gl.float32)"
        for name in rows.exchanged.values():
            lines.append(f"    {name} = gl.allocate_shared_memory(gl.float32, [{SHARES}, 1, {ROWS}], {layout})")
            lines.append(f"    {name}_full = barriers({SHARES}, 1)")
        return lines
