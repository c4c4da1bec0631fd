"""Rows of the linear program of `pebblesim.dags.places`: a value that loses its place between two events is read."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pebblesim.core.jit import kernel, part

_ONE = np.uint64(1)


@kernel()
def ancestors(order: Any, start: Any, preds: Any) -> Any:
    """Return the ancestors of each vertex, as bits of a row of 64-bit words; `order` is topological."""
    n = start.size - 1
    above = np.zeros((n, (n + 63) // 64), dtype=np.uint64)
    for v in order:
        for e in range(start[v], start[v + 1]):
            u = preds[e]
            for k in range(above.shape[1]):
                above[v, k] |= above[u, k]
            above[v, u >> 6] |= _ONE << np.uint64(u & 63)
    return above


@part()
def leads(above: Any, u: int, v: int) -> bool:
    """Whether u is an ancestor of v."""
    return (above[v, u >> 6] >> np.uint64(u & 63)) & _ONE != np.uint64(0)


@kernel()
def behind_all(above: Any, firsts: Any, vertices: Any) -> Any:
    """For each vertex, whether all of `firsts` are its ancestors."""
    behind = np.ones(vertices.size, dtype=np.bool_)
    for i in range(vertices.size):
        for u in firsts:
            behind[i] = behind[i] and leads(above, u, vertices[i])
    return behind


@kernel()
def neighbours(above: Any, start: Any, events: Any, values: Any) -> Any:
    """For each value, the pairs (p, q) of its events that may follow each other: no event must lie between.

    If p and q are in neither order, both (p, q) and (q, p) are there, one behind the other.

    Returns:
        Rows of value, p, q, and whether the pair is the second one of the same two events.
    """
    number = 0
    for value in range(values.size):
        m = start[value + 1] - start[value]
        number += m * m
    pairs = np.empty((number, 4), dtype=np.int32)
    number = 0
    for value in range(values.size):
        first, last = start[value], start[value + 1]
        for a in range(first, last):
            for b in range(a + 1, last):
                p, q = events[a], events[b]
                if leads(above, q, p):
                    p, q = q, p
                ordered = leads(above, p, q)
                near = True
                for c in range(first, last):
                    near = near and not (leads(above, p, events[c]) and leads(above, events[c], q))
                if near:
                    pairs[number] = (value, p, q, 0)
                    number += 1
                    if not ordered:
                        pairs[number] = (value, q, p, 1)
                        number += 1
    return pairs[:number]


@part()
def _matters(above: Any, used: Any, moments: Any, i: int, u: int, p: int, q: int) -> bool:
    """Whether moment i may lie between p and q, and u may be absent."""
    x = moments[i]
    return not used[i, u] and x != u and not leads(above, q, x) and not leads(above, x, p)


@kernel()
def rows_of_moments(above: Any, used: Any, moments: Any, values: Any, pairs: Any) -> Any:
    """The number of rows that each moment brings; `used[i, u]` says whether moment i uses u."""
    number = np.zeros(moments.size, dtype=np.int64)
    for e in range(pairs.shape[0]):
        u = values[pairs[e, 0]]
        for i in range(moments.size):
            number[i] += _matters(above, used, moments, i, u, pairs[e, 1], pairs[e, 2])
    return number


class Names(NamedTuple):
    """Columns of the variables of some moments; a variable gets one when it is first used.

    Attributes:
        moments: the moments.
        place: index of each vertex among the moments, -1 for others.
        order: column of [moment before v] for vertices in neither order, -1 if it has none yet.
        kept: column of [u is red at a moment], -1 if it has none yet.
        meaning: what each column stands for: (-1, x, v), x is before v, or (index of x, u, x), u is red at x.
        first: the first of these columns.
        free: in its one element, how many there are.
    """

    moments: Any
    place: Any
    order: Any
    kept: Any
    meaning: Any
    first: int
    free: Any


def names(moments: Any, vertices: int, first: int, most: int) -> Names:
    """Return no names yet, for some moments of a graph with a number of vertices, and at most so many columns."""
    place = np.full(vertices, -1, dtype=np.int64)
    place[moments] = np.arange(len(moments))
    shape = len(moments), vertices
    order, kept = np.full(shape, -1, dtype=np.int32), np.full(shape, -1, dtype=np.int32)
    meaning = np.empty((most, 3), dtype=np.int32)
    return Names(moments, place, order, kept, meaning, first, np.zeros(1, dtype=np.int64))


@part()
def _before(above: Any, names: Names, i: int, v: int) -> tuple[int, int, int]:
    """Return [moment i before v] as (column or -1, coefficient, constant)."""
    x = names.moments[i]
    if leads(above, x, v):
        return -1, 0, 1
    if v == x or leads(above, v, x):
        return -1, 0, 0
    a, b, sign, constant = i, v, 1, 0
    if 0 <= names.place[v] < i:  # [x before v] = 1 - [v before x]
        a, b, sign, constant = names.place[v], x, -1, 1
    if names.order[a, b] < 0:
        new = names.free[0]
        names.order[a, b] = names.first + new
        names.meaning[new, 0], names.meaning[new, 1], names.meaning[new, 2] = -1, names.moments[a], b
        names.free[0] += 1
    return names.order[a, b], sign, constant


@part()
def _kept(names: Names, i: int, u: int) -> int:
    if names.kept[i, u] < 0:
        new = names.free[0]
        names.kept[i, u] = names.first + new
        names.meaning[new, 0], names.meaning[new, 1], names.meaning[new, 2] = i, u, names.moments[i]
        names.free[0] += 1
    return names.kept[i, u]


@kernel()
def reads_between(above: Any, used: Any, names: Names, values: Any, pairs: Any, size: int) -> Any:
    """The rows [x before q] - [x before p] - kept[u, x] - read[u, p, q] <= b, for all pairs and moments that matter.

    Args:
        size: number of the rows. The column of read[u, p, q] is the number of its pair.

    Returns:
        For each row the columns of its four terms (-1 for none), their coefficients, b, the number of its pair, and x.
    """
    terms, signs = np.full((size, 4), -1, dtype=np.int32), np.zeros((size, 4), dtype=np.int8)
    right = np.zeros(size, dtype=np.int64)
    pair, moment = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    row = 0
    for e in range(pairs.shape[0]):
        u, p, q = values[pairs[e, 0]], pairs[e, 1], pairs[e, 2]
        for i in range(names.moments.size):
            x = names.moments[i]
            if not _matters(above, used, names.moments, i, u, p, q):
                continue
            terms[row, 0], signs[row, 0], constant = _before(above, names, i, q)
            right[row] -= constant
            terms[row, 1], sign, constant = _before(above, names, i, p)
            signs[row, 1] = -sign
            right[row] += constant
            terms[row, 2], signs[row, 2] = _kept(names, i, u), -1
            terms[row, 3], signs[row, 3] = e, -1
            pair[row], moment[row] = e, x
            row += 1
    return terms, signs, right, pair, moment
