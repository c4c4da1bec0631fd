"""Compiled loops that compute start orders of large graphs."""

from __future__ import annotations

from typing import Any

import numpy as np

from pebblesim.core.jit import kernel, part


@kernel()
def heights(indptr: Any, preds: Any, order: Any) -> Any:
    """For each vertex: the longest path to it, in edges, and the least and largest source among its ancestors."""
    n = indptr.size - 1
    height = np.zeros(n, dtype=np.int64)
    low, high = np.arange(n), np.arange(n)
    for v in order:
        a, b = indptr[v], indptr[v + 1]
        if a < b:
            low[v], high[v] = n, 0
        for e in range(a, b):
            u = preds[e]
            height[v] = max(height[v], height[u] + 1)
            low[v] = min(low[v], low[u])
            high[v] = max(high[v], high[u])
    return height, low, high


@kernel()
def turns(indptr: Any, preds: Any, order: Any, near: float) -> Any:
    """For each vertex: the most edges from the first of several operands, and from the last, of a path to it.

    On a grid, whose values have one neighbour in each direction as an operand, these are its coordinates.

    Args:
        near: a single operand counts as a last one if its number is at most this much smaller, else as a first one.
    """
    n = indptr.size - 1
    first, last = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    for v in order:
        a, b = indptr[v], indptr[v + 1]
        lowest, highest = n, -1
        for e in range(a, b):
            lowest, highest = min(lowest, preds[e]), max(highest, preds[e])
        single = lowest == highest
        for e in range(a, b):
            u = preds[e]
            is_last = v - u <= near if single else u == highest
            is_first = not is_last if single else u == lowest
            first[v] = max(first[v], first[u] + is_first)
            last[v] = max(last[v], last[u] + is_last)
    return first, last


@part()
def _compute(v: Any, indptr: Any, preds: Any, key: Any, done: Any, stack: Any, out: Any, count: Any) -> Any:
    """Append v after its ancestors, the operand with the largest key first; return the number of vertices in `out`."""
    top = 0
    stack[0] = v
    while top >= 0:
        v = stack[top]
        best = -1
        for e in range(indptr[v], indptr[v + 1]):
            u = preds[e]
            if not done[u] and (best < 0 or key[u] > key[best]):
                best = u
        if best >= 0:
            top += 1
            stack[top] = best
        else:
            done[v] = 1
            out[count] = v
            count += 1
            top -= 1
    return count


@kernel()
def depth_first(indptr: Any, preds: Any, is_input: Any, sinks: Any, key: Any) -> Any:
    """Order vertices as late as their first use allows, the operand with the largest key first."""
    n = indptr.size - 1
    done = is_input.copy()
    out = np.empty(n, dtype=np.int64)
    stack = np.empty(n + 1, dtype=np.int64)
    count = np.int64(0)
    for v in sinks:
        if not done[v]:
            count = _compute(v, indptr, preds, key, done, stack, out, count)
    return out[:count]


@kernel()
def members(indptr: Any, preds: Any, is_input: Any, height: Any, uses: Any, sinks: Any, ends: Any) -> Any:
    """Return vertices, and for each the number of its group: those that its sinks need and earlier groups do not.

    A vertex with a single use is left out, unless it is the highest operand there.

    Args:
        uses: number of computed successors of each vertex.
        sinks, ends: the sinks, and the end of each group of them.
    """
    n = indptr.size - 1
    visited = is_input.copy()
    waits = np.zeros(n, dtype=np.uint8)
    stack = np.empty(n + 1, dtype=np.int64)
    found = np.empty(n, dtype=np.int64)
    group = np.empty(n, dtype=np.int64)
    first, begin = 0, 0
    for number in range(ends.size):
        last = first
        for k in range(begin, ends[number]):
            if visited[sinks[k]]:
                continue
            top = 0
            stack[0] = sinks[k]
            visited[sinks[k]] = 1
            while top >= 0:
                v = stack[top]
                top -= 1
                found[last] = v
                last += 1
                highest = -1
                for e in range(indptr[v], indptr[v + 1]):
                    if highest < 0 or height[preds[e]] > height[highest]:
                        highest = preds[e]
                for e in range(indptr[v], indptr[v + 1]):
                    u = preds[e]
                    waits[u] = uses[u] == 1 and u != highest
                    if not visited[u]:
                        visited[u] = 1
                        top += 1
                        stack[top] = u
        begin = ends[number]
        for k in range(first, last):
            if not waits[found[k]]:
                found[first], group[first] = found[k], number
                first += 1
    return found[:first], group[:first]


@kernel()
def greedy(indptr: Any, preds: Any, succ_start: Any, succs: Any, needed: Any, words: Any, M: int) -> Any:
    """Order vertices so that the next one frees most words and loads fewest, of those that are ready.

    Operands that a vertex uses last are freed; those that are not among the last M words used are loaded. Of equals,
    the vertex with the latest operand comes first.

    Args:
        succ_start, succs: the successors of each vertex.
        needed: the vertices to compute.
        words: the words of each vertex.
    """
    n = indptr.size - 1
    uses, waits, used = np.zeros(n, np.int64), np.zeros(n, np.int64), np.full(n, -1, np.int64)
    there, kept = np.zeros(n, np.uint8), np.empty(n, np.int64)  # whether it is in the cache; the vertices there
    ready, out = np.empty(n, np.int64), np.empty(n, np.int64)
    many, count, inside, held = 0, 0, 0, 0
    for v in range(n):
        if needed[v]:
            for e in range(indptr[v], indptr[v + 1]):
                uses[preds[e]] += 1
                waits[v] += needed[preds[e]]
            if waits[v] == 0:
                ready[many] = v
                many += 1
    while many:
        best, most, latest = -1, 0, -1
        for k in range(many):
            v = ready[k]
            worth, late = 0, -1
            for e in range(indptr[v], indptr[v + 1]):
                u = preds[e]
                worth += words[u] * ((uses[u] == 1) - (there[u] == 0))
                late = max(late, used[u])
            if best < 0 or worth > most or (worth == most and late > latest):
                best, most, latest = k, worth, late
        v = ready[best]
        many -= 1
        ready[best] = ready[many]
        out[count] = v
        for e in range(indptr[v], indptr[v + 1] + 1):
            u = preds[e] if e < indptr[v + 1] else v
            uses[u] -= u != v
            used[u] = count
            if not there[u]:
                there[u] = 1
                kept[inside] = u
                inside += 1
                held += words[u]
        count += 1
        k = 0
        while k < inside:  # what is not used again leaves the cache
            u = kept[k]
            if uses[u] > 0:
                k += 1
                continue
            there[u] = 0
            held -= words[u]
            inside -= 1
            kept[k] = kept[inside]
        while held > M:
            oldest = 0
            for k in range(inside):
                if used[kept[k]] < used[kept[oldest]]:
                    oldest = k
            u = kept[oldest]
            there[u] = 0
            held -= words[u]
            inside -= 1
            kept[oldest] = kept[inside]
        for e in range(succ_start[v], succ_start[v + 1]):
            w = succs[e]
            if needed[w]:
                waits[w] -= 1
                if waits[w] == 0:
                    ready[many] = w
                    many += 1
    return out[:count]
