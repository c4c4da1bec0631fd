"""The launches of a program on a GPU: parallel work, dependencies, and addresses of tiles in shared memory.

A phase is cut wherever the cache is empty. Each piece is a launch, and launches run one after the other. If a piece is
a loop with independent iterations, each iteration is a thread block; nested independent loops give a grid. A loop that
is not independent runs in one block, as in the paper. If its iterations share only sums, it can instead be split among
P workers, one block each: each worker has its own copies of the sums in memory, and a last launch adds them up. Or,
if the cache is empty between its parts, it runs outside of the launches: all of them once for each of its iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Literal

from pebblesim.analysis.totals import words
from pebblesim.core.errors import UsageError
from pebblesim.language import program as ir
from pebblesim.language.loops import in_parts

KEPT = 512
"""Programs whose launches are kept, and launches whose moves are: forecasts ask for them many times."""

MOST_ORDERS = 1000
"""Most orders of tiles that the layout search tries."""


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel.

    Attributes:
        name: the phase, with a number if it has several launches.
        kind: "tiles"; "fill" to write a constant; or "sum" to add up the workers' copies of a tensor.
        body: the statements, as in the program.
        grid: independent loops; each of their iterations is a thread block. Empty: one block.
        split: the loop that is split among the workers, one block each; also set for the launches before and after it.
        copies: tensors with a separate copy for each worker, which the launch fills, writes or adds up.
        around: the loop whose iterations each run the launch once; None: it runs once.
    """

    name: str
    kind: Literal["tiles", "fill", "sum"]
    body: list[ir.Node]
    grid: tuple[ir.Loop, ...] = ()
    split: ir.Loop | None = None
    copies: tuple[ir.Tensor, ...] = ()
    around: ir.Loop | None = None

    @property
    def block(self) -> list[ir.Node]:
        """The statements of a thread block."""
        return self.grid[-1].body if self.grid else self.body

    def with_block(self, body: list[ir.Node]) -> Launch:
        """The launch with other statements of a thread block."""
        grid: list[ir.Loop] = []
        for loop in reversed(self.grid):
            grid.insert(0, replace(loop, body=body))
            body = [grid[0]]
        return replace(self, grid=tuple(grid), body=body)


@dataclass(frozen=True)
class Layout:
    """Layout of a launch's tiles in shared memory: the first word of each tile, and the total number of words."""

    offsets: dict[ir.Tile, int]
    words: int


def launches(
    program: ir.Program, workers: int = 1, masked: bool = False, repeated: bool = False, adding: bool = False
) -> list[Launch]:
    """The launches of a program, in order.

    Args:
        program: a traced schedule.
        workers: largest number of blocks for a loop that carries sums; the paper has 1.
        masked: whether the kernels can skip tiles under a mask.
        repeated: whether a loop can run outside of its launches.
        adding: whether blocks can add to the same sums in memory; then a loop that shares only such sums is a grid.

    Raises:
        UsageError: the program skips tiles under a mask, but the kernels cannot.
    """
    if program.pairs is not None and not masked:
        raise UsageError(f"{program.name} has no CUDA kernels under a mask; leave the mask out.")
    return [*_launches(program, workers, repeated, adding)]


@lru_cache(maxsize=KEPT)
def _launches(program: ir.Program, workers: int, repeated: bool, adding: bool) -> tuple[Launch, ...]:
    return tuple(
        launch
        for phase in program.phases
        for launch in _of_pieces(phase.name, list(_pieces(phase.body)), workers, repeated, adding)
    )


def check_alike(program: ir.Program) -> None:
    """Refuse a program that treats a first part of a dimension apart: no kernel is written for it.

    Raises:
        UsageError: it is such a program.
    """
    if in_parts(program):
        raise UsageError(
            f"{program.name} treats a first part of a dimension apart, so its iterations are no thread blocks that are "
            "alike; take a schedule without such a part."
        )


@lru_cache(maxsize=KEPT)
def moves(launch: Launch) -> tuple[ir.Read | ir.Write | ir.Init, ...]:
    """The primitives of a launch that move words between cache and memory."""
    return tuple(node for node in ir.walk(launch.body) if isinstance(node, ir.Read | ir.Write | ir.Init))


def used_in_turn(program: ir.Program, made: list[Launch]) -> dict[ir.Tensor, ir.Range]:
    """Tensors whose rows are in use for one iteration of a loop around launches, and the range of that loop."""
    parts: dict[ir.Tensor, ir.Range] = {}
    for name, tensor in program.tensors.items():
        if tensor.apart or name in (*program.inputs, *program.outputs):
            continue
        moved = {node: launch.around for launch in made for node in moves(launch) if node.tensor is tensor}
        loops = set(moved.values())
        loop = loops.pop() if len(loops) == 1 else None
        if loop is not None and all(
            isinstance(node, ir.Read | ir.Write) and node.tile.ranges[0].outermost is loop.range for node in moved
        ):
            parts[tensor] = loop.range
    return parts


def shares(launch: Launch, sizes: ir.Sizes, workers: int) -> int:
    """Number of workers with iterations: all but the last have equally many, and none has zero."""
    if launch.split is None:
        return 1
    tiles = _tiles(launch.split.range, sizes)
    return -(-tiles // -(-tiles // workers))


def blocks(launch: Launch, sizes: ir.Sizes, workers: int) -> int:
    """Number of thread blocks of a launch of tiles, of all the times that it runs."""
    if launch.split is not None:
        return shares(launch, sizes, workers)
    if launch.around is None:
        return prod(_tiles(loop.range, sizes) for loop in launch.grid)
    within = launch.around.range
    length = ir.length(within.block, sizes)
    full, rest = divmod(sizes[within.dim], length)
    total = 0
    for times, rows in ((full, length), (1 if rest else 0, rest)):
        counts = (
            -(-rows // ir.length(loop.range.block, sizes)) if loop.range.parent is within else _tiles(loop.range, sizes)
            for loop in launch.grid
        )
        total += times * prod(counts)
    return total


def times(launch: Launch, sizes: ir.Sizes) -> int:
    """How often it is launched."""
    return 1 if launch.around is None else _tiles(launch.around.range, sizes)


def layout(launch: Launch, sizes: ir.Sizes, several: Mapping[ir.Tile, int] | None = None) -> Layout:
    """Place the tiles of a launch in as few words as the search finds; the lower limit is the peak of words.

    A tile occupies its address range only while it is in the cache; other tiles may use the range before and after.
    `several` says of which tiles there is more than one, one after the other.
    """
    lifetimes = lifetimes_of(launch.block)
    lengths = largest_lengths(launch, sizes)
    room = {tile: words(tile.ranges, sizes, lengths) * (several or {}).get(tile, 1) for tile in lifetimes}
    least = peak(room, lifetimes)
    best: tuple[int, dict[ir.Tile, int]] | None = None
    for order in _orders(list(lifetimes), lambda tile: -room[tile]):
        placed = _placed(order, room, lifetimes)
        if best is None or placed[0] < best[0]:
            best = placed
        if best[0] == least:
            break
    assert best is not None
    return Layout(best[1], best[0])


def _orders(tiles: list[ir.Tile], smallness: Callable[[ir.Tile], int]) -> Iterator[list[ir.Tile]]:
    """Yield orders of tiles: the given order, the largest first, then random orders with a fixed seed."""
    yield tiles
    yield sorted(tiles, key=smallness)
    from random import Random

    chance = Random(0)
    for _ in range(MOST_ORDERS):
        yield chance.sample(tiles, len(tiles))


def largest_lengths(launch: Launch, sizes: ir.Sizes) -> dict[ir.Range, int]:
    """Return the length of each loop range of the launch in its first iteration, where it is largest."""
    lengths: dict[ir.Range, int] = {}
    for node in (*launch.grid, *ir.walk(launch.block)):
        if isinstance(node, ir.Loop):
            assert node.range.parent is not None
            lengths[node.range] = min(words((node.range.parent,), sizes, lengths), ir.length(node.range.block, sizes))
    return lengths


def lifetimes_of(body: list[ir.Node]) -> dict[ir.Tile, tuple[int, int]]:
    """Return the lifetime of each tile: the numbers of the nodes with which it enters and leaves the cache."""
    first: dict[ir.Tile, int] = {}
    last: dict[ir.Tile, int] = {}
    number = 0
    for number, node in enumerate(ir.walk(body)):
        if tile := ir.entering(node):
            first[tile] = number
        elif tile := ir.leaving(node):
            last[tile] = number
    return {tile: (start, last.get(tile, number + 1)) for tile, start in first.items()}


def peak(room: Mapping[ir.Tile, int], lifetimes: Mapping[ir.Tile, tuple[int, int]]) -> int:
    """Most room that some tiles take at the same time, by the room of each."""
    begun = (at for at, _ in lifetimes.values())
    return max((sum(room[tile] for tile, (a, b) in lifetimes.items() if a <= at < b) for at in begun), default=0)


def _placed(
    order: list[ir.Tile], room: dict[ir.Tile, int], lifetimes: dict[ir.Tile, tuple[int, int]]
) -> tuple[int, dict[ir.Tile, int]]:
    """Place each tile, in this order, at the lowest address that is free during its lifetime."""
    offsets: dict[ir.Tile, int] = {}
    for tile in order:
        start, end = lifetimes[tile]
        taken = sorted(
            (offsets[other], offsets[other] + room[other])
            for other in offsets
            if lifetimes[other][0] < end and start < lifetimes[other][1]
        )
        at = 0
        for low, high in taken:
            if low - at >= room[tile]:
                break
            at = max(at, high)
        offsets[tile] = at
    return max((offsets[tile] + room[tile] for tile in offsets), default=0), offsets


def _tiles(rng: ir.Range, sizes: ir.Sizes) -> int:
    assert rng.parent is not None and rng.parent.parent is None
    begin, end = ir.stretch(rng, sizes[rng.dim], sizes)
    return -(-(end - begin) // ir.length(rng.block, sizes))


def _pieces(body: list[ir.Node]) -> Iterator[list[ir.Node]]:
    """Yield the parts of a phase between which the cache is empty."""
    piece: list[ir.Node] = []
    resident: set[ir.Tile] = set()
    for node in body:
        piece.append(node)
        if tile := ir.entering(node):
            resident.add(tile)
        elif tile := ir.leaving(node):
            resident.discard(tile)
        if not resident:
            yield piece
            piece = []
    if piece:
        yield piece


def _of_pieces(name: str, pieces: list[list[ir.Node]], workers: int, repeated: bool, adding: bool) -> list[Launch]:
    made: list[Launch] = []
    for number, piece in enumerate(pieces):
        called = name if len(pieces) == 1 else f"{name} {number + 1}"
        if len(piece) == 1 and isinstance(piece[0], ir.Init):
            made.append(Launch(called, "fill", piece))
            continue
        if repeated and (several := list(_repeated(piece))):
            made += several
            continue
        zeroed = {tensor for other in made for node in other.body if (tensor := _zeroed(node))}
        loop, copies = _split(piece, zeroed) if workers > 1 or adding else (None, ())
        if adding and loop is not None and piece == [loop]:
            made.append(Launch(called, "tiles", piece, (loop,)))
            continue
        if loop is None or workers == 1:
            made.append(Launch(called, "tiles", piece, _grid(piece)))
            continue
        for at, other in enumerate(made):  # each worker's copy of a sum in memory starts at zero
            if other.kind == "fill" and (own := tuple(t for t in copies if _fills(other, t))):
                made[at] = replace(other, split=loop, copies=own)
        made.append(Launch(called, "tiles", piece, (), loop, copies))
        made += [Launch(f"{called}, sum of {copy.name}", "sum", [], (), loop, (copy,)) for copy in copies]
    return made


def _repeated(piece: list[ir.Node]) -> Iterator[Launch]:
    """The launches of each iteration of a loop, named after what they write; none if it is no loop around launches."""
    if len(piece) != 1 or not isinstance(loop := piece[0], ir.Loop) or loop.independent or loop.when is not None:
        return
    assert loop.range.parent is not None
    parts = list(_pieces(loop.body))
    if loop.range.parent.parent is not None or len(parts) == 1 or not all(_grid(part, loop.range) for part in parts):
        return
    for part in parts:
        written = dict.fromkeys(node.tensor.name for node in ir.walk(part) if isinstance(node, ir.Write))
        yield Launch(", ".join(written), "tiles", [replace(loop, body=part)], _grid(part, loop.range), around=loop)


def _split(piece: list[ir.Node], zeroed: set[ir.Tensor]) -> tuple[ir.Loop | None, tuple[ir.Tensor, ...]]:
    """Return the loop of a piece that can be split among workers, and the tensors that each worker then copies.

    This is possible if the iterations share only sums that start at zero: tiles that the piece creates, adds to and
    writes, or parts of a tensor that are read, added to and written back.
    """
    nothing: tuple[None, tuple[()]] = None, ()
    loops = [node for node in piece if isinstance(node, ir.Loop)]
    if len(loops) != 1 or loops[0].independent:
        return nothing
    loop, at = loops[0], piece.index(loops[0])
    assert loop.range.parent is not None
    carried = {node.tile for node in piece[:at] if isinstance(node, ir.Zeros)}
    written = [node for node in piece[at + 1 :] if isinstance(node, ir.Write)]
    if (
        loop.range.parent.parent is not None
        or len(carried) != at
        or not all(isinstance(node, ir.Write | ir.Delete) for node in piece[at + 1 :])
        or {node.tile for node in written} != carried
    ):
        return nothing
    inner = list(ir.walk(loop.body))
    shared: dict[ir.Tensor, set[ir.Tile]] = {}  # tensors that several iterations write, and the tiles that hold them
    for node in inner:
        if isinstance(node, ir.Init):
            return nothing
        if isinstance(node, ir.Write):
            shared.setdefault(node.tensor, set()).add(node.tile)
    for tensor in list(shared):
        moves = [node for node in inner if isinstance(node, ir.Read | ir.Write) and node.tensor is tensor]
        if all(any(rng and rng.within(loop.range) for rng in (*node.tile.ranges, node.at)) for node in moves):
            del shared[tensor]  # each iteration has its own part
        elif tensor not in zeroed or shared[tensor] != {node.tile for node in moves if isinstance(node, ir.Read)}:
            return nothing
    sums = carried.union(*shared.values())
    if not all(_only_adds(node, sums) for node in inner):
        return nothing
    return loop, tuple(dict.fromkeys((*(node.tensor for node in written), *shared)))


def _only_adds(node: ir.Node, sums: set[ir.Tile]) -> bool:
    """Whether a node uses these tiles only as sums."""
    if isinstance(node, ir.Compute):
        return (node.target.tile not in sums or node.mode == "add") and not any(
            ref.tile in sums for ref in ir.refs(node.expr)
        )
    return not (isinstance(node, ir.Move) and {node.tile, node.source} & sums)


def _fills(launch: Launch, tensor: ir.Tensor) -> bool:
    return any(isinstance(node, ir.Init) and node.tensor is tensor for node in launch.body)


def _zeroed(node: ir.Node) -> ir.Tensor | None:
    """Return the tensor that a node fills with zeros, or None."""
    if isinstance(node, ir.Init) and node.value == 0 and all(rng.parent is None for rng in node.ranges):
        return node.tensor
    return None


def _grid(piece: list[ir.Node], around: ir.Range | None = None) -> tuple[ir.Loop, ...]:
    """Return the perfectly nested independent loops, outermost first; the last one's body is that of a block.

    They run over tiles of dimensions, or of the tile `around`.
    """
    grid: list[ir.Loop] = []
    body = piece
    while len(body) == 1 and isinstance(loop := body[0], ir.Loop) and loop.independent:
        assert loop.range.parent is not None
        if loop.range.parent.parent is not None and loop.range.parent is not around:
            break  # tiles of a tile: their number would differ between blocks
        grid.append(loop)
        body = loop.body
    return tuple(grid)
