"""Turns a program into the tables of the pebble machine: instructions, ranges, areas, and families of the graph.

The assembler follows the program to find out which tensor of the graph each tile holds: the one that is computed by the
same operation from the same operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pebblesim.core.errors import UsageError
from pebblesim.game import pebble_machine as vm, pebble_values as values
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE
from pebblesim.game.numbering import CONSTANTS, Family
from pebblesim.game.pebble_tables import Tables, period_of
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask

SUFFIXES = {"prev": values.BEFORE_IT, "last": values.LATEST, "ends": values.END_OF_SPLIT}
"""Suffixes of an operand's name in a graph, and the block that they stand for."""


class Assembler(Tables):
    """Turns a program into the tables of the machine."""

    def __init__(
        self,
        program: ir.Program,
        sizes: ir.Sizes,
        families: Sequence[Family],
        write_takes_red: bool,
        mask: Mask | None,
    ) -> None:
        super().__init__(program, sizes, families, mask)
        self.write_takes_red = write_takes_red
        self.families = {family.name: number for number, family in enumerate(families)}
        self.made_by = {
            (family.op, _ordered(family.op, [_now(operand) for operand in family.operands])): number
            for number, family in enumerate(families)
            if family.op != "input"
        }
        self.changed = set(_changed(program))
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

    def _fill(self, tile: ir.Tile, ranges: ir.Ranges) -> None:
        """Emit the computation of constants for a tile that is used: sums that have no terms under the mask."""
        number = self.family.get(tile)
        if number is not None and self.table[number].table is not None and self.table[number].terms:
            family = self.table[number]
            onto = [each.name for each in self.table].index(family.operands[-1]) if family.onto else -1
            self._emit(vm.FILL, FAMILY=number, ONTO=onto, **(self._tile(tile) | self._where(ranges)))

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
        family, how = self.table[number], SUFFIXES.get(declared.partition(".")[2])
        if not family.running and family.blocks > 1:  # the sum goes over its blocks, one after the other
            part = self.part.get(ref.tile)
        self._emit(
            vm.CHECK,
            AREA=self._area(ref.tile, ref.tile.ranges),
            FAMILY=number,
            KIND=values.THIS if how is None else how,
            PART=self._part(part),
            **self._where(ref.ranges),
        )

    def _check_output(self, name: str) -> None:
        """Emit a check that at the end an output's tensor in memory holds the final values of the output."""
        number = self._named(name)
        ranges = tuple(self._whole(dim) for dim in self.program.tensors[name].shape)
        kind = values.LATEST if self.table[number].running else values.THIS
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
        if part is not None and any(operand.endswith(".ends") for operand in family.operands):
            part = self._block_of(number, part)
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
                    outer, every = self.part[ref.tile], period_of(self.table[self.family[ref.tile]])
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
        period = period_of(self.table[number])
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
        block = whole if outer is None else min(whole, ir.length(index.block, self.sizes))
        if outer is not None and outer.parent is not None:
            inside = ir.length(outer.block, self.sizes)
            block = min(block, inside)
            if inside < whole and inside % block:
                raise UsageError(
                    f"{self.program.name} sums {self.table[number].name} over tiles of {block} inside tiles of "
                    f"{inside}, so its blocks have different sizes; choose a larger size that is a multiple of the "
                    "smaller one."
                )
        goes_on = index.parent is None or index.first
        tiles = 1 if goes_on else -(-whole // block)
        if tiles != self.table[number].blocks:
            raise UsageError(
                f"{self.program.name} has a separate sum {self.table[number].name} for each of {tiles} tiles of "
                f"{index.dim}, and its graph has {self.table[number].blocks}; in graph={{…}} of the schedule, let the "
                "block of these tiles be column_block (forward pass) or row_block (backward pass)."
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


def _now(operand: str) -> str:
    """Return an operand's name without the suffix for its block; the block follows from the tiles."""
    name, _, suffix = operand.partition(".")
    return name if suffix in SUFFIXES else operand


def _ordered(op: str, operands: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(operands)) if op in ("mul", "add", "max") else tuple(operands)
