"""Ranges of indices in a kernel: how many tiles, which indices, and which of them exist.

Numbers of queries and of keys are arguments of a kernel, other sizes are numbers. Kernels are either for sizes that all
their tiles divide, without predicates for ragged edges, or for any sizes: then a loop is cut into its complete tiles,
which have no predicates, and the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pebblesim.core.errors import UsageError
from pebblesim.kernels import key_ranges
from pebblesim.kernels.identifiers import Identifiers
from pebblesim.kernels.key_ranges import SHARING, KeyRanges, reads_ranges
from pebblesim.kernels.passes.sequences import SEQUENCES
from pebblesim.kernels.statements import Let, Statement
from pebblesim.kernels.strides import Strides
from pebblesim.kernels.tables import Tables
from pebblesim.kernels.terms import ZERO, Name, Number, Term, all_of, call, cdiv, minimum, term
from pebblesim.language import program as ir
from pebblesim.language.masks import Band
from pebblesim.launches.launches import Launch

GROUP = 8
"""Rows of tiles that are launched together, column by column, so that shared tiles are still in L2."""

TAKEN = """
and as assert break class continue def del elif else except False finally for from global head heads if import in is
lambda None nonlocal not or pass raise range return rows run start tl torch triton True try while with yield group rank
device at_once tall wide after before dL first_ptr end_ptr above_ptr below_ptr sharing batch own results each room
sinks_batch
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
        sums: as for `triton`.
        onto: sums in memory that `run` may be given, to be added to.
        apart: whether the gradients of keys are parts of sums.
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
    sums: bool = False
    onto: frozenset[ir.Tensor] = frozenset()
    apart: bool = False

    def lengths(self, tensor: ir.Tensor) -> list[Term]:
        """The lengths of a tensor in memory."""
        return self.tables.terms(tensor, self.sizes, self.size, self.even)

    def size(self, dim: str) -> Term:
        """A dimension, by its name or as a number."""
        return Name(dim) if dim in self.free else Number(self.sizes[dim])


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
    given = (tensor for name, tensor in program.tensors.items() if name in program.inputs)
    pairs |= {tensor.apart.dim: None for tensor in given if tensor.apart is not None}
    return tuple(dim for dim in program.dims if dim in pairs and dim not in whole)


def largest_tiles(made: list[Launch], free: tuple[str, ...], sizes: ir.Sizes) -> dict[str, int]:
    """The longest tile along each of these dimensions; iterations around launches are none."""
    found = dict.fromkeys(free, 1)
    for launch in made:
        for node in ir.walk(launch.body):
            if isinstance(node, ir.Loop) and node is not launch.around and node.range.dim in found:
                found[node.range.dim] = max(found[node.range.dim], ir.length(node.range.block, sizes))
    return found


class Scope:
    """The ranges of a kernel: names of indices where they are known, what is known of them there, and predicates."""

    def __init__(self, setting: Setting, launch: Launch) -> None:
        self.setting, self.launch = setting, launch
        self.program, self.sizes, self.mask = setting.program, setting.sizes, setting.mask
        self.around = None if launch.around is None else launch.around.range
        taken = (*setting.of.values(), *setting.free, *setting.strides.names(setting.strides.of))
        self.names = Identifiers({*TAKEN.split(), *taken})
        self.numbers: dict[ir.Range, Term] = {}
        self.counted: dict[ir.Range, Term] = {}  # numbers of the tiles, from the first of the rows around launches
        self.complete: set[ir.Range] = set()  # of which all indices exist here
        self.whole = False  # whether all pairs are allowed where one is
        self.finer: dict[ir.Range, int] = {}  # rows of a program, where a tile of them has several
        nodes = list(ir.walk(launch.block))
        self.ranged = reads_ranges(setting.mask, nodes)
        loops = (node for node in nodes if isinstance(node, ir.Loop))
        self.past = self.ranged and any(loop.range.dim == SEQUENCES for loop in loops)  # each has ranges of its own
        self.wholes: list[Statement] = []  # that name the indices of whole dimensions
        self._indices: dict[ir.Range, str] = {}

    def opening(self) -> list[Statement]:
        """Define the names that ranges use."""
        made = self.ranges_of_head() if self.ranged and not self.past else []
        if self.around is not None:
            left = self.setting.size(self.around.dim) - "start"
            made.append(Let(("rows",), (minimum("at_once", left),)))
        if self.mask is not None and self.mask.at_end:
            queries, keys = map(self.setting.size, self.program.pairs or ())
            queries = queries // self.mask.rows
            same = keys == queries
            if (after := self.mask.after) is not None:
                made.append(Let(("after",), (term(after) if same else term(after) + keys - queries,)))
            if (before := self.mask.before) is not None:
                made.append(Let(("before",), (term(before) if same else term(before) - keys + queries,)))
        return made

    def ranges_of_head(self) -> list[Statement]:
        """Find the ranges of the head's batch."""
        assert self.mask is not None and self.program.pairs is not None
        queries, keys = map(self.setting.size, self.program.pairs)
        return key_ranges.opening(queries, keys, self.mask.rows)

    # The limits of j - i, of an allowed pair (i, j)

    @property
    def after(self) -> Term | None:
        """The largest difference."""
        return self._limit("after")

    @property
    def before(self) -> Term | None:
        """The least difference, negated."""
        return self._limit("before")

    def _limit(self, name: str) -> Term | None:
        limit = None if self.mask is None else getattr(self.mask, name)
        if limit is None or self.mask is None:
            return None
        return Name(name) if self.mask.at_end else Number(limit)

    # Tiles

    def length(self, rng: ir.Range) -> int:
        """Indices of a tile: the block, or for a whole dimension the next power of two."""
        if rng.parent is None:
            return 1 << (self.sizes[rng.name] - 1).bit_length()
        size = ir.length(rng.block, self.sizes)
        if size & (size - 1):
            raise UsageError(
                f"{self.program.name}: a tile of a Triton kernel has a power of two of indices, and block "
                f"{rng.block} is {size}; take {1 << (size.bit_length() - 1)} or {1 << size.bit_length()}."
            )
        return self.finer.get(rng, size)

    def ragged(self, rng: ir.Range) -> bool:
        """Whether some tile of the range has indices that the dimension does not."""
        if rng.dim not in self.setting.free:
            return self.sizes[rng.dim] % self.length(rng) != 0
        return not self.setting.even and not any(each in self.complete for each in rng.around)

    def within(self, rng: ir.Range) -> bool:
        """Whether it is over tiles of the rows that launches are repeated for."""
        return self.around is not None and rng.parent is self.around

    def within_rows(self, rng: ir.Range) -> bool:
        """Whether it is over a part of the rows that launches are repeated for."""
        return self.around is not None and rng.within(self.around)

    def cut(self, rng: ir.Range) -> bool:
        """Whether it is over tiles of a tile."""
        return rng.parent is not None and rng.parent.parent is not None and not self.within(rng)

    def total(self, rng: ir.Range) -> Term:
        """The number of indices that tiles are of: of a dimension, or of the rows that launches are repeated for."""
        return Name("rows") if self.within_rows(rng) else self.setting.size(rng.dim)

    def count(self, rng: ir.Range) -> Term:
        """The number of tiles of a dimension, or of the rows that launches are repeated for."""
        return self.tiles(self.total(rng), self.length(rng))

    def tiles(self, total: Term, block: int) -> Term:
        """The number of tiles of so many indices."""
        known = isinstance(total, Number) or not self.setting.even
        return cdiv(total, block) if known else total // block

    def parts(self, loop: ir.Loop) -> int:
        """Tiles of a whole tile."""
        outer = loop.range.parent
        assert outer is not None
        large, small = self.length(outer), self.length(loop.range)
        if small > large:
            raise UsageError(
                f"{self.program.name}: block {loop.range.block} = {small} cuts tiles of {outer.block} = "
                f"{large} in line {loop.line}; take no more than {large}."
            )
        return large // small

    # Indices

    def index(self, rng: ir.Range) -> Term:
        """The indices of a tile; those of a whole dimension are named when they are first asked for."""
        if rng not in self._indices:
            assert rng.parent is None
            self._indices[rng] = self.names.new(f"at_{rng.name}")
            self.wholes.insert(0, Let((self._indices[rng],), (call("arange", 0, self.length(rng)),), indices=True))
        return Name(self._indices[rng])

    def enter(self, loop: ir.Loop, number: Term) -> list[Statement]:
        """Name the indices of a tile by its number."""
        rng = loop.range
        size = self.length(rng)
        if self.within(rng):
            assert self.around is not None
            around = ir.length(self.around.block, self.sizes)
            if around % size and around < self.sizes[rng.dim]:
                raise UsageError(
                    f"{self.program.name}: {around:,} rows are done at once, which tiles of {rng.block} = {size} do "
                    f"not divide; take a multiple of {size}."
                )
        elif self.cut(rng):
            assert rng.parent is not None
            number = self.numbers[rng.parent] * self.parts(loop) + number
        of_sequence = self._ranges_of(number) if self.past and rng.dim == SEQUENCES else []
        return [*self.named(rng, number, self.within_rows(rng)), *of_sequence]

    def _ranges_of(self, number: Term) -> list[Statement]:
        """Read the ranges of a sequence, by its number among those that stream past a tile."""
        assert self.program.pairs is not None
        queries = self.program.pairs[0]
        (rng,) = (rng for rng in self._indices if rng.dim == queries)
        sequences = term("head") // SHARING * self.setting.size(SEQUENCES) + number
        before = sequences * self.setting.size(queries)
        return key_ranges.vectors(self._indices[rng], all_of(self.exist(rng, None)), 1, before)

    def named(self, rng: ir.Range, number: Term, from_start: bool = False) -> list[Statement]:
        """Name the indices of the tile with a number."""
        self._indices[rng], self.counted[rng] = self.names.new(f"at_{rng.name}"), number
        size = self.length(rng)
        first = term("start") + number * size if from_start else number * size
        made: list[Statement] = [Let((self._indices[rng],), (first + self.arange(rng),), indices=True)]
        return [*made, *(self.ranges_of_tile(rng) if self.ranged and not self.past else [])]

    def ranges_of_tile(self, rng: ir.Range) -> list[Statement]:
        """Read the ranges of a tile's indices, if they are queries."""
        if rng.dim != (self.program.pairs or ("",))[0]:
            return []
        assert self.mask is not None
        return key_ranges.vectors(self._indices[rng], all_of(self.exist(rng, None)), self.mask.rows)

    def arange(self, rng: ir.Range) -> Term:
        """The indices within a tile."""
        return call("arange", 0, self.length(rng))

    def ends(self, rng: ir.Range) -> tuple[Term, Term]:
        """The first index of a tile, and the one after its last."""
        if rng.parent is None:
            return ZERO, self.setting.size(rng.dim)
        if rng is self.around:
            return Name("start"), term("start") + "rows"
        number, block = self.numbers[rng], self.length(rng)
        first, last = number * block, (number + 1) * block
        if self.within(rng):
            first, last = term("start") + first, term("start") + last
        return first, self._to_the_end(rng, last)

    def _to_the_end(self, rng: ir.Range, last: Term) -> Term:
        return minimum(last, self.setting.size(rng.dim)) if self.ragged(rng) else last

    def positions(self, rng: ir.Range) -> tuple[Term, Term]:
        """The ends of a tile of rows as positions, of which a mask may have several rows each."""
        start, stop = self.ends(rng)
        assert self.mask is not None
        rows = self.mask.rows
        return (start, stop) if rows == 1 else (start // rows, (stop - 1) // rows + 1)

    # Predicates: terms all of which hold

    def all_allowed(self, tile: ir.Ranges) -> Term:
        """The condition that all pairs of a tile are allowed."""
        (left, right), positions = self.ends(tile[1]), self.positions(tile[0])
        if isinstance(self.mask, KeyRanges):
            first, end = key_ranges.seen_by_rows(*positions, True)
            return (left >= first) & (right <= end)
        assert self.after is not None
        return right - positions[0] <= self.after + 1

    def exist(self, rng: ir.Range, axis: int | None, frame: bool = False) -> list[Term]:
        """The predicate of the indices that exist, along an axis of a tile; empty where all do."""
        if not self.ragged(rng):
            return []
        index = self.index(rng)
        return [(index if axis is None else index.along(along(axis, frame))) < self.setting.size(rng.dim)]

    def pairs(self, ranges: ir.Ranges, frame: bool = False, existing: bool = False) -> list[Term]:
        """The predicates of the allowed pairs of a tile of pairs; empty for others, and where all are.

        `existing`: of those whose columns exist, too.
        """
        exist = self.exist(ranges[1], 1, frame) if existing else []
        if self.mask is None or self.whole or not ir.over_pairs(ranges):
            return exist
        rows, columns = map(self.index, ranges)
        if isinstance(self.mask, KeyRanges):
            return exist + key_ranges.predicate(str(rows), str(columns), along(0, frame), along(1, frame))
        rows = rows // self.mask.rows
        column, made = columns.along(along(1, frame)), list[Term]()
        if self.after is not None:  # with the last that exists, so that each pair is compared once
            last: Term = rows + self.after
            last = minimum(last, self.setting.size(ranges[1].dim) - 1) if exist else last
            made.append(column <= last.along(along(0, frame)))
        if self.before is not None:
            made.append(column >= (rows - self.before).along(along(0, frame)))
        return made if self.after is not None else exist + made


def along(axis: int, frame: bool = False) -> str:
    """The index that makes a vector one of rows (axis 0) or of columns (1), of the transpose if `frame`."""
    return "[None, :]" if (axis == 1) ^ frame else "[:, None]"
