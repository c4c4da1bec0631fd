"""The cost of block sizes: the words that a program moves and the cache that it needs, without running its loops.

Both are closed forms, compiled once from the program, and evaluated in microseconds. They also give lower bounds for
all sizes between two at once: on the words moved, and on the words held. A search of block sizes needs nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from pebblesim.language import program as ir
from pebblesim.language.masks import Band, Grid, Mask, TileRange
from pebblesim.readings.peak import intermediates, peak_red
from pebblesim.readings.totals import LoopContext, totals

Sizes = Mapping[str, int]


# -- words moved -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tiles:
    """The tiles of a dimension or of a tile, `block` long, with the smaller tiles that are cut from each of them.

    The sum over them is of their length to the power of `power`, times the sums over their own tiles. `first` and
    `after` are those of their range.
    """

    block: str | int
    power: int
    parts: tuple[_Tiles, ...] = ()
    first: bool = False
    after: str | int | None = None

    def total(self, length: int, sizes: Sizes) -> int:
        """Return the sum over the tiles of this number of indices."""
        block = ir.length(self.block, sizes)
        if self.first:
            length = min(length, block)
        elif self.after is not None:
            length = max(0, length - ir.length(self.after, sizes))
        full, last = divmod(length - 1, block)
        if not length:
            return 0

        def one(size: int) -> int:
            return size**self.power * prod(part.total(size, sizes) for part in self.parts)

        return (full * one(block) if full else 0) + one(last + 1)

    def least(self, length: int, low: Sizes, high: Sizes) -> int:
        """Return a lower bound on the sum for blocks between `low` and `high`."""
        if self._settled(low, high):
            return self.total(length, high)
        if self.first:
            return self.total(length, low) if self._rising else 0
        if self.after is not None:
            length = max(0, length - ir.length(self.after, high))
        tiles = -(-length // ir.length(self.block, high))
        if self.power:
            return length
        return max(tiles, *(part.least(length, low, high) for part in self.parts)) if self.parts else tiles

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

    def text(self, length: int) -> str:
        """Return the number of tiles of this number of indices, as a function of the block sizes `s`."""
        if self.first:
            return "1"
        whole = str(length) if self.after is None else f"max(0, {length} - {_text(self.after)})"
        return f"-(-{whole} // {_text(self.block)})"

    def _settled(self, low: Sizes, high: Sizes) -> bool:
        if self.flat:
            return True
        cuts = (self.block,) if self.after is None else (self.block, self.after)
        return all(ir.length(cut, low) == ir.length(cut, high) for cut in cuts) and all(
            part._settled(low, high) for part in self.parts
        )


def _text(size: str | int) -> str:
    """A size as a function of the block sizes `s`."""
    return f"s[{size!r}]" if isinstance(size, str) else str(size)


@dataclass(frozen=True)
class _Term:
    """Words of one kind: `times` each, for all combinations of tiles of the `tiles` = (dimension, its tiles).

    Under a mask `pairs` are the tiles of rows and of columns with an allowed pair; None is the whole dimension.
    """

    dims: tuple[str, ...]
    tiles: tuple[tuple[str, _Tiles], ...]
    pairs: tuple[_Tiles | None, _Tiles | None] | None = None

    @property
    def plain(self) -> bool:
        """Whether it is a product of dimensions and numbers of tiles."""
        return self.pairs is None and all(not tiles.parts and tiles.power == 0 for _, tiles in self.tiles)

    @property
    def first_parts(self) -> list[tuple[str, _Tiles]]:
        """The first parts whose indices it counts."""
        return [(dim, tiles) for dim, tiles in self.tiles if tiles.first and tiles.power]

    def paid_by(self, other: _Term, exactly: bool) -> bool:
        """Whether another term counts the other indices of this one's first part; at least once each, or as often."""
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

    def text(self, times: int, dims: Sizes) -> str:
        """Such a product, for so many of these words, as a function of the block sizes `s`."""
        counts = (tiles.text(dims[dim]) for dim, tiles in self.tiles)
        return " * ".join([str(times * prod(dims[dim] for dim in self.dims)), *counts])

    def rest(self, dims: Sizes, sizes: Sizes) -> int:
        """What the tiles that no mask concerns come to."""
        return prod(dims[dim] for dim in self.dims) * prod(t.total(dims[dim], sizes) for dim, t in self.tiles)

    def least_rest(self, dims: Sizes, low: Sizes, high: Sizes) -> int:
        """Return a lower bound on it for blocks between `low` and `high`."""
        return prod(dims[dim] for dim in self.dims) * prod(t.least(dims[dim], low, high) for dim, t in self.tiles)


class Words:
    """The words that some phases move, for block sizes.

    Attributes:
        falling: whether they never increase with a block; then the largest blocks move the least.
        sliding: names of the blocks for which every size may move a different number of words.
        blocks: names of the blocks that matter.
    """

    def __init__(self, phases: list[ir.Phase], dims: Sizes, mask: Mask | None) -> None:
        self.dims, self.mask = dims, None if mask is None else _Remembered(mask)
        self.terms: Counter[_Term] = Counter()
        self.bounds: Counter[_Term] = Counter()  # no more than what is moved besides
        self.masked: list[list[ir.Node]] = []  # what is: it has to be summed loop by loop
        for phase in phases:
            if body := self._rest(phase.body, ()):
                self.masked.append(body)
        every = [t for term in self.terms for t in (*(t for _, t in term.tiles), *(term.pairs or ())) if t]
        self.sliding: set[str | int] = set()
        falling = self._first_parts_pay() and all(t.flat or (t.first and not t.parts and t.power == 1) for t in every)
        self.falling = falling and not self.masked and not any(t.pairs for t in self.terms)
        plain = [(term, times) for term, times in self.terms.items() if term.plain]
        self._plain = _compiled(" + ".join(["0", *(term.text(times, dims) for term, times in plain)]))
        self._others = [(term, times) for term, times in self.terms.items() if not term.plain]
        paired = (node.range.pairs for phase in phases for node in ir.walk(phase.body) if isinstance(node, ir.Loop))
        pairs = next(filter(None, paired), None)
        self._grid = (0, 0) if pairs is None else ir.grid(pairs, dims)
        loops = [node for body in self.masked for node in ir.walk(body) if isinstance(node, ir.Loop)]
        self.blocks = {name for tiles in every for name in _names(tiles)}
        self.blocks |= {loop.range.block for loop in loops if isinstance(loop.range.block, str)}

    def __call__(self, blocks: Sizes) -> int:
        """Words moved."""
        found = self._plain(blocks)
        for term, times in self._others:
            found += times * term.rest(self.dims, blocks) * (self._pairs(*term.pairs, blocks) if term.pairs else 1)
        sizes = {**self.dims, **blocks}
        for body in self.masked:
            found += totals(body, sizes, _moved, self.mask)["words"]
        return found

    def least(self, low: Sizes, high: Sizes) -> int:
        """Return a lower bound on the words of all blocks between these."""
        if self.falling:
            return self(high)
        found = self._plain(high)
        for term, times in (*self._others, *self.bounds.items()):
            rest = times * term.least_rest(self.dims, low, high)
            found += rest * (self._least_pairs(*term.pairs, low, high) if term.pairs else 1)
        return found

    def _rest(self, body: list[ir.Node], loops: tuple[ir.Loop, ...]) -> list[ir.Node]:
        """Note the terms of a body; what is left is no such term, since a mask concerns it in another way."""
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
                    met = _met(loops) if self.mask else []
                    term = _term(ranges, loops, met[0] if met else None)
                    if not met or (
                        len(met) == 1 and not met[0].none and all(t is None or t.flat for t in term.pairs or ())
                    ):
                        self.terms[term] += 1
                        continue
                    kept.append(ir.Init(_ANY, ranges, 0.0, 0))
                    if len(met) == 1 and not met[0].none:
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
                    if term.paid_by(partner, exactly):
                        both = min(left[term], left[partner])
                        left[term] -= both
                        left[partner] -= both
            if exactly:
                counted = (tiles for term in left if left[term] for _, tiles in term.tiles if tiles.counts_others)
                self.sliding = {tiles.after for tiles in counted if tiles.after is not None}
        return not any(times and term.first_parts for term, times in left.items())

    def _pairs(self, rows: _Tiles | None, columns: _Tiles | None, blocks: Sizes) -> int:
        """Σ of height^power · width^power over the tiles that meet."""
        assert self.mask
        (n_q, n_k), found = self._grid, 0
        for height in _kinds(n_q, rows, blocks):
            for width in _kinds(n_k, columns, blocks):
                met = self.mask.tiles(self._grid, height, width)
                met *= height.block if rows and rows.power else 1
                found += met * (width.block if columns and columns.power else 1)
        return found

    def _least_pairs(self, rows: _Tiles | None, columns: _Tiles | None, low: Sizes, high: Sizes) -> int:
        """Of the tiles that meet, no less than this is the sum of height^power times width^power."""
        assert self.mask

        def span(tiles: _Tiles | None, n: int) -> tuple[int, int]:
            if tiles is None:
                return n, n
            return min(n, ir.length(tiles.block, low)), min(n, ir.length(tiles.block, high))

        tall, wide = span(rows, self._grid[0]), span(columns, self._grid[1])
        of_rows, of_columns = bool(rows and rows.power), bool(columns and columns.power)
        if of_rows and of_columns:
            return self.mask.area(self._grid, tall, wide)
        widths, heights = self.mask.widths(self._grid, *tall), self.mask.heights(self._grid, *wide)
        if of_rows:
            return heights
        return widths if of_columns else max(-(-widths // wide[1]), -(-heights // tall[1]))


def _met(loops: tuple[ir.Loop, ...]) -> list[ir.MaskCondition]:
    """Return the conditions of a mask on the tiles of loops, without those that follow from the others."""
    met = [loop.when for loop in loops if loop.when]

    def follows(some: ir.MaskCondition) -> bool:
        sides = {rng for rng in (some.rows, some.columns) if rng.parent is not None}
        return not some.none and any(
            other is not some and not other.none and sides < {other.rows, other.columns} for other in met
        )

    return [each for each in met if not follows(each)]


def _kinds(n: int, tiles: _Tiles | None, sizes: Sizes) -> list[TileRange]:
    """The full tiles of a dimension, if there are any, and the last."""
    block = n if tiles is None else ir.length(tiles.block, sizes)
    full = (n - 1) // block * block
    last = TileRange(full, n, n - full)
    return [TileRange(0, full, block), last] if full else [last]


_ANY = ir.Tensor("words", ())


@dataclass(eq=False)
class _Several(ir.Init):
    """So many times the words of a tile."""

    times: int = 1


def _merged(body: list[ir.Node]) -> list[ir.Node]:
    """Return a body in which all nodes that move the same words are combined into one."""
    times = Counter(node.ranges for node in body if isinstance(node, ir.Init))
    moved: list[ir.Node] = [_Several(_ANY, ranges, 0.0, 0, several) for ranges, several in times.items()]
    return moved + [node for node in body if not isinstance(node, ir.Init)]


def _moved(node: ir.Node, place: LoopContext) -> Iterator[tuple[str, int]]:
    assert isinstance(node, _Several)
    yield "words", node.times * place.words(node.ranges)


def _term(ranges: ir.Ranges, loops: tuple[ir.Loop, ...], met: ir.MaskCondition | None) -> _Term:
    """What is moved of a tile, as a product over the dimensions that the loops around it cut."""
    inside: dict[ir.Range, list[ir.Range]] = {}
    for loop in loops:
        assert loop.range.parent is not None
        inside.setdefault(loop.range.parent, []).append(loop.range)

    def tiles(rng: ir.Range) -> _Tiles:
        power, parts = ranges.count(rng), []
        for part in map(tiles, inside.get(rng, ())):
            if part.adds_up:
                power += 1
            else:
                parts.append(part)
        block: str | int = rng.block
        if rng.after is not None and not parts and (power == 1 or block == 1):
            block, power = 1, 0  # the number of indices
        return _Tiles(block, power, tuple(parts), rng.first, rng.after)

    meeting = () if met is None else (met.rows, met.columns)
    tops = [loop.range for loop in loops if loop.range.parent and loop.range.parent.parent is None]
    cut = [(rng.dim, tiles(rng)) for rng in tops if rng not in meeting]
    dims = [rng.name for rng in ranges if rng.parent is None] + [dim for dim, each in cut if each.adds_up]
    return _Term(
        tuple(sorted(dims)),
        tuple(sorted(((dim, each) for dim, each in cut if not each.adds_up), key=repr)),
        None if met is None else (_if_cut(met.rows, tiles), _if_cut(met.columns, tiles)),
    )


def _if_cut(rng: ir.Range, tiles: Callable[[ir.Range], _Tiles]) -> _Tiles | None:
    return None if rng.parent is None else tiles(rng)


def _names(tiles: _Tiles) -> Iterator[str]:
    yield from (size for size in (tiles.block, tiles.after) if isinstance(size, str))
    for part in tiles.parts:
        yield from _names(part)


class _Remembered(Mask):
    """A mask that caches its answers, and gives lower bounds for tiles of many sizes."""

    def __init__(self, mask: Mask) -> None:
        self.mask, self.name = mask, mask.name
        self._tiles: dict[tuple[Grid, TileRange, TileRange], int] = {}
        self._pairs: dict[tuple[int, int | None], int] = {}

    def tiles(self, grid: Grid, rows: TileRange, columns: TileRange) -> int:
        key = grid, rows, columns
        if key not in self._tiles:
            self._tiles[key] = self.mask.tiles(grid, rows, columns)
        return self._tiles[key]

    def met(self, grid: Grid, rows: TileRange, columns: TileRange, axis: int = 0) -> Any:
        return self.mask.met(grid, rows, columns, axis)

    def pairs(self, n_q: int, n_k: int | None = None) -> int:
        if (n_q, n_k) not in self._pairs:
            self._pairs[n_q, n_k] = self.mask.pairs(n_q, n_k)
        return self._pairs[n_q, n_k]

    def _allowed(self, grid: Grid) -> Any:
        return self.mask.allowed(*grid)

    def grouped(self, rows: int, grid: Grid) -> Mask:
        return self.mask.grouped(rows, grid)

    def widths(self, grid: Grid, least: int, most: int) -> int:
        """For tiles of `least` to `most` rows, the columns that each must see, added up."""
        if isinstance(self.mask, Band) and self.mask.rows == 1 and grid[0] == grid[1]:
            return _covered(grid[0], least, most, self.mask.before, self.mask.after)
        return -(-self.pairs(*grid) // most)

    def heights(self, grid: Grid, least: int, most: int) -> int:
        """For tiles of `least` to `most` columns, the rows that must see each, added up."""
        if isinstance(self.mask, Band) and self.mask.rows == 1 and grid[0] == grid[1]:
            return _covered(grid[0], least, most, self.mask.after, self.mask.before)
        return -(-self.pairs(*grid) // most)

    def area(self, grid: Grid, tall: tuple[int, int], wide: tuple[int, int]) -> int:
        """The pairs of the tiles that meet, of sizes between these."""
        n, found = grid[0], self.pairs(*grid)
        if isinstance(self.mask, Band) and self.mask.rows == 1 and grid[0] == grid[1]:
            before, after = self.mask.before, self.mask.after
            found = max(_area(n, *tall, before, after, found), _area(n, *wide, after, before, found))
        return found


def _covered(n: int, least: int, most: int, before: int | None, after: int | None) -> int:
    """Σ of the columns that the tiles of rows see, for any number of rows between two: exact if these are one."""
    more = -(-n // most) - 1  # tiles besides the first, or the last
    first, second = _ahead(more, least, n if before is None else before), n if after is None else after
    whole = min(more, max(0, (n - second) // most))  # tiles with so many columns behind them
    return n + first + whole * second + (more - whole) * n - most * (more * (more + 1) - whole * (whole + 1)) // 2


def _ahead(tiles: int, step: int, limit: int) -> int:
    """Σ of min(limit, step·i) for 1 ≤ i ≤ tiles."""
    short = min(tiles, limit // step)
    return step * short * (short + 1) // 2 + (tiles - short) * limit


def _area(n: int, least: int, most: int, before: int | None, after: int | None, pairs: int) -> int:
    """Pairs of tiles of rows, between two numbers of them, and of the columns that they see; of `pairs`, or more.

    Besides the pairs that are allowed these are, of a tile of r rows, r(r - 1)/2 on each side that no edge cuts off.
    """
    ahead, behind = (n if limit is None else limit for limit in (before, after))
    whole = max(0, (n - behind) // most) + max(0, n // most - -(-ahead // least))
    found = pairs + whole * least * (least - 1) // 2
    if least < most:
        return found
    full, last = (n - 1) // least, (n - 1) % least + 1
    area = full * least**2 + last**2
    if full:
        area += least * _ahead(full - 1, least, ahead) + last * min(ahead, full * least)
        whole = min(full, max(0, (n - behind) // least))
        area += least * (whole * behind + (full - whole) * n)
        area -= least * least * (full * (full + 1) - whole * (whole + 1)) // 2
    return max(found, area)


# -- cache needed ----------------------------------------------------------------------------------------------------

_Length = tuple[str, tuple[str | int, ...]]  # of the first tile: the dimension, and the blocks that cut it
_Sum = Counter[tuple[_Length, ...]]  # words as a sum of products
_Where = tuple[frozenset[ir.Range], ir.Range | None]  # loops in second iterations, and a range of several indices


class Room:
    """The peak of red pebbles of some phases, for block sizes, on summation trees of one shape."""

    def __init__(self, program: ir.Program, dims: Sizes, summation: str) -> None:
        self.program, self.dims, self.summation = program, dims, summation
        phases = [_levels(phase) for phase in program.phases]
        low = [(words, 0, *where) for phase in phases for words, where in phase.low]
        if summation == "chain":  # where a sum grows, its next term and the new sum
            low += [(words, 2, *where) for phase in phases for words, where in phase.growing]
        self._low = _largest(low, dims)
        self._high = _largest([(words, phase.passing, (), None) for phase in phases for words in phase.high], dims)
        self._known: dict[tuple[int, ...], int] = {}

    def least(self, blocks: Sizes) -> int:
        """Return a lower bound on the pebbles of games with blocks of these sizes or larger."""
        return self._low(blocks)

    def most(self, blocks: Sizes) -> int | None:
        """Return an upper bound on the pebbles of games with blocks of these sizes or smaller; None if not known."""
        return self._high(blocks) if self.summation == "chain" else None

    def __call__(self, blocks: Sizes) -> int:
        """Return the largest number of red pebbles at any time of the game."""
        key = tuple(blocks[name] for name in self.program.blocks)
        if key not in self._known:
            self._known[key] = peak_red(self.program, {**self.dims, **blocks}, self.summation)
        return self._known[key]


def _largest(
    levels: Sequence[tuple[_Sum, int, Iterable[ir.Range], ir.Range | None]], dims: Sizes
) -> Callable[[Sizes], int]:
    """The largest of sums of products of lengths, and a number each, as a function of the block sizes.

    Each only counts where the loops that it is for have two whole tiles, and the range that it is for two indices.
    """
    names: dict[str, str] = {}

    def name(length: _Length) -> str:
        dim, cuts = length
        if not cuts:
            return str(dims[dim])
        return names.setdefault(f"min({dims[dim]}, {', '.join(map(_text, cuts))})", f"x{len(names)}")

    def twice(rng: ir.Range) -> str:
        assert rng.parent is not None
        before = "" if rng.after is None else f" - {_text(rng.after)}"
        return f"{name(_first(rng.parent))}{before} >= 2 * {_text(rng.block)}"

    texts: dict[str, None] = {}
    for words, more, loops, terms in levels:
        products = ("*".join([str(times), *map(name, lengths)]) for lengths, times in words.items())
        several = [] if terms is None else [f"{name(_first(terms))} >= 2"]
        conditions = " and ".join([*sorted(map(twice, loops)), *several])
        texts[f"{' + '.join([*products, str(more)])}" + (f" if {conditions} else 0" if conditions else "")] = None
    return _compiled(f"(lambda {', '.join(names.values())}: max(0, 0, {', '.join(texts)}))({', '.join(names)})")


def _compiled(text: str) -> Callable[[Sizes], int]:
    """A function of the block sizes, `s` in its text."""
    function: Callable[[Sizes], int] = eval(f"lambda s: {text}", {"min": min, "max": max, "__builtins__": {}})
    return function


@lru_cache(maxsize=1024)
def _levels(phase: ir.Phase) -> _Levels:
    """The tiles that a phase holds, which are the same for all sizes."""
    return _Levels(phase.body)


class _Levels:
    """The tiles that a phase holds in the first iterations of its loops, where tiles are largest.

    Attributes:
        high: the words of all that is resident, after each primitive that brings a tile or computes.
        low: the same without the room for sums that may have no term yet, which holds no pebble; in first iterations
            and, where a loop has two whole tiles, in second ones. What is held at once, and where.
        growing: the same while a sum that has a term gets one more: where its terms are several, or it had some before.
        passing: most pebbles besides, on intermediates.
    """

    def __init__(self, body: list[ir.Node]) -> None:
        self.resident: dict[ir.Tile, _Sum] = {}
        self.full: set[ir.Tile] = set()
        self.partly: dict[ir.Tile, ir.Ranges] = {}  # of a sum, the part that has got terms
        self.since: dict[ir.Tile, frozenset[ir.Range]] = {}  # the loops in second iterations when a tile was made
        self.passing = 0
        self.high: list[_Sum] = []
        self._low: dict[_Where, list[_Sum]] = {}
        self._growing: dict[_Where, list[_Sum]] = {}
        self._seen: set[object] = set()  # tiles that were resident at once, and those of them with a pebble a word
        self._walk(body, frozenset())
        self.high = _outermost(self.high)
        self.low, self.growing = _least(self._low), _least(self._growing)

    def _walk(self, body: list[ir.Node], second: frozenset[ir.Range]) -> None:
        for node in body:
            match node:
                case ir.Loop(range=ir.Range(first=True), body=inner):
                    self._walk(inner, second)
                    continue
                case ir.Loop(range=rng, body=inner) if rng.after is not None:  # which may not run at all
                    full, partly = set(self.full), dict(self.partly)
                    for _ in range(2):
                        self._walk(inner, second | {rng})
                    self.full, self.partly = full, partly
                    continue
                case ir.Loop(range=rng, body=inner):
                    self._walk(inner, second)
                    full, partly = set(self.full), dict(self.partly)
                    self._walk(inner, second | {rng})
                    self.full, self.partly = full, partly
                    self._covered(rng)
                    continue
                case ir.Init():
                    self.passing = max(self.passing, 1)
                    continue
                case ir.Move(tile=tile, source=source):
                    (self.full.add if source in self.full else self.full.discard)(tile)
                    self.since[tile] = self.since[source]
                case ir.Compute(target=target):
                    self.passing = max(self.passing, _passing(node))
                    if terms := _terms(node):
                        self._grows(target, terms, second)
                    if node.mode == "add":
                        self.partly[target.tile] = target.ranges
                        self._fill(target.tile)
                case _:
                    pass
            if entered := ir.entering(node):
                self.resident[entered], self.since[entered] = _words(entered.ranges), second
                (self.full.discard if isinstance(node, ir.Zeros) else self.full.add)(entered)
            if left := ir.leaving(node):
                self.resident.pop(left, None)
            resident = frozenset(self.resident)
            if resident not in self._seen:
                self._seen.add(resident)
                self.high.append(_added(self.resident.values()))
            held = resident & self.full
            if (second, held) not in self._seen:
                self._seen.add((second, held))
                words = _added(words for tile, words in self.resident.items() if tile in held)
                self._low.setdefault((second, None), []).append(words)

    def _grows(self, target: ir.Ref, terms: ir.Range, second: frozenset[ir.Range]) -> None:
        """Terms are added to a sum, which has none yet, or as many as its words."""
        held = [words for tile, words in self.resident.items() if tile in self.full]
        if target.tile not in self.resident or target.tile not in self.full:
            self._growing.setdefault((second, terms), []).append(_added([*held, _words(target.ranges)]))
        elif not _within(terms).isdisjoint(second - self.since[target.tile]):
            self._growing.setdefault((second, None), []).append(_added(held))

    def _covered(self, rng: ir.Range) -> None:
        """A loop over the parts of a range has gone through all of it."""
        for tile, ranges in self.partly.items():
            if rng in ranges and rng.parent is not None:
                self.partly[tile] = tuple(rng.parent if each is rng else each for each in ranges)
                self._fill(tile)

    def _fill(self, tile: ir.Tile) -> None:
        if self.partly[tile] == tile.ranges:
            self.full.add(tile)


def _words(ranges: ir.Ranges) -> _Sum:
    return Counter({tuple(sorted(map(_first, ranges), key=repr)): 1})


def _first(rng: ir.Range) -> _Length:
    if rng.parent is None:
        return rng.name, ()
    dim, blocks = _first(rng.parent)
    return dim, tuple(dict.fromkeys((*blocks, rng.block)))


def _added(parts: Iterable[_Sum]) -> _Sum:
    total: _Sum = Counter()
    for part in parts:
        total.update(part)
    return total


def _least(held: Mapping[_Where, list[_Sum]]) -> list[tuple[_Sum, _Where]]:
    """What is held where, without what says no more than another."""
    kept: list[tuple[_Sum, _Where]] = []
    for loops, terms in sorted(held, key=lambda where: (len(where[0]), where[1] is not None)):
        others = [words for words, (fewer, of) in kept if fewer <= loops and of in (None, terms)]
        kept += [(words, (loops, terms)) for words in _outermost(held[loops, terms]) if not _below(words, others)]
    return kept


def _outermost(sums: list[_Sum]) -> list[_Sum]:
    """Those that no other exceeds term by term."""
    kept: list[_Sum] = []
    for each in sums:
        if not _below(each, kept):
            kept = [other for other in kept if not other <= each] + [each]
    return kept


def _below(words: _Sum, others: Iterable[_Sum]) -> bool:
    return any(words <= other for other in others)


def _terms(node: ir.Compute) -> ir.Range | None:
    """What a sum that a node adds to goes over."""
    match node.expr:
        case ir.MatMul(left=operand) | ir.RowReduction(operand=operand):
            return operand.shape[1]
    return None


def _within(rng: ir.Range) -> set[ir.Range]:
    """A range, and those that it is a part of."""
    return {rng} if rng.parent is None else {rng} | _within(rng.parent)


def _passing(node: ir.Compute) -> int:
    """Most pebbles on intermediates while a node computes, besides the words of its target."""
    match node.expr:
        case ir.Elementwise():
            return intermediates(node.expr)
        case ir.RowReduction(operand=operand):
            return max(2, 1 + (not isinstance(operand, ir.Ref)), intermediates(operand))
    return 2
