"""Lower bounds on the I/O to come from a state of the search for the least I/O.

Sets of vertices are rows of 64-bit words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pebblesim.core.jit import kernel, part

_ONE, _ZERO = np.uint64(1), np.uint64(0)


class BitBoard(NamedTuple):
    """The graph and the rules: vertices are numbered in topological order; a row of words is a set of vertices."""

    preds: Any  # predecessors of each vertex
    succs: Any  # successors
    keeps: Any  # for each vertex v: the vertices with a successor that is a descendant of v
    above: Any  # for each vertex: its ancestors
    behind: Any  # for each vertex: its descendants
    early: Any  # for each vertex v: the vertices with a successor that is an ancestor of v
    inputs: Any
    outputs: Any  # the outputs that are not inputs
    degree: Any  # number of predecessors
    edges: Any  # (from, to) of each edge
    base: Any  # for each level of the chain of symmetries: its base point
    level: Any  # for each permutation: its level, in increasing order
    point: Any  # for each permutation: the vertex that it maps to the base point
    image: Any  # for each permutation: the image of each vertex
    M: int
    once: bool


@part()
def popcount(x: Any) -> Any:
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@part()
def has(row: Any, v: int) -> bool:
    return (row[v >> 6] >> np.uint64(v & 63)) & _ONE != _ZERO


@part()
def add(row: Any, v: int) -> None:
    row[v >> 6] |= _ONE << np.uint64(v & 63)


@part()
def of_use(board: BitBoard, undone: Any, computed: Any, worth: Any, useful: Any) -> None:
    """Find the vertices that may have to be computed for these outputs (`worth`), and those with a use (`useful`)."""
    words = undone.size
    succs, inputs = board.succs, board.inputs
    for k in range(words):
        worth[k] = useful[k] = _ZERO
    for v in range(board.degree.size - 1, -1, -1):
        place, bit = v >> 6, _ONE << np.uint64(v & 63)
        for k in range(place, words):
            if succs[v, k] & worth[k]:
                useful[place] |= bit
                break
        if (undone[place] | useful[place]) & ~(inputs[place] | computed[place]) & bit:
            worth[place] |= bit


@part()
def _paths(board: BitBoard, starts: Any, goals: Any, closed: Any, links: Any) -> int:
    """Return the largest number of vertex-disjoint paths from starts up to goals that avoid closed vertices.

    Augmenting paths: place 2v is below vertex v, 2v + 1 above it. Afterwards `links[1]` marks the vertices on paths,
    and `links[0]` has the vertex below each of them, -1 for a start.
    """
    n, words = board.degree.size, closed.size
    below, used, came, queue = links[0], links[1], links[2], links[3]
    for v in range(n):
        used[v] = 0
    total = 0
    for s in range(n):
        if not has(starts, s) or has(closed, s) or (used[s] and below[s] < 0):
            continue
        for place in range(2 * n):
            came[place] = -2
        came[2 * s] = -1
        queue[0], ends, at, goal = 2 * s, 1, 0, -1
        while at < ends and goal < 0:
            place = queue[at]
            at += 1
            v = place >> 1
            if place & 1 == 0 and not used[v]:
                if has(goals, v):
                    goal = place
                elif came[place + 1] == -2:
                    came[place + 1] = place
                    queue[ends] = place + 1
                    ends += 1
                continue
            if place & 1 == 0:
                u = below[v]
                if u >= 0 and came[2 * u + 1] == -2:
                    came[2 * u + 1] = place
                    queue[ends] = 2 * u + 1
                    ends += 1
                continue
            if used[v] and came[2 * v] == -2:
                came[2 * v] = place
                queue[ends] = 2 * v
                ends += 1
            for k in range(words):
                rest = board.preds[v, k] & ~closed[k]
                while rest:
                    low = rest & (~rest + _ONE)
                    rest ^= low
                    w = 2 * ((k << 6) + popcount(low - _ONE))
                    if came[w] == -2:
                        came[w] = place
                        queue[ends] = w
                        ends += 1
        if goal < 0:
            continue
        total += 1
        used[goal >> 1] = 1
        place = goal
        while came[place] >= 0:
            before = came[place]
            v, u = place >> 1, before >> 1
            if u == v:
                used[v] = place & 1
            elif place & 1 == 0:
                below[v] = u
            place = before
        below[s] = -1
    return total


@kernel(allocates=False)
def to_come(board: BitBoard, undone: Any, red: Any, blue: Any, room: Any, links: Any) -> int:
    """Return a lower bound on the I/O to come.

    Each output must be written, and each value that cannot be avoided must be read. Consider a vertex v that must be
    computed, and the values that exist before v is computed and are needed after it. While v is computed, only so many
    of them stay in cache as v and its operands leave places for. Each of the others is read once more, and is written
    before if memory has no copy. Such sums of several vertices add up if the vertices have no such value in common.
    """
    words = undone.size
    preds, inputs, once, n = board.preds, board.inputs, board.once, board.degree.size
    must, reads, over = room[3 * n], room[3 * n + 1], links[0]
    below, clean, dirty = room[:n], room[n : 2 * n], room[2 * n : 3 * n]
    total = 0
    for k in range(words):
        must[k], reads[k] = undone[k], _ZERO
        total += popcount(undone[k])
    for v in range(n - 1, -1, -1):
        if has(must, v):
            for k in range(words):
                absent = preds[v, k] & ~red[k]
                reads[k] |= absent & (inputs[k] | blue[k] if once else inputs[k])
                must[k] |= absent & ~(inputs[k] | blue[k])
    for k in range(words):
        total += popcount(reads[k])
    if not once:
        # A needed value that is in memory is read, or it is computed again from other values that are read.
        wanted, closed = clean[0], dirty[0]
        for k in range(words):
            wanted[k], closed[k] = _ZERO, red[k] | reads[k]
        some = False
        for v in range(n):
            if has(must, v):
                for k in range(words):
                    wanted[k] |= board.preds[v, k] & blue[k] & ~red[k] & ~inputs[k]
                    some |= wanted[k] != _ZERO
        if some:
            total += _paths(board, wanted, inputs, closed, links)
        # below[v]: the vertices that must be computed after v, because they descend from v.
        for v in range(n - 1, -1, -1):
            if not has(must, v):
                continue
            row = below[v]
            for k in range(words):
                row[k] = board.succs[v, k] & must[k]
            for j in range(words):
                next_ones = board.succs[v, j] & must[j]
                while next_ones:
                    low = next_ones & (~next_ones + _ONE)
                    next_ones ^= low
                    w = (j << 6) + popcount(low - _ONE)
                    for k in range(words):
                        row[k] |= below[w, k]
    for v in range(n):
        over[v] = 0
        if not has(must, v):
            continue
        over[v] = 1
        if once:
            for k in range(words):
                later = board.keeps[v, k] & ~preds[v, k]
                copied = inputs[k] | blue[k]
                kept = red[k] & copied
                before = reads[k] & board.early[v, k] & later
                while before:
                    low = before & (~before + _ONE)
                    before ^= low
                    u = (k << 6) + popcount(low - _ONE)
                    for j in range(words):
                        if board.succs[u, j] & board.above[v, j] & must[j]:
                            kept |= low
                            break
                # Outputs are written anyway, so they cost only a read.
                made = must[k] & board.above[v, k]
                clean[v, k] = (kept | (made & board.outputs[k])) & later
                dirty[v, k] = ((red[k] & ~copied) | (made & ~board.outputs[k])) & later
        else:
            for k in range(words):
                clean[v, k] = dirty[v, k] = _ZERO
                there = red[k] & inputs[k] & ~preds[v, k]
                while there:
                    low = there & (~there + _ONE)
                    there ^= low
                    u = (k << 6) + popcount(low - _ONE)
                    for j in range(words):
                        if board.succs[u, j] & below[v, j]:
                            clean[v, k] |= low
                            break
    # Take vertices one by one, each time the one with the largest sum; a value counts only once.
    while True:
        most_moved, best = 0, -1
        for v in range(n):
            if over[v] <= 0:
                continue
            cleans, dirts = 0, 0
            for k in range(words):
                cleans += popcount(clean[v, k])
                dirts += popcount(dirty[v, k])
            over[v] = cleans + dirts - (board.M - board.degree[v] - 1)
            words_moved = over[v] + max(0, over[v] - cleans)
            if over[v] > 0 and words_moved > most_moved:
                most_moved, best = words_moved, v
        if best < 0:
            return total
        total += most_moved
        over[best] = 0
        for k in range(words):
            counted = clean[best, k] | dirty[best, k]
            for v in range(n):
                if over[v] > 0:
                    clean[v, k] &= ~counted
                    dirty[v, k] &= ~counted


@part()
def to_come_once(board: BitBoard, undone: Any, red: Any, blue: Any, room: Any, links: Any) -> int:
    """Return a lower bound on the I/O to come without recomputation; larger than `to_come`, and slower.

    Consider the moment when v is computed. Each path from a value that exists, or from an ancestor of v, to a
    descendant of v contains a value that is alive. So at least as many values are alive as there are vertex-disjoint
    paths (a convex cut, Elango et al. 2014). Each of them for which v and its operands leave no place is read once
    more, and is written before if memory has no copy.
    """
    words = undone.size
    preds, inputs, n = board.preds, board.inputs, board.degree.size
    must, reads, taken = room[0], room[1], room[2]
    starts, goals, closed, copied = room[3], room[4], room[5], room[6]
    below, used, on_best = links[0], links[1], links[4]
    total = 0
    for k in range(words):
        must[k], reads[k], taken[k] = undone[k], _ZERO, _ZERO
        total += popcount(undone[k])
    for v in range(n - 1, -1, -1):
        if has(must, v):
            for k in range(words):
                absent = preds[v, k] & ~red[k]
                reads[k] |= absent & (inputs[k] | blue[k])
                must[k] |= absent & ~(inputs[k] | blue[k])
    for k in range(words):
        total += popcount(reads[k])
    while True:
        most_moved = 0
        for v in range(n):
            if not has(must, v):
                continue
            places = board.M - board.degree[v] - 1
            number = 0
            for k in range(words):
                before = must[k] & board.above[v, k]
                goals[k] = before | red[k]
                twice = reads[k] & board.early[v, k]
                while twice:
                    low = twice & (~twice + _ONE)
                    twice ^= low
                    u = (k << 6) + popcount(low - _ONE)
                    for j in range(words):
                        if board.succs[u, j] & board.above[v, j] & must[j]:
                            goals[k] |= low
                            break
                copied[k] = board.outputs[k] | inputs[k] | blue[k]
                closed[k] = ~(goals[k] | must[k]) | board.behind[v, k] | preds[v, k] | taken[k]
                if k == v >> 6:
                    closed[k] |= _ONE << np.uint64(v & 63)
                starts[k] = board.keeps[v, k] & ~closed[k]
                number += popcount(starts[k])
            if number <= places:
                continue
            over = _paths(board, starts, goals, closed, links) - places
            if over <= 0:
                continue
            clean = 0
            for u in range(n):
                if used[u] and has(goals, u):
                    w = u
                    while w >= 0 and not has(copied, w):
                        w = below[w]
                    clean += w >= 0
            moved = over + max(0, over - clean)
            if moved > most_moved:
                most_moved = moved
                for u in range(n):
                    on_best[u] = used[u]
        if most_moved == 0:
            return total
        total += most_moved
        for u in range(n):
            if on_best[u]:
                add(taken, u)
