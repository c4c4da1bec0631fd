"""`triton`: a program as Triton kernels on matrix units, for words of 16 bits or float32.

Each launch (see `launches`) is a kernel, each independent iteration a program of its grid. Tiles that are read have the
data type of memory; sums and values computed from them are float32: matrix products take the first and add to the
second. Vectors (one word for each row) are float32 in memory, too, and so are sums that are kept there. A ragged edge
is a predicate on a load or a store, so no word is moved that is not in the count.

Sizes are constants in the source; a predicate is omitted if a block divides its dimension. Under a band mask, such as
causal, tiles without an allowed pair are skipped. In other tiles, pairs that are not allowed are set to 0 wherever they
would matter: in sums over a row, in products, and in memory.

If launches are repeated in a loop over rows, the first of these rows is an argument. A table of pairs that only needs
these rows has only this number of rows, and a table that replaces another tile by tile uses its memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from pebblesim.analysis.totals import tile_of_whole
from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.core.units import Bytes
from pebblesim.gpu.emit.identifiers import Identifiers
from pebblesim.language import program as ir
from pebblesim.language.masks import Band, Mask
from pebblesim.launches.launches import Launch, blocks, check_alike, launches

WORDS = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of the allowed data types of a matrix word."""

LEAST_SIDE = 16
"""Shortest side of a tile that matrix units support."""

LARGE_TILE = 2**15
"""Entries of a tile of sums that leaves a multiprocessor no registers for a second block."""

GROUP = 8
"""Rows of tiles that are launched together, column by column, so that shared tiles are still in L2."""

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
lambda None nonlocal not or pass raise range return rows run start tl torch triton True try while with yield group rank
device
"""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel of the text.

    Attributes:
        name: name of its function.
        launch: the launch.
        tensors: names of the tensors whose addresses are its arguments, in order.
        programs: number of programs for each head, in total over all times it is launched.
    """

    name: str
    launch: Launch
    tensors: tuple[str, ...]
    programs: int


@dataclass(frozen=True, eq=False)
class Source:
    """Kernels in launch order, and the source of a module whose `run` launches them."""

    kernels: tuple[Kernel, ...]
    text: str


def word_bytes(program: ir.Program, tensor: ir.Tensor, dtype: str) -> int:
    """Bytes of a word of a tensor in memory: vectors, and sums kept there, are float32 for every matrix type."""
    return WORDS["float32" if is_float32(program, tensor) else dtype]


def is_float32(program: ir.Program, tensor: ir.Tensor) -> bool:
    """Whether a tensor is a vector, or holds sums that are read, added to and written again."""
    return len(tensor.shape) == 1 or tensor in _sums(program)


@lru_cache(maxsize=256)
def _sums(program: ir.Program) -> frozenset[ir.Tensor]:
    nodes = [node for phase in program.phases for node in ir.walk(phase.body)]
    read = {node.tile: node.tensor for node in nodes if isinstance(node, ir.Read)}
    return frozenset(node.tensor for node in nodes if isinstance(node, ir.Write) and read.get(node.tile) is node.tensor)


def moved_bytes(program: ir.Program, by_tensor: Mapping[str, tuple[int, int]], dtype: str) -> Bytes:
    """Return the bytes that the kernels of a program move, from the words read and written of each tensor."""
    moved = Bytes()
    for tensor, (reads, writes) in by_tensor.items():
        width = word_bytes(program, program.tensors[tensor], dtype)
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
    """Write the Triton source of a program for given sizes.

    Args:
        program: a traced schedule.
        sizes: dimensions and blocks by name.
        dtype: type of a word of a matrix, "bfloat16", "float16" or "float32".
        mask: which pairs are allowed, for a program traced under a mask.
        scale: factor of the scores, which the schedules omit: each product with Q or K is multiplied by it.
        warps, stages: warps and pipeline stages of each launch.

    Raises:
        UsageError: a Triton kernel cannot run the program: it uses parts of a tile, a block is not a power of two, a
            side of a product is shorter than matrix units support, or the mask is not a band.
        UnknownName: the data type is unknown.
    """
    if dtype not in WORDS:
        raise UnknownName("type of a word", dtype, WORDS)
    if mask is not None and not isinstance(mask, Band):
        raise UsageError(f"Triton kernels know causal, window:W and band:W, and not mask {mask}.")
    if mask is not None:
        grid = program.grid(sizes)
        if any(mask.empty(grid, 1, axis).any() for axis in (0, 1)):
            raise UsageError(
                f"Triton kernels need a key for each query, and a query for each key; mask {mask} leaves some of "
                f"{grid[0]:,} queries and {grid[1]:,} keys without."
            )
        mask = mask.placed(grid)
    check_alike(program)
    made = launches(program, masked=True, repeated=True)
    names = Identifiers(_TAKEN.split())
    of = {tensor: names.new(f"{tensor.name}_ptr") for tensor in program.tensors.values()}
    kernels, texts, calls = [], [], []
    parts, places = _parts_at_once(program, made), _places(program, made)
    repeated: ir.Loop | None = None
    for launch in made:
        if launch.kind == "fill":
            (node,) = launch.body
            assert isinstance(node, ir.Init)
            calls.append(f"    {of[node.tensor]}.fill_({_constant(node.value)})")
            continue
        writer = _Writer(program, launch, sizes, names.new(launch.name), of, dtype, mask, scale, parts)
        texts.append(writer.text())
        kernel = writer.kernel
        kernels.append(kernel)
        arguments = ", ".join(of[program.tensors[name]] for name in kernel.tensors)
        if launch.around is not None and launch.around is not repeated:
            whole, block = sizes[launch.around.range.dim], ir.length(launch.around.range.block, sizes)
            calls.append(f"    for start in range(0, {whole}, {block}):")
            if whole % block:
                calls.append(f"        rows = min({block}, {whole} - start)")
        repeated = launch.around
        depth, first = ("    ", "") if repeated is None else ("        ", "start, ")
        launched = f"({writer.programs}, heads)"
        calls.append(f"{depth}{kernel.name}[{launched}]({first}{arguments}, num_warps={warps}, num_stages={stages})")
    read_from = [name for name in program.tensors if name in program.inputs]
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
        f"def run({', '.join(of[program.tensors[name]] for name in read_from)}):",
        f'    """{", ".join(program.outputs)} of matrices (heads, rows, columns) and float32 vectors (heads, rows)."""',
        f"    heads = {of[program.tensors[read_from[0]]]}.shape[0]",
        f"    device = {of[program.tensors[read_from[0]]]}.device",
    ]
    for tensor in made_here:
        if tensor in places:
            lines.append(f"    {of[tensor]} = {of[places[tensor]]}  # tile by tile in its place")
            continue
        shape = ", ".join(map(str, stored(tensor, sizes, parts)))
        kind = "float32" if is_float32(program, tensor) else dtype
        lines.append(f"    {of[tensor]} = torch.empty((heads, {shape}), dtype=torch.{kind}, device=device)")
    lines += calls
    results = ", ".join(f'"{name}": {of[program.tensors[name]]}' for name in program.outputs)
    lines += ["    return {" + results + "}", ""]
    return Source(tuple(kernels), "\n".join(lines))


def longest_last(launch: Launch, loop: ir.Loop, mask: Band | None) -> bool:
    """Whether the later tiles of rows in a grid meet more columns than the earlier ones, and so take longer."""
    return (
        mask is not None
        and mask.after is not None
        and any(
            isinstance(node, ir.Loop) and node.when is not None and node.when.rows is loop.range
            for node in ir.walk(launch.block)
        )
    )


def workspace(program: ir.Program, sizes: ir.Sizes, dtype: str) -> int:
    """Bytes of the tables that kernels make beside their outputs, for each head; a single vector is none."""
    made = launches(program, masked=True, repeated=True)
    parts, places = _parts_at_once(program, made), _places(program, made)
    between = (tensor for name, tensor in program.tensors.items() if name not in (*program.inputs, *program.outputs))
    return sum(
        word_bytes(program, tensor, dtype) * prod(stored(tensor, sizes, parts))
        for tensor in between
        if (len(tensor.shape) == 2 or tensor.apart) and tensor not in places
    )


def stored(tensor: ir.Tensor, sizes: ir.Sizes, parts: Mapping[ir.Tensor, ir.Range]) -> list[int]:
    """Lengths of a tensor in memory: of one that is in use in parts, those of a part."""
    lengths = list(tensor.sides(sizes))
    if tensor in parts:
        lengths[0] = min(lengths[0], ir.length(parts[tensor].block, sizes))
    return lengths


def _moves(launch: Launch) -> list[ir.Read | ir.Write | ir.Init]:
    return [node for node in ir.walk(launch.body) if isinstance(node, ir.Read | ir.Write | ir.Init)]


def _parts_at_once(program: ir.Program, made: list[Launch]) -> dict[ir.Tensor, ir.Range]:
    """Tensors between inputs and outputs whose rows are in use for one iteration of a loop around launches, and it."""
    parts: dict[ir.Tensor, ir.Range] = {}
    for name, tensor in program.tensors.items():
        if name in program.inputs or name in program.outputs or tensor.apart:
            continue
        loops = {launch.around for launch in made if any(node.tensor is tensor for node in _moves(launch))}
        loop = loops.pop() if len(loops) == 1 else None
        if loop is not None and all(
            isinstance(node, ir.Read | ir.Write) and tile_of_whole(node.tile.ranges[0]) is loop.range
            for launch in made
            for node in _moves(launch)
            if node.tensor is tensor
        ):
            parts[tensor] = loop.range
    return parts


def _places(program: ir.Program, made: list[Launch]) -> dict[ir.Tensor, ir.Tensor]:
    """Tensors between inputs and outputs that can have the place of another, which is not read again.

    The launch that writes the one reads the other, each block the tile that it writes, before it does.
    """
    places: dict[ir.Tensor, ir.Tensor] = {}
    for name, tensor in program.tensors.items():
        if name in program.inputs or name in program.outputs:
            continue
        uses = [launch for launch in made if any(node.tensor is tensor for node in _moves(launch))]
        for other_name, other in program.tensors.items():
            if other_name in (*program.inputs, *program.outputs) or other is tensor or other in places.values():
                continue
            last = [launch for launch in made if any(node.tensor is other for node in _moves(launch))][-1]
            if (
                last is uses[0]
                and other.shape == tensor.shape
                and tensor.apart is other.apart is None
                and is_float32(program, other) == is_float32(program, tensor)
                and len({launch.around for launch in made if launch in uses or launch is last}) == 1
                and _tile_by_tile(last, other, tensor)
            ):
                places[tensor] = other
    return places


def _tile_by_tile(launch: Launch, old: ir.Tensor, new: ir.Tensor) -> bool:
    """Whether each block reads one tile of the old tensor, later writes that of the new, and nothing else of them."""
    moves = [node for node in launch.block if isinstance(node, ir.Read | ir.Write) and node.tensor in (old, new)]
    if len(moves) != 2 or moves != [node for node in _moves(launch) if node.tensor in (old, new)]:
        return False
    read, written = moves
    return (
        isinstance(read, ir.Read)
        and read.tensor is old
        and isinstance(written, ir.Write)
        and read.tile.ranges == written.tile.ranges
    )


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
        parts: Mapping[ir.Tensor, ir.Range],
    ) -> None:
        self._whole = False  # whether all pairs are allowed where one is
        self._around = None if launch.around is None else launch.around.range
        self._parts_of = parts
        self._scale = None if scale is None else repr(float(scale))
        self._unscaled: set[ir.Tile] = set()  # what is still to be multiplied by the scale
        self._empty: set[ir.Tile] = set()  # sums without a term yet
        self._program, self._launch, self._sizes, self._dtype, self._mask = program, launch, sizes, dtype, mask
        self._name, self._of, self._names = name, of, Identifiers({*_TAKEN.split(), *of.values()})
        self._tiles: dict[ir.Tile, str] = {}
        self._loaded: set[ir.Tile] = set()  # in the words of memory, not in float32
        self._indices: dict[ir.Range, str] = {}
        self._numbers: dict[ir.Range, str] = {}
        self._tensors: dict[str, ir.Tensor] = {}
        self._lines: list[str] = []
        nodes = list(ir.walk([*launch.grid, *launch.block] if launch.grid else launch.block))
        self._of_scores = {node.tile for node in nodes if isinstance(node, ir.Read) and node.tensor.name in ("Q", "K")}
        self._resumed = {  # sums in memory that are to be scaled: read as if they had not been yet
            node.target.tile
            for node in nodes
            if isinstance(node, ir.Compute) and node.mode == "add" and scale and self._makes_scores(node.expr)
        } & {node.tile for node in nodes if isinstance(node, ir.Read)}
        changed = [node.target.tile for node in nodes if isinstance(node, ir.Compute) and not _multiplies(node)]
        self._zero = {  # 0 where memory is: for pairs that are not allowed
            node.tile for node in nodes if isinstance(node, ir.Read) and node.tile not in changed
        }
        for node in nodes:
            if isinstance(node, ir.Read | ir.Write | ir.Init):
                self._tensors.setdefault(node.tensor.name, node.tensor)

    @property
    def kernel(self) -> Kernel:
        return Kernel(self._name, self._launch, tuple(self._tensors), blocks(self._launch, self._sizes, 1))

    @property
    def programs(self) -> str:
        """How many programs it is launched with for each head, as text; `rows` is the number of rows around."""
        apart = [loop.range for loop in self._launch.grid if loop.range.parent is self._around]
        if self._around is None or not apart or self._sizes[self._around.dim] % self._length_around == 0:
            return str(prod(self._count(loop.range) for loop in self._launch.grid))
        (rng,) = apart
        others = prod(self._count(loop.range) for loop in self._launch.grid if loop.range is not rng)
        return f"triton.cdiv(rows, {self._length(rng)}) * {others}"

    @property
    def _length_around(self) -> int:
        """Rows that launches are repeated for, the last ones aside."""
        assert self._around is not None
        return min(self._sizes[self._around.dim], ir.length(self._around.block, self._sizes))

    def text(self) -> str:
        arguments = ", ".join(self._of[tensor] for tensor in self._tensors.values())
        arguments = arguments if self._around is None else f"start, {arguments}"
        self._lines = ["@triton.jit", f"def {self._name}({arguments}):", "    head = tl.program_id(1).to(tl.int64)"]
        for tensor in self._tensors.values():
            self._say(1, f"{self._of[tensor]} += head * {prod(stored(tensor, self._sizes, self._parts_of))}")
        self._grid()
        self._block()
        return "\n".join(self._lines)

    def _block(self) -> None:
        """The statements of a block; those that need predicates are written without them, too, for tiles in which all
        pairs are allowed. In a group of rows both versions together take more registers than two blocks have: not for a
        single predicate of a small tile.
        """
        body, tile = self._launch.block, self._tile_of_pairs()
        differ = [at for at, node in enumerate(body) if self._differs(node)]
        small = self._around is not None and tile is not None and prod(map(self._length, tile)) < LARGE_TILE
        if tile is None or not differ or (small and len(differ) == 1):
            self._body(body, 1)
            return
        assert self._mask is not None and self._mask.after is not None
        self._body(body[: differ[0]], 1)
        kept = (self._loaded, self._unscaled, self._empty)
        before = [set(each) for each in kept]
        condition = f"{self._ends(tile[1])[1]} - {self._positions(tile[0])[0]} <= {self._mask.after + 1}"
        for self._whole, line in ((True, f"if {condition}:"), (False, "else:")):
            for each, earlier in zip(kept, before, strict=True):
                each.clear()
                each.update(earlier)
            self._say(1, line)
            self._body(body[differ[0] :], 2)

    def _tile_of_pairs(self) -> ir.Ranges | None:
        """The rows and columns of a block, if it has one tile of pairs, on or below the diagonal of a causal mask."""
        tiles = [loop.range for loop in self._launch.grid]
        if self._mask is None or self._mask.after is None or self._mask.before is not None:
            return None
        asked = ((loop.when.rows, loop.when.columns) for loop in self._launch.grid if loop.when)
        return next((pair for pair in asked if all(rng in tiles for rng in pair)), None)

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

    def _within(self, rng: ir.Range) -> bool:
        """Whether it is over tiles of the rows that launches are repeated for."""
        return self._around is not None and rng.parent is self._around

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
        size, first = self._length(rng), ""
        if self._within(rng):
            first, around = "start + ", self._length_around
            if around % size and around < self._sizes[rng.dim]:
                raise UsageError(
                    f"{self._program.name}: {around:,} rows are done at once, which tiles of {rng.block} = {size} do "
                    f"not divide; take a multiple of {size}."
                )
        elif self._cut(rng):
            assert rng.parent is not None
            number = f"({self._numbers[rng.parent]} * {self._parts(loop)} + {number})"
        self._indices[rng] = self._names.new(f"at_{rng.name}")
        self._say(depth, f"{self._indices[rng]} = {first}{number} * {size} + tl.arange(0, {size})")

    def _cut(self, rng: ir.Range) -> bool:
        """Whether it is over tiles of a tile."""
        return rng.parent is not None and rng.parent.parent is not None and not self._within(rng)

    def _parts(self, loop: ir.Loop) -> int:
        """Tiles of a whole tile."""
        outer = loop.range.parent
        assert outer is not None
        large, small = self._length(outer), self._length(loop.range)
        if small > large:
            raise UsageError(
                f"{self._program.name}: block {loop.range.block} = {small} cuts tiles of {outer.block} = "
                f"{large} in line {loop.line}; take no more than {large}."
            )
        return large // small

    def _count(self, rng: ir.Range) -> int:
        """Tiles of a dimension, or of the rows that launches are repeated for."""
        return -(-(self._length_around if self._within(rng) else self._sizes[rng.dim]) // self._length(rng))

    def _grid(self) -> None:
        loops = self._launch.grid
        if not loops:
            return
        numbers = [self._names.new(loop.range.name) for loop in loops]
        counts = [self._count(loop.range) for loop in loops]
        if len(loops) == 1:
            self._say(1, f"{numbers[0]} = tl.program_id(0)")
        elif len(loops) == 2:
            (rows, columns), first = counts, loops[0].range
            height = str(GROUP) if rows % GROUP == 0 else f"tl.minimum({rows} - group * {GROUP}, {GROUP})"
            if self._within(first) and self._sizes[first.dim] % self._length_around:  # as many as there are
                self._say(1, f"rows = {self._tile_count(first)}")
                height = f"tl.minimum(rows - group * {GROUP}, {GROUP})"
            self._say(1, f"group, rank = tl.program_id(0) // {GROUP * columns}, tl.program_id(0) % {GROUP * columns}")
            self._say(1, f"{numbers[0]}, {numbers[1]} = group * {GROUP} + rank % {height}, rank // {height}")
        else:
            raise UsageError(f"{self._program.name}: more than two loops of independent tiles in one launch.")
        for loop, number in zip(loops, numbers, strict=True):
            if longest_last(self._launch, loop, self._mask):
                self._say(1, f"{number} = {self._tile_count(loop.range)} - 1 - {number}  # the longest first")
            self._enter(loop, 1, number)
            self._numbers[loop.range] = number
        for loop in loops:
            if loop.when is not None and self._mask is not None:
                self._guard(loop.when, self._mask)

    def _guard(self, when: ir.MaskCondition, mask: Band) -> None:
        """Leave where the mask says so: where a tile has no allowed pair, or, if `when.none`, where it has one."""
        (top, bottom), (left, right) = self._positions(when.rows), self._ends(when.columns)
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
        if rng is self._around:
            block = self._length_around
            return "start", f"tl.minimum(start + {block}, {size})" if size % block else f"(start + {block})"
        number, block = self._numbers[rng], self._length(rng)
        first, last = f"{number} * {block}", f"({number} + 1) * {block}"
        if self._within(rng):
            first, last = f"(start + {first})", f"(start + {last})"
        return first, f"tl.minimum({last}, {size})" if self._ragged(rng) else last

    def _positions(self, rng: ir.Range) -> tuple[str, str]:
        """The first position of the rows of a tile, and the one after its last; a position may have several rows."""
        start, stop = self._ends(rng)
        assert self._mask is not None
        several = self._mask.rows
        return (start, stop) if several == 1 else (f"({start}) // {several}", f"(({stop} - 1) // {several} + 1)")

    def _fused(self, outer: ir.Loop, inner: ir.Loop, depth: int) -> None:
        """Tiles of a tile, with nothing between the loops, as one loop over the smaller tiles."""
        small, parts = self._length(inner.range), self._parts(inner)
        first, last = ("start + ", self._tiles_within(small)) if self._within(outer.range) else ("", "")
        last = last or str(-(-self._sizes[inner.range.dim] // small))
        low, high = self._bounds(outer)
        start = "" if low == "0" else f"({low}) * {parts}, "
        ends = start + (last if high.isdecimal() else f"tl.minimum(({high}) * {parts}, {last})")
        number = self._names.new(inner.range.name)
        self._say(depth, f"for {number} in range({ends}):")
        self._indices[inner.range] = self._names.new(f"at_{inner.range.name}")
        self._say(depth + 1, f"{self._indices[inner.range]} = {first}{number} * {small} + tl.arange(0, {small})")
        self._body(inner.body, depth + 1)

    def _bounds(self, loop: ir.Loop) -> tuple[str, str]:
        """The number of the first tile that a loop runs over, and the one after that of the last."""
        if self._cut(loop.range):
            assert loop.range.parent is not None
            if loop.range.parent not in self._numbers or loop.when is not None:
                raise UsageError(
                    f"{self._program.name}: tiles of a tile of a tile, or those that a mask allows (line {loop.line}), "
                    "cannot be in a Triton kernel; read tiles of that size in its place."
                )
            parts, size, block = self._parts(loop), self._sizes[loop.range.dim], self._length(loop.range)
            left = f"{-(-size // block)} - {self._numbers[loop.range.parent]} * {parts}"
            return "0", f"tl.minimum({left}, {parts})" if self._ragged(loop.range.parent) else str(parts)
        block, within, count = self._length(loop.range), self._within(loop.range), self._tile_count(loop.range)
        if loop.when is None or self._mask is None:
            return "0", count
        if loop.when.none:
            raise UsageError(
                f"{self._program.name}: what line {loop.line} does with no allowed pair is no Triton kernel."
            )
        of_columns = loop.when.columns is loop.range
        start, stop = self._positions(loop.when.rows) if of_columns else self._ends(loop.when.columns)
        before, after, several = self._mask.before, self._mask.after, 1 if of_columns else self._mask.rows
        back, forth = (before, after) if of_columns else (after, before)
        rows = "" if several == 1 else f" * {several}"
        low = "0"
        if back is not None:
            first = f"tl.maximum({start} - {back}, 0){rows}"
            low = f"tl.maximum({first} - start, 0) // {block}" if within else f"{first} // {block}"
        if forth is None:
            return low, count
        last = f"{stop} + {forth + block - 1}" if several == 1 else f"({stop} + {forth}){rows} + {block - 1}"
        return low, f"tl.minimum(({last}{' - start' * within}) // {block}, {count})"

    def _tile_count(self, rng: ir.Range) -> str:
        """The number of tiles of a dimension, or of the rows that launches are repeated for, as text."""
        return self._tiles_within(self._length(rng)) if self._within(rng) else str(self._count(rng))

    def _tiles_within(self, block: int) -> str:
        """The number of tiles of this length of the rows that launches are repeated for, as text."""
        assert self._around is not None
        around, size = self._length_around, self._sizes[self._around.dim]
        if size % around == 0:
            return str(-(-around // block))
        return f"tl.cdiv(tl.minimum({around}, {size} - start), {block})"

    def _pieces(self, loop: ir.Loop) -> list[tuple[str, str, bool]]:
        """The tiles that a loop runs over, first and after the last, and whether all pairs in them are allowed.

        Under a causal mask those along the diagonal stand apart, since the others need no predicates.
        """
        low, high = self._bounds(loop)
        mask = self._mask
        if loop.when is None or mask is None or mask.after is None or mask.before is not None:
            return [(low, high, False)]
        if not any(map(self._differs, ir.walk(loop.body))):
            return [(low, high, False)]
        block, several = self._length(loop.range), mask.rows
        if loop.when.columns is loop.range:
            start, _ = self._positions(loop.when.rows)
            middle = f"tl.minimum(tl.maximum({start} + {mask.after + 1}, 0) // {block}, {self._count(loop.range)})"
            return [(low, middle, True), (middle, high, False)]
        _, stop = self._ends(loop.when.columns)
        first = f"tl.maximum({stop} - {mask.after + 1}, 0)" + (f" * {several}" if several > 1 else "")
        if self._within(loop.range):
            first = f"tl.maximum({first} - start, 0)"
        middle = f"tl.minimum(({first} + {block - 1}) // {block}, {high})"
        return [(low, middle, False), (middle, high, True)]

    def _differs(self, node: ir.Node) -> bool:
        """Whether a primitive needs a predicate where some pairs are not allowed."""
        match node:
            case ir.Write(tile=tile):
                return ir.over_pairs(tile.ranges)
            case ir.Compute(expr=ir.RowReduction(operand=operand)):
                return ir.over_pairs(operand.shape)
            case ir.Compute(expr=ir.MatMul(left=left, right=right)):
                return any(ir.over_pairs(ref.ranges) and ref.tile not in self._zero for ref in (left, right))
        return False

    def _pairs(self, ranges: ir.Ranges) -> str:
        """The predicate of the allowed pairs of a tile of pairs; empty for others, and where all are."""
        if self._mask is None or self._whole or not ir.over_pairs(ranges):
            return ""
        rows, columns = map(self._index, ranges)
        rows = f"{rows}[:, None]" if self._mask.rows == 1 else f"({rows} // {self._mask.rows})[:, None]"
        distance = f"({columns}[None, :] - {rows}"
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
                    around = self._whole
                    for low, high, whole in self._pieces(node):
                        number = self._names.new(node.range.name)
                        self._numbers[node.range] = number
                        self._say(depth, f"for {number} in range({f'{low}, {high}'.removeprefix('0, ')}):")
                        self._enter(node, depth + 1, number)
                        self._whole = around or whole
                        self._body(node.body, depth + 1)
                    self._whole = around
                case ir.Read():
                    self._check_written(node)
                    name = self._tile(node.tile)
                    resumed = node.tile in self._resumed
                    (self._unscaled if resumed else self._loaded).add(node.tile)
                    place, unscaled = self._place(node.tensor, node.tile.ranges, node.at), f" / {self._scale}" * resumed
                    self._say(depth, f"{name} = tl.load({place}{self._edge(node.tile.ranges)}){unscaled}")
                case ir.Write():
                    value = self._only(self._scaled(node.tile), self._pairs(node.tile.ranges), "0.0")
                    self._store(depth, self._place(node.tensor, node.tile.ranges, node.at), node, value)
                case ir.Init():
                    shape = ", ".join(str(self._length(rng)) for rng in node.ranges)
                    value = f"tl.full(({shape},), {_constant(node.value)}, tl.float32)"
                    self._store(depth, self._place(node.tensor, node.ranges, None), node, value)
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

    def _place(self, tensor: ir.Tensor, ranges: ir.Ranges, at: ir.Range | None) -> str:
        *_, width = lengths = stored(tensor, self._sizes, self._parts_of)
        large, start = prod(lengths) >= 2**31, self._of[tensor]
        if at is not None:  # of one of several tensors
            start += f" + {self._numbers[at]}{'.to(tl.int64)' * large} * {prod(lengths[1:])}"
        if len(ranges) == 1:
            return f"{start} + {self._index(ranges[0])}"
        rows, columns = map(self._index, ranges)
        row = f"({rows} - start)[:, None]" if tensor in self._parts_of else f"{rows}[:, None]"
        if large:
            row = f"{row}.to(tl.int64)"
        return f"{start} + {row} * {width} + {columns}[None, :]"

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

    def _store(self, depth: int, place: str, node: ir.Write | ir.Init, value: str) -> None:
        inside = self._inside(node.tile.ranges if isinstance(node, ir.Write) else node.ranges)
        mask = f", mask={inside}" if inside else ""
        self._say(depth, f"tl.store({place}, {value}.to({self._of[node.tensor]}.dtype.element_ty){mask})")

    def _compute(self, depth: int, node: ir.Compute) -> None:
        if node.mode != "new" and node.target.ranges != node.target.tile.ranges:
            raise self._part(node.target.tile, node.line)
        tile, expr = node.target.tile, node.expr
        name = self._tile(tile)
        scaled = self._scale is not None and self._makes_scores(expr)
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

    def _makes_scores(self, made: ir.Expr) -> bool:
        """Whether it is a product of scores or of what they are a gradient of: Q or K takes part."""
        return isinstance(made, ir.MatMul) and any(ref.tile in self._of_scores for ref in ir.refs(made))

    def _scaled(self, tile: ir.Tile) -> str:
        """The value of a tile, multiplied by the scale if that is still to be done."""
        name = self._tiles[tile]
        return f"({name} * {self._scale})" if tile in self._unscaled else name

    # Expressions, in float32

    def _part(self, tile: ir.Tile, line: int) -> UsageError:
        return UsageError(
            f"{self._program.name}: a part of tile {tile.name} is used in line {line}, which no Triton kernel can; "
            "read a tile of that size in its place."
        )

    def _ref(self, ref: ir.Ref, line: int) -> str:
        if ref.ranges != ref.tile.ranges:
            raise self._part(ref.tile, line)
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
                if expr.op == "div" and len(expr.operands[1].shape) < len(expr.shape):  # one division for each row
                    return f"({operands[0]} * {self._reciprocal(self._expr(expr.operands[1], line))}[:, None])"
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

    def _reciprocal(self, vector: str) -> str:
        """1 / vector; under a mask 0 for a row without an allowed pair, which has 0/0 = 0."""
        made = f"(1.0 / {vector})"
        return made if self._mask is None else f"tl.where({vector} == 0.0, 0.0, {made})"

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
        if ref.tile not in self._zero:
            text = self._only(text, self._pairs(ref.ranges), "0.0")
        text = f"tl.trans({text})" if ref.transposed else text
        if loaded:
            return text
        if self._ragged(terms):
            along = "[None, :]" if axis else "[:, None]"
            text = self._only(text, f"{self._index(terms)}{along} < {self._sizes[terms.dim]}", "0.0")
        return f"{text}.to(tl.{self._dtype})"


def _multiplies(node: ir.Compute) -> bool:
    """Whether an operation only multiplies the entries of its target."""
    return (
        isinstance(node.expr, ir.Elementwise)
        and node.expr.op == "mul"
        and any(isinstance(operand, ir.Ref) and operand.tile is node.target.tile for operand in node.expr.operands)
    )


def _constant(value: float) -> str:
    """A number as Python text, an infinite one too."""
    return repr(float(value)).replace("inf", 'float("inf")')
