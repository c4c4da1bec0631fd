"""Sums over all that a program does, without running its loops.

All tiles of a range but the last are alike: what a loop's body amounts to for a full tile counts as often as there
are full tiles, and what it amounts to for the last one counts once. Sizes may be astronomically large. Under a mask the
iterations of a loop differ only in how many tiles of the inner loop are left, and everything is linear in that number:
the mean over the outer loop, a fraction, stands for all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from fractions import Fraction

from pebblesim.language import program as ir
from pebblesim.language.masks import Cut, Mask


def words(ranges: ir.Ranges, sizes: ir.Sizes, lengths: Mapping[ir.Range, int]) -> int:
    """Number of elements of a tile, for the present lengths of the ranges around it."""
    product: int = 1
    for rng in ranges:
        product *= sizes[rng.name] if rng.parent is None else lengths[rng]
    return product


class Place:
    """A kind of iteration: of each loop around, a full tile or the last one, and how often it is visited."""

    def __init__(self, sizes: ir.Sizes, mask: Mask | None) -> None:
        self.sizes, self.mask = sizes, mask
        self.cuts: dict[ir.Range, Cut] = {}  # the tiles of that kind
        self.times: dict[ir.Range, int | Fraction] = {}  # visits of them, for each visit of what is around

    def words(self, ranges: ir.Ranges) -> int:
        """Number of elements of a tile."""
        product: int = 1
        for rng in ranges:
            product *= self._length(rng)
        return product

    def allowed(self, ranges: ir.Ranges) -> int | Fraction:
        """Of a tile over pairs, the mean number of elements that the mask allows; of any other, all."""
        if self.mask is None or not over_pairs(ranges):
            return self.words(ranges)
        rows, columns = map(_top, ranges)
        pairs = self.mask.tiles(self.n, self._singles(rows), self._singles(columns))
        area = self._visits(rows) * self._visits(columns) * self.words((rows, columns))
        return Fraction(pairs * self.words(ranges), 1) / area

    def with_terms(self, line: ir.Range, index: ir.Range, axis: int) -> int | Fraction:
        """Mean number of rows (axis 0) or columns (1) in the tile `line` that have an allowed pair in `index`."""
        if self.mask is None:
            return self._length(line)
        line_, index = _top(line), _top(index)
        cuts = self._singles(line_), self._cut(index)
        found = self.mask.tiles(self.n, *(cuts if axis == 0 else cuts[::-1]))
        visited = self._visits(line_) * self._visits(index) * self._length(line_)
        return Fraction(found * self._length(line), 1) / visited

    @property
    def n(self) -> int:
        return self.sizes[ir.PAIRS]

    def open(self, rng: ir.Range) -> bool:
        """Whether a loop over that range is around."""
        return rng in self.cuts

    def enter(self, loop: ir.Loop, cut: Cut) -> bool:
        """Go into the tiles of that kind; whether there are any."""
        rng = loop.range
        self.cuts[rng] = cut
        tiles = -(-(cut.stop - cut.start) // cut.block)
        if loop.when is None or self.mask is None:
            self.times[rng] = tiles
            return tiles > 0
        rows, columns = self._cut(loop.when.rows), self._cut(loop.when.columns)
        other = loop.when.columns if loop.when.rows is rng else loop.when.rows
        met = self.mask.tiles(self.n, rows, columns)
        if loop.when.none:
            met = tiles * self._tiles(other) - met
        visits = self._visits(other)
        self.times[rng] = Fraction(met, 1) / visits if met else 0
        return met > 0

    def _length(self, rng: ir.Range) -> int:
        return self.sizes[rng.name] if rng.parent is None else self.cuts[rng].block

    def _cut(self, rng: ir.Range) -> Cut:
        return self.cuts[rng] if rng in self.cuts else Cut(0, self.n, self.n)

    def _singles(self, rng: ir.Range) -> Cut:
        return self._cut(rng)._replace(block=1)

    def _tiles(self, rng: ir.Range) -> int:
        cut = self._cut(rng)
        return -(-(cut.stop - cut.start) // cut.block)

    def _visits(self, rng: ir.Range) -> int | Fraction:
        return self.times.get(rng, 1)


Amounts = Callable[[ir.Node, Place], Iterable[tuple[Hashable, int | Fraction]]]


def totals(body: list[ir.Node], sizes: ir.Sizes, amounts: Amounts, mask: Mask | None = None) -> Counter[Hashable]:
    """The sum of what each primitive amounts to, by key; `amounts(node, place)` gives (key, amount) pairs."""
    whole: Counter[Hashable] = Counter()
    for key, amount in _totals(body, amounts, Place(sizes, mask)).items():
        assert amount.denominator == 1, (key, amount)  # a mean times what it is the mean of
        whole[key] = int(amount)
    return whole


def _totals(body: list[ir.Node], amounts: Amounts, place: Place) -> dict[Hashable, int | Fraction]:
    found: dict[Hashable, int | Fraction] = defaultdict(int)
    for node in body:
        if isinstance(node, ir.Loop):
            for cut in kinds(node.range, place):
                if place.enter(node, cut):
                    for key, amount in _totals(node.body, amounts, place).items():
                        found[key] += amount * place.times[node.range]
            place.cuts.pop(node.range), place.times.pop(node.range)
        else:
            for key, amount in amounts(node, place):
                found[key] += amount
    return found


def kinds(rng: ir.Range, place: Place) -> Iterable[Cut]:
    """The full tiles of a range, if there are any, and the last."""
    assert rng.parent is not None
    whole, block = place.words((rng.parent,)), ir.length(rng.block, place.sizes)
    full = (whole - 1) // block * block
    if full:
        yield Cut(0, full, block)
    yield Cut(full, whole, whole - full)


def over_pairs(ranges: ir.Ranges) -> bool:
    """Whether a tile, as it lies, is over pairs of queries and keys."""
    return len(ranges) == 2 and all(rng.dim == ir.PAIRS for rng in ranges)


def _top(rng: ir.Range) -> ir.Range:
    """The tile of a whole dimension that a range is a part of, or the dimension."""
    while rng.parent is not None and rng.parent.parent is not None:
        rng = rng.parent
    return rng
