"""`cuda`: write a program as CUDA kernels that move exactly its tiles.

Each launch (see `launches`) is a kernel. Each independent iteration is a thread block, with its tiles in shared memory;
words are float32. The threads of a block share the work of each primitive. A barrier separates statements where one
thread needs the result of another. The same source compiles with nvcc, with NVRTC, and with a C++ compiler for a
simulated GPU that counts. Sizes are parameters of the kernels, so that one build serves all sizes, or compile-time
constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from pebblesim.core.errors import UsageError
from pebblesim.kernels.cuda.places import TAKEN, WORKERS, Places
from pebblesim.kernels.identifiers import Identifiers
from pebblesim.language import program as ir
from pebblesim.launches.batches import ONE, Batch, apart, parked, stretches
from pebblesim.launches.launches import Launch, Layout, blocks, check_alike, launches, layout, shares
from pebblesim.launches.sectors import pitch


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel and its launch.

    Attributes:
        name: its name in the source.
        launch: what it does.
        tensors: names of the tensors whose addresses are parameters, in order; "copies of T" are the workers' copies of
            T.
        integers: names of the sizes that are parameters after those, and the tiles whose positions are parameters.
        batch: the heads for which it is launched at once, and how many of them a block serves in turn.
    """

    name: str
    launch: Launch
    tensors: tuple[str, ...]
    integers: tuple[str | ir.Tile, ...]
    batch: Batch = ONE

    def values(self, sizes: ir.Sizes) -> list[int]:
        """Return the integer parameters for these sizes, which include `workers`."""
        at = self.layout(sizes).offsets
        return [sizes[each] if isinstance(each, str) else at[each] for each in self.integers]

    def blocks(self, sizes: ir.Sizes) -> int | None:
        """Number of thread blocks of the launch; None if any number works."""
        if self.launch.kind == "tiles":
            return blocks(self.launch, sizes, sizes[WORKERS]) * self.batch.groups
        return self.batch.heads if self.batch.heads > 1 else None

    def layout(self, sizes: ir.Sizes) -> Layout:
        """Layout of a block's tiles: those that it holds for several heads in turn lie one after the other."""
        return layout(self.launch, sizes, dict.fromkeys(parked(self.launch), self.batch.turns))

    def shared_words(self, sizes: ir.Sizes) -> int:
        """Words of shared memory that a block uses."""
        return self.layout(sizes).words


@dataclass(frozen=True, eq=False)
class Source:
    """Kernels in launch order, and their source text."""

    kernels: tuple[Kernel, ...]
    text: str


def prelude() -> str:
    """Return the text that precedes the kernels."""
    return Path(__file__).with_name("tiles.cuh").read_text(encoding="utf-8")


def cuda(
    program: ir.Program, workers: int = 1, sizes: ir.Sizes | None = None, prefix: str = "", batch: Batch = ONE
) -> Source:
    """Write the kernels of a program, without the prelude.

    Args:
        program: a traced schedule.
        workers: if more than 1, loops that carry sums are split among workers; their number is the size `workers`.
        sizes: if given (including `workers`), these sizes and the positions of all tiles are constants in the source.
        prefix: prefix of the kernels' names.
        batch: heads that are served at once; more than one only where sizes are given, and for one worker.

    Raises:
        UsageError: workers would share the sums of several heads.
    """
    if batch.heads > 1 and workers > 1:
        raise UsageError("workers divide the sums of one head; give several heads, or several workers.")
    kernels, texts = [], []
    names = Identifiers(TAKEN.split())
    check_alike(program)
    for launch in launches(program, workers):
        writer = _Writer(program, launch, sizes, names.new(prefix + launch.name), batch.of(launch))
        texts.append(writer.text())
        kernels.append(writer.kernel)
    return Source(tuple(kernels), "\n".join(texts))


def memory(kernels: Iterable[Kernel], program: ir.Program, sizes: ir.Sizes) -> dict[str, int]:
    """Return the words of each array in memory for one head, including row padding and the workers' copies."""
    room = {name: words_of(tensor, sizes) for name, tensor in program.tensors.items()}
    copies = {
        f"copies of {tensor.name}": room[tensor.name] * shares(kernel.launch, sizes, sizes[WORKERS])
        for kernel in kernels
        for tensor in kernel.launch.copies
    }
    return room | copies


def words_of(tensor: ir.Tensor, sizes: ir.Sizes) -> int:
    """Words of a tensor in memory, including row padding."""
    return prod(tensor.sides(sizes)[:-1]) * pitch(tensor, sizes)


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


class _Writer(Places):
    """Write one kernel."""

    def __init__(
        self, program: ir.Program, launch: Launch, sizes: ir.Sizes | None, name: str, batch: Batch = ONE
    ) -> None:
        super().__init__(program, launch)
        self.sizes, self.batch = sizes, batch
        self.many = batch.heads > 1
        self.parked = parked(launch) if batch.turns > 1 else []
        self.lines: list[str] = []
        self.indent = 1
        self.section: list[_Statement] = []
        touched = [tensor for tensor in self.tensors if launch.kind == "sum" or tensor not in launch.copies]
        self.pointers = [*(self.of[tensor] for tensor in touched), *self.copies.values()]
        integers: tuple[str | ir.Tile, ...] = () if sizes else (*self.of_sizes, *self.lifetimes)
        arrays = (*(tensor.name for tensor in touched), *(f"copies of {tensor.name}" for tensor in launch.copies))
        self.kernel = Kernel(name, launch, arrays, integers, batch)

    # -- text ------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def text(self) -> str:
        places = {tile: f"{self.of[tile]}_at" for tile in self.lifetimes}
        integers = [self.size[each] if isinstance(each, str) else places[each] for each in self.kernel.integers]
        arrays = [f"{name}_of_all_heads" if self.many else name for name in self.pointers]
        parameters = [f"float* const {name}" for name in arrays] + [f"const int {name}" for name in integers]
        self.line("START")
        if self.sizes:
            at = self.kernel.layout(self.sizes).offsets
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
        if self.many:
            self.line("const int head = block;")
            self._of_head()
            self._body([node])
            return
        self.line("SECTION {")
        self.indent += 1
        each, place = "", self.of[node.tensor]
        for tensor in self.launch.copies:
            self._share()
            each, place = (
                "for (int copy = 0; copy < total; ++copy) ",
                f"{self.copies[tensor]} + copy * {self._room(tensor)}",
            )
        self.line(
            f"{each}fill({place}, {self._part(node.tensor, node.ranges)}, {_constant(node.value)}, "
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
            if tile not in self.parked:
                self.line(f"TILE({self.of[tile]}, {self.of[tile]}_at, {self._words(tile)})")
        number = "block"
        if self.many:
            self.line(f"const int group = block % {self.batch.groups};")
            number = f"block / {self.batch.groups}"
        if self.launch.grid:
            self.line(f"int number = {number};")
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
        if self.batch.turns > 1:
            for part in stretches(self.launch.block):
                if isinstance(part, ir.Loop):
                    self._loop(part, self._in_turn)
                else:
                    self._in_turn(part)
            return
        if self.many:
            self.line("const int head = group;")
            self._of_head()
        self._body(self.launch.block)

    def _in_turn(self, body: list[ir.Node]) -> None:
        """Write what the block does for each of its heads before it turns to the next."""
        turns, groups, heads = self.batch.turns, self.batch.groups, self.batch.heads
        more = f"served < {turns} && (head = group + served * {groups}) < {heads}"
        self.line(f"for (int served = 0, head; {more}; ++served) {{")
        self.indent += 1
        self._of_head()
        for tile in self.parked:
            words = self._words(tile)
            self.line(f"TILE({self.of[tile]}, {self.of[tile]}_at + served * {words}, {words})")
        self._body(body)
        self.indent -= 1
        self.line("}")

    def _of_head(self) -> None:
        """Write where the arrays of the present head begin."""
        assert self.sizes is not None
        for tensor in self.tensors:
            name, words = self.of[tensor], apart(words_of(tensor, self.sizes))
            self.line(f"float* const {name} = {name}_of_all_heads + (long long)head * {words}; (void){name};")

    def _words(self, tile: ir.Tile) -> str:
        return " * ".join(self._most(rng) for rng in tile.ranges)

    def _share(self) -> None:
        """Write the number of iterations of each worker, and the number of workers with iterations."""
        assert self.launch.split is not None
        rng = self.launch.split.range
        tiles = f"tiles_of({self.size[rng.dim]}, {self._size(rng.block)})"
        self.line(f"const int share = tiles_of({tiles}, workers), total = tiles_of({tiles}, share); (void)total;")

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

    def _loop(self, loop: ir.Loop, write: Callable[[list[ir.Node]], None] | None = None) -> None:
        """Write a loop, and its body by `write`."""
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
        (write or self._body)(loop.body)
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
