"""A pass over some of a problem's equations: what it reads, computes and stores, the words it moves, and its source.

There are two forms. `rows` keeps a block of rows of one axis in the cache while it streams rows of another axis, one at
a time; in this loop it computes all its equations. `tiles` computes one product in tiles, from columns and single words
of its operands, and applies elementwise operations to each tile. Between passes the cache is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from pebblesim.synthesis.equations import OPERATIONS, Equation, System
from pebblesim.synthesis.pairs import PairSums
from pebblesim.synthesis.word_sizes import WORDS, WordSizes

INDENT = "    "


@dataclass(frozen=True)
class Side:
    """One side of a tile: a whole axis, a block of it, or one index."""

    axis: int
    block: str | int | None = None

    def length(self, sizes: Mapping[int, int], blocks: Mapping[str, int]) -> int:
        """Return the number of indices of the largest tile."""
        size = sizes[self.axis]
        block = blocks.get(self.block, 1) if isinstance(self.block, str) else self.block
        return size if block is None else min(size, block)


class Tile(NamedTuple):
    """A tile in cache: the tensor whose values it holds, and its sides."""

    tensor: str
    sides: tuple[Side, ...]

    def words(self, sizes: Mapping[int, int], blocks: Mapping[str, int], widths: WordSizes, but: str = "") -> int:
        """Return the words of the largest tile; without a factor for a side of the block `but`."""
        return widths[self.tensor] * prod(side.length(sizes, blocks) for side in self.sides if side.block != but)


Region = tuple[str | int, str | int]
"""The blocks of queries and of keys of which loops leave out those without an allowed pair."""


@dataclass(frozen=True)
class Transfer:
    """Words moved between memory and cache: all words of a tensor, once for each tile of the loops over other axes.

    Attributes:
        tensor: its name.
        axes: of the tensor.
        again: the loops over other axes, each with its block.
        met: under a mask, the tiles without an allowed pair for which nothing is moved; None if all are moved.
        pairs: the axes of queries and of keys, if `met`.
        first: for each block whose first tile has a size of its own, the name of that size.
    """

    tensor: str
    axes: tuple[int, ...]
    again: tuple[tuple[int, str], ...]
    met: Region | None = None
    pairs: tuple[int, ...] = ()
    first: Mapping[str, str] = field(default_factory=dict)

    def words(self, sizes: Mapping[int, int], blocks: Mapping[str, int], sums: PairSums | None = None) -> int:
        """Return the number of words at these sizes, under a mask if there is one."""
        lines, again, total = self.axes, self.again, 1
        if sums is not None and self.met is not None:
            rows, columns = (blocks[block] if isinstance(block, str) else block for block in self.met)
            firsts = tuple(blocks[self.first[str(block)]] if block in self.first else 0 for block in self.met)
            total = sums.sum((rows, columns), self.pairs[0] in lines, self.pairs[1] in lines, firsts)
            lines = tuple(axis for axis in lines if axis not in self.pairs)
            again = tuple((axis, block) for axis, block in again if axis not in self.pairs)

        def times(axis: int, block: str) -> int:
            first = min(sizes[axis], blocks[self.first[block]]) if block in self.first else 0
            return -(-(sizes[axis] - first) // (blocks[block] if block else 1)) + (first > 0)

        return total * prod(sizes[axis] for axis in lines) * prod(times(axis, block) for axis, block in again)

    def text(self, dims: tuple[str, ...]) -> str:
        """Return the number of words as an expression in the dimensions and blocks."""

        def times(n: str, block: str) -> str:
            if block in self.first:
                return f"(1 + Max(0, ceiling(({n} - {self.first[block]})/{block})))"
            return f"ceiling({n}/{block})" if block else n

        again = [times(dims[axis], block) for axis, block in self.again]
        return "*".join([*(dims[axis] for axis in self.axes), *again])


@dataclass(frozen=True)
class Pass:
    """One phase of a schedule.

    Attributes:
        reads: the tensors that it reads.
        stores: the tensors that it leaves in memory.
        moved: the words that it moves.
        held: the sets of tiles that are in cache at the same time, recorded after each tile that is added.
        blocks: for each block size, by name, the axis that it divides.
        lines: its source code.
        regions: for each tensor over pairs that it moves, the tiles that it leaves out under a mask, if any.
    """

    reads: frozenset[str]
    stores: frozenset[str]
    moved: tuple[Transfer, ...]
    held: frozenset[tuple[Tile, ...]]
    blocks: Mapping[str, int]
    lines: tuple[str, ...]
    regions: Mapping[str, frozenset[Region | None]]

    def words(
        self,
        sizes: Mapping[int, int],
        blocks: Mapping[str, int],
        sums: PairSums | None = None,
        widths: WordSizes = WORDS,
    ) -> int:
        """Return the number of words, or bytes, moved at these sizes, under a mask if there is one."""
        return sum(widths[transfer.tensor] * transfer.words(sizes, blocks, sums) for transfer in self.moved)

    def room(self, sizes: Mapping[int, int], blocks: Mapping[str, int], widths: WordSizes = WORDS) -> int:
        """Return the largest number of words, or bytes, in cache, with those for the intermediates of an expression."""
        return widths.spare + max(sum(tile.words(sizes, blocks, widths) for tile in tiles) for tiles in self.held)

    def largest_block(
        self, sizes: Mapping[int, int], M: int, name: str, others: Mapping[str, int], widths: WordSizes = WORDS
    ) -> int:
        """Return the largest size of a block within M words, beside the others; 0 if not even one row fits.

        No tile has a block twice, so the words of tiles that are held together grow linearly with it.
        """
        size, room = sizes[self.blocks[name]], M - widths.spare
        for tiles in self.held:
            fixed = slope = 0
            for tile in tiles:
                words = tile.words(sizes, others, widths, but=name)
                if any(side.block == name for side in tile.sides):
                    slope += words
                else:
                    fixed += words
            if slope:
                size = min(size, (room - fixed) // slope)
            elif fixed > room:
                return 0
        return max(0, size)


class Impossible(Exception):
    """A pass of this form is not possible for these equations."""


@dataclass(frozen=True)
class Draft:
    """How a pass is written.

    Attributes:
        number: part of the names of its blocks.
        names: names of blocks that are those of other passes, by the pass's own names.
        filled: tensors over pairs whose parts that a mask leaves out are filled with zeros.
        short: whether the first block of rows has a size of its own, so that it may be the short one.
    """

    number: int = 1
    names: Mapping[str, str] = field(default_factory=dict)
    filled: frozenset[str] = frozenset()
    short: bool = False


ONE = Draft()
"""The first pass of a plan."""


class Writer:
    """Writes the source of a pass, line by line, and records the words that it moves and the tiles that it holds."""

    def __init__(self, system: System, draft: Draft) -> None:
        self.system, self.draft = system, draft
        self.i, self.j, self.k, self.r, self.c = map(system.free, "ijkrc")
        self.m = system.machine
        self.lines: list[str] = []
        self.moved: list[Transfer] = []
        self.held: set[tuple[Tile, ...]] = set()
        self.blocks: dict[str, int] = {}
        self.first: dict[str, str] = {}
        self.regions: dict[str, set[Region | None]] = {}
        self._loops: list[tuple[int, str | int, str]] = []  # (axis, block, index) of each open loop
        self._met: Region | None = None
        self._scopes: list[dict[str, Tile]] = [{}]  # for each open loop, its tiles by variable
        self._dead: list[str] = []

    # -- text ---------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        self.lines.append(INDENT * (len(self._scopes) - 1) + text)

    @contextmanager
    def loop(
        self,
        index: str,
        axis: int,
        block: str | int = 1,
        over: str = "",
        more: str = "",
        met: int | None = None,
        stores: Iterable[str] = (),
    ) -> Iterator[None]:
        """Open a loop over the tiles of an axis, or over parts of a tile of it (`over`, the index of an open loop).

        Args:
            index, axis, block, over: the loop.
            more: further arguments of it, as text.
            met: the axis of another loop; under a mask the loop leaves out tiles without an allowed pair with that one.
            stores: tensors that it writes.
        """
        self.drop()
        if isinstance(block, str):
            block = self.draft.names.get(block, block)
            self.blocks[block] = axis
        region = self._region(axis, block, met)
        if region is not None:
            more += self._left_out(axis, met, stores)
        self.say(f"for {index} in {self.m}.tiles({over or self.system.dims[axis]}, {block}{more}):")
        with self._inside(axis, block, index, region):
            yield

    @contextmanager
    def _inside(self, axis: int, block: str | int, index: str, region: Region | None) -> Iterator[None]:
        """Write the body of a loop; its tiles leave the cache at its end."""
        self._loops.append((axis, block, index))
        self._scopes.append({})
        before, self._met = self._met, region or self._met
        yield
        self._met = before
        self._loops.pop()
        self._dead = [name for name in self._dead if name not in self._scopes[-1]]
        self._scopes.pop()

    @contextmanager
    def blocks_of_rows(self, axis: int, block: str, more: str) -> Iterator[None]:
        """Open a loop over blocks of rows; the first one has a size of its own if the draft says so."""
        if not self.draft.short or axis not in (self.system.pairs or ()):
            with self.loop(self.i, axis, block, more=more):
                yield
            return
        block = self.draft.names.get(block, block)
        first, rows, dim = self.system.free(f"F{self.draft.number}"), self.system.free("rows"), self.system.dims[axis]
        self.first[block] = first
        self.blocks |= {first: axis, block: axis}
        self.drop()
        self.say(f"def {rows}({self.i}):")
        with self._inside(axis, block, self.i, None):
            yield
        for loop in (f"first({dim}, {first})", f"tiles({dim}, {block}, after={first}{more})"):
            self.say(f"for {self.i} in {self.m}.{loop}:")
            self.say(f"{INDENT}{rows}({self.i})")

    def _region(self, axis: int, block: str | int, met: int | None) -> Region | None:
        """Return the tiles of which a loop leaves out some under a mask; None if it runs for all."""
        pairs = self.system.pairs
        if not self.system.masked or pairs is None or {axis, met} != {*pairs}:
            return None
        other = next((other for over, other, _ in self._loops if over == met), None)
        if other is None:
            return None
        return (other, block) if axis == pairs[1] else (block, other)

    def _left_out(self, axis: int, met: int | None, stores: Iterable[str]) -> str:
        """Return the arguments of a loop that leaves out tiles."""
        assert self.system.pairs is not None
        option = "keys_of" if axis == self.system.pairs[1] else "queries_of"
        index = next(index for over, _, index in self._loops if over == met)
        zeros = ", ".join(f"{name}: 0" for name in stores if name in self.draft.filled)
        return f", {option}={index}" + (f", otherwise={{{zeros}}}" if zeros else "")

    def other(self, equation: Equation) -> int | None:
        """Return the axis that a sum over pairs has besides the one that it goes over; None for other sums."""
        pairs = self.system.pairs
        over = any(self.system.axes[name] == pairs for name in equation.uses)
        return next((axis for axis in pairs or () if over and axis != equation.contracted), None)

    # -- tiles --------------------------------------------------------------------------------------------------

    def index(self, axis: int) -> str | None:
        """Return the index of the innermost open loop over an axis; None if there is none."""
        return next((index for over, _, index in reversed(self._loops) if over == axis), None)

    def tile(self, name: str, axes: Iterable[int] | None = None) -> Tile:
        """Return a tile of a tensor inside the open loops; `axes` are those of the tensor, or their order if turned."""
        sides = []
        for axis in self.system.axes[name] if axes is None else axes:
            block = next((block for over, block, _ in reversed(self._loops) if over == axis), None)
            sides.append(Side(axis, block))
        return Tile(name, tuple(sides))

    def _there(self, name: str) -> str:
        """Return the text for the part of a tensor in memory at the indices of the open loops."""
        indices = [self.index(axis) for axis in self.system.axes[name]]
        return f"{name}[{', '.join(index or ':' for index in indices)}]" if any(indices) else name

    def variable(self, name: str) -> str:
        """Return the variable for a tensor's tile inside the open loops."""
        return f"{name}_{''.join(self.index(axis) or '' for axis in self.system.axes[name])}"

    def enter(self, variable: str, name: str, axes: Iterable[int] | None = None) -> None:
        """Record a new tile of a tensor in the innermost loop."""
        self._scopes[-1][variable] = self.tile(name, axes)
        self.hold()

    def becomes(self, variable: str, name: str) -> None:
        """Record that the values of a tile are replaced by those of another tensor."""
        scope = next(scope for scope in self._scopes if variable in scope)
        scope[variable] = scope[variable]._replace(tensor=name)
        self.hold()

    def hold(self, *more: Tile) -> None:
        """Record the tiles that are in cache now."""
        self.held.add((*(tile for scope in self._scopes for tile in scope.values()), *more))

    def here(self, variable: str) -> bool:
        """Whether a tile was read or created in the innermost loop."""
        return variable in self._scopes[-1]

    def kill(self, variable: str) -> None:
        """Mark a tile as no longer needed; it is deleted before the next tile is read or computed."""
        self._dead.append(variable)

    def drop(self) -> None:
        """Delete the tiles of the innermost loop that are no longer needed."""
        gone = [name for name in self._dead if self.here(name)]
        if gone:
            self.say(f"{self.m}.delete({', '.join(gone)})")
            for name in gone:
                del self._scopes[-1][name]
            self._dead = [name for name in self._dead if name not in gone]

    # -- moves --------------------------------------------------------------------------------------------------

    def _move(self, name: str, filled: bool = False) -> str:
        """Count the words of a tile that is read or written; return the text for its part of the tensor."""
        axes = self.system.axes[name]
        finest = {axis: block if isinstance(block, str) else "" for axis, block, _ in self._loops if axis not in axes}
        met = None if filled else self._met
        self.moved.append(
            Transfer(name, axes, tuple(finest.items()), met, (self.system.pairs or ()) if met else (), self.first)
        )
        if axes == self.system.pairs:
            self.regions.setdefault(name, set()).add(met)
        return self._there(name)

    def read(self, name: str) -> str:
        """Return the text that reads a tile of a tensor."""
        return f"{self.m}.read({self._move(name)})"

    def bring(self, name: str) -> str:
        """Read a tile of a tensor into a variable; return the variable."""
        self.drop()
        variable = self.variable(name)
        self.say(f"{variable} = {self.read(name)}")
        self.enter(variable, name)
        return variable

    def zeros(self, name: str) -> str:
        """Create a tile for a sum; return its variable."""
        self.drop()
        variable, axes = self.variable(name), self.system.axes[name]
        self.say(
            f"{variable} = {self.m}.zeros({', '.join(self.index(axis) or self.system.dims[axis] for axis in axes)})"
        )
        self.enter(variable, name)
        return variable

    def write(self, name: str, variable: str) -> None:
        """Write a tile to memory."""
        self.say(f"{self.m}.write({self._move(name, name in self.draft.filled)}, {variable})")

    def finish(self, reads: Iterable[str], stores: Iterable[str]) -> Pass:
        """Return the complete pass."""
        return Pass(
            frozenset(reads),
            frozenset(stores),
            tuple(self.moved),
            frozenset(self.held),
            self.blocks,
            tuple(self.lines),
            {name: frozenset(regions) for name, regions in self.regions.items()},
        )


def part(variable: str, axes: tuple[int, ...], at: Mapping[int, str]) -> str:
    """Return the text for the part of a tile at some indices of its axes."""
    if not any(axis in at for axis in axes):
        return variable
    return f"{variable}[{', '.join(at.get(axis, ':') for axis in axes)}]"


def expression(equation: Equation, operands: Mapping[str, str]) -> str:
    """Return the text of an elementwise expression or row sum."""
    texts = [operands[operand.name] for operand in equation.operands]
    return f"rowsum({texts[0]})" if equation.op == "rowsum" else OPERATIONS[equation.op].format(*texts)
