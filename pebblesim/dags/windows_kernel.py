"""Fronts of a graph, where each vertex lies between them, and the values that are needed between any two of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pebblesim.core.jit import kernel


@kernel()
def fronts(order: Any, start: Any, preds: Any, slack: int) -> Any:
    """Number the vertices to compute by depth, from 1 on, if a path through them is at most so much below the longest.

    Others have 0. So each of a number above 1 has an operand of the number before.
    """
    n = start.size - 1
    above, below, place = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    for v in order:
        above[v] = 1
        for e in range(start[v], start[v + 1]):
            above[v] = max(above[v], above[preds[e]] + 1)
    for at in range(order.size - 1, -1, -1):
        v = order[at]
        for e in range(start[v], start[v + 1]):
            below[preds[e]] = max(below[preds[e]], below[v] + 1)
    longest = 0
    for v in order:
        longest = max(longest, above[v] + below[v])
    for v in order:
        if above[v] + below[v] >= longest - slack:
            place[v] = above[v]
    return place


@kernel()
def behind(order: Any, start: Any, preds: Any, place: Any) -> Any:
    """For each vertex the last front in which it is or has an ancestor; 0 if there is none."""
    found = place.copy()
    for v in order:
        for e in range(start[v], start[v + 1]):
            found[v] = max(found[v], found[preds[e]])
    return found


@kernel()
def up_to(above: Any, order: Any, place: Any, places: int) -> Any:
    """For each vertex the first front all of whose vertices it leads to, or in which it is alone.

    It is the last place, the end of the game, if there is none, and 0 for what is not computed.
    """
    n = above.shape[0]
    common = np.full((places, above.shape[1]), ~np.uint64(0), dtype=np.uint64)
    number, last = np.zeros(places, dtype=np.int64), np.zeros(places, dtype=np.int64)
    for v in order:
        if place[v]:
            common[place[v]] &= above[v]
            number[place[v]] += 1
            last[place[v]] = v
    found = np.zeros(n, dtype=np.int64)
    for v in order:
        found[v] = places - 1
        for k in range(places - 2, 0, -1):
            alone = number[k] == 1 and last[k] == v
            if number[k] and (alone or (common[k, v >> 6] >> np.uint64(v & 63)) & np.uint64(1)):
                found[v] = k
    return found


@kernel()
def needed(values: Any, use_start: Any, uses: Any, place: Any, behind: Any, up_to: Any, places: int) -> Any:
    """For fronts i < j, how many of some values exist before i and are used by what is computed at i, or then up to j.

    Place 0 is the start of the game, where only inputs exist.
    """
    need = np.zeros((places, places), dtype=np.int64)
    soonest = np.empty(places, dtype=np.int64)
    for u in values:
        soonest[:] = places
        for e in range(use_start[u], use_start[u + 1]):
            v = uses[e]
            soonest[behind[v]] = min(soonest[behind[v]], up_to[v])
        best = places
        exists = up_to[u] + 1 if place[u] and place[u] == up_to[u] else up_to[u]
        for i in range(places - 1, exists - 1, -1):
            best = min(best, soonest[i])
            if best < places:
                need[i, best] += 1
    for i in range(places):
        for j in range(1, places):
            need[i, j] += need[i, j - 1]
    return need


@kernel()
def most_reads(need: Any, M: int) -> int:
    """The largest sum, over windows that follow each other, of what each needs less M - 1, the first less nothing."""
    places = need.shape[0]
    best = np.zeros(places, dtype=np.int64)
    for j in range(1, places):
        best[j] = need[0, j]
        for i in range(1, j):
            best[j] = max(best[j], best[i] + max(0, need[i, j] - M + 1))
    return best[places - 1]
