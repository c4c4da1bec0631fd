"""The machine that the `pebbles` reading runs a program on: it turns instructions on tiles into moves on vertices.

It knows the numbering of `pebblesim.layout` and nothing of the graph itself. Each row of `code` is an instruction;
it fills a buffer with moves, returns when the buffer is nearly full, and goes on where it stopped.
"""

from __future__ import annotations

from typing import Any, Final

from numba import njit

# instructions, and what their columns hold
LOOP, NEXT, EACH, INIT, SCRIPT, SUM, HALT = range(7)
(
    OP,
    TILE,  # the tile it works on
    FAMILY,  # its family
    ROWS,  # its row range
    COLUMNS,  # its column range, -1 for a vector
    PART,  # the range whose tiles a regrouped family keeps apart, -1 if none
    KIND,  # EACH: which move
    JUMP,  # LOOP: behind its end; NEXT: behind its start
    FIRST,  # SCRIPT, SUM: first step of the script
    LEAF,  # SUM: the step behind which the term is computed
    LAST,  # SCRIPT, SUM: behind the last step
    TERMS,  # SUM: the range it sums over
    OUTER,  # SUM: the range whose tile comes first in the order of the terms, -1 if none
    WHOLE,  # SUM: terms for each tile of OUTER
    FRESH,  # SUM: 1 if it is the whole sum of a new tile
    WIDTH,
) = range(16)

# columns of the table of families
BASE, ROW_LENGTH, ELEMENTS, K, K_LAST, PARTS, TREE, START, STORED = range(9)

# columns of the table of ranges
PARENT, BLOCK, OFFSET, LENGTH = range(4)

PC, PROGRESS, STATUS = range(3)
RUNNING, DONE, PARTIAL = range(3)

READ: Final = 0
WRITE: Final = 1
COMPUTE: Final = 2
DELETE: Final = 3


@njit(cache=True, inline="always")
def _element(family: Any, part: int, element: int) -> tuple[int, int]:
    """(first vertex, number of terms) of an element."""
    k = family[K]
    if k == 0:
        return family[BASE] + element, 0
    extra = 2 * family[START] - 1
    first = family[BASE] + part * family[ELEMENTS] * (2 * k + extra)
    if part == family[PARTS] - 1:
        k = family[K_LAST]
    return first + element * (2 * k + extra), k


@njit(cache=True)
def _node(first: int, k: int, tree: int, start: int, block: int, layer: int, position: int) -> int:
    """The vertex that holds the sum of 2^layer neighbouring terms (fewer at the end) of a block."""
    m = min(tree, k - block * tree)
    while layer > 0:
        below = (m + (1 << (layer - 1)) - 1) >> (layer - 1)
        if 2 * position + 1 < below:
            break
        layer -= 1  # it had no neighbour and moved up as it was
        position *= 2
    if layer == 0:
        return first + block * tree + position
    sums = first + k + start + (block * tree - (1 - start) if block > 0 else 0)
    for g in range(1, layer):
        sums += ((m + (1 << (g - 1)) - 1) >> (g - 1)) // 2
    return sums + position


@njit(cache=True)
def _holder(first: int, k: int, tree: int, start: int, done: int) -> int:
    """The vertex that holds the sum of the first `done` terms; -1 if several vertices hold it together."""
    if k == 0:
        return first
    if done == k:
        return first + 2 * k + 2 * start - 2
    if done == 0:
        return first + k if start else -1
    if done % tree:
        return -1
    block = done // tree - 1
    if block == 0 and not start:
        layer = 0
        while (1 << layer) < tree:
            layer += 1
        return _node(first, k, tree, start, 0, layer, 0)
    return first + k + start + block * tree - (1 - start) + tree - 1


@njit(cache=True)
def _close(out: Any, used: int, first: int, k: int, tree: int, start: int, term: int) -> int:
    """The additions that follow when a term of a tree of blocks has been computed."""
    block, inside = divmod(term, tree)
    m = min(tree, k - block * tree)
    layer, count = 0, inside + 1
    while count % 2 == 0:
        count //= 2
        layer += 1
        used = _merge(out, used, first, k, tree, start, block, layer, count - 1)
    if inside + 1 < m:
        return used
    layer = 1
    below = m
    while below > 1:
        last = (below + 1) // 2 - 1
        if below % 2 == 0 and (last + 1) << layer > m:
            used = _merge(out, used, first, k, tree, start, block, layer, last)
        below = last + 1
        layer += 1
    if block > 0 or start:
        before = _holder(first, k, tree, start, block * tree)
        total = first + k + start + (block * tree - (1 - start)) + m - 1
        out[used] = total * 4 + COMPUTE
        out[used + 1] = before * 4 + DELETE
        out[used + 2] = _node(first, k, tree, start, block, layer - 1, 0) * 4 + DELETE
        used += 3
    return used


@njit(cache=True)
def _merge(
    out: Any, used: int, first: int, k: int, tree: int, start: int, block: int, layer: int, position: int
) -> int:
    out[used] = _node(first, k, tree, start, block, layer, position) * 4 + COMPUTE
    out[used + 1] = _node(first, k, tree, start, block, layer - 1, 2 * position) * 4 + DELETE
    out[used + 2] = _node(first, k, tree, start, block, layer - 1, 2 * position + 1) * 4 + DELETE
    return used + 3


@njit(cache=True, nogil=True)
def run(
    code: Any, scripts: Any, families: Any, ranges: Any, done: Any, stored: Any, state: Any, out: Any, longest: int
) -> int:
    """Fill `out` with moves; returns how many.

    Args:
        code, scripts, families: tables, not changed. A step of a script is (kind, family, 1 if a vector).
        ranges: table of ranges, with their present offset and length.
        done: for each tile, how many terms its sums hold; -1 if it is complete.
        stored: the same for each element in memory of families that are summed there.
        state: (next instruction, elements of it that are done, status).
        longest: most moves that one element of any instruction takes.
    """
    used = 0
    room = out.shape[0] - longest
    while True:
        ins = code[state[PC]]
        op = ins[OP]
        if op == HALT:
            state[STATUS] = DONE
            return used
        if op in (LOOP, NEXT):
            rng = ranges[ins[ROWS]]
            parent = ranges[rng[PARENT]]
            offset = parent[OFFSET] if op == LOOP else rng[OFFSET] + rng[BLOCK]
            left = parent[OFFSET] + parent[LENGTH] - offset
            if left > 0:
                rng[OFFSET] = offset
                rng[LENGTH] = min(rng[BLOCK], left)
                state[PC] = state[PC] + 1 if op == LOOP else ins[JUMP]
            else:
                state[PC] = ins[JUMP] if op == LOOP else state[PC] + 1
            continue

        family = families[ins[FAMILY]]
        row, rows = ranges[ins[ROWS], OFFSET], ranges[ins[ROWS], LENGTH]
        column, columns = 0, 1
        if ins[COLUMNS] >= 0:
            column, columns = ranges[ins[COLUMNS], OFFSET], ranges[ins[COLUMNS], LENGTH]
        part = 0
        if ins[PART] >= 0:
            part = ranges[ins[PART], OFFSET] // ranges[ins[PART], BLOCK]
        tile = ins[TILE]
        begin = state[PROGRESS]
        stop = rows * columns
        if op == SUM:
            term = ranges[ins[TERMS], OFFSET]
            terms = ranges[ins[TERMS], LENGTH]
            if ins[FRESH]:
                term = 0
            elif ins[OUTER] >= 0:
                term += ranges[ins[OUTER], OFFSET] // ranges[ins[OUTER], BLOCK] * ins[WHOLE]
        for at in range(begin, stop):
            if used > room:
                state[PROGRESS] = at
                return used
            i, j = row + at // columns, column + at % columns
            element = i * family[ROW_LENGTH] + j
            first, k = _element(family, part, element)
            if op == EACH:
                kind = ins[KIND]
                if kind == READ:
                    held = stored[family[STORED] + element] if family[STORED] >= 0 else -1
                    done[tile] = held
                else:
                    held = done[tile]
                vertex = _holder(first, k, family[TREE], family[START], k if held < 0 else held)
                if vertex < 0:
                    state[STATUS] = PARTIAL
                    return used
                if kind == WRITE and family[STORED] >= 0:
                    stored[family[STORED] + element] = held
                out[used] = vertex * 4 + kind
                used += 1
            elif op == INIT:
                zero = first + k
                out[used] = zero * 4 + COMPUTE
                out[used + 1] = zero * 4 + WRITE
                out[used + 2] = zero * 4 + DELETE
                used += 3
                stored[family[STORED] + element] = 0
            elif op == SCRIPT:
                used = _script(out, used, scripts, ins[FIRST], ins[LAST], families, i, j)
            else:
                tree, start = family[TREE], family[START]
                scripted = ins[LAST] > ins[FIRST]
                held = first if term == 1 and not start else first + k + 2 * start + term - 2
                for u in range(term, term + terms):
                    if scripted:
                        used = _script(out, used, scripts, ins[FIRST], ins[LEAF], families, i, u)
                    leaf = first + u
                    out[used] = leaf * 4 + COMPUTE
                    used += 1
                    if scripted:
                        used = _script(out, used, scripts, ins[LEAF], ins[LAST], families, i, u)
                    if tree > 1:
                        used = _close(out, used, first, k, tree, start, u)
                    elif u > 0 or start:
                        total = first + k + start + u - 1 + start
                        out[used] = total * 4 + COMPUTE
                        out[used + 1] = held * 4 + DELETE
                        out[used + 2] = leaf * 4 + DELETE
                        used += 3
                        held = total
                    else:
                        held = leaf
        if op == SUM:
            done[tile] = -1 if ins[FRESH] else term + terms
        elif op == SCRIPT:
            done[tile] = -1
        state[PROGRESS] = 0
        state[PC] += 1


@njit(cache=True)
def _script(out: Any, used: int, scripts: Any, first: int, last: int, families: Any, i: int, j: int) -> int:
    for step in range(first, last):
        family = families[scripts[step, 1]]
        element = i if scripts[step, 2] else i * family[ROW_LENGTH] + j
        vertex, k = _element(family, 0, element)
        out[used] = _holder(vertex, k, 1, family[START], k) * 4 + scripts[step, 0]
        used += 1
    return used
