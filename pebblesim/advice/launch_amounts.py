"""Bytes and operations of each node of a launch of tiles, and the loops and tests of its kernel."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterator
from dataclasses import replace
from math import prod

from pebblesim.analysis.totals import LoopContext
from pebblesim.kernels.orientation import turned
from pebblesim.kernels.readings import Reading
from pebblesim.kernels.tables import tables
from pebblesim.kernels.triton.storage import entries, padded
from pebblesim.kernels.words import word_bytes
from pebblesim.language import program as ir
from pebblesim.language.loops import Times
from pebblesim.language.masks import Band, Mask
from pebblesim.launches.launches import Launch, launches


class Memory:
    """Bytes of the tensors of a program as its kernels keep them."""

    def __init__(self, program: ir.Program, sizes: ir.Sizes, dtype: str, mask: Mask | None) -> None:
        self.program, self.sizes, self.dtype, self.mask = program, sizes, dtype, mask
        self._kept = tables(program, launches(program, masked=True, repeated=True), sizes, mask)
        self._whole = replace(self._kept, parts={}, aligned=frozenset())
        self._widths = {tensor: word_bytes(program, tensor, dtype) for tensor in program.tensors.values()}

    @property
    def tables(self) -> Container[ir.Tensor]:
        """Tensors with a word for each pair, of which a mask leaves a part."""
        return self._kept.tiled

    def moved(self, node: ir.Read | ir.Write | ir.Init, at: LoopContext) -> Times:
        """Bytes that a primitive moves."""
        return self._kept.words(node, self.sizes, at) * self._widths[node.tensor]

    def bytes(self, tensor: ir.Tensor) -> int:
        """Bytes of a whole tensor; of one that is used in parts, those of all parts."""
        return prod(self._whole.lengths(tensor, self.sizes)) * self._widths[tensor]


def _nodes(launch: Launch, line: int) -> list[ir.Node]:
    """The primitives of the loop in a line, or of a block (0)."""
    loops = (loop for loop in ir.walk(launch.block) if isinstance(loop, ir.Loop) and loop.line == line)
    return next((loop.body for loop in loops), launch.block)


def once(launch: Launch) -> ir.Node:
    """Work that each block does once."""
    return next(node for node in launch.block if not isinstance(node, ir.Loop))


def _begun(launch: Launch, read: Reading) -> dict[ir.Node, int]:
    """Innermost loops that begin each time that a node is done; one where a block has none, since it reads, too."""
    begun: dict[ir.Node, int] = {}
    for line, each in read.iterations.items():
        if each.begins:
            beside = next((node for node in _nodes(launch, line) if not isinstance(node, ir.Loop)), once(launch))
            begun[beside] = begun.get(beside, 0) + each.begins
    return begun or {once(launch): 1}


def _tested(launch: Launch, sizes: ir.Sizes, mask: Mask | None, read: Reading) -> dict[ir.Node, tuple[int, int | None]]:
    """For a node beside each tile of pairs that is tested: its tests, and how many tiles of a block at most are tested.

    Of blocks of one tile, those are left out that are tested only where an edge cuts them: they are few.
    """
    tested: dict[ir.Node, tuple[int, int | None]] = {}
    loops = {loop.line: loop for loop in ir.walk(launch.block) if isinstance(loop, ir.Loop)}
    for line, each in read.iterations.items():
        nodes, loop = list(ir.walk(_nodes(launch, line))), loops.get(line)
        pairs = [node for node in nodes if isinstance(node, ir.Compute) and ir.over_pairs(node.target.tile.ranges)]
        if not each.tests or not pairs or (loop is None and each.apart):
            continue
        tile = pairs[0].target.tile.ranges
        beside = next(node for node in nodes if not isinstance(node, ir.Loop)) if loop else once(launch)
        most = _most_cut(tile, loop, sizes, mask, each.tests) if loop and each.apart else None
        tested[beside] = each.tests * entries(tile, sizes), most
    return tested


def _most_cut(tile: ir.Ranges, loop: ir.Loop, sizes: ir.Sizes, mask: Mask | None, edges: int) -> int:
    """Most tiles of a loop that edges of a mask, or of the matrix, cut."""
    assert isinstance(mask, Band)
    rows, columns = (padded(rng, sizes) for rng in tile)
    along, across = (rows, columns * mask.rows) if loop.range is tile[0] else (columns, -(-rows // mask.rows))
    return edges * -(-across // along) + (sizes[loop.range.dim] % padded(loop.range, sizes) > 0)


def _changes(node: ir.Compute, read: set[ir.Tile]) -> bool:
    """Whether it changes the entries of a tile that was read."""
    return node.target.tile in read and isinstance(node.expr, ir.Elementwise)


def _late(body: list[ir.Node]) -> Iterator[ir.Read]:
    """Reads outside of innermost loops: these are not prefetched."""
    loops = [node for node in body if isinstance(node, ir.Loop)]
    yield from (node for node in body if isinstance(node, ir.Read))
    for loop in loops:
        if any(isinstance(node, ir.Loop) for node in loop.body):
            yield from _late(loop.body)


class Amounts:
    """Bytes and operations that are counted of the nodes of a launch, for one head; see `LaunchCost`."""

    def __init__(
        self,
        launch: Launch,
        memory: Memory,
        warps: int,
        read: Reading,
        side: Callable[[ir.Range, ir.Sizes], int],
    ) -> None:
        self._side = side
        nodes, self._sizes, self._memory, self._warps = list(ir.walk(launch.body)), memory.sizes, memory, warps
        self._transposed, self._once = turned(nodes), once(launch)
        self._read = {node.tile for node in nodes if isinstance(node, ir.Read)}
        self._late, self._beside = set(_late(launch.block)), set(_beside(launch.block, self._read))
        self._begun, self.tested = _begun(launch, read), _tested(launch, self._sizes, memory.mask, read)

    def __call__(self, node: ir.Node, at: LoopContext) -> Iterator[tuple[Hashable, Times]]:
        if node is self._once:
            yield "blocks", 1
        if node in self.tested:
            yield node, 1
        if node in self._begun:
            yield "begun", self._begun[node]
        match node:
            case ir.Read(tensor=tensor):
                moved = self._memory.moved(node, at)
                yield ("reads", tensor), moved
                if node in self._late:
                    yield "late", moved
            case ir.Write(tensor=tensor) | ir.Init(tensor=tensor):
                yield ("writes", tensor), self._memory.moved(node, at)
            case ir.Compute(target=target, expr=ir.MatMul() as product):
                width = _width(product, self._sizes, self._warps, target.tile in self._transposed)
                yield ("products", width), 2 * self._entries((*product.shape, product.left.shape[1]))
            case ir.Compute(target=target, expr=expr):
                for shape in _operations(expr):
                    yield "beside" if node in self._beside else "elementwise", self._entries(shape)
                if _changes(node, self._read):
                    yield "elementwise", 2 * self._entries(target.ranges)

    def _entries(self, ranges: ir.Ranges) -> int:
        """Number of entries of a tile in a kernel."""
        return prod(self._side(rng, self._sizes) for rng in ranges)


def _width(product: ir.MatMul, sizes: ir.Sizes, warps: int, transposed: bool) -> int:
    """Columns of an instruction: four warps take 64 rows, and share columns where there are too few rows."""
    rows, columns = (padded(rng, sizes) for rng in product.shape[:: -1 if transposed else 1])
    groups, high = max(1, warps // 4), max(1, rows // 64)
    return min(256, max(8, columns * high // groups) if high < groups else columns)


def _operations(expr: ir.Expr) -> Iterator[ir.Ranges]:
    """The tile that each operation on elements is done for."""
    match expr:
        case ir.Elementwise():
            yield expr.shape
            for operand in expr.operands:
                yield from _operations(operand)
        case ir.RowReduction():
            yield expr.operand.shape
            yield from _operations(expr.operand)


def _beside(body: list[ir.Node], read: set[ir.Tile]) -> Iterator[ir.Node]:
    """Work on elements in loops that themselves hold products, too, of other tiles than those that were read."""
    for loop in body:
        if isinstance(loop, ir.Loop):
            computes = [node for node in loop.body if isinstance(node, ir.Compute) and not _changes(node, read)]
            others = [node for node in computes if not isinstance(node.expr, ir.MatMul)]
            if len(others) < len(computes):
                yield from others
            yield from _beside(loop.body, read)
