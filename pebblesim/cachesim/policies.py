"""Simulate an automatic cache on a stream of requests: words fetched and written back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pebblesim.cachesim.requests import READ, AnyStream, Stream, StreamInParts
from pebblesim.cachesim.reuse import Reuse
from pebblesim.core.errors import UnknownName, UsageError

POLICIES = ("lru", "opt", "fifo")

LARGEST = 2**62
"""A cache of this many words holds everything; a larger one behaves the same."""


@dataclass(frozen=True)
class Misses:
    """The result of one cache.

    Attributes:
        policy, M: "lru", "opt" or "fifo", of M words.
        requests, misses: number of requests, and of those that miss at least a part of their item.
        missed_words: number of words that are missed, to be read or overwritten.
        fetched: words read from memory; overwriting an item fetches nothing.
        written: words written back to memory, including the needed ones at the end.
    """

    policy: str
    M: int
    requests: int
    misses: int
    missed_words: int
    fetched: int
    written: int

    @property
    def io(self) -> int:
        """Words fetched + words written back."""
        return self.fetched + self.written


def misses(stream: AnyStream, capacities: Sequence[int], policy: str = "lru", ways: int | None = None) -> list[Misses]:
    """Simulate caches of these sizes, in words, on a stream.

    Args:
        stream: see `pebblesim.cachesim.requests`; in parts for caches of one set.
        capacities: sizes in words; LRU needs one pass for all of them.
        policy: "lru", "opt" or "fifo".
        ways: lines in a set; the set of a line is its number modulo the number of sets. By default there is one set.
            All items must have one size, that of a line.

    Raises:
        UnknownName: the policy is not known.
        UsageError: a size is less than a line, or not a whole number of sets, or items are not lines.
    """
    if policy not in POLICIES:
        raise UnknownName("policy", policy, POLICIES)
    rooms = rooms_of(stream, capacities)
    if ways is not None:
        assert isinstance(stream, Stream)
        counts = [_in_sets(stream, room, policy, ways) for room in rooms]
    elif policy == "lru" and (len(rooms) > 1 or not isinstance(stream, Stream)):
        counts = lru_counts(stream, rooms).T.tolist()
    else:
        counts = [_one(stream, room, policy) for room in rooms]
    return results(stream, policy, capacities, counts)


def lru_counts(stream: AnyStream, capacities: Sequence[int]) -> Any:
    """Requests and words missed, words fetched and written back by an LRU of each capacity: shape (4, capacities)."""
    return Reuse.of(stream, capacities).counts


def rooms_of(stream: AnyStream, capacities: Sequence[int]) -> list[int]:
    """Return cache sizes in units of the stream.

    Raises:
        UsageError: one is less than a line.
    """
    rooms = [min(M // stream.unit, LARGEST) for M in capacities]
    if not all(rooms):
        raise UsageError(f"a cache of {min(capacities):,} words holds no line of {stream.unit} words.")
    return rooms


def results(stream: AnyStream, policy: str, capacities: Sequence[int], counts: Iterable[Sequence[int]]) -> list[Misses]:
    """Return what is counted for each cache size in units of the stream, in words."""
    unit = stream.unit
    return [
        Misses(policy, M, len(stream), missed, *(units * unit for units in moved))
        for M, (missed, *moved) in zip(capacities, counts, strict=True)
    ]


def _one(stream: AnyStream, room: int, policy: str) -> tuple[int, ...]:
    """Misses, and what is missed, fetched and written, in units."""
    from pebblesim.cachesim import kernels, opt_kernels

    if policy == "lru" or (policy == "opt" and isinstance(stream, Stream) and stream.plain):
        assert isinstance(stream, Stream)
        if stream.plain:
            missed = int((kernels.lru if policy == "lru" else opt_kernels.opt)(stream.ids, len(stream.sizes), room))
            return missed, missed, missed, 0
        return tuple(map(int, kernels.lru_sized(stream.ids, stream.kinds, stream.sizes, stream.kept, room)))
    *_, dirty, numbers = (_fifo if policy == "fifo" else _opt)(stream, room)
    needed = dirty & stream.kept if len(stream.kept) else dirty
    *counts, written = numbers[-4:].tolist()
    return *counts, written + int(stream.sizes[needed].sum())


def _fifo(stream: AnyStream, room: int) -> tuple[Any, ...]:
    from pebblesim.cachesim import kernels

    cache = kernels.empty_queue(len(stream.sizes))
    for ids, kinds in stream.pieces():
        kernels.fifo(ids, kinds, stream.sizes, room, *cache)
    return cache


def _opt(stream: AnyStream, room: int) -> tuple[Any, ...]:
    """A pass backwards keeps the next uses that are not in the piece itself; the other goes through the cache."""
    from pebblesim.cachesim import opt_kernels

    requests, begin = len(stream), len(stream)
    coming = opt_kernels.coming_uses(len(stream.sizes), requests)
    behind: list[Any] = []
    for ids, kinds in stream.pieces(backwards=True):
        begin -= len(ids)
        behind.append(opt_kernels.outside(ids, kinds, begin, coming))
    cache = opt_kernels.empty_cache(requests, len(stream.sizes), room)
    for ids, kinds in stream.pieces():
        following = opt_kernels.next_uses_of(ids, kinds, begin, coming, behind.pop())
        opt_kernels.opt_sized(ids, kinds, stream.sizes, room, begin, requests, following, *cache)
        begin += len(ids)
    return cache


def _in_sets(stream: Stream, room: int, policy: str, ways: int) -> tuple[int, ...]:
    line = int(stream.sizes.max(initial=1))
    if (stream.sizes != line).any():
        raise UsageError(
            "items of different sizes cannot be in sets; give a line size with --line, or leave --ways out."
        )
    sets, rest = divmod(room, ways * line)
    if rest or not sets:
        raise UsageError(
            f"a cache of {room * stream.unit:,} words is not a whole number of sets of {ways} x {stream.unit * line} "
            f"words; use a multiple of {ways * stream.unit * line:,}."
        )
    counts = [(0, 0, 0, 0), *(_one(part, ways, policy) for part in _sets(stream, sets))]
    missed, *moved = map(sum, zip(*counts, strict=True))
    return missed, *(lines * line for lines in moved)


def _sets(stream: Stream, sets: int) -> Iterator[Stream]:
    """Yield the stream of each set that has items, with items numbered from 0, each a line."""
    numbers = np.arange(len(stream.sizes)) if stream.numbers is None else stream.numbers
    home = np.unique(numbers % sets, return_inverse=True)[1]
    items, requests = np.argsort(home, kind="stable"), np.argsort(home[stream.ids], kind="stable")
    used = np.arange(home.max(initial=-1) + 2)
    first, begin = np.searchsorted(home[items], used), np.searchsorted(home[stream.ids][requests], used)
    place = np.empty(len(items), np.int32)
    place[items] = np.arange(len(items)) - first[home[items]]
    for number in used[:-1]:
        mine, here = requests[begin[number] : begin[number + 1]], items[first[number] : first[number + 1]]
        yield Stream(
            place[stream.ids[mine]],
            stream.kinds[mine] if len(stream.kinds) else stream.kinds,
            np.ones(len(here), np.int64),
            stream.kept[here] if len(stream.kept) else stream.kept,
        )


def in_lines(stream: StreamInParts, words: int) -> StreamInParts:
    """A stream of single words as one of lines of so many words; matrices start at a line, row after row.

    A missing line is fetched as a whole, even to overwrite one word.
    """
    if words == 1:
        return stream
    line, kept = np.zeros(len(stream.sizes), np.int32), [np.empty(0, bool)]
    first = 0
    for place in stream.places:
        line[place.first : place.first + place.items] = first + np.arange(place.items) // words
        lines = -(-place.items // words)
        first += lines
        kept.append(np.full(lines, place.kept))
    parts = stream.renamed(line, READ)
    return StreamInParts(parts, np.ones(first, np.int64), np.concatenate(kept), unit=words)


def compulsory(stream: Stream) -> int:
    """Words that any cache must fetch: those whose first request is a read."""
    from pebblesim.cachesim import kernels

    return int(kernels.fresh_words(stream.ids, stream.kinds, stream.sizes)) * stream.unit
