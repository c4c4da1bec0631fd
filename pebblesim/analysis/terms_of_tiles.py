"""Words moved for tiles, as products over the dimensions that loops cut: terms of a function of the block sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from pebblesim.analysis.functions_of_blocks import Sizes, text_of
from pebblesim.language import program as ir


@dataclass(frozen=True)
class Tiles:
    """The tiles of a dimension or of a tile, `block` long, with the smaller tiles that are cut from each of them.

    The sum over them is of their length to the power of `power`, times the sums over their own tiles. `first` and
    `after` are those of their range.
    """

    block: str | int
    power: int
    parts: tuple[Tiles, ...] = ()
    first: bool = False
    after: str | int | None = None

    def total(self, length: str, sizes: str = "s") -> str:
        """Return the sum over the tiles for this number of indices, as a function of the block sizes."""
        block = text_of(self.block, sizes)
        if self.first:
            return self._one(f"min({length}, {block})", sizes)
        if self.after is not None:
            length = f"max(0, {length} - {text_of(self.after, sizes)})"
        if not self.parts and self.power < 2:
            return length if self.power else _ceiling(length, self.block, sizes)
        return f"tiles({length}, {block}, lambda tile: {self._one('tile', sizes)})"

    def _one(self, length: str, sizes: str) -> str:
        return _product([length] * self.power + [part.total(length, sizes) for part in self.parts])

    def least(self, length: str) -> str:
        """Return a lower bound on the sum for blocks between `low` and `s`, as a function of both."""
        same = " and ".join(f"low[{name!r}] == s[{name!r}]" for name in sorted(self._settling))
        return f"({self.total(length)} if {same} else {self._least(length)})" if same else self.total(length)

    def _least(self, length: str) -> str:
        if self.first:
            return self.total(length, "low") if self._rising else "0"
        if self.after is not None:
            length = f"max(0, {length} - {text_of(self.after)})"
        if self.power:
            return length
        return f"max({', '.join(['0', _ceiling(length, self.block), *(part.least(length) for part in self.parts)])})"

    @property
    def _settling(self) -> set[str]:
        """The blocks for which it increases and decreases: with one size each, the largest of the others is least."""
        if self.flat:
            return set()
        cuts = {size for size in (self.block, self.after) if isinstance(size, str)}
        return cuts.union(*(part._settling for part in self.parts))

    @property
    def adds_up(self) -> bool:
        """Whether the sum is the number of indices, for any block."""
        return not self.parts and (self.power == 1 or self.block == 1) and not self.first and self.after is None

    @property
    def flat(self) -> bool:
        """Whether the sum never increases with a block."""
        return not self.parts and self.power < 2 and not (self.first and self.power)

    @property
    def counts_others(self) -> bool:
        """Whether the sum is the number of indices after a first part."""
        return self.after is not None and (self.block, self.power, self.parts) == (1, 0, ())

    @property
    def _rising(self) -> bool:
        """Whether the sum of a first tile never decreases with its block."""
        return all(part.adds_up for part in self.parts)


@dataclass(frozen=True)
class TermsOfTiles:
    """Words of one kind: `times` words for each combination of tiles; `tiles` are pairs (dimension, its tiles).

    Under a mask `pairs` are the tiles of rows and of columns with an allowed pair; None is the whole dimension. With
    `cut_twice` those of rows are cut from other tiles, and so may be shorter than their block anywhere.
    """

    dims: tuple[str, ...]
    tiles: tuple[tuple[str, Tiles], ...]
    pairs: tuple[Tiles | None, Tiles | None] | None = None
    cut_twice: bool = False

    @property
    def first_parts(self) -> list[tuple[str, Tiles]]:
        """The first parts whose indices it counts."""
        return [(dim, tiles) for dim, tiles in self.tiles if tiles.first and tiles.power]

    def dominated_by(self, other: TermsOfTiles, exactly: bool) -> bool:
        """Whether another term counts the indices after this first part at least as often; `exactly`: just as often."""
        if len(self.first_parts) != 1 or self.dims != other.dims:
            return False
        dim, part = self.first_parts[0]
        mine, theirs = Counter(self.tiles), Counter(other.tiles)
        mine[dim, part] -= 1
        rest = [tiles for (cut, tiles) in theirs if cut == dim and tiles.counts_others and tiles.after == part.block]
        if not rest:
            return False
        theirs[dim, rest[0]] -= 1
        more = [tiles for (_, tiles), times in (theirs - mine).items() if times and not tiles.first]
        return mine <= theirs and not any(tiles.after is not None for tiles in more) and not (exactly and more)

    def total(self, times: int, dims: Sizes) -> str:
        """Return these words without the factor of the pairs, as a function of the block sizes."""
        factors = (tiles.total(str(dims[dim])) for dim, tiles in self.tiles)
        return _product([str(times * prod(dims[dim] for dim in self.dims)), *factors])

    def least(self, times: int, dims: Sizes) -> str:
        """Return a lower bound on `total` for blocks between `low` and `s`, as a function of both."""
        factors = (tiles.least(str(dims[dim])) for dim, tiles in self.tiles)
        return _product([str(times * prod(dims[dim] for dim in self.dims)), *factors])


def _ceiling(length: str, block: str | int, sizes: str = "s") -> str:
    return f"-(-{length} // {text_of(block, sizes)})"


def _product(factors: Sequence[str]) -> str:
    return " * ".join(map("({})".format, factors)) or "1"


def conditions_on(loops: tuple[ir.Loop, ...]) -> list[ir.MaskCondition]:
    """Return the conditions of a mask on the tiles of loops, without those that follow from the others."""
    met = [loop.when for loop in loops if loop.when]

    def follows(some: ir.MaskCondition) -> bool:
        sides = {rng for rng in (some.rows, some.columns) if rng.parent is not None}
        return not some.none and any(
            other is not some
            and not other.none
            and (
                sides < {other.rows, other.columns}
                or (other.columns is some.columns and other.rows.parent is some.rows)
            )
            for other in met
        )

    return [condition for condition in met if not follows(condition)]


def cut_in(loops: tuple[ir.Loop, ...]) -> dict[ir.Range, list[ir.Range]]:
    """Return the ranges of loops by what they cut."""
    inside: dict[ir.Range, list[ir.Range]] = {}
    for loop in loops:
        assert loop.range.parent is not None
        inside.setdefault(loop.range.parent, []).append(loop.range)
    return inside


def parts_of(
    rng: ir.Range, ranges: ir.Ranges, inside: Mapping[ir.Range, Sequence[ir.Range]]
) -> tuple[int, tuple[Tiles, ...]]:
    """Return the power of a tile's length in the words, and the tiles in it whose sums are other factors."""
    parts = [_tiles(part, ranges, inside) for part in inside.get(rng, ())]
    whole = sum(part.adds_up for part in parts)
    return ranges.count(rng) + whole, tuple(part for part in parts if not part.adds_up)


def _tiles(rng: ir.Range, ranges: ir.Ranges, inside: Mapping[ir.Range, Sequence[ir.Range]]) -> Tiles:
    block, (power, parts) = rng.block, parts_of(rng, ranges, inside)
    if rng.after is not None and not parts and (power == 1 or block == 1):
        block, power = 1, 0  # the number of indices
    return Tiles(block, power, parts, rng.first, rng.after)


def term_of(ranges: ir.Ranges, loops: tuple[ir.Loop, ...], met: ir.MaskCondition | None) -> TermsOfTiles:
    """Return the words moved for a tile, as a product over the dimensions that the loops around it cut."""
    inside = cut_in(loops)

    def tiles(rng: ir.Range) -> Tiles:
        return _tiles(rng, ranges, inside)

    meeting = () if met is None else (met.rows, met.columns)
    outer = [rng.parent for rng in meeting if rng.parent and rng.parent.parent]
    tops = [loop.range for loop in loops if loop.range.parent and loop.range.parent.parent is None]
    cut = [(rng.dim, tiles(rng)) for rng in tops if rng not in (*meeting, *outer)]
    dims = [rng.name for rng in ranges if rng.parent is None] + [dim for dim, each in cut if each.adds_up]
    return TermsOfTiles(
        tuple(sorted(dims)),
        tuple(sorted(((dim, each) for dim, each in cut if not each.adds_up), key=repr)),
        None if met is None else (_if_cut(met.rows, tiles), _if_cut(met.columns, tiles)),
        bool(outer),
    )


def _if_cut(rng: ir.Range, tiles: Callable[[ir.Range], Tiles]) -> Tiles | None:
    return None if rng.parent is None else tiles(rng)
