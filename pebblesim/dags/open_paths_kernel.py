"""Compiled loops that judge cones of a graph by open paths, and pack them; see `pebblesim.dags.open_paths`."""

from __future__ import annotations

from typing import Any

import numpy as np

from pebblesim.core.jit import kernel, part
from pebblesim.dags.places_kernel import leads
from pebblesim.dags.trees_kernel import _cuts

TURNS: Any = 4
"""Kinds of lines: they follow first operands, last ones, second ones, or third ones."""

FAR: Any = 2**40
"""More vertices than any graph has."""

WORSE: Any = 0.8
"""A cone is not grown on if it has less than this share of the reads to a value of the best one of its top."""

_ONE = np.uint64(1)


@part()
def _grown(t: Any, height: int, start: Any, operands: Any, usable: Any, parent: Any, members: Any, ends: Any) -> int:
    """Add to a cone of t the operands of its last level; return the vertices, or -1 if there are too many or no more.

    Each vertex but t gets the use by which it was found as its parent.
    """
    size = ends[height - 1]
    for k in range(ends[height - 2] if height > 1 else 0, ends[height - 1]):
        for u in operands[start[members[k]] : start[members[k] + 1]]:
            if usable[u] and parent[u] < 0 and u != t:
                if size == members.size:
                    for m in range(ends[height - 1], size):
                        parent[members[m]] = -1
                    return -1
                parent[u] = members[k]
                members[size] = u
                size += 1
    return size if size > ends[height - 1] else -1


@part()
def _edges(
    cone: Any, number: Any, start: Any, operands: Any, is_input: Any, first: Any, chosen: Any, outside: Any
) -> None:  # fmt: skip
    """List for each vertex of a cone, operands first, its operands by chosen edges, and count those outside.

    No edge is chosen to a vertex that uses a computed value outside.
    """
    count = 0
    for i in range(cone.size):
        first[i], outside[i], entry = count, 0, False
        for u in operands[start[cone[i]] : start[cone[i] + 1]]:
            if number[u] >= 0:
                chosen[count] = number[u]
                count += 1
            else:
                outside[i] += 1
                entry |= not is_input[u]
        if entry:
            count = first[i]
    first[cone.size] = count


@part()
def _join(bits: Any, more: Any) -> None:
    for word in range(bits.size):
        bits[word] |= more[word]


@part()
def _turn(place: int, many: int) -> int:
    """The kind of the line that an operand follows, by its place among many."""
    return 0 if place == 0 else 1 if place == many - 1 else min(place + 1, TURNS - 1)


@part()
def _lines(size: int, first: Any, chosen: Any, above: Any, source: Any, line: Any) -> None:
    """For each vertex its ancestors, and for each kind of line the vertices and the source of that to the vertex."""
    above[:size] = 0
    line[:, :size] = 0
    for v in range(size):
        a, b = first[v], first[v + 1]
        for u in chosen[a:b]:
            _join(above[v], above[u])
            above[v, u >> 6] |= _ONE << np.uint64(u & 63)
        for turn in range(TURNS):
            source[turn, v] = v
            if a < b:
                u = chosen[a if turn == 0 else b - 1 if turn == 1 else min(a + turn - 1, b - 1)]
                source[turn, v] = source[turn, u]
                _join(line[turn, v], line[turn, u])
            line[turn, v, v >> 6] |= _ONE << np.uint64(v & 63)


@part()
def _free(
    turn: int, x: Any, u: Any, v: Any, size: int, above: Any, source: Any, line: Any, picked: Any, count: int
) -> bool:  # fmt: skip
    """Whether a line to x may be picked for the edge from u to v beside those that are picked."""
    s = source[turn, x]
    if s == u or leads(above, s, u):
        return False
    for k in range(count):
        begin, to = picked[k, 0], picked[k, 1]
        if to == u or (to == v and begin == u) or leads(above, to, u):
            for word in range((size + 63) >> 6):
                if line[picked[k, 2], picked[k, 3], word] & line[turn, x, word]:
                    return False
    return True


@part()
def _pebbles(
    size: int, first: Any, chosen: Any, outside: Any, above: Any, source: Any, line: Any, picked: Any, least: Any
) -> Any:  # fmt: skip
    """The pebbles that the last vertex of a cone needs at least if none of its values is read, and the work.

    The work is lines that were compared.
    """
    _lines(size, first, chosen, above, source, line)
    count, work = 0, size
    for v in range(size):
        a, b = first[v], first[v + 1]
        least[v] = outside[v] + 1 if a == b else FAR
        for e in range(a, b):
            met = 0
            for other in range(a, b):
                natural = _turn(other - a, b - a)
                for more in range(TURNS):
                    turn, x = (natural + more) % TURNS, chosen[other]
                    if other == e or count == picked.shape[0]:
                        break
                    work += count
                    if _free(turn, x, chosen[e], v, size, above, source, line, picked, count):
                        picked[count, 0], picked[count, 1] = chosen[e], v
                        picked[count, 2], picked[count, 3] = turn, x
                        count, met = count + 1, met + 1
                        break
            least[v] = min(least[v], least[chosen[e]] + met)
    return least[size - 1] if first[size - 1] < first[size] else 0, work


@kernel()
def cones(
    targets: Any, place: Any, start: Any, operands: Any, usable: Any, is_input: Any, M: int, most: int, keep: int,
    work: int,
) -> Any:  # fmt: skip
    """Return (ends, members, reads): cones without their tops, of which so many values are read at least.

    Args:
        targets: tops of cones.
        place: of each vertex in a topological order.
        usable: the vertices that may be in a cone.
        most: the most vertices of a cone.
        keep: how many cones of each top are kept, those with most reads to a value.
        work: lines that may be compared; a cone that has begun is judged.
    """
    n, words, widest = place.size, (most + 63) // 64, 1
    for v in targets:
        widest = max(widest, start[v + 1] - start[v])
    edges = most * widest + 1
    parent, root, number = np.full(n, -1, np.int64), np.arange(n), np.full(n, -1, np.int64)
    labels, held, tops = np.zeros(n, np.int64), np.zeros(n + 1, np.int64), np.empty((keep, 2), np.int64)
    members, ends = np.zeros(most, np.int64), np.zeros(most + 2, np.int64)
    first, chosen, outside = np.zeros(most + 1, np.int64), np.zeros(edges, np.int64), np.zeros(most, np.int64)
    above, source = np.zeros((most, words), np.uint64), np.zeros((TURNS, most), np.int64)
    line, picked = np.zeros((TURNS, most, words), np.uint64), np.zeros((4 * most, 4), np.int64)
    least = np.zeros(most, np.int64)
    kept_ends, reads, kept, filled = [0], [0], np.zeros(1024, np.int64), 0
    for t in targets:
        if work < 0:
            break
        height, ends[0], members[0], many = 0, 1, t, 0
        while True:
            height += 1
            size = _grown(t, height, start, operands, usable, parent, members, ends)
            if size < 0:
                break
            ends[height] = size
            if (height + 1) * (widest - 1) + 2 <= M:  # each vertex of a path adds all its other operands at most
                continue
            cone = members[:size][np.argsort(place[members[:size]])]
            for i in range(size):
                number[cone[i]], root[cone[i]] = i, t
            _edges(cone, number, start, operands, is_input, first, chosen, outside)
            asked, spent = _pebbles(size, first, chosen, outside, above, source, line, picked, least)
            asked = max(asked - M, _cuts(cone, start, operands, parent, root, labels, M, held))
            work -= spent
            for i in range(size):
                number[cone[i]], root[cone[i]] = -1, cone[i]
            if asked > 0:  # the best of this top come first
                at = min(many, keep)
                while at > 0 and tops[at - 1, 0] * (size - 1) < asked * (ends[tops[at - 1, 1]] - 1):
                    if at < keep:
                        tops[at] = tops[at - 1]
                    at -= 1
                if at < keep:
                    tops[at, 0], tops[at, 1] = asked, height
                many += 1
                if WORSE * tops[0, 0] * (size - 1) > asked * (ends[tops[0, 1]] - 1):
                    height += 1
                    break
        for k in range(1, ends[height - 1]):
            parent[members[k]] = -1
        for k in range(min(many, keep)):
            size = ends[tops[k, 1]] - 1
            while filled + size > kept.size:
                kept = np.append(kept, np.zeros_like(kept))
            kept[filled : filled + size] = members[1 : size + 1]
            filled += size
            kept_ends.append(filled)
            reads.append(tops[k, 0])
    return np.array(kept_ends), kept[:filled], np.array(reads)[1:]


@kernel()
def packed(ends: Any, members: Any, reads: Any, half: Any, step: float, most: int) -> Any:
    """Return how often each set is taken so that the reads are many beside the largest load of a value.

    Values have prices that grow with their loads. A set is taken again while its values cost little for its reads.

    Args:
        ends, members, reads: the sets, and how many values of each are read.
        half: 2 ÷ the words that a read costs, 1 or 2, for each value: its load by one set.
        step: how much the price of a value grows by a load of 1.
        most: the load at which it ends.
    """
    sets, highest, bar = reads.size, 0, FAR + 0.0
    price, load = half.astype(np.float64), np.zeros(half.size, np.int64)
    now, best, share, total = np.zeros(sets, np.int64), np.zeros(sets, np.int64), 0.0, 0
    while highest < most:
        lowest = 1e300
        for k in range(sets):
            while True:
                cost = 0.0
                for u in members[ends[k] : ends[k + 1]]:
                    cost += price[u]
                if cost > bar * reads[k] or bar == FAR:
                    break
                now[k] += 1
                total += reads[k]
                for u in members[ends[k] : ends[k + 1]]:
                    load[u] += half[u]
                    highest = max(highest, load[u])
                    price[u] *= 1.0 + step * half[u]
            lowest = min(lowest, cost / reads[k])
        bar = (1.0 + step) * lowest
        if highest and total / highest > share:
            share, best = total / highest, now.copy()
    return best
