"""Gluon kernels of products with a table of pairs: tiles of the table and of a matrix are streamed past sums that stay.

A block has a tile of the result, and each warpgroup 64 of its rows. Parts of the terms, `c` each, are a ring: words of
the table, and of the matrix. What a loop over tiles of terms does beside its products, such as rescaling the sums, is
done by one warpgroup while the products of another run. The result goes through the slots of the ring, which are free
by then, and the copy engine writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pebblesim.gpu.emit.gluon_additions import ROWS
from pebblesim.gpu.emit.gluon_boxes import corner, described, several, sides
from pebblesim.gpu.emit.gluon_plan import MOST_WARPGROUPS, SHARED, WIDEST, Block
from pebblesim.gpu.emit.gluon_rows import Rows
from pebblesim.gpu.emit.gluon_writer import GluonWriter
from pebblesim.gpu.emit.storage import padded
from pebblesim.gpu.emit.triton_grid import longest_last
from pebblesim.gpu.emit.triton_loops import Piece
from pebblesim.gpu.emit.triton_ranges import GROUP, Setting
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch

SLOTS = 4
"""Slots of the ring: two tiles of 128 terms, in parts of 64, so that warpgroups need not go in step."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Product(Block):
    """A block that multiplies a table of pairs.

    Attributes:
        columns: the range of the grid over columns of the result.
        inner: the loop over parts of a tile of terms.
        product: the primitive that adds a part.
        table, matrix: those that read a part of the table, and of the matrix.
        result: the one that writes the sums.
        tall, wide: sides of a tile of the table in memory.
        width: columns of the result.
        deep: terms of a part.
    """

    columns: ir.Range
    inner: ir.Loop
    product: ir.Compute
    table: ir.Read
    matrix: ir.Read
    result: ir.Write
    tall: int
    wide: int
    width: int
    deep: int

    @property
    def turned(self) -> bool:
        """Whether the table is multiplied transposed."""
        assert isinstance(self.product.expr, ir.MatMul)
        return self.product.expr.left.transposed

    @property
    def parts(self) -> int:
        """Parts of a tile of terms."""
        return (self.tall if self.turned else self.wide) // self.deep

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot of the ring, of words of 16 bits."""
        return 2 * (ROWS * self.warpgroups + self.width) * self.deep

    def shared(self, dtype: str) -> int:
        """Bytes of shared memory: the ring, and barriers."""
        return self.stages * (self.slot_bytes + 16)


def product_of(launch: Launch, sizes: ir.Sizes, tile: tuple[int, int] | None) -> Product | None:
    """The plan of a launch that multiplies a table kept in tiles; None if it is no such launch."""
    loops = [node for node in launch.block if isinstance(node, ir.Loop)]
    results = [node for node in launch.block if isinstance(node, ir.Write)]
    if len(launch.grid) != 2 or len(loops) != 1 or len(results) != 1 or launch.around is not None or tile is None:
        return None
    own, columns = (each.range for each in launch.grid)
    inner = [node for node in loops[0].body if isinstance(node, ir.Loop)]
    if len(inner) != 1 or inner[0].range.parent is not loops[0].range:
        return None
    match [node for node in inner[0].body if not isinstance(node, ir.Delete)]:
        case [ir.Read() as table, ir.Read() as matrix, ir.Compute(mode="add", expr=ir.MatMul() as expr) as product]:
            operands = expr.left.tile, expr.right.tile, expr.right.transposed, product.target.ranges
            if (
                operands != (table.tile, matrix.tile, False, (own, columns))
                or results[0].tile is not product.target.tile
            ):
                return None
            block, width, deep = padded(own, sizes), padded(columns, sizes), padded(inner[0].range, sizes)
            terms = tile[0 if expr.left.transposed else 1]
            odd = block % ROWS or block // ROWS > MOST_WARPGROUPS or not 64 <= width <= WIDEST or deep != ROWS
            if odd or terms != padded(loops[0].range, sizes) or tile[1 if expr.left.transposed else 0] != block:
                return None
            made = Product(
                own=own,
                loop=loops[0],
                warpgroups=block // ROWS,
                stages=2,
                columns=columns,
                inner=inner[0],
                product=product,
                table=table,
                matrix=matrix,
                result=results[0],
                tall=tile[0],
                wide=tile[1],
                width=width,
                deep=deep,
            )
            slots = min(SLOTS, SHARED // (made.slot_bytes + 16))
            return replace(made, stages=slots) if slots >= made.warpgroups else None
    return None


class ProductRows(Rows):
    """Writes the statements of a warpgroup."""

    _plan: Product

    def __init__(self, setting: Setting, launch: Launch, name: str, plan: Product) -> None:
        super().__init__(setting, launch, name, plan)
        self.left, self.right = (self._names.new(f"{each.tensor.name}_part") for each in (plan.table, plan.matrix))
        for each in ("full", "free", "slot", "phase", "last", "first", "end", "wide", "k", "group", "rank"):
            self._names.new(each)

    @property
    def numbers(self) -> list[str]:
        """Parameters for numbers of heads: none, for heads are an axis of the grid."""
        return []

    @property
    def column(self) -> str:
        """The name of the number of its tile of columns."""
        return self._number_of(self._plan.columns)

    def opening(self) -> list[str]:
        """The lines that every role begins with: the head, the block's tile, and the parts that are streamed."""
        self._lines = []
        self._opening()
        (rows, columns), total = self._launch.grid, self._count(self._plan.own)
        self._say(1, "head = tl.program_id(1)")
        self._split_head(1)
        self._say(1, f"tiles, wide = {total}, {self._count(columns.range)}")
        self._say(1, f"group, rank = tl.program_id(0) // ({GROUP} * wide), tl.program_id(0) % ({GROUP} * wide)")
        self._say(1, f"side = tl.minimum(tiles - group * {GROUP}, {GROUP})  # tiles of rows that share columns in L2")
        self._say(1, f"{self.number}, {self.column} = group * {GROUP} + rank % side, rank // side")
        if longest_last(self._launch, rows, self._mask):
            self._say(1, f"{self.number} = tiles - 1 - {self.number}")
        (low, high), plan = self.limits(), self._plan
        size = self._setting.size(plan.loop.range.dim)
        end = f"({high}) * {plan.parts}" if plan.parts > 1 else high
        if not self._setting.even:  # parts beyond all terms are none
            end = f"tl.minimum({end}, tl.cdiv({size}, {plan.deep}))"
        self._say(1, f"first, end = {f'({low}) * {plan.parts}' if low != '0' else '0'}, {end}  # parts of terms")
        return self._lines

    def slot(self, turn: str) -> str:
        """The slot of the ring, and the phase of its barriers."""
        return self._slot_of(f"({turn})")

    def place(self, part: str) -> str:
        """Where a part of the table is among the rows of all its tiles."""
        plan, tables = self._plan, self._setting.tables
        down, across, tall, _ = self._setting.lengths(plan.table.tensor, True)
        terms, within = f"{part} // {plan.parts}", f"{part} % {plan.parts} * {plan.deep}"
        row, column = (terms, self.number) if plan.turned else (self.number, terms)
        if tables.band is not None:
            column = f"({column} - {self._first_in(row, plan.tall, plan.wide)})"
        begin = f"((head * {down} + {row}) * {across} + {column}) * {tall}"
        return f"[{begin} + {within}, 0]" if plan.turned else f"[{begin}, {within}]"

    def _of_vector(self, rng: ir.Range, width: int | None = None) -> str:
        axis = 1 if rng is self._plan.own else 0
        return f"gl.SliceLayout({axis}, {self._layout(width or self._plan.width)})"

    # Products

    def _fused(self, outer: ir.Loop, inner: ir.Loop, depth: int) -> None:
        """Parts one after the other, with nothing between them: a product runs while the next one is issued."""
        name = self._tile(self._plan.product.target.tile)
        self._say(depth, "for k in range(first, end):")
        self._issue(depth + 1, "k - first")
        self._say(depth + 1, f"{name} = warpgroup_mma_wait(1, deps=({name},))")
        self._say(depth + 1, "if k > first:")
        self._say(depth + 2, f"mbarrier.arrive(free.index((k - first - 1) % {self._plan.stages}), count=1)")
        self._say(depth, f"{name} = warpgroup_mma_wait(0, deps=({name},))")
        self._say(depth, "if first < end:")
        self._say(depth + 1, f"mbarrier.arrive(free.index((end - first - 1) % {self._plan.stages}), count=1)")
        self._issued_all(self._plan.product)

    def _loop(self, node: ir.Loop, depth: int) -> None:
        """Tiles of terms; the last, if it is ragged, apart: it has fewer parts."""
        if node is self._plan.inner:
            self._of_tile(depth)
            return
        (low, high), size = self.limits(), self._setting.size(node.range.dim)
        pieces = [Piece(low, high)]
        if not self._setting.even:
            whole = f"{size} // {self._plan.parts * self._plan.deep}"
            pieces = [Piece(low, f"tl.minimum({high}, {whole})"), Piece(f"tl.maximum({low}, {whole})", high)]
        for piece, self._ragged_parts in zip(pieces, (False, True), strict=False):
            number = self._numbers[node.range] = self._names.new(node.range.name)
            self._say(depth, f"for {number} in {piece.range}:")
            self._enter(node, depth + 1, number)
            self._in_piece(node, piece, depth)

    def _of_tile(self, depth: int) -> None:
        """The parts of a tile of terms."""
        plan, number = self._plan, self._numbers[self._plan.loop.range]
        name, before = self._tile(plan.product.target.tile), f"{number} * {plan.parts} - first"
        if self._ragged_parts:
            self._say(depth, f"for k in range({number} * {plan.parts}, end):")
            self._issue(depth + 1, "k - first")
            self._say(depth + 1, f"{name} = warpgroup_mma_wait(0, deps=({name},))")
            self._say(depth + 1, "mbarrier.arrive(free.index(slot), count=1)")
        else:
            self._say(depth, f"for k in tl.static_range({plan.parts}):")
            self._issue(depth + 1, f"{before} + k")
            self._one_behind(depth, name, "free")
        self._issued_all(plan.product)

    def _issue(self, depth: int, turn: str) -> None:
        """Wait for a part, and issue its product."""
        plan, name = self._plan, self._tile(self._plan.product.target.tile)
        left = f"{self.left}.index(slot).slice(w * {ROWS}, {ROWS})"
        if plan.turned:
            left = f"{self.left}.index(slot).slice(w * {ROWS}, {ROWS}, dim=1).permute((1, 0))"
        right = f"{self.right}.index(slot).reshape([{plan.deep}, {plan.width}])"
        self._say(depth, self.slot(turn))
        self._say(depth, "mbarrier.wait(full.index(slot), phase)")
        self._say(depth, f"{name} = warpgroup_mma({left}, {right}, {name}, is_async=True)")

    def _store(self, depth: int, node: ir.Write | ir.Init, at: ir.Range | None, value: str) -> None:
        """Hand the sums to the copy engine in a slot that all products are done with."""
        if node is not self._plan.result:
            super()._store(depth, node, at, value)
            return
        slots, tensor = self._plan.stages, node.tensor
        sent = f"{self.right}.index(w)"
        room = f"{sent}.reshape([{ROWS}, {self._plan.width}])"
        if several(self._setting, tensor) != several(self._setting, self._plan.matrix.tensor):
            sent += f".reshape([1, {sides(self._setting, tensor, ROWS, self._plan.width)}])"
        self._say(depth, f"filled = tl.maximum(end - first - w + {slots - 1}, 0) // {slots}  # times that slot w was")
        self._say(depth, "mbarrier.wait(free.index(w), (filled & 1) ^ 1)")
        self._say(depth, f"{room}.store({value}.to(tl.{self._setting.dtype}))")
        self._say(depth, "fence_async_shared()")
        corner_ = corner(self._setting, tensor, f"part * {ROWS}", f"{self.column} * {self._plan.width}")
        self._say(depth, f"tma.async_copy_shared_to_global({tensor.name}_tiles, {corner_}, {sent})")
        self._say(depth, "tma.store_wait(0)")


class ProductKernel(GluonWriter[ProductRows]):
    """Writes the kernel of a launch that multiplies a table."""

    _block: Product

    def __init__(self, setting: Setting, launch: Launch, name: str, plan: Product) -> None:
        loaded = (plan.table.tensor, plan.matrix.tensor)
        super().__init__(setting, launch, name, plan, ProductRows, loaded, (plan.result.tensor,))

    def call(self, options: str) -> list[str]:
        """The lines that launch it: tiles of columns are in the grid, too."""
        setting, plan = self._setting, self._block
        wide = -(-setting.sizes[plan.columns.dim] // plan.width)
        grid = f"triton.cdiv({setting.size(plan.own.dim)}, {ROWS * plan.warpgroups})" + f" * {wide}" * (wide > 1)
        return [*self._described(), self._launched(f"{grid}, heads")]

    @property
    def _box(self) -> str:
        """The sides of a part of the table."""
        plan = self._block
        return f"{plan.deep}, {plan.wide}" if plan.turned else f"{plan.tall}, {plan.deep}"

    def _described(self) -> list[str]:
        setting, plan, (table, matrix, result) = self._setting, self._block, self._tiles
        return [
            f"    {table} = pairs_of({setting.of[plan.table.tensor]}, {self._box})",
            f"    {matrix} = {described(setting, plan.matrix.tensor, plan.deep, plan.width)}",
            f"    {result} = {described(setting, plan.result.tensor, ROWS, plan.width)}",
        ]

    @property
    def _shared(self) -> list[str]:
        return [self._consumer.left, self._consumer.right, "full", "free"]

    def _loading(self) -> list[str]:
        rows, plan, copy = self._consumer, self._block, "tma.async_copy_global_to_shared"
        table, matrix, _ = self._tiles
        terms = corner(self._setting, plan.matrix.tensor, f"k * {plan.deep}", f"{rows.column} * {plan.width}")
        return [
            "for k in range(first, end):",
            f"    {rows.slot('k - first')}",
            "    mbarrier.wait(free.index(slot), phase ^ 1)",
            f"    mbarrier.expect(full.index(slot), {plan.slot_bytes})",
            f"    {copy}({table}, {rows.place('k')}, full.index(slot), {rows.left}.index(slot))",
            f"    {copy}({matrix}, {terms}, full.index(slot), {rows.right}.index(slot))",
        ]

    def _allocated(self) -> list[str]:
        rows, plan, word = self._consumer, self._block, f"gl.{self._setting.dtype}"
        table, matrix, _ = self._tiles
        slots = sides(self._setting, plan.matrix.tensor, plan.deep, plan.width)
        return [
            f"    {rows.left} = gl.allocate_shared_memory({word}, [{plan.stages}, {self._box}], {table}.layout)"
            f"  # line {plan.table.line}: a ring",
            f"    {rows.right} = gl.allocate_shared_memory({word}, [{plan.stages}, 1, {slots}], {matrix}.layout)"
            f"  # line {plan.matrix.line}: a ring",
            f"    full, free = barriers({plan.stages}, 1), barriers({plan.stages}, {plan.warpgroups})",
        ]
