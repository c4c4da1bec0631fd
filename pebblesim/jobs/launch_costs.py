"""What each launch of a schedule's kernels does on matrix units: operations as carried out, bytes moved, and blocks.

Tiles are whole in a kernel: products are carried out for the padded tile, also at ragged edges and under a mask.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

from pebblesim.jobs.tiles import Tiling
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask
from pebblesim.language.registry import get
from pebblesim.readings.kernels.launches import Launch, blocks, launches
from pebblesim.readings.kernels.storage import Storage, entries, padded, storage, through_shared
from pebblesim.readings.kernels.triton import word_bytes
from pebblesim.readings.totals import LoopContext, totals
from pebblesim.units import Bytes


@dataclass(frozen=True)
class LaunchCost:
    """What a launch does, for all heads.

    Attributes:
        name: the launch's.
        programs: thread blocks.
        products: operations of matrix units on padded tiles, by the columns of an instruction.
        elementwise: operations on elements of padded tiles.
        beside: whether they stand in a loop with products, which other warps carry out meanwhile.
        dots: products of tiles, one after the other.
        passed: operands of these that were computed and go through shared memory.
        moved: bytes into multiprocessors and out of them.
        late: of what is read, bytes that no loop reads ahead.
        least: bytes of the parts of tensors that are touched, each counted once.
        storage: what a thread block holds.
    """

    name: str
    programs: int
    products: Mapping[int, int]
    elementwise: int
    beside: bool
    dots: int
    passed: int
    moved: Bytes
    late: int
    least: int
    storage: Storage


def launch_costs(
    tiling: Tiling, dims: Mapping[str, int], dtype: str, heads: int = 1, mask: Mask | None = None
) -> list[LaunchCost]:
    """What each launch does.

    Args:
        tiling: a schedule and its tiles.
        dims: dimensions of its problem.
        dtype: type of a word of a matrix.
        heads: problems of that size that are solved together.
        mask: which pairs are allowed.
    """
    schedule = get(tiling.schedule).in_dims(dims)
    program = schedule.program if mask is None else schedule.masked
    sizes = {**dims, **tiling.blocks}
    return [
        _cost(program, launch, sizes, dtype, heads, mask, tiling.warps, tiling.stages)
        for launch in launches(program, masked=True)
        if launch.kind == "tiles"
    ]


def _cost(
    program: ir.Program,
    launch: Launch,
    sizes: ir.Sizes,
    dtype: str,
    heads: int,
    mask: Mask | None,
    warps: int,
    stages: int,
) -> LaunchCost:
    late = set(_late(launch.block))
    read = {node.tile for node in ir.walk(launch.body) if isinstance(node, ir.Read)}
    found = totals(launch.body, sizes, partial(_amounts, sizes, dtype, warps, late, read), mask)
    touched: dict[ir.Tensor, int] = {}
    for node in ir.walk(launch.body):
        if isinstance(node, ir.Read | ir.Write):
            words = prod(node.tensor.sides(sizes))
            moved = found["reads", node.tensor] + found["writes", node.tensor]
            touched[node.tensor] = min(moved, words * word_bytes(node.tensor, dtype))
    return LaunchCost(
        name=launch.name,
        programs=blocks(launch, sizes, 1) * heads,
        products={width: found["products", width] * heads for width in sorted(_widths(launch.block, sizes, warps))},
        elementwise=found["elementwise"] * heads,
        beside=_beside(launch.block),
        dots=found["dots"] * heads,
        passed=found["passed"] * heads,
        moved=Bytes(_sum(found, "reads"), _sum(found, "writes")).each(lambda words: words * heads),
        late=found["late"] * heads,
        least=sum(touched.values()) * heads,
        storage=storage(launch, sizes, dtype, stages),
    )


def _sum(found: Mapping[Hashable, int], kind: str) -> int:
    return sum(amount for key, amount in found.items() if isinstance(key, tuple) and key[0] == kind)


def _beside(body: list[ir.Node]) -> bool:
    """Whether some loop itself holds both products and work on elements."""
    for loop in body:
        if isinstance(loop, ir.Loop):
            products = [isinstance(each.expr, ir.MatMul) for each in loop.body if isinstance(each, ir.Compute)]
            if (any(products) and not all(products)) or _beside(loop.body):
                return True
    return False


def _late(body: list[ir.Node]) -> Iterator[ir.Read]:
    """Reads outside of innermost loops, where there are such loops: nothing reads them ahead."""
    loops = [node for node in body if isinstance(node, ir.Loop)]
    if loops:
        yield from (node for node in body if isinstance(node, ir.Read))
        for loop in loops:
            yield from _late(loop.body)


def _widths(body: list[ir.Node], sizes: ir.Sizes, warps: int) -> set[int]:
    computes = (node.expr for node in ir.walk(body) if isinstance(node, ir.Compute))
    return {_width(expr, sizes, warps) for expr in computes if isinstance(expr, ir.MatMul)}


def _width(product: ir.MatMul, sizes: ir.Sizes, warps: int) -> int:
    """Columns of an instruction: four warps take 64 rows, and share columns where there are too few rows."""
    rows, columns = (padded(rng, sizes) for rng in product.shape)
    groups, high = max(1, warps // 4), max(1, rows // 64)
    return min(256, max(8, columns * high // groups) if high < groups else columns)


def _amounts(
    sizes: ir.Sizes,
    dtype: str,
    warps: int,
    late: set[ir.Read],
    read: set[ir.Tile],
    node: ir.Node,
    at: LoopContext,
) -> Iterator[tuple[Hashable, int]]:
    match node:
        case ir.Read(tile=tile, tensor=tensor):
            moved = at.words(tile.ranges) * word_bytes(tensor, dtype)
            yield ("reads", tensor), moved
            if node in late:
                yield "late", moved
        case ir.Write(tile=tile, tensor=tensor):
            yield ("writes", tensor), at.words(tile.ranges) * word_bytes(tensor, dtype)
        case ir.Compute(expr=ir.MatMul() as product):
            yield "dots", 1
            yield "passed", len(through_shared(product, read))
            terms = product.left.shape[1]
            yield ("products", _width(product, sizes, warps)), 2 * entries((*product.shape, terms), sizes)
        case ir.Compute(expr=expr):
            for shape in _operations(expr):
                yield "elementwise", entries(shape, sizes)


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
