"""`pebbles`: a program as the element-by-element moves of the red-blue pebble game.

A tile of a schedule stands for vertices of a graph. Which ones follows from what was computed: the graph says of each
of its tensors from which others it comes, and so does the program. The names in a schedule do not matter, and a
schedule that computes what the graph does not hold is told so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim import program as ir
from pebblesim.errors import UsageError
from pebblesim.layout import Family
from pebblesim.moves import COMPUTE, DELETE, READ, WRITE
from pebblesim.readings import pebble_machine as vm

CHUNK = 1 << 16


def moves(
    program: ir.Program,
    sizes: ir.Sizes,
    families: Sequence[Family],
    *,
    write_takes_red: bool = False,
    chunk: int = CHUNK,
) -> Iterator[NDArray[np.int64]]:
    """The moves of a program, packed (see `pebblesim.moves`), in arrays that are valid until the next one is asked for.

    Args:
        program: a traced schedule.
        sizes: the value of each dimension and block, by name.
        families: the numbering of the graph it is played on.
        write_takes_red: the game's rules take the red pebble at a write, so that a tile just written need not be
            deleted.
        chunk: least length of the arrays' buffer.

    Raises:
        UsageError: the program computes something the graph does not hold, or moves a sum that is still spread over
            several vertices.
    """
    assembled = _Assembler(program, sizes, families, write_takes_red)
    tables, longest = assembled.tables(), assembled.longest
    out = np.empty(max(chunk, 2 * longest), np.int64)
    state = np.zeros(3, np.int64)
    while state[vm.STATUS] == vm.RUNNING:
        used = vm.run(*tables, state, out, longest)  # type: ignore[call-arg] # numba's stubs miscount *tables
        yield out[:used]
    if state[vm.STATUS] == vm.PARTIAL:
        raise UsageError(
            f"{program.name} moves or deletes a sum of {assembled.family_at(int(state[vm.PC]))} that is still spread "
            "over several partial sums; choose summation 'chain', or blocks of terms that end where the tiles end."
        )


class _Assembler:
    """Turns a program into the tables of the machine."""

    def __init__(self, program: ir.Program, sizes: ir.Sizes, families: Sequence[Family], write_takes_red: bool) -> None:
        self.program, self.sizes, self.write_takes_red = program, sizes, write_takes_red
        self.families = {family.name: number for number, family in enumerate(families)}
        self.table = families
        self.made_by = {
            (family.op, _ordered(family.op, family.operands)): number
            for number, family in enumerate(families)
            if family.op != "input"
        }
        self.code: list[list[int]] = []
        self.scripts: list[tuple[int, int, int]] = []
        self.ranges: dict[ir.Range, int] = {}
        self.range_rows: list[list[int]] = []
        self.tiles: dict[ir.Tile, int] = {}
        self.family: dict[ir.Tile, int] = {}  # of what each tile holds now
        self.in_memory = {name: self._named(name) for name in program.inputs}
        self.written: set[ir.Tile] = set()
        self.part: dict[ir.Tile, ir.Range] = {}  # tiles that are one part of a regrouped sum
        for phase in program.phases:
            self._body(phase.body)
        self._emit(vm.HALT)

    @property
    def longest(self) -> int:
        """Most moves for one element of any instruction."""
        terms = max(self.sizes[dim] for dim in self.program.dims)
        return 64 + (terms + 2) * (4 + len(self.scripts))

    def tables(self) -> Any:
        """code, scripts, families, ranges, done, stored: fresh ones, for a game from its start."""
        rows, stored = [], 0
        for family in self.table:
            length = family.shape[1] if len(family.shape) == 2 else 1
            row = (family.base, length, family.elements, family.terms, family.last_terms, family.blocks, family.tree)
            rows.append([*row, int(family.start), stored if family.start else -1])
            stored += family.elements if family.start else 0
        return (
            np.array(self.code, np.int64),
            np.array(self.scripts or [(0, 0, 0)], np.int64),
            np.array(rows, np.int64),
            np.array(self.range_rows, np.int64),
            np.full(max(1, len(self.tiles)), -1, np.int64),
            np.zeros(max(1, stored), np.int64),
        )

    def family_at(self, pc: int) -> str:
        """Name of the family that an instruction works on."""
        return self.table[self.code[pc][vm.FAMILY]].name

    # -- tables ----------------------------------------------------------------------------------------------

    def _emit(self, op: int, **columns: int) -> int:
        row = [op, *[-1] * (vm.WIDTH - 1)]
        for name, value in columns.items():
            row[getattr(vm, name)] = value
        self.code.append(row)
        return len(self.code) - 1

    def _range(self, rng: ir.Range) -> int:
        if rng not in self.ranges:
            if rng.parent is None:
                row = [-1, self.sizes[rng.name], 0, self.sizes[rng.name]]
            else:
                row = [self._range(rng.parent), ir.length(rng.block, self.sizes), 0, 0]
            self.ranges[rng] = len(self.range_rows)
            self.range_rows.append(row)
        return self.ranges[rng]

    def _where(self, ranges: ir.Ranges) -> dict[str, int]:
        return {"ROWS": self._range(ranges[0]), "COLUMNS": self._range(ranges[1]) if len(ranges) == 2 else -1}

    def _tile(self, tile: ir.Tile) -> dict[str, int]:
        part = self.part.get(tile)
        return {
            "TILE": self.tiles.setdefault(tile, len(self.tiles)),
            "PART": -1 if part is None else self._range(part),
            **self._where(tile.ranges),
        }

    # -- what a tile holds -----------------------------------------------------------------------------------

    def _named(self, name: str) -> int:
        if name not in self.families:
            raise UsageError(f"{self.program.name} uses {name}, which the graph it is played on does not have.")
        return self.families[name]

    def _result(self, op: str, operands: Sequence[str]) -> int:
        """The family that comes from these operands by this operation."""
        key = (op, _ordered(op, operands))
        if key not in self.made_by:
            raise UsageError(
                f"{self.program.name} computes {op}({', '.join(operands)}), which the graph it is played on "
                "does not have; it has "
                + ", ".join(f"{f.name} = {f.op}({', '.join(f.operands)})" for f in self.table if f.operands)
            )
        return self.made_by[key]

    def _operand(self, ref: ir.Ref) -> str:
        return self.table[self.family[ref.tile]].name + ".T" * ref.transposed

    # -- instructions ----------------------------------------------------------------------------------------

    def _body(self, body: list[ir.Node]) -> None:
        for node in body:
            match node:
                case ir.Loop(range=rng, body=inner):
                    start = self._emit(vm.LOOP, ROWS=self._range(rng))
                    self._body(inner)
                    end = self._emit(vm.NEXT, ROWS=self._range(rng), JUMP=start + 1)
                    self.code[start][vm.JUMP] = end + 1
                case ir.Read(tile=tile, tensor=tensor):
                    self.family[tile] = self.in_memory[tensor.name]
                    self._each(READ, tile)
                case ir.Write(tile=tile, tensor=tensor):
                    self.in_memory[tensor.name] = self.family[tile]
                    self._each(WRITE, tile)
                    self.written.add(tile)
                case ir.Delete(tile=tile):
                    if tile in self.family and not (self.write_takes_red and tile in self.written):
                        self._each(DELETE, tile)
                case ir.Init(tensor=tensor, ranges=ranges):
                    number = self.in_memory[tensor.name] = self._named(tensor.name)
                    if not self.table[number].start:
                        raise UsageError(
                            f"{self.program.name} writes 0 to {tensor.name}, which starts from no constant."
                        )
                    self._emit(vm.INIT, FAMILY=number, **self._where(ranges))
                case ir.Zeros(tile=tile):
                    self.family.pop(tile, None)
                case ir.Compute(expr=ir.Elementwise()):
                    self._elementwise(node)
                case ir.Compute():
                    self._sum(node)

    def _each(self, kind: int, tile: ir.Tile) -> None:
        self._emit(vm.EACH, KIND=kind, FAMILY=self.family[tile], **self._tile(tile))

    def _elementwise(self, node: ir.Compute) -> None:
        tile = node.target.tile
        first = len(self.scripts)
        number = self._steps(node.expr)
        if node.mode == "assign":
            self.scripts.append((DELETE, self.family[tile], len(tile.ranges) == 1))
        self.family[tile] = number
        where = self._tile(tile) | self._where(node.target.ranges)
        self._emit(vm.SCRIPT, FAMILY=number, FIRST=first, LAST=len(self.scripts), **where)

    def _steps(self, expr: ir.Expr) -> int:
        """The steps that compute an element of an expression; returns the family of its result."""
        if isinstance(expr, ir.Ref):
            return self.family[expr.tile]
        assert isinstance(expr, ir.Elementwise)
        numbers = [self._steps(operand) for operand in expr.operands]
        number = self._result(expr.op, [self.table[n].name for n in numbers])
        self.scripts.append((COMPUTE, number, len(expr.shape) == 1))
        for operand, n in zip(expr.operands, numbers, strict=True):
            if not isinstance(operand, ir.Ref):
                self.scripts.append((DELETE, n, len(operand.shape) == 1))
        return number

    def _sum(self, node: ir.Compute) -> None:
        tile, expr = node.target.tile, node.expr
        first = leaf = len(self.scripts)
        outer = None
        if isinstance(expr, ir.MatMul):
            number = self._result("matmul", [self._operand(expr.left), self._operand(expr.right)])
            index = expr.left.shape[1]
            outer = self.part.get(expr.left.tile) or self.part.get(expr.right.tile)
        else:
            assert isinstance(expr, ir.RowReduction)
            operand = self._steps(expr.operand)
            leaf = len(self.scripts)
            if not isinstance(expr.operand, ir.Ref):
                self.scripts.append((DELETE, operand, 0))
            number = self._result(expr.op, [self.table[operand].name])
            index = expr.operand.shape[1]
        fresh = node.mode == "new"
        if fresh:
            self._check_parts(number, index)
            self.part.pop(tile, None)
            if self.table[number].blocks > 1:
                self.part[tile] = index
        self.family[tile] = number
        self._emit(
            vm.SUM,
            FAMILY=number,
            **(self._tile(tile) | self._where(node.target.ranges)),
            FIRST=first,
            LEAF=leaf,
            LAST=len(self.scripts),
            TERMS=self._range(index),
            OUTER=-1 if outer is None else self._range(outer),
            WHOLE=self.sizes[index.dim],
            FRESH=int(fresh),
        )

    def _check_parts(self, number: int, index: ir.Range) -> None:
        """A sum over one tile of a dimension must be a vertex of its own in the graph."""
        whole = self.sizes[index.dim]
        tiles = 1 if index.parent is None else -(-whole // min(whole, ir.length(index.block, self.sizes)))
        if tiles != self.table[number].blocks:
            raise UsageError(
                f"{self.program.name} sums {self.table[number].name} over {tiles} tiles of {index.dim} one by "
                f"one, where the graph it is played on keeps {self.table[number].blocks} apart; choose its row_block "
                "to match."
            )


def _ordered(op: str, operands: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(operands)) if op in ("mul", "add", "max") else tuple(operands)
