"""Tensors that the kernels of a program keep in memory between their launches, and how they lie there.

A table of pairs is kept tile by tile, as it is written: so each access begins where a wide one can, whatever the number
of keys, and addresses within a tile are constants. Ragged tiles are filled up with zeros, so that reading them needs no
predicate. A table that only the rows of one iteration around launches need has only this number of rows, and a table
that replaces another tile by tile uses its memory. A vector has whole groups of 16 words in each copy, so that
each begins where a wide access can, too. Under a mask with two limits, such as a sliding window, each row of
tiles has only as many as the band can meet, from the first that it meets on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from pebblesim.analysis.totals import LoopContext, totals
from pebblesim.kernels.bands import limited, tiles_across
from pebblesim.kernels.passes.fills import L_IN_ROWS
from pebblesim.kernels.passes.sinks import SINKS
from pebblesim.kernels.terms import Name, Term, call, minimum, term
from pebblesim.kernels.words import is_float32, word_bytes
from pebblesim.language import program as ir
from pebblesim.language.loops import Times
from pebblesim.language.masks import Band, Mask
from pebblesim.launches.launches import Launch, launches, moves, used_in_turn

GROUP_OF_WORDS = 16
"""Words of a vector, in 32 bits each, that make an address of the next one that wide accesses can begin at."""


@dataclass(frozen=True, eq=False)
class Tables:
    """The tensors of a program in memory.

    Attributes:
        tiled: tables of pairs that are kept tile by tile, and the rows and columns of a tile.
        parts: tensors in use for one iteration of a loop around launches, and the tiles that it runs over.
        places: tensors that take the place of another.
        aligned: vectors whose copies begin at multiples of `GROUP_OF_WORDS`.
        band: the mask, if it limits the tiles of each row.
    """

    tiled: Mapping[ir.Tensor, tuple[int, int]]
    parts: Mapping[ir.Tensor, ir.Range]
    places: Mapping[ir.Tensor, ir.Tensor]
    aligned: frozenset[ir.Tensor]
    band: Band | None = None

    def lengths(self, tensor: ir.Tensor, sizes: ir.Sizes) -> list[int]:
        """Lengths of a tensor in memory."""
        lengths = list(tensor.sides(sizes))
        if tensor in self.aligned:
            lengths[-1] = -(-lengths[-1] // GROUP_OF_WORDS) * GROUP_OF_WORDS
        if tensor in self.parts:
            lengths[0] = min(lengths[0], ir.length(self.parts[tensor].block, sizes))
        if tensor in self.tiled:
            tile = self.tiled[tensor]
            down, across = (-(-length // side) for length, side in zip(lengths, tile, strict=True))
            if self.band is not None:
                across = min(across, tiles_across(self.band, *tile))
            lengths = [down, across, *tile]
        return lengths

    def terms(self, tensor: ir.Tensor, sizes: ir.Sizes, size: Callable[[str], Term], even: bool) -> list[Term]:
        """The lengths as terms; `size` gives a dimension, `even`: tiles divide all of them."""
        lengths = [size(dim) for dim in tensor.shape]
        if tensor in self.aligned and not even:
            lengths[-1] = call("cdiv", lengths[-1], GROUP_OF_WORDS) * GROUP_OF_WORDS
        if tensor.apart is not None:
            lengths.insert(0, call("cdiv", size(tensor.apart.dim), ir.length(tensor.apart.block, sizes)))
        if tensor in self.parts:
            lengths[0] = Name("at_once")
        if tensor in self.tiled:
            tile = self.tiled[tensor]
            down, across = (call("cdiv", length, side) for length, side in zip(lengths, tile, strict=True))
            if self.band is not None:
                across = minimum(across, tiles_across(self.band, *tile))
            lengths = [down, across, *map(term, tile)]
        return lengths

    def words(self, node: ir.Read | ir.Write | ir.Init, sizes: ir.Sizes, at: LoopContext) -> Times:
        """Words that a primitive moves; of a table kept tile by tile, with the zeros that fill up ragged tiles.

        Where a tile is written in parts, these zeros are divided among its parts.
        """
        ranges = ir.moved_part(node)
        if node.tensor not in self.tiled:
            return at.words(ranges)
        moved: Times = 1
        for rng, side in zip(ranges, self.tiled[node.tensor], strict=True):
            length = ir.length(rng.block, sizes)
            if isinstance(node, ir.Write) and length < side:
                assert rng.parent is not None
                moved *= Fraction(side, -(-at.words((rng.parent,)) // length))
            else:
                moved *= length
        return moved


def tables(program: ir.Program, made: list[Launch], sizes: ir.Sizes, mask: Mask | None = None) -> Tables:
    """Find how the tensors of a program lie in memory between its launches."""
    between = [tensor for name, tensor in program.tensors.items() if name not in (*program.inputs, *program.outputs)]
    tiled = {tensor: tile for tensor in between if (tile := _tile(tensor, made, sizes))}
    kept = {name for name, tensor in program.tensors.items() if len(tensor.shape) == 1} - {*program.outputs, SINKS}
    if L_IN_ROWS in kept:  # L itself lies as it was given
        kept -= {*program.inputs}
    parts, aligned = used_in_turn(program, made), frozenset(program.tensors[name] for name in kept)
    return Tables(tiled, parts, _places(program, between, made), aligned, limited(mask))


def _tile(tensor: ir.Tensor, made: list[Launch], sizes: ir.Sizes) -> tuple[int, int] | None:
    """Rows and columns of the tiles in which a table of pairs is written, if it is read in parts of them."""
    moved = [node for launch in made for node in moves(launch) if node.tensor is tensor]
    if tensor.apart is not None or not all(ir.over_pairs(ir.moved_part(node)) for node in moved):
        return None
    if any(isinstance(node, ir.Init) or None in (rng.parent for rng in node.tile.ranges) for node in moved):
        return None
    sides = {node: [ir.length(rng.block, sizes) for rng in ir.moved_part(node)] for node in moved}
    around = {launch.around.range for launch in made if launch.around is not None}
    written = {_whole_tile(node.tile.ranges, around, sizes) for node in moved if isinstance(node, ir.Write)}
    if len(written) != 1:
        return None
    ((rows, columns),) = written
    return (rows, columns) if all(a <= rows and b <= columns for a, b in sides.values()) else None


def _whole_tile(ranges: ir.Ranges, around: set[ir.Range], sizes: ir.Sizes) -> tuple[int, ...]:
    """The sides of the tile that is written part by part, of one iteration of a loop around launches."""
    apart = [[each for each in rng.around if each.parent is not None and each not in around] for rng in ranges]
    return tuple(ir.length(each[-1].block, sizes) for each in apart)


def workspace(program: ir.Program, sizes: ir.Sizes, dtype: str, mask: Mask | None = None) -> int:
    """Bytes that kernels take for each head beside inputs and outputs: tables, and sums of outputs in float32.

    A single vector is none.
    """
    return workspaces(program, sizes, dtype, mask)(sizes)


def workspaces(program: ir.Program, sizes: ir.Sizes, dtype: str, mask: Mask | None) -> Callable[[ir.Sizes], int]:
    """A function that gives the `workspace` for other lengths, with the same blocks."""
    made, taken = kept(program, sizes, mask)
    weighed = [(word_bytes(program, tensor, dtype), tensor) for tensor in taken]
    return lambda others: sum(size * prod(made.lengths(tensor, others)) for size, tensor in weighed)


def kept(program: ir.Program, sizes: ir.Sizes, mask: Mask | None = None) -> tuple[Tables, list[ir.Tensor]]:
    """How tensors lie in memory, and those that `workspace` counts."""
    made = tables(program, launches(program, masked=True, repeated=True), sizes, mask)
    between = {tensor for name, tensor in program.tensors.items() if name not in (*program.inputs, *program.outputs)}
    sums = {program.tensors[name] for name in program.outputs if is_float32(program, program.tensors[name])}
    taken = [each for each in between | sums if (len(each.shape) == 2 or each.apart) and each not in made.places]
    return made, sorted(taken, key=lambda each: each.name)


def moved_words(program: ir.Program, sizes: ir.Sizes, mask: Mask | None = None) -> dict[str, tuple[int, int]]:
    """Words that the kernels of a program read and write of each tensor, for each head, with the zeros in tables."""
    kept = tables(program, launches(program, masked=True, repeated=True), sizes)

    def amounts(node: ir.Node, at: LoopContext) -> Iterator[tuple[Hashable, Times]]:
        if isinstance(node, ir.Read | ir.Write | ir.Init):
            yield (node.tensor.name, isinstance(node, ir.Read)), kept.words(node, sizes, at)

    found: Counter[Hashable] = Counter()
    for phase in program.phases:
        found += totals(phase.body, sizes, amounts, mask)
    return {name: (found[name, True], found[name, False]) for name in program.tensors}


def _places(program: ir.Program, between: list[ir.Tensor], made: list[Launch]) -> dict[ir.Tensor, ir.Tensor]:
    """Tensors that can have the place of another, which is not read again.

    The launch that writes the one reads the other, each block the tile that it writes, before it does.
    """
    places: dict[ir.Tensor, ir.Tensor] = {}
    for tensor in between:
        uses = [launch for launch in made if any(node.tensor is tensor for node in moves(launch))]
        for other in between:
            if other is tensor or other in places.values():
                continue
            last = [launch for launch in made if any(node.tensor is other for node in moves(launch))][-1]
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
    """Whether each block reads a tile of the old tensor, later writes that of the new, and nothing else of it."""
    moved = [node for node in moves(launch) if node.tensor in (old, new)]
    bodies = (launch.block, *(node.body for node in ir.walk(launch.block) if isinstance(node, ir.Loop)))
    if len(moved) != 2 or not any(all(node in body for node in moved) for body in bodies):
        return False
    read, written = moved
    return (
        isinstance(read, ir.Read)
        and read.tensor is old
        and isinstance(written, ir.Write)
        and read.tile.ranges == written.tile.ranges
    )
