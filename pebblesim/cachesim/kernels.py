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


@kernel()
def unit_distances(ids: Any, items: int) -> Any:
    """For each request, the number of items used since the last use of its item, including that item; 0 for a first
    use.

    Items lie in slots in the order of their last use, a bit for each slot, and counters for 64 and 64² words of bits.
    """
    slots = 64**2 * max(4, -(-4 * items // 64**2))
    bits, of = np.zeros(slots // 64 + 1, np.uint64), np.empty(slots, np.int32)
    small, middle, large = (
        np.zeros(slots // 64 + 1, np.int32),
        np.zeros(slots // 64**2 + 1, np.int32),
        np.zeros(slots // 64**3 + 1, np.int32),
    )
    at = np.full(items, -1, np.int32)
    distances = np.zeros(len(ids), np.int32)
    top = 0
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
    return distances


@kernel()
def sized_distances(ids: Any, sizes: Any) -> Any:
    """For each request, the words of items used since the last use of its item, including that item; 0 for a first use.

    A Fenwick tree over the slots in which items lie in the order of their last use.
    """
    items = len(sizes)
    slots = max(64, 4 * items)
    tree, of = np.zeros(slots + 1, np.int64), np.full(slots, -1, np.int32)
    at = np.full(items, -1, np.int32)
    distances = np.zeros(len(ids), np.int64)
    top, all_of_them = 0, 0
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
    return distances


@kernel()
def tally(ids: Any, kinds: Any, sizes: Any, kept: Any, distances: Any, capacities: Any) -> Any:
    """For LRU caches of increasing capacities: requests missed, words missed, words fetched, words written back.

    A request hits if its distance is at most the capacity. If an item is written twice, its first value was written
    back if the item was missing at any use in between; the largest of these distances decides. Of an item that is not
    used again and not kept, the first words may be written back, and the others stay to the end.
    """
    edges = len(capacities)
    every = edges > 0 and capacities[0] == 1 and capacities[-1] == edges  # all capacities from 1 on
    counts = np.zeros((4, edges + 1), np.int64)  # by how many of the capacities are too small
    partly = np.zeros(edges, np.int64)  # words written back, by capacity, of items that are not gone as a whole
    furthest = np.full(len(sizes), -1, np.int32)
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
    since, left = 0, len(sizes)  # words used since the last use, backwards
    for t in range(len(ids) - 1, -1, -1):
        x = ids[t]
        if furthest[x] > -2:
            since += sizes[x]
            if furthest[x] >= 0 and (len(kept) == 0 or kept[x]):
                counts[3, edges] += sizes[x]
            elif furthest[x] >= 0:
                away = max(furthest[x], np.searchsorted(capacities, since - sizes[x] + 1))
                counts[3, away] += sizes[x]
                while away < edges and capacities[away] < since:
                    partly[away] += since - capacities[away]
                    away += 1
            furthest[x] = -2
            left -= 1
            if left == 0:
                break
    for row in range(4):
        for k in range(edges, 0, -1):
            counts[row, k - 1] += counts[row, k]
    counts[3, 1:] += partly
    return counts[:, 1:]


@kernel()
def fifo(ids: Any, kinds: Any, sizes: Any, kept: Any, capacity: int) -> Any:
    """(requests missed, words missed, words fetched, words written back) of a FIFO cache, which evicts whole items."""
    items = len(sizes)
    queue = np.empty(len(ids), np.int32)
    inside, dirty = np.zeros(items, np.bool_), np.zeros(items, np.bool_)
    first, last, held = 0, 0, 0
    misses, missed, fetched, written = 0, 0, 0, 0
    for t in range(len(ids)):
        x = ids[t]
        size, kind = sizes[x], kinds[t] if len(kinds) else READ
        if not inside[x]:
            misses += 1
            missed += size
            if kind & READ:
                fetched += size
            while first < last and held + size > capacity:
                y = queue[first]
                first += 1
                inside[y] = False
                held -= sizes[y]
                if dirty[y]:
                    written += sizes[y]
                    dirty[y] = False
            if size <= capacity:
                queue[last] = x
                last += 1
                inside[x] = True
                held += size
        if kind & WRITE:
            if inside[x]:
                dirty[x] = True
            else:
                written += size
    for x in range(items):
        if dirty[x] and (len(kept) == 0 or kept[x]):
            written += sizes[x]
    return misses, missed, fetched, written
