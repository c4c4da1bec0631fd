"""Ranges of indices in a Triton kernel, as text: how many tiles, which indices, and which of them exist.

Numbers of queries and of keys are arguments of a kernel, other sizes are numbers. Kernels are either for sizes that all
their tiles divide, without predicates for ragged edges, or for any sizes: then a loop is cut into its complete tiles,
which have no predicates, and the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pebblesim.core.errors import UsageError
from pebblesim.gpu.emit import key_ranges
from pebblesim.gpu.emit.identifiers import Identifiers
from pebblesim.gpu.emit.key_ranges import KeyRanges, reads_ranges
from pebblesim.gpu.emit.strides import Strides
from pebblesim.gpu.emit.tables import Tables
from pebblesim.language import program as ir
from pebblesim.language.masks import Band
from pebblesim.launches.launches import Launch

GROUP = 8
"""Rows of tiles that are launched together, column by column, so that shared tiles are still in L2."""

TAKEN = """
and as assert break class continue def del elif else except False finally for from global head heads if import in is
lambda None nonlocal not or pass raise range return rows run start tl torch triton True try while with yield group rank
device at_once tall wide after before dL first_ptr end_ptr above_ptr below_ptr sharing batch own results each room
"""
"""Names that no tile or tensor may have."""


@dataclass(frozen=True, eq=False)
class Setting:
    """Facts that all kernels of a text share.

    Attributes:
        program, sizes, dtype, mask, scale: as for `triton`.
        of: the names of the tensors' addresses.
        tables: how the tensors lie in memory.
        free: dimensions that are arguments.
        even: whether all tiles divide these dimensions.
        far: whether a head's matrix may have 2³¹ words or more, so that addresses within it have 64 bits.
        logarithms: tensors of logarithms, to base 2.
        strides: the matrices with strides of their own.
        softcap, described: as for `triton`.
        early: launches of which each begins while the one before it ends.
    """

    program: ir.Program
    sizes: ir.Sizes
    dtype: str
    mask: Band | None
    scale: float | None
    of: Mapping[ir.Tensor, str]
    tables: Tables
    free: tuple[str, ...]
    even: bool
    far: bool
    logarithms: set[ir.Tensor]
    strides: Strides
    softcap: float = 0.0
    described: tuple[str, ...] = ()
    early: tuple[str, ...] = ()

    def lengths(self, tensor: ir.Tensor, kernel: bool) -> list[str]:
        """The lengths of a tensor in memory as text, in a kernel or around it."""
        return self.tables.texts(tensor, self.sizes, self.size, kernel, self.even)

    def size(self, dim: str) -> str:
        """A dimension as text."""
        return dim if dim in self.free else str(self.sizes[dim])


def free_dimensions(program: ir.Program, made: list[Launch]) -> tuple[str, ...]:
    """The dimensions of queries and keys, unless some tile has all their indices."""
    pairs: dict[str, None] = {}
    whole: set[str] = set()
    for launch in made:
        if launch.kind == "fill":
            continue
        for node in ir.walk(launch.body):
            tile = node.target.tile if isinstance(node, ir.Compute) else getattr(node, "tile", None)
            for rng in tile.ranges if isinstance(tile, ir.Tile) else ():
                if rng.pairs is not None:
                    pairs |= dict.fromkeys(rng.pairs)
                if rng.parent is None:
                    whole.add(rng.name)
    return tuple(dim for dim in program.dims if dim in pairs and dim not in whole)


def largest_tiles(made: list[Launch], free: tuple[str, ...], sizes: ir.Sizes) -> dict[str, int]:
    """The longest tile along each of these dimensions; iterations around launches are none."""
    found = dict.fromkeys(free, 1)
    for launch in made:
        for node in ir.walk(launch.body):
            if isinstance(node, ir.Loop) and node is not launch.around and node.range.dim in found:
                found[node.range.dim] = max(found[node.range.dim], ir.length(node.range.block, sizes))
    return found


class Ranges:
    """The ranges of a kernel."""

    def __init__(self, setting: Setting, launch: Launch) -> None:
        self._setting, self._launch = setting, launch
        self._program, self._sizes, self._mask = setting.program, setting.sizes, setting.mask
        self._around = None if launch.around is None else launch.around.range
        taken = (*setting.of.values(), *setting.free, *setting.strides.names(setting.strides.of))
        self._names = Identifiers({*TAKEN.split(), *taken})
        self._indices: dict[ir.Range, str] = {}
        self._numbers: dict[ir.Range, str] = {}
        self._counted: dict[ir.Range, str] = {}  # numbers of the tiles, from the first of the rows around launches
        self._complete: set[ir.Range] = set()  # of which all indices exist here
        self._whole = False  # whether all pairs are allowed where one is
        self._finer: dict[ir.Range, int] = {}  # rows of a program, where a tile of them has several
        self._ranged = reads_ranges(setting.mask, list(ir.walk(launch.block)))
        self._lines: list[str] = []

    def _say(self, depth: int, line: str) -> None:
        self._lines.append("    " * depth + line)

    def _opening(self) -> None:
        """Define the names that the text of ranges uses."""
        if self._ranged:
            assert self._mask is not None and self._program.pairs is not None
            queries, keys = map(self._setting.size, self._program.pairs)
            for line in key_ranges.opening(queries, keys, self._mask.rows):
                self._say(1, line)
        if self._around is not None:
            self._say(1, f"rows = tl.minimum(at_once, {self._setting.size(self._around.dim)} - start)")
        if self._mask is not None and not self._mask.from_start:
            queries, keys = map(self._setting.size, self._program.pairs or ())
            queries = queries if self._mask.rows == 1 else f"{queries} // {self._mask.rows}"
            shift = "" if keys == queries else f" + {keys} - {queries}"
            if self._mask.after is not None:
                self._say(1, f"after = {self._mask.after}{shift}")
            if self._mask.before is not None:
                self._say(1, f"before = {self._mask.before}{shift and f' - {keys} + {queries}'}")

    # The limits of j - i, of an allowed pair (i, j), as text

    @property
    def _after(self) -> str | None:
        if self._mask is None or self._mask.after is None:
            return None
        return str(self._mask.after) if self._mask.from_start else "after"

    @property
    def _before(self) -> str | None:
        if self._mask is None or self._mask.before is None:
            return None
        return str(self._mask.before) if self._mask.from_start else "before"

    # Tiles

    def _length(self, rng: ir.Range) -> int:
        """Indices of a tile: the block, or for a whole dimension the next power of two."""
        if rng.parent is None:
            return 1 << (self._sizes[rng.name] - 1).bit_length()
        size = ir.length(rng.block, self._sizes)
        if size & (size - 1):
            raise UsageError(
                f"{self._program.name}: a tile of a Triton kernel has a power of two of indices, and block "
                f"{rng.block} is {size}; take {1 << (size.bit_length() - 1)} or {1 << size.bit_length()}."
            )
        return self._finer.get(rng, size)

    def _ragged(self, rng: ir.Range) -> bool:
        """Whether some tile of the range has indices that the dimension does not."""
        if rng.dim not in self._setting.free:
            return self._sizes[rng.dim] % self._length(rng) != 0
        return not self._setting.even and not any(each in self._complete for each in rng.around)

    def _within(self, rng: ir.Range) -> bool:
        """Whether it is over tiles of the rows that launches are repeated for."""
        return self._around is not None and rng.parent is self._around

    def _within_rows(self, rng: ir.Range) -> bool:
        """Whether it is over a part of the rows that launches are repeated for."""
        return self._around is not None and rng.within(self._around)

    def _cut(self, rng: ir.Range) -> bool:
        """Whether it is over tiles of a tile."""
        return rng.parent is not None and rng.parent.parent is not None and not self._within(rng)

    def _total(self, rng: ir.Range) -> str:
        """The number of indices that tiles are of: of a dimension, or of the rows that launches are repeated for."""
        return "rows" if self._within_rows(rng) else self._setting.size(rng.dim)

    def _count(self, rng: ir.Range) -> str:
        """The number of tiles of a dimension, or of the rows that launches are repeated for."""
        block, total = self._length(rng), self._total(rng)
        if total.isdecimal():
            return str(-(-int(total) // block))
        return f"{total} // {block}" if self._setting.even else f"tl.cdiv({total}, {block})"

    def _parts(self, loop: ir.Loop) -> int:
        """Tiles of a whole tile."""
        outer = loop.range.parent
        assert outer is not None
        large, small = self._length(outer), self._length(loop.range)
        if small > large:
            raise UsageError(
                f"{self._program.name}: block {loop.range.block} = {small} cuts tiles of {outer.block} = "
                f"{large} in line {loop.line}; take no more than {large}."
            )
        return large // small

    # Indices

    def _index(self, rng: ir.Range) -> str:
        """The name of the indices of a tile; those of a whole dimension are made when they are first asked for."""
        if rng not in self._indices:
            assert rng.parent is None
            self._indices[rng] = self._names.new(f"at_{rng.name}")
            at = next(i for i, line in enumerate(self._lines) if line.startswith("    head"))
            self._lines.insert(at + 1, f"    {self._indices[rng]} = tl.arange(0, {self._length(rng)})")
        return self._indices[rng]

    def _enter(self, loop: ir.Loop, depth: int, number: str) -> None:
        """Name the indices of a tile by its number."""
        rng = loop.range
        size, first = self._length(rng), "start + " * self._within_rows(rng)
        if self._within(rng):
            assert self._around is not None
            around = ir.length(self._around.block, self._sizes)
            if around % size and around < self._sizes[rng.dim]:
                raise UsageError(
                    f"{self._program.name}: {around:,} rows are done at once, which tiles of {rng.block} = {size} do "
                    f"not divide; take a multiple of {size}."
                )
        elif self._cut(rng):
            assert rng.parent is not None
            number = f"({self._numbers[rng.parent]} * {self._parts(loop)} + {number})"
        self._named(rng, depth, number, first)

    def _named(self, rng: ir.Range, depth: int, number: str, first: str) -> None:
        size = self._length(rng)
        self._indices[rng], self._counted[rng] = self._names.new(f"at_{rng.name}"), number
        self._say(depth, f"{self._indices[rng]} = {first}{number} * {size} + tl.arange(0, {size})")
        if self._ranged and rng.dim == (self._program.pairs or ("",))[0]:
            assert self._mask is not None
            for line in key_ranges.vectors(self._indices[rng], self._exist(rng, None), self._mask.rows):
                self._say(depth, line)

    def _ends(self, rng: ir.Range) -> tuple[str, str]:
        """The first index of a tile, and the one after its last, as text."""
        size = self._setting.size(rng.dim)
        if rng.parent is None:
            return "0", size
        if rng is self._around:
            return "start", "(start + rows)"
        number, block = self._numbers[rng], self._length(rng)
        first, last = f"{number} * {block}", f"({number} + 1) * {block}"
        if self._within(rng):
            first, last = f"(start + {first})", f"(start + {last})"
        return first, f"tl.minimum({last}, {size})" if self._ragged(rng) else last

    def _positions(self, rng: ir.Range) -> tuple[str, str]:
        """The ends of a tile of rows as positions, of which a mask may have several rows each."""
        start, stop = self._ends(rng)
        assert self._mask is not None
        several = self._mask.rows
        return (start, stop) if several == 1 else (f"({start}) // {several}", f"(({stop} - 1) // {several} + 1)")

    # Predicates

    def _all_allowed(self, tile: ir.Ranges) -> str:
        """The condition that all pairs of a tile are allowed."""
        (left, right), positions = self._ends(tile[1]), self._positions(tile[0])
        if isinstance(self._mask, KeyRanges):
            first, end = key_ranges.seen_by_rows(*positions, True)
            return f"({left} >= {first}) & ({right} <= {end})"
        return f"{right} - {positions[0]} <= {self._after} + 1"

    def _exist(self, rng: ir.Range, axis: int | None, frame: bool = False) -> str:
        """The predicate of the indices that exist, along an axis of a tile; empty where all do."""
        if not self._ragged(rng):
            return ""
        where = "" if axis is None else along(axis, frame)
        return f"({self._index(rng)}{where} < {self._setting.size(rng.dim)})"

    def _pairs(self, ranges: ir.Ranges, frame: bool = False, existing: bool = False) -> str:
        """The predicate of the allowed pairs of a tile of pairs; empty for others, and where all are.

        `existing`: of those whose columns exist, too.
        """
        exist = self._exist(ranges[1], 1, frame) if existing else ""
        if self._mask is None or self._whole or not ir.over_pairs(ranges):
            return exist
        rows, columns = map(self._index, ranges)
        if isinstance(self._mask, KeyRanges):
            allowed = key_ranges.predicate(rows, columns, along(0, frame), along(1, frame))
            return " & ".join(filter(None, (exist, allowed)))
        rows = rows if self._mask.rows == 1 else f"{rows} // {self._mask.rows}"
        parts, column = [], f"{columns}{along(1, frame)}"
        if self._after is not None:  # with the last that exists, so that each pair is compared once
            last = f"({rows} + {self._after})"
            last = f"tl.minimum({last}, {self._setting.size(ranges[1].dim)} - 1)" if exist else last
            parts.append(f"({column} <= {last}{along(0, frame)})")
        if self._before is not None:
            parts.append(f"({column} >= ({rows} - {self._before}){along(0, frame)})")
        return " & ".join(parts if self._after is not None or not exist else [exist, *parts])


def along(axis: int, frame: bool = False) -> str:
    """The index that makes a vector one of rows (axis 0) or of columns (1), of the transpose if `frame`."""
    return "[None, :]" if (axis == 1) ^ frame else "[:, None]"


def only(value: str, where: str, otherwise: str) -> str:
    """A value where a predicate holds; everywhere if there is none."""
    return f"tl.where({where}, {value}, {otherwise})" if where else value
