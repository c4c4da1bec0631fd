"""Compute a topological order of large graphs with compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.jit import kernel


@kernel()
def successors(indptr: Any, preds: Any) -> Any:
    """Return the successors of each vertex in CSR form, in increasing order for each vertex."""
    n = indptr.size - 1
    start = np.zeros(n + 1, dtype=np.int64)
    for e in range(preds.size):
        start[preds[e] + 1] += 1
    for v in range(n):
        start[v + 1] += start[v]
    at = start[:-1].copy()
    succs = np.empty(preds.size, dtype=np.int32)
    for v in range(n):
        for e in range(indptr[v], indptr[v + 1]):
            u = preds[e]
            succs[at[u]] = v
            at[u] += 1
    return start, succs


@kernel()
def topological(indptr: Any, preds: Any) -> NDArray[np.int32]:
    """Return the vertices in topological order, without those on a cycle or after one."""
    start, succs = successors(indptr, preds)
    n = indptr.size - 1
    left = np.empty(n, dtype=np.int64)
    order = np.empty(n, dtype=np.int32)
    done = 0
    for v in range(n):
        left[v] = indptr[v + 1] - indptr[v]
        if left[v] == 0:
            order[done] = v
            done += 1
    at = 0
    while at < done:
        v = order[at]
        at += 1
        for e in range(start[v], start[v + 1]):
            w = succs[e]
            left[w] -= 1
            if left[w] == 0:
                order[done] = w
                done += 1
    return order[:done]
