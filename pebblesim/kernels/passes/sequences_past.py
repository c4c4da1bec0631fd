"""Sequences that stream past a bias: a block's rows of it stay in the cache, and it computes all that share them.

A schedule of `kernels.bias.biased` is for one sequence, and all words of the bias are read for each of them. In the
program of `past` a block reads its rows of the bias once, whole, and a loop over the sequences within the block does
for each of them what was done for one. So the words of the bias are read once for all sequences of a block, and all
others as often as before. The inverse, `of_one`, is what a kernel does for a sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pebblesim.core.errors import UsageError
from pebblesim.kernels.passes.sequences import SEQUENCES
from pebblesim.kernels.strides import OVER_PAIRS
from pebblesim.language import program as ir


def past(program: ir.Program) -> ir.Program:
    """A program of `kernels.bias.biased` whose blocks keep their rows of the bias for R sequences, a dimension of it.

    Raises:
        UsageError: a phase is no loop over rows, with one within that reads tiles of the bias.
    """
    sequence = ir.Range("r", ir.Range(SEQUENCES), 1)
    tensors = {
        name: tensor if name in OVER_PAIRS else replace(tensor, apart=ir.Quotient(SEQUENCES, 1))
        for name, tensor in program.tensors.items()
    }

    def streaming(node: ir.Node) -> ir.Node:
        """The loop over the blocks of a phase, with one over the sequences in it."""
        reads = [each for each in ir.walk([node]) if isinstance(each, ir.Read) and each.tensor.name in OVER_PAIRS]
        if not isinstance(node, ir.Loop) or len(reads) != 1 or reads[0].tile.ranges[0] is not node.range:
            raise UsageError(f"{program.name} is no loop over rows in which a bias is read for each tile of scores.")
        ((rows, columns), line) = reads[0].tile.ranges, node.line
        if columns.parent is None:
            raise UsageError(f"{program.name} reads whole rows of the bias in line {reads[0].line}.")
        whole = ir.Tile(reads[0].tile.name, (rows, columns.parent))
        kept = _rebuilt(node.body, {reads[0].tile: whole, **_by(program.tensors, tensors)}, without=reads[0].tile)
        each = [_at(inner, sequence) for inner in kept]
        read = replace(reads[0], tile=whole)
        return replace(node, body=[read, ir.Loop(sequence, each, False, line), ir.Delete(whole, True, line)])

    phases = [replace(phase, body=[*map(streaming, phase.body)]) for phase in program.phases]
    return replace(program, dims=(SEQUENCES, *program.dims), tensors=tensors, phases=phases)


def of_one(program: ir.Program) -> ir.Program:
    """The program for one sequence, from which `past` made one: a tile of the bias is read for each tile of scores."""
    tensors = {
        name: tensor if name in OVER_PAIRS else replace(tensor, apart=None) for name, tensor in program.tensors.items()
    }

    def alone(node: ir.Node) -> ir.Node:
        """The loop over the blocks of a phase."""
        assert isinstance(node, ir.Loop)
        read, sequences, _ = node.body
        assert isinstance(read, ir.Read) and isinstance(sequences, ir.Loop)
        body = [_at(each, None) for each in _rebuilt(sequences.body, _by(program.tensors, tensors))]
        return replace(node, body=[_reading(each, read) if isinstance(each, ir.Loop) else each for each in body])

    phases = [replace(phase, body=[*map(alone, phase.body)]) for phase in program.phases]
    dims = tuple(dim for dim in program.dims if dim != SEQUENCES)
    return replace(program, dims=dims, tensors=tensors, phases=phases)


def _reading(loop: ir.Loop, read: ir.Read) -> ir.Loop:
    """A loop that reads a tile of the bias in front of the product to which it adds one."""
    at = next((at for at, node in enumerate(loop.body) if _adds(node, read.tile)), None)
    if at is None:
        return loop
    tile, line = ir.Tile(read.tile.name, (read.tile.ranges[0], loop.range)), read.line
    product, added = _rebuilt(loop.body[at - 1 : at + 1], {read.tile: tile})
    own = [replace(read, tile=tile), product, added, ir.Delete(tile, True, line)]
    return replace(loop, body=[*loop.body[: at - 1], *own, *loop.body[at + 1 :]])


def _adds(node: ir.Node, tile: ir.Tile) -> bool:
    """Whether a tile of the bias is added to scores."""
    return isinstance(node, ir.Compute) and isinstance(node.expr, ir.Ref) and node.expr.tile is tile


def is_past(program: ir.Program) -> bool:
    """Whether a program is one of `past`: all that blocks do is read rows of a bias and compute the sequences."""
    return all(
        isinstance(loop, ir.Loop)
        and isinstance(loop.body[0], ir.Read)
        and loop.body[0].tensor.name in OVER_PAIRS
        and isinstance(loop.body[1], ir.Loop)
        and loop.body[1].range.dim == SEQUENCES
        and len(loop.body) == 3
        for phase in program.phases
        for loop in phase.body
    )


Parts = dict[ir.Tile | ir.Tensor, ir.Tile | ir.Tensor]


def _by(before: dict[str, ir.Tensor], after: dict[str, ir.Tensor]) -> Parts:
    """Tensors in the place of those with their names."""
    return {tensor: after[name] for name, tensor in before.items()}


def _rebuilt(body: list[ir.Node], parts: Parts, without: ir.Tile | None = None) -> list[ir.Node]:
    """A body with other tiles and tensors, and without the reads of a tile."""
    change: Callable[[ir.Part], ir.Part] = lambda part: part if isinstance(part, ir.Range) else parts.get(part, part)  # noqa: E731
    kept = (node for node in body if not (isinstance(node, ir.Read | ir.Delete) and node.tile is without))
    return [
        replace(node, body=_rebuilt(node.body, parts, without))
        if isinstance(node, ir.Loop)
        else ir.rebuilt(node, change)
        for node in kept
    ]


def _at(node: ir.Node, sequence: ir.Range | None) -> ir.Node:
    """A node, and those within, of a sequence."""
    if isinstance(node, ir.Loop):
        return replace(node, body=[_at(each, sequence) for each in node.body])
    return replace(node, at=sequence) if isinstance(node, ir.Read | ir.Write) else node
