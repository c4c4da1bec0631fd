"""The inner loop of the exhaustive search, apart so that numba is imported only when it is asked for.

Vertices are bits of 64-bit masks. A step of the search computes one vertex: it makes room, reads those predecessors
that are not red, computes, and writes the result if it is an output that has not been written. Nothing is lost by it:
a game can be rearranged, without more I/O, so that every pebble is read just before it is used, taken away only when
its place is needed, and written, unless it is an output, just before it is taken away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOUND, NONE, FULL = range(3)  # how a search ends

_ONE, _ZERO = np.uint64(1), np.uint64(0)


@njit(cache=True, inline="always")
def _bit(v: Any) -> Any:
    return _ONE << np.uint64(v)


@njit(cache=True)
def _popcount(x: Any) -> Any:
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit(cache=True)
def _of_use(order: Any, succs: Any, inputs: Any, undone: Any, computed: Any) -> Any:
    """(vertices worth computing, vertices whose value is of use) while these outputs are not written."""
    worth, useful = _ZERO, _ZERO
    for i in range(order.size - 1, -1, -1):
        v = _bit(order[i])
        if succs[order[i]] & worth:
            useful |= v
        if (undone | useful) & ~(inputs | computed) & v:
            worth |= v
    return worth, useful


@njit(cache=True)
def _to_come(order: Any, preds: Any, inputs: Any, undone: Any, red: Any, blue: Any, once: Any) -> Any:
    """I/O that is still to come in any case: a write of each output, a read of each value there is no way around."""
    must, reads = undone, _ZERO
    for i in range(order.size - 1, -1, -1):
        v = order[i]
        if must & _bit(v):
            absent = preds[v] & ~red
            reads |= absent & (inputs | blue if once else inputs)
            must |= absent & ~(inputs | blue)
    return _popcount(undone) + _popcount(reads)


@njit(cache=True)
def _slot(table: Any, reds: Any, blues: Any, dones: Any, red: Any, blue: Any, done: Any) -> Any:
    """Where in the hash table a state is, or would be."""
    mask = np.uint64(table.size - 1)
    h = (
        red * np.uint64(0x9E3779B97F4A7C15)
        ^ blue * np.uint64(0xC2B2AE3D27D4EB4F)
        ^ done * np.uint64(0x165667B19E3779F9)
    )
    h ^= h >> np.uint64(29)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(32)
    at = h & mask
    while table[at] >= 0:
        node = table[at]
        if reds[node] == red and blues[node] == blue and dones[node] == done:
            break
        at = (at + _ONE) & mask
    return at


@njit(cache=True)
def search(
    preds: NDArray[np.uint64],
    succs: NDArray[np.uint64],
    order: NDArray[np.int64],
    inputs: np.uint64,
    outputs: np.uint64,
    M: int,
    once: bool,
    limit: int,
    below: int,
) -> tuple[int, int, int, Any, Any, Any, Any]:
    """The least I/O of a game, by A*: states in the order of the I/O so far and the I/O that is to come in any case.

    Args:
        preds, succs: masks of each vertex's predecessors and successors; an input is nobody's successor.
        order: all vertices, in topological order.
        inputs, outputs: masks.
        M: red pebbles, at least one more than any vertex has predecessors.
        once: whether each vertex is computed at most once.
        limit: most states that are kept.
        below: games with that I/O or more are of no interest.

    Returns:
        How it ended, the least I/O, the last state, and for each state the one before it; if a game was found, also
        the vertex computed on the way, its red pebbles, and its blue ones on vertices that are no inputs.
    """
    reds = np.empty(limit, dtype=np.uint64)
    blues = np.empty(limit, dtype=np.uint64)
    dones = np.zeros(limit, dtype=np.uint64)  # computed vertices, if that matters; else 0
    parents = np.empty(limit, dtype=np.int32)
    vias = np.empty(limit, dtype=np.int8)
    costs = np.empty(limit, dtype=np.int32)
    closed = np.zeros(limit, dtype=np.uint8)
    size = 1
    while size < 2 * limit:
        size *= 2
    table = np.full(size, -1, dtype=np.int32)
    entries = 2 * limit
    entry_node = np.empty(entries, dtype=np.int32)
    entry_next = np.empty(entries, dtype=np.int32)
    free = 0
    heads = np.full(below, -1, dtype=np.int32)
    members = np.empty(64, dtype=np.uint64)
    chosen = np.empty(64, dtype=np.int64)

    reds[0], blues[0], parents[0], vias[0], costs[0] = _ZERO, _ZERO, -1, -1, 0
    nodes = 1
    table[_slot(table, reds, blues, dones, _ZERO, _ZERO, _ZERO)] = 0
    f = _to_come(order, preds, inputs, outputs, _ZERO, _ZERO, once)
    if f >= below:
        return NONE, 0, 0, parents[:nodes], vias[:1], reds[:1], blues[:1]
    entry_node[0], entry_next[0], heads[f] = 0, -1, 0
    free = 1

    while f < heads.size:
        entry = heads[f]
        if entry < 0:
            f += 1
            continue
        heads[f] = entry_next[entry]
        node = entry_node[entry]
        if closed[node]:
            continue
        closed[node] = 1
        red, blue, cost = reds[node], blues[node], costs[node]
        done = dones[node]
        undone = outputs & ~blue
        if undone == _ZERO:
            return FOUND, cost, node, parents[:nodes], vias[:nodes], reds[:nodes], blues[:nodes]
        worth, _ = _of_use(order, succs, inputs, undone, done)
        held = _popcount(red)
        for i in range(order.size):
            v = order[i]
            if not worth & _bit(v) or red & _bit(v):
                continue
            absent = preds[v] & ~red
            if absent & ~(inputs | blue):
                continue
            step = _popcount(absent)
            new_blue, new_undone = blue, undone
            if undone & _bit(v):
                step += 1
                new_blue |= _bit(v)
                new_undone &= ~_bit(v)
            new_done = done | _bit(v) if once else _ZERO
            _, useful = _of_use(order, succs, inputs, new_undone, new_done)
            spare = red & ~preds[v]
            evict = held + _popcount(absent) + 1 - M
            # Those that are of no use any more go first, and for nothing.
            useless = spare & ~useful
            evict = max(0, evict - _popcount(useless))
            spare &= useful
            count = 0
            rest = spare
            while rest:
                members[count] = rest & (~rest + _ONE)
                rest &= rest - _ONE
                count += 1
            if evict > count:
                continue
            kept = (red & useful) | ((preds[v] | _bit(v)) & useful)
            for k in range(evict):
                chosen[k] = k
            while True:
                gone = _ZERO
                for k in range(evict):
                    gone |= members[chosen[k]]
                at_stake = gone & ~(blue | inputs)
                new_red = kept & ~gone
                writes = at_stake  # runs over the subsets, all of them first
                while True:
                    b = (new_blue | writes) & (useful | outputs)
                    total = cost + step + _popcount(writes)
                    rank = total + _to_come(order, preds, inputs, new_undone, new_red, b, once)
                    at = _slot(table, reds, blues, dones, new_red, b, new_done)
                    other = table[at]
                    if other < 0 and rank < below:
                        if nodes == limit:
                            return FULL, 0, 0, parents[:nodes], vias[:1], reds[:1], blues[:1]
                        other = nodes
                        nodes += 1
                        table[at] = other
                        reds[other], blues[other] = new_red, b
                        if once:
                            dones[other] = new_done
                        costs[other] = total + 1
                    if rank < below and total < costs[other] and not closed[other]:
                        costs[other], parents[other], vias[other] = total, node, v
                        if free == entries:
                            return FULL, 0, 0, parents[:nodes], vias[:1], reds[:1], blues[:1]
                        entry_node[free], entry_next[free] = other, heads[rank]
                        heads[rank] = free
                        free += 1
                    if once or writes == _ZERO:
                        break
                    writes = (writes - _ONE) & at_stake
                k = evict - 1
                while k >= 0 and chosen[k] == count - evict + k:
                    k -= 1
                if k < 0:
                    break
                chosen[k] += 1
                for j in range(k + 1, evict):
                    chosen[j] = chosen[j - 1] + 1
    return NONE, 0, 0, parents[:nodes], vias[:1], reds[:1], blues[:1]
