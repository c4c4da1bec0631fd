"""Gluon kernels of tables of pairs: rows stay in shared memory, keys are streamed, each tile of scores goes to memory.

A tile of scores is a sum over parts of the rows, `c` columns each: the rows that stay are in as many buffers, and parts
of keys are a ring. Where a ring leaves no room for all rows, the first parts stay in registers. A warpgroup has 64 rows
of each tile, works its entries out in registers, and hands them to the copy engine, which writes them while the
next tile's products run. Entries of another table that take part in that are fetched before, one tile ahead. Each
warpgroup begins when the one before has issued most of its first products: then one takes exponentials while the
products of another run, which a ring of a whole tile allows. The tables are as other kernels of the file read them,
tile by tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pebblesim.gpu.emit.gluon_additions import ROWS
from pebblesim.gpu.emit.gluon_boxes import corner, described, sides
from pebblesim.gpu.emit.gluon_plan import (
    MOST_HELD,
    MOST_WARPGROUPS,
    OTHER_BLOCKS,
    REGISTERS,
    SHARED,
    THREADS,
    Block,
    refused,
)
from pebblesim.gpu.emit.gluon_rows import Rows
from pebblesim.gpu.emit.gluon_writer import GluonWriter
from pebblesim.gpu.emit.triton_loops import Piece
from pebblesim.gpu.emit.triton_ranges import Setting, only
from pebblesim.gpu.emit.words import WORDS
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

KIND = "bfloat16"
"""The type of words by whose bytes room is counted; those of the other type have as many."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Scores(Block):
    """A block that writes rows of a table of pairs.

    Attributes:
        inner: the loop over parts of a sum.
        product: the primitive that adds a part.
        rows: the primitive that reads the rows that stay.
        part: the one that reads a part of the keys.
        table: the one that writes a tile of the table.
        before: the one that reads a tile of another table, if any.
        width: columns of a tile of the table.
        deep: terms of a sum that a part has.
        parts: parts of a sum.
        held: how many of the rows' parts are in shared memory; those before them are in registers.
    """

    inner: ir.Loop
    product: ir.Compute
    rows: ir.Read
    part: ir.Read
    table: ir.Write
    before: ir.Read | None
    width: int
    deep: int
    parts: int
    held: int

    @property
    def kept(self) -> int:
        """How many of the rows' parts stay in registers."""
        return self.parts - self.held

    @property
    def turns(self) -> int:
        """The part of a first tile whose product a warpgroup issues before the next one begins."""
        return max(3 * self.parts // 4, 1) - 1

    @property
    def tiles(self) -> int:
        """Tiles of the table in shared memory, each of the rows of a warpgroup."""
        return self.warpgroups * (1 if self.before is None else 2)

    def shared(self, dtype: str) -> int:
        """Bytes of shared memory: rows that stay, the ring, tiles on their way to memory, and barriers."""
        words = (self.held * ROWS * self.warpgroups + self.stages * self.width) * self.deep
        words += self.tiles * ROWS * self.width
        barriers = self.held * (2 if self.kept else 1) + 2 * self.stages + self.warpgroups - 1
        return words * WORDS[dtype] + 8 * (barriers + self.tiles * (self.before is not None))


def scores(launch: Launch, sizes: ir.Sizes, stages: int) -> Scores | None:
    """The plan of a launch that writes rows of a table; None if it is no such launch."""
    loops = [node for node in launch.block if isinstance(node, ir.Loop)]
    if len(launch.grid) != 1 or len(loops) != 1 or launch.around is not None:
        return None
    own, (loop,) = launch.grid[0].range, loops
    inner = [node for node in loop.body if isinstance(node, ir.Loop)]
    tables = [node for node in loop.body if isinstance(node, ir.Write) and ir.over_pairs(node.tile.ranges)]
    before = [node for node in loop.body if isinstance(node, ir.Read) and ir.over_pairs(node.tile.ranges)]
    if len(inner) != 1 or len(tables) != 1 or len(before) > 1:
        return None
    body = [node for node in inner[0].body if not isinstance(node, ir.Delete)]
    match body:
        case [ir.Read() as part, ir.Compute(mode="add", expr=ir.MatMul(left=left, right=right)) as product]:
            rows = [node for node in launch.block if isinstance(node, ir.Read) and node.tile is left.tile]
            turned = left.transposed or not right.transposed or right.tile is not part.tile
            if turned or not rows or left.ranges != (own, inner[0].range) or product.target.tile.ranges[0] is not own:
                return None
            deep = ir.length(inner[0].range.block, sizes)
            parts = -(-sizes[inner[0].range.dim] // deep)
            made = Scores(
                own=own,
                loop=loop,
                warpgroups=ir.length(own.block, sizes) // ROWS,
                stages=stages,
                inner=inner[0],
                product=product,
                rows=rows[0],
                part=part,
                table=tables[0],
                before=before[0] if before else None,
                width=ir.length(loop.range.block, sizes),
                deep=deep,
                parts=parts,
                held=parts,
            )
            return replace(made, held=_held(made))
    return None


def _held(plan: Scores) -> int:
    """Parts of the rows for which shared memory has room; all of them if registers have none for the others."""
    beyond = plan.shared(KIND) - SHARED
    kept = min(max(0, -(-beyond // (ROWS * plan.warpgroups * plan.deep * WORDS[KIND]))), plan.parts - 1)
    registers = ROWS * (kept * plan.deep // 2 + plan.width) // THREADS  # two words of rows in each
    fits = 1 <= plan.warpgroups <= MOST_WARPGROUPS and registers <= MOST_HELD * REGISTERS[plan.warpgroups]
    return plan.parts - kept if fits else plan.parts


class ScoresRows(Rows):
    """Writes the statements of a warpgroup."""

    _plan: Scores

    def __init__(self, setting: Setting, launch: Launch, name: str, plan: Scores) -> None:
        super().__init__(setting, launch, name, plan)
        self.held = self._names.new(f"{plan.rows.tensor.name}_{plan.own.name}")
        self.ring = self._names.new(f"{plan.part.tensor.name}_{plan.loop.range.name}")
        self.tile = self._names.new(f"{plan.table.tensor.name}_tile")
        for each in ("_full", "_free", "_kept"):
            self._names.new(self.ring + each)
            self._names.new(self.held + each)
        for name in (f"{self.tile}_full", "last", "slot", "phase", "sum", "turns"):
            self._names.new(name)

    def slot(self, number: str) -> str:
        """The slot of the ring, and the phase of its barriers, for part k of a tile of keys."""
        return self._slot_of(f"({self._streamed_before(number)} * {self._plan.parts} + k)")

    def place(self, tensor: ir.Tensor, number: str) -> str:
        """The first row of the warpgroup's part of a tile among the rows of all tiles of a table."""
        down, across, tall, _ = self._setting.lengths(tensor, True)
        if self._setting.tables.band is not None:
            number = f"({number} - {self._first_in(self.number, int(tall), int(self._plan.width))})"
        return f"[((head * {down} + {self.number}) * {across} + {number}) * {tall} + w * {ROWS}, 0]"

    def _hold(self) -> None:
        """Wait for the rows that stay; the first parts go on into registers, as the left operands of products."""
        plan = self._plan
        slot, layout = (
            f"k % {plan.held}" if plan.kept else "k",
            f"gl.DotOperandLayout(0, {self._layout(plan.width)}, 2)",
        )
        wait = f"mbarrier.wait({self.held}_full.index({slot}), {f'k // {plan.held} & 1' if plan.kept else '0'})"
        if plan.kept:
            self._say(1, f"{self.held}_kept = ()  # in registers")
            self._say(1, f"for k in tl.static_range({plan.kept}):")
            self._say(2, wait)
            self._say(2, f"{self.held}_kept += ({self._rows_of(slot)}.load({layout}),)")
            self._say(2, f"mbarrier.arrive({self.held}_free.index({slot}), count=1)")
        self._say(1, f"for k in tl.static_range({f'{plan.kept}, {plan.parts}'.removeprefix('0, ')}):")
        self._say(2, wait)

    def _rows_of(self, slot: str) -> str:
        """The warpgroup's rows of a part in shared memory."""
        plan = self._plan
        return f"{self.held}.index({slot}).reshape([{ROWS * plan.warpgroups}, {plan.deep}]).slice(w * {ROWS}, {ROWS})"

    def _loop(self, node: ir.Loop, depth: int) -> None:
        if node is self._plan.inner:
            self._sum(depth)
            return
        low, high = self.limits()
        if self._plan.before is not None:
            self._say(depth, f"if {low} < {high}:")
            self._fetch(depth + 1, self._plan.before, low)
        for piece in self._in_order(node):
            number = self._numbers[node.range] = self._names.new(node.range.name)
            self._say(depth, f"for {number} in {piece.range}:")
            self._enter(node, depth + 1, number)
            self._in_piece(node, piece, depth)
        self._say(depth, "tma.store_wait(0)")

    def _fetch(self, depth: int, node: ir.Read, number: str) -> None:
        """Ask for a tile of another table, once the copy engine has taken the tile that was there."""
        words, at = ROWS * self._plan.width * WORDS[self._setting.dtype], self._room(number)
        self._say(depth, "tma.store_wait(0)")
        self._say(depth, f"mbarrier.expect({self.tile}_full.index({at}), {words})")
        target = f"{self.tile}_full.index({at}), {self.tile}.index({at})"
        place = self.place(node.tensor, number)
        self._say(depth, f"tma.async_copy_global_to_shared({node.tensor.name}_tiles, {place}, {target})")

    def _room(self, number: str) -> str:
        """Where the warpgroup has its rows of a tile of the table."""
        return "w" if self._plan.before is None else f"2 * w + ({self._streamed_before(number)} & 1)"

    def _sum(self, depth: int) -> None:
        """The products of all parts, one issued while the one before runs."""
        plan, number = self._plan, self._numbers[self._plan.loop.range]
        name = self._tile(plan.product.target.tile)
        (low, high), last = self.limits(), plan.warpgroups - 1
        keys = f"{self.ring}.index(slot).reshape([{plan.width}, {plan.deep}]).permute((1, 0))"
        rows = self._rows_of(f"k % {plan.held}" if plan.kept else "k")
        rows = f"{self.held}_kept[k] if k < {plan.kept} else {rows}" if plan.kept else rows
        if last:
            self._say(depth, f"if w > 0 and {number} == {low}:")
            self._say(depth + 1, "mbarrier.wait(turns.index(w - 1), 0)")
        self._say(depth, f"for k in tl.static_range({plan.parts}):")
        self._say(depth + 1, self.slot(number))
        self._say(depth + 1, f"mbarrier.wait({self.ring}_full.index(slot), phase)")
        self._say(depth + 1, f"{name} = warpgroup_mma({rows}, {keys}, {name}, use_acc=k > 0, is_async=True)")
        if last:
            self._say(depth + 1, f"if k == {plan.turns} and w < {last} and {number} == {low}:")
            self._say(depth + 2, "mbarrier.arrive(turns.index(w), count=1)")
        if plan.before is not None:
            self._say(depth + 1, f"if k == {plan.parts // 2} and {number} + 1 < {high}:")
            self._fetch(depth + 2, plan.before, f"({number} + 1)")
        self._one_behind(depth, name, f"{self.ring}_free")
        self._issued_all(plan.product)

    def _read(self, depth: int, node: ir.Read) -> None:
        if node is self._plan.rows:
            self._hold()
            return
        if node is not self._plan.before:
            super()._read(depth, node)
            return
        number = self._numbers[self._plan.loop.range]
        at, turn = self._room(number), self._streamed_before(number)
        self._say(depth, f"mbarrier.wait({self.tile}_full.index({at}), {turn} // 2 & 1)")
        self._say(depth, f"{self._tile(node.tile)} = {self.tile}.index({at}).load({self._layout(self._plan.width)})")
        self._loaded.add(node.tile)

    def _write(self, depth: int, node: ir.Write) -> None:
        """Rows of the table that do not exist are 0, for which only warpgroups that have some do anything."""
        row = (node.tile, self._plan.own)
        there = "" if node is not self._plan.table or self._vanishes(*row) else self._exist(self._plan.own, 0)
        if there:
            name = self._tile(node.tile)
            self._say(depth, f"if (part + 1) * {ROWS} > {self._setting.size(self._plan.own.dim)}:")
            self._say(depth + 1, f"{name} = {only(name, there, '0.0')}")
            self._vanishing.add(row)
        super()._write(depth, node)
        if there:  # where the loop is written again, it is not yet
            self._vanishing.discard(row)

    def _store(self, depth: int, node: ir.Write | ir.Init, at: ir.Range | None, value: str) -> None:
        if node is not self._plan.table:
            super()._store(depth, node, at, value)
            return
        if self._plan.before is None:
            self._say(depth, "tma.store_wait(0)")
        number = self._numbers[self._plan.loop.range]
        room, place = self._room(number), self.place(node.tensor, number)
        self._say(depth, f"{self.tile}.index({room}).store({value}.to(tl.{self._setting.dtype}))")
        self._say(depth, "fence_async_shared()")
        target = f"{node.tensor.name}_tiles, {place}, {self.tile}.index({room})"
        self._say(depth, f"tma.async_copy_shared_to_global({target})")


class ScoresKernel(GluonWriter[ScoresRows]):
    """Writes the kernel of a launch that writes rows of a table."""

    _block: Scores

    def __init__(self, setting: Setting, launch: Launch, name: str, plan: Scores) -> None:
        block = ir.length(plan.own.block, setting.sizes)
        if block % ROWS or not 1 <= block // ROWS <= MOST_WARPGROUPS or block & (block - 1):
            raise refused(setting.program, f"block {plan.own.block} is {block}", OTHER_BLOCKS)
        if plan.table.tensor not in setting.tables.tiled:
            raise refused(setting.program, f"line {plan.table.line} writes a table that is not kept tile by tile")
        tables = (each.tensor for each in (plan.table, plan.before) if each is not None)
        loaded = (plan.rows.tensor, plan.part.tensor)
        super().__init__(setting, launch, name, plan, ScoresRows, loaded, tables)

    def _described(self) -> list[str]:
        setting, plan = self._setting, self._block
        heights = (ROWS * plan.warpgroups, plan.width)
        made = [described(setting, *each, plan.deep) for each in zip(self._loaded, heights, strict=True)]
        made += [f"pairs_of({setting.of[each]}, {ROWS}, {plan.width})" for each in self._others]
        return [f"    {name} = {asked}" for name, asked in zip(self._tiles, made, strict=True)]

    @property
    def _streamed_words(self) -> int:
        return self._block.parts * self._block.deep

    @property
    def _shared(self) -> list[str]:
        rows = self._consumer
        held = [rows.held, f"{rows.held}_full", *[f"{rows.held}_free"] * bool(self._block.kept)]
        return [*held, rows.ring, f"{rows.ring}_full", f"{rows.ring}_free"]

    @property
    def _own(self) -> list[str]:
        tile, plan = self._consumer.tile, self._block
        return [tile, *[f"{tile}_full"] * (plan.before is not None), *["turns"] * (plan.warpgroups > 1)]

    def _loading(self) -> list[str]:
        rows, plan, word = self._consumer, self._block, WORDS[self._setting.dtype]
        held, streamed, *_ = self._tiles
        (low, high), at = rows.limits(), plan.loop.range.name
        block, deep, copy = ROWS * plan.warpgroups, plan.deep, "tma.async_copy_global_to_shared"
        target = f"{rows.ring}_full.index(slot), {rows.ring}.index(slot)"
        first, keys = (
            corner(self._setting, tensor, row, f"k * {deep}")
            for tensor, row in zip(self._loaded, (f"{rows.number} * {block}", f"{at} * {plan.width}"), strict=True)
        )
        room, stay = "k", list[str]()
        if plan.kept:
            turn, room = f"k // {plan.held}", f"k % {plan.held}"
            stay.append(f"    mbarrier.wait({rows.held}_free.index({room}), {turn} & 1 ^ 1)")
        return [
            f"for k in range({plan.parts}):",
            *stay,
            f"    mbarrier.expect({rows.held}_full.index({room}), {block * deep * word})",
            f"    {copy}({held}, {first}, {rows.held}_full.index({room}), {rows.held}.index({room}))",
            f"for {at} in {Piece(low, high).range}:",
            f"    for k in range({plan.parts}):",
            f"        {rows.slot(at)}",
            f"        mbarrier.wait({rows.ring}_free.index(slot), phase ^ 1)",
            f"        mbarrier.expect({rows.ring}_full.index(slot), {plan.width * deep * word})",
            f"        {copy}({streamed}, {keys}, {target})",
        ]

    def _allocated(self) -> list[str]:
        rows, plan, word = self._consumer, self._block, f"gl.{self._setting.dtype}"
        held, streamed, table, *_ = self._tiles
        heights = (ROWS * plan.warpgroups, plan.width)
        rooms, slots = (sides(self._setting, *each, plan.deep) for each in zip(self._loaded, heights, strict=True))
        lines = [
            f"    {rows.held} = gl.allocate_shared_memory({word}, [{plan.held}, 1, {rooms}], {held}.layout)"
            f"  # line {plan.rows.line}: stays",
            f"    {rows.held}_full = barriers({plan.held}, 1)",
            *[f"    {rows.held}_free = barriers({plan.held}, {plan.warpgroups})"] * bool(plan.kept),
            f"    {rows.ring} = gl.allocate_shared_memory({word}, [{plan.stages}, 1, {slots}], "
            f"{streamed}.layout)  # line {plan.part.line}: a ring",
            f"    {rows.ring}_full = barriers({plan.stages}, 1)",
            f"    {rows.ring}_free = barriers({plan.stages}, {plan.warpgroups})",
            f"    {rows.tile} = gl.allocate_shared_memory({word}, [{plan.tiles}, {ROWS}, {plan.width}], "
            f"{table}.layout)  # line {plan.table.line}: on its way to memory",
        ]
        if plan.before is not None:
            lines.append(f"    {rows.tile}_full = barriers({plan.tiles}, 1)")
        if plan.warpgroups > 1:
            lines.append(f"    turns = barriers({plan.warpgroups - 1}, 1)")
        return lines
