"""The tables of the pebble machine: instructions, scripts, ranges, areas, families; and what its mistakes mean."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import UsageError
from pebblesim.game import pebble_machine as vm, pebble_values as values
from pebblesim.game.numbering import CONSTANTS, Family
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask
from pebblesim.language.source import where_is


class Tables:
    """The tables of a program, to which the assembler adds rows, and the primitive that each instruction comes from."""

    def __init__(self, program: ir.Program, sizes: ir.Sizes, families: Sequence[Family], mask: Mask | None) -> None:
        largest = max(sizes[dim] for dim in program.dims)  # a larger block is like it
        self.program, self.sizes, self.table, self.mask = program, dict(sizes), families, mask
        self.sizes |= {block: min(sizes[block], largest) for block in program.blocks}
        self.code: list[list[int]] = []
        self.nodes: list[ir.Node | None] = []  # the node that each instruction comes from
        self.scripts: list[tuple[int, int, bool, int]] = []
        self.ranges: dict[ir.Range, int] = {}
        self.range_rows: list[list[int]] = []
        self.areas: dict[ir.Tile | str, int] = {}  # areas of tiles, and of tensors by name
        self.area_rows: list[list[int]] = []
        self.cells = 0
        self.dims: dict[str, ir.Range] = {}  # ranges over whole dimensions
        self.node: ir.Node | None = None  # the node at hand
        self.started: dict[tuple[float, tuple[int, ...]], list[ir.Tile]] = {}  # values from alike constants

    @property
    def longest(self) -> int:
        """An upper bound on the moves that one element takes in any instruction."""
        terms = max(self.sizes[dim] for dim in self.program.dims)
        carried = 3 * 64  # additions of partial sums left by earlier instructions, in a tree of up to 2^64 terms
        return carried + (terms + 1) * (4 + len(self.scripts))

    def of(self, pc: int) -> ir.Node:
        """Return the node that an instruction comes from."""
        node = self.nodes[pc]
        assert node is not None  # an instruction without a node makes no moves
        return node

    def tables(self) -> Any:
        """Return new tables for `pebble_machine.run`, as they are at the start of a game."""
        rows = []
        elements, before = [np.zeros((1, 3), np.int64)], [np.zeros(1, np.int64)]
        for f in self.table:
            masked = (-1, -1, -1, -1)
            if f.table is not None:
                first = np.where(f.table.first < 0, f.table.roots, f.table.first)
                columns = first, f.table.terms, f.table.constant
                own = np.stack([column.ravel() for column in columns], axis=1).astype(np.int64)
                masked = (sum(map(len, elements)), -1, -1, -1)
                elements.append(own)
                if f.table.before is not None:
                    line = -1 if f.table.line is None else f.table.line
                    masked = (masked[0], sum(map(len, before)), f.table.before.shape[1], line)
                    before.append(f.table.before.ravel().astype(np.int64))
            length = f.shape[1] if len(f.shape) == 2 else 1
            where = (f.base, f.step, f.last_base, f.initial_base, length, f.elements)
            kind = (
                f.terms,
                f.last_terms,
                f.blocks,
                f.tree,
                int(f.start),
                int(f.start or f.onto),
                period_of(f),
                f.restart or f.blocks,
            )
            rows.append((*where, *kind, *masked))
        return (
            np.array(self.code, np.int64),
            np.array(self.scripts or [(0, 0, False, 0)], np.int64),
            np.array(rows, np.int64),
            np.concatenate(elements),
            np.concatenate(before),
            self._pairs(),
            np.array(self.range_rows, np.int64),
            np.array(self.area_rows, np.int64),
            np.full(self.cells, values.EMPTY, np.int64),
        )

    def _pairs(self) -> NDArray[np.int64]:
        """Return prefix sums of the mask: entry [i, j] counts the allowed pairs of rows < i and columns < j."""
        if self.mask is None:
            return np.zeros((1, 1), np.int64)
        sums = self.mask.allowed(*self.program.grid(self.sizes)).cumsum(axis=0, dtype=np.int64).cumsum(axis=1)
        return np.ascontiguousarray(np.pad(sums, ((1, 0), (1, 0))))

    def _constant(self, node: ir.Constant) -> int:
        """Return the family of running values that start from this constant and have the tile's dimensions."""
        shape = tuple(self.sizes[rng.dim] for rng in node.tile.ranges)
        families = [n for n, f in enumerate(self.table) if f.initial == node.value and f.shape == shape]
        alike = self.started.setdefault((node.value, shape), [])
        alike += [node.tile] * (node.tile not in alike)
        if len(families) > 1 and len(alike) <= len(families):
            return families[alike.index(node.tile)]
        if len(families) != 1:
            raise UsageError(
                f"{self.program.name} starts {len(alike)} values of shape {shape} from the constant {node.value:g}; "
                f"its graph must have as many tensors that do so, and has {len(families)}."
            )
        return families[0]

    # -- rows -------------------------------------------------------------------------------------------------

    def _emit(self, op: int, **columns: int) -> int:
        self.code.append(self._row(op, **columns))
        self.nodes.append(self.node)
        return len(self.code) - 1

    @staticmethod
    def _row(op: int, **columns: int) -> list[int]:
        row = [op, *[-1] * (vm.WIDTH - 1)]
        for name, value in columns.items():
            row[getattr(vm, name)] = value
        return row

    def _range(self, rng: ir.Range) -> int:
        if rng not in self.ranges:
            if rng.parent is None:
                row = [-1, self.sizes[rng.name], 0, self.sizes[rng.name], 0, self.sizes[rng.name]]
            else:
                stretch = ir.stretch(rng, self._longest(rng.parent), self.sizes)
                row = [self._range(rng.parent), ir.length(rng.block, self.sizes), 0, 0, *stretch]
            self.ranges[rng] = len(self.range_rows)
            self.range_rows.append(row)
        return self.ranges[rng]

    def _where(self, ranges: ir.Ranges) -> dict[str, int]:
        return {"ROWS": self._range(ranges[0]), "COLUMNS": self._range(ranges[1]) if len(ranges) == 2 else -1}

    def _area(self, of: ir.Tile | str, ranges: ir.Ranges, copies: int = 1) -> int:
        """Return the area of a tile, or of a tensor in memory, with room for this number of copies."""
        if of not in self.areas:
            self.areas[of] = len(self.area_rows)
            where = self._where(ranges)
            self.area_rows.append([where["ROWS"], where["COLUMNS"], self.cells])
            self.cells += copies * prod(map(self._longest, ranges))
        return self.areas[of]

    def _longest(self, rng: ir.Range) -> int:
        """Return the largest number of indices that a range has in any iteration."""
        if rng.parent is None:
            return self.sizes[rng.name]
        return min(ir.length(rng.block, self.sizes), self._longest(rng.parent))

    def _tensor(self, name: str) -> int:
        """Return the area of a tensor; -1 for an input, whose values never change."""
        if name in self.program.inputs:
            return -1
        tensor = self.program.tensors[name]
        return self._area(name, tuple(map(self._whole, tensor.shape)), tensor.copies(self.sizes))

    def _whole(self, dim: str) -> ir.Range:
        return self.dims.setdefault(dim, ir.Range(dim))

    def _part(self, part: ir.Range | None) -> int:
        return -1 if part is None else self._range(part)

    def _condition(self, when: ir.MaskCondition | None) -> dict[str, int]:
        if when is None:
            return {}
        met = {"MET_ROWS": self._range(when.rows), "MET_COLUMNS": self._range(when.columns)}
        return met | {"MET": int(not when.none)}

    # -- mistakes ---------------------------------------------------------------------------------------------

    def check(self, state: NDArray[np.int64]) -> None:
        """Raise a UsageError if the machine stopped at a mistake of the program."""
        if state[vm.STATUS] not in (vm.PARTIAL, vm.MISMATCH):
            return
        pc = int(state[vm.PC])
        row, node = self.code[pc], self.nodes[pc]
        family = self.table[row[vm.FAMILY]]
        if state[vm.STATUS] == vm.PARTIAL:
            raise UsageError(
                f"{self._at(node)}: moves or deletes a sum of {family.name} that still consists of several partial "
                "sums; choose summation 'chain', or blocks of terms that end where the tiles end."
            )
        i, j, holds, meant = (int(state[at]) for at in (vm.AT_ROW, vm.AT_COLUMN, vm.HOLDS, vm.MEANT))
        if isinstance(node, ir.Init):
            raise UsageError(self._wrong_constant(node, family, holds, i, j))
        held = self._value(holds, i, j)
        area = next(area for area, number in self.areas.items() if number == row[vm.AREA])
        if node is None:
            raise UsageError(
                f"{self.program.name} ends with {held} in {area}; {self._value(meant, i, j)} must be there at the end."
            )
        assert isinstance(area, ir.Tile)
        tile = area.name or "a tile"
        match node:
            case ir.Compute(mode="add") if row[vm.OP] == vm.SUM:
                same = holds != values.EMPTY and values.family_of(holds) == row[vm.FAMILY]
                what = (
                    f"adds to {tile} terms of {_entry(family, i, j)} that this sum has already, or that are not the "
                    "next ones in order"
                    if same
                    else f"adds terms of {_entry(family, i, j)}"
                )
                why = f"{what}: {tile} holds {held}, where {self._value(meant, i, j)} is needed"
            case ir.Write(tensor=tensor):
                why = f"writes {tile} to {tensor.name}, but {tile} holds no value at [{i}, {j}]"
            case ir.Read(tensor=tensor):
                why = f"reads {held} from {tensor.name}, where {self._value(meant, i, j)} is needed"
            case _:
                why = f"uses {tile}, which holds {held}, where {self._value(meant, i, j)} is needed"
        raise UsageError(f"{self._at(node)}: {why}.")

    def _at(self, node: ir.Node | None) -> str:
        """Return the place of a primitive in the schedule's source, for messages."""
        return f"{self.program.name}, {where_is(node.line)}" if node is not None and node.line else self.program.name

    def _value(self, held: int, i: int, j: int) -> str:
        """Return the value of a cell, for messages."""
        if held == values.EMPTY:
            return "nothing yet"
        family, block, terms = self.table[values.family_of(held)], values.block_of(held), values.terms_of(held)
        what = _entry(family, i, j)
        if block < 0:
            return f"the constant that {what} starts from"
        if family.blocks > 1:
            what += f" of block {block + 1} of {family.blocks}"
        k = family.section(block)[1]
        if family.table is not None:
            k = int(family.table.terms[block, i * (family.shape[1] if len(family.shape) == 2 else 1) + j])
        return what if terms == k else f"{what} with {terms} of its {k} terms"

    def _wrong_constant(self, node: ir.Init, family: Family, constant: int = 0, i: int = 0, j: int = 0) -> str:
        """Say that a tensor in memory does not start from a constant; `constant`: what the entry [i, j] is instead."""
        what = f"{self._at(node)}: writes the constant {node.value:g} to {family.name}"
        for value, code in CONSTANTS.items():
            if code == constant:
                return f"{what}, where {_entry(family, i, j)}, which has no allowed pair, is the constant {value:g}."
        return (
            f"{what}, which does not start from that constant in its graph; @schedule(graph=...) selects another graph."
        )


def period_of(family: Family) -> int:
    """Return the number of consecutive indices that make one block of a family; 0 if it has only one block."""
    return family.running or (family.terms if family.blocks > 1 else 0)


def _entry(family: Family, i: int, j: int) -> str:
    return f"{family.name}[{i}]" if len(family.shape) == 1 else f"{family.name}[{i},{j}]"
