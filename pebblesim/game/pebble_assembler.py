"""Turns a program into the tables of the pebble machine: instructions, ranges, areas, and families of the graph.

The assembler follows the program to find out which tensor of the graph each tile holds: the one that is computed by the
same operation from the same operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import UsageError
from pebblesim.game import pebble_machine as vm
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE
from pebblesim.game.numbering import CONSTANTS, Family
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask
from pebblesim.language.source import where_is


class Assembler:
    """Turns a program into the tables of the machine."""

    def __init__(
        self,
        program: ir.Program,
        sizes: ir.Sizes,
        families: Sequence[Family],
        write_takes_red: bool,
        mask: Mask | None,
    ) -> None:
        self.program, self.sizes, self.write_takes_red, self.mask = program, sizes, write_takes_red, mask
        self.families = {family.name: number for number, family in enumerate(families)}
        self.table = families
        self.made_by = {
            (family.op, _ordered(family.op, [_now(operand) for operand in family.operands])): number
            for number, family in enumerate(families)
            if family.op != "input"
        }
        self.code: list[list[int]] = []
        self.nodes: list[ir.Node | None] = []  # the node that each instruction comes from
        self.scripts: list[tuple[int, int, bool, int]] = []
        self.ranges: dict[ir.Range, int] = {}
        self.range_rows: list[list[int]] = []
        self.areas: dict[ir.Tile | str, int] = {}  # areas of tiles, and of tensors by name
        self.area_rows: list[list[int]] = []
        self.cells = 0
        self.dims: dict[str, ir.Range] = {}  # ranges over whole dimensions
        self.changed = set(_changed(program))
        self.node: ir.Node | None = None
        self.family: dict[ir.Tile, int] = {}  # the family of the values that each tile holds now
        self.in_memory = {name: self._named(name) for name in program.inputs}
        self.written: set[ir.Tile] = set()
        self.of_several: set[ir.Tile] = set()  # tiles read from a tensor that has one copy for each tile of a dimension
        self.part: dict[ir.Tile, ir.Range] = {}  # the range whose current tile gives the block of the family in a tile
        for phase in program.phases:
            self._body(phase.body)
        for name in program.outputs:
            self._check_output(name)
        self.code.append(self._row(vm.HALT))

    @property
    def longest(self) -> int:
        """An upper bound on the moves that one element takes in any instruction."""
        terms = max(self.sizes[dim] for dim in self.program.dims)
        carried = 3 * 64  # additions of partial sums left by earlier instructions, in a tree of up to 2^64 terms
        return carried + (terms + 1) * (4 + len(self.scripts))

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
            kind = (f.terms, f.last_terms, f.blocks, f.tree, int(f.start), int(f.start or f.onto), _period(f))
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
            np.full(self.cells, vm.EMPTY, np.int64),
        )

    def _pairs(self) -> NDArray[np.int64]:
        """Return prefix sums of the mask: entry [i, j] counts the allowed pairs of rows < i and columns < j."""
        if self.mask is None:
            return np.zeros((1, 1), np.int64)
        sums = self.mask.allowed(*self.program.grid(self.sizes)).cumsum(axis=0, dtype=np.int64).cumsum(axis=1)
        return np.ascontiguousarray(np.pad(sums, ((1, 0), (1, 0))))

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
                same = holds != vm.EMPTY and vm.family_of(holds) == row[vm.FAMILY]
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

    def of(self, pc: int) -> ir.Node:
        """Return the node that an instruction comes from."""
        node = self.nodes[pc]
        assert node is not None  # an instruction without a node makes no moves
        return node

    def _at(self, node: ir.Node | None) -> str:
        """Return the place of a primitive in the schedule's source, for messages."""
        return f"{self.program.name}, {where_is(node.line)}" if node is not None and node.line else self.program.name

    def _value(self, held: int, i: int, j: int) -> str:
        """Return the value of a cell, for messages."""
        if held == vm.EMPTY:
            return "nothing yet"
        family, block, terms = self.table[vm.family_of(held)], vm.block_of(held), vm.terms_of(held)
        what = _entry(family, i, j)
        if block < 0:
            return f"the constant that {what} starts from"
        if family.blocks > 1:
            what += f" of block {block + 1} of {family.blocks}"
        k = family.section(block)[1]
        if family.table is not None:
            k = int(family.table.terms[block, i * (family.shape[1] if len(family.shape) == 2 else 1) + j])
        return what if terms == k else f"{what} with {terms} of its {k} terms"

    # -- tables ----------------------------------------------------------------------------------------------

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

    def _tile(self, tile: ir.Tile) -> dict[str, int]:
        return {
            "AREA": self._area(tile, tile.ranges),
            "PART": self._part(self.part.get(tile)),
            **self._where(tile.ranges),
        }

    # -- families of values ----------------------------------------------------------------------------------

    def _named(self, name: str) -> int:
        if name not in self.families:
            raise UsageError(f"{self.program.name} uses the tensor {name}, which its graph does not have.")
        return self.families[name]

    def _result(self, op: str, operands: Sequence[str]) -> int:
        """Return the family that this operation computes from these operands."""
        key = (op, _ordered(op, operands))
        if key not in self.made_by:
            made = ", ".join(f"{f.name} = {f.op}({', '.join(f.operands)})" for f in self.table if f.operands)
            raise UsageError(
                f"{self._at(self.node)}: computes {op}({', '.join(operands)}), which is not in the graph of the "
                f"problem; that graph has {made}. Products in another order need another graph, which "
                "@schedule(graph=...) selects."
            )
        return self.made_by[key]

    def _constant(self, node: ir.Constant) -> int:
        """Return the family of running values that start from this constant and have the tile's dimensions."""
        shape = tuple(self.sizes[rng.dim] for rng in node.tile.ranges)
        families = [n for n, f in enumerate(self.table) if f.initial == node.value and f.shape == shape]
        if len(families) != 1:
            raise UsageError(
                f"{self.program.name} starts a value of shape {shape} from the constant {node.value:g}; its graph must "
                f"have one tensor that does so, and has {len(families)}."
            )
        return families[0]

    # -- instructions ----------------------------------------------------------------------------------------

    def _body(self, body: list[ir.Node]) -> None:
        for node in body:
            self.node = node
            for part in _looked_at(node) if self.mask is not None else ():
                self._fill(*part)
            match node:
                case ir.Loop(range=rng, body=inner, when=when):
                    of_tiles = {"ROWS": self._range(rng), **self._condition(when)}
                    start = self._emit(vm.LOOP, **of_tiles)
                    self._body(inner)
                    self.node = node
                    end = self._emit(vm.NEXT, JUMP=start + 1, **of_tiles)
                    self.code[start][vm.JUMP] = end + 1
                case ir.Read(tile=tile, tensor=tensor, at=at):
                    self.family[tile] = self.in_memory[tensor.name]
                    if at is not None:  # the tensor has one copy for each tile of a dimension
                        self.part[tile] = at
                        self.of_several.add(tile)
                    where = {"OTHER": self._tensor(tensor.name), "APART": self._part(at)}
                    self._each(READ, tile, SURE=int(self._is_sure(tile)), **where)
                case ir.Write(tile=tile, tensor=tensor, at=at):
                    if at is None:
                        self._check_storable(self._held(tile))
                    self.in_memory[tensor.name] = self.family[tile]
                    self._each(WRITE, tile, OTHER=self._tensor(tensor.name), APART=self._part(at))
                    self.written.add(tile)
                case ir.Delete(tile=tile):
                    if tile in self.family and not (self.write_takes_red and tile in self.written):
                        self._each(DELETE, tile)
                case ir.Init(tensor=tensor, ranges=ranges, value=value):
                    number = self.in_memory[tensor.name] = self._named(tensor.name)
                    family = self.table[number]
                    starts = family.start or family.initial is not None or family.table is None
                    if starts and value != (0 if family.start else family.initial):
                        raise UsageError(self._wrong_constant(node, family))
                    where = {"KIND": -1 if starts else CONSTANTS[value], **self._where(ranges)}
                    self._emit(vm.INIT, AREA=self._tensor(tensor.name), FAMILY=number, **where)
                case ir.Constant(tile=tile):
                    self.family[tile] = self._constant(node)
                    self._emit(vm.CONSTANT, FAMILY=self.family[tile], **self._tile(tile))
                case ir.Move(tile=tile, source=source):
                    if tile in self.family:
                        self._each(DELETE, tile)
                    self.family[tile] = self._held(source)
                    self._emit(vm.MOVE, FAMILY=0, OTHER=self._tile(source)["AREA"], **self._tile(tile))
                    self.part |= {tile: self.part[source]} if source in self.part else {}
                case ir.Zeros(tile=tile):
                    self.family.pop(tile, None)
                    self._emit(vm.START, FAMILY=0, **self._tile(tile))
                case ir.Compute(expr=ir.Elementwise()):
                    self._elementwise(node)
                case ir.Compute():
                    self._sum(node)

    def _wrong_constant(self, node: ir.Init, family: Family, constant: int = 0, i: int = 0, j: int = 0) -> str:
        """Say that a tensor in memory does not start from a constant; `constant`: what the entry [i, j] is instead."""
        what = f"{self._at(node)}: writes the constant {node.value:g} to {family.name}"
        for value, code in CONSTANTS.items():
            if code == constant:
                return f"{what}, where {_entry(family, i, j)}, which has no allowed pair, is the constant {value:g}."
        return (
            f"{what}, which does not start from that constant in its graph; @schedule(graph=...) selects another graph."
        )

    def _condition(self, when: ir.MaskCondition | None) -> dict[str, int]:
        if when is None:
            return {}
        met = {"MET_ROWS": self._range(when.rows), "MET_COLUMNS": self._range(when.columns)}
        return met | {"MET": int(not when.none)}

    def _fill(self, tile: ir.Tile, ranges: ir.Ranges) -> None:
        """Emit the computation of constants for a tile that is used: sums that have no terms under the mask."""
        number = self.family.get(tile)
        if number is not None and self.table[number].table is not None and self.table[number].terms:
            self._emit(vm.FILL, FAMILY=number, **(self._tile(tile) | self._where(ranges)))

    def _each(self, kind: int, tile: ir.Tile, **columns: int) -> None:
        self._emit(vm.EACH, KIND=kind, FAMILY=self.family[tile], **self._tile(tile), **columns)

    # -- checks of what a primitive uses ---------------------------------------------------------------------

    def _held(self, tile: ir.Tile) -> int:
        """Return the family of the values that a tile holds."""
        if tile not in self.family:
            raise UsageError(f"{self._at(self.node)}: uses {tile.name or 'a tile'} before any value is computed in it.")
        return self.family[tile]

    def _is_sure(self, tile: ir.Tile) -> bool:
        """Whether a tile holds finished values of one family during its whole life."""
        return tile not in self.changed | self.of_several and not self.table[self.family[tile]].running

    def _check(self, ref: ir.Ref, declared: str, made: int, part: ir.Range | None) -> None:
        """Emit a check that an operand holds what the graph computes the result from: finished values, right block."""
        number = self._held(ref.tile)
        if self._is_sure(ref.tile):
            return
        family, how = self.table[number], {"prev": vm.BEFORE_IT, "last": vm.LATEST}.get(declared.partition(".")[2])
        if not family.running and family.blocks > 1:  # the sum goes over its blocks, one after the other
            part = self.part.get(ref.tile)
        self._emit(
            vm.CHECK,
            AREA=self._area(ref.tile, ref.tile.ranges),
            FAMILY=number,
            KIND=vm.THIS if how is None else how,
            PART=self._part(part),
            **self._where(ref.ranges),
        )

    def _check_output(self, name: str) -> None:
        """Emit a check that at the end an output's tensor in memory holds the final values of the output."""
        number = self._named(name)
        ranges = tuple(self._whole(dim) for dim in self.program.tensors[name].shape)
        kind = vm.LATEST if self.table[number].running else vm.THIS
        self.node = None
        self._emit(vm.CHECK, AREA=self._tensor(name), FAMILY=number, KIND=kind, **self._where(ranges))

    # -- computing -------------------------------------------------------------------------------------------

    def _elementwise(self, node: ir.Compute) -> None:
        tile = node.target.tile
        first = len(self.scripts)
        number, part = self._steps(node.expr)
        self.family[tile] = number
        if part is not None:
            self.part[tile] = part
        where = self._tile(tile) | self._where(node.target.ranges) | {"PART": self._part(part)}
        in_place = int(node.mode == "assign")
        self._emit(vm.SCRIPT, FAMILY=number, FIRST=first, LAST=len(self.scripts), SURE=in_place, **where)

    def _steps(self, expr: ir.Expr) -> tuple[int, ir.Range | None]:
        """Append the steps that compute one element of an expression; return the family and block of the result."""
        if isinstance(expr, ir.Ref):
            return self._held(expr.tile), self.part.get(expr.tile)
        assert isinstance(expr, ir.Elementwise)
        operands = [self._steps(operand) for operand in expr.operands]
        names = [self.table[n].name for n, _ in operands]
        number = self._result(expr.op, names)
        family = self.table[number]
        part = next((part for _, part in operands if part is not None), None) if family.running else None
        declared = family.operands if [_now(name) for name in family.operands] == names else family.operands[::-1]
        for operand, meant in zip(expr.operands, declared, strict=True):
            if isinstance(operand, ir.Ref):
                columns = expr.shape[1] if len(expr.shape) == 2 else None  # they give the block of a running vector
                self._check(operand, meant, number, part if family.running else columns)
        self._step(COMPUTE, number, expr.shape, part)
        for operand, (n, of_operand) in zip(expr.operands, operands, strict=True):
            if not isinstance(operand, ir.Ref):
                self._step(DELETE, n, operand.shape, of_operand)
        return number, part

    def _step(self, kind: int, number: int, shape: ir.Ranges, part: ir.Range | None = None) -> None:
        self.scripts.append((kind, number, len(shape) == 1, self._part(part)))

    def _part(self, part: ir.Range | None) -> int:
        return -1 if part is None else self._range(part)

    def _sum(self, node: ir.Compute) -> None:
        tile, expr = node.target.tile, node.expr
        first = leaf = len(self.scripts)
        outer, every = None, -1
        if isinstance(expr, ir.MatMul):
            refs: tuple[ir.Ref, ...] = (expr.left, expr.right)
            operands = [self.table[self._held(ref.tile)].name + ".T" * ref.transposed for ref in refs]
            op, index = "matmul", expr.left.shape[1]
            for ref in refs:
                if self._is_apart(ref.tile):
                    outer, every = self.part[ref.tile], _period(self.table[self.family[ref.tile]])
        else:
            assert isinstance(expr, ir.RowReduction)
            refs = (expr.operand,) if isinstance(expr.operand, ir.Ref) else ()
            number, part = self._steps(expr.operand)
            leaf = len(self.scripts)
            if not refs:
                self._step(DELETE, number, expr.operand.shape, part)
            operands = [self.table[number].name]
            op, index = expr.op, expr.operand.shape[1]
        onto = None
        if node.mode == "add" and tile in self.family:
            onto = self.made_by.get((op, (*operands, self.table[self.family[tile]].name)))
        number = self._result(op, operands) if onto is None else onto
        for ref, declared in zip(refs, self.table[number].operands, strict=False):
            self._check(ref, declared, number, index)
        if node.mode == "new":
            self._check_parts(number, index)
            self.part.pop(tile, None)
        if self.table[number].blocks > 1:
            self.part[tile] = self._block_of(number, index)
        before = self.family.get(tile, -1)
        self.family[tile] = number
        self._emit(
            vm.SUM,
            FAMILY=number,
            **(self._tile(tile) | self._where(node.target.ranges)),
            FIRST=first,
            LEAF=leaf,
            LAST=len(self.scripts),
            TERMS=self._range(index),
            OUTER=self._part(outer),
            EVERY=every,
            WHOLE=self.sizes[index.dim],
            FRESH=int(node.mode == "new"),
            ONTO=-1 if onto is None else before,
        )

    def _is_apart(self, tile: ir.Tile) -> bool:
        """Whether a tile holds one of several separate blocks; a sum over it goes through them one after the other."""
        family = self.table[self.family[tile]]
        return family.blocks > 1 and not family.running

    def _block_of(self, number: int, index: ir.Range) -> ir.Range:
        """Return the outermost range around an index whose tiles each lie inside one block of the family."""
        outside = [index]
        while (parent := outside[-1].parent) is not None and parent.parent is not None:
            outside.append(parent)
        period = _period(self.table[number])
        fitting = (rng for rng in reversed(outside) if rng.parent and ir.length(rng.block, self.sizes) <= period)
        return next(fitting, index)

    def _check_storable(self, number: int) -> None:
        """Refuse to write a family of several blocks, unless it starts from a constant: memory has the latest block."""
        family = self.table[number]
        if family.blocks > 1 and not (family.start or family.initial is not None):
            raise UsageError(
                f"{self.program.name} writes {family.name}, which has {family.blocks} separate blocks in its graph; "
                "the game cannot keep these blocks in memory. Use each block in the loop that computes it."
            )

    def _check_parts(self, number: int, index: ir.Range) -> None:
        """Refuse a sum over one tile of a dimension if the graph has no separate vertex for it."""
        whole = self.sizes[index.dim]
        outer = index.parent
        if outer is not None and outer.parent is not None:
            inside, block = ir.length(outer.block, self.sizes), ir.length(index.block, self.sizes)
            if inside < whole and inside % block:
                raise UsageError(
                    f"{self.program.name} sums {self.table[number].name} over tiles of {block} inside tiles of "
                    f"{inside}, so its blocks have different sizes; choose a larger size that is a multiple of the "
                    "smaller one."
                )
        goes_on = index.parent is None or index.first
        tiles = 1 if goes_on else -(-whole // min(whole, ir.length(index.block, self.sizes)))
        if tiles != self.table[number].blocks:
            raise UsageError(
                f"{self.program.name} has a separate sum {self.table[number].name} for each of {tiles} tiles of "
                f"{index.dim}, and its graph has {self.table[number].blocks}; choose row_block of the graph to match."
            )


def _looked_at(node: ir.Node) -> Iterator[tuple[ir.Tile, ir.Ranges]]:
    """Yield the tiles whose values a primitive uses, each with the ranges of the elements that are used."""
    match node:
        case ir.Write(tile=tile) | ir.Move(source=tile):
            yield tile, tile.ranges
        case ir.Compute(target=target, expr=expr, mode=mode):
            yield from ((ref.tile, ref.ranges) for ref in (*ir.refs(expr), *([target] if mode == "assign" else ())))


def _changed(program: ir.Program) -> Iterator[ir.Tile]:
    """Yield the tiles that get their values in other ways than by one read or one computation."""
    for phase in program.phases:
        for node in ir.walk(phase.body):
            match node:
                case ir.Zeros(tile=tile) | ir.Constant(tile=tile):
                    yield tile
                case ir.Move(tile=tile, source=source):
                    yield from (tile, source)
                case ir.Compute(target=target, mode="assign" | "add"):
                    yield target.tile


def _period(family: Family) -> int:
    """Return the number of consecutive indices that make one block of a family; 0 if it has only one block."""
    return family.running or (family.terms if family.blocks > 1 else 0)


def _entry(family: Family, i: int, j: int) -> str:
    return f"{family.name}[{i}]" if len(family.shape) == 1 else f"{family.name}[{i},{j}]"


def _now(operand: str) -> str:
    """Return an operand's name without the suffix for its block; the block follows from the tiles."""
    return operand.removesuffix(".prev").removesuffix(".last")


def _ordered(op: str, operands: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(operands)) if op in ("mul", "add", "max") else tuple(operands)
