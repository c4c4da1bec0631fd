"""The machine that the `pebbles` reading runs a program on: it turns instructions on tiles into moves on vertices.

It knows the numbering of `pebblesim.game.numbering` and nothing of the graph itself. Each row of `code` is an
instruction; it fills a buffer with moves, returns when the buffer is nearly full, and goes on where it stopped.
"""

from __future__ import annotations

from typing import Any

from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE
from pebblesim.kernels import kernel

KINDS = COMPUTE, DELETE, READ, WRITE  # of another file, so that functions kept on disk must know their values

# instructions, and what their columns hold
LOOP, NEXT, EACH, INIT, CONSTANT, MOVE, SCRIPT, SUM, HALT, START, FILL = range(11)
(
    OP,
    TILE,  # the tile it works on
    SOURCE,  # MOVE: the tile whose words it takes over
    FAMILY,  # the family of the tile's words (after it, if it computes them)
    ROWS,  # its row range
    COLUMNS,  # its column range, -1 for a vector
    PART,  # what it computes is the block that this range is at, -1 if the family has one block
    KIND,  # EACH: which move
    JUMP,  # LOOP: behind its end; NEXT: behind its start
    FIRST,  # SCRIPT, SUM: first step of the script
    LEAF,  # SUM: the step behind which the term is computed
    LAST,  # SCRIPT, SUM: behind the last step
    TERMS,  # SUM: the range it sums over
    OUTER,  # SUM: the range whose tile comes first in the order of the terms, -1 if none
    WHOLE,  # SUM: terms for each tile of OUTER
    FRESH,  # SUM: 1 if it is the whole sum of a block
    ONTO,  # SUM: the family of the value it is added to, -1 if none
    MET_ROWS,  # LOOP, NEXT: run for tiles of which the mask allows a pair of these rows ...
    MET_COLUMNS,  # ... and these columns, -1 if for all
    MET,  # LOOP, NEXT: 1; 0 to run for the others
    WIDTH,
) = range(21)

# columns of a step of a script; OF_TILE: the tile whose present block is meant, -1 for the block that AT is at
STEP_KIND, STEP_FAMILY, VECTOR, AT, OF_TILE = range(5)

# columns of the table of families
BASE, STEP, LAST_BASE, INITIAL, ROW_LENGTH, ELEMENTS, K, K_LAST, BLOCKS, TREE, ZERO, STARTED, STORED = range(13)
# and, under a mask, of where they are: TABLE, first row in `elements`; BEFORE, first entry in `before`; WIDE, entries
# of a line there; LINE, which index of an element says its line. All -1 where there is no such table.
TABLE, BEFORE, WIDE, LINE = range(13, 17)

# columns of the table of ranges
PARENT, BLOCK, OFFSET, LENGTH = range(4)

# columns of what is known of a tile or of an element in memory: up to which index its sum has its terms (-1: it is
# complete), its block, and, of a tile, whether its sums without terms are there already, as constants
DONE, BLOCK_OF, FILLED = range(3)

PC, PROGRESS, STATUS = range(3)
RUNNING, FINISHED, PARTIAL = range(3)


@kernel(*KINDS)
def _element(family: Any, elements: Any, block: int, element: int) -> tuple[int, int]:
    """(first vertex, number of terms) of an element of a block."""
    if block < 0:
        return family[INITIAL] + element, 0
    if family[TABLE] >= 0:
        at = family[TABLE] + block * family[ELEMENTS] + element
        return elements[at, 0], elements[at, 1]
    first, k = family[BASE] + block * family[STEP], family[K]
    if block == family[BLOCKS] - 1:
        first, k = family[LAST_BASE], family[K_LAST]
    if k == 0:
        return first + element, 0
    return first + element * (2 * k - 1 + family[ZERO] + family[STARTED]), k


@kernel(*KINDS)
def _node(first: int, k: int, tree: int, zero: int, started: int, block: int, layer: int, position: int) -> int:
    """The vertex that holds the sum of 2^layer neighbouring terms (fewer at the end) of a block of the tree."""
    m = min(tree, k - block * tree)
    while layer > 0:
        below = (m + (1 << (layer - 1)) - 1) >> (layer - 1)
        if 2 * position + 1 < below:
            break
        layer -= 1  # it had no neighbour and moved up as it was
        position *= 2
    if layer == 0:
        return first + block * tree + position
    sums = first + k + zero + (block * tree - (1 - started) if block > 0 else 0)
    for g in range(1, layer):
        sums += ((m + (1 << (g - 1)) - 1) >> (g - 1)) // 2
    return sums + position


@kernel(*KINDS)
def _holder(first: int, k: int, tree: int, zero: int, started: int, done: int) -> int:
    """The vertex that holds the sum of the first `done` terms; -1 if no vertex does, or several together."""
    if k == 0:
        return first
    if done == k:
        return first + 2 * k + zero + started - 2
    if done == 0:
        return first + k if zero else -1
    if done % tree:
        return -1
    block = done // tree - 1
    if block == 0 and not started:
        layer = 0
        while (1 << layer) < tree:
            layer += 1
        return _node(first, k, tree, zero, started, 0, layer, 0)
    return first + k + zero + block * tree - (1 - started) + tree - 1


@kernel(*KINDS)
def _close(out: Any, used: int, first: int, k: int, tree: int, zero: int, started: int, term: int, value: int) -> int:
    """The additions that follow when a term of a tree of blocks has been computed; `value` is what it is added to."""
    block, inside = divmod(term, tree)
    m = min(tree, k - block * tree)
    layer, count = 0, inside + 1
    while count % 2 == 0:
        count //= 2
        layer += 1
        used = _merge(out, used, first, k, tree, zero, started, block, layer, count - 1)
    if inside + 1 < m:
        return used
    layer = 1
    below = m
    while below > 1:
        last = (below + 1) // 2 - 1
        if below % 2 == 0 and (last + 1) << layer > m:
            used = _merge(out, used, first, k, tree, zero, started, block, layer, last)
        below = last + 1
        layer += 1
    if block > 0 or started:
        before = value if block == 0 else _holder(first, k, tree, zero, started, block * tree)
        total = first + k + zero + (block * tree - (1 - started)) + m - 1
        out[used] = total * 4 + COMPUTE
        out[used + 1] = before * 4 + DELETE
        out[used + 2] = _node(first, k, tree, zero, started, block, layer - 1, 0) * 4 + DELETE
        used += 3
    return used


@kernel(*KINDS)
def _merge(
    out: Any, used: int, first: int, k: int, tree: int, zero: int, started: int, block: int, layer: int, position: int
) -> int:
    out[used] = _node(first, k, tree, zero, started, block, layer, position) * 4 + COMPUTE
    out[used + 1] = _node(first, k, tree, zero, started, block, layer - 1, 2 * position) * 4 + DELETE
    out[used + 2] = _node(first, k, tree, zero, started, block, layer - 1, 2 * position + 1) * 4 + DELETE
    return used + 3


@kernel(*KINDS)
def _add(out: Any, used: int, first: int, k: int, zero: int, started: int, u: int, held: int) -> tuple[int, int]:
    """Add term u of a chain to the sum held so far; returns the moves used, and the vertex that holds the new sum."""
    leaf = first + u
    if u == 0 and not started:
        return used, leaf
    total = first + k + zero + started + u - 1
    out[used] = total * 4 + COMPUTE
    out[used + 1] = held * 4 + DELETE
    out[used + 2] = leaf * 4 + DELETE
    return used + 3, total


@kernel(*KINDS)
def _terms_before(family: Any, before: Any, index: int, i: int, j: int) -> int:
    """How many terms the sum of element [i, j] has in front of an index."""
    if family[BEFORE] < 0:
        return index
    line = 0 if family[LINE] < 0 else j if family[LINE] == 1 else i
    return before[family[BEFORE] + line * family[WIDE] + index]


@kernel(*KINDS)
def _runs(ins: Any, ranges: Any, pairs: Any) -> bool:
    """Whether the mask lets a loop run for the tile it is at; pairs[i, j] counts those of rows < i and columns < j."""
    if ins[MET_ROWS] < 0:
        return True
    rows, columns = ranges[ins[MET_ROWS]], ranges[ins[MET_COLUMNS]]
    top, bottom = rows[OFFSET], rows[OFFSET] + rows[LENGTH]
    left, right = columns[OFFSET], columns[OFFSET] + columns[LENGTH]
    some = pairs[bottom, right] - pairs[top, right] - pairs[bottom, left] + pairs[top, left]
    return (some > 0) == (ins[MET] == 1)


@kernel(*KINDS)
def _at(ranges: Any, rng: int) -> int:
    """Which tile a range is at; 0 for no range."""
    return ranges[rng, OFFSET] // ranges[rng, BLOCK] if rng >= 0 else 0


@kernel(*KINDS)
def _script(
    out: Any,
    used: int,
    scripts: Any,
    first: int,
    last: int,
    families: Any,
    elements: Any,
    ranges: Any,
    tiles: Any,
    i: int,
    j: int,
) -> int:
    """The moves of a script for element [i, j]."""
    for row in range(first, last):
        step = scripts[row]
        family = families[step[STEP_FAMILY]]
        element = i if step[VECTOR] else i * family[ROW_LENGTH] + j
        block = tiles[step[OF_TILE], BLOCK_OF] if step[OF_TILE] >= 0 else _at(ranges, step[AT])
        vertex, k = _element(family, elements, block, element)
        vertex = _holder(vertex, k, 1, family[ZERO], family[STARTED], k)
        out[used] = vertex * 4 + step[STEP_KIND]
        used += 1
    return used


@kernel(*KINDS, nogil=True)
def run(
    code: Any,
    scripts: Any,
    families: Any,
    elements: Any,
    before: Any,
    pairs: Any,
    ranges: Any,
    tiles: Any,
    stored: Any,
    state: Any,
    out: Any,
    longest: int,
) -> int:
    """Fill `out` with moves; returns how many.

    Args:
        code, scripts, families: tables, not changed.
        elements, before, pairs: tables of a mask, not changed: (first vertex, terms) of elements, terms in front of
            each index, and pairs of rows and columns in front of each.
        ranges: table of ranges, with their present offset and length.
        tiles: what is known of each tile.
        stored: the same of each element in memory whose sum or running value is made there.
        state: (next instruction, elements of it that are done, status).
        longest: most moves that one element of any instruction takes.
    """
    used = 0
    room = out.shape[0] - longest
    while True:
        ins = code[state[PC]]
        op = ins[OP]
        if op == HALT:
            state[STATUS] = FINISHED
            return used
        if op in (LOOP, NEXT):
            rng = ranges[ins[ROWS]]
            parent = ranges[rng[PARENT]]
            offset = parent[OFFSET] if op == LOOP else rng[OFFSET] + rng[BLOCK]
            end = parent[OFFSET] + parent[LENGTH]
            found = False
            while offset < end and not found:
                rng[OFFSET] = offset
                rng[LENGTH] = min(rng[BLOCK], end - offset)
                found = _runs(ins, ranges, pairs)
                offset += rng[BLOCK]
            if found:
                state[PC] = state[PC] + 1 if op == LOOP else ins[JUMP]
            else:
                state[PC] = ins[JUMP] if op == LOOP else state[PC] + 1
            continue

        tile = ins[TILE]
        if op == MOVE:
            tiles[tile] = tiles[ins[SOURCE]]
            state[PC] += 1
            continue
        if op == START or (op == FILL and (tiles[tile, DONE] < 0 or tiles[tile, FILLED])):
            if op == START:
                tiles[tile] = 0
            state[PC] += 1
            continue

        family = families[ins[FAMILY]]
        zero, started = family[ZERO], family[STARTED]
        row, rows = ranges[ins[ROWS], OFFSET], ranges[ins[ROWS], LENGTH]
        column, columns = 0, 1
        if ins[COLUMNS] >= 0:
            column, columns = ranges[ins[COLUMNS], OFFSET], ranges[ins[COLUMNS], LENGTH]
        block = _at(ranges, ins[PART])
        term = terms = index = 0
        in_progress = op == SUM and not ins[FRESH] and ins[ONTO] < 0
        if op == SUM:
            index = ranges[ins[TERMS], OFFSET]
            terms = ranges[ins[TERMS], LENGTH]
            if in_progress:
                term = index
                if ins[OUTER] >= 0:
                    term += _at(ranges, ins[OUTER]) * ins[WHOLE]
        for at in range(state[PROGRESS], rows * columns):
            if used > room:
                state[PROGRESS] = at
                return used
            i, j = row + at // columns, column + at % columns
            element = i * family[ROW_LENGTH] + j
            if op == EACH:
                kind = ins[KIND]
                place = family[STORED] + element
                if kind == READ and at == 0:
                    tiles[tile] = -1, 0, 1
                if kind == READ and family[STORED] >= 0:
                    tiles[tile, BLOCK_OF] = stored[place, BLOCK_OF]
                    # of tiles that were written apart, all complete, the indices up to which they have terms may differ
                    first, k = _element(family, elements, tiles[tile, BLOCK_OF], element)
                    done = stored[place, DONE]
                    if done >= 0 and _terms_before(family, before, done, i, j) < k:
                        tiles[tile, DONE] = done
                first, k = _element(family, elements, tiles[tile, BLOCK_OF], element)
                held = tiles[tile, DONE]
                if k == 0 and family[K] > 0 and held >= 0 and not tiles[tile, FILLED]:
                    continue  # a sum without terms that nobody has looked at yet
                done = k if held < 0 else _terms_before(family, before, held, i, j)
                vertex = _holder(first, k, family[TREE], zero, started, done)
                if vertex < 0:
                    state[STATUS] = PARTIAL
                    return used
                if kind == WRITE and family[STORED] >= 0:
                    stored[place, DONE], stored[place, BLOCK_OF] = tiles[tile, DONE], tiles[tile, BLOCK_OF]
                out[used] = vertex * 4 + kind
                used += 1
            elif op == INIT:
                first, k = _element(family, elements, 0, element)
                vertex = first + k if zero else family[INITIAL] + element if family[INITIAL] >= 0 else first
                out[used] = vertex * 4 + COMPUTE
                out[used + 1] = vertex * 4 + WRITE
                out[used + 2] = vertex * 4 + DELETE
                used += 3
                if family[STORED] >= 0:
                    stored[family[STORED] + element, DONE] = 0 if zero else -1
                    stored[family[STORED] + element, BLOCK_OF] = 0 if zero else -1
            elif op == FILL:
                first, k = _element(family, elements, block, element)
                if k == 0:
                    out[used] = first * 4 + COMPUTE
                    used += 1
            elif op == CONSTANT:
                out[used] = (family[INITIAL] + element) * 4 + COMPUTE
                used += 1
            elif op == SCRIPT:
                used = _script(out, used, scripts, ins[FIRST], ins[LAST], families, elements, ranges, tiles, i, j)
            else:
                first, k = _element(family, elements, block, element)
                if k == 0:  # no terms: it is a constant, or the value that it would be added to
                    if ins[FRESH] and ins[ONTO] < 0:
                        out[used] = first * 4 + COMPUTE
                        used += 1
                    continue
                tree = family[TREE]
                scripted = ins[LAST] > ins[FIRST]
                value = first + k
                if ins[ONTO] >= 0:
                    vertex, terms_of_value = _element(families[ins[ONTO]], elements, tiles[tile, BLOCK_OF], element)
                    value = _holder(vertex, terms_of_value, 1, 0, 0, terms_of_value)
                held = value
                masked = family[BEFORE] >= 0
                done, origin = term, 0
                if masked:  # terms are counted from the sum's first, or, if it is a block's alone, from the block's
                    origin = 0 if in_progress else _terms_before(family, before, index, i, j)
                    done = _terms_before(family, before, term, i, j) if in_progress else 0
                if done > 0:
                    held = first if done == 1 and not started else first + k + zero + started + done - 2
                if not masked and not scripted and tree == 1:  # most sums are so; the loop below does the same
                    for u in range(term, term + terms):
                        out[used] = (first + u) * 4 + COMPUTE
                        used, held = _add(out, used + 1, first, k, zero, started, u, held)
                    continue
                for at_term in range(terms):
                    u, c = term + at_term, index + at_term
                    if masked:
                        position = u if in_progress else c
                        u = _terms_before(family, before, position, i, j) - origin
                        if _terms_before(family, before, position + 1, i, j) - origin == u:
                            continue  # the mask leaves it out
                    if scripted:
                        used = _script(
                            out, used, scripts, ins[FIRST], ins[LEAF], families, elements, ranges, tiles, i, c
                        )
                    out[used] = (first + u) * 4 + COMPUTE
                    used += 1
                    if scripted:
                        used = _script(
                            out, used, scripts, ins[LEAF], ins[LAST], families, elements, ranges, tiles, i, c
                        )
                    if tree > 1:
                        used = _close(out, used, first, k, tree, zero, started, u, value)
                    else:
                        used, held = _add(out, used, first, k, zero, started, u, held)
        if op in (SUM, SCRIPT, CONSTANT):
            tiles[tile, DONE] = term + terms if in_progress else -1
            tiles[tile, BLOCK_OF] = -1 if op == CONSTANT else block
        if op == FILL:
            tiles[tile, FILLED] = 1
        state[PROGRESS] = 0
        state[PC] += 1
