"""`accesses`: the words that a schedule touches, in order, as requests to an automatic cache.

There are two machines. The first has a scratchpad for the schedule's tiles, so the requests are only the tiles that the
schedule reads and writes. The second has no scratchpad: every operand and every result of every operation is a request,
and reading or writing a tile is not a request itself. There a tile is stored where it was read from, or where it will
be written to; a tile that is changed and not written back, or never written, has its own place. Zeros are written, and
a tile that takes over the words of another is a copy.

Matrices are cut into items so that each tile consists of whole ones. The operations of the second machine on tiles
touch each operand once, and then the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import gcd, prod
from types import MappingProxyType
from typing import Literal

import numpy as np

from pebblesim.cachesim.homes import Machine, homes_of, longest, step_of, touches
from pebblesim.cachesim.requests import (
    MOST_ITEMS,
    MOST_REQUESTS,
    PIECE,
    READ,
    START,
    UPDATE,
    WRITE,
    Array,
    Batch,
    Part,
    StoredMatrix,
    Stream,
    StreamInParts,
    joined,
    kept_short,
)
from pebblesim.core.errors import UsageError
from pebblesim.language import program as ir
from pebblesim.language.loops import EveryTile, operations
from pebblesim.language.masks import Band, Mask

Grain = Literal["tiles", "words"]

LONG = 2**16
"""Iterations of more requests are not derived from the first two, but made each by itself."""


def accesses(
    program: ir.Program, sizes: ir.Sizes, machine: Machine = "moves", grain: Grain = "tiles", mask: Mask | None = None
) -> Stream:
    """Return the requests of a program.

    Args:
        program: a traced schedule, under the mask if there is one.
        sizes: the value of each dimension and block, by name.
        machine: "moves" for one with a scratchpad, "uses" for one without.
        grain: "tiles" for blocks that tiles are made of, "words" for single words.
        mask: which pairs are allowed; partial tiles are touched whole.

    Raises:
        UsageError: there are too many requests.
    """
    return accesses_in_parts(program, sizes, machine, grain, mask).whole()


def accesses_in_parts(
    program: ir.Program, sizes: ir.Sizes, machine: Machine, grain: Grain, mask: Mask | None
) -> StreamInParts:
    """Return the requests of a program as `accesses` does, in parts: they are never all in memory."""
    walker = _Walker(program, sizes, machine, grain, mask)
    parts = tuple(kept_short(part for phase in program.phases for part in walker.body(phase.body)))
    return StreamInParts(parts, *walker.items())


def accesses_of_blocks(
    program: ir.Program,
    sizes: ir.Sizes,
    body: list[ir.Node],
    grid: tuple[ir.Loop, ...],
    mask: Mask | None = None,
    backwards: bool = False,
    rows: Mapping[ir.Range, tuple[int, int]] | None = None,
) -> Stream:
    """Return the moves of the thread blocks of a kernel, tile by tile, one block after the other.

    Args:
        program, sizes, mask: as for `accesses`.
        body: the statements of the kernel.
        grid: its perfectly nested outer loops; a thread block is an iteration of the last. None: one block.
        backwards: whether a block walks its own loops from the last tile to the first.
        rows: start and end of the ranges of loops around the kernel, which is launched once for each of their tiles.

    Raises:
        UsageError: there are too many requests.
    """
    inside = grid[-1].body if grid else body
    walker = _Walker(program, sizes, "moves", "tiles", mask, inside, grid, backwards, rows or {})
    ids, kinds, work = joined(walker.body(body), walker.nothing)
    marks = kinds == START
    starts = np.append(np.flatnonzero(marks), len(ids)) - np.append(np.arange(marks.sum()), marks.sum())
    return Stream(ids[~marks], kinds[~marks], *walker.items(), starts, ids[marks], work[~marks])


class _Walker(EveryTile):
    """Runs through the loops; equal iterations are generated from the first two of them."""

    def __init__(
        self,
        program: ir.Program,
        sizes: ir.Sizes,
        machine: Machine,
        grain: Grain,
        mask: Mask | None,
        inside: list[ir.Node] | None = None,
        grid: tuple[ir.Loop, ...] = (),
        backwards: bool = False,
        rows: Mapping[ir.Range, tuple[int, int]] = MappingProxyType({}),
    ) -> None:
        super().__init__(sizes)
        self.machine, self.grain, self.mask = machine, grain, mask
        self.inside, self.grid, self.backwards = inside, grid, backwards
        self._bounds.update(rows)
        self.nothing: Batch = np.empty(0, np.int32), np.empty(0, np.uint8)
        if inside is not None:
            self.nothing = *self.nothing, np.empty(0, np.int64)
        self.made, self.work = 0, 0
        nodes = [node for phase in program.phases for node in ir.walk(phase.body)]
        self.homes = homes_of(nodes) if machine == "uses" else {}
        self.places = self._places(program, nodes)
        self._pairs: Array | None = None

    # places of tiles and tensors

    def items(self) -> tuple[Array, Array, tuple[StoredMatrix, ...]]:
        """Return the sizes of all items, whether each is kept, and the matrices that they are parts of."""
        places = tuple(self.places.values())
        sizes = np.concatenate([np.empty(0, np.int64), *(place.sizes() for place in places)])
        kept = np.concatenate([np.empty(0, bool), *(np.full(place.items, place.kept) for place in places)])
        return sizes, kept, places

    def _places(self, program: ir.Program, nodes: Sequence[ir.Node]) -> dict[ir.Tensor | ir.Tile, StoredMatrix]:
        sides: dict[ir.Tensor | ir.Tile, tuple[int, int]] = {}
        whole: dict[ir.Tensor | ir.Tile, tuple[int, int]] = {}
        for at, ranges in touches(nodes, self.machine, self.homes):
            top = at.ranges if isinstance(at, ir.Tile) else (None,) * len(ranges)
            cut = tuple(step_of(rng, up, self.sizes) for rng, up in zip(ranges, top, strict=True))
            rows, columns = (*cut, 0)[:2]
            before = sides.get(at, (0, 0))
            sides[at] = gcd(before[0], rows), gcd(before[1], columns)
            if isinstance(at, ir.Tile):
                shape = tuple(longest(rng, self.sizes) for rng in at.ranges)
            else:
                shape = tuple(self.sizes[dim] for dim in at.shape)
            whole[at] = (*shape, 1)[0], (*shape, 1)[1]
        places: dict[ir.Tensor | ir.Tile, StoredMatrix] = {}
        first = 0
        for at, (height, width) in sides.items():
            rows, columns = whole[at]
            if self.grain == "words":
                height, width = 1, 1
            name, kept = (f"~{at.name}", False) if isinstance(at, ir.Tile) else (at.name, at.name in program.outputs)
            copies = at.copies(self.sizes) if isinstance(at, ir.Tensor) else 1
            places[at] = StoredMatrix(name, rows, columns, height or rows, width or columns, first, kept, copies)
            first += places[at].items
        if first > MOST_ITEMS:
            raise UsageError(
                f"{first:,} {self.grain} in memory are too many to tell apart, {MOST_ITEMS:,} is the most; take "
                + ("tiles in the place of words." if self.grain == "words" else "smaller sizes, or larger blocks.")
            )
        return places

    def _of(self, tile: ir.Tile) -> ir.Tensor | ir.Tile:
        return self.homes.get(tile, tile)

    def _whole(self, rng: ir.Range) -> tuple[int, int]:
        """Return the limits of a range as if its tile were whole: tensor cores take as long for a ragged one."""
        start, stop = self.bounds(rng)
        return start, stop if rng.parent is None else start + ir.length(rng.block, self.sizes)

    def _items(self, at: ir.Tensor | ir.Tile, ranges: ir.Ranges, tiles: ir.Range | None = None) -> Array:
        """The items of a part, of shape (rows, columns); a vector is a column. `tiles`: which copy it is of."""
        place = self.places[at]
        limits = [self.bounds(rng) for rng in ranges]
        if isinstance(at, ir.Tile):
            corner = [self.bounds(rng)[0] for rng in at.ranges]
            limits = [(start - by, stop - by) for (start, stop), by in zip(limits, corner, strict=True)]
        (top, bottom), (left, right) = (*limits, (0, 1))[:2]
        rows = np.arange(top // place.height, -(-bottom // place.height), dtype=np.int32)
        if tiles is not None:
            rows += np.int32(self.bounds(tiles)[0] // ir.length(tiles.block, self.sizes) * place.down)
        columns = np.arange(left // place.width, -(-right // place.width), dtype=np.int32)
        return place.first + rows[:, None] * np.int32(place.across) + columns

    def _request(self, at: ir.Tensor | ir.Tile, ranges: ir.Ranges, kind: int, tiles: ir.Range | None = None) -> Part:
        return self._part(self._items(at, ranges, tiles).ravel(), kind)

    def _part(self, ids: Array, kind: int) -> Part:
        self._count(len(ids))
        batch: Batch = ids, np.full(len(ids), kind, np.uint8)
        if self.inside is not None:
            work = np.zeros(len(ids), np.int64)
            if len(ids) and kind != START:
                work[0], self.work = self.work, 0
            batch = *batch, work
        return Part(len(ids), lambda: batch)

    def _count(self, more: int) -> None:
        self.made += more
        if self.made > MOST_REQUESTS:
            raise UsageError(
                f"more than {MOST_REQUESTS:,} requests are too many to go through; take smaller sizes"
                + (", or tiles in the place of words." if self.grain == "words" else ", or larger blocks.")
            )

    # loops

    def body(self, body: list[ir.Node]) -> Iterator[Part]:
        if body is self.inside:
            yield self._part(np.array([self._block()], np.int32), START)
        for node in body:
            if isinstance(node, ir.Loop):
                yield from self._loop(node)
            elif self.machine == "moves":
                yield from self._moves(node)
            else:
                yield from self._uses(node)

    def _block(self) -> int:
        """The number of the thread block in its grid."""
        number = 0
        for loop in self.grid:
            (begin, end), block = self.span(loop), ir.length(loop.range.block, self.sizes)
            number = number * -(-(end - begin) // block) + (self._bounds[loop.range][0] - begin) // block
        return number

    def _loop(self, loop: ir.Loop) -> Iterator[Part]:
        block = ir.length(loop.range.block, self.sizes)
        begin, end = self.span(loop)
        starts = np.arange(begin, end, block)
        if loop.when is not None and self.mask is not None:
            starts = starts[[self._runs(loop, start, min(start + block, end)) for start in starts.tolist()]]
        if self.backwards and self.inside is not None and loop in self.inside:
            starts = starts[::-1]
        full = starts[starts + block <= end]
        alike = len(full) > 2 and not any(isinstance(node, ir.Loop) and node.when for node in ir.walk(loop.body))
        for start in starts.tolist():
            if alike and start == full[0]:
                yield from self._iterations(loop, full, block, end)
            elif not alike or start + block > end:
                yield from self._iteration(loop, start, block, end)

    def _iterations(self, loop: ir.Loop, starts: Array, block: int, end: int) -> Iterator[Part]:
        """Iterations of full tiles: from one to the next, items move as far as the tile."""
        made = self.made
        parts = [*self._iteration(loop, int(starts[0]), block, end)]
        length = self.made - made
        if length > LONG:
            yield from parts
            for start in starts[1:].tolist():
                yield from self._iteration(loop, start, block, end)
            return
        first, second = (
            joined(parts, self.nothing),
            joined(self._iteration(loop, int(starts[1]), block, end), self.nothing),
        )
        self._count((len(starts) - 2) * length)
        tiles = ((starts[1:] - starts[0]) // block).astype(np.int32)
        step = (second[0] - first[0]) // tiles[0]
        yield Part(length, lambda: first)
        at_once = max(1, PIECE // max(1, length))
        for begin in range(0, len(tiles), at_once):
            some = tiles[begin : begin + at_once]
            yield Part(len(some) * length, partial(_moved, first[0], step, some, second[1:]))

    def _iteration(self, loop: ir.Loop, start: int, block: int, end: int) -> Iterator[Part]:
        self._bounds[loop.range] = start, min(start + block, end)
        yield from self.body(loop.body)

    def _runs(self, loop: ir.Loop, start: int, stop: int) -> bool:
        """Whether the mask lets an iteration run."""
        assert loop.when is not None and self.mask is not None
        self._bounds[loop.range] = start, stop
        (top, bottom), (left, right) = map(self.bounds, (loop.when.rows, loop.when.columns))
        if isinstance(self.mask, Band):
            rows = self.mask.rows
            nearest, furthest = left - (bottom - 1) // rows, right - 1 - top // rows
            before, after = self.mask.limits(ir.grid(loop.range.pairs, self.sizes))
            met = nearest <= after and furthest >= -before
        else:
            if self._pairs is None:
                self._pairs = self.mask.allowed(*ir.grid(loop.range.pairs, self.sizes))
            met = bool(self._pairs[top:bottom, left:right].any())
        return met != loop.when.none

    # requests of primitives

    def _moves(self, node: ir.Node) -> Iterator[Part]:
        match node:
            case ir.Read(tile=tile, tensor=tensor):
                yield self._request(tensor, tile.ranges, READ, node.at)
            case ir.Write(tile=tile, tensor=tensor):
                yield self._request(tensor, tile.ranges, WRITE, node.at)
            case ir.Init(tensor=tensor, ranges=ranges):
                yield self._request(tensor, ranges, WRITE)
            case ir.Compute() if self.inside is not None:
                self.work += operations(node, self._whole)
            case _:
                pass

    def _uses(self, node: ir.Node) -> Iterator[Part]:
        match node:
            case ir.Read(tile=tile, tensor=tensor) if self._of(tile) is not tensor:
                yield self._request(tensor, tile.ranges, READ, node.at)
                yield self._request(self._of(tile), tile.ranges, WRITE)
            case ir.Write(tile=tile, tensor=tensor) if self._of(tile) is not tensor:
                yield self._request(self._of(tile), tile.ranges, READ)
                yield self._request(tensor, tile.ranges, WRITE, node.at)
            case ir.Init(tensor=tensor, ranges=ranges):
                yield self._request(tensor, ranges, WRITE)
            case ir.Zeros(tile=tile) | ir.Constant(tile=tile):
                yield self._request(self._of(tile), tile.ranges, WRITE)
            case ir.Move(tile=tile, source=source):
                yield self._request(self._of(source), source.ranges, READ)
                yield self._request(self._of(tile), tile.ranges, WRITE)
            case ir.Compute(target=target, expr=expr, mode=mode) if self.grain == "tiles":
                for ref in ir.refs(expr):
                    yield self._request(self._of(ref.tile), ref.ranges, READ)
                yield self._request(self._of(target.tile), target.ranges, UPDATE if mode == "add" else WRITE)
            case ir.Compute():
                yield from self._word_by_word(node)
            case _:
                pass

    def _word_by_word(self, node: ir.Compute) -> Iterator[Part]:
        """Rows outside, then columns, then the terms of a sum; of each the operands, then the result."""
        expr = node.expr
        target = self._items(self._of(node.target.tile), node.target.ranges)
        if isinstance(expr, ir.MatMul):
            left, right = self._operand(expr.left), self._operand(expr.right)
            operands = [left[:, None, :], right.T[None, :, :]]
            target = target[:, :, None]
        elif isinstance(expr, ir.RowReduction):
            operands = [self._operand(ref) for ref in ir.refs(expr.operand)]
        else:
            operands = [self._operand(ref) for ref in ir.refs(expr)]
        terms = isinstance(expr, ir.MatMul | ir.RowReduction)
        last = UPDATE if node.mode == "add" or terms else WRITE
        first = WRITE if terms and node.mode != "add" else last  # of the first term
        touched = [*operands, target]
        shape = np.broadcast_shapes(*(items.shape for items in touched))
        row = prod(shape[1:]) * len(touched)
        self._count(shape[0] * row)
        at_once = max(1, PIECE // max(1, row))
        for top in range(0, shape[0], at_once):
            rows = [items if len(items) < shape[0] else items[top : top + at_once] for items in touched]
            yield Part(row * min(at_once, shape[0] - top), partial(_words, rows, first, last))

    def _operand(self, ref: ir.Ref) -> Array:
        items = self._items(self._of(ref.tile), ref.ranges)
        return items.T if ref.transposed else items


def _moved(ids: Array, step: Array, tiles: Array, others: Batch) -> Batch:
    """The requests of iterations, so many tiles behind the first."""
    return (ids + tiles[:, None] * step).ravel(), *(np.tile(each, len(tiles)) for each in others)


def _words(touched: Sequence[Array], first: int, last: int) -> Batch:
    """The requests of an operation word by word: of each result the items of the operands, and its own.

    `first` is the kind of the request of a result with its first term, `last` of those with the others.
    """
    ids = np.stack(np.broadcast_arrays(*touched), axis=-1)
    kinds = np.full(ids.shape, READ, np.uint8)
    kinds[..., -1] = last
    kinds[..., 0, -1] = first
    return ids.ravel(), kinds.ravel()
