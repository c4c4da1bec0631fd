"""Several sequences at a time: a program whose blocks compute some that share a tile of the bias, read once for all.

Keys and values of each are read for itself. So of the words of the bias a g-th is moved, where g sequences are at a
time; their sums are in registers at once.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    copies = [_Copy(Sequence(str(at), ir.Range(SEQUENCES), 1, number=at), apart) for at in range(number)]

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


def _of_each(copies: list[_Copy], nodes: list[ir.Node]) -> Iterator[ir.Node]:
    """Nodes of one sequence, for each of them."""
    for copy in copies:
        yield from map(copy.of, nodes)


class _Copy:
    """The nodes of one sequence, from those of a program for one."""

    def __init__(self, sequence: Sequence, tensors: dict[str, ir.Tensor]) -> None:
        self.sequence, self.tensors = sequence, tensors
        self.tiles: dict[ir.Tile, ir.Tile] = {}

    def of(self, node: ir.Node) -> ir.Node:
        """A node that is no loop."""
        made: ir.Node = ir.rebuilt(node, self._own)
        return replace(made, at=self.sequence) if isinstance(made, ir.Read | ir.Write) else made

    def _own(self, part: ir.Part) -> ir.Part:
        """The tile or tensor of the sequence; those over pairs are all sequences', and ranges are alike."""
        match part:
            case ir.Tensor(name=name):
                return self.tensors[name]
            case ir.Tile(name=name) if name not in OVER_PAIRS:
                return self.tiles.setdefault(part, replace(part))
        return part
