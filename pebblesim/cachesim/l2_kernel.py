"""The loops of an L2 that many thread blocks share, compiled by numba: order of requests, lines of tiles, the L2."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import Any

import numpy as np

from pebblesim.cachesim.requests import READ, WRITE
from pebblesim.core.jit import kernel, part


@kernel()
def take_turns(starts: Any, wait: Any, spend: Any, blocks: Any, at_once: int) -> Any:
    """Return the requests of many thread blocks in order of time, as (number in `blocks`, request), and the place from
    0 to `at_once` - 1 of each block.

    Block b makes the requests starts[b] … starts[b + 1] - 1, one after the other: `wait` is its time before each, and
    `spend` the time that each takes. `at_once` blocks run at the same time, in the order of `blocks`; when one ends,
    the next one starts in its place.
    """
    total = 0
    for b in blocks:
        total += starts[b + 1] - starts[b]
    who, what = np.empty(total, np.int32), np.empty(total, np.int32)
    places, free, idle = np.zeros(len(blocks), np.int32), np.arange(at_once - 1, -1, -1), at_once
    queue = [(0.0, 0, 0) for _ in range(0)]  # when, which of `blocks`, its next request
    coming, done = 0, 0
    now = 0.0
    while done < total:
        while coming < len(blocks) and idle:
            first = starts[blocks[coming]]
            if first < starts[blocks[coming] + 1]:
                idle -= 1
                places[coming] = free[idle]
                heappush(queue, (now + wait[first], coming, first))
            coming += 1
        now, block, request = queue[0]
        who[done], what[done] = block, request
        done += 1
        now += spend[request]
        if request + 1 < starts[blocks[block] + 1]:
            heapreplace(queue, (now + wait[request + 1], block, request + 1))
        else:
            heappop(queue)
            free[idle] = places[block]
            idle += 1
    return who, what, places


@kernel()
def lines_of(order: Any, sides: Any, first: Any, rows: Any, units: Any, stride: Any, kinds: Any) -> Any:
    """Return the requests of tiles, line by line, in the order of the tiles, as (line, sectors, kind, side).

    A line has four sectors, and a request's sectors are bits. A tile is `rows` runs of `units` sectors, from sector
    `first` on, `stride` apart; `sides` are those of the tiles in `order`.
    """
    total = 0
    for n in order:
        for row in range(rows[n]):
            start = first[n] + row * stride[n]
            total += ((start + units[n] - 1) >> 2) - (start >> 2) + 1
    ids, sectors = np.empty(total, np.int32), np.empty(total, np.uint8)
    each, on = np.empty(total, np.uint8), np.empty(total, np.uint8)
    at = 0
    for place in range(len(order)):
        n = order[place]
        for row in range(rows[n]):
            start = first[n] + row * stride[n]
            stop = start + units[n]
            for line in range(start >> 2, ((stop - 1) >> 2) + 1):
                ids[at] = line
                sectors[at] = (1 << min(stop - 4 * line, 4)) - (1 << max(start - 4 * line, 0))
                each[at], on[at] = kinds[n], sides[place]
                at += 1
    return ids, sectors, each, on


@part()
def _take(links: Any, x: int) -> None:
    """Take an entry out of its queue."""
    before, after = links[x, 0], links[x, 1]
    links[before, 1], links[after, 0] = after, before


@part()
def _append(links: Any, end: int, x: int) -> None:
    """Put an entry at the end of a queue; links[end] leads to its last and first."""
    last = links[end, 0]
    links[last, 1], links[end, 0] = x, x
    links[x, 0], links[x, 1] = last, end


@part()
def _bits(parts: int) -> int:
    return (parts & 1) + (parts >> 1 & 1) + (parts >> 2 & 1) + (parts >> 3 & 1)


@kernel(READ, WRITE)
def through(
    ids: Any,
    parts: Any,
    kinds: Any,
    sides: Any,
    home: Any,
    group: Any,
    size: Any,
    unit: Any,
    kept: Any,
    room: Any,
    soilable: Any,
) -> Any:
    """Return the bytes (read from memory, written to memory) of requests to an L2 of two partitions.

    Requests name items, `parts` of them as bits, and come from a side. Item x consists of the pieces U·x … U·x + U - 1,
    where U is the number of pieces over that of items. A piece has `size` bytes, `unit` for each of its parts, a home,
    and a group of sets in each partition. Group g of partition p keeps the room[p, g] bytes that were used last.

    A piece is looked for on the side of the request; what is missing there, at its home; what is missing there, in
    memory. It then is in both. So are written pieces, which are dirty at home. A group has at most soilable[p, g] dirty
    bytes; the dirty pieces used longest ago are written. A piece that is written from the side of its home is dropped
    on the other side.
    """
    pieces, groups, U = len(home), room.shape[1], len(home) // len(kept)
    links = np.empty((2 * (pieces + groups), 2), np.int32)  # of all pieces in each partition, by age
    ages = np.empty((pieces + 2 * groups, 2), np.int32)  # of dirty pieces, by age
    for end in range(2 * groups):
        links[2 * pieces + end, :] = 2 * pieces + end
        ages[pieces + end, :] = pieces + end
    there, dirty = np.zeros(2 * pieces, np.uint8), np.zeros(pieces, np.uint8)  # parts
    held, soiled = np.zeros(2 * groups, np.int64), np.zeros(2 * groups, np.int64)
    read, written = 0, 0
    for t in range(len(ids)):
        for x in range(ids[t] * U, ids[t] * U + U):
            wanted = parts[t]
            for p in (sides[t], home[x]):
                at, g = p * pieces + x, p * groups + group[x, p]
                before = there[at]
                if before:
                    _take(links, at)
                else:
                    held[g] += size[x]
                _append(links, 2 * pieces + g, at)
                there[at] = before | wanted
                while held[g] > room[p, group[x, p]]:
                    oldest = links[2 * pieces + g, 1]
                    _take(links, oldest)
                    there[oldest] = 0
                    y = oldest - p * pieces
                    held[g] -= size[y]
                    if home[y] == p and dirty[y]:
                        _take(ages, y)
                        soiled[g] -= size[y]
                        written += _bits(dirty[y]) * unit[y]
                        dirty[y] = 0
                if p == home[x]:
                    if kinds[t] & READ:
                        read += _bits(wanted & ~before) * unit[x]
                    if dirty[x]:
                        _take(ages, x)
                    elif kinds[t] & WRITE and there[at]:
                        soiled[g] += size[x]
                    if kinds[t] & WRITE:
                        if there[at]:
                            dirty[x] |= wanted
                        else:
                            written += _bits(wanted) * unit[x]
                    if dirty[x]:
                        _append(ages, pieces + g, x)
                    while soiled[g] > soilable[p, group[x, p]]:
                        oldest = ages[pieces + g, 1]
                        _take(ages, oldest)
                        soiled[g] -= size[oldest]
                        written += _bits(dirty[oldest]) * unit[oldest]
                        dirty[oldest] = 0
                    other = (1 - p) * pieces + x
                    if kinds[t] & WRITE and sides[t] == p and there[other]:
                        _take(links, other)
                        there[other] = 0
                        held[(1 - p) * groups + group[x, 1 - p]] -= size[x]
                    break
                if not kinds[t] & WRITE:
                    wanted &= ~before
                    if not wanted:
                        break
    for x in range(pieces):
        if kept[x // U]:
            written += _bits(dirty[x]) * unit[x]
    return read, written
