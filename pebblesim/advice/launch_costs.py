"""The work of each launch of a schedule's kernels on tensor cores: executed operations, bytes moved, and blocks.

A kernel has only whole tiles: products are executed for the padded tile, also at ragged edges and under a mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any

from pebblesim.advice.programs import readings
from pebblesim.advice.tiles import IN_PARTS, Tiling
from pebblesim.analysis.totals import LoopContext, totals
from pebblesim.core.units import Bytes
from pebblesim.kernels.additions import added_to
from pebblesim.kernels.bands import launched_across
from pebblesim.kernels.gluon.plan import multiplies
from pebblesim.kernels.gluon.text import heads_together
from pebblesim.kernels.gluon.widths import in_parts
from pebblesim.kernels.orientation import turned
from pebblesim.kernels.passes.fills import filled_before
from pebblesim.kernels.readings import Reading
from pebblesim.kernels.tables import tables
from pebblesim.kernels.triton.storage import Storage, entries, padded, storage
from pebblesim.kernels.triton.triton import for_no_pair
from pebblesim.kernels.words import WORDS, phase_of, word_bytes
from pebblesim.language import program as ir
from pebblesim.language.loops import Times
from pebblesim.language.masks import Band, Mask
from pebblesim.language.tile_ranges import TileRange
from pebblesim.launches.launches import Launch, blocks, launches, moves, times

Round = tuple[tuple[float, int], ...]
"""The blocks of a launch: (time, number of blocks that take it)."""

Rounds = tuple[tuple[int, Round], ...]
"""The blocks of launches one after another: (number of launches in a row that are alike, the blocks of each)."""

ALL_REGISTERS = 256 * 1024
"""Bytes of registers of a multiprocessor, which a block of a Gluon kernel with products has for itself."""

WORDS_OF_SUMS = 4096
"""Words of sums that a block fills with zeros, or rounds."""

MOST_LISTED = 2**18
"""Tiles of rows or columns, of one head, up to which those of each launch under a mask are told apart."""


KEPT = 256
"""Works of a tiling at some sizes that are kept: other numbers of heads have the same."""

LINEAR = ("programs", "working", "elementwise", "beside", "begun", "masked", "added", "late", "least")
"""Plain numbers of a `LaunchCost` that are so many times as large for several heads."""


@dataclass(frozen=True, kw_only=True)
class LaunchCost:
    """The work of a launch, for all heads.

    Attributes:
        name: name of the launch.
        kinds: names of the kinds of launches that it is one of: those of this launch of its schedule; with tiles that
            do not divide its lengths; with so many edges of a mask; with this tile.
        times: how often it is launched; all other values are totals over these launches.
        heads: problems that are solved together.
        side_by_side: of these, heads whose blocks are ordered together, and not one head after another.
        programs: number of thread blocks.
        working: number of thread blocks that have work under the mask.
        rounds: the thread blocks with work of the times that it is launched, longest first: time of a block is in units
            of the average.
        products: operations of tensor cores on padded tiles, by the columns of an instruction.
        elementwise: operations on elements of padded tiles; where a tile that was read is changed, also its conversions
            to float32 and back.
        beside: others that are in a loop with products, which other warps execute at the same time; not where
            the products wait for a tile that was read.
        begun: innermost loops that are begun, by all blocks: what one reads is under way only after a while. A loop
            up to the edge of a mask, or over tiles of which the last is ragged, is written as two.
        masked: tests of pairs for an edge of a mask.
        moved: bytes into and out of the multiprocessors.
        added: bytes of these that are read to be added to, where memory adds: they stay there.
        late: bytes read that no loop prefetches.
        least: bytes of the parts of tensors that are read or written, each counted once for each launch.
        storage: storage of a thread block.
        warps, stages: of a thread block.
    """

    name: str
    kinds: tuple[str, ...]
    times: int = 1
    heads: int
    side_by_side: int
    programs: int
    working: int
    rounds: Rounds
    products: Mapping[int, int] = field(default_factory=dict)
    elementwise: int = 0
    beside: int = 0
    begun: int = 0
    masked: int = 0
    moved: Bytes
    added: int = 0
    late: int = 0
    least: int
    storage: Storage
    warps: int
    stages: int


ALIKE = {part: whole for whole, part in IN_PARTS.items()}
"""Schedules whose kernels are as fast as those of another one."""


class Memory:
    """Bytes of the tensors of a program as its kernels keep them."""

    def __init__(self, program: ir.Program, sizes: ir.Sizes, dtype: str, mask: Mask | None = None) -> None:
        self.sizes = sizes
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


def launch_costs(
    tiling: Tiling, dims: Mapping[str, int], dtype: str, heads: int = 1, mask: Mask | None = None
) -> list[LaunchCost]:
    """Compute the work of each launch.

    Args:
        tiling: a schedule and its tiles.
        dims: dimensions of its problem.
        dtype: type of a word of a matrix.
        heads: problems of that size that are solved together.
        mask: which pairs are allowed.
    """
    program, sizes, works = _works(tiling, tuple(dims.items()), dtype, mask)
    costs = [each.of(heads) for each in works]
    return costs + list(_of_sums(program, sizes, dtype, heads) if tiling.gluon else ())


@lru_cache(maxsize=KEPT)
def _works(
    tiling: Tiling, dims: tuple[tuple[str, int], ...], dtype: str, mask: Mask | None
) -> tuple[ir.Program, dict[str, int], list[_Work]]:
    """The program of a tiling, its sizes, and the work of each launch: alike for all numbers of heads."""
    given = dict(dims)
    program, sizes, read = tiling.traced(given, mask), {**given, **tiling.blocks}, readings(tiling, given, dtype, mask)
    return program, sizes, _works_of(program, tiling, sizes, dtype, mask, read)


@lru_cache(maxsize=KEPT)
def _launches(program: ir.Program, gluon: bool) -> tuple[Launch, ...]:
    """The launches of a program's kernels; those of Gluon may do fills of others."""
    made = launches(program, masked=True, repeated=True, adding=gluon)
    return tuple(filled_before([each for each in made if not for_no_pair(each)]) if gluon else made)


def costs_of(
    program: ir.Program,
    tiling: Tiling,
    sizes: ir.Sizes,
    dtype: str,
    heads: int,
    mask: Mask | None,
    read: Mapping[str, Reading],
) -> list[LaunchCost]:
    """Compute the work of each launch of a program with the tiles of a tiling.

    `read`: what its kernels' programs say, by the name of the launch; others are as for `launch_costs`.
    """
    return [each.of(heads) for each in _works_of(program, tiling, sizes, dtype, mask, read)]


def _works_of(
    program: ir.Program,
    tiling: Tiling,
    sizes: ir.Sizes,
    dtype: str,
    mask: Mask | None,
    read: Mapping[str, Reading],
) -> list[_Work]:
    memory = Memory(program, sizes, dtype, mask)
    return [
        _Work(program, launch, memory, dtype, mask, tiling, read[launch.name])
        for launch in _launches(program, tiling.gluon)
        if launch.kind == "tiles"
    ]


def _of_sums(program: ir.Program, sizes: ir.Sizes, dtype: str, heads: int) -> Iterator[LaunchCost]:
    """Yield the work for tensors that kernels add to in memory, in float32: zeros before, if no other launch writes
    them, and rounding behind."""
    filled = {node.tensor for launch in _launches(program, True) if launch.kind == "fill" for node in moves(launch)}
    for tensor in added_to(program):
        name = tensor.name
        words, wide = heads * prod(tensor.sides(sizes)), word_bytes(program, tensor, dtype)
        programs = -(-words // WORDS_OF_SUMS)
        zeros = [("zeros", 0, wide)] * (tensor in filled)
        for what, reads, writes in (*zeros, ("rounded", wide, WORDS[dtype])):
            yield LaunchCost(
                name=f"{name}, {what}",
                kinds=(f"{program.name}: {name}, {what}, Gluon",),
                heads=heads,
                side_by_side=1,
                programs=programs,
                working=programs,
                rounds=((1, ((1.0, programs),)),),
                moved=Bytes(reads * words, writes * words),
                least=(reads + writes) * words,
                storage=Storage(0, 4 * WORDS_OF_SUMS),
                warps=4,
                stages=1,
            )


class _Work:
    """The work of a launch of tiles, for one head; `of` gives it for several."""

    def __init__(
        self,
        program: ir.Program,
        launch: Launch,
        memory: Memory,
        dtype: str,
        mask: Mask | None,
        tiling: Tiling,
        read: Reading,
    ) -> None:
        (warps, stages), gluon, sizes = tiling.of(launch.name), tiling.gluon, memory.sizes
        amounts = _Amounts(launch, memory, mask, warps, read, in_parts if gluon else padded)
        summed = totals(launch.body, sizes, amounts, mask)
        launched = times(launch, sizes)
        touched: dict[tuple[str, ir.Tensor], int] = {}
        for node in moves(launch):
            way = "reads" if isinstance(node, ir.Read) else "writes"
            whole = memory.bytes(node.tensor) * (1 if _apart(node, launch) else launched)
            if mask is not None and node.tensor in memory.tables:
                n_q, n_k = program.grid(sizes)
                whole = whole * mask.pairs(n_q, n_k) // (n_q * n_k)
            touched[way, node.tensor] = min(summed[way, node.tensor], whole)
        spared = added_to(program) if gluon and multiplies(launch) else ()
        self._program, self._launch, self._sizes, self._dtype, self._mask = program, launch, sizes, dtype, mask
        self._ordered = gluon and mask is not None
        self._of_one = LaunchCost(
            name=launch.name,
            kinds=tuple(_kinds(program, launch, sizes, mask, gluon)),
            times=launched,
            heads=1,
            side_by_side=1,
            programs=_programs(launch, sizes, mask),
            working=summed["blocks"],
            rounds=(),
            products=dict(sorted(_by(summed, "products").items())),
            elementwise=summed["elementwise"],
            beside=summed["beside"],
            begun=summed["begun"],
            masked=sum(
                entries * (summed[node] if most is None else min(summed[node], most * summed["blocks"]))
                for node, (entries, most) in amounts.tested.items()
            ),
            moved=Bytes(*(sum(_by(summed, way).values()) for way in ("reads", "writes"))),
            added=sum(summed["reads", tensor] for tensor in spared),
            late=summed["late"],
            least=sum(touched.values()),
            storage=Storage(read.shared, ALL_REGISTERS) if read.shared else storage(launch, sizes, dtype, stages),
            warps=warps,
            stages=stages,
        )

    def of(self, heads: int) -> LaunchCost:
        """The work for so many heads."""
        one, launch, sizes = self._of_one, self._launch, self._sizes
        together = _side_by_side(self._program, launch, sizes, self._dtype, heads) if self._ordered else 1
        working = one.working * heads
        return replace(
            one,
            heads=heads,
            side_by_side=together,
            rounds=_rounds(launch, sizes, self._program, self._mask, working, heads),
            products={width: operations * heads for width, operations in one.products.items()},
            moved=Bytes(one.moved.reads * heads, one.moved.writes * heads),
            **{name: getattr(one, name) * heads for name in LINEAR},
        )


def _programs(launch: Launch, sizes: ir.Sizes, mask: Mask | None) -> int:
    """Thread blocks, with those that a mask leaves nothing to do."""
    total = blocks(launch, sizes, 1)
    for loop in launch.grid:
        across = launched_across(loop, mask, sizes)
        if across is not None:
            tiles = -(-sizes[loop.range.dim] // padded(loop.range, sizes))
            total = total // tiles * min(tiles, across)
    return total


def _side_by_side(program: ir.Program, launch: Launch, sizes: ir.Sizes, dtype: str, heads: int) -> int:
    """Heads whose blocks a Gluon kernel under a mask orders together: those of which L2 holds what they stream."""
    if len(launch.grid) > 1 or not multiplies(launch):
        return 1
    streamed = {
        node.tensor: prod(node.tensor.sides(sizes))
        for node in ir.walk(launch.block)
        if isinstance(node, ir.Read) and len(node.tile.ranges) == 2 and launch.grid[0].range not in node.tile.ranges
        if node.tensor.name in program.inputs
    }
    return heads_together(heads, sum(streamed.values()) * WORDS[dtype])


def _last(launch: Launch) -> ir.Node:
    """Work that each block does once."""
    return next(node for node in launch.block if not isinstance(node, ir.Loop))


def _rounds(
    launch: Launch, sizes: ir.Sizes, program: ir.Program, mask: Mask | None, working: int, heads: int
) -> Rounds:
    """The blocks of each time it is launched: under a mask, tiles of a grid have different numbers of tiles.

    Where a block has one tile, those that the mask leaves are alike. Of more launches than can be listed, evenly spaced
    ones stand for those next to them; if not even one launch can be listed, its blocks count as alike.
    """
    launched, grid, block = times(launch, sizes), {loop.range for loop in launch.grid}, launch.block
    inner = [condition for condition in _conditions(block) if grid & {condition.rows, condition.columns}]
    outer = [loop.when for loop in launch.grid if loop.when]
    if mask is None or not (inner or outer):
        return ((launched, ((1.0, blocks(launch, sizes, 1) * heads // launched),)),)
    (when, *_), own = (inner, True) if inner else (outer, False)
    (n_q, n_k), height = program.grid(sizes), padded(when.rows, sizes)
    columns, axis = TileRange(0, n_k, padded(when.columns, sizes)), int(when.columns in grid)
    step = n_q if launch.around is None else ir.length(launch.around.range.block, sizes)
    listed = min(launched, MOST_LISTED // (columns.number if axis else -(-step // height)))
    if not listed:
        return ((launched, ((1.0, -(-working // launched)),)),)
    others = [loop.range for loop in launch.grid if loop.range not in (when.rows, when.columns)]
    alike = heads * prod(-(-sizes[rng.dim] // padded(rng, sizes)) for rng in others)
    found: list[tuple[int, Counter[int]]] = []
    for first, last in pairwise(launched * each // listed for each in range(listed + 1)):
        start = (first + last) // 2 * step
        rows = TileRange(start, min(start + step, n_q), height)
        if own:
            met = mask.met((n_q, n_k), rows, columns, axis).tolist()
            found.append((last - first, Counter(each for each in met if each or not outer)))
        else:
            met = mask.tiles((n_q, n_k), rows, columns)
            found.append((last - first, Counter({1: rows.number * columns.number - met if when.none else met})))
    work = sum(launches * each * number for launches, of_one in found for each, number in of_one.items())
    average = work / sum(launches * of_one.total() for launches, of_one in found) if work else 1.0
    return tuple(
        (launches, tuple((work / average, number * alike) for work, number in sorted(of_one.items(), reverse=True)))
        for launches, of_one in found
    )


def _conditions(body: list[ir.Node]) -> list[ir.MaskCondition]:
    """The conditions of the loops of a body."""
    return [loop.when for loop in ir.walk(body) if isinstance(loop, ir.Loop) and loop.when]


def _apart(node: ir.Read | ir.Write | ir.Init, launch: Launch) -> bool:
    """Whether each time it is launched it has a part of the tensor of its own."""
    return launch.around is not None and any(rng.outermost is launch.around.range for rng in ir.moved_part(node))


def _by(amounts: Mapping[Hashable, int], kind: str) -> dict[Any, int]:
    """The amounts of a kind, by what they are of."""
    return {key[1]: amount for key, amount in amounts.items() if isinstance(key, tuple) and key[0] == kind}


def _beside(body: list[ir.Node], read: set[ir.Tile]) -> Iterator[ir.Node]:
    """Work on elements in loops that themselves hold products, too, of other tiles than those that were read."""
    for loop in body:
        if isinstance(loop, ir.Loop):
            computes = [node for node in loop.body if isinstance(node, ir.Compute) and not _changes(node, read)]
            others = [node for node in computes if not isinstance(node.expr, ir.MatMul)]
            if len(others) < len(computes):
                yield from others
            yield from _beside(loop.body, read)


def _kinds(program: ir.Program, launch: Launch, sizes: ir.Sizes, mask: Mask | None, gluon: bool) -> Iterator[str]:
    """Names of the kinds of launches that a launch is one of, the widest first."""
    each = f"{ALIKE.get(program.name, program.name)}: {phase_of(launch.name)}" + ", Gluon" * gluon
    yield each
    ranges = {loop.range for loop in (*launch.grid, *ir.walk(launch.block)) if isinstance(loop, ir.Loop)}
    cut = [rng for rng in ranges if rng.parent is not None and rng.dim.startswith("n")]
    if any(sizes[rng.dim] % padded(rng, sizes) for rng in cut):
        yield f"{each}, ragged"
    if isinstance(mask, Band):
        edges = (mask.before is not None) + (mask.after is not None)
        yield f"{each}, mask with {edges} edge{'s' * (edges > 1)}"
    widest = max((sizes[dim] for dim in program.dims if dim.startswith("d")), default=1)
    blocks = " ".join(f"{name}={sizes[name]}" for name in program.blocks)
    yield f"{each}, {blocks} d={1 << (widest - 1).bit_length()}"


def _nodes(launch: Launch, line: int) -> list[ir.Node]:
    """The primitives of the loop in a line, or of a block (0)."""
    loops = (loop for loop in ir.walk(launch.block) if isinstance(loop, ir.Loop) and loop.line == line)
    return next((loop.body for loop in loops), launch.block)


def _begun(launch: Launch, read: Reading) -> dict[ir.Node, int]:
    """Innermost loops that begin each time that a node is done; one where a block has none, since it reads, too."""
    begun: dict[ir.Node, int] = {}
    for line, each in read.iterations.items():
        if each.begins:
            beside = next((node for node in _nodes(launch, line) if not isinstance(node, ir.Loop)), _last(launch))
            begun[beside] = begun.get(beside, 0) + each.begins
    return begun or {_last(launch): 1}


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
        beside = next(node for node in nodes if not isinstance(node, ir.Loop)) if loop else _last(launch)
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


class _Amounts:
    """Bytes and operations that are counted of the nodes of a launch, for one head; see `LaunchCost`."""

    def __init__(
        self,
        launch: Launch,
        memory: Memory,
        mask: Mask | None,
        warps: int,
        read: Reading,
        side: Callable[[ir.Range, ir.Sizes], int],
    ) -> None:
        self._side = side
        nodes, self._sizes, self._memory, self._warps = list(ir.walk(launch.body)), memory.sizes, memory, warps
        self._transposed, self._last = turned(nodes), _last(launch)
        self._read = {node.tile for node in nodes if isinstance(node, ir.Read)}
        self._late, self._beside = set(_late(launch.block)), set(_beside(launch.block, self._read))
        self._begun, self.tested = _begun(launch, read), _tested(launch, self._sizes, mask, read)

    def __call__(self, node: ir.Node, at: LoopContext) -> Iterator[tuple[Hashable, Times]]:
        if node is self._last:
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
