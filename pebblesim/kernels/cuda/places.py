"""Where tiles and tensors are in a CUDA kernel, as text: names, sizes, addresses and entries."""

from __future__ import annotations

from pebblesim.kernels.identifiers import Identifiers
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch, lifetimes_of

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

TAKEN = """
alignas alignof and asm auto bool break case catch char class compl const constexpr continue decltype default
delete do double else enum explicit export extern false float for friend goto if inline int long mutable
namespace new not nullptr operator or private protected public register return short signed sizeof static
struct switch template this throw true try typedef typeid typename union unsigned using virtual void volatile
while xor block blocks cache compare fill gpu group head item load multiply note padded part poison r c k served share
smaller start store threads tid tiles_of total turn words_ workers y0 y1 yn j0 j1 jn gamma
"""


class Places:
    """The names in a kernel, and the places of its tiles and tensors."""

    def __init__(self, program: ir.Program, launch: Launch) -> None:
        self.launch = launch
        self.lifetimes = lifetimes_of(launch.block)
        names = Identifiers(TAKEN.split())
        used: list[ir.Node] = [*launch.grid, *ir.walk(launch.block), *([launch.split] if launch.split else [])]
        self.tensors = {n.tensor: None for n in used if isinstance(n, ir.Read | ir.Write | ir.Init)}
        self.tensors |= dict.fromkeys(launch.copies)
        self.of: dict[ir.Tensor | ir.Tile, str] = {tensor: names.new(tensor.name) for tensor in self.tensors}
        self.copies = {tensor: names.new(f"{tensor.name}_copies") for tensor in launch.copies}
        ranges = list(dict.fromkeys(node.range for node in used if isinstance(node, ir.Loop)))
        needed = {dim for tensor in self.tensors for dim in tensor.shape} | {rng.dim for rng in ranges}
        needed |= {rng.dim for tile in self.lifetimes for rng in tile.ranges}
        needed |= {rng.block for rng in ranges if isinstance(rng.block, str)}
        self.of_sizes = [size for size in (*program.dims, *program.blocks) if size in needed]
        self.size = {size: names.new(size) for size in self.of_sizes} | {WORKERS: WORKERS}
        if launch.split:
            self.of_sizes.append(WORKERS)
        self.range = {rng: names.new(rng.name) for rng in ranges}
        self.length = {rng: names.new(f"{self.range[rng]}_length") for rng in ranges}
        self.of |= {tile: names.new(tile.name) for tile in self.lifetimes}

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

    def _room(self, tensor: ir.Tensor) -> str:
        rows = self.size[tensor.shape[0]] if len(tensor.shape) == 2 else "1"
        return f"((long long){rows} * {self.of[tensor]}_pitch)"

    def _array(self, node: ir.Read | ir.Write) -> str:
        """The address of the tensor, or of the one that is kept for the present tile."""
        name = self.of[node.tensor]
        if node.at is None:
            return name
        return f"{name} + {self._start(node.at)} / {self._size(node.at.block)} * {self._room(node.tensor)}"
