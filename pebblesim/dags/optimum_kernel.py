"""The loop of the search for the least I/O, apart so that numba is imported only when it is asked for.

Sets of vertices are rows of 64-bit words. A step of the search computes one vertex: it makes room, reads those
predecessors that are not red, computes, and writes the result if it is an output that has not been written. Nothing is
lost by it: a game can be rearranged, without more I/O, so that every pebble is read just before it is used, taken away
only when its place is needed, and written, unless it is an output, just before it is taken away.

States that a symmetry of the graph takes into each other are one, by their keys; what is kept of them is a state that
its parent leads to, so that a path is a game.

The search can stop anywhere: `Tree` holds all of it, and the least rank that waits is a lower bound.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pebblesim.kernels import kernel

FOUND, NONE, FULL, GOES_ON = range(4)  # how a call ends

WAITS, CLOSED, LOOKED_AT = range(3)  # what has become of a state

_ONE, _ZERO = np.uint64(1), np.uint64(0)


class Game(NamedTuple):
    """What is searched: vertices by number in topological order, sets of them as rows of words."""

    preds: Any  # predecessors of each vertex
    succs: Any  # successors
    keeps: Any  # of each vertex v: those with a successor that follows from v
    above: Any  # of each vertex: those that lead to it
    behind: Any  # of each: those that follow from it
    early: Any  # of each vertex v: those with a successor that leads to v
    inputs: Any
    outputs: Any  # that are no inputs
    degree: Any  # number of predecessors
    edges: Any  # (from, to) of each edge
    base: Any  # of each level of the chain of symmetries: the point that is mapped to
    level: Any  # of each permutation: its level, in turn
    point: Any  # of each permutation: the point that it takes to the base point
    image: Any  # of each permutation: where each vertex goes
    M: int
    once: bool


class Tree(NamedTuple):
    """States, and those that wait in the order of the I/O so far and the I/O that is to come in any case."""

    states: Any  # red, blue, computed: a row each
    keys: Any  # what is the same for states that a symmetry takes into each other; the states where there is none
    parents: Any
    vias: Any  # the vertex computed on the way
    costs: Any
    closed: Any  # what has become of each
    table: Any  # hash table of keys
    seen: Any  # states made lately, each with the I/O so far: as good a way to the same one is not looked at again
    entry: Any  # waiting states, in lists by rank
    follows: Any
    heads: Any
    count: Any  # states, entries, and the rank that is looked at


@kernel()
def _popcount(x: Any) -> Any:
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel()
def _has(row: Any, v: int) -> bool:
    return (row[v >> 6] >> np.uint64(v & 63)) & _ONE != _ZERO


@kernel()
def _add(row: Any, v: int) -> None:
    row[v >> 6] |= _ONE << np.uint64(v & 63)


@kernel()
def _of_use(game: Game, undone: Any, computed: Any, worth: Any, useful: Any) -> None:
    """Find vertices worth computing, and those whose value is of use, while these outputs are not written."""
    words = undone.size
    succs, inputs = game.succs, game.inputs
    for k in range(words):
        worth[k] = useful[k] = _ZERO
    for v in range(game.degree.size - 1, -1, -1):
        place, bit = v >> 6, _ONE << np.uint64(v & 63)
        for k in range(place, words):
            if succs[v, k] & worth[k]:
                useful[place] |= bit
                break
        if (undone[place] | useful[place]) & ~(inputs[place] | computed[place]) & bit:
            worth[place] |= bit


@kernel()
def _paths(game: Game, starts: Any, goals: Any, closed: Any, links: Any) -> int:
    """The most paths from starts up to goals that share no vertex, and meet none that is closed.

    Augmenting paths: place 2v is below vertex v, 2v + 1 above it. The vertices on paths are left in `links[1]`, what is
    below each of them, -1 for a start, in `links[0]`.
    """
    n, words = game.degree.size, closed.size
    below, used, came, queue = links[0], links[1], links[2], links[3]
    for v in range(n):
        used[v] = 0
    total = 0
    for s in range(n):
        if not _has(starts, s) or _has(closed, s) or (used[s] and below[s] < 0):
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
                if _has(goals, v):
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
                rest = game.preds[v, k] & ~closed[k]
                while rest:
                    low = rest & (~rest + _ONE)
                    rest ^= low
                    w = 2 * ((k << 6) + _popcount(low - _ONE))
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


@kernel()
def _to_come(game: Game, undone: Any, red: Any, blue: Any, room: Any, links: Any) -> int:
    """I/O that is still to come in any case.

    That is a write of each output and a read of each value there is no way around; and where a vertex v must be
    computed, what is needed both before or now and after it, beyond the places that v and its operands leave: each of
    these values is read once more, and written before that if there is no copy of it. Vertices with no such value in
    common count one by one.
    """
    words = undone.size
    preds, inputs, once, n = game.preds, game.inputs, game.once, game.degree.size
    must, reads, over = room[3 * n], room[3 * n + 1], links[0]
    below, clean, dirty = room[:n], room[n : 2 * n], room[2 * n : 3 * n]
    total = 0
    for k in range(words):
        must[k], reads[k] = undone[k], _ZERO
        total += _popcount(undone[k])
    for v in range(n - 1, -1, -1):
        if _has(must, v):
            for k in range(words):
                absent = preds[v, k] & ~red[k]
                reads[k] |= absent & (inputs[k] | blue[k] if once else inputs[k])
                must[k] |= absent & ~(inputs[k] | blue[k])
    for k in range(words):
        total += _popcount(reads[k])
    if not once:
        # What is needed and in memory is read, or made of something else that is read.
        wanted, closed = clean[0], dirty[0]
        for k in range(words):
            wanted[k], closed[k] = _ZERO, red[k] | reads[k]
        some = False
        for v in range(n):
            if _has(must, v):
                for k in range(words):
                    wanted[k] |= game.preds[v, k] & blue[k] & ~red[k] & ~inputs[k]
                    some |= wanted[k] != _ZERO
        if some:
            total += _paths(game, wanted, inputs, closed, links)
        # Below v: what must be computed behind v, for v itself must be computed first.
        for v in range(n - 1, -1, -1):
            if not _has(must, v):
                continue
            row = below[v]
            for k in range(words):
                row[k] = game.succs[v, k] & must[k]
            for j in range(words):
                next_ones = game.succs[v, j] & must[j]
                while next_ones:
                    low = next_ones & (~next_ones + _ONE)
                    next_ones ^= low
                    w = (j << 6) + _popcount(low - _ONE)
                    for k in range(words):
                        row[k] |= below[w, k]
    for v in range(n):
        over[v] = 0
        if not _has(must, v):
            continue
        over[v] = 1
        if once:
            for k in range(words):
                later = game.keeps[v, k] & ~preds[v, k]
                copied = inputs[k] | blue[k]
                kept = red[k] & copied
                before = reads[k] & game.early[v, k] & later
                while before:
                    low = before & (~before + _ONE)
                    before ^= low
                    u = (k << 6) + _popcount(low - _ONE)
                    for j in range(words):
                        if game.succs[u, j] & game.above[v, j] & must[j]:
                            kept |= low
                            break
                # Outputs are written in any case, so that they cost a read only.
                made = must[k] & game.above[v, k]
                clean[v, k] = (kept | (made & game.outputs[k])) & later
                dirty[v, k] = ((red[k] & ~copied) | (made & ~game.outputs[k])) & later
        else:
            for k in range(words):
                clean[v, k] = dirty[v, k] = _ZERO
                there = red[k] & inputs[k] & ~preds[v, k]
                while there:
                    low = there & (~there + _ONE)
                    there ^= low
                    u = (k << 6) + _popcount(low - _ONE)
                    for j in range(words):
                        if game.succs[u, j] & below[v, j]:
                            clean[v, k] |= low
                            break
    # One vertex after the other, that with the most first; a value that counts at one does not at the next.
    while True:
        most, best = 0, -1
        for v in range(n):
            if over[v] <= 0:
                continue
            cleans, dirts = 0, 0
            for k in range(words):
                cleans += _popcount(clean[v, k])
                dirts += _popcount(dirty[v, k])
            over[v] = cleans + dirts - (game.M - game.degree[v] - 1)
            words_moved = over[v] + max(0, over[v] - cleans)
            if over[v] > 0 and words_moved > most:
                most, best = words_moved, v
        if best < 0:
            return total
        total += most
        over[best] = 0
        for k in range(words):
            counted = clean[best, k] | dirty[best, k]
            for v in range(n):
                if over[v] > 0:
                    clean[v, k] &= ~counted
                    dirty[v, k] &= ~counted


@kernel()
def _alive(game: Game, undone: Any, red: Any, blue: Any, room: Any, links: Any) -> int:
    """I/O that is still to come in any case where nothing is computed again: more than `_to_come`, and slower.

    When v is computed, each path from what is there, or leads to v, to what follows from v has a value on it that is
    alive. So as many are as there are paths that share no vertex (a convex cut, Elango et al. 2014); each that v leaves
    no place for is read once more, and written before that if there is no copy of it.
    """
    words = undone.size
    preds, inputs, n = game.preds, game.inputs, game.degree.size
    must, reads, taken = room[0], room[1], room[2]
    starts, goals, closed, copied = room[3], room[4], room[5], room[6]
    below, used, on_best = links[0], links[1], links[4]
    total = 0
    for k in range(words):
        must[k], reads[k], taken[k] = undone[k], _ZERO, _ZERO
        total += _popcount(undone[k])
    for v in range(n - 1, -1, -1):
        if _has(must, v):
            for k in range(words):
                absent = preds[v, k] & ~red[k]
                reads[k] |= absent & (inputs[k] | blue[k])
                must[k] |= absent & ~(inputs[k] | blue[k])
    for k in range(words):
        total += _popcount(reads[k])
    while True:
        most = 0
        for v in range(n):
            if not _has(must, v):
                continue
            places = game.M - game.degree[v] - 1
            number = 0
            for k in range(words):
                before = must[k] & game.above[v, k]
                goals[k] = before | red[k]
                twice = reads[k] & game.early[v, k]
                while twice:
                    low = twice & (~twice + _ONE)
                    twice ^= low
                    u = (k << 6) + _popcount(low - _ONE)
                    for j in range(words):
                        if game.succs[u, j] & game.above[v, j] & must[j]:
                            goals[k] |= low
                            break
                copied[k] = game.outputs[k] | inputs[k] | blue[k]
                closed[k] = ~(goals[k] | must[k]) | game.behind[v, k] | preds[v, k] | taken[k]
                if k == v >> 6:
                    closed[k] |= _ONE << np.uint64(v & 63)
                starts[k] = game.keeps[v, k] & ~closed[k]
                number += _popcount(starts[k])
            if number <= places:
                continue
            over = _paths(game, starts, goals, closed, links) - places
            if over <= 0:
                continue
            clean = 0
            for u in range(n):
                if used[u] and _has(goals, u):
                    w = u
                    while w >= 0 and not _has(copied, w):
                        w = below[w]
                    clean += w >= 0
            moved = over + max(0, over - clean)
            if moved > most:
                most = moved
                for u in range(n):
                    on_best[u] = used[u]
        if most == 0:
            return total
        total += most
        for u in range(n):
            if on_best[u]:
                _add(taken, u)


@kernel()
def _slot(table: Any, states: Any, state: Any) -> Any:
    """Where in the hash table a state is, or would be."""
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


@kernel()
def _canonical(game: Game, state: Any, key: Any, hashes: Any, at: Any) -> None:
    """The image of a state under a symmetry: as a rule the same one for all states that are images of each other.

    Each vertex gets a hash of what it and its neighbourhood hold. Level by level, the vertex of the least hash in the
    orbit of the base point goes there; only states whose ties are no symmetries of their own may be told apart.
    """
    n, words = game.degree.size, game.inputs.size
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
        for e in range(game.edges.shape[0]):
            u, v = game.edges[e, 0], game.edges[e, 1]
            sums[v] += _mixed(mine[u])
            sums[u] += _mixed(mine[v] ^ np.uint64(0x94D049BB133111EB))
        for v in range(n):
            mine[v] = _mixed(sums[v])
    first, moved = 0, hashes[2]
    for level in range(game.base.size):
        best, least, last = -1, mine[at[game.base[level]]], first
        while last < game.level.size and game.level[last] == level:
            value = mine[at[game.point[last]]]
            if value < least:
                best, least = last, value
            last += 1
        if best >= 0:
            for p in range(n):
                moved[game.image[best, p]] = np.uint64(at[p])
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


@kernel()
def _seen(seen: Any, state: Any, cost: int) -> Any:
    """Whether this state was made lately for no more; it is noted."""
    size = state.size
    h = _ZERO
    for k in range(size):
        h = _mixed(h ^ state[k])
    row = seen[np.int64(h & np.uint64(seen.shape[0] - 1))]
    same = np.int64(row[size]) <= cost
    for k in range(size):
        same &= row[k] == state[k]
        row[k] = state[k]
    row[size] = np.uint64(cost)
    return same


@kernel()
def _mixed(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel()
def rehash(table: Any, keys: Any, nodes: int) -> None:
    """Fill an empty table."""
    for node in range(nodes):
        table[_slot(table, keys, keys[node])] = node


@kernel()
def begin(game: Game, tree: Tree) -> None:
    """Put in the first state: no pebbles besides the blue ones of inputs."""
    words = game.inputs.size
    empty = np.zeros(words, dtype=np.uint64)
    room = np.zeros((7 + 3 * game.degree.size, words), dtype=np.uint64)
    f = _to_come(game, game.outputs, empty, empty, room, np.empty((5, 2 * game.degree.size), dtype=np.int64))
    tree.states[0, :] = _ZERO
    tree.parents[0], tree.vias[0], tree.costs[0], tree.closed[0] = -1, -1, 0, 0
    tree.keys[0, :] = _ZERO
    tree.table[_slot(tree.table, tree.keys, tree.keys[0])] = 0
    tree.count[0], tree.count[1], tree.count[2] = 1, 0, f
    if f < tree.heads.size:
        tree.entry[0], tree.follows[0], tree.heads[f] = 0, -1, 0
        tree.count[1] = 1


@kernel()
def _forced(game: Game, worth: Any, red: Any, blue: Any, held: int) -> int:
    """A vertex that may as well be computed at once, or -1.

    All its operands are red and there is a place for it. Where it may be computed again, that is enough: the place is
    free to go. Otherwise either it is an output that nothing uses, or an operand that has no copy in memory is used by
    nothing else: whatever a game does with that one, it can do with its result.
    """
    words = red.size
    if held >= game.M:
        return -1
    for v in range(game.degree.size):
        if not _has(worth, v) or _has(red, v):
            continue
        ready, used = True, False
        for k in range(words):
            if game.preds[v, k] & ~red[k]:
                ready = False
                break
            used |= (game.succs[v, k] & worth[k]) != _ZERO
        if not ready:
            continue
        if not used or not game.once:
            return v
        for k in range(words):
            single = game.preds[v, k] & ~(game.inputs[k] | blue[k])
            while single:
                low = single & (~single + _ONE)
                single ^= low
                u = (k << 6) + _popcount(low - _ONE)
                others = False
                for j in range(words):
                    left = game.succs[u, j] & worth[j]
                    if j == v >> 6:
                        left &= ~(_ONE << np.uint64(v & 63))
                    if left:
                        others = True
                        break
                if not others:
                    return v
    return -1


@kernel()
def search(game: Game, tree: Tree, budget: int) -> Any:
    """Go on with the search by so many states, looked at or estimated; (how it ended, the last state).

    A state may have thousands of followers. If the budget ends among them, the next call looks at the state again, and
    passes over those that it knows. States of rank `tree.heads.size` or more are of no interest. `FULL`: there is no
    room for more states.
    """
    n, words = game.degree.size, game.inputs.size
    inputs, outputs, preds, M, once = game.inputs, game.outputs, game.preds, game.M, game.once
    states, keys, costs, closed, heads = tree.states, tree.keys, tree.costs, tree.closed, tree.heads
    table, limit, entries = tree.table, tree.parents.size, tree.entry.size
    nodes, free, f = tree.count[0], tree.count[1], tree.count[2]
    row = np.zeros((16, words), dtype=np.uint64)
    red, blue, done = row[0], row[1], row[2]
    undone, worth, useful, other_worth = row[3], row[4], row[5], row[6]
    new_undone, new_done, new_blue, kept, spare, gone, stake = (
        row[7], row[8], row[9], row[10], row[11], row[12], row[13],
    )  # fmt: skip
    b = row[14]
    state = np.zeros(3 * words, dtype=np.uint64)
    symmetric = game.base.size > 0
    key = np.zeros(3 * words, dtype=np.uint64) if symmetric else state
    hashes, at = np.empty((3, n), dtype=np.uint64), np.empty(n, dtype=np.int64)
    new_red = row[15]
    room = np.zeros((7 + 3 * n, words), dtype=np.uint64)
    links = np.empty((5, 2 * n), dtype=np.int64)
    members = np.empty(n + 1, dtype=np.int64)
    chosen, bets = members.copy(), members.copy()
    while f < heads.size:
        at_head = heads[f]
        if at_head < 0:
            f += 1
            continue
        if budget <= 0:
            tree.count[0], tree.count[1], tree.count[2] = nodes, free, f
            return GOES_ON, 0
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
            held += _popcount(red[k])
        if finished:
            tree.count[0], tree.count[1], tree.count[2] = nodes, free, f
            return FOUND, node
        if once and closed[node] == WAITS:
            closed[node] = LOOKED_AT
            rank = cost + _alive(game, undone, red, blue, room, links)
            if rank > f:
                heads[f] = tree.follows[at_head]
                if rank < heads.size:
                    tree.follows[at_head], heads[rank] = heads[rank], at_head
                continue
        _of_use(game, undone, done, worth, useful)
        only = _forced(game, worth, red, blue, held)
        full, why = False, FULL
        for v in range(n):
            if (only >= 0 and v != only) or not _has(worth, v) or _has(red, v):
                continue
            possible, read = True, 0
            for k in range(words):
                absent = preds[v, k] & ~red[k]
                if absent & ~(inputs[k] | blue[k]):
                    possible = False
                    break
                read += _popcount(absent)
            if not possible:
                continue
            step = read
            for k in range(words):
                new_blue[k], new_undone[k], new_done[k] = blue[k], undone[k], done[k]
            if _has(undone, v):
                step += 1
                _add(new_blue, v)
                new_undone[v >> 6] &= ~(_ONE << np.uint64(v & 63))
            if once:
                _add(new_done, v)
            _of_use(game, new_undone, new_done, other_worth, useful)
            evict = held + read + 1 - M
            count = 0
            for k in range(words):
                spare[k] = red[k] & ~preds[v, k]
                evict -= _popcount(spare[k] & ~useful[k])  # those of no use any more go first, and for nothing
                spare[k] &= useful[k]
                kept[k] = (red[k] | preds[v, k]) & useful[k]
                rest = spare[k]
                while rest:
                    low = rest & (~rest + _ONE)
                    rest ^= low
                    members[count] = (k << 6) + _popcount(low - _ONE)
                    count += 1
            evict = max(0, evict)
            if _has(useful, v):
                _add(kept, v)
            if evict > count:
                continue
            for k in range(evict):
                chosen[k] = k
            while True:
                for k in range(words):
                    gone[k] = _ZERO
                for k in range(evict):
                    _add(gone, members[chosen[k]])
                bet = 0
                for k in range(words):
                    stake[k] = gone[k] & ~(blue[k] | inputs[k])
                    new_red[k] = kept[k] & ~gone[k]
                for k in range(evict):
                    if _has(stake, members[chosen[k]]):
                        bets[bet] = members[chosen[k]]
                        bet += 1
                # Under once all that goes is written; otherwise any of these may be lost, and computed again.
                for writes in range((1 << bet) - 1, (1 << bet) - 2 if once else -1, -1):
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
                    if _seen(tree.seen, state, total):
                        continue
                    if symmetric:
                        _canonical(game, state, key, hashes, at)
                    slot = _slot(table, keys, key)
                    other = table[slot]
                    if other >= 0 and costs[other] <= total:
                        continue
                    budget -= 1
                    rank = max(f, total + _to_come(game, new_undone, new_red, b, room, links))
                    if rank >= heads.size:
                        continue
                    if nodes == limit or free == entries:
                        full = True
                        break
                    if other < 0:
                        other = nodes
                        nodes += 1
                        table[slot] = other
                    # A game that gets here through other states goes on with its own image of this one.
                    for k in range(3 * words):
                        states[other, k], keys[other, k] = state[k], key[k]
                    closed[other] = WAITS  # the ranks of neighbours may differ by more than a step: look again
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
            tree.count[0], tree.count[1], tree.count[2] = nodes, free, f
            return why, 0
        closed[node] = CLOSED
    tree.count[0], tree.count[1], tree.count[2] = nodes, free, f
    return NONE, 0
