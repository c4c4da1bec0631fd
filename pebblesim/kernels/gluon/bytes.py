"""Bytes that cross to the multiprocessors for Gluon kernels: those of the count, and the zeros of boxes.

The copy engine moves boxes of fixed sides. What of a box lies beyond a matrix is 0, and arrives like the rest: counters
of an H200 have these zeros among the bytes that multiprocessors read, in whole sectors. So ragged tiles, and widths of
heads that are no whole boxes, cost what whole boxes do.

Of what is written nothing lies beyond a matrix. Threads store sums in pieces: 64 bytes of a row at a time where they
have registers to exchange columns in, else 16; the copy engine, 128. Each piece is sent in whole sectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import prod

from pebblesim.analysis.totals import LoopContext, totals
from pebblesim.core.units import Bytes
from pebblesim.kernels.additions import read_to_be_added_to
from pebblesim.kernels.gluon.block import Block, Buffer
from pebblesim.kernels.gluon.gluon import plans
from pebblesim.kernels.tables import moved_words
from pebblesim.kernels.words import moved_bytes, word_bytes
from pebblesim.language import program as ir
from pebblesim.language.loops import Times
from pebblesim.language.masks import Mask

SECTOR = 32
"""Bytes that L2 sends at least."""


def crossing(
    program: ir.Program, sizes: ir.Sizes, dtype: str, mask: Mask | None = None, stages: int = 2
) -> tuple[Bytes, int]:
    """Return the bytes that a program's kernels move, and those of them that are zeros of boxes.

    What memory adds is not sent to be added to; see `additions`.

    Args:
        program, sizes, dtype, mask, stages: as for `gluon`.
    """
    counted = moved_bytes(program, moved_words(program, sizes, mask), dtype)
    blocks = plans(program, sizes, stages=stages).values()
    spared = sum(
        words * word_bytes(program, program.tensors[name], dtype)
        for name, words in read_to_be_added_to(program, sizes, mask).items()
    )
    boxes = {_place(read): side for block in blocks for read, side in _boxes(block)}
    pieces = {_place(write): size for block in blocks for write, size in _pieces(block)}
    whole = {_place(each.read) for block in blocks for each in block.buffers.values() if _in_whole_tiles(block, each)}

    def amounts(node: ir.Node, at: LoopContext) -> Iterator[tuple[str, Times]]:
        if isinstance(node, ir.Read) and _place(node) in boxes:
            wide, box = word_bytes(program, node.tensor, dtype), boxes[_place(node)]
            yield "zeros", _in_sectors(box, node, at, sizes, wide) - at.words(node.tile.ranges) * wide
            if _place(node) in whole:
                yield "zeros", _boxes_beyond(node.tile.ranges[0], at, sizes) * prod(box) * wide
        if isinstance(node, ir.Write) and _place(node) in pieces:
            (rows, columns), wide = (
                (at.words((rng,)) for rng in node.tile.ranges),
                word_bytes(program, node.tensor, dtype),
            )
            pitch = sizes[node.tile.ranges[1].dim] * wide
            if columns * wide >= (piece := pieces[_place(node)]):  # else rows follow one another
                sent = sum(_touched(row * pitch % SECTOR, columns * wide, piece) for row in range(2)) * rows // 2
                yield "twice", sent - rows * columns * wide

    beside = {"zeros": 0, "twice": 0}
    for phase in program.phases:
        for what, number in totals(phase.body, sizes, amounts, mask).items():
            beside[str(what)] += number
    return counted + Bytes(beside["zeros"] - spared, beside["twice"]), beside["zeros"]


def _in_whole_tiles(block: Block, buffer: Buffer) -> bool:
    """Whether what is streamed are the parts of whole tiles, those beyond the matrix, too."""
    parent = block.loop.range.parent
    return buffer.streamed and parent is not None and parent.parent is not None and block.nest is None


def _boxes_beyond(rng: ir.Range, at: LoopContext, sizes: ir.Sizes) -> Fraction:
    """Parts of a tile that are beyond the matrix, for each of its parts that is not."""
    assert rng.parent is not None
    side = ir.length(rng.block, sizes)
    return Fraction(ir.length(rng.parent.block, sizes) // side, -(-at.words((rng.parent,)) // side)) - 1


def _place(node: ir.Read | ir.Write) -> tuple[ir.Tensor, int]:
    """The tensor and the line of a read or a write, of which a kernel may have one for each part of the columns."""
    return node.tensor, node.line


def _pieces(block: Block) -> Iterator[tuple[ir.Write, int]]:
    """The writes of matrices, and the bytes of a row that are stored at a time: by a warp, or by the copy engine.

    Tables have no rows that begin amid a sector, and what is added to memory has words of float32.
    """
    outgoing, added = ({each.write for each in of} for of in (block.outgoing, [each.sent for each in block.additions]))
    for node in block.writes:
        if len(node.tile.ranges) == 2 and not ir.over_pairs(node.tile.ranges) and node not in added:
            yield node, 4 * SECTOR if node in outgoing else 2 * SECTOR if block.roomy else SECTOR // 2


def _boxes(block: Block) -> Iterator[tuple[ir.Read, tuple[int, ...]]]:
    """The reads that the copy engine serves, and the sides of all boxes of one; tables have no zeros beside them."""
    buffers = block.buffers.values()
    for buffer in buffers:
        if buffer.vector:
            yield buffer.read, buffer.whole
        elif not ir.over_pairs(buffer.read.tile.ranges):
            parts = [each.whole[1] for each in buffers if _place(each.read) == _place(buffer.read)]
            yield buffer.read, (buffer.whole[0], sum(parts))


def _in_sectors(box: tuple[int, ...], node: ir.Read, at: LoopContext, sizes: ir.Sizes, wide: int) -> int:
    """Bytes of a box: its rows in the matrix have the sectors that they touch, all else has whole sectors of zeros."""
    there = [at.words((rng,)) for rng in node.tile.ranges]
    if len(box) == 1:
        return _up(there[0] * wide) + _up((box[0] - there[0]) * wide)
    (rows, columns), pitch = there, sizes[node.tile.ranges[1].dim] * wide
    inside = sum(_touched(row * pitch % SECTOR, columns * wide, 4 * SECTOR) for row in range(2)) * rows // 2
    beyond = _up((box[1] - columns) * wide) * rows + box[1] * wide * (box[0] - rows)
    return inside + beyond


def _touched(first: int, length: int, piece: int) -> int:
    """Bytes of the sectors that pieces of a row touch; those of a swizzled box have 128 bytes."""
    return sum(_up((first + at) % SECTOR + min(piece, length - at)) for at in range(0, length, piece))


def _up(number: int) -> int:
    return -(-number // SECTOR) * SECTOR
