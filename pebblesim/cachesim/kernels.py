"""The inner loops over a stream of requests, compiled with numba.

Requests name items 0 … items - 1. A request reads its item, overwrites it, or does both. A missing item is fetched if
it is read. A written item is dirty; it is written back when it leaves the cache, or at the end if it is kept. An item
has a size in words. Empty arrays mean the plain case: all requests are reads, and all items are kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from pebblesim.core.jit import kernel

READ, WRITE = 1, 2
ONE = np.uint64(1)


def intrinsic_of(function: Any) -> Any:
    """Numba's decorator `intrinsic`; callers do not pass its first argument, the typing context."""
    return intrinsic(function)


@intrinsic_of
def _ones(_: Any, word: Any) -> Any:
    """Number of 1 bits."""
    return types.uint64(types.uint64), lambda context, builder, signature, args: builder.ctpop(args[0])


@kernel()
def fresh_words(ids: Any, kinds: Any, sizes: Any) -> int:
    """Total words of the items whose first request is a read."""
    requested = np.zeros(len(sizes), np.bool_)
    words = 0
    for t in range(len(ids)):
        x = ids[t]
        if not requested[x]:
            requested[x] = True
            if len(kinds) == 0 or kinds[t] & READ:
                words += sizes[x]
    return words


@kernel()
def next_uses(ids: Any, items: int) -> Any:
    """For each request, the next request of the same item; the number of requests if there is none."""
    n = len(ids)
    following = np.empty(n, np.int32)
    last = np.full(items, n, np.int32)
    for t in range(n - 1, -1, -1):
        following[t] = last[ids[t]]
        last[ids[t]] = t
    return following


@kernel()
def lru(ids: Any, items: int, capacity: int) -> int:
    """Misses of an LRU cache; items have one word, and all requests are reads.

    The stream itself is the queue: an item is in cache if its last use is not before `head`.
    """
    last = np.full(items, -1, np.int32)
    head, held, misses = 0, 0, 0
    for t in range(len(ids)):
        x = ids[t]
        if last[x] < head:
            misses += 1
            if held < capacity:
                held += 1
            else:
                while last[ids[head]] != head:
                    head += 1
                head += 1
        last[x] = t
    return misses


@kernel()
def lru_sized(ids: Any, kinds: Any, sizes: Any, kept: Any, capacity: int) -> Any:
    """(requests missed, words missed, words fetched, words written back) of an LRU, word by word, for items used whole.

    An item of which a word has left the cache misses as a whole when it is used again: while its first words are
    fetched, its last ones leave. If it is not used again, its last words may stay to the end.
    """
    items = len(sizes)
    last, dirty, went_dirty = np.full(items, -1, np.int32), np.zeros(items, np.bool_), np.zeros(items, np.bool_)
    head, held = 0, 0  # items whose last use is before `head` are gone; those from there on hold so many words
    misses, missed, fetched, written = 0, 0, 0, 0
    for t in range(len(ids)):
        x = ids[t]
        size, kind = sizes[x], kinds[t] if len(kinds) else READ
        if last[x] < head:
            misses += 1
            missed += size
            if kind & READ:
                fetched += size
            held += size
            went_dirty[x] = False
        last[x] = t
        if kind & WRITE:
            dirty[x] = True
        while held > capacity:
            y = ids[head]
            if last[y] == head:
                held -= sizes[y]
                if dirty[y]:
                    written += sizes[y]
                    dirty[y], went_dirty[y] = False, True
            head += 1
    while head > 0:  # of what has left the cache, only the last item may have words in it
        head -= 1
        y = ids[head]
        if last[y] == head:
            if went_dirty[y] and len(kept) > 0 and not kept[y]:
                written -= capacity - held
            break
    for x in range(items):
        if dirty[x] and (len(kept) == 0 or kept[x]):
            written += sizes[x]
    return misses, missed, fetched, written


def unit_order(items: int) -> tuple[Any, ...]:
    """Make what `unit_distances` knows: slots in the order of last uses, a bit for each, counters for 64 and 64² words
    of bits, the item of each slot, the slot of each item (-1: not used yet), and how many slots there have been.
    """
    slots = 64**2 * max(4, -(-4 * items // 64**2))
    counters = (np.zeros(slots // 64**level + 1, np.int32) for level in (1, 2, 3))
    of, at = np.empty(slots, np.int32), np.full(items, -1, np.int32)
    return np.zeros(slots // 64 + 1, np.uint64), *counters, of, at, np.zeros(1, np.int64)


@kernel()
def unit_distances(ids: Any, bits: Any, small: Any, middle: Any, large: Any, of: Any, at: Any, tops: Any) -> Any:
    """For each request, the number of items used since the last use of its item, including that item; 0 for a first
    use. The other arguments are those of `unit_order`, which is kept up to date.
    """
    slots, top = len(of), tops[0]
    distances = np.zeros(len(ids), np.int32)
    for t in range(len(ids)):
        if top == slots:  # close the gaps
            top = 0
            for slot in range(slots):
                if (bits[slot >> 6] >> np.uint64(slot & 63)) & ONE:
                    of[top], at[of[slot]] = of[slot], top
                    top += 1
            bits[:], small[:], middle[:], large[:] = 0, 0, 0, 0
            for slot in range(top):
                bits[slot >> 6] |= ONE << np.uint64(slot & 63)
                small[slot >> 6] += 1
                middle[slot >> 12] += 1
                large[slot >> 18] += 1
        x = ids[t]
        slot = at[x]
        if slot >= 0:
            a, b, c = slot >> 6, slot >> 12, slot >> 18
            distance = np.int64(_ones(bits[a] >> np.uint64(slot & 63)))
            for k in range(a + 1, min((b + 1) << 6, (top >> 6) + 1)):
                distance += small[k]
            for k in range(b + 1, min((c + 1) << 6, (top >> 12) + 1)):
                distance += middle[k]
            for k in range(c + 1, (top >> 18) + 1):
                distance += large[k]
            distances[t] = distance
            bits[a] &= ~(ONE << np.uint64(slot & 63))
            small[a] -= 1
            middle[b] -= 1
            large[c] -= 1
        bits[top >> 6] |= ONE << np.uint64(top & 63)
        small[top >> 6] += 1
        middle[top >> 12] += 1
        large[top >> 18] += 1
        of[top], at[x] = x, top
        top += 1
    tops[0] = top
    return distances


def sized_order(items: int) -> tuple[Any, ...]:
    """Make what `sized_distances` knows: a Fenwick tree over the slots in which items lie in the order of last uses,
    the item of each slot (-1: none), the slot of each item (-1: not used yet), the number of slots that there have
    been, and the words of all items used.
    """
    slots = max(64, 4 * items)
    of, at = np.full(slots, -1, np.int32), np.full(items, -1, np.int32)
    return np.zeros(slots + 1, np.int64), of, at, np.zeros(2, np.int64)


@kernel()
def sized_distances(ids: Any, sizes: Any, tree: Any, of: Any, at: Any, numbers: Any) -> Any:
    """For each request, the words of items used since the last use of its item, including that item; 0 for a first use.

    The other arguments are those of `sized_order`, which is kept up to date.
    """
    slots, top, all_of_them = len(of), numbers[0], numbers[1]
    distances = np.zeros(len(ids), np.int64)
    for t in range(len(ids)):
        if top == slots:  # close the gaps
            top = 0
            for slot in range(slots):
                if of[slot] >= 0:
                    y, of[slot] = of[slot], -1
                    of[top], at[y] = y, top
                    top += 1
            tree[:] = 0
            for slot in range(slots):
                if slot < top:
                    tree[slot + 1] += sizes[of[slot]]
                above = slot + 1 + ((slot + 1) & -(slot + 1))
                if above <= slots:
                    tree[above] += tree[slot + 1]
        x = ids[t]
        size, slot = sizes[x], at[x]
        if slot >= 0:
            before, k = 0, slot
            while k:
                before += tree[k]
                k &= k - 1
            distances[t] = all_of_them - before
            k = slot + 1
            while k <= slots:
                tree[k] -= size
                k += k & -k
            of[slot] = -1
        else:
            all_of_them += size
        k = top + 1
        while k <= slots:
            tree[k] += size
            k += k & -k
        of[top], at[x] = x, top
        top += 1
    numbers[0], numbers[1] = top, all_of_them
    return distances


@kernel()
def tally(ids: Any, kinds: Any, sizes: Any, distances: Any, capacities: Any, counts: Any, furthest: Any) -> None:
    """Add requests to the counts of LRU caches of increasing capacities.

    A request hits if its distance is at most the capacity. If an item is written twice, its first value was written
    back if the item was missing at any use in between; the largest of these distances decides.

    Args:
        counts: requests missed, words missed, words fetched and words written back, by how many of the capacities are
            too small: shape (4, capacities + 1).
        furthest: of each item that is dirty, how many of the capacities have been too small since; -1 for others.
    """
    edges = len(capacities)
    every = edges > 0 and capacities[0] == 1 and capacities[-1] == edges  # all capacities from 1 on
    for t in range(len(ids)):
        x = ids[t]
        distance: Any = np.int64(distances[t])  # of 32 or 64 bits
        size, kind = sizes[x], kinds[t] if len(kinds) else READ
        if distance == 0:
            missed = edges
        elif every:
            missed = min(distance - 1, edges)
        else:
            missed = np.searchsorted(capacities, distance)
        counts[0, missed] += 1
        counts[1, missed] += size
        if kind & READ:
            counts[2, missed] += size
        if furthest[x] >= 0:
            furthest[x] = max(furthest[x], missed)
        if kind & WRITE:
            if furthest[x] >= 0:
                counts[3, furthest[x]] += size
            furthest[x] = 0


@kernel()
def tallied(order: Any, sizes: Any, kept: Any, capacities: Any, counts: Any, furthest: Any) -> Any:
    """Return what LRU caches count at the end, shape (4, capacities): requests and words missed, fetched, written back.

    Of an item that is not used again and not kept, the first words may be written back, and the others stay to the end.

    Args:
        order: the items, from the last used.
        counts, furthest: as `tally` leaves them.
    """
    edges = len(capacities)
    partly = np.zeros(edges, np.int64)  # words written back, by capacity, of items that are not gone as a whole
    since = 0  # words used since the last use, backwards
    for x in order:
        since += sizes[x]
        if furthest[x] >= 0 and (len(kept) == 0 or kept[x]):
            counts[3, edges] += sizes[x]
        elif furthest[x] >= 0:
            away = max(furthest[x], np.searchsorted(capacities, since - sizes[x] + 1))
            counts[3, away] += sizes[x]
            while away < edges and capacities[away] < since:
                partly[away] += since - capacities[away]
                away += 1
    for row in range(4):
        for k in range(edges, 0, -1):
            counts[row, k - 1] += counts[row, k]
    counts[3, 1:] += partly
    return counts[:, 1:]


@kernel()
def add_reads(ids: Any, kinds: Any, sizes: Any, distances: Any, begin: int, table: Any, used: Any) -> int:
    """Add the words that requests read to those of their distances, from request `begin` on.

    Args:
        table: an open table of distances, 0 where there is none, and their words: shape (2, a power of 2).
        used: the number of distances in the table, and the words of distance 0: of first uses.

    Returns:
        The request before which the table is half full; their number if it never is.
    """
    keys, words = table[0], table[1]
    mask = len(keys) - 1
    for t in range(begin, len(ids)):
        if len(kinds) and not kinds[t] & READ:
            continue
        size, distance = sizes[ids[t]], np.int64(distances[t])
        if distance == 0:
            used[1] += size
            continue
        slot = (distance * 0x9E3779B97F4A7C1 >> 20) & mask
        while keys[slot] != distance and keys[slot] != 0:
            slot = (slot + 1) & mask
        if keys[slot] == 0:
            if 2 * used[0] >= len(keys):
                return t
            keys[slot] = distance
            used[0] += 1
        words[slot] += size
    return len(ids)


@kernel()
def enlarged(table: Any) -> Any:
    """Return a table of `add_reads` with more room."""
    larger = np.zeros((2, 4 * table.shape[1]), np.int64)
    mask = larger.shape[1] - 1
    for at in range(table.shape[1]):
        distance = table[0, at]
        if distance:
            slot = (distance * 0x9E3779B97F4A7C1 >> 20) & mask
            while larger[0, slot]:
                slot = (slot + 1) & mask
            larger[0, slot], larger[1, slot] = distance, table[1, at]
    return larger


def empty_queue(items: int) -> tuple[Any, ...]:
    """Make what `fifo` knows of a cache: the ring of its items, which are inside and dirty, and the numbers: where the
    ring begins, items and words inside, requests missed, words missed, fetched and written back.
    """
    return np.empty(items, np.int32), np.zeros(items, np.bool_), np.zeros(items, np.bool_), np.zeros(7, np.int64)


@kernel()
def fifo(ids: Any, kinds: Any, sizes: Any, capacity: int, ring: Any, inside: Any, dirty: Any, numbers: Any) -> None:
    """Bring what `empty_queue` returns up to date with requests to a FIFO cache, which evicts whole items."""
    first, number, held = numbers[0], numbers[1], numbers[2]
    misses, missed, fetched, written = 0, 0, 0, 0
    for t in range(len(ids)):
        x = ids[t]
        size, kind = sizes[x], kinds[t] if len(kinds) else READ
        if not inside[x]:
            misses += 1
            missed += size
            if kind & READ:
                fetched += size
            while number and held + size > capacity:
                y = ring[first]
                first, number = (first + 1) % len(ring), number - 1
                inside[y] = False
                held -= sizes[y]
                if dirty[y]:
                    written += sizes[y]
                    dirty[y] = False
            if size <= capacity:
                ring[(first + number) % len(ring)] = x
                number += 1
                inside[x] = True
                held += size
        if kind & WRITE:
            if inside[x]:
                dirty[x] = True
            else:
                written += size
    numbers[0], numbers[1], numbers[2] = first, number, held
    for at, more in enumerate((misses, missed, fetched, written)):
        numbers[3 + at] += more
