"""Parts of a schedule whose blocks are chosen separately: which of their sizes fit into a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, product

from pebblesim.analysis.cache_needed import CacheNeed
from pebblesim.analysis.peak import CHAINS
from pebblesim.analysis.words_moved import Words
from pebblesim.core.bisection import last_that, last_within

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

    def filled(self, M: int, blocks: Blocks, groups: list[list[str]]) -> Blocks:
        """Increase blocks that do not change the words moved, as far as there is space."""
        for group in groups:
            caps = {name: max(self.cuts[name]) for name in group if name not in self.words.blocks}

            def grown(size: int, blocks: Blocks = blocks, caps: Blocks = caps) -> Blocks:
                return blocks | {name: min(size, cap) for name, cap in caps.items()}

            if caps:
                blocks = grown(max(1, self.largest(M, grown, max(caps.values()))))
        return blocks
