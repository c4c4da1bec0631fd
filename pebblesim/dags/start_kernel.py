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
