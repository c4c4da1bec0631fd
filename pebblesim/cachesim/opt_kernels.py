"""The inner loops of the optimal cache (Belady: evict the item used latest), compiled with numba.

Requests and items are as in `pebblesim.cachesim.kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from pebblesim.cachesim.kernels import READ, WRITE, intrinsic_of, next_uses
from pebblesim.core.jit import kernel, part

ONE = np.uint64(1)


@intrinsic_of
def _zeros_above(_: Any, word: Any) -> Any:
    """Number of zeros above the highest bit that is set."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], context.get_constant(types.boolean, True))

    return types.uint64(types.uint64), generate


@kernel()
def _levels(n: int) -> Any:
    """Where each level of a tree of bits begins that has n leaves; a node says whether a word below has a bit."""
    begins = np.zeros(8, np.int64)
    depth, width = 0, n
    while True:
        width = width // 64 + 1
        begins[depth + 1] = begins[depth] + width
        depth += 1
        if width == 1:
            return begins[: depth + 1]


@part()
def _insert(tree: Any, begins: Any, key: int) -> None:
    for level in range(len(begins) - 1):
        word = begins[level] + (key >> 6)
        before = tree[word]
        tree[word] = before | (ONE << np.uint64(key & 63))
        if before:
            return
        key >>= 6


@part()
def _remove(tree: Any, begins: Any, key: int) -> None:
    for level in range(len(begins) - 1):
        word = begins[level] + (key >> 6)
        tree[word] &= ~(ONE << np.uint64(key & 63))
        if tree[word]:
            return
        key >>= 6


@part()
def _highest(tree: Any, begins: Any) -> int:
    """The largest key, -1 if there is none."""
    if not tree[begins[-2]]:
        return -1
    key: Any = 0
    for level in range(len(begins) - 2, -1, -1):
        key = (key << 6) | (63 - np.int64(_zeros_above(tree[begins[level] + key])))
    return key


@kernel()
def opt(ids: Any, items: int, capacity: int) -> int:
    """Misses of the optimal cache (Belady: evict the item used latest); items have one word, and all requests are
    reads.

    The tree holds the next use of each item in cache, so the request at t finds its item if the bit of t is set. Keys
    that have passed are smaller than all others and need not be removed.
    """
    n = len(ids)
    following = next_uses(ids, items)
    begins = _levels(n)
    tree = np.zeros(begins[-1], np.uint64)
    held, dead, misses = 0, 0, 0  # `dead` are held, and not used again
    for t in range(n):
        if not (tree[t >> 6] >> np.uint64(t & 63)) & ONE:
            misses += 1
            if held < capacity:
                held += 1
            elif dead:
                dead -= 1
            else:
                _remove(tree, begins, _highest(tree, begins))
        if following[t] < n:
            _insert(tree, begins, following[t])
        else:
            dead += 1
    return misses


def coming_uses(items: int, requests: int) -> Any:
    """The next use of each item, behind the last of so many requests: none."""
    return np.full(items, 2 * requests, np.int32)


@kernel(READ)
def outside(ids: Any, kinds: Any, begin: int, coming: Any) -> Any:
    """Return the next uses behind a piece of requests, of the items in it, by their last uses, the last first.

    A use is two times the number of its request, and one more if it does not read the item.

    Args:
        begin: the number of the first request.
        coming: the next use of each item behind the piece, which becomes that from its first request on.
    """
    behind, used = np.empty(len(ids), np.int32), 0
    for t in range(len(ids) - 1, -1, -1):
        x = ids[t]
        if coming[x] >= 2 * (begin + len(ids)):
            behind[used] = coming[x]
            used += 1
        coming[x] = 2 * (begin + t) + (len(kinds) > 0 and not kinds[t] & READ)
    return behind[:used].copy()


@kernel(READ)
def next_uses_of(ids: Any, kinds: Any, begin: int, coming: Any, behind: Any) -> Any:
    """Return the next use of the item of each request of a piece, by what `outside` returned for it.

    `coming` may have any earlier uses of items, and is changed.
    """
    following, used = np.empty(len(ids), np.int32), 0
    for t in range(len(ids) - 1, -1, -1):
        x = ids[t]
        if 2 * (begin + t) < coming[x] - 1 and coming[x] < 2 * (begin + len(ids)):
            following[t] = coming[x]
        else:
            following[t] = behind[used]
            used += 1
        coming[x] = 2 * (begin + t) + (len(kinds) > 0 and not kinds[t] & READ)
    return following


@part()
def _slot(keys: Any, key: int) -> int:
    """Where a key is in an open table, or where it would be; -1 stands for none, and the size is a power of 2."""
    slot = (key * 0x9E3779B97F4A7C1 >> 20) & (len(keys) - 1)
    while keys[slot] != key and keys[slot] != -1:
        slot = (slot + 1) & (len(keys) - 1)
    return slot


@part()
def _forget(keys: Any, items: Any, key: int) -> None:
    """Remove a key, and move up those behind it that would not be found across the gap."""
    mask = len(keys) - 1
    gap = _slot(keys, key)
    slot = (gap + 1) & mask
    while keys[slot] != -1:
        home = (keys[slot] * 0x9E3779B97F4A7C1 >> 20) & mask
        if (slot - home) & mask >= (slot - gap) & mask:
            keys[gap], items[gap] = keys[slot], items[slot]
            gap = slot
        slot = (slot + 1) & mask
    keys[gap] = -1


def empty_cache(requests: int, items: int, capacity: int) -> tuple[Any, ...]:
    """Make what `opt_sized` knows of a cache: the trees of the next uses of its items, of reads and of others; the
    table from these uses to the items; the items that are never touched again; the words of each item inside, and which
    are dirty; the numbers: items never touched again, words inside, requests missed, words missed, fetched and written
    back.
    """
    begins = _levels(requests)
    room = 2 ** (2 * min(items, capacity) + 2).bit_length()
    keys, of = np.full(room, -1, np.int64), np.empty(room, np.int32)
    live, stale = np.zeros(begins[-1], np.uint64), np.zeros(begins[-1], np.uint64)
    there, dirty = np.zeros(items, np.int64), np.zeros(items, np.bool_)
    return begins, live, stale, keys, of, np.empty(items, np.int32), there, dirty, np.zeros(6, np.int64)


@kernel(READ, WRITE)
def opt_sized(
    ids: Any,
    kinds: Any,
    sizes: Any,
    capacity: int,
    begin: int,
    requests: int,
    following: Any,
    begins: Any,
    live: Any,
    stale: Any,
    keys: Any,
    of: Any,
    gone: Any,
    there: Any,
    dirty: Any,
    numbers: Any,
) -> None:
    """Bring what `empty_cache` returns up to date with a piece of requests to the optimal cache, word by word.

    Items are used whole, and a request misses if a word of its item does. No policy fetches fewer words. A word may
    bypass the cache. An item that is overwritten before its next read counts as not used again; it is evicted after
    items that are never touched again. An item is used from its first word to
    its last, so its later words are needed later, and its beginning stays longest. When the first word of a dirty item
    leaves, the whole item is written back.

    Args:
        begin: the number of the first request.
        requests: that of all requests of the stream.
        following: the next uses, as `next_uses_of` returns them.
    """
    number_gone, held = numbers[0], numbers[1]
    misses, missed, fetched, written = 0, 0, 0, 0
    for t in range(len(ids)):
        x, after = ids[t], following[t] >> 1
        size, kind = sizes[x], kinds[t] if len(kinds) else READ
        if there[x]:
            _remove(live if kind & READ else stale, begins, begin + t)
            _forget(keys, of, begin + t)
        misses += there[x] < size
        missed += size - there[x]
        if kind & READ:
            fetched += size - there[x]
        rank = 2 if after == requests else following[t] & 1
        coming = min(size - there[x], capacity - held)
        while there[x] + coming < size:
            y, key, other = -1, requests, 2
            if number_gone:
                y = gone[number_gone - 1]
            else:
                key, other = _highest(stale, begins), 1
                if key < 0:
                    key, other = _highest(live, begins), 0
                if key >= 0:
                    y = of[_slot(keys, key)]
            if y < 0 or rank > other or (rank == other and after >= key):
                break  # nothing in cache is needed later than x: the rest passes by
            share = min(there[y], size - there[x] - coming)
            there[y] -= share
            held -= share
            coming += share
            if dirty[y]:
                written += sizes[y]
                dirty[y] = False
            if there[y] == 0:
                if other == 2:
                    number_gone -= 1
                else:
                    _remove(stale if other else live, begins, key)
                    _forget(keys, of, key)
        there[x] += coming
        held += coming
        if kind & WRITE:
            dirty[x] = there[x] == size
            if not dirty[x]:
                written += size
        if there[x] == 0:
            continue
        if rank == 2:
            gone[number_gone] = x
            number_gone += 1
        else:
            _insert(stale if rank else live, begins, after)
            slot = _slot(keys, after)
            keys[slot], of[slot] = after, x
    numbers[0], numbers[1] = number_gone, held
    for at, more in enumerate((misses, missed, fetched, written)):
        numbers[2 + at] += more
