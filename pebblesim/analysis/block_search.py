"""A search for block sizes: those that grow in order, those that share the cache, and a proof that none is better.

It asks for words and pebbles in closed form only (`pebblesim.analysis.words_moved`, `pebblesim.analysis.cache_needed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from itertools import combinations, count, pairwise, permutations, product
from math import isqrt, prod

from pebblesim.analysis.cache_needed import CacheNeed
from pebblesim.analysis.peak import CHAINS
from pebblesim.analysis.words_moved import Words
from pebblesim.core.bisection import last_that, last_within

MOST_BOXES = 2_000
"""Largest number of boxes of block sizes that `best` examines."""

FEW_BOXES = 400
"""Largest number of boxes that are examined to prove that a schedule is not better than another."""

REGROWN = 30
"""At steps of this part of a block `best` lets two other blocks grow again."""

FEW = 2**11
"""For at most this number of sizes, `best` examines `MOST_BOXES` also under a mask; for more, an eighth of them."""

DIVISORS_OF_FIT = (1, 3, 8)
"""Parts of a block by which "fit" changes it."""

STEPS = 32
"""Steps in which "fit" enlarges a block up to twice its size."""

FEW_NAMES = 3
"""Largest number of blocks for which "fit" looks at caches between powers of two, too."""

GRID = 2**11
"""Under a mask `fit` tries all sizes up to twice this number, and this number of sizes between powers of two."""

Blocks = dict[str, int]


@dataclass(frozen=True, eq=False)
class Part:
    """Phases of a schedule that share no block with the others.

    Attributes:
        groups: its blocks, in the order in which they grow.
        cuts: the sizes that each block cuts; a block of the largest of them holds everything.
        words, room: words moved, and pebbles needed, as functions of the blocks.
        unmasked: the words without a mask.
    """

    groups: tuple[tuple[str, ...], ...]
    cuts: Mapping[str, frozenset[int]]
    words: Words
    room: CacheNeed
    unmasked: Words

    # -- what is feasible ---------------------------------------------------------------------------------------------

    def sizes(self, blocks: Blocks) -> tuple[int, ...]:
        """The sizes of its own blocks."""
        return tuple([blocks[name] for name in self.cuts])

    def fits(self, M: int, blocks: Blocks) -> bool:
        """Whether blocks are feasible; the exact peak is computed only if the bounds on it do not decide this."""
        enough = self.room.most(blocks)
        return (enough is not None and enough <= M) or (self.room.least(blocks) <= M and self.room(blocks) <= M)

    def largest(self, M: int, grown: Callable[[int], Blocks], cap: int) -> int:
        """The largest size up to `cap` for which the blocks `grown(size)` are feasible; 0 if there is none."""
        if self.room.summation not in CHAINS:  # larger blocks may need fewer pebbles there
            top = last_that(lambda size: self.room.least(grown(size)) <= M, 0, cap)
            return next((size for size in range(top, 0, -1) if self.room(grown(size)) <= M), 0)
        # So may blocks of more than half of what they cut, since no second tile is as large.
        edges = sorted({0, cap, *(cut // 2 for cuts in self.cuts.values() for cut in cuts if cut // 2 < cap)})
        for low, high in reversed(list(pairwise(edges))):
            top = last_within(lambda size: self.room.least(grown(size)), M, low + 1, high)
            sure = last_that(lambda size: self._surely_fits(M, grown(size)), low, top)
            size = last_within(lambda size: self.room(grown(size)), M, max(sure, low + 1), top)
            if size > low:
                return size
        return 0

    def _surely_fits(self, M: int, blocks: Blocks) -> bool:
        enough = self.room.most(blocks)
        return enough is not None and enough <= M

    def starts(self, sizes: Blocks, fixed: frozenset[str]) -> Iterator[Blocks]:
        """Yield these blocks; then, on chains, those with whole dimensions in some places that need a smaller cache."""
        yield sizes
        free = [name for name in self.cuts if name not in fixed and self.room.summation in CHAINS]
        for wholes in product(*(sorted({sizes[name], *self.cuts[name]}) for name in free)):
            blocks = sizes | dict(zip(free, wholes, strict=True))
            if blocks != sizes and self.room.least(blocks) < self.room(sizes) > self.room(blocks):
                yield blocks

    # -- "fit" --------------------------------------------------------------------------------------------------------

    def fit(self, M: int, sizes: Blocks, fixed: frozenset[str]) -> Blocks:
        """Return all blocks, those of this part by the rule "fit"; other blocks and fixed blocks do not change."""
        groups = [free for group in self.groups if (free := [name for name in group if name not in fixed])]
        names = [name for group in groups for name in group if name in self.unmasked.blocks | self.words.blocks]
        compete = sum(not self.unmasked.blocks.isdisjoint(group) for group in groups) > 1
        best = sizes
        if not compete or self.words is self.unmasked or len(names) > FEW_NAMES:
            best = self._fit_in_order(M, sizes, groups)
        if compete:
            best = self._shared(M, sizes, names, best)
        return self._filled(M, best, [[name for name in group if best[name] == 1] for group in groups])

    def _fit_in_order(self, M: int, sizes: Blocks, groups: list[list[str]]) -> Blocks:
        """Return the blocks with the fewest words among those reached if one group after the other grows."""
        best, least, end = sizes, self.words(sizes), sizes
        for group in groups:
            caps = {name: max(self.cuts[name]) for name in group}

            def grown(size: int, end: Blocks = end, caps: Blocks = caps) -> Blocks:
                return end | {name: min(size, cap) for name, cap in caps.items()}

            limit = self.largest(M, grown, max(caps.values()))
            simple = self.words.nonincreasing or not self.words.blocks & set(group)
            # Rows of a workspace take no room in the cache. A search over all their sizes would not end for a large n.
            # What takes no room is also tried where M has room for more, or a larger M could move more.
            free = limit if simple else self.largest(self.room(end), grown, limit)
            halves = [free >> halved for halved in range(1 if simple else free.bit_length())]
            for size in halves if free == limit else halves + self._least_in_order(M, grown, limit):
                if self.words(grown(size)) <= least:
                    best, least = grown(size), self.words(grown(size))
            end = grown(limit)
            if limit < max(caps.values()):
                break
        return best

    def _shared(self, M: int, sizes: Blocks, names: list[str], in_order: Blocks) -> Blocks:
        """Choose blocks that compete for the cache, no worse than `in_order`; a larger M never gives worse ones.

        This is true if they are proved to be the best. Otherwise they are the ones of the last level up to M, enlarged
        by steps that do not depend on M.
        """
        caps = {name: max(self.cuts[name]) for name in names}
        for blocks in (in_order, sizes | caps):
            if self.words(blocks) <= self.least(M) and self.fits(M, blocks):
                return blocks
        few = prod(caps.values()) <= FEW
        if few or self.words.nonincreasing:
            search = BlockSearch(self, self.words, M, names, in_order, sizes)
            if self.words.nonincreasing:
                search.climb()
            if search.prove(FEW if few else MOST_BOXES):
                return search.best
        M = min(M, self.room(sizes | caps))  # no block is larger
        start = tuple(sizes.items())
        blocks = sizes
        for level in _levels(self.room(sizes), M, names):  # each begins with the one before, which is remembered
            blocks = _at_level(self, level, tuple(names), start)
        return min(in_order, _enlarged(self, M, blocks, names), key=self.words)

    def _least_in_order(self, M: int, grown: Callable[[int], Blocks], limit: int) -> list[int]:
        """Return the size up to `limit` that moves the fewest words, from a grid that does not depend on M."""
        last = last_that(lambda place: _on_grid(place) <= limit, 0, 256 * GRID)
        cheapest: list[int] = []
        least: int | None = None
        ranges = [(0, 1, last)]  # (bound, from, to)
        while ranges:
            bound, low, high = heappop(ranges)
            if least is not None and bound >= least:
                break
            middle = (low + high) // 2 if least is not None else high
            moved = self.words(grown(_on_grid(middle)))
            if (least is None or moved < least) and self.fits(M, grown(_on_grid(middle))):
                least, cheapest = moved, [_on_grid(middle)]
            for first, end in ((low, middle - 1), (middle + 1, high)):
                if first <= end:
                    bound = self.words.least(grown(_on_grid(first)), grown(_on_grid(end)))
                    heappush(ranges, (bound, first, end))
        return cheapest

    def _filled(self, M: int, blocks: Blocks, groups: list[list[str]]) -> Blocks:
        """Increase blocks that do not change the words moved, as far as there is space."""
        for group in groups:
            caps = {name: max(self.cuts[name]) for name in group if name not in self.words.blocks}

            def grown(size: int, blocks: Blocks = blocks, caps: Blocks = caps) -> Blocks:
                return blocks | {name: min(size, cap) for name, cap in caps.items()}

            if caps:
                blocks = grown(max(1, self.largest(M, grown, max(caps.values()))))
        return blocks

    # -- "best" -------------------------------------------------------------------------------------------------------

    def least(self, M: int) -> int:
        """Return a lower bound on the words of all feasible blocks: each as large as fits beside blocks of 1."""
        ones = dict.fromkeys(self.cuts, 1)
        search = BlockSearch(self, self.words, M, list(ones), ones, ones)
        return self.words.least(ones, search.tightened(ones, search.caps))

    def moves_at_least(self, M: int, words: int) -> bool:
        """Return whether it is proved, by few boxes, that no feasible blocks move fewer words than this."""
        ones = dict.fromkeys(self.room.program.blocks, 1)
        search = BlockSearch(self, self.words, M, sorted(self.words.blocks), ones, ones)
        search.least = words
        return search.prove(FEW_BOXES) and search.best is ones

    def best(self, M: int, start: Blocks) -> Blocks:
        """Return all blocks, those of this part with the fewest words; `start` is the result of "fit"."""
        names = [name for group in self.groups for name in group if name in self.words.blocks]
        if not names or (len(names) == 1 and (self.words.nonincreasing or max(self.cuts[names[0]]) <= 2 * GRID)):
            return start  # "fit" has looked at all sizes
        if self.words(start) <= self.least(M):
            return start
        rest = [name for group in self.groups for name in group if name not in names]
        search = BlockSearch(self, self.words, M, names, start, start | dict.fromkeys(rest, 1))
        search.climb(regrow=True)
        search.prove()
        if search.best is start:
            return start
        return self._filled(M, search.best, [[name] for name in rest])


class BlockSearch:
    """Finds the feasible blocks of a part with the fewest words: by local search, then by a proof that none is better.

    Attributes:
        words: the words that blocks move.
        names: the blocks to choose; the others stay as they are in `others`.
        best, least: the best blocks so far, at first those to start from, and their words.
    """

    def __init__(self, part: Part, words: Words, M: int, names: list[str], start: Blocks, others: Blocks) -> None:
        self.part, self.words, self.M, self.names, self.others = part, words, M, names, others
        self.caps = {name: max(part.cuts[name]) for name in names}
        self.best, self.least = start, words(start)
        self._seen: set[tuple[int, ...]] = set()  # what was considered
        self._grown: dict[tuple[str, tuple[int, ...]], int] = {}

    def consider(self, blocks: Blocks) -> bool:
        """Accept blocks as the best so far if they are feasible and better; return whether they are."""
        if (sizes := self.part.sizes(blocks)) in self._seen:
            return False  # what is best only becomes better
        self._seen.add(sizes)
        blocks = blocks | {name: self._smaller(name, blocks[name]) for name in self.names}
        words = self.words.fewer(blocks, self.least)
        if words is None or not self.part.fits(self.M, blocks):
            return False
        self.best, self.least = blocks, words
        return True

    def _smaller(self, name: str, size: int) -> int:
        """Return the smallest block with the same numbers of tiles, for words that never increase with a block."""
        if not self.words.nonincreasing or name in self.words.blocks_to_enumerate:
            return size
        return max(-(-cut // -(-cut // size)) for cut in self.part.cuts[name])

    def climb(self, regrow: bool = False) -> None:
        """Make one block larger or smaller, and another as large as fits then, in smaller and smaller steps.

        With `regrow`, where words may increase with a block, also make two others as large as fits, the last first.
        """
        ones = self.others | dict.fromkeys(self.names, 1)
        starts = [ones]
        if not self.words.nonincreasing:  # halves of a block may leave room for others, which then save more
            starts += [ones | {name: -(-self.caps[name] // 2)} for name in self.names]
        for blocks, first in product(starts, range(len(self.names))):
            for name in self.names[first:] + self.names[:first]:
                self.consider(blocks)
                if blocks[name] == 1:
                    blocks = self._with_largest(blocks, name)
            self.consider(blocks)
            for shorter in self._beside_whole_tiles(blocks):
                self.consider(shorter)
        self.consider_equal()
        self.descend((1, 2, 5, 12, 30, 80, None), regrow)

    def consider_equal(self) -> None:
        """Accept the largest feasible blocks of one size if they are better than the best so far."""
        together = last_that(lambda size: self.part.fits(self.M, self._all(size)), 1, max(self.caps.values()))
        self.consider(self._all(together))

    def descend(self, divisors: Sequence[int | None], regrow: bool = False) -> None:
        """Go from the best blocks so far to neighbours that are better, in steps of these parts of a block."""
        for divisor in divisors:
            while any(self.consider(blocks) for blocks in self._steps(divisor, regrow)):
                pass

    def _beside_whole_tiles(self, blocks: Blocks) -> Iterator[Blocks]:
        """Yield the blocks with one of them as long as whole tiles of another leave: a first part, under a mask."""
        for name, other in permutations(self.names, 2):
            if not self.words.nonincreasing and self.part.cuts[name] == self.part.cuts[other]:
                yield blocks | {name: (self.caps[name] - 1) % blocks[other] + 1}

    def _all(self, size: int) -> Blocks:
        return self.others | {name: min(size, cap) for name, cap in self.caps.items()}

    def _with_largest(self, blocks: Blocks, name: str) -> Blocks:
        key = name, self.part.sizes(blocks | {name: 1})
        if key not in self._grown:
            tried = dict(blocks)

            def grown(size: int) -> Blocks:
                tried[name] = size
                return tried

            self._grown[key] = max(1, self.part.largest(self.M, grown, self.caps[name]))
        return blocks | {name: self._grown[key]}

    def _steps(self, divisor: int | None, regrow: bool) -> Iterator[Blocks]:
        """Yield neighbours of the best blocks: a part of their size away, or with one tile more or less."""
        base = self.others | {name: self.best[name] for name in self.names}
        for name in self.names:
            size, cap = base[name], self.caps[name]
            tiles = -(-cap // size)
            if divisor is None:
                more = range(-3, 4) if not self.words.nonincreasing else range(-1, 2)
                sizes = {size + step for step in more} | {-(-cap // max(1, tiles + step)) for step in more}
            else:
                sizes = {size + size // divisor, size * divisor // (divisor + 1)}
            for other_size in sorted(sizes):
                if other_size < 1 or other_size == size:
                    continue
                blocks = base | {name: min(cap, other_size)}
                if not self.words.nonincreasing:
                    yield blocks
                    others = [other for other in self.names if other != name]
                    for two in combinations(reversed(others), 2) if regrow and divisor == REGROWN else ():
                        both = blocks | dict.fromkeys(two, 1)
                        for other in two:
                            both = self._with_largest(both, other)
                        yield both
                for other in self.names:
                    if other != name:
                        yield self._with_largest(blocks, other)

    def prove(self, most: int = MOST_BOXES) -> bool:
        """Examine boxes of sizes, the most promising first; return whether it is proved that none has better blocks."""
        order = count()
        ones = self.others | dict.fromkeys(self.names, 1)
        boxes = [(0, 0, ones, self.tightened(ones, ones | self.caps))]
        self._look(*boxes[0][2:])
        few = self.words.nonincreasing or prod(boxes[0][3][name] for name in self.names) <= FEW
        for _ in range(most if few else most // 8):
            if not boxes or boxes[0][0] >= self.least:
                return True
            _, _, low, high = heappop(boxes)
            for bound, part_low, part_high in self._halves(low, high):
                if bound < self.least:
                    self._look(part_low, part_high)
                    if bound < self.least and part_low != part_high:
                        heappush(boxes, (bound, next(order), part_low, part_high))
        return False

    def _look(self, low: Blocks, high: Blocks) -> None:
        self.consider(high)
        if not self.words.nonincreasing:
            self.consider(low)

    def _halves(self, low: Blocks, high: Blocks) -> list[tuple[int, Blocks, Blocks]]:
        """Split a box in two along the most informative block; return each half with its bound."""
        choices = []
        for name in self.names:
            if low[name] < high[name]:
                middle = isqrt(low[name] * high[name])
                boxes = [(low, high | {name: max(low[name], self._smaller(name, middle))})]
                if self.part.room.least(more := low | {name: middle + 1}) <= self.M:
                    boxes.append((more, self.tightened(more, high)))
                halves = [(self.words.least(*box), *box) for box in boxes]
                bounds = sorted(bound for bound, _, _ in halves)
                choices.append((len(halves) < 2, bounds, high[name] / low[name], halves))
        return max(choices, key=lambda choice: choice[:3])[3] if choices else []

    def tightened(self, low: Blocks, high: Blocks) -> Blocks:
        """Return the largest sizes of a box, without sizes that are infeasible even if the others are smallest."""
        sizes = {}
        for name in self.names:

            def needed(size: int, name: str = name) -> int:
                return self.part.room.least(low | {name: size})

            size = max(low[name], last_within(needed, self.M, low[name], high[name]))
            sizes[name] = max(low[name], self._smaller(name, size))
        return high | sizes


def _levels(needed: int, M: int, names: Sequence[str]) -> list[int]:
    """Return the caches up to M for which "fit" looks for blocks, of which the smallest need `needed` words.

    They are powers of two, as people give M, and these beside what is needed, where blocks grow many times within one
    power of two. For few blocks they are also 3, 6, 12, …
    """
    steps = [1 << power for power in range(M.bit_length())]
    if len(names) <= FEW_NAMES:
        steps += [3 * step for step in steps]
    return sorted({level for base in (0, needed) for step in steps if needed < (level := base + step) <= M})


@lru_cache(maxsize=2048)  # for every M above that level
def _at_level(part: Part, M: int, names: tuple[str, ...], start: tuple[tuple[str, int], ...]) -> Blocks:
    """Return good blocks for a cache of so many words, no worse than those for fewer; `start` are the smallest."""
    sizes = dict(start)
    below = max(_levels(part.room(sizes), M - 1, names), default=0)
    smaller = _enlarged(part, M, _at_level(part, below, names, start) if below else sizes, names)
    if part.words(smaller) <= part.least(M):
        return smaller
    without_mask = BlockSearch(part, part.unmasked, M, list(names), sizes, sizes)
    without_mask.climb()
    search = BlockSearch(part, part.words, M, list(names), smaller, sizes)
    search.consider(without_mask.best)
    search.consider_equal()
    if len(names) <= FEW_NAMES:
        search.descend(DIVISORS_OF_FIT)
    return search.best


def _enlarged(part: Part, M: int, blocks: Blocks, names: Sequence[str]) -> Blocks:
    """Return the best of these blocks and of feasible ones with one or two enlarged, or one in exchange for another."""
    few = len(names) <= FEW_NAMES
    lines = [(those, blocks, STEPS if few else STEPS // 4) for count in (1, 2) for those in combinations(names, count)]
    for name, other in permutations(names, 2) if few else ():
        for quarters, steps in ((3, STEPS // 4), (2, STEPS // 4), (1, STEPS // 4), (0, STEPS)):
            shorter = blocks | {other: max(1, -(-blocks[other] * quarters // 4))}
            lines.append(((name,), shorter, steps))
    reached = []
    for those, start, steps in lines:
        before = start
        for step in range(1, steps + 1):
            sizes = {name: min(max(part.cuts[name]), start[name] + -(-start[name] * step // steps)) for name in those}
            if (larger := start | sizes) == before:
                continue
            if not part.fits(M, larger):
                break
            before = larger
            reached.append(larger)
    return _fewest(part.words, blocks, reached)


def _fewest(words: Words, blocks: Blocks, others: list[Blocks]) -> Blocks:
    """Return the first of the others that moves the fewest words, if fewer than these blocks.

    Those of the lowest bounds are counted first, so that most are not counted at all.
    """
    best, least, place = blocks, words(blocks), -1
    for bound, number in sorted((words.bound(each), number) for number, each in enumerate(others)):
        if (bound, number) > (least, place):
            break
        if ((moved := words(others[number])), number) < (least, place):
            best, least, place = others[number], moved, number
    return best


def _on_grid(place: int) -> int:
    """The sizes 1, 2, 3, … with at most as many digits as `GRID` has, in binary, and one more."""
    octave = max(1, place // GRID) - 1
    return (place - octave * GRID) << octave
