"""`storage`: bytes that a thread block of a Triton kernel holds, sums in registers and operands in shared memory.

The game has one cache of equal words. On tensor cores a tile that is read for a product is in shared memory, in 16-bit
words; in a pipelined loop there are as many copies as stages. Sums, and values computed from them, are in registers in
float32. A computed value passes through shared memory if a product uses it transposed or as its right operand.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from math import prod

from pebblesim.kernels.orientation import turned
from pebblesim.kernels.products import factors, products
from pebblesim.kernels.words import WORDS
from pebblesim.language import program as ir
from pebblesim.launches.launches import Launch, lifetimes_of, peak


@dataclass(frozen=True)
class Storage:
    """Bytes that a thread block holds at once.

    Attributes:
        shared: bytes of shared memory.
        registers: peak bytes of tiles (not of vectors) in registers, counted twice for tiles that pass through shared
            memory, and not for tiles that are only an operand entry by entry, which are read part by part; plus the
            64-bit addresses of the entries that a loop writes while it holds other tiles, without which a tile is
            written part by part.
    """

    shared: int
    registers: int


def padded(rng: ir.Range, sizes: ir.Sizes) -> int:
    """Number of indices of a tile in a kernel: the block, or for a whole dimension the next power of two."""
    return 1 << (sizes[rng.name] - 1).bit_length() if rng.parent is None else ir.length(rng.block, sizes)


def entries(ranges: ir.Ranges, sizes: ir.Sizes) -> int:
    """Number of entries of a tile in a kernel."""
    return prod(padded(rng, sizes) for rng in ranges)


def storage(launch: Launch, sizes: ir.Sizes, dtype: str, stages: int) -> Storage:
    """Compute the storage of a thread block of a launch.

    Args:
        launch: a launch of kind "tiles".
        sizes: dimensions and blocks by name; blocks are powers of two.
        dtype: data type of the words of a matrix.
        stages: number of copies of the tiles that a pipelined loop reads.
    """
    nodes = list(ir.walk(launch.block))
    made = list(map(factors, products(nodes)))
    operands = {ref.tile for product in made for ref in ir.refs(product)}
    read = {node.tile for node in nodes if isinstance(node, ir.Read)}
    width = WORDS[dtype]

    def operand(node: ir.Read) -> int:
        return entries(node.tile.ranges, sizes) * width if node.tile in operands else 0

    held = _held(launch.block, operand, stages, False)
    transposed = turned(nodes)
    passed = {ref.tile for product in made for ref in through_shared(product, read, transposed)}
    largest = max((entries(tile.ranges, sizes) for tile in passed), default=0)
    changed = {node.target.tile for node in nodes if isinstance(node, ir.Compute)}
    held_in_registers = {
        tile: life
        for tile, life in lifetimes_of(launch.block).items()
        if len(tile.ranges) == 2 and tile not in read - changed
    }
    room = {tile: 4 * entries(tile.ranges, sizes) for tile in held_in_registers}
    at, lives = {node: number for number, node in enumerate(nodes)}, held_in_registers.items()
    beside = [
        entries(node.tile.ranges, sizes)
        for node in _looped(launch.block)
        if any(tile is not node.tile and enters <= at[node] < leaves for tile, (enters, leaves) in lives)
    ]
    addresses = 8 * max(beside, default=0)
    return Storage(held + width * largest, peak(room, held_in_registers) + 4 * largest + addresses)


def through_shared(product: ir.MatMul, read: Container[ir.Tile], turned: Container[ir.Tile]) -> list[ir.Ref]:
    """Return computed operands that tensor cores read from shared memory.

    All but a left one that is held as the product takes it; `turned` are the tiles that are held transposed.
    """
    return [
        ref
        for ref, right in ((product.left, False), (product.right, True))
        if ref.tile not in read and (right or ref.transposed != (ref.tile in turned))
    ]


def _looped(body: list[ir.Node]) -> Iterator[ir.Write]:
    """Yield the writes inside loops."""
    for loop in body:
        if isinstance(loop, ir.Loop):
            yield from (node for node in ir.walk(loop.body) if isinstance(node, ir.Write))


def _held(body: list[ir.Node], room: Callable[[ir.Read], int], stages: int, pipelined: bool) -> int:
    """Bytes of what a body reads, `stages` copies in innermost loops; one loop has the room of another before it."""
    loops = [node for node in body if isinstance(node, ir.Loop)]
    own = sum(room(node) for node in body if isinstance(node, ir.Read)) * (stages if pipelined else 1)
    innermost = (not any(isinstance(inner, ir.Loop) for inner in ir.walk(loop.body)) for loop in loops)
    within = (_held(loop.body, room, stages, last) for loop, last in zip(loops, innermost, strict=True))
    return own + max(within, default=0)
