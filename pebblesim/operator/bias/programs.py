"""Kernels of attention with a bias as programs, which need no PyTorch: schedules of the catalogue, and their tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pebblesim.advice.tiles import Tiling
from pebblesim.kernels.gluon.block import ROWS
from pebblesim.kernels.gluon.gradients import BEGINNING, BETWEEN, FEWEST as OF_BLOCK
from pebblesim.kernels.gluon.gradients_plan import SHARES
from pebblesim.kernels.passes.bias import biased, gradient_of_bias
from pebblesim.kernels.passes.bias_stays import OF_PART, SPAN, gradients_at_once
from pebblesim.kernels.passes.sequences import together
from pebblesim.kernels.passes.sequences_past import past
from pebblesim.language.masks import Band
from pebblesim.language.program import Init, Loop, Program, Read, Write, walk
from pebblesim.operator.planning import program_of

WIDEST = 128
"""The largest head dimension of kernels with a bias."""


class Kernels(NamedTuple):
    """The kernels of a pass: their tiling, and the sequences that a block has at a time.

    Gluon kernels keep rows of the bias while sequences stream past, and Triton's read a tile of it for each of theirs.
    """

    tiling: Tiling
    sequences: int = 1


class Tilings(NamedTuple):
    """Kernels of the passes: O; dQ; dK and dV; and dB."""

    forward: Kernels
    of_queries: Kernels
    of_keys: Kernels
    of_bias: Kernels


Sides = tuple[int, ...]
"""Sequences at a time, rows that a program keeps, rows that stream past them, warps, stages, and perhaps the most
registers of a thread. Of dB's kernel sequences stream past a tile, and the rows are the sides of this."""


def tilings(forward: Sides, dQ: Sides, dK_dV: Sides, dB: Sides) -> Tilings:
    """Kernels by their sides."""

    def of(sides: Sides, schedule: str, blocks: tuple[str, str], name: str) -> Kernels:
        sequences, stay, stream, *others = sides
        lengths = dict(zip(blocks, (stay, stream), strict=True))
        return Kernels(Tiling(schedule, lengths, 4, 1, {name: tuple(others)}), sequences)

    two_pass = "backward-two-pass-blocked"
    return Tilings(
        of(forward, "flash2-forward", ("B_r", "B_c"), "flash2-forward"),
        of(dQ, two_pass, ("B_r", "b_c"), "dQ"),
        of(dK_dV, two_pass, ("B_c", "b_r"), "dK, dV"),
        of(dB, two_pass, ("B_r", "b_c"), "dB"),
    )


TILINGS: Mapping[tuple[str, int], Tilings] = {
    ("16 bits", 32): tilings((1, 64, 64, 4, 3), (2, 64, 32, 4, 3), (2, 64, 32, 4, 3), (1, 64, 64, 4, 3)),
    ("16 bits", 64): tilings((1, 64, 64, 4, 2), (1, 64, 32, 4, 3), (1, 64, 32, 4, 3), (1, 64, 64, 4, 3)),
    ("16 bits", WIDEST): tilings((1, 64, 32, 4, 3), (1, 64, 32, 4, 3), (1, 64, 32, 4, 3), (1, 64, 64, 8, 2)),
    ("32 bits", 64): tilings((1, 32, 16, 4, 2), (1, 32, 16, 4, 2), (1, 32, 16, 4, 2), (1, 32, 32, 4, 2)),
    ("32 bits", WIDEST): tilings((1, 32, 32, 4, 2), (1, 32, 16, 4, 1), (1, 32, 16, 4, 1), (1, 32, 32, 4, 1)),
}
"""Kernels by the size of a word and the largest head dimension that they are for; they fit on every card."""

FORWARD, OF_QUERIES, OF_KEYS, OF_BIAS, ACROSS, OF_V, WITH_V, AT_ONCE, ONWARD = range(9)
"""Passes: O; dQ; dK and dV; dB; dK and dV with a transpose of the bias; v alone; v, dQ and dB at once; dQ and dB at
once from a v that is there; and these of more keys, where dQ goes on with what other keys have added to it."""

SIDE, MOST_KEYS, FEWEST_AT_ONCE = 32, 384, 32
"""Keys of a tile of the kernel of dQ and dB at once; the most keys of a block, for which registers and shared memory
are enough; and the fewest sequences that share a bias with which it was measured."""


MOST_WITH_V = 20
"""The most sequences of a block whose kernel of dQ and dB computes v, too: with 13 that takes as long as a kernel of v
before it on an H200, or 4 µs less if no tile divides the lengths, and it is a launch less; with 49 or more it is
slower."""


def kernels_of(which: int, words: str, width: int) -> Kernels:
    """The kernels of a pass, for words of a size and the largest head dimension."""
    at = {ACROSS: OF_KEYS, OF_V: OF_QUERIES}.get(which, which)
    return next(each[at] for (kind, most), each in TILINGS.items() if kind == words and width <= most)


STAYING = {
    FORWARD: Kernels(Tiling("flash2-forward", {"B_r": 64, "B_c": 128}, 4, 2, gluon=True), 3),
    ACROSS: Kernels(Tiling("backward-two-pass-blocked", {"B_c": 64, "b_r": 64}, 4, 3, gluon=True), 3),
}
"""Kernels for Hopper in which rows of the bias stay, of the passes that have some."""

STAYING_WIDTHS, MOST_BESIDE = (16, 32), 1.125
MOST_STAYING = {FORWARD: 384, ACROSS: 768}
FEWEST_STAYING = {FORWARD: 30.0, ACROSS: 15.0}
"""Head dimensions that they are for, the most columns of tiles as multiples of those that there are, and for each pass
the most columns of the bias and the fewest sequences of a block: else the other kernels were as fast on an H200."""


class Rows(NamedTuple):
    """Rows of a bias that blocks may keep: how many and how long they are, and how many such matrices there are in all
    for each multiprocessor, of all sequences and heads."""

    rows: int
    columns: int
    matrices: float


def staying(which: int, widths: tuple[int, int], bias: Rows) -> Kernels | None:
    """The kernels of a pass in which rows of the bias stay, if there are some and they are the faster ones.

    `widths`: head dimensions of queries and keys, and of values.
    """
    if which not in STAYING or not {*widths} <= {*STAYING_WIDTHS} or bias.columns > MOST_STAYING[which]:
        return None
    found = STAYING[which]
    rows, columns = found.tiling.blocks.values()
    beside = -(-bias.columns // columns) * columns / bias.columns
    few = -(-bias.rows // rows) * bias.matrices < FEWEST_STAYING[which]
    return None if few or beside > MOST_BESIDE else found


def spans(n_k: int) -> list[slice]:
    """The keys of each launch of the kernel of dQ and dB at once: as many in each."""
    tile, launches = SIDE * SHARES[SIDE], -(-n_k // MOST_KEYS)
    each = -(-n_k // (launches * tile)) * tile
    return [slice(first, min(first + each, n_k)) for first in range(0, n_k, each)]


def at_once(n_k: int) -> Kernels:
    """The kernel of dQ and dB at once for up to so many keys, with tiles for these."""
    tile = SIDE * SHARES[SIDE]
    blocks = {OF_PART: 1, "B_r": 64, SPAN: -(-n_k // tile) * tile, "b_c": SIDE}
    return Kernels(Tiling("backward-two-pass-blocked", blocks, 4 * (SHARES[SIDE] + 1), 2, gluon=True))


def launched(tiling: Tiling) -> dict[str, Any]:
    """Warps and stages, by the names of `triton`."""
    return {"warps": tiling.warps, "stages": tiling.stages, "apart": tiling.apart}


def program(which: int, kernels: Kernels, band: Band | None = None) -> Program:
    """The program of a pass: phases of a schedule of the catalogue with a bias, or dB that is read off them."""
    made = biased(program_of(kernels.tiling, band), ("dK, dV",) if which == ACROSS else ())
    if which == OF_BIAS:
        return gradient_of_bias(made)
    if which in (WITH_V, AT_ONCE, ONWARD):
        return gradients_at_once(made, which == ONWARD, which == WITH_V)
    if which == OF_V:
        return part_of(made, ("v",))
    if which != FORWARD:
        made = part_of(made, ("v", "dQ") if which == OF_QUERIES else ("dK, dV",))
    if kernels.tiling.gluon:
        return past(made)
    return together(made, kernels.sequences) if kernels.sequences > 1 else made


def part_of(program: Program, phases: tuple[str, ...]) -> Program:
    """Some phases of a program, whose inputs are what others write, and whose outputs all that is written."""
    kept = [phase for phase in program.phases if phase.name in phases]
    nodes = [node for phase in kept for node in walk(phase.body)]
    sides = {node.range.block for node in nodes if isinstance(node, Loop)}
    blocks = tuple(block for block in program.blocks if block in sides)
    moved = [node for node in nodes if isinstance(node, Read | Write | Init)]
    written = {each.tensor.name for each in moved if not isinstance(each, Read)}
    names = {each.tensor.name for each in moved}
    tensors = {name: tensor for name, tensor in program.tensors.items() if name in names}
    inputs, outputs = ([name for name in tensors if (name in written) is made] for made in (False, True))
    dims = tuple(dim for dim in program.dims if any(dim in tensor.shape for tensor in tensors.values()))
    made = replace(program, dims=dims, blocks=blocks, phases=kept, tensors=tensors)
    return replace(made, inputs=tuple(inputs), outputs=tuple(outputs))


BLOCKS, FEWEST = 8, 16
"""Blocks of dB's kernel for each multiprocessor, and the fewest sequences of a part: it costs little to add up."""


def parts_of(tiles: int, sequences: int, units: int) -> int:
    """The parts of so many sequences that share a bias, for tiles of dB on so many multiprocessors."""
    return max(1, min(-(-BLOCKS * units // tiles), sequences // FEWEST))


class Parts(NamedTuple):
    """How the sequences of all heads are divided among blocks of dQ and dB at once.

    Attributes:
        whole: sequences of a head, and some more that take as long as the beginning of a head, or fill its last part.
        each: of these, how many a block has.
    """

    whole: int
    each: int

    @property
    def most(self) -> int:
        """The most parts that a head may have."""
        if self.whole % self.each == 0:
            return self.whole // self.each
        return -(-(self.whole - 1) // self.each) + (self.each % self.whole > 0)

    def of(self, head: int) -> int:
        """The parts that a head has."""
        return ((head + 1) * self.whole - 1) // self.each - head * self.whole // self.each + 1


def parts_at_once(rows: int, sequences: int, heads: int, units: int) -> Parts:
    """As the kernel divides them: queries, sequences that share a bias, heads of all biases, and multiprocessors."""
    whole, groups = sequences + BEGINNING, max(units // -(-rows // ROWS), 1)
    each = max(-(-heads * whole // groups), OF_BLOCK)
    if heads <= groups and (own := -(-sequences // (groups // heads))) <= each + BETWEEN:
        return Parts(-(-sequences // own) * own, own)
    return Parts(whole, each)
