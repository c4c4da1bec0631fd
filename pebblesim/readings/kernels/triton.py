"""`triton`: a program as Triton kernels on matrix units, for words of 16 bits or float32.

Each launch (see `launches`) is a kernel, each independent iteration a program of its grid. Tiles that are read lie in
the words of memory, sums and what is computed from them in float32: matrix products take the first and add to the
second. Vectors (one word for each row) are float32 in memory, too. A ragged edge is a predicate on a load or a store,
which then moves no word that the count does not have.

Sizes are constants of the text; a predicate is left out where a block divides its dimension. Under a band mask, such
as causal, tiles without an allowed pair are left out, and of the others the pairs that are not allowed are 0 wherever
they would count: in sums over a row, in products, and in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pebblesim.errors import UnknownName, UsageError
from pebblesim.language import program as ir
from pebblesim.language.masks import Band, Mask
from pebblesim.readings.kernels.identifiers import Identifiers
from pebblesim.readings.kernels.launches import Launch, blocks, check_alike, launches
from pebblesim.units import Bytes

WORDS = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of the types that a word of a matrix may have."""

VECTOR_BYTES = 4
"""Bytes of a word of a vector: float32."""

LEAST_SIDE = 16
"""Shortest side of a tile that matrix units take."""

GROUP = 8
"""Rows of tiles that are launched together, column by column, so that what they share is still in L2."""

_OPERATIONS = {
    "exp": "tl.exp({})",
    "log": "tl.log({})",
    "add": "({} + {})",
    "sub": "({} - {})",
    "mul": "({} * {})",
    "div": "({} / {})",
    "max": "tl.maximum({}, {})",
    "relu": "tl.maximum({}, 0.0)",
    "step": "tl.where({} > 0, 1.0, 0.0)",
    "sigmoid": "tl.sigmoid({})",
}

_TAKEN = """
and as assert break class continue def del elif else except False finally for from global head heads if import in is
lambda None nonlocal not or pass raise range return run tl torch triton True try while with yield group rank device
"""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel of the text.

    Attributes:
        name: its function's.
        launch: what it does.
        tensors: names of the tensors it takes the addresses of, in order.
        programs: how many programs it is launched with, for each head.
    """

    name: str
    launch: Launch
    tensors: tuple[str, ...]
    programs: int


@dataclass(frozen=True, eq=False)
class Source:
    """Kernels, in the order they are launched, and the text of a module whose `run` launches them."""

    kernels: tuple[Kernel, ...]
    text: str


def word_bytes(tensor: ir.Tensor, dtype: str) -> int:
    """Bytes of a word of a tensor in memory: vectors are float32 whatever the type of the matrices."""
    return VECTOR_BYTES if len(tensor.shape) == 1 else WORDS[dtype]


def moved_bytes(program: ir.Program, by_tensor: Mapping[str, tuple[int, int]], dtype: str) -> Bytes:
    """What the kernels of a program move in bytes, from the words read and written of each tensor."""
    moved = Bytes()
    for tensor, (reads, writes) in by_tensor.items():
        width = word_bytes(program.tensors[tensor], dtype)
        moved += Bytes(width * reads, width * writes)
    return moved


def triton(
    program: ir.Program,
    sizes: ir.Sizes,
    dtype: str = "bfloat16",
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    warps: int = 8,
    stages: int = 3,
) -> Source:
    """The Triton source of a program for certain sizes.

    Args:
        program: a traced schedule.
        sizes: dimensions and blocks by name.
        dtype: type of a word of a matrix, "bfloat16", "float16" or "float32".
        mask: which pairs are allowed, of a program under a mask.
        scale: what scores are multiplied by, where the schedules leave that out: each product with Q or K is.
        warps, stages: of each launch.

    Raises:
        UsageError: the program does what a Triton kernel cannot: parts of a tile are used, a block is no power of two,
            a side of a product is shorter than matrix units take, or the mask is no band.
        UnknownName: there is no such type.
    """
    if dtype not in WORDS:
        raise UnknownName("type of a word", dtype, WORDS)
    if mask is not None and (not isinstance(mask, Band) or mask.rows > 1):
        raise UsageError(f"Triton kernels know causal, window:W and band:W, and not mask {mask}.")
    if mask is not None:
        grid = program.grid(sizes)
        if any(mask.empty(grid, 1, axis).any() for axis in (0, 1)):
            raise UsageError(
                f"Triton kernels need a key for each query, and a query for each key; mask {mask} leaves some of "
                f"{grid[0]:,} queries and {grid[1]:,} keys without."
            )
        mask = mask.placed(grid)
    if apart := [tensor.name for tensor in program.tensors.values() if tensor.apart]:
        raise UsageError(
            f"{program.name} keeps {', '.join(apart)} apart for each tile of a dimension, which Triton kernels do not "
            "know; take --target cuda."
        )
    check_alike(program)
    made = launches(program, masked=True)
    names = Identifiers(_TAKEN.split())
    of = {tensor: names.new(f"{tensor.name}_ptr") for tensor in program.tensors.values()}
    kernels, texts, calls = [], [], []
    for launch in made:
        if launch.kind == "fill":
            (node,) = launch.body
            assert isinstance(node, ir.Init)
            calls.append(f"    {of[node.tensor]}.fill_({_constant(node.value)})")
            continue
        writer = _Writer(program, launch, sizes, names.new(launch.name), of, dtype, mask, scale)
        texts.append(writer.text())
        kernel = writer.kernel
        kernels.append(kernel)
        arguments = ", ".join(of[program.tensors[name]] for name in kernel.tensors)
        calls.append(
            f"    {kernel.name}[({kernel.programs}, heads)]({arguments}, num_warps={warps}, num_stages={stages})"
        )
    given = [name for name in program.tensors if name in program.inputs]
    made_here = [tensor for name, tensor in program.tensors.items() if name not in program.inputs]
    listed = ", ".join(f"{name} = {sizes[name]}" for name in (*program.dims, *program.blocks))
    lines = [
        f'"""{program.name}: {listed}, {dtype} words; written by pebblesim."""',
        "",
        "import torch",
        "import triton",
        "import triton.language as tl",
        "",
        "\n\n".join(["", *texts]).strip("\n"),
        "",
        "",
        f"def run({', '.join(of[program.tensors[name]] for name in given)}):",
        f'    """{", ".join(program.outputs)} of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""',
        f"    heads = {of[program.tensors[given[0]]]}.shape[0]",
        f"    device = {of[program.tensors[given[0]]]}.device",
    ]
    for tensor in made_here:
        shape = ", ".join(str(sizes[dim]) for dim in tensor.shape)
        kind = "float32" if len(tensor.shape) == 1 else dtype
        lines.append(f"    {of[tensor]} = torch.empty((heads, {shape}), dtype=torch.{kind}, device=device)")
    lines += calls
    results = ", ".join(f'"{name}": {of[program.tensors[name]]}' for name in program.outputs)
    lines += ["    return {" + results + "}", ""]
    return Source(tuple(kernels), "\n".join(lines))


class _Writer:
    """Writes one kernel."""

    def __init__(
        self,
        program: ir.Program,
        launch: Launch,
        sizes: ir.Sizes,
        name: str,
        of: Mapping[ir.Tensor, str],
        dtype: str,
        mask: Band | None,
        scale: float | None,
    ) -> None:
        self._scale = None if scale is None else repr(float(scale))
        self._unscaled: set[ir.Tile] = set()  # what is still to be multiplied by the scale
        self._empty: set[ir.Tile] = set()  # sums without a term yet
        self._of_scores: set[ir.Tile] = set()  # tiles of Q and K
        self._program, self._launch, self._sizes, self._dtype, self._mask = program, launch, sizes, dtype, mask
        self._name, self._of, self._names = name, of, Identifiers({*_TAKEN.split(), *of.values()})
        self._tiles: dict[ir.Tile, str] = {}
        self._loaded: set[ir.Tile] = set()  # in the words of memory, not in float32
        self._indices: dict[ir.Range, str] = {}
        self._numbers: dict[ir.Range, str] = {}
        self._tensors: dict[str, ir.Tensor] = {}
        self._lines: list[str] = []
        for node in ir.walk([*launch.grid, *launch.block] if launch.grid else launch.block):
            if isinstance(node, ir.Read | ir.Write | ir.Init):
                self._tensors.setdefault(node.tensor.name, node.tensor)
        self._programs = blocks(launch, sizes, 1)

    @property
    def kernel(self) -> Kernel:
        return Kernel(self._name, self._launch, tuple(self._tensors), self._programs)

    def text(self) -> str:
        arguments = ", ".join(self._of[tensor] for tensor in self._tensors.values())
        self._lines = ["@triton.jit", f"def {self._name}({arguments}):", "    head = tl.program_id(1).to(tl.int64)"]
        for tensor in self._tensors.values():
            words = 1
            for dim in tensor.shape:
                words *= self._sizes[dim]
            self._say(1, f"{self._of[tensor]} += head * {words}")
        self._grid()
        self._body(self._launch.block, 1)
        return "\n".join(self._lines)

    def _say(self, depth: int, line: str) -> None:
        self._lines.append("    " * depth + line)

    # Ranges

    def _length(self, rng: ir.Range) -> int:
        """Indices of a tile: the block, or for a whole dimension the next power of two."""
        if rng.parent is None:
            return 1 << (self._sizes[rng.name] - 1).bit_length()
        size = ir.length(rng.block, self._sizes)
        if size & (size - 1):
            raise UsageError(
                f"{self._program.name}: a tile of a Triton kernel has a power of two of indices, and block "
                f"{rng.block} is {size}; take {1 << (size.bit_length() - 1)} or {1 << size.bit_length()}."
            )
        return size

    def _ragged(self, rng: ir.Range) -> bool:
        """Whether some tile of the range has indices that the dimension does not."""
        return self._sizes[rng.dim] % self._length(rng) != 0

    def _index(self, rng: ir.Range) -> str:
        """The name of the indices of a tile; those of a whole dimension are made when they are first asked for."""
        if rng not in self._indices:
            assert rng.parent is None
            self._indices[rng] = self._names.new(f"at_{rng.name}")
            at = next(i for i, line in enumerate(self._lines) if line.startswith("    head"))
            self._lines.insert(at + 1, f"    {self._indices[rng]} = tl.arange(0, {self._length(rng)})")
        return self._indices[rng]

    def _enter(self, loop: ir.Loop, depth: int, number: str) -> None:
        rng = loop.range
        assert rng.parent is not None
        if rng.parent.parent is not None:
            raise UsageError(
                f"{self._program.name}: tiles of a tile (line {loop.line}) cannot be in a Triton kernel; "
                "read tiles of that size in its place."
            )
        size = self._length(rng)
        self._indices[rng] = self._names.new(f"at_{rng.name}")
        self._say(depth, f"{self._indices[rng]} = {number} * {size} + tl.arange(0, {size})")

    def _count(self, rng: ir.Range) -> int:
        return -(-self._sizes[rng.dim] // self._length(rng))

    def _grid(self) -> None:
        loops = self._launch.grid
        if not loops:
            return
        numbers = [self._names.new(loop.range.name) for loop in loops]
        counts = [self._count(loop.range) for loop in loops]
        if len(loops) == 1:
            self._say(1, f"{numbers[0]} = tl.program_id(0)")
        elif len(loops) == 2:
            rows, columns = counts
            self._say(1, f"group, rank = tl.program_id(0) // {GROUP * columns}, tl.program_id(0) % {GROUP * columns}")
            height = str(GROUP) if rows % GROUP == 0 else f"tl.minimum({rows} - group * {GROUP}, {GROUP})"
            self._say(1, f"{numbers[0]}, {numbers[1]} = group * {GROUP} + rank % {height}, rank // {height}")
        else:
            raise UsageError(f"{self._program.name}: more than two loops of independent tiles in one launch.")
        for loop, number in zip(loops, numbers, strict=True):
            self._enter(loop, 1, number)
            self._numbers[loop.range] = number
        for loop in loops:
            if loop.when is not None and self._mask is not None:
                self._guard(loop.when, self._mask)

    def _guard(self, when: ir.MaskCondition, mask: Band) -> None:
        """Leave where the mask says so: where a tile has no allowed pair, or, if `when.none`, where it has one."""
        (top, bottom), (left, right) = self._ends(when.rows), self._ends(when.columns)
        out = []
        if mask.after is not None:
            out.append(f"({left} - {bottom} > {mask.after - 1})")
        if mask.before is not None:
            out.append(f"({top} - {right} > {mask.before - 1})")
        if out:
            self._say(1, f"if {'not ' if when.none else ''}({' | '.join(out)}):")
            self._say(2, "return")
        elif when.none:
            self._say(1, "return")

    def _ends(self, rng: ir.Range) -> tuple[str, str]:
        """The first index of a tile, and the one after its last, as text."""
        size = self._sizes[rng.dim]
        if rng.parent is None:
            return "0", str(size)
        number, block = self._numbers[rng], self._length(rng)
        last = f"({number} + 1) * {block}"
        return f"{number} * {block}", f"tl.minimum({last}, {size})" if self._ragged(rng) else last

    def _fused(self, outer: ir.Loop, inner: ir.Loop, depth: int) -> None:
        """Tiles of a tile, with nothing between the loops, as one loop over the smaller tiles."""
        large, small = self._length(outer.range), self._length(inner.range)
        if small > large:
            raise UsageError(
                f"{self._program.name}: block {inner.range.block} = {small} cuts tiles of {outer.range.block} = "
                f"{large} in line {inner.line}; take no more than {large}."
            )
        parts, last = large // small, -(-self._sizes[inner.range.dim] // small)
        low, high = self._bounds(outer)
        start = "" if low == "0" else f"({low}) * {parts}, "
        ends = start + (str(last) if high.isdecimal() else f"tl.minimum(({high}) * {parts}, {last})")
        number = self._names.new(inner.range.name)
        self._say(depth, f"for {number} in range({ends}):")
        self._indices[inner.range] = self._names.new(f"at_{inner.range.name}")
        self._say(depth + 1, f"{self._indices[inner.range]} = {number} * {small} + tl.arange(0, {small})")
        self._body(inner.body, depth + 1)

    def _bounds(self, loop: ir.Loop) -> tuple[str, str]:
        """The number of the first tile that a loop runs over, and the one after that of the last."""
        count, block = self._count(loop.range), self._length(loop.range)
        if loop.when is None or self._mask is None:
            return "0", str(count)
        if loop.when.none:
            raise UsageError(
                f"{self._program.name}: what line {loop.line} does with no allowed pair is no Triton kernel."
            )
        of_columns = loop.when.columns is loop.range
        start, stop = self._ends(loop.when.rows if of_columns else loop.when.columns)
        before, after = self._mask.before, self._mask.after
        back, forth = (before, after) if of_columns else (after, before)
        low = "0" if back is None else f"tl.maximum({start} - {back}, 0) // {block}"
        if forth is None:
            return low, str(count)
        return low, f"tl.minimum(({stop} + {forth + block - 1}) // {block}, {count})"

    def _pairs(self, ranges: ir.Ranges) -> str:
        """The predicate of the allowed pairs of a tile of pairs; empty for others, and where all are."""
        if self._mask is None or not ir.over_pairs(ranges):
            return ""
        rows, columns = map(self._index, ranges)
        distance = f"({columns}[None, :] - {rows}[:, None]"
        parts = [] if self._mask.after is None else [f"{distance} <= {self._mask.after})"]
        parts += [] if self._mask.before is None else [f"{distance} >= {-self._mask.before})"]
        return " & ".join(parts)

    # Statements

    def _body(self, body: list[ir.Node], depth: int) -> None:
        for node in body:
            match node:
                case ir.Loop(body=[ir.Loop(range=ir.Range(parent=outer)) as inner]) if outer is node.range:
                    self._fused(node, inner, depth)
                case ir.Loop():
                    number = self._names.new(node.range.name)
                    self._numbers[node.range] = number
                    self._say(depth, f"for {number} in range({', '.join(self._bounds(node)).removeprefix('0, ')}):")
                    self._enter(node, depth + 1, number)
                    self._body(node.body, depth + 1)
                case ir.Read():
                    self._check_written(node)
                    name = self._tile(node.tile)
                    self._loaded.add(node.tile)
                    if node.tensor.name in ("Q", "K"):
                        self._of_scores.add(node.tile)
                    self._say(
                        depth,
                        f"{name} = tl.load({self._place(node.tensor, node.tile.ranges)}{self._edge(node.tile.ranges)})",
                    )
                case ir.Write():
                    value = self._only(self._scaled(node.tile), self._pairs(node.tile.ranges), "0.0")
                    self._store(depth, node.tensor, node.tile.ranges, value)
                case ir.Init():
                    shape = ", ".join(str(self._length(rng)) for rng in node.ranges)
                    value = f"tl.full(({shape},), {_constant(node.value)}, tl.float32)"
                    self._store(depth, node.tensor, node.ranges, value)
                case ir.Zeros():
                    self._fill(depth, node.tile, "0.0")
                    self._empty.add(node.tile)
                case ir.Constant():
                    self._fill(depth, node.tile, _constant(node.value))
                case ir.Move():
                    self._say(depth, f"{self._tile(node.tile)} = {self._tiles[node.source]}")
                    for kind in (self._loaded, self._unscaled):
                        (kind.add if node.source in kind else kind.discard)(node.tile)
                case ir.Delete():
                    pass
                case ir.Compute():
                    self._compute(depth, node)

    def _check_written(self, node: ir.Read) -> None:
        """Under a mask, a tile that is read must lie in one that was written: others may never have been."""
        if not self._pairs(node.tile.ranges) or node.tensor.name in self._program.inputs:
            return
        for phase in self._program.phases:
            for other in ir.walk(phase.body):
                if isinstance(other, ir.Write) and other.tensor is node.tensor:
                    read, written = (tuple(map(self._length, each.tile.ranges)) for each in (node, other))
                    if read[0] > written[0] or read[1] > written[1]:
                        raise UsageError(
                            f"{self._program.name}: under a mask, {node.tensor.name} is written in tiles of "
                            f"{written[0]} x {written[1]} and cannot be read in tiles of {read[0]} x {read[1]}; take "
                            "smaller blocks there."
                        )

    def _only(self, value: str, where: str, otherwise: str) -> str:
        return f"tl.where({where}, {value}, {otherwise})" if where else value

    def _tile(self, tile: ir.Tile) -> str:
        if tile not in self._tiles:
            self._tiles[tile] = self._names.new(tile.name)
        return self._tiles[tile]

    def _fill(self, depth: int, tile: ir.Tile, value: str) -> None:
        shape = ", ".join(str(self._length(rng)) for rng in tile.ranges)
        self._say(depth, f"{self._tile(tile)} = tl.full(({shape},), {value}, tl.float32)")

    def _place(self, tensor: ir.Tensor, ranges: ir.Ranges) -> str:
        if len(ranges) == 1:
            return f"{self._of[tensor]} + {self._index(ranges[0])}"
        rows, columns = map(self._index, ranges)
        width = self._sizes[tensor.shape[1]]
        row = f"{rows}[:, None]"
        if self._sizes[tensor.shape[0]] * width >= 2**31:
            row = f"{row}.to(tl.int64)"
        return f"{self._of[tensor]} + {row} * {width} + {columns}[None, :]"

    def _inside(self, ranges: ir.Ranges) -> str:
        """The predicate of the indices that exist; empty where all do."""
        parts = []
        for number, rng in enumerate(ranges):
            if self._ragged(rng):
                along = "" if len(ranges) == 1 else ("[:, None]", "[None, :]")[number]
                parts.append(f"({self._index(rng)}{along} < {self._sizes[rng.dim]})")
        return " & ".join(parts)

    def _edge(self, ranges: ir.Ranges) -> str:
        inside = self._inside(ranges)
        return f", mask={inside}, other=0.0" if inside else ""

    def _store(self, depth: int, tensor: ir.Tensor, ranges: ir.Ranges, value: str) -> None:
        place, inside = self._place(tensor, ranges), self._inside(ranges)
        mask = f", mask={inside}" if inside else ""
        self._say(depth, f"tl.store({place}, {value}.to({self._of[tensor]}.dtype.element_ty){mask})")

    def _compute(self, depth: int, node: ir.Compute) -> None:
        if node.mode != "new" and node.target.ranges != node.target.tile.ranges:
            raise self._parts(node.target.tile, node.line)
        tile, expr = node.target.tile, node.expr
        name = self._tile(tile)
        scaled = isinstance(expr, ir.MatMul) and self._scale is not None and self._makes_scores(expr)
        waiting = tile in self._unscaled or (scaled and tile in self._empty)
        if node.mode == "add" and isinstance(expr, ir.MatMul) and scaled == waiting:
            onto = f"{name}.to(tl.float32)" if tile in self._loaded else name
            self._say(depth, f"{name} = {self._dot(expr, node.line, onto)}")
        elif node.mode == "add":
            made = self._expr(expr, node.line)
            made = f"{made} * {self._scale}" if scaled else made
            self._say(depth, f"{name} = {self._scaled(tile)} + {made}" if waiting else f"{name} += {made}")
            scaled = False
        else:
            self._say(depth, f"{name} = {self._expr(expr, node.line)}")
        (self._unscaled.add if scaled else self._unscaled.discard)(tile)
        self._empty.discard(tile)
        self._loaded.discard(tile)

    def _makes_scores(self, product: ir.MatMul) -> bool:
        """Whether a product is one of scores or of what they are a gradient of: Q or K takes part."""
        return any(ref.tile in self._of_scores for ref in ir.refs(product))

    def _scaled(self, tile: ir.Tile) -> str:
        """The value of a tile, multiplied by the scale if that is still to be done."""
        name = self._tiles[tile]
        return f"({name} * {self._scale})" if tile in self._unscaled else name

    # Expressions, in float32

    def _parts(self, tile: ir.Tile, line: int) -> UsageError:
        return UsageError(
            f"{self._program.name}: a part of tile {tile.name} is used in line {line}, which no Triton kernel can; "
            "read a tile of that size in its place."
        )

    def _ref(self, ref: ir.Ref, line: int) -> str:
        if ref.ranges != ref.tile.ranges:
            raise self._parts(ref.tile, line)
        return self._scaled(ref.tile)

    def _expr(self, expr: ir.Expr, line: int) -> str:
        match expr:
            case ir.Ref():
                name = self._ref(expr, line)
                name = f"{name}.to(tl.float32)" if expr.tile in self._loaded else name
                return f"tl.trans({name})" if expr.transposed else name
            case ir.Elementwise():
                operands = []
                for operand in expr.operands:
                    text = self._expr(operand, line)
                    operands.append(f"{text}[:, None]" if len(operand.shape) < len(expr.shape) else text)
                made = _OPERATIONS[expr.op].format(*operands)
                if self._mask is not None and expr.op == "div":  # a row without an allowed pair has 0/0 = 0
                    return f"tl.where({operands[1]} == 0.0, 0.0, {made})"
                if self._mask is not None and expr.op == "sub" and len(expr.shape) == 1:  # and (-inf) - (-inf) = 0
                    return f"tl.where({operands[0]} == {operands[1]}, 0.0, {made})"
                return made
            case ir.RowReduction():
                text, shape = self._expr(expr.operand, line), expr.operand.shape
                reduction, nothing = ("sum", "0.0") if expr.op == "rowsum" else ("max", 'float("-inf")')
                exist = (
                    f"({self._index(shape[1])}[None, :] < {self._sizes[shape[1].dim]})"
                    if self._ragged(shape[1])
                    else ""
                )
                text = self._only(text, " & ".join(filter(None, (exist, self._pairs(shape)))), nothing)
                return f"tl.{reduction}({text}, axis=1)"
            case ir.MatMul():
                return self._dot(expr, line, None)

    def _dot(self, expr: ir.MatMul, line: int, onto: str | None) -> str:
        terms = expr.left.shape[1]
        for rng in (*expr.left.shape, *expr.right.shape):
            if self._length(rng) < LEAST_SIDE:
                raise UsageError(
                    f"{self._program.name}: matrix units take tiles with sides of {LEAST_SIDE} and more, and one in "
                    f"line {line} has {self._length(rng)} indices of {rng.dim}; take larger blocks."
                )
        left = self._operand(expr.left, line, terms, 1)
        right = self._operand(expr.right, line, terms, 0)
        precise = ', input_precision="ieee"' if self._dtype == "float32" else ""
        return f"tl.dot({left}, {right}{f', {onto}' if onto else ''}{precise})"

    def _operand(self, ref: ir.Ref, line: int, terms: ir.Range, axis: int) -> str:
        """An operand of a product, in the words of memory; what no index stands for adds nothing."""
        text, loaded = self._ref(ref, line), ref.tile in self._loaded
        if not loaded:
            text = self._only(text, self._pairs(ref.ranges), "0.0")
        text = f"tl.trans({text})" if ref.transposed else text
        if loaded:
            return text
        if self._ragged(terms):
            along = "[None, :]" if axis else "[:, None]"
            text = self._only(text, f"{self._index(terms)}{along} < {self._sizes[terms.dim]}", "0.0")
        return f"{text}.to(tl.{self._dtype})"


def _constant(value: float) -> str:
    """A number as Python text, an infinite one too."""
    return repr(float(value)).replace("inf", 'float("inf")')
