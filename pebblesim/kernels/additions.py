"""Additions to memory: parts of tensors that are read, added to and written, and what memory that adds spares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator

from pebblesim.analysis.totals import LoopContext, totals
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask


def added(body: list[ir.Node]) -> dict[ir.Compute, ir.Write]:
    """The products that a body only adds to parts of tensors that it reads and writes again, and the writes."""
    read = {node.tile: node.tensor for node in body if isinstance(node, ir.Read)}
    computed = [node for node in body if isinstance(node, ir.Compute)]
    found: dict[ir.Compute, ir.Write] = {}
    for write in body:
        if not isinstance(write, ir.Write) or read.get(write.tile) is not write.tensor:
            continue
        uses = [
            node for node in computed if write.tile in {node.target.tile, *(ref.tile for ref in ir.refs(node.expr))}
        ]
        if len(uses) == 1 and uses[0].mode == "add" and isinstance(uses[0].expr, ir.MatMul):
            found[uses[0]] = write
    return found


def added_to(program: ir.Program) -> tuple[ir.Tensor, ...]:
    """The tensors in memory that some part of a program adds products to."""
    return tuple(dict.fromkeys(write.tensor for write in _writes(program)))


def _writes(program: ir.Program) -> Iterator[ir.Write]:
    """The writes of sums that some loop's body only adds products to."""
    for phase in program.phases:
        for node in ir.walk(phase.body):
            if isinstance(node, ir.Loop):
                yield from added(node.body).values()


def read_to_be_added_to(program: ir.Program, sizes: ir.Sizes, mask: Mask | None = None) -> dict[str, int]:
    """Words of each tensor that are read only to be added to and written: none are sent where memory adds by itself.

    They are part of the reads of `count`.
    """
    tiles = {write.tile for write in _writes(program)}

    def amounts(node: ir.Node, at: LoopContext) -> Iterator[tuple[str, int]]:
        if isinstance(node, ir.Read) and node.tile in tiles:
            yield node.tensor.name, at.words(ir.moved_part(node))

    found: Counter[Hashable] = Counter()
    for phase in program.phases:
        found.update(totals(phase.body, sizes, amounts, mask))
    return {str(name): number for name, number in found.items()}
