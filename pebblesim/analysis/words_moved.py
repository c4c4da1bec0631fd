"""The words that a program moves, as a function of its block sizes, without running its loops.

The closed form is compiled once from the program, and evaluated in microseconds. It also gives lower bounds for all
sizes in a range at once. `pebblesim.analysis.cache_needed` does the same for the cache. A search of blocks needs only
these two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from pebblesim.analysis.functions_of_blocks import Sizes, compiled, text_of
from pebblesim.analysis.mask_answers import RememberedMask
from pebblesim.analysis.totals import LoopContext, totals
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask
from pebblesim.language.tile_ranges import TileRange

MOST_KNOWN = 2**16
"""Most sizes of blocks whose words are remembered at once."""


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


class Words:
    """The words that some phases move, for block sizes.

    Attributes:
        nonincreasing: whether they never increase with a block; then the largest blocks move the least.
        blocks_to_enumerate: names of the blocks for which every size may move a different number of words.
        blocks: names of the blocks that matter.
    """

    def __init__(self, phases: list[ir.Phase], dims: Sizes, mask: Mask | None) -> None:
        self.dims, self.mask = dims, None if mask is None else RememberedMask(mask)
        self.terms: Counter[TermsOfTiles] = Counter()
        self.bounds: Counter[TermsOfTiles] = Counter()  # terms of a lower bound on the other words
        self.masked: list[list[ir.Node]] = []  # nodes whose words must be summed loop by loop
        for phase in phases:
            if body := self._rest(phase.body, ()):
                self.masked.append(body)
        every = [t for term in self.terms for t in (*(t for _, t in term.tiles), *(term.pairs or ())) if t]
        self.blocks_to_enumerate: set[str | int] = set()
        nonincreasing = self._first_parts_pay() and all(
            t.flat or (t.first and not t.parts and t.power == 1) for t in every
        )
        self.nonincreasing = nonincreasing and not self.masked and not any(t.pairs for t in self.terms)
        bounding = [*self.terms.items(), *self.bounds.items()]
        self._total, self._paired = _of_terms(self.terms.items(), lambda term, times: term.total(times, dims), "s")
        self._least, self._least_paired = _of_terms(bounding, lambda term, times: term.least(times, dims), "low, s")
        paired = (node.range.pairs for phase in phases for node in ir.walk(phase.body) if isinstance(node, ir.Loop))
        pairs = next(filter(None, paired), None)
        self._grid = (0, 0) if pairs is None else ir.grid(pairs, dims)
        loops = [node for body in self.masked for node in ir.walk(body) if isinstance(node, ir.Loop)]
        self.blocks = {name for tiles in every for name in _names(tiles)}
        self.blocks |= {loop.range.block for loop in loops if isinstance(loop.range.block, str)}
        ends = {loop.range.after for loop in loops if isinstance(loop.range.after, str)}
        self._in_order = sorted(self.blocks | ends)
        self._known: dict[tuple[int, ...], int] = {}  # a search comes back to the same blocks

    def __call__(self, blocks: Sizes) -> int:
        """Return the number of words moved."""
        sizes = tuple([blocks[name] for name in self._in_order])
        if (known := self._known.get(sizes)) is not None:
            return known
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        words = self._known[sizes] = self._counted(blocks)
        return words

    def fewer(self, blocks: Sizes, than: int) -> int | None:
        """Return the number of words moved if they are fewer than some, and None otherwise, mostly without counting."""
        known = not self.masked or tuple([blocks[name] for name in self._in_order]) in self._known
        if not known and self.least(blocks, blocks) >= than:
            return None
        words = self(blocks)
        return words if words < than else None

    def _counted(self, blocks: Sizes) -> int:
        words = self._total(blocks)
        for pairs, _, rest in self._paired:
            words += rest(blocks) * self._pairs(*pairs, blocks)
        sizes = {**self.dims, **blocks}
        for body in self.masked:
            words += totals(body, sizes, _moved, self.mask)["words"]
        return words

    def least(self, low: Sizes, high: Sizes) -> int:
        """Return a lower bound on the words of all blocks between these."""
        if self.nonincreasing:
            return self(high)
        words = self._least(low, high)
        for pairs, cut_twice, rest in self._least_paired:
            words += rest(low, high) * self._least_pairs(*pairs, cut_twice, low, high)
        return words

    def _rest(self, body: list[ir.Node], loops: tuple[ir.Loop, ...]) -> list[ir.Node]:
        """Record the terms of a body; return the other nodes, which a mask affects in another way."""
        kept: list[ir.Node] = []
        for node in body:
            match node:
                case ir.Loop():
                    if inner := self._rest(node.body, (*loops, node)):
                        kept.append(replace(node, body=inner))
                case (
                    ir.Read(tile=ir.Tile(ranges=ranges))
                    | ir.Write(tile=ir.Tile(ranges=ranges))
                    | ir.Init(ranges=ranges)
                ):
                    met = conditions_on(loops) if self.mask else []
                    term = term_of(ranges, loops, met[0] if met else None)
                    alone = len(met) == 1 and not met[0].none and not (met[0].rows.apart or met[0].columns.apart)
                    if not met or (alone and not term.cut_twice and all(t is None or t.flat for t in term.pairs or ())):
                        self.terms[term] += 1
                        continue
                    kept.append(ir.Init(_ANY, ranges, 0.0, 0))
                    if alone:
                        self.bounds[term] += 1
                case _:
                    pass
        return _merged(kept)

    def _first_parts_pay(self) -> bool:
        """Whether no index of a first part moves more words than it would among the others; notes what slides."""
        left = Counter(self.terms)
        for exactly in (True, False):
            for term in [term for term in left if left[term]]:
                for partner in [partner for partner in left if left[partner]]:
                    if term.dominated_by(partner, exactly):
                        both = min(left[term], left[partner])
                        left[term] -= both
                        left[partner] -= both
            if exactly:
                counted = (tiles for term in left if left[term] for _, tiles in term.tiles if tiles.counts_others)
                self.blocks_to_enumerate = {tiles.after for tiles in counted if tiles.after is not None}
        return not any(times and term.first_parts for term, times in left.items())

    def _pairs(self, rows: Tiles | None, columns: Tiles | None, blocks: Sizes) -> int:
        """Return Σ height^power · width^power over the tiles with an allowed pair."""
        assert self.mask
        (n_q, n_k), total = self._grid, 0
        for height in _kinds(n_q, rows, blocks):
            for width in _kinds(n_k, columns, blocks):
                met = self.mask.tiles(self._grid, height, width)
                met *= height.block if rows and rows.power else 1
                total += met * (width.block if columns and columns.power else 1)
        return total

    def _least_pairs(self, rows: Tiles | None, columns: Tiles | None, cut_twice: bool, low: Sizes, high: Sizes) -> int:
        """Return a lower bound on Σ height^power · width^power over the tiles with an allowed pair."""
        assert self.mask

        def span(tiles: Tiles | None, n: int) -> tuple[int, int]:
            if tiles is None:
                return n, n
            return min(n, ir.length(tiles.block, low)), min(n, ir.length(tiles.block, high))

        tall, wide = span(rows, self._grid[0]), span(columns, self._grid[1])
        of_rows, of_columns = bool(rows and rows.power), bool(columns and columns.power)
        pairs = self.mask.pairs(*self._grid)
        if of_rows and of_columns:
            return pairs if cut_twice else self.mask.area(self._grid, tall, wide)
        widths = -(-pairs // tall[1]) if cut_twice else self.mask.widths(self._grid, *tall)
        heights = self.mask.heights(self._grid, *wide)
        if of_rows:
            return heights
        return widths if of_columns else max(-(-widths // wide[1]), -(-heights // tall[1]))


def _of_terms(
    terms: Iterable[tuple[TermsOfTiles, int]], text: Callable[[TermsOfTiles, int], str], arguments: str
) -> tuple[Callable[..., int], list[tuple[tuple[Tiles | None, Tiles | None], bool, Callable[..., int]]]]:
    """Compile the sum of all terms without pairs; and each with pairs for itself, as (pairs, cut twice, function)."""
    known = list(terms)
    alone = " + ".join(["0", *(text(term, times) for term, times in known if not term.pairs)])
    paired = [(t.pairs, t.cut_twice, compiled(text(t, times), arguments)) for t, times in known if t.pairs]
    return compiled(alone, arguments), paired


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


def _kinds(n: int, tiles: Tiles | None, sizes: Sizes) -> list[TileRange]:
    """Return the full tiles of a dimension, if there are any, and the last tile."""
    block = n if tiles is None else ir.length(tiles.block, sizes)
    full = (n - 1) // block * block
    last = TileRange(full, n, n - full)
    return [TileRange(0, full, block), last] if full else [last]


_ANY = ir.Tensor("words", ())


@dataclass(eq=False)
class _RepeatedInit(ir.Init):
    """A multiple of the words of a tile."""

    times: int = 1


def _merged(body: list[ir.Node]) -> list[ir.Node]:
    """Return a body in which all nodes that move the same words are combined into one."""
    times = Counter(node.ranges for node in body if isinstance(node, ir.Init))
    moved: list[ir.Node] = [_RepeatedInit(_ANY, ranges, 0.0, 0, several) for ranges, several in times.items()]
    return moved + [node for node in body if not isinstance(node, ir.Init)]


def _moved(node: ir.Node, place: LoopContext) -> Iterator[tuple[str, int]]:
    assert isinstance(node, _RepeatedInit)
    yield "words", node.times * place.words(node.ranges)


def term_of(ranges: ir.Ranges, loops: tuple[ir.Loop, ...], met: ir.MaskCondition | None) -> TermsOfTiles:
    """Return the words moved for a tile, as a product over the dimensions that the loops around it cut."""
    inside: dict[ir.Range, list[ir.Range]] = {}
    for loop in loops:
        assert loop.range.parent is not None
        inside.setdefault(loop.range.parent, []).append(loop.range)

    def tiles(rng: ir.Range) -> Tiles:
        power, parts = ranges.count(rng), []
        for part in map(tiles, inside.get(rng, ())):
            if part.adds_up:
                power += 1
            else:
                parts.append(part)
        block: str | int = rng.block
        if rng.after is not None and not parts and (power == 1 or block == 1):
            block, power = 1, 0  # the number of indices
        return Tiles(block, power, tuple(parts), rng.first, rng.after)

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


def _names(tiles: Tiles) -> Iterator[str]:
    yield from (size for size in (tiles.block, tiles.after) if isinstance(size, str))
    for part in tiles.parts:
        yield from _names(part)
