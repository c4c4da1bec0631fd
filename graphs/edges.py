"""Check the edges of a user's graph."""

from __future__ import annotations

import graphlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pebblesim.core.errors import UsageError, as_given

Ids = NDArray[np.int64]


class Cyclic(UsageError):
    """The edges form a cycle, from each of these vertices to the next; the first and the last are the same."""

    def __init__(self, cycle: Sequence[int], names: Sequence[str] | None) -> None:
        called = [str(v) if names is None else names[v] for v in cycle]
        shown = called if len(called) <= 12 else [*called[:6], "…", *called[-5:]]
        self.cycle, self.shown = tuple(cycle), " -> ".join(shown)
        super().__init__(f"the edges form the cycle {self.shown}, but a computation must have none.")


def checked_edges(n: int, edges: ArrayLike, names: Sequence[str] | None = None) -> tuple[Ids, Ids]:
    """Return sources and targets of (from, to) pairs between vertices 0 ... n-1, sorted by target in a stable way.

    Errors call a vertex by its name, if names are given.

    Raises:
        UsageError: a vertex is out of range, an edge is not a pair or is given twice, or there is a cycle.
    """
    if isinstance(n, bool) or not isinstance(n, int | np.integer):
        raise UsageError(f"n = {as_given(n)} was given; n must be the number of vertices, and edges come after it.")
    if n < 1:
        raise UsageError(f"a graph needs at least one vertex; {n} were given.")
    pairs = checked_ids(n, edges, "edges")
    if pairs.size and pairs.shape[1:] != (2,):
        raise UsageError("edges must be pairs of vertex numbers (from, to), such as [(0, 2), (1, 2)].")
    source, target = pairs.reshape(-1, 2).T
    order = np.argsort(target, kind="stable")
    source, target = source[order], target[order]
    codes, times = np.unique(target * n + source, return_counts=True)
    if np.any(times > 1):
        v, u = divmod(int(codes[times > 1][0]), n)
        called = range(n) if names is None else names
        raise UsageError(f"the edge from {called[u]} to {called[v]} is given twice; give each edge once.")
    if np.any(source >= target):  # if numbers grow along every edge, there is no cycle
        _refuse_cycle(n, source, target, names)
    return source, target


def edges_once(indptr: NDArray[Any], preds: NDArray[Any]) -> Ids:
    """Return the (from, to) pairs of a graph in CSR form, by target, the left operand first, each pair once.

    An operation may have one operand twice, as x·x has; for games, and in files, that is one edge.
    """
    targets = np.repeat(np.arange(len(indptr) - 1), indptr[1:].astype(np.int64) - indptr[:-1].astype(np.int64))
    sources = preds.astype(np.int64)
    first = np.unique(targets * (len(indptr) - 1) + sources, return_index=True)[1]
    return np.column_stack([sources, targets])[np.sort(first)]


def checked_ids(n: int, ids: ArrayLike, what: str) -> Ids:
    """Return vertex numbers as an array of the same shape.

    Raises:
        UsageError: they are not whole numbers from 0 to n - 1.
    """
    try:
        array = np.asarray(ids)
    except ValueError:  # the rows have different lengths
        array = np.array([None])
    if array.size and array.dtype.kind not in "iu":
        raise UsageError(f"{what} must be an array of whole numbers (for edges: of pairs, such as [(0, 2), (1, 2)]).")
    wrong = array[(array < 0) | (array >= n)]
    if wrong.size:
        raise UsageError(f"{what}: there is no vertex {wrong[0]}; {n} vertices are numbered 0 to {n - 1}.")
    return array.astype(np.int64)


def checked_weights(n: int, weights: ArrayLike | None) -> Ids | None:
    """Return the number of words of each of n vertices; None if each has one word.

    Raises:
        UsageError: the weights are not n positive whole numbers.
    """
    if weights is None:
        return None
    array = np.asarray(weights)
    if array.shape != (n,) or array.dtype.kind not in "iu" or array.min() < 1 or array.max() >= 2**31:
        raise UsageError(
            f"weights are the number of words of each of the {n} vertices: {n} whole numbers, 1 or more, below 2^31."
        )
    return None if (array == 1).all() else array.astype(np.int64)


def _refuse_cycle(n: int, source: Ids, target: Ids, names: Sequence[str] | None) -> None:
    from pebblesim.graphs.topology import topological

    done = np.zeros(n, dtype=np.bool_)
    done[topological(np.append(0, np.cumsum(np.bincount(target, minlength=n))), source)] = True
    if done.all():
        return
    left = ~done[source] & ~done[target]
    before: dict[int, list[int]] = {}
    for u, v in zip(source[left].tolist(), target[left].tolist(), strict=True):
        before.setdefault(v, []).append(u)
    try:
        graphlib.TopologicalSorter(before).prepare()
    except graphlib.CycleError as error:
        raise Cyclic(error.args[1], names) from None
