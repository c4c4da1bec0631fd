"""Find repeated work in a schedule, if it is repeated for all sizes; the tracer refuses such a schedule.

Each value gets a key that describes how it was computed: tiles with the same key hold the same value. A value has one
pebble, no matter which tile holds it, so it must not be computed into a second tile; and a sum has each term once.

A value that a loop changes gets a new key inside the loop, and another one after it, because all iterations of the loop
are traced as one. But if a loop only adds terms to a sum, its terms are known: those of all iterations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pebblesim.core.errors import TraceError
from pebblesim.language import program as ir
from pebblesim.language.source import where_is

Key = int
Term = tuple[tuple[Key, ...], Key]  # the part of the tile that gets the term, and the term


@dataclass
class _Sum:
    """A sum in a tile or in memory: its value before this loop, and the terms added since then, with their lines."""

    base: Key
    terms: dict[Term, ir.Compute] = field(default_factory=dict)


class _Repeats:
    """Runs through a program and reports repeated work."""

    def __init__(self, program: ir.Program) -> None:
        self.program = program
        self.keys: dict[tuple[Any, ...], Key] = {}
        self.parts: list[tuple[Any, ...]] = []  # for each key, what it is made from
        self.free: list[frozenset[ir.Range]] = []  # for each key, the loops in whose iterations its value may differ
        self.loops: list[ir.Loop] = []
        self.closed: dict[ir.Range, Key] = {}
        self.value: dict[ir.Tile, Key] = {}
        self.sums: dict[ir.Tile, _Sum] = {}
        self.since: dict[ir.Tile, int] = {}  # the line in which a tile got its value
        self.memory: dict[str, Key] = {name: self._key("input", name) for name in program.tensors}
        self.stored: dict[str, tuple[tuple[Key, ...], Key]] = {}  # the part last written, and its value
        self.in_memory: dict[str, _Sum] = {}  # sums in memory, with the terms added to them
        self.reset: set[str] = set()  # tensors that this loop overwrites

    # -- keys ------------------------------------------------------------------------------------------------

    def _key(self, *what: Any, free: Iterable[ir.Range] = ()) -> Key:
        """Return the key of a value made from other keys, names and numbers, which may differ in those iterations."""
        if what not in self.keys:
            self.keys[what] = len(self.parts)
            self.parts.append(what)
            of_parts = [self.free[part] for part in what[1:] if type(part) is int]
            self.free.append(frozenset(free).union(*of_parts))
        return self.keys[what]

    def _new(self) -> Key:
        """Return a new key, for a value about which nothing is known."""
        return self._key("new", f"{len(self.parts)}", free=[loop.range for loop in self.loops])

    def _range(self, rng: ir.Range) -> Key:
        if rng in self.closed:
            return self.closed[rng]
        if rng.parent is None:
            return self._key("whole", rng.name)
        return self._key("tile of", self._range(rng.parent), f"{rng.block}", f"{id(rng)}", free=[rng])

    def _ranges(self, ranges: ir.Ranges) -> tuple[Key, ...]:
        return tuple(map(self._range, ranges))

    def _place(self, tile: ir.Tile, at: ir.Range | None) -> tuple[Key, ...]:
        """Return the position of a tile in a tensor."""
        return self._ranges((*tile.ranges, *(() if at is None else (at,))))

    def _expression(self, expr: ir.Expr) -> Key:
        match expr:
            case ir.Ref(tile=tile, ranges=ranges, transposed=transposed):
                key = self.value[tile]
                if ranges != tile.ranges:
                    key = self._key("part", key, *self._ranges(tile.ranges), "at", *self._ranges(ranges))
                return self._key("transposed", key) if transposed else key
            case ir.Elementwise(op=op, operands=operands):
                keys = [self._expression(operand) for operand in operands]
                return self._key(op, *(sorted(keys) if op in ("add", "mul", "max") else keys))
            case ir.RowReduction(op=op, operand=operand):
                return self._key(op, self._expression(operand), *self._ranges(operand.shape))
            case ir.MatMul(left=left, right=right):
                summed = self._range(left.shape[1])
                return self._key("matmul", self._expression(left), self._expression(right), summed)

    def _at_end(self, key: Key, rng: ir.Range, each: Key, known: dict[Key, Key]) -> Key:
        """Return the key of all iterations from the key of one iteration."""
        if rng not in self.free[key]:
            return key
        if key not in known:
            what = self.parts[key]
            if what[0] == "tile of" and what[3] == f"{id(rng)}":
                known[key] = each
            elif what[0] == "new":
                known[key] = self._new()
            else:
                known[key] = self._key(
                    *(self._at_end(part, rng, each, known) if type(part) is int else part for part in what)
                )
        return known[key]

    # -- the program -----------------------------------------------------------------------------------------

    def run(self) -> None:
        for phase in self.program.phases:
            self._body(phase.body)

    def _body(self, body: list[ir.Node]) -> None:
        for node in body:
            match node:
                case ir.Loop():
                    self._loop(node)
                case ir.Read(tile=tile, tensor=tensor, line=line, at=at):
                    where = self._place(tile, at)
                    written = self.stored.get(tensor.name)
                    if written and written[0] == where:
                        self._hold(tile, written[1], line)
                    else:
                        self._hold(tile, self._key("read", self.memory[tensor.name], *where), line)
                case ir.Write(tile=tile, tensor=tensor, at=at):
                    self._write(tile, tensor, self._place(tile, at))
                case ir.Init(tensor=tensor):
                    self._overwrite(tensor.name)
                case ir.Zeros(tile=tile, line=line):
                    self.value[tile], self.since[tile] = self._key("zeros"), line
                    self.sums[tile] = _Sum(self.value[tile])
                case ir.Constant(tile=tile, line=line):
                    self.value[tile], self.since[tile] = self._new(), line
                case ir.Move(tile=tile, source=source, line=line):
                    key, of_sum = self.value.pop(source), self.sums.pop(source, None)
                    self.sums.pop(tile, None)
                    self._hold(tile, key, line)
                    if of_sum:
                        self.sums[tile] = of_sum
                case ir.Delete(tile=tile):
                    self.value.pop(tile, None)
                    self.sums.pop(tile, None)
                case ir.Compute():
                    self._compute(node)

    def _compute(self, node: ir.Compute) -> None:
        tile, part, key = node.target.tile, self._ranges(node.target.ranges), self._expression(node.expr)
        if node.mode == "add":
            of_sum = self.sums.setdefault(tile, _Sum(self.value[tile]))
            earlier = of_sum.terms.get((part, key))
            if earlier is not None:
                self._refuse_terms(node, f"that line {int(earlier.line)} has added already")
            of_sum.terms[part, key] = node
            self._hold(tile, self._of_sum(of_sum), node.line)
            return
        self.sums.pop(tile, None)
        if node.mode == "assign" and node.target.ranges != tile.ranges:
            key = self._key("changed", self.value[tile], *part, "to", key)
        self._hold(tile, key, node.line)

    def _of_sum(self, of_sum: _Sum) -> Key:
        terms = sorted(self._key("to", *part, "add", key) for part, key in of_sum.terms)
        return self._key("sum", of_sum.base, *terms)

    def _hold(self, tile: ir.Tile, key: Key, line: int) -> None:
        """Record the new value of a tile; no other tile may hold it."""
        for other, held in self.value.items():
            if held == key and other is not tile and self._ranges(other.ranges) == self._ranges(tile.ranges):
                name, this = other.name or "another tile", tile.name or "a tile"
                raise TraceError(
                    f"{where_is(line)}: {this} gets a value that is in cache already, in {name} since line "
                    f"{int(self.since[other])}; use that tile, or delete it first."
                )
        self.value[tile], self.since[tile] = key, line

    def _write(self, tile: ir.Tile, tensor: ir.Tensor, where: tuple[Key, ...]) -> None:
        """Record the write of a tile to a tensor; if it was read from there, terms added since then are added to it."""
        name, key = tensor.name, self.value[tile]
        of_sum = self.sums.get(tile)
        if of_sum and of_sum.base == self._key("read", self.memory[name], *where):
            added = self.in_memory.setdefault(name, _Sum(self.memory[name]))
            for (part, term), node in of_sum.terms.items():
                added.terms[(*where, *part), term] = node
            self.memory[name] = self._new()
        else:
            self._overwrite(name)
        self.stored[name] = where, key

    def _overwrite(self, name: str) -> None:
        """Record a write to a tensor that does not add to its old value."""
        self.memory[name] = self._new()
        self.stored.pop(name, None)
        self.in_memory.pop(name, None)
        self.reset.add(name)

    def _loop(self, loop: ir.Loop) -> None:
        self.loops.append(loop)
        nodes = list(ir.walk(loop.body))
        sums = self._enter_tiles(nodes)
        in_memory = self._enter_tensors(nodes)
        start, reset = dict(self.value), self.reset
        self.reset = set()
        self._body(loop.body)
        self.loops.pop()
        self.closed[loop.range] = each = self._each(loop)
        known: dict[Key, Key] = {}
        for tile, earlier in sums.items():
            of_sum = self.sums.pop(tile, None)
            if of_sum is None or of_sum.base != start[tile]:
                self.value[tile] = self._new()
                continue
            self._close(loop, each, known, of_sum, earlier)
            self.sums[tile] = earlier
            self._hold(tile, self._of_sum(earlier), max(node.line for node in of_sum.terms.values()))
        for name, earlier in in_memory.items():
            added = self.in_memory.pop(name, None)
            self.memory[name] = self._new()
            self.stored.pop(name, None)
            if added and name not in self.reset:
                self._close(loop, each, known, added, earlier)
                self.in_memory[name] = earlier
        self.reset |= reset

    def _enter_tiles(self, nodes: list[ir.Node]) -> dict[ir.Tile, _Sum]:
        """Forget the values of outer tiles that a loop changes; return those that are sums."""
        changed = {node.target.tile: None for node in nodes if isinstance(node, ir.Compute)}
        changed |= {node.tile: None for node in nodes if isinstance(node, ir.Move)}
        sums = {}
        for tile in changed:
            if tile in self.value:
                sums[tile] = self.sums.pop(tile, _Sum(self.value[tile]))
                self.value[tile] = self._new()
        return sums

    def _enter_tensors(self, nodes: list[ir.Node]) -> dict[str, _Sum]:
        """Forget the values of tensors that a loop writes; return those that are sums."""
        sums = {}
        for name in dict.fromkeys(node.tensor.name for node in nodes if isinstance(node, ir.Write | ir.Init)):
            sums[name] = self.in_memory.pop(name, _Sum(self.memory[name]))
            self.memory[name] = self._new()
            self.stored.pop(name, None)
        return sums

    def _close(self, loop: ir.Loop, each: Key, known: dict[Key, Key], inside: _Sum, outside: _Sum) -> None:
        """Add the terms that a sum gets in all iterations of a loop to the terms that it had before."""
        for (part, key), node in inside.terms.items():
            if not _runs_once(loop) and not any(loop.range in self.free[at] for at in (*part, key)):
                loop_line = f"the loop over {loop.range.name} (line {int(loop.line)})"
                self._refuse_terms(node, f"that are the same in every iteration of {loop_line}")
            ends = [self._at_end(at, loop.range, each, known) for at in (*part, key)]
            term = tuple(ends[:-1]), ends[-1]
            if term in outside.terms:
                self._refuse_terms(node, f"that line {int(outside.terms[term].line)} has added already")
            outside.terms[term] = node

    def _each(self, loop: ir.Loop) -> Key:
        """Return the key of a loop's range that represents all of its tiles."""
        assert loop.range.parent is not None
        condition: tuple[Any, ...] = ()
        if loop.when:
            other = loop.when.columns if loop.when.rows is loop.range else loop.when.rows
            condition = "columns" if loop.when.rows is other else "rows", f"{loop.when.none}", self._range(other)
        depth = f"{len(self.loops)}"  # distinguishes nested loops over the same tiles
        part = f"{loop.range.first}", f"{loop.range.after}"
        return self._key(
            "each tile of", self._range(loop.range.parent), f"{loop.range.block}", *part, depth, *condition
        )

    def _refuse_terms(self, node: ir.Compute, which: str) -> None:
        name = node.target.tile.name or "the sum"
        raise TraceError(
            f"{where_is(node.line)}: adds terms to {name} {which}; a sum gets each of its terms once, so leave out the "
            "repetition."
        )


def _runs_once(loop: ir.Loop) -> bool:
    """Whether a loop has one iteration for all sizes."""
    if loop.range.first:
        return True
    outer, block = loop.range.parent, loop.range.block
    if outer is None or outer.parent is None or not isinstance(outer.block, int):
        return False
    return outer.block == 1 or (isinstance(block, int) and block >= outer.block)


def check_repeats(program: ir.Program) -> None:
    """Look for work that a traced program repeats for all sizes.

    Raises:
        TraceError: a term is added to a sum twice, or a value that is in cache is computed into another tile; the
            message names the line of the schedule.
    """
    _Repeats(program).run()
