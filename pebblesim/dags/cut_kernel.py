"""Minimum convex vertex cuts: the least number of values that are alive while a vertex is computed."""

from __future__ import annotations

from typing import Any

import numpy as np

from pebblesim.core.jit import kernel


@kernel()
def wavefront(pred_start: Any, preds: Any, succ_start: Any, succs: Any, x: int, enough: int) -> int:
    """The least number of vertices of S with a successor outside S, over all down-closed S with x and no descendant of
    x.

    It finds vertex-disjoint paths from the ancestors of x to its descendants one by one. In the flow network each
    vertex v has two nodes (`v` in, `n + v` out). The arc from in to out has capacity 1. The arcs along an edge from out
    to in, and against an edge from in to in, have unlimited capacity. The search stops at `enough` paths.
    """
    n = pred_start.size - 1
    above, below = np.zeros(n, dtype=np.uint8), np.zeros(n, dtype=np.uint8)
    stack = np.empty(2 * n + 1, dtype=np.int64)
    for up in (True, False):
        reach = above if up else below
        start, ends = (pred_start, preds) if up else (succ_start, succs)
        top = 0
        stack[0] = x
        reach[x] = 1
        while top >= 0:
            v = stack[top]
            top -= 1
            for e in range(start[v], start[v + 1]):
                if not reach[ends[e]]:
                    reach[ends[e]] = 1
                    top += 1
                    stack[top] = ends[e]
    below[x] = 0
    # Flow: through v (in to out), along each edge e (of succs: out to in), back along each edge (in to in).
    through = np.zeros(n, dtype=np.uint8)
    along, back = np.zeros(succs.size, dtype=np.int64), np.zeros(succs.size, dtype=np.int64)
    at_pred = np.empty(preds.size, dtype=np.int64)  # for each edge in preds, its index in succs
    fill = pred_start[:-1].copy()
    for v in range(n):
        for e in range(succ_start[v], succ_start[v + 1]):
            w = succs[e]
            at_pred[fill[w]] = e
            fill[w] += 1
    source_of = np.empty(preds.size, dtype=np.int64)
    for v in range(n):
        for e in range(succ_start[v], succ_start[v + 1]):
            source_of[e] = v
    came = np.full(2 * n, -1, dtype=np.int64)
    flow = 0
    while flow < enough:
        came[:] = -1
        top = -1
        for v in range(n):
            if above[v]:
                came[v] = -2
                top += 1
                stack[top] = v
        reached = -1
        while top >= 0 and reached < 0:
            node = stack[top]
            top -= 1
            v = node if node < n else node - n
            if node < n:
                if below[v]:
                    reached = v
                    break
                if not through[v] and came[n + v] == -1:
                    came[n + v] = node
                    top += 1
                    stack[top] = n + v
                for e in range(pred_start[v], pred_start[v + 1]):
                    k = at_pred[e]
                    u = source_of[k]
                    if came[u] == -1:  # against an edge: unlimited
                        came[u] = node
                        top += 1
                        stack[top] = u
                    if along[k] > 0 and came[n + u] == -1:  # undo flow along the edge
                        came[n + u] = node
                        top += 1
                        stack[top] = n + u
                for k in range(succ_start[v], succ_start[v + 1]):
                    w = succs[k]
                    if back[k] > 0 and came[w] == -1:  # undo flow against the edge
                        came[w] = node
                        top += 1
                        stack[top] = w
            else:
                if came[v] == -1:  # from out to in: unlimited
                    came[v] = node
                    top += 1
                    stack[top] = v
                for k in range(succ_start[v], succ_start[v + 1]):
                    w = succs[k]
                    if came[w] == -1:
                        came[w] = node
                        top += 1
                        stack[top] = w
        if reached < 0:
            return flow
        node = reached
        while came[node] != -2:
            before = came[node]
            if before < n and node == before + n:
                through[before] = 1
            elif before >= n and node == before - n:
                through[node] = 0
            elif before >= n:
                v, w = before - n, node
                for k in range(succ_start[v], succ_start[v + 1]):
                    if succs[k] == w:
                        along[k] += 1
            elif node >= n:
                u, w = node - n, before
                for k in range(succ_start[u], succ_start[u + 1]):
                    if succs[k] == w:
                        along[k] -= 1
            else:
                # From in to in: against an edge node -> before, or undo flow that went against the edge from node to
                # before.
                undone = False
                for k in range(succ_start[before], succ_start[before + 1]):
                    if succs[k] == node and back[k] > 0:
                        back[k] -= 1
                        undone = True
                if not undone:
                    for k in range(succ_start[node], succ_start[node + 1]):
                        if succs[k] == before:
                            back[k] += 1
            node = before
        flow += 1
    return flow
