"""`count`: exact reads, writes and occupancy of a program for given sizes, however large."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pebblesim.analysis.peak import peak_red
from pebblesim.analysis.totals import LoopContext, totals
from pebblesim.core.units import Traffic
from pebblesim.language import program as ir
from pebblesim.language.loops import walk
from pebblesim.language.masks import Mask


@dataclass(frozen=True)
class Count:
    """Traffic and occupancy of a program, in words.

    Attributes:
        total: all traffic.
        by_tensor: traffic of each tensor.
        by_phase: traffic of each phase.
        peak_words: most words resident between two primitives.
        peak_red: most red pebbles at any moment of the game. Under a mask it is the peak of the game without the mask,
            which is an upper bound (`pebblesim.analysis.masked_peak` computes the exact peak by visiting all tiles).
    """

    total: Traffic
    by_tensor: Mapping[str, Traffic]
    by_phase: Mapping[str, Traffic]
    peak_words: int
    peak_red: int


def count(program: ir.Program, sizes: ir.Sizes, summation: str = "chain", mask: Mask | None = None) -> Count:
    """Count a program.

    Args:
        program: a traced schedule, under the mask if there is one.
        sizes: the value of each dimension and block, by name.
        summation: shape of the summation trees; it affects only `peak_red`.
        mask: the allowed pairs; tiles that are partly allowed are moved whole.
    """
    by_phase = {phase.name: _moved(phase, program, sizes, mask) for phase in program.phases}
    by_tensor: dict[str, Traffic] = defaultdict(Traffic)
    for moved in by_phase.values():
        for tensor, traffic in moved.items():
            by_tensor[tensor] += traffic
    totals_of = {name: sum(moved.values(), Traffic()) for name, moved in by_phase.items()}
    return Count(
        sum(totals_of.values(), Traffic()),
        {tensor: traffic for tensor, traffic in by_tensor.items() if traffic.io},
        totals_of,
        peak_words(program, sizes, mask),
        peak_red(program, sizes, summation),
    )


def traffic(program: ir.Program, sizes: ir.Sizes, mask: Mask | None = None) -> Traffic:
    """Reads and writes in words, without computing the peaks."""
    each = (moved for phase in program.phases for moved in _moved(phase, program, sizes, mask).values())
    return sum(each, Traffic())


def io(program: ir.Program, sizes: ir.Sizes, mask: Mask | None = None) -> int:
    """Reads + writes in words, without computing the peaks."""
    return traffic(program, sizes, mask).io


def _moved(phase: ir.Phase, program: ir.Program, sizes: ir.Sizes, mask: Mask | None) -> dict[str, Traffic]:
    moved = totals(phase.body, sizes, _moves, mask)
    return {tensor: Traffic(moved[tensor, "reads"], moved[tensor, "writes"]) for tensor in program.tensors}


def peak_words(program: ir.Program, sizes: ir.Sizes, mask: Mask | None = None) -> int:
    """Most words resident between two primitives of a program.

    One iteration of each kind is enough, because a tile that enters the cache in an iteration leaves it in the same
    iteration.
    """
    peak = 0
    for phase in program.phases:
        at, resident = LoopContext(sizes, mask), 0
        for node, _ in walk(phase.body, at):
            if tile := ir.entering(node):
                resident += at.words(tile.ranges)
                peak = max(peak, resident)
            elif tile := ir.leaving(node):
                resident -= at.words(tile.ranges)
    return peak


def _moves(node: ir.Node, at: LoopContext) -> Iterator[tuple[tuple[str, str], int]]:
    if isinstance(node, ir.Read | ir.Write | ir.Init):
        yield (node.tensor.name, "reads" if isinstance(node, ir.Read) else "writes"), at.words(ir.moved_part(node))
