"""`cuda`: write a program as CUDA kernels that move exactly its tiles.

Each launch (see `launches`) is a kernel. Each independent iteration is a thread block, with its tiles in shared memory;
words are float32. The threads of a block share the work of each primitive. A barrier separates statements where one
thread needs the result of another. The same source compiles with nvcc, with NVRTC, and with a C++ compiler for a
simulated GPU that counts. Sizes are parameters of the kernels, so that one build serves all sizes, or compile-time
constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from pebblesim.gpu.emit.identifiers import Identifiers
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch, blocks, check_alike, launches, layout, lifetimes_of, shares
from pebblesim.launches.sectors import pitch

WORKERS = "workers"
"""Name of the size that holds the number of workers."""

_OPERATIONS = {
    "exp": "expf({})",
    "log": "logf({})",
    "add": "({} + {})",
    "sub": "({} - {})",
    "mul": "({} * {})",
    "div": "({} / {})",
    "max": "fmaxf({}, {})",
    "relu": "fmaxf({}, 0.f)",
    "step": "({} > 0.f ? 1.f : 0.f)",
    "sigmoid": "(1.f / (1.f + expf(-{})))",
}

_TAKEN = """
alignas alignof and asm auto bool break case catch char class compl const constexpr continue decltype default
delete do double else enum explicit export extern false float for friend goto if inline int long mutable
namespace new not nullptr operator or private protected public register return short signed sizeof static
struct switch template this throw true try typedef typeid typename union unsigned using virtual void volatile
while xor block blocks cache compare fill gpu item load multiply note padded part poison r c k share smaller
start store threads tid tiles_of total turn words_ workers y0 y1 yn j0 j1 jn gamma
"""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel and its launch.

    Attributes:
        name: its name in the source.
        launch: what it does.
        tensors: names of the tensors whose addresses are parameters, in order; "copies of T" are the workers' copies of
            T.
        integers: names of the sizes that are parameters after those, and the tiles whose positions are parameters.
    """

    name: str
    launch: Launch
    tensors: tuple[str, ...]
    integers: tuple[str | ir.Tile, ...]

    def values(self, sizes: ir.Sizes) -> list[int]:
        """Return the integer parameters for these sizes, which include `workers`."""
        at = layout(self.launch, sizes).offsets
        return [sizes[each] if isinstance(each, str) else at[each] for each in self.integers]

    def blocks(self, sizes: ir.Sizes) -> int | None:
        """Number of thread blocks of the launch; None if any number works."""
        return blocks(self.launch, sizes, sizes[WORKERS]) if self.launch.kind == "tiles" else None

    def shared_words(self, sizes: ir.Sizes) -> int:
        """Words of shared memory that a block uses."""
        return layout(self.launch, sizes).words


@dataclass(frozen=True, eq=False)
class Source:
    """Kernels in launch order, and their source text."""

    kernels: tuple[Kernel, ...]
    text: str


def prelude() -> str:
    """Return the text that precedes the kernels."""
    return Path(__file__).with_name("tiles.cuh").read_text(encoding="utf-8")


def cuda(program: ir.Program, workers: int = 1, sizes: ir.Sizes | None = None, prefix: str = "") -> Source:
    """Write the kernels of a program, without the prelude.

    Args:
        program: a traced schedule.
        workers: if more than 1, loops that carry sums are split among workers; their number is the size `workers`.
        sizes: if given (including `workers`), these sizes and the positions of all tiles are constants in the source.
        prefix: prefix of the kernels' names.
    """
    kernels, texts = [], []
    names = Identifiers(_TAKEN.split())
    check_alike(program)
    for launch in launches(program, workers):
        writer = _Writer(program, launch, sizes, names.new(prefix + launch.name))
        texts.append(writer.text())
        kernels.append(writer.kernel)
    return Source(tuple(kernels), "\n".join(texts))


def memory(kernels: Iterable[Kernel], program: ir.Program, sizes: ir.Sizes) -> dict[str, int]:
    """Return the words of each array in memory, including row padding and the workers' copies."""
    room = {}
    for name, tensor in program.tensors.items():
        room[name] = prod(tensor.sides(sizes)[:-1]) * pitch(tensor, sizes)
    copies = {
        f"copies of {tensor.name}": room[tensor.name] * shares(kernel.launch, sizes, sizes[WORKERS])
        for kernel in kernels
        for tensor in kernel.launch.copies
    }
    return room | copies


@dataclass
class _Statement:
    """Work of all threads without a barrier.

    Attributes:
        reads, writes: tiles, and tensors in memory.
        entries: if each thread works on its own entries of a shape, this shape; `own` are then the tiles in which it
            touches only these entries.
    """

    text: list[str]
    reads: set[object]
    writes: set[object]
    entries: ir.Ranges | None = None
    own: frozenset[object] = frozenset()


class _Writer:
    """Write one kernel."""

    def __init__(self, program: ir.Program, launch: Launch, sizes: ir.Sizes | None, name: str) -> None:
        self.program, self.launch, self.sizes = program, launch, sizes
        self.names = Identifiers(_TAKEN.split())
        self.lines: list[str] = []
        self.indent = 1
        self.lifetimes = lifetimes_of(launch.block)
        self.section: list[_Statement] = []
        used: list[ir.Node] = [*launch.grid, *ir.walk(launch.block), *([launch.split] if launch.split else [])]
        tensors = {n.tensor: None for n in used if isinstance(n, ir.Read | ir.Write | ir.Init)}
        tensors |= dict.fromkeys(launch.copies)
        self.of: dict[ir.Tensor | ir.Tile, str] = {tensor: self.names.new(tensor.name) for tensor in tensors}
        self.copies = {tensor: self.names.new(f"{tensor.name}_copies") for tensor in launch.copies}
        ranges = list(dict.fromkeys(node.range for node in used if isinstance(node, ir.Loop)))
        needed = {dim for tensor in tensors for dim in tensor.shape} | {rng.dim for rng in ranges}
        needed |= {rng.dim for tile in self.lifetimes for rng in tile.ranges}
        needed |= {rng.block for rng in ranges if isinstance(rng.block, str)}
        of_sizes = [size for size in (*program.dims, *program.blocks) if size in needed]
        self.size = {size: self.names.new(size) for size in of_sizes} | {WORKERS: WORKERS}
        if launch.split:
            of_sizes.append(WORKERS)
        self.range = {rng: self.names.new(rng.name) for rng in ranges}
        self.length = {rng: self.names.new(f"{self.range[rng]}_length") for rng in ranges}
        self.of |= {tile: self.names.new(tile.name) for tile in self.lifetimes}
        touched = [tensor for tensor in tensors if launch.kind == "sum" or tensor not in launch.copies]
        self.pointers = [*(self.of[tensor] for tensor in touched), *self.copies.values()]
        self.of_sizes = of_sizes
        integers: tuple[str | ir.Tile, ...] = () if sizes else (*of_sizes, *self.lifetimes)
        arrays = (*(tensor.name for tensor in touched), *(f"copies of {tensor.name}" for tensor in launch.copies))
        self.kernel = Kernel(name, launch, arrays, integers)

    # -- text ------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def text(self) -> str:
        places = {tile: f"{self.of[tile]}_at" for tile in self.lifetimes}
        integers = [self.size[each] if isinstance(each, str) else places[each] for each in self.kernel.integers]
        parameters = [f"float* const {name}" for name in self.pointers] + [f"const int {name}" for name in integers]
        self.line("START")
        if self.sizes:
            at = layout(self.launch, self.sizes).offsets
            for size in self.of_sizes:
                self.line(f"constexpr int {self.size[size]} = {self.sizes[size]};")
            for tile, place in places.items():
                self.line(f"constexpr int {place} = {at[tile]};")
        for tensor in (t for t in self.of if isinstance(t, ir.Tensor)):
            name = self.of[tensor]
            self.line(f"const int {name}_pitch = padded({self.size[tensor.shape[-1]]}); (void){name}_pitch;")
        getattr(self, f"_{self.launch.kind}")()
        head = f"// {self.launch.name}\nKERNEL({self.kernel.name})({', '.join(parameters)}) {{"
        return "\n".join([head, *self.lines, "}", ""])

    def _fill(self) -> None:
        """Write the constant with all threads of all blocks."""
        (node,) = self.launch.body
        assert isinstance(node, ir.Init)
        self.line("SECTION {")
        self.indent += 1
        if self.launch.copies:
            self._share()
            (tensor,), value = self.launch.copies, _constant(node.value)
            self.line(
                f"for (int copy = 0; copy < total; ++copy) fill({self.copies[tensor]} + copy * {self._room(tensor)}, "
                f"{self._part(node.tensor, node.ranges)}, {value}, block * threads + tid, blocks * threads);"
            )
        else:
            self.line(
                f"fill({self.of[node.tensor]}, {self._part(node.tensor, node.ranges)}, {_constant(node.value)}, "
                "block * threads + tid, blocks * threads);"
            )
        self.indent -= 1
        self.line("} BARRIER")

    def _sum(self) -> None:
        """Add up the copies with all threads of all blocks."""
        (tensor,) = self.launch.copies
        ranges = tuple(ir.Range(dim) for dim in tensor.shape)
        self._share()
        self.line(
            f"SECTION {{ add_copies({self.of[tensor]}, {self._part(tensor, ranges)}, {self.copies[tensor]}, "
            f"{self._room(tensor)}, total, block * threads + tid, blocks * threads); }} BARRIER"
        )

    def _tiles(self) -> None:
        for rng, name in self.range.items():  # its largest possible value
            assert rng.parent is not None
            self.line(f"const int {name}_most = smaller({self._most(rng.parent)}, {self._size(rng.block)});")
        for tile in self.lifetimes:
            name = self.of[tile]
            words = " * ".join(self._most(rng) for rng in tile.ranges)
            self.line(f"TILE({name}, {name}_at, {words})")
        if self.launch.grid:
            self.line("int number = block;")
            for loop in reversed(self.launch.grid):
                dim, block, name = self.size[loop.range.dim], self._size(loop.range.block), self.range[loop.range]
                first = loop is self.launch.grid[0]
                which = "number" if first else f"number % tiles_of({dim}, {block})"
                self.line(f"const int {name} = {which} * {block};")
                self.line(f"const int {self.length[loop.range]} = smaller({block}, {dim} - {name});")
                if not first:
                    self.line(f"number /= tiles_of({dim}, {block});")
        if self.launch.split:
            self._share()
            for tensor, name in self.copies.items():
                self.line(f"float* const {self.of[tensor]} = {name} + block * {self._room(tensor)};")
        self._body(self.launch.block)

    def _share(self) -> None:
        """Write the number of iterations of each worker, and the number of workers with iterations."""
        assert self.launch.split is not None
        rng = self.launch.split.range
        tiles = f"tiles_of({self.size[rng.dim]}, {self._size(rng.block)})"
        self.line(f"const int share = tiles_of({tiles}, workers), total = tiles_of({tiles}, share); (void)total;")

    def _room(self, tensor: ir.Tensor) -> str:
        rows = self.size[tensor.shape[0]] if len(tensor.shape) == 2 else "1"
        return f"((long long){rows} * {self.of[tensor]}_pitch)"

    def _array(self, node: ir.Read | ir.Write) -> str:
        """The address of the tensor, or of the one that is kept for the present tile."""
        name = self.of[node.tensor]
        if node.at is None:
            return name
        return f"{name} + {self._start(node.at)} / {self._size(node.at.block)} * {self._room(node.tensor)}"

    # -- sizes and places ------------------------------------------------------------------------------------

    def _size(self, size: str | int) -> str:
        return str(size) if isinstance(size, int) else self.size[size]

    def _start(self, rng: ir.Range) -> str:
        return "0" if rng.parent is None else self.range[rng]

    def _extent(self, rng: ir.Range) -> str:
        return self.size[rng.name] if rng.parent is None else self.length[rng]

    def _most(self, rng: ir.Range) -> str:
        return self.size[rng.name] if rng.parent is None else f"{self.range[rng]}_most"

    def _part(self, tensor: ir.Tensor, ranges: ir.Ranges) -> str:
        rows = ("0", "1") if len(ranges) == 1 else (self._start(ranges[0]), self._extent(ranges[0]))
        columns = self._start(ranges[-1]), self._extent(ranges[-1])
        return f"part({', '.join((f'{self.of[tensor]}_pitch', *rows, *columns))})"

    def _width(self, tile: ir.Tile) -> str:
        return self._most(tile.ranges[1]) if len(tile.ranges) == 2 else "1"

    def _within(self, inner: ir.Range, outer: ir.Range) -> str:
        """Return the start of a range within its enclosing range."""
        if inner is outer:
            return "0"
        return self._start(inner) if outer.parent is None else f"({self._start(inner)} - {self._start(outer)})"

    def _corner(self, ref: ir.Ref) -> str:
        """Return the start of the part of a tile that a reference names."""
        offsets = [self._within(i, o) for i, o in zip(ref.ranges, ref.tile.ranges, strict=True)]
        if len(offsets) == 1:
            return offsets[0]
        row = "0" if offsets[0] == "0" else f"{offsets[0]} * {self._width(ref.tile)}"
        return " + ".join(part for part in (row, offsets[1]) if part != "0") or "0"

    def _at(self, ref: ir.Ref) -> str:
        """Return the address of that part."""
        corner = self._corner(ref)
        return str(self.of[ref.tile]) if corner == "0" else f"{self.of[ref.tile]} + {corner}"

    def _entry(self, ref: ir.Ref, row: str = "r", column: str = "c") -> str:
        """Return an entry of that part; a vector has only rows."""
        inner = row if len(ref.ranges) == 1 else f"{row} * {self._width(ref.tile)} + {column}"
        corner = self._corner(ref)
        return f"{self.of[ref.tile]}[{inner if corner == '0' else f'{corner} + {inner}'}]"

    def _value(self, expr: ir.Expr) -> str:
        if isinstance(expr, ir.Ref):
            return self._entry(expr)
        assert isinstance(expr, ir.Elementwise)
        return _OPERATIONS[expr.op].format(*(self._value(operand) for operand in expr.operands))

    def _entries(self, shape: ir.Ranges) -> str:
        return f"ENTRIES(r, c, {self._extent(shape[0])}, {self._extent(shape[1]) if len(shape) == 2 else '1'})"

    # -- what a block does -----------------------------------------------------------------------------------

    def _body(self, body: list[ir.Node]) -> None:
        for node in body:
            if isinstance(node, ir.Loop):
                self._close()
                self._loop(node)
            else:
                for statement in self._statements(node):
                    if any(self._must_wait(earlier, statement) for earlier in self.section):
                        self._close()
                    self.section.append(statement)
        self._close()

    def _loop(self, loop: ir.Loop) -> None:
        rng = loop.range
        assert rng.parent is not None
        name, block = self.range[rng], self._size(rng.block)
        start, stop = self._start(rng.parent), self._extent(rng.parent)
        stop = stop if start == "0" else f"{start} + {stop}"
        end = stop
        if loop is self.launch.split:
            self.line(f"const int {name}_end = smaller({stop}, (block + 1) * share * {block});")
            start, end = f"block * share * {block}", f"{name}_end"
        self.line(f"for (int {name} = {start}; {name} < {end}; {name} += {block}) {{")
        self.indent += 1
        length = "1" if block == "1" else f"smaller({block}, {stop} - {name})"
        self.line(f"const int {self.length[rng]} = {length}; (void){self.length[rng]};")
        self._body(loop.body)
        self.indent -= 1
        self.line("}")

    def _close(self) -> None:
        """End a section with a barrier."""
        if not self.section:
            return
        self.line("SECTION {")
        for statement in self.section:
            self.lines += ["    " * (self.indent + 1) + text for text in statement.text]
        self.line("} BARRIER")
        self.section = []

    def _must_wait(self, first: _Statement, second: _Statement) -> bool:
        """Whether a thread may read, or overwrite, data that another thread uses in the previous statement."""
        conflicts = [
            (a, b)
            for mine, theirs in (
                (first.writes, second.reads),
                (first.reads, second.writes),
                (first.writes, second.writes),
            )
            for a in mine
            for b in theirs
            if self._may_overlap(a, b)
        ]
        alike = first.entries is not None and first.entries == second.entries
        return any(not (alike and a is b and a in first.own and b in second.own) for a, b in conflicts)

    def _may_overlap(self, a: object, b: object) -> bool:
        if isinstance(a, ir.Tile) and isinstance(b, ir.Tile) and a is not b:
            (from_a, to_a), (from_b, to_b) = self.lifetimes[a], self.lifetimes[b]
            return not (from_a < to_b and from_b < to_a)  # tiles that are never in cache together may share addresses
        return a is b

    def _statements(self, node: ir.Node) -> Iterator[_Statement]:
        match node:
            case ir.Read(tile=tile, tensor=tensor):
                place = f"{self._array(node)}, {self._part(tensor, tile.ranges)}"
                text = f"read_tile({self.of[tile]}, {self._width(tile)}, {place}, tid, threads);"
                yield _Statement([text], {tensor}, {tile})
            case ir.Write(tile=tile, tensor=tensor):
                place = f"{self._array(node)}, {self._part(tensor, tile.ranges)}"
                text = f"write_tile({place}, {self.of[tile]}, {self._width(tile)}, tid, threads);"
                yield _Statement([text], {tile}, {tensor})
            case ir.Init(tensor=tensor, ranges=ranges, value=value):
                arguments = f"{self.of[tensor]}, {self._part(tensor, ranges)}, {_constant(value)}"
                yield _Statement([f"fill({arguments}, tid, threads);"], set(), {tensor})
            case ir.Zeros(tile=tile):
                yield self._assign(ir.Ref(tile, tile.ranges), "0.f", ())
            case ir.Constant(tile=tile, value=value):
                yield self._assign(ir.Ref(tile, tile.ranges), _constant(value), ())
            case ir.Move(tile=tile, source=source):
                ref = ir.Ref(source, tile.ranges)
                yield self._assign(ir.Ref(tile, tile.ranges), self._entry(ref), (ref,))
            case ir.Compute():
                yield self._compute(node)
            case _:
                pass

    def _assign(self, target: ir.Ref, value: str, refs: tuple[ir.Ref, ...]) -> _Statement:
        """Set each entry of the target from an expression over other entries, one thread for each entry."""
        shape = target.ranges
        own = {target.tile, *(ref.tile for ref in refs)}
        own -= {ref.tile for ref in refs if ref.ranges != shape}
        assert target.tile in own  # two parts of a tile with the same shape are always the same part
        text = f"{self._entries(shape)} {self._entry(target)} = {value};"
        return _Statement([text], {ref.tile for ref in refs}, {target.tile}, shape, frozenset(own))

    def _compute(self, node: ir.Compute) -> _Statement:
        target, expr = node.target, node.expr
        used = tuple(ir.refs(expr))
        if isinstance(expr, ir.Elementwise):
            return self._assign(target, self._value(expr), used)
        reads: set[object] = {ref.tile for ref in used}
        if node.mode == "add":
            reads.add(target.tile)
        if isinstance(expr, ir.MatMul):
            text = [self._product(target, expr, node.mode == "add")]
        else:
            assert isinstance(expr, ir.RowReduction)
            text = self._reduction(target, expr, node.mode == "add")
        return _Statement(text, reads, {target.tile})

    def _product(self, target: ir.Ref, expr: ir.MatMul, add: bool) -> str:
        def steps(ref: ir.Ref) -> tuple[str, ...]:
            along = (self._width(ref.tile), "1")
            return along[::-1] if ref.transposed else along

        arguments = [
            self._at(target),
            self._width(target.tile),
            self._extent(target.ranges[0]),
            self._extent(target.ranges[1]),
            self._at(expr.left),
            *steps(expr.left),
            self._at(expr.right),
            *steps(expr.right),
            self._extent(expr.left.shape[1]),
            "true" if add else "false",
        ]
        return f"multiply({', '.join(arguments)}, tid, threads);"

    def _reduction(self, target: ir.Ref, expr: ir.RowReduction, add: bool) -> list[str]:
        """Reduce with one thread for each row.

        Threads start at different columns, so that a warp's words are in different banks.
        """
        rows, columns = (self._extent(rng) for rng in expr.operand.shape)
        combine = "total += {}" if expr.op == "rowsum" else "total = fmaxf(total, {})"
        result = self._entry(target)
        return [
            f"ROWS(r, {rows}) {{",
            f"    float total = {'0.f' if expr.op == 'rowsum' else 'MINUS_INFINITY'};",
            f"    for (int k = 0, c = r % {columns}; k < {columns}; ++k, c = c + 1 == {columns} ? 0 : c + 1)",
            f"        {combine.format(self._value(expr.operand))};",
            f"    {result} {'+=' if add else '='} total;",
            "}",
        ]


def _constant(value: float) -> str:
    return "0.f" if value == 0 else "MINUS_INFINITY"
