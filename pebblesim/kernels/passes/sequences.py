"""Several sequences at a time: a program whose blocks compute some that share a tile of the bias, read once for all.

Keys and values of each are read for itself. So of the words of the bias a g-th is moved, where g sequences are at a
time; their sums are in registers at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pebblesim.kernels.strides import OVER_PAIRS
from pebblesim.language import program as ir

SEQUENCES = "R"
"""The number of sequences that share a bias."""


@dataclass(eq=False)
class Sequence(ir.Range):
    """One of the sequences of a block, by its number among them: the copy of a tensor that is moved."""

    number: int = 0


def together(program: ir.Program, number: int) -> ir.Program:
    """A program of `kernels.bias.biased` for so many sequences at a time, dimension R.

    All tensors but the bias have R copies. A body does for each sequence in turn what it did for one, between its
    loops, which are as before; a tile of the bias stays until all of them have used it.
    """
    of_all = {name for name in program.tensors if name in OVER_PAIRS}
    apart = {
        name: tensor if name in of_all else replace(tensor, apart=ir.Quotient(SEQUENCES, 1))
        for name, tensor in program.tensors.items()
    }
    copies = [OfSequence(Sequence(str(at), ir.Range(SEQUENCES), 1, number=at), apart) for at in range(number)]

    def made(body: list[ir.Node]) -> Iterator[ir.Node]:
        """The nodes of a body for all sequences."""
        waiting, gone = list[ir.Node](), list[ir.Node]()
        for node in body:
            if isinstance(node, ir.Loop):
                yield from _of_each(copies, waiting)
                waiting = []
                yield replace(node, body=[*made(node.body)])
            elif isinstance(node, ir.Read) and node.tensor.name in of_all:
                yield node
            elif isinstance(node, ir.Delete) and node.tile.name in of_all:
                gone.append(node)
            else:
                waiting.append(node)
        yield from _of_each(copies, waiting)
        yield from gone

    phases = [replace(phase, body=[*made(phase.body)]) for phase in program.phases]
    dims = (SEQUENCES, *program.dims)
    return replace(program, dims=dims, tensors=apart, phases=phases)


def _of_each(copies: list[OfSequence], nodes: list[ir.Node]) -> Iterator[ir.Node]:
    """Nodes of one sequence, for each of them."""
    for copy in copies:
        yield from map(copy.of, nodes)


class OfSequence:
    """The nodes of one sequence, from those of a program for one.

    Attributes:
        tensors: with a copy for each sequence, by name.
        ranges: in the place of those of the program.
    """

    def __init__(
        self, sequence: ir.Range, tensors: Mapping[str, ir.Tensor], ranges: Mapping[ir.Range, ir.Range] | None = None
    ) -> None:
        self.sequence, self.tensors, self.ranges = sequence, tensors, ranges or {}
        self.tiles: dict[ir.Tile, ir.Tile] = {}

    def of(self, node: ir.Node) -> ir.Node:
        """A node of the sequence; a loop over ranges that stay is one over nodes of the program for one."""
        made: ir.Node = ir.rebuilt(node, self._own)
        return replace(made, at=self.sequence) if isinstance(made, ir.Read | ir.Write) else made

    def _own(self, part: ir.Part) -> ir.Part:
        """The tile, tensor or range of the sequence; tiles over pairs are all sequences'."""
        match part:
            case ir.Tensor(name=name):
                return self.tensors[name]
            case ir.Tile(name=name, ranges=ranges) if name not in OVER_PAIRS:
                ranges = tuple(self.ranges.get(each, each) for each in ranges)
                return self.tiles.setdefault(part, replace(part, ranges=ranges))
            case ir.Range():
                return self.ranges.get(part, part)
        return part
