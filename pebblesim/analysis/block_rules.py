"""The rules by which blocks are chosen: "fit", those that grow in order or share the cache, and "best"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import combinations, permutations
from math import prod

from pebblesim.analysis.block_parts import Blocks, Part
from pebblesim.analysis.block_search import FEW, MOST_BOXES, BlockSearch, least_of_part
from pebblesim.analysis.words_moved import Words
from pebblesim.core.bisection import last_that

DIVISORS_OF_FIT = (1, 3, 8)
"""Parts of a block by which "fit" changes it."""

STEPS = 32
"""Steps in which "fit" enlarges a block up to twice its size."""

FEW_NAMES = 3
"""Largest number of blocks for which "fit" looks at caches between powers of two, too."""

GRID = 2**11
"""Under a mask `fit` tries all sizes up to twice this number, and this number of sizes between powers of two."""


def fit(part: Part, M: int, sizes: Blocks, fixed: frozenset[str]) -> Blocks:
    """Return all blocks, those of this part by the rule "fit"; other blocks and fixed blocks do not change."""
    groups = [free for group in part.groups if (free := [name for name in group if name not in fixed])]
    names = [name for group in groups for name in group if name in part.unmasked.blocks | part.words.blocks]
    compete = sum(not part.unmasked.blocks.isdisjoint(group) for group in groups) > 1
    best = sizes
    if not compete or part.words is part.unmasked or len(names) > FEW_NAMES:
        best = _fit_in_order(part, M, sizes, groups)
    if compete:
        best = _shared(part, M, sizes, names, best)
    return part.filled(M, best, [[name for name in group if best[name] == 1] for group in groups])


def _fit_in_order(part: Part, M: int, sizes: Blocks, groups: list[list[str]]) -> Blocks:
    """Return the blocks with the fewest words among those reached if one group after the other grows."""
    best, least, end = sizes, part.words(sizes), sizes
    for group in groups:
        caps = {name: max(part.cuts[name]) for name in group}

        def grown(size: int, end: Blocks = end, caps: Blocks = caps) -> Blocks:
            return end | {name: min(size, cap) for name, cap in caps.items()}

        limit = part.largest(M, grown, max(caps.values()))
        simple = part.words.nonincreasing or not part.words.blocks & set(group)
        # Rows of a workspace take no room in the cache. A search over all their sizes would not end for a large n.
        # What takes no room is also tried where M has room for more, or a larger M could move more.
        free = limit if simple else part.largest(part.room(end), grown, limit)
        halves = [free >> halved for halved in range(1 if simple else free.bit_length())]
        for size in halves if free == limit else halves + _least_in_order(part, M, grown, limit):
            if part.words(grown(size)) <= least:
                best, least = grown(size), part.words(grown(size))
        end = grown(limit)
        if limit < max(caps.values()):
            break
    return best


def _shared(part: Part, M: int, sizes: Blocks, names: list[str], in_order: Blocks) -> Blocks:
    """Choose blocks that compete for the cache, no worse than `in_order`; a larger M never gives worse ones.

    This is true if they are proved to be the best. Otherwise they are the ones of the last level up to M, enlarged
    by steps that do not depend on M.
    """
    caps = {name: max(part.cuts[name]) for name in names}
    for blocks in (in_order, sizes | caps):
        if part.words(blocks) <= least_of_part(part, M) and part.fits(M, blocks):
            return blocks
    few = prod(caps.values()) <= FEW
    if few or part.words.nonincreasing:
        search = BlockSearch(part, part.words, M, names, in_order, sizes)
        if part.words.nonincreasing:
            search.climb()
        if search.prove(FEW if few else MOST_BOXES):
            return search.best
    M = min(M, part.room(sizes | caps))  # no block is larger
    start = tuple(sizes.items())
    blocks = sizes
    for level in _levels(part.room(sizes), M, names):  # each begins with the one before, which is remembered
        blocks = _at_level(part, level, tuple(names), start)
    return min(in_order, _enlarged(part, M, blocks, names), key=part.words)


def _least_in_order(part: Part, M: int, grown: Callable[[int], Blocks], limit: int) -> list[int]:
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
        moved = part.words(grown(_on_grid(middle)))
        if (least is None or moved < least) and part.fits(M, grown(_on_grid(middle))):
            least, cheapest = moved, [_on_grid(middle)]
        for first, end in ((low, middle - 1), (middle + 1, high)):
            if first <= end:
                bound = part.words.least(grown(_on_grid(first)), grown(_on_grid(end)))
                heappush(ranges, (bound, first, end))
    return cheapest


def best(part: Part, M: int, start: Blocks) -> Blocks:
    """Return all blocks, those of this part with the fewest words; `start` is the result of "fit"."""
    names = [name for group in part.groups for name in group if name in part.words.blocks]
    if not names or (len(names) == 1 and (part.words.nonincreasing or max(part.cuts[names[0]]) <= 2 * GRID)):
        return start  # "fit" has looked at all sizes
    if part.words(start) <= least_of_part(part, M):
        return start
    rest = [name for group in part.groups for name in group if name not in names]
    search = BlockSearch(part, part.words, M, names, start, start | dict.fromkeys(rest, 1))
    search.climb(regrow=True)
    search.prove()
    if search.best is start:
        return start
    return part.filled(M, search.best, [[name] for name in rest])


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
    if part.words(smaller) <= least_of_part(part, M):
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
