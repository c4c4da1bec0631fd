"""`count`: exact reads, writes and occupancy of a program for given sizes, however large."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pebblesim import program as ir
from pebblesim.readings.peak import peak_red
from pebblesim.readings.totals import Words, totals, words


@dataclass(frozen=True, slots=True)
class Traffic:
    """Words moved between cache and memory: `reads` into the cache, `writes` out of it."""

    reads: int = 0
    writes: int = 0

    @property
    def io(self) -> int:
        """Reads and writes together, in words."""
        return self.reads + self.writes

    def __add__(self, other: Traffic) -> Traffic:
        if not isinstance(other, Traffic):
            return NotImplemented
        return Traffic(self.reads + other.reads, self.writes + other.writes)


@dataclass(frozen=True)
class Count:
    """What a program moves and holds, in words.

    Attributes:
        total: all traffic.
        by_tensor: traffic of each tensor.
        by_phase: traffic of each phase.
        peak_words: most words resident between two primitives.
        peak_red: most red pebbles at any moment of the game.
    """

    total: Traffic
    by_tensor: Mapping[str, Traffic]
    by_phase: Mapping[str, Traffic]
    peak_words: int
    peak_red: int


def count(program: ir.Program, sizes: ir.Sizes, summation: str = "chain") -> Count:
    """Count a program.

    Args:
        program: a traced schedule.
        sizes: the value of each dimension and block, by name.
        summation: shape of the summation trees; it decides `peak_red` and nothing else.
    """
    by_phase = {phase.name: _moved(phase, program, sizes) for phase in program.phases}
    by_tensor: dict[str, Traffic] = defaultdict(Traffic)
    for moved in by_phase.values():
        for tensor, traffic in moved.items():
            by_tensor[tensor] += traffic
    totals_of = {name: sum(moved.values(), Traffic()) for name, moved in by_phase.items()}
    return Count(
        sum(totals_of.values(), Traffic()),
        {tensor: traffic for tensor, traffic in by_tensor.items() if traffic.io},
        totals_of,
        peak_words(program, sizes),
        peak_red(program, sizes, summation),
    )


def io(program: ir.Program, sizes: ir.Sizes) -> int:
    """Reads and writes together, in words, without looking for the peaks."""
    return sum(traffic.io for phase in program.phases for traffic in _moved(phase, program, sizes).values())


def _moved(phase: ir.Phase, program: ir.Program, sizes: ir.Sizes) -> dict[str, Traffic]:
    found = totals(phase.body, sizes, _moves)
    return {tensor: Traffic(found[tensor, "reads"], found[tensor, "writes"]) for tensor in program.tensors}


def peak_words(program: ir.Program, sizes: ir.Sizes) -> int:
    """Most words resident between two primitives of a program.

    The first tile of a range is its largest, so it is enough to look at the first iteration of each loop.
    """
    return max(_peak_words(phase.body, sizes, {}, 0)[0] for phase in program.phases)


def _moves(node: ir.Node, words: Words) -> Iterator[tuple[tuple[str, str], int]]:
    match node:
        case ir.Read(tile=tile, tensor=tensor):
            yield (tensor.name, "reads"), words(tile.ranges)
        case ir.Write(tile=tile, tensor=tensor):
            yield (tensor.name, "writes"), words(tile.ranges)
        case ir.Init(tensor=tensor, ranges=ranges):
            yield (tensor.name, "writes"), words(ranges)
        case _:
            pass


def _peak_words(body: list[ir.Node], sizes: ir.Sizes, lengths: dict[ir.Range, int], resident: int) -> tuple[int, int]:
    """(peak, resident at the end) of a body that starts with so many words resident."""
    peak = resident
    for node in body:
        if isinstance(node, ir.Loop):
            rng = node.range
            assert rng.parent is not None
            lengths[rng] = min(words((rng.parent,), sizes, lengths), ir.length(rng.block, sizes))
            inner_peak, resident = _peak_words(node.body, sizes, lengths, resident)
            peak = max(peak, inner_peak)
        elif tile := ir.entering(node):
            resident += words(tile.ranges, sizes, lengths)
            peak = max(peak, resident)
        elif tile := ir.leaving(node):
            resident -= words(tile.ranges, sizes, lengths)
    return peak, resident
