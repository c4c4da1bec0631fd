"""A search of block sizes: by steps from sizes to better ones, and by a proof that none is better.

It asks for words and pebbles in closed form only (`pebblesim.analysis.words_moved`, `pebblesim.analysis.cache_needed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import combinations, count, permutations, product
from math import isqrt, prod

from pebblesim.analysis.block_parts import Blocks, Part
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


def least_of_part(part: Part, M: int) -> int:
    """Return a lower bound on the words of all feasible blocks: each as large as fits beside blocks of 1."""
    ones = dict.fromkeys(part.cuts, 1)
    search = BlockSearch(part, part.words, M, list(ones), ones, ones)
    return part.words.least(ones, search.tightened(ones, search.caps))


def part_moves_at_least(part: Part, M: int, words: int) -> bool:
    """Return whether it is proved, by few boxes, that no feasible blocks move fewer words than this."""
    ones = dict.fromkeys(part.room.program.blocks, 1)
    search = BlockSearch(part, part.words, M, sorted(part.words.blocks), ones, ones)
    search.least = words
    return search.prove(FEW_BOXES) and search.best is ones
