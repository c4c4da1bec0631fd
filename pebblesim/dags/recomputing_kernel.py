"""Compiled loops that plan which values are computed again, and list the steps; see `pebblesim.dags.recomputing`."""

from __future__ import annotations

from typing import Any

import numpy as np

from pebblesim.core.jit import kernel, part

WORD: Any = 1000.0
"""Computations that a word of I/O is worth, when a value has to leave the cache."""


@part()
def _places(v: Any, start: Any, operands: Any, label: Any, held: Any) -> Any:
    """Places that v needs if the operands with large labels come first: each finished one holds a place meanwhile."""
    a, b = start[v], start[v + 1]
    for k in range(b - a):  # insertion sort, largest first
        one, at = label[operands[a + k]], k
        while at > 0 and held[at - 1] < one:
            held[at] = held[at - 1]
            at -= 1
        held[at] = one
    most = b - a + 1
    for k in range(b - a):
        most = max(most, held[k] + k)
    return most


@kernel()
def plan(order: Any, start: Any, operands: Any, is_input: Any, M: int, most: float) -> Any:
    """Return (label, work, stored): places and computations to compute each vertex again, and which values are stored.

    Args:
        order: all vertices, operands first.
        start, operands: the operands of each vertex, each once.
        most: computations above which a value is stored.
    """
    n = is_input.size
    label, work, stored = np.ones(n, np.int64), np.zeros(n), is_input.copy()
    held = np.empty(n + 1, np.int64)
    for v in order:
        if is_input[v]:
            continue
        a, b = start[v], start[v + 1]
        label[v] = _places(v, start, operands, label, held)
        while label[v] > M:
            largest = operands[a]
            for u in operands[a:b]:
                if label[u] > label[largest]:
                    largest = u
            stored[largest], label[largest] = 1, 1
            label[v] = _places(v, start, operands, label, held)
        work[v] = 1.0
        for u in operands[a:b]:
            if not stored[u]:
                work[v] += work[u]
        if work[v] > most:
            stored[v], label[v] = 1, 1
    return label, work, stored


@kernel()
def worths(order: Any, start: Any, operands: Any, is_output: Any, work: Any, stored: Any) -> Any:
    """For each vertex: how often it is used if nothing stays in the cache, times what it costs to have it again."""
    often = np.zeros(stored.size)
    for v in order[::-1]:
        often[v] += is_output[v]
        times = 1.0 if stored[v] else often[v]
        for u in operands[start[v] : start[v + 1]]:
            often[u] += times
    for v in range(often.size):
        often[v] *= WORD if stored[v] else work[v]
    return often


@kernel()
def steps(
    order: Any, start: Any, operands: Any, is_input: Any, is_output: Any, stored: Any, worth: Any, M: int, limit: int
) -> Any:
    """List the vertices in the order in which they are computed, some of them again and again.

    Each value that is stored and each output is computed in turn, with all that is missing for it. What was computed
    stays in the cache until its place is needed; then the value of the least worth leaves.

    Args:
        order: the vertices to compute, operands first.
        operands: the operands of each vertex, those with large labels first.
        limit: the most computations.

    Returns:
        The vertices; none if there are too many, or if the cache is too small.
    """
    n = is_input.size
    out, count = np.empty(limit, np.int32), 0
    cached, locks, done = np.zeros(n, np.uint8), np.zeros(n, np.int64), is_input.copy()
    inside, many = np.empty(M, np.int64), 0
    stack, at = np.empty(n + 1, np.int64), np.empty(n + 1, np.int64)
    for target in order:
        if done[target] or not (stored[target] or is_output[target]):
            continue
        top, stack[0], at[0] = 0, target, start[target]
        while top >= 0:
            v = stack[top]
            is_read = stored[v] and done[v]
            if at[top] < start[v + 1] and not is_read:
                u = operands[at[top]]
                if cached[u]:
                    locks[u] += 1
                    at[top] += 1
                else:
                    top += 1
                    stack[top], at[top] = u, start[u]
                continue
            while many >= M:
                least = -1
                for k in range(many):
                    if locks[inside[k]] == 0 and (least < 0 or worth[inside[k]] < worth[inside[least]]):
                        least = k
                if least < 0:
                    return out[:0]
                cached[inside[least]] = 0
                many -= 1
                inside[least] = inside[many]
            inside[many], cached[v] = v, 1
            many += 1
            if not is_read:
                if count == limit:
                    return out[:0]
                out[count], done[v] = v, 1
                count += 1
                for u in operands[start[v] : start[v + 1]]:
                    locks[u] -= 1
            top -= 1
    return out[:count]
