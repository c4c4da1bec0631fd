"""`triton`: a program as Triton kernels on matrix units, for words of 16 bits or float32.

Each launch (see `launches`) is a kernel, each independent iteration a program of its grid. Tiles that are read lie in
the words of memory, sums and what is computed from them in float32: matrix products take the first and add to the
second. Vectors (one word for each row) are float32 in memory, too. A ragged edge is a predicate on a load or a store,
which then moves no word that the count does not have.

Sizes are constants of the text; a predicate is left out where a block divides its dimension.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pebblesim.errors import UnknownName, UsageError
from pebblesim.language import program as ir
from pebblesim.readings.kernels.launches import Launch, blocks, launches

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

_TAKEN = "and as assert break class def del elif else for from global head if import in is not or pass pid range return run tl torch triton while with group rank"


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


def triton(program: ir.Program, sizes: ir.Sizes, dtype: str = "bfloat16", warps: int = 8, stages: int = 3) -> Source:
    """The Triton source of a program for certain sizes.

    Args:
        program: a traced schedule.
        sizes: dimensions and blocks by name.
        dtype: type of a word of a matrix, "bfloat16", "float16" or "float32".
        warps, stages: of each launch.

    Raises:
        UsageError: the program does what a Triton kernel cannot: parts of a tile are used, a block is no power of two,
            a side of a product is shorter than matrix units take, or tiles are skipped under a mask.
        UnknownName: there is no such type.
    """
    if dtype not in WORDS:
        raise UnknownName("type of a word", dtype, WORDS)
    made = launches(program)
    names = _Names(program)
    kernels, texts, calls = [], [], []
    for launch in made:
        if launch.kind == "fill":
            (node,) = launch.body
            assert isinstance(node, ir.Init)
            calls.append(f"    {names.of(node.tensor)}.fill_({node.value!r})".replace("inf", 'float("inf")'))
            continue
        writer = _Writer(program, launch, sizes, names, dtype)
        texts.append(writer.text())
        kernel = writer.kernel
        kernels.append(kernel)
        arguments = ", ".join(names.of(program.tensors[name]) for name in kernel.tensors)
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
        f"def run({', '.join(names.of(program.tensors[name]) for name in given)}):",
        f'    """{", ".join(program.outputs)} from arrays of shape (heads, rows, columns), vectors (heads, rows) in float32."""',
        f"    heads = {names.of(program.tensors[given[0]])}.shape[0]",
        f"    device = {names.of(program.tensors[given[0]])}.device",
    ]
    for tensor in made_here:
        shape = ", ".join(str(sizes[dim]) for dim in tensor.shape)
        kind = "float32" if len(tensor.shape) == 1 else dtype
        lines.append(f"    {names.of(tensor)} = torch.empty((heads, {shape}), dtype=torch.{kind}, device=device)")
    lines += calls
    results = ", ".join(f'"{name}": {names.of(program.tensors[name])}' for name in program.outputs)
    lines += ["    return {" + results + "}", ""]
    return Source(tuple(kernels), "\n".join(lines))


class _Names:
    """Identifiers of Python, each given out once; tensors have theirs from the start."""

    def __init__(self, program: ir.Program) -> None:
        self._given = set(_TAKEN.split())
        self._tensors = {tensor: self.new(f"{tensor.name}_ptr") for tensor in program.tensors.values()}

    def of(self, tensor: ir.Tensor) -> str:
        return self._tensors[tensor]

    def new(self, wanted: str) -> str:
        plain = re.sub(r"\W+", "_", wanted, flags=re.ASCII).strip("_") or "x"
        plain = f"x{plain}" if plain[0].isdigit() else plain
        name, number = plain, 1
        while name in self._given:
            number += 1
            name = f"{plain}_{number}"
        self._given.add(name)
        return name


class _Writer:
    """Writes one kernel."""

    def __init__(self, program: ir.Program, launch: Launch, sizes: ir.Sizes, names: _Names, dtype: str) -> None:
        self._program, self._launch, self._sizes, self._dtype = program, launch, sizes, dtype
        self._outer, self._name = names, names.new(launch.name)
        self._given = set(_TAKEN.split()) | {names.of(tensor) for tensor in program.tensors.values()}
        self._tiles: dict[ir.Tile, str] = {}
        self._loaded: set[ir.Tile] = set()  # in the words of memory, not in float32
        self._indices: dict[ir.Range, str] = {}
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
        arguments = ", ".join(self._outer.of(tensor) for tensor in self._tensors.values())
        self._lines = ["@triton.jit", f"def {self._name}({arguments}):", "    head = tl.program_id(1).to(tl.int64)"]
        for tensor in self._tensors.values():
            words = 1
            for dim in tensor.shape:
                words *= self._sizes[dim]
            self._say(1, f"{self._outer.of(tensor)} += head * {words}")
        self._grid()
        self._body(self._launch.block, 1)
        return "\n".join(self._lines)

    def _say(self, depth: int, line: str) -> None:
        self._lines.append("    " * depth + line)

    def _new(self, wanted: str) -> str:
        plain = re.sub(r"\W+", "_", wanted.replace("'", "_part"), flags=re.ASCII).strip("_") or "x"
        plain = f"x{plain}" if plain[0].isdigit() else plain
        name, number = plain, 1
        while name in self._given:
            number += 1
            name = f"{plain}_{number}"
        self._given.add(name)
        return name

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
            self._indices[rng] = self._new(f"at_{rng.name}")
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
        self._indices[rng] = self._new(f"at_{rng.name}")
        self._say(depth, f"{self._indices[rng]} = {number} * {size} + tl.arange(0, {size})")

    def _count(self, rng: ir.Range) -> int:
        return -(-self._sizes[rng.dim] // self._length(rng))

    def _grid(self) -> None:
        loops = self._launch.grid
        if not loops:
            return
        numbers = [self._new(loop.range.name) for loop in loops]
        counts = [self._count(loop.range) for loop in loops]
        if len(loops) == 1:
            self._say(1, f"{numbers[0]} = tl.program_id(0)")
        elif len(loops) == 2:
            rows, columns = counts
            self._say(1, f"group, rank = tl.program_id(0) // {GROUP * columns}, tl.program_id(0) % {GROUP * columns}")
            height = str(GROUP) if rows % GROUP == 0 else f"min({rows} - group * {GROUP}, {GROUP})"
            self._say(1, f"{numbers[0]}, {numbers[1]} = group * {GROUP} + rank % {height}, rank // {height}")
        else:
            raise UsageError(f"{self._program.name}: more than two loops of independent tiles in one launch.")
        for loop, number in zip(loops, numbers, strict=True):
            self._enter(loop, 1, number)

    # Statements

    def _body(self, body: list[ir.Node], depth: int) -> None:
        for node in body:
            match node:
                case ir.Loop():
                    number = self._new(node.range.name)
                    self._say(depth, f"for {number} in range({self._count(node.range)}):")
                    self._enter(node, depth + 1, number)
                    self._body(node.body, depth + 1)
                case ir.Read():
                    name = self._tile(node.tile)
                    self._loaded.add(node.tile)
                    self._say(
                        depth,
                        f"{name} = tl.load({self._place(node.tensor, node.tile.ranges)}{self._edge(node.tile.ranges, '0.0')})",
                    )
                case ir.Write():
                    self._store(depth, node.tensor, node.tile.ranges, self._tiles[node.tile])
                case ir.Init():
                    shape = ", ".join(str(self._length(rng)) for rng in node.ranges)
                    value = repr(node.value).replace("inf", 'float("inf")')
                    self._store(depth, node.tensor, node.ranges, f"tl.full(({shape},), {value}, tl.float32)")
                case ir.Zeros():
                    self._fill(depth, node.tile, "0.0")
                case ir.Constant():
                    self._fill(depth, node.tile, repr(float(node.value)).replace("inf", 'float("inf")'))
                case ir.Move():
                    self._say(depth, f"{self._tile(node.tile)} = {self._tiles[node.source]}")
                    if node.source in self._loaded:
                        self._loaded.add(node.tile)
                case ir.Delete():
                    pass
                case ir.Compute():
                    self._compute(depth, node)

    def _tile(self, tile: ir.Tile) -> str:
        if tile not in self._tiles:
            self._tiles[tile] = self._new(tile.name)
        return self._tiles[tile]

    def _fill(self, depth: int, tile: ir.Tile, value: str) -> None:
        shape = ", ".join(str(self._length(rng)) for rng in tile.ranges)
        self._say(depth, f"{self._tile(tile)} = tl.full(({shape},), {value}, tl.float32)")

    def _place(self, tensor: ir.Tensor, ranges: ir.Ranges) -> str:
        if len(ranges) == 1:
            return f"{self._outer.of(tensor)} + {self._index(ranges[0])}"
        rows, columns = map(self._index, ranges)
        width = self._sizes[tensor.shape[1]]
        row = f"{rows}[:, None]"
        if self._sizes[tensor.shape[0]] * width >= 2**31:
            row = f"{row}.to(tl.int64)"
        return f"{self._outer.of(tensor)} + {row} * {width} + {columns}[None, :]"

    def _inside(self, ranges: ir.Ranges) -> str:
        """The predicate of the indices that exist; empty where all do."""
        parts = []
        for number, rng in enumerate(ranges):
            if self._ragged(rng):
                along = "" if len(ranges) == 1 else ("[:, None]", "[None, :]")[number]
                parts.append(f"({self._index(rng)}{along} < {self._sizes[rng.dim]})")
        return " & ".join(parts)

    def _edge(self, ranges: ir.Ranges, other: str) -> str:
        inside = self._inside(ranges)
        return f", mask={inside}, other={other}" if inside else ""

    def _store(self, depth: int, tensor: ir.Tensor, ranges: ir.Ranges, value: str) -> None:
        place, inside = self._place(tensor, ranges), self._inside(ranges)
        mask = f", mask={inside}" if inside else ""
        self._say(depth, f"tl.store({place}, {value}.to({self._outer.of(tensor)}.dtype.element_ty){mask})")

    def _compute(self, depth: int, node: ir.Compute) -> None:
        if node.mode != "new" and node.target.ranges != node.target.tile.ranges:
            raise self._parts(node.target.tile, node.line)
        name, expr = self._tile(node.target.tile), node.expr
        if node.mode == "add":
            match expr:
                case ir.MatMul():
                    self._say(depth, f"{name} = {self._dot(expr, node.line, name)}")
                case _:
                    self._say(depth, f"{name} += {self._expr(expr, node.line)}")
        else:
            self._say(depth, f"{name} = {self._expr(expr, node.line)}")
        self._loaded.discard(node.target.tile)

    # Expressions, in float32

    def _parts(self, tile: ir.Tile, line: int) -> UsageError:
        return UsageError(
            f"{self._program.name}: a part of tile {tile.name} is used in line {line}, which a Triton kernel cannot do; "
            "read a tile of that size in its place."
        )

    def _ref(self, ref: ir.Ref, line: int) -> str:
        if ref.ranges != ref.tile.ranges:
            raise self._parts(ref.tile, line)
        return self._tiles[ref.tile]

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
                return _OPERATIONS[expr.op].format(*operands)
            case ir.RowReduction():
                text, columns = self._expr(expr.operand, line), expr.operand.shape[-1]
                reduction, nothing = ("sum", "0.0") if expr.op == "rowsum" else ("max", 'float("-inf")')
                if self._ragged(columns):
                    text = f"tl.where({self._index(columns)}[None, :] < {self._sizes[columns.dim]}, {text}, {nothing})"
                return f"tl.{reduction}({text}, axis=1)"
            case ir.MatMul():
                return self._dot(expr, line, None)

    def _dot(self, expr: ir.MatMul, line: int, onto: str | None) -> str:
        terms = expr.left.shape[1]
        for rng in {*expr.left.shape, *expr.right.shape}:
            if self._length(rng) < LEAST_SIDE:
                raise UsageError(
                    f"{self._program.name}: matrix units multiply tiles with sides of {LEAST_SIDE} and more, and in line "
                    f"{line} one has {self._length(rng)} indices of {rng.dim}; take larger blocks."
                )
        left = self._operand(expr.left, line, terms, 1)
        right = self._operand(expr.right, line, terms, 0)
        precise = ', input_precision="ieee"' if self._dtype == "float32" else ""
        return f"tl.dot({left}, {right}{f', {onto}' if onto else ''}{precise})"

    def _operand(self, ref: ir.Ref, line: int, terms: ir.Range, axis: int) -> str:
        """An operand of a product, in the words of memory; what no index stands for adds nothing."""
        name = self._ref(ref, line)
        text = f"tl.trans({name})" if ref.transposed else name
        if ref.tile in self._loaded:
            return text
        if self._ragged(terms):
            along = "[None, :]" if axis else "[:, None]"
            text = f"tl.where({self._index(terms)}{along} < {self._sizes[terms.dim]}, {text}, 0.0)"
        return f"{text}.to(tl.{self._dtype})"
