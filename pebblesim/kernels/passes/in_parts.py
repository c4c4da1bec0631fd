"""A pass that makes the program of a part from one that goes through groups of rows, one after the other.

A part has some rows of a pass for itself, as many as there are queries in the part: its kernels need no number of the
first row, and sums over all rows are added to what memory has of the parts before.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from pebblesim.kernels.additions import added_to
from pebblesim.kernels.words import is_float32
from pebblesim.language import program as ir
from pebblesim.launches.launches import launches


@lru_cache(maxsize=256)
def part_of(program: ir.Program) -> ir.Program:
    """The program of a group of rows, as if it had all of them; itself without a loop around launches."""
    around = {launch.around for launch in launches(program, masked=True, repeated=True) if launch.around is not None}
    if not around:
        return program
    phases = list[ir.Phase]()
    for phase in program.phases:
        loop = next((node for node in phase.body if isinstance(node, ir.Loop) and node in around), None)
        if loop is None:
            phases.append(phase)
            continue
        made = _Whole(loop.range).body(loop.body)
        before = [node for node in phase.body if node is not loop]
        phases += [ir.Phase(", ".join(_written(node)), [node]) for node in (*before, *made)]
    block = next(each for each in program.blocks if each not in _blocks(phases))
    return replace(program, blocks=tuple(each for each in program.blocks if each != block), phases=phases)


def sums_between(program: ir.Program) -> frozenset[ir.Tensor]:
    """The matrices of sums to which blocks of a program add, so that they may begin with those of other parts."""
    matrices = (program.tensors[name] for name in program.outputs if len(program.tensors[name].shape) == 2)
    added = added_to(program)  # by memory itself
    return frozenset(tensor for tensor in matrices if is_float32(program, tensor) and tensor not in added)


def _written(node: ir.Node) -> dict[str, None]:
    """Names of the tensors that a node writes."""
    nodes = (each for each in ir.walk([node]) if isinstance(each, ir.Write | ir.Init))
    return dict.fromkeys(each.tensor.name for each in nodes)


def _blocks(phases: list[ir.Phase]) -> set[str | int]:
    """The block sizes of the loops of phases."""
    return {node.range.block for phase in phases for node in ir.walk(phase.body) if isinstance(node, ir.Loop)}


class _Whole:
    """Nodes in which the tiles of a loop are the whole of their dimension."""

    def __init__(self, rows: ir.Range) -> None:
        self.rows = rows
        self.of: dict[ir.Part, Any] = {rows: rows.parent}

    def body(self, nodes: list[ir.Node]) -> list[ir.Node]:
        """The nodes of a body; a loop over tiles that some row of all needs is one over all tiles."""
        made = list[ir.Node]()
        for node in nodes:
            if isinstance(node, ir.Loop):
                when = None if node.when is not None and node.when.rows is self.rows else node.when
                node = replace(ir.rebuilt(replace(node, when=when), self._part), body=self.body(node.body))
                made.append(node)
            else:
                made.append(ir.rebuilt(node, self._part))
        return made

    def _part(self, each: ir.Part) -> Any:
        """A range, or a tile with ranges, in the place of another."""
        if each not in self.of:
            self.of[each] = self._made(each)
        return self.of[each]

    def _made(self, each: ir.Part) -> ir.Part:
        match each:
            case ir.Range(parent=ir.Range() as parent) if each.within(self.rows):
                return replace(each, parent=self._part(parent))
            case ir.Tile(ranges=ranges) if any(rng.within(self.rows) for rng in ranges):
                return replace(each, ranges=tuple(map(self._part, ranges)))
        return each
