"""The work of each launch of a schedule's kernels on tensor cores: executed operations, bytes moved, and blocks.

A kernel has only whole tiles: products are executed for the padded tile, also at ragged edges and under a mask.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any

from pebblesim.advice.launch_amounts import Amounts, Memory
from pebblesim.advice.launch_rounds import Rounds, uneven_rounds
from pebblesim.advice.programs import readings
from pebblesim.advice.tiles import IN_PARTS, Tiling
from pebblesim.analysis.totals import totals
from pebblesim.core.units import Bytes
from pebblesim.kernels.additions import added_to
from pebblesim.kernels.bands import launched_across
from pebblesim.kernels.gluon.plan import multiplies
from pebblesim.kernels.gluon.text import heads_together
from pebblesim.kernels.gluon.widths import in_parts
from pebblesim.kernels.passes.fills import filled_before
from pebblesim.kernels.readings import Reading
from pebblesim.kernels.triton.storage import Storage, padded, storage
from pebblesim.kernels.triton.triton import for_no_pair
from pebblesim.kernels.words import WORDS, phase_of, word_bytes
from pebblesim.language import program as ir
from pebblesim.language.masks import Band, Mask
from pebblesim.launches.launches import Launch, blocks, launches, moves, times

ALL_REGISTERS = 256 * 1024
"""Bytes of registers of a multiprocessor, which a block of a Gluon kernel with products has for itself."""

WORDS_OF_SUMS = 4096
"""Words of sums that a block fills with zeros, or rounds."""

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
    costs = [each.times(heads) for each in works]
    return costs + list(_of_sums(program, sizes, dtype, heads) if tiling.gluon else ())


@lru_cache(maxsize=KEPT)
def _works(
    tiling: Tiling, dims: tuple[tuple[str, int], ...], dtype: str, mask: Mask | None
) -> tuple[ir.Program, dict[str, int], list[_OfHead]]:
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
    return [each.times(heads) for each in _works_of(program, tiling, sizes, dtype, mask, read)]


def _works_of(
    program: ir.Program,
    tiling: Tiling,
    sizes: ir.Sizes,
    dtype: str,
    mask: Mask | None,
    read: Mapping[str, Reading],
) -> list[_OfHead]:
    memory = Memory(program, sizes, dtype, mask)
    return [
        _of_head(launch, memory, tiling, read[launch.name])
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


@dataclass(frozen=True)
class _OfHead:
    """The work of a launch of tiles, for one head.

    Attributes:
        cost: it; without rounds where all blocks count as alike.
        streamed: bytes that its blocks stream, if a kernel orders the blocks of several heads together; else 0.
    """

    cost: LaunchCost
    streamed: int

    def times(self, heads: int) -> LaunchCost:
        """The work for so many heads."""
        one = self.cost
        rounds = tuple(
            (launched, tuple((time, number * heads) for time, number in blocks)) for launched, blocks in one.rounds
        )
        return replace(
            one,
            heads=heads,
            side_by_side=heads_together(heads, self.streamed) if self.streamed else 1,
            rounds=rounds or ((one.times, ((1.0, -(-one.working * heads // one.times)),)),),
            products={width: operations * heads for width, operations in one.products.items()},
            moved=one.moved.each(lambda amount: amount * heads),
            **{name: getattr(one, name) * heads for name in LINEAR},
        )


def _of_head(launch: Launch, memory: Memory, tiling: Tiling, read: Reading) -> _OfHead:
    """The work of a launch of tiles, for one head."""
    (warps, stages), gluon, sizes = tiling.of(launch.name), tiling.gluon, memory.sizes
    program, mask = memory.program, memory.mask
    amounts = Amounts(launch, memory, warps, read, in_parts if gluon else padded)
    summed = totals(launch.body, sizes, amounts, mask)
    spared = added_to(program) if gluon and multiplies(launch) else ()
    cost = LaunchCost(
        name=launch.name,
        kinds=tuple(_kinds(program, launch, sizes, mask, gluon)),
        times=times(launch, sizes),
        heads=1,
        side_by_side=1,
        programs=_programs(launch, sizes, mask),
        working=summed["blocks"],
        rounds=uneven_rounds(launch, sizes, program, mask),
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
        least=_least(launch, memory, summed),
        storage=Storage(read.shared, ALL_REGISTERS) if read.shared else storage(launch, sizes, memory.dtype, stages),
        warps=warps,
        stages=stages,
    )
    return _OfHead(cost, _streamed(launch, memory) if gluon and mask is not None else 0)


def _least(launch: Launch, memory: Memory, moved: Mapping[Hashable, int]) -> int:
    """Bytes of the parts of tensors that are read or written, each counted once for each launch."""
    sizes, mask, touched = memory.sizes, memory.mask, dict[Hashable, int]()
    for node in moves(launch):
        key = ("reads" if isinstance(node, ir.Read) else "writes", node.tensor)
        whole = memory.bytes(node.tensor) * (1 if _apart(node, launch) else times(launch, sizes))
        if mask is not None and node.tensor in memory.tables:
            n_q, n_k = memory.program.grid(sizes)
            whole = whole * mask.pairs(n_q, n_k) // (n_q * n_k)
        touched[key] = min(moved[key], whole)
    return sum(touched.values())


def _streamed(launch: Launch, memory: Memory) -> int:
    """Bytes of a head that the blocks of a Gluon kernel stream; 0 where it does not order heads together for them."""
    if len(launch.grid) > 1 or not multiplies(launch):
        return 0
    streamed = {
        node.tensor: prod(node.tensor.sides(memory.sizes))
        for node in ir.walk(launch.block)
        if isinstance(node, ir.Read) and len(node.tile.ranges) == 2 and launch.grid[0].range not in node.tile.ranges
        if node.tensor.name in memory.program.inputs
    }
    return sum(streamed.values()) * WORDS[memory.dtype]


def _programs(launch: Launch, sizes: ir.Sizes, mask: Mask | None) -> int:
    """Thread blocks, with those that a mask leaves nothing to do."""
    total = blocks(launch, sizes, 1)
    for loop in launch.grid:
        across = launched_across(loop, mask, sizes)
        if across is not None:
            tiles = -(-sizes[loop.range.dim] // padded(loop.range, sizes))
            total = total // tiles * min(tiles, across)
    return total


def _apart(node: ir.Read | ir.Write | ir.Init, launch: Launch) -> bool:
    """Whether each time it is launched it has a part of the tensor of its own."""
    return launch.around is not None and any(rng.outermost is launch.around.range for rng in ir.moved_part(node))


def _by(amounts: Mapping[Hashable, int], kind: str) -> dict[Any, int]:
    """The amounts of a kind, by what they are of."""
    return {key[1]: amount for key, amount in amounts.items() if isinstance(key, tuple) and key[0] == kind}


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
