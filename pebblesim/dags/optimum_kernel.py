"""The loop of the search for the least I/O; a separate module, so that numba is imported only if it is used.

Sets of vertices are rows of 64-bit words. A step of the search computes one vertex: it makes room, reads the
predecessors that are not red, computes, and writes the result if it is an output that has not been written. Such steps
are enough. Every game can be rearranged, without more I/O, so that each value is read just before it is used, deleted
only when its place is needed, and, unless it is an output, written just before it is deleted.

States that a symmetry of the graph maps to each other have the same key and count as one state. The state that is
stored is one that its parent really leads to, so that a path of stored states is a game.

The search can stop at any time: `Tree` holds all its data, and the least rank of a waiting state is a lower bound.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pebblesim.core.jit import kernel, part
from pebblesim.dags.optimum_bounds_kernel import BitBoard, add, has, of_use, popcount, to_come, to_come_once

FOUND, NONE, FULL, GOES_ON = range(4)  # the result of a call

WAITS, CLOSED, LOOKED_AT = range(3)  # the status of a state

_ONE, _ZERO = np.uint64(1), np.uint64(0)


class Tree(NamedTuple):
    """All states, and lists of the waiting ones by rank: I/O so far + lower bound on the I/O to come."""

    states: Any  # a row each for the red, the blue and the computed vertices
    keys: Any  # equal for states that a symmetry maps to each other; without symmetries, the states themselves
    parents: Any
    vias: Any  # the vertex that is computed on the way from the parent
    costs: Any
    closed: Any  # the status of each state
    table: Any  # hash table of keys
    recent: Any  # recent states with their I/O; a state that is reached again with no less I/O is skipped
    entry: Any  # waiting states, in lists by rank
    follows: Any
    heads: Any
    count: Any  # number of states, number of entries, current rank, steps: states expanded or estimated
    place: Any  # where the last expansion stopped: state, its I/O, the vertex computed, writes among the deleted values


class Room(NamedTuple):
    """Work space of the search."""

    sets: Any  # rows: 16 for the state at hand and its follower, then those of the bounds
    states: Any  # a state and its key
    hashes: Any  # of the vertices
    links: Any  # of paths
    lists: Any  # of vertices


def room_for(vertices: int, words: int) -> Room:
    """Work space for a graph of so many vertices, and sets of so many words."""
    return Room(
        sets=np.zeros((23 + 3 * vertices, words), dtype=np.uint64),
        states=np.zeros((2, 3 * words), dtype=np.uint64),
        hashes=np.empty((3, vertices), dtype=np.uint64),
        links=np.empty((5, 2 * vertices), dtype=np.int64),
        lists=np.empty((5, vertices + 1), dtype=np.int64),
    )


@part()
def _slot(table: Any, states: Any, state: Any) -> Any:
    """Return the place in the hash table where a state is, or would be inserted."""
    mask = np.uint64(table.size - 1)
    h = _ZERO
    for k in range(state.size):
        h = (h ^ state[k]) * np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(29)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(32)
    at = np.int64(h & mask)
    while table[at] >= 0:
        node = table[at]
        same = True
        for k in range(state.size):
            if states[node, k] != state[k]:
                same = False
                break
        if same:
            break
        at = np.int64(np.uint64(at + 1) & mask)
    return at


@part()
def _canonical(board: BitBoard, state: Any, key: Any, hashes: Any, at: Any) -> None:
    """Return the image of a state under some symmetry, usually the same image for all states that are symmetric.

    Each vertex gets a hash of its own pebbles and those of its neighbourhood. Level by level, the vertex with the least
    hash in the orbit of the base point is mapped to the base point. If several vertices have the least hash, symmetric
    states may get different images; the search is then slower, but still correct.
    """
    n, words = board.degree.size, board.inputs.size
    mine, sums = hashes[0], hashes[1]
    for v in range(n):
        place, shift = v >> 6, np.uint64(v & 63)
        colour = _ONE
        for k in range(3):
            colour = colour << _ONE | (state[k * words + place] >> shift) & _ONE
        mine[v] = _mixed(colour)
        at[v] = v
    for _ in range(3):
        for v in range(n):
            sums[v] = mine[v] * np.uint64(0x9E3779B97F4A7C15)
        for e in range(board.edges.shape[0]):
            u, v = board.edges[e, 0], board.edges[e, 1]
            sums[v] += _mixed(mine[u])
            sums[u] += _mixed(mine[v] ^ np.uint64(0x94D049BB133111EB))
        for v in range(n):
            mine[v] = _mixed(sums[v])
    first, moved = 0, hashes[2]
    for level in range(board.base.size):
        best, least, last = -1, mine[at[board.base[level]]], first
        while last < board.level.size and board.level[last] == level:
            value = mine[at[board.point[last]]]
            if value < least:
                best, least = last, value
            last += 1
        if best >= 0:
            for p in range(n):
                moved[board.image[best, p]] = np.uint64(at[p])
            for p in range(n):
                at[p] = np.int64(moved[p])
        first = last
    for k in range(3 * words):
        key[k] = _ZERO
    for p in range(n):
        place, shift = p >> 6, np.uint64(p & 63)
        v = at[p]
        for k in range(3):
            bit = (state[k * words + (v >> 6)] >> np.uint64(v & 63)) & _ONE
            key[k * words + place] |= bit << shift


@part()
def _seen(recent: Any, state: Any, cost: int) -> Any:
    """Whether this state was reached recently with no more I/O; otherwise record it."""
    size = state.size
    h = _ZERO
    for k in range(size):
        h = _mixed(h ^ state[k])
    row = recent[np.int64(h & np.uint64(recent.shape[0] - 1))]
    same = np.int64(row[size]) <= cost
    for k in range(size):
        same &= row[k] == state[k]
        row[k] = state[k]
    row[size] = np.uint64(cost)
    return same


@part()
def _mixed(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel(allocates=False)
def rehash(table: Any, keys: Any, nodes: int) -> None:
    """Fill an empty hash table with all keys."""
    for node in range(nodes):
        table[_slot(table, keys, keys[node])] = node


@part()
def _forced(board: BitBoard, worth: Any, red: Any, blue: Any, held: int) -> int:
    """Return a vertex that can be computed at once without loss, or -1.

    All its operands are red, and there is a place for it. If vertices may be computed again, this is enough: the place
    can be freed again at no cost. Otherwise one of two conditions must hold. It is an output without successors.
    Or one of its operands has no copy in memory and no other use: then the result can take the place of that operand in
    the rest of the game.
    """
    words = red.size
    if held >= board.M:
        return -1
    for v in range(board.degree.size):
        if not has(worth, v) or has(red, v):
            continue
        ready, used = True, False
        for k in range(words):
            if board.preds[v, k] & ~red[k]:
                ready = False
                break
            used |= (board.succs[v, k] & worth[k]) != _ZERO
        if not ready:
            continue
        if not used or not board.once:
            return v
        for k in range(words):
            single = board.preds[v, k] & ~(board.inputs[k] | blue[k])
            while single:
                low = single & (~single + _ONE)
                single ^= low
                u = (k << 6) + popcount(low - _ONE)
                others = False
                for j in range(words):
                    left = board.succs[u, j] & worth[j]
                    if j == v >> 6:
                        left &= ~(_ONE << np.uint64(v & 63))
                    if left:
                        others = True
                        break
                if not others:
                    return v
    return -1


@part()
def _ended(tree: Tree, nodes: int, free: int, rank: int, steps: int, how: int, last: int) -> Any:
    """Record what a call has reached, and return its result."""
    tree.count[0], tree.count[1], tree.count[2] = nodes, free, rank
    tree.count[3] += steps
    return how, last


@kernel(allocates=False)
def search(board: BitBoard, tree: Tree, room: Room, budget: int) -> Any:
    """Begin or continue the search for a number of states, expanded or estimated; return (result, last state).

    A state may have millions of followers. If the budget ends among them, a later call goes on at this place, unless it
    stopped at another state meanwhile: then it expands the state again, and skips those that it knows. States of rank
    `tree.heads.size` or more are ignored. `FULL` means that there is no room for more states.
    """
    n, words = board.degree.size, board.inputs.size
    inputs, outputs, preds, M, once = board.inputs, board.outputs, board.preds, board.M, board.once
    states, keys, costs, closed, heads = tree.states, tree.keys, tree.costs, tree.closed, tree.heads
    table, limit, entries, place = tree.table, tree.parents.size, tree.entry.size, tree.place
    nodes, free, f, began = tree.count[0], tree.count[1], tree.count[2], budget
    row, rows, links = room.sets, room.sets[16:], room.links
    red, blue, done = row[0], row[1], row[2]
    undone, worth, useful, other_worth = row[3], row[4], row[5], row[6]
    new_undone, new_done, new_blue, kept, spare, gone, stake = (
        row[7], row[8], row[9], row[10], row[11], row[12], row[13],
    )  # fmt: skip
    b, new_red = row[14], row[15]
    state, symmetric = room.states[0], board.base.size > 0
    key = room.states[1] if symmetric else state
    hashes, at = room.hashes, room.lists[0]
    members, chosen, bets, stopped = room.lists[1], room.lists[2], room.lists[3], room.lists[4]
    if nodes == 0:  # the only pebbles of the first state are blue ones on the inputs
        for k in range(words):
            red[k], blue[k], undone[k] = _ZERO, _ZERO, outputs[k]
        for k in range(3 * words):
            states[0, k] = keys[0, k] = _ZERO
        tree.parents[0], tree.vias[0], costs[0], closed[0] = -1, -1, 0, WAITS
        table[_slot(table, keys, keys[0])] = 0
        nodes, f = 1, to_come(board, undone, red, blue, rows, links)
        if f < heads.size:
            tree.entry[0], tree.follows[0], heads[f] = 0, -1, 0
            free = 1
    while f < heads.size:
        at_head = heads[f]
        if at_head < 0:
            f += 1
            continue
        if budget <= 0:
            return _ended(tree, nodes, free, f, began - budget, GOES_ON, 0)
        node = tree.entry[at_head]
        if closed[node] == CLOSED:
            heads[f] = tree.follows[at_head]
            continue
        budget -= 1
        cost = costs[node]
        finished = True
        held: Any = np.int64(0)  # a plain 0 is a type of its own, for which `_forced` were compiled once more
        for k in range(words):
            red[k], blue[k], done[k] = states[node, k], states[node, words + k], states[node, 2 * words + k]
            undone[k] = outputs[k] & ~blue[k]
            finished &= undone[k] == _ZERO
            held += popcount(red[k])
        if finished:
            return _ended(tree, nodes, free, f, began - budget, FOUND, node)
        if once and closed[node] == WAITS:
            closed[node] = LOOKED_AT
            rank = cost + to_come_once(board, undone, red, blue, rows, links)
            if rank > f:
                heads[f] = tree.follows[at_head]
                if rank < heads.size:
                    tree.follows[at_head], heads[rank] = heads[rank], at_head
                continue
        of_use(board, undone, done, worth, useful)
        only = _forced(board, worth, red, blue, held)
        full, why, writes, goes_on = False, FULL, 0, place[0] == node and place[1] == cost
        for v in range(place[2] if goes_on else 0, n):
            if (only >= 0 and v != only) or not has(worth, v) or has(red, v):
                continue
            possible, read = True, 0
            for k in range(words):
                absent = preds[v, k] & ~red[k]
                if absent & ~(inputs[k] | blue[k]):
                    possible = False
                    break
                read += popcount(absent)
            if not possible:
                continue
            step = read
            for k in range(words):
                new_blue[k], new_undone[k], new_done[k] = blue[k], undone[k], done[k]
            if has(undone, v):
                step += 1
                add(new_blue, v)
                new_undone[v >> 6] &= ~(_ONE << np.uint64(v & 63))
            if once:
                add(new_done, v)
            of_use(board, new_undone, new_done, other_worth, useful)
            evict = held + read + 1 - M
            count = 0
            for k in range(words):
                spare[k] = red[k] & ~preds[v, k]
                evict -= popcount(spare[k] & ~useful[k])  # values without further use are deleted first, for free
                spare[k] &= useful[k]
                kept[k] = (red[k] | preds[v, k]) & useful[k]
                rest = spare[k]
                while rest:
                    low = rest & (~rest + _ONE)
                    rest ^= low
                    members[count] = (k << 6) + popcount(low - _ONE)
                    count += 1
            evict = max(0, evict)
            if has(useful, v):
                add(kept, v)
            if evict > count:
                continue
            for k in range(evict):
                chosen[k] = stopped[k] if goes_on else k
            while True:
                for k in range(words):
                    gone[k] = _ZERO
                for k in range(evict):
                    add(gone, members[chosen[k]])
                bet = 0
                for k in range(words):
                    stake[k] = gone[k] & ~(blue[k] | inputs[k])
                    new_red[k] = kept[k] & ~gone[k]
                for k in range(evict):
                    if has(stake, members[chosen[k]]):
                        bets[bet] = members[chosen[k]]
                        bet += 1
                # Without recomputation each deleted value is written; otherwise it may be lost and computed again.
                for writes in range(place[3] if goes_on else (1 << bet) - 1, (1 << bet) - 2 if once else -1, -1):
                    goes_on = False
                    if budget <= 0:
                        full, why = True, GOES_ON
                        break
                    written = bet
                    for k in range(words):
                        b[k] = new_blue[k] | stake[k]
                    if not once:
                        for k in range(bet):
                            if not writes >> k & 1:
                                written -= 1
                                b[bets[k] >> 6] &= ~(_ONE << np.uint64(bets[k] & 63))
                    for k in range(words):
                        b[k] &= useful[k] | outputs[k]
                        state[k], state[words + k], state[2 * words + k] = new_red[k], b[k], new_done[k]
                    total = cost + step + written
                    if _seen(tree.recent, state, total):
                        continue
                    if symmetric:
                        _canonical(board, state, key, hashes, at)
                    slot = _slot(table, keys, key)
                    other = table[slot]
                    if other >= 0 and costs[other] <= total:
                        continue
                    budget -= 1
                    rank = max(f, total + to_come(board, new_undone, new_red, b, rows, links))
                    if rank >= heads.size:
                        continue
                    if nodes == limit or free == entries:
                        full = True
                        break
                    if other < 0:
                        other = nodes
                        nodes += 1
                        table[slot] = other
                    # A game that reaches this state through symmetric states continues with its own image of the state.
                    for k in range(3 * words):
                        states[other, k], keys[other, k] = state[k], key[k]
                    closed[other] = WAITS  # the bound is not consistent: look at it again
                    costs[other], tree.parents[other], tree.vias[other] = total, node, v
                    tree.entry[free], tree.follows[free] = other, heads[rank]
                    heads[rank] = free
                    free += 1
                if full:
                    break
                k = evict - 1
                while k >= 0 and chosen[k] == count - evict + k:
                    k -= 1
                if k < 0:
                    break
                chosen[k] += 1
                for j in range(k + 1, evict):
                    chosen[j] = chosen[j - 1] + 1
            if full:
                break
        if full:
            place[0], place[1], place[2], place[3] = node, cost, v, writes
            for k in range(n):
                stopped[k] = chosen[k]
            return _ended(tree, nodes, free, f, began - budget, why, 0)
        closed[node] = CLOSED
    return _ended(tree, nodes, free, f, began - budget, NONE, 0)
