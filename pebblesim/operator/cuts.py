"""Parts of a pass whose tables have room: some of the heads that share keys, or some queries of all of them.

A forward pass sums nothing over queries, so that each part is an attention of its own: under a causal mask its last
query is at the last of its keys. In a backward pass each part adds its terms of dK and dV to those of the parts before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

UNIT = 128
"""Queries are cut into multiples of them, which tiles divide, and which are the rows of a block."""

WAVES, FEW, MOST = (1, 2, 4, 8), 8, 64
"""Times all multiprocessors that a part of the queries has blocks, so many that the parts are few, and the most parts.

Under a causal mask the blocks of a shorter part are more alike.
"""

NEARLY = 3, 4
"""The part of a wave, as a fraction, that is worth more than to leave it out, behind others: under a causal mask its
blocks are the short ones."""

KV_HEADS = 1, 2, 4
"""KV heads that are computed at once, where queries are cut: with several of them blocks are more alike."""


class Cut(NamedTuple):
    """The part of a pass that is computed at once.

    Attributes:
        kv_heads: KV heads, of all batches.
        heads: query heads, of those that share keys.
        ends: where parts of the queries of a head end.
        waves: times all multiprocessors that blocks of a part are, at most; 0 if parts are of one size.
    """

    kv_heads: int
    heads: int
    ends: tuple[int, ...]
    waves: int = 0

    @property
    def spans(self) -> list[slice]:
        """The queries of each part."""
        return [slice(*span) for span in pairwise((0, *self.ends))]

    def pattern(self, pattern: Any) -> Any:
        """The pairs of a part, as `Pattern` has them, from those of all."""
        mask = pattern.mask and replace(pattern.mask, rows=self.heads)
        if mask and len(self.ends) > 1:
            mask = replace(mask, at_end=True)
        return pattern._replace(mask=mask, shared=self.heads)

    def keys(self, pattern: Any, n_k: int) -> list[int]:
        """Keys that the queries of each part attend to, from the first one on."""
        return [n_k if pattern.mask is None else end + n_k - self.ends[-1] for end in self.ends]

    def sizes(self, pattern: Any, n_k: int) -> Iterator[tuple[int, int]]:
        """Rows and keys of each part of the queries: rows of all heads that are computed at once."""
        rows = ((span.stop - span.start) * self.heads for span in self.spans)
        return zip(rows, self.keys(pattern, n_k), strict=True)

    def said(self, shared: int) -> str:
        """A part of a sentence: heads or queries that are computed at a time."""
        if self.heads < shared:
            return f"{self.heads:,} of the {shared:,} heads that share keys at a time"
        return f"queries in {len(self.ends):,} parts, of {self.kv_heads:,} KV head{'s' * (self.kv_heads > 1)} at a time"


def cuts(
    pattern: Any,
    n_q: int,
    n_k: int,
    heads: int,
    tables: int,
    room: int,
    units: int,
    sums: int = 0,
    like: Cut | None = None,
) -> Iterator[Cut]:
    """The ways to cut heads that share keys, or queries, so that tables of a part have room.

    Queries are cut without a mask, and under a causal one that ends at the last key.

    Args:
        pattern: the pairs that are allowed.
        n_q, n_k: numbers of queries and keys of a head.
        heads: KV heads in all.
        tables: bytes of the tables of a KV head, of all heads that share it.
        room: bytes that tables and sums may take.
        units: multiprocessors of the card.
        sums: bytes of the sums of a KV head that memory has from one part to the next.
        like: a cut of other lengths, which is cut alike; None for all ways.
    """
    shared, mask = pattern.shared, pattern.mask
    for some in (n for n in range(shared - 1, 0, -1) if shared % n == 0 and tables * n <= (room - sums) * shared):
        if like is None or (like.heads == some and len(like.ends) == 1):
            yield Cut(1, some, (n_q,))
    at_end = n_q == n_k or (n_q < n_k and mask is not None and mask.at_end)
    if mask is None or (at_end and (mask.before, mask.after) == (None, 0)):
        for kv_heads in (n for n in KV_HEADS if heads % n == 0):
            if like is not None and (like.kv_heads != kv_heads or len(like.ends) == 1):
                continue
            pairs = max(0, room - sums * kv_heads) * n_q * n_k // (tables * kv_heads)
            wave = Wave(units, kv_heads * shared)
            for waves, ends in _in_parts(n_q, n_k, mask is not None, wave, pairs, like and like.waves):
                yield Cut(kv_heads, shared, ends, waves)


class Wave(NamedTuple):
    """Tiles of queries whose blocks have a multiprocessor each, `units` / `blocks`: a block more would run alone behind
    them. Tiles are compared with it as integers, since lengths may be expressions.

    Attributes:
        units: multiprocessors.
        blocks: blocks of a tile of queries.
    """

    units: int
    blocks: int

    def whole(self, tiles: int) -> int:
        """Tiles, of `blocks` each, that are at most so many blocks, and at least one: whole waves, but for a last one
        that is nearly full."""
        over, (part, of) = tiles % self.units if tiles > self.units else 0, NEARLY
        return max(1, (tiles if over * of >= part * self.units else tiles - over) // self.blocks)


def _in_parts(
    n_q: int, n_k: int, causal: bool, wave: Wave, pairs: int, like: int | None
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The ends of parts of the queries with this number of pairs at most, and the most waves of each.

    Args:
        like: the waves that are asked for; None for all ways.
    """

    def of(waves: int) -> tuple[int, ...]:
        most = waves * wave.units
        if not waves:
            fewest = len(_ends(n_q, n_k, causal, wave, n_q * wave.blocks, pairs))
            most = -(-n_q // max(1, fewest) // UNIT) * wave.blocks
        return _ends(n_q, n_k, causal, wave, most, pairs)

    first = next((each for each in WAVES if len(of(each)) <= FEW), WAVES[-1])
    several = (first, 2 * first) if causal else (first, 2 * first, 0)
    found = list[tuple[int, ...]]()
    for waves in several if like is None else (like,):
        ends = of(waves)
        if ends not in found and 1 < len(ends) <= MOST:
            yield waves, ends
        found.append(ends)


def _ends(n_q: int, n_k: int, causal: bool, wave: Wave, most: int, pairs: int) -> tuple[int, ...]:
    """The ends of parts of the queries, from the last part on, with so many blocks at most and as there is room for.

    The first part has the rest, together with the next one if there is room. Empty if there is no room for a tile.
    """
    ends, start = list[int](), n_q

    def fitting(end: int) -> int:
        return pairs // _whole(end + n_k - n_q if causal else n_k) // UNIT

    while start > 0:
        ends.append(start)
        tiles = fitting(start)
        if not tiles:
            return ()
        start = _whole(start) - wave.whole(min(most, tiles * wave.blocks)) * UNIT
    if len(ends) > 2 and _whole(ends[-2]) <= fitting(ends[-2]) * UNIT:
        ends.pop()
    return tuple(reversed(ends))


def _whole(n: int) -> int:
    """A number of queries or keys as tiles have them."""
    return -(-n // UNIT) * UNIT
