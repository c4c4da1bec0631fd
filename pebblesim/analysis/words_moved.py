"""The words that a program moves, as a function of its block sizes, without running its loops.

The closed form is compiled once from the program, and evaluated in microseconds. It also gives lower bounds for all
sizes in a range at once. `pebblesim.analysis.cache_needed` does the same for the cache. A search of blocks needs only
these two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from pebblesim.analysis.functions_of_blocks import Sizes, compiled
from pebblesim.analysis.mask_answers import remembered
from pebblesim.analysis.terms_of_tiles import TermsOfTiles, Tiles, conditions_on, term_of
from pebblesim.analysis.totals import LoopContext, totals
from pebblesim.analysis.words_of_pairs import WordsOfPairs
from pebblesim.language import program as ir
from pebblesim.language.masks import Mask

MOST_KNOWN = 2**16
"""Most sizes of blocks whose words are remembered at once."""


class Words:
    """The words that some phases move, for block sizes.

    Attributes:
        nonincreasing: whether they never increase with a block; then the largest blocks move the least.
        blocks_to_enumerate: names of the blocks for which every size may move a different number of words.
        blocks: names of the blocks that matter.
    """

    def __init__(self, phases: list[ir.Phase], dims: Sizes, mask: Mask | None) -> None:
        self.dims, self.mask = dims, None if mask is None else remembered(mask)
        self.terms: Counter[TermsOfTiles] = Counter()
        self.bounds: Counter[TermsOfTiles] = Counter()  # terms of a lower bound on the other words
        self.masked: list[list[ir.Node]] = []  # nodes that no term is for
        self._of_pairs = WordsOfPairs(dims)
        for phase in phases:
            if body := self._rest(phase.body, ()):
                self.masked.append(body)
        self._summed = [left for body in self.masked if (left := self._without_closed_forms(body, ()))]
        self._of_pairs.compile()
        every = [t for term in self.terms for t in (*(t for _, t in term.tiles), *(term.pairs or ())) if t]
        self.blocks_to_enumerate: set[str | int] = set()
        nonincreasing = self._first_parts_pay() and all(
            t.flat or (t.first and not t.parts and t.power == 1) for t in every
        )
        self.nonincreasing = nonincreasing and not self.masked and not any(t.pairs for t in self.terms)
        bounding = [*self.terms.items(), *self.bounds.items()]
        alone = (term.total(times, dims) for term, times in self.terms.items() if not term.pairs)
        self._total = compiled(" + ".join(["0", *alone]))
        self._least, self._least_paired = _least_of(bounding, dims)
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
        if self.bound(blocks) >= than:
            return None
        words = self(blocks)
        return words if words < than else None

    def bound(self, blocks: Sizes) -> int:
        """Return a lower bound on the number of words moved; the number itself if it is known or takes no mask."""
        known = not self.masked or tuple([blocks[name] for name in self._in_order]) in self._known
        return self(blocks) if known else self.least(blocks, blocks)

    def _counted(self, blocks: Sizes) -> int:
        words = self._total(blocks)
        if self.mask:
            words += self._of_pairs(self.mask, self._grid, blocks)
        sizes = {**self.dims, **blocks}
        for body in self._summed:
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
                        if met:
                            counted = self._of_pairs.add(ranges, 1, loops)
                            assert counted
                        continue
                    kept.append(ir.Init(_ANY, ranges, 0.0, 0))
                    if alone:
                        self.bounds[term] += 1
                case _:
                    pass
        return _merged(kept)

    def _without_closed_forms(self, body: list[ir.Node], loops: tuple[ir.Loop, ...]) -> list[ir.Node]:
        """Return the nodes whose words must be summed loop by loop; the others are those of `_of_pairs`."""
        kept: list[ir.Node] = []
        for node in body:
            if isinstance(node, ir.Loop):
                if inner := self._without_closed_forms(node.body, (*loops, node)):
                    kept.append(replace(node, body=inner))
                continue
            assert isinstance(node, _RepeatedInit)
            if not self._of_pairs.add(node.ranges, node.times, loops):
                kept.append(node)
        return kept

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


def _least_of(
    terms: Iterable[tuple[TermsOfTiles, int]], dims: Sizes
) -> tuple[Callable[..., int], list[tuple[tuple[Tiles | None, Tiles | None], bool, Callable[..., int]]]]:
    """Compile lower bounds on the terms without pairs; and on those of the same pairs, as (pairs, cut twice, function).

    They are functions of the least and the largest blocks.
    """
    alone, paired = ["0"], dict[tuple[tuple[Tiles | None, Tiles | None], bool], list[str]]()
    for term, times in terms:
        texts = paired.setdefault((term.pairs, term.cut_twice), []) if term.pairs else alone
        texts.append(term.least(times, dims))
    of_pairs = [(*which, compiled(" + ".join(texts), "low, s")) for which, texts in paired.items()]
    return compiled(" + ".join(alone), "low, s"), of_pairs


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


def _names(tiles: Tiles) -> Iterator[str]:
    yield from (size for size in (tiles.block, tiles.after) if isinstance(size, str))
    for part in tiles.parts:
        yield from _names(part)
