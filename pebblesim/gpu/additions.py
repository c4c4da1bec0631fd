"""Additions to memory: parts of tensors that are read, added to and written, and what memory that adds spares."""

from __future__ import annotations

from collections.abc import Iterator

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


def adds(program: ir.Program) -> bool:
    """Whether some part of a program adds products to memory."""
    loops = [node for phase in program.phases for node in ir.walk(phase.body) if isinstance(node, ir.Loop)]
    return any(added(loop.body) for loop in loops)


def read_to_be_added_to(program: ir.Program, sizes: ir.Sizes, mask: Mask | None = None) -> dict[str, int]:
    """Words of each tensor that are read only to be added to and written: none are sent where memory adds by itself.

    They are part of the reads of `count`.
    """
    loops = [node for phase in program.phases for node in ir.walk(phase.body) if isinstance(node, ir.Loop)]
    tiles = {write.tile for loop in loops for write in added(loop.body).values()}

    def amounts(node: ir.Node, at: LoopContext) -> Iterator[tuple[str, int]]:
        if isinstance(node, ir.Read) and node.tile in tiles:
            yield node.tensor.name, at.words(ir.moved_part(node))

    found: dict[str, int] = {}
    for phase in program.phases:
        for name, number in totals(phase.body, sizes, amounts, mask).items():
            found[str(name)] = found.get(str(name), 0) + number
    return found
