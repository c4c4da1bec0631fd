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


@kernel(READ, WRITE)
def opt_sized(ids: Any, kinds: Any, sizes: Any, kept: Any, capacity: int) -> Any:
    """(requests missed, words missed, words fetched, words written back) of the optimal cache, word by word.

    Items are used whole, and a request misses if a word of its item does. No policy fetches fewer words. A word may
    bypass the cache. An item that is overwritten before its next read counts as not used again; it is evicted after
    items that are never touched again. An item is used from its first word to
    its last, so its later words are needed later, and its beginning stays longest. When the first word of a dirty item
    leaves, the whole item is written back.
    """
    n, items = len(ids), len(sizes)
    following = next_uses(ids, items)
    begins = _levels(n)
    live, stale = np.zeros(begins[-1], np.uint64), np.zeros(begins[-1], np.uint64)  # by next use: a read, or not
    gone, number_gone = np.empty(items, np.int32), 0  # in cache, and never touched again
    there, dirty = np.zeros(items, np.int64), np.zeros(items, np.bool_)  # words in cache
    held, misses, missed, fetched, written = 0, 0, 0, 0, 0
    for t in range(n):
        x, after = ids[t], following[t]
        size, kind = sizes[x], kinds[t] if len(kinds) else READ
        if there[x]:
            _remove(live if kind & READ else stale, begins, t)
        misses += there[x] < size
        missed += size - there[x]
        if kind & READ:
            fetched += size - there[x]
        rank = 2 if after == n else (0 if (kinds[after] if len(kinds) else READ) & READ else 1)
        coming = min(size - there[x], capacity - held)
        while there[x] + coming < size:
            y, key, other = -1, n, 2
            if number_gone:
                y = gone[number_gone - 1]
            else:
                key, other = _highest(stale, begins), 1
                if key < 0:
                    key, other = _highest(live, begins), 0
                if key >= 0:
                    y = ids[key]
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
    for x in range(items):
        if dirty[x] and (len(kept) == 0 or kept[x]):
            written += sizes[x]
    return misses, missed, fetched, written
