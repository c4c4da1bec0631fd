"""The machine of the `pebbles` reading: it runs a program and turns instructions on tiles into moves on vertices.

It knows the numbering of `pebblesim.game.numbering`, but not the graph itself. Each row of `code` is an instruction.
The machine fills a buffer with moves, returns when the buffer is nearly full, and continues from there at the next
call.

For each word in cache, and for each word in memory that is not an input, a *cell* records which value the word holds:
its family, its block, and for a sum the number of its terms so far. Before a primitive uses a value, the machine
compares the cell with the value that is needed. So no term is added twice, and no tile is used as a value that it does
not hold.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pebblesim.core.jit import kernel, part
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE
from pebblesim.game.pebble_values import (
    BEFORE,
    BLOCK,
    ELEMENTS,
    EMPTY,
    END,
    INITIAL,
    KINDS,
    LENGTH,
    OFFSET,
    PARENT,
    PERIOD,
    ROW_LENGTH,
    SKIPPED,
    STARTED,
    TABLE,
    TREE,
    ZERO,
    add,
    block_asked,
    block_at,
    cell,
    close,
    first_of,
    holder,
    terms_before,
    value_of,
    vertex_of,
)

# instructions, and their columns
LOOP, NEXT, EACH, INIT, CONSTANT, MOVE, SCRIPT, SUM, HALT, START, FILL, CHECK = range(12)
(
    OP,
    AREA,  # the tile that it works on; INIT, CHECK: the tile or the tensor
    OTHER,  # MOVE: the tile whose words it takes; EACH: the tensor that is read or written, -1 for an input
    FAMILY,  # the family of the words; if it computes them, of the new ones
    ROWS,  # its row range
    COLUMNS,  # its column range, -1 for a vector
    PART,  # the range that gives the block: the block that contains its tile; -1 if the family has one block
    KIND,  # EACH: which move; CHECK: which block; INIT: the constant that elements must be, -1 if they start from it
    SURE,  # READ: 1 if the tensor must hold finished values of the family; SCRIPT: 1 if it changes a tile in place
    JUMP,  # LOOP: the instruction after its NEXT; NEXT: the instruction after its LOOP
    FIRST,  # SCRIPT, SUM: first step of the script
    LEAF,  # SUM: the term is computed before this step
    LAST,  # SCRIPT, SUM: the step after the last one
    TERMS,  # SUM: the range of the summation index
    OUTER,  # SUM: the range whose block number is the major part of a term's number, -1 if none
    EVERY,  # SUM: number of indices in such a block
    WHOLE,  # SUM: number of terms for each of these blocks
    FRESH,  # SUM: 1 if it creates a new tile
    ONTO,  # SUM, FILL: the family of the value that the sum is added to, -1 if none
    MET_ROWS,  # LOOP, NEXT: the loop runs for tiles with an allowed pair of the mask in these rows ...
    MET_COLUMNS,  # ... and these columns; -1 if it runs for all tiles
    MET,  # LOOP, NEXT: 1; or 0 if it runs for the tiles without an allowed pair
    APART,  # EACH: the range whose tile gives the copy of the tensor that is read or written, -1 if there is one copy
    WIDTH,
) = range(24)

# columns of a step of a script; AT is the range that gives the block
STEP_KIND, STEP_FAMILY, VECTOR, AT = range(4)

# columns of the table of areas (tiles and tensors): the two ranges of an area, and its first cell
AREA_ROWS, AREA_COLUMNS, CELLS = range(3)

PC, PROGRESS, STATUS, AT_ROW, AT_COLUMN, HOLDS, MEANT = range(7)
RUNNING, FINISHED, PARTIAL, MISMATCH = range(4)


def start() -> Any:
    """Return the state before the first instruction."""
    return np.zeros(7, np.int64)


@part(*KINDS)
def _runs(ins: Any, ranges: Any, pairs: Any) -> bool:
    """Whether a loop runs for its current tile under the mask.

    pairs[i, j] is the number of allowed pairs of rows < i and columns < j.
    """
    if ins[MET_ROWS] < 0:
        return True
    rows, columns = ranges[ins[MET_ROWS]], ranges[ins[MET_COLUMNS]]
    top, bottom = rows[OFFSET], rows[OFFSET] + rows[LENGTH]
    left, right = columns[OFFSET], columns[OFFSET] + columns[LENGTH]
    some = pairs[bottom, right] - pairs[top, right] - pairs[bottom, left] + pairs[top, left]
    return (some > 0) == (ins[MET] == 1)


@part(*KINDS)
def _next_tile(ins: Any, ranges: Any, pairs: Any, pc: int) -> int:
    """Begin a loop, or go on to its next tile that the mask allows; return the next instruction."""
    rng = ranges[ins[ROWS]]
    parent = ranges[rng[PARENT]]
    begins = ins[OP] == LOOP
    offset = parent[OFFSET] + rng[SKIPPED] if begins else rng[OFFSET] + rng[BLOCK]
    end = parent[OFFSET] + min(parent[LENGTH], rng[END])
    while offset < end:
        rng[OFFSET] = offset
        rng[LENGTH] = min(rng[BLOCK], end - offset)
        if _runs(ins, ranges, pairs):
            return pc + 1 if begins else int(ins[JUMP])
        offset += rng[BLOCK]
    return int(ins[JUMP]) if begins else pc + 1


@part(*KINDS)
def _mismatch(state: Any, i: int, j: int, holds: int, meant: int) -> None:
    state[STATUS], state[AT_ROW], state[AT_COLUMN], state[HOLDS], state[MEANT] = MISMATCH, i, j, holds, meant


@part(*KINDS)
def _script(
    out: Any, used: int, scripts: Any, first: int, last: int, families: Any, elements: Any, ranges: Any, i: int, j: int
) -> int:
    """Make the moves of a script for element [i, j]; return the number of moves used."""
    for row in range(first, last):
        step = scripts[row]
        family = families[step[STEP_FAMILY]]
        element = i if step[VECTOR] else i * family[ROW_LENGTH] + j
        vertex, k = first_of(family, elements, block_at(ranges, step[AT], family), element)
        vertex = holder(vertex, k, 1, family[ZERO], family[STARTED], k)
        out[used] = vertex * 4 + step[STEP_KIND]
        used += 1
    return used


@kernel(*KINDS, allocates=False)
def run(
    code: Any,
    scripts: Any,
    families: Any,
    elements: Any,
    before: Any,
    pairs: Any,
    ranges: Any,
    areas: Any,
    cells: Any,
    state: Any,
    out: Any,
    longest: int,
) -> int:
    """Fill `out` with moves; return their number.

    Args:
        code, scripts, families, areas: tables, not changed.
        elements, before, pairs: tables of a mask, not changed: (first vertex, terms, constant) of each element,
            number of terms before each index, and number of allowed pairs before each row and column.
        ranges: table of ranges, with their current offset and length.
        cells: the cell of each word of each area.
        state: next instruction, number of its elements that are done, status; and after a mismatch the row and column,
            the cell that was found and the cell that is needed.
        out: buffer of moves.
        longest: an upper bound on the moves that one element of any instruction takes.
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
            state[PC] = _next_tile(ins, ranges, pairs, state[PC])
            continue

        number = ins[FAMILY]
        family = families[number]
        zero, started, tree = family[ZERO], family[STARTED], family[TREE]
        row, rows = ranges[ins[ROWS], OFFSET], ranges[ins[ROWS], LENGTH]
        column, columns = 0, 1
        if ins[COLUMNS] >= 0:
            column, columns = ranges[ins[COLUMNS], OFFSET], ranges[ins[COLUMNS], LENGTH]
        area = areas[ins[AREA]]
        wide, corner = 1, area[CELLS] - ranges[area[AREA_ROWS], OFFSET]
        if area[AREA_COLUMNS] >= 0:
            wide = ranges[area[AREA_COLUMNS], LENGTH]
            corner = area[CELLS] - ranges[area[AREA_ROWS], OFFSET] * wide - ranges[area[AREA_COLUMNS], OFFSET]
        beyond = 0  # distance from a cell of the tile to that of the other tile, or the first cell of the tensor
        if ins[OTHER] >= 0:
            other = areas[ins[OTHER]]
            beyond = other[CELLS] - area[CELLS] if op == MOVE else other[CELLS]
            if op == EACH and ins[APART] >= 0:
                tiles = ranges[ins[APART]]
                beyond += tiles[OFFSET] // tiles[BLOCK] * family[ELEMENTS]
        block = block_at(ranges, ins[PART], family)
        index = terms = term = 0
        masked = family[BEFORE] >= 0
        if op == SUM:
            index, terms = ranges[ins[TERMS], OFFSET], ranges[ins[TERMS], LENGTH]
            term = index
            if family[PERIOD] > 0:
                block = index // family[PERIOD]
            elif ins[OUTER] >= 0:
                term += ranges[ins[OUTER], OFFSET] // ins[EVERY] * ins[WHOLE]
        begin = block * family[PERIOD]  # first term of the block
        for at in range(state[PROGRESS], rows * columns):
            if used > room:
                state[PROGRESS] = at
                return used
            i, j = row + at // columns, column + at % columns
            element = i * family[ROW_LENGTH] + j
            place = corner + i * wide + j
            held = cells[place]
            if op == EACH:
                kind = ins[KIND]
                if kind == READ:
                    first, k = first_of(family, elements, 0 if family[INITIAL] < 0 else -1, element)
                    finished = cell(number, 0 if family[INITIAL] < 0 else -1, k)
                    held = finished
                    if ins[OTHER] >= 0:
                        held = cells[beyond + element]
                    if held == EMPTY or (ins[SURE] and held != finished):
                        _mismatch(state, i, j, held, finished)
                        return used
                    cells[place] = held
                elif held == EMPTY:
                    if kind == WRITE:
                        _mismatch(state, i, j, held, held)
                        return used
                    continue
                vertex = vertex_of(families, elements, held, i, j)
                if vertex < 0:
                    state[STATUS] = PARTIAL
                    return used
                if kind == WRITE:
                    cells[beyond + element] = held
                elif kind == DELETE:
                    cells[place] = EMPTY
                out[used] = vertex * 4 + kind
                used += 1
            elif op == START:
                cells[place] = EMPTY
            elif op == MOVE:
                cells[place] = cells[place + beyond]
                cells[place + beyond] = EMPTY
            elif op == INIT:
                first, k = first_of(family, elements, 0, element)
                if ins[KIND] >= 0 and elements[family[TABLE] + element, 2] != ins[KIND]:
                    _mismatch(state, i, j, elements[family[TABLE] + element, 2], EMPTY)
                    return used
                vertex = first + k if zero else family[INITIAL] + element if family[INITIAL] >= 0 else first
                out[used] = vertex * 4 + COMPUTE
                out[used + 1] = vertex * 4 + WRITE
                out[used + 2] = vertex * 4 + DELETE
                used += 3
                cells[place] = cell(number, -1 if not zero and family[INITIAL] >= 0 else 0, 0)
            elif op == FILL:
                first, k = first_of(family, elements, block, element)
                if k == 0 and held == EMPTY:
                    if ins[ONTO] >= 0:  # what it would be added to is a sum without terms, too
                        first, k, _ = value_of(families[ins[ONTO]], elements, block, element)
                    out[used] = first * 4 + COMPUTE
                    used += 1
                    cells[place] = cell(number, block, 0)
            elif op == CONSTANT:
                out[used] = (family[INITIAL] + element) * 4 + COMPUTE
                used += 1
                cells[place] = cell(number, -1, 0)
            elif op == CHECK:
                wanted = block_asked(family, elements, ins[KIND], block, element)
                first, k = first_of(family, elements, wanted, element)
                if held != cell(number, wanted, k):
                    _mismatch(state, i, j, held, cell(number, wanted, k))
                    return used
            elif op == SCRIPT:
                used = _script(out, used, scripts, ins[FIRST], ins[LAST], families, elements, ranges, i, j)
                if ins[SURE]:
                    vertex = -1 if held == EMPTY else vertex_of(families, elements, held, i, j)
                    if vertex < 0:
                        state[STATUS] = PARTIAL
                        return used
                    out[used] = vertex * 4 + DELETE
                    used += 1
                cells[place] = cell(number, block, 0)
            else:
                first, k = first_of(family, elements, block, element)
                count, now = term - begin, term + terms - begin
                origin = 0
                if masked:  # only pairs that the mask allows give terms
                    origin = terms_before(family, before, begin, i, j)
                    count = terms_before(family, before, term, i, j) - origin
                    now = terms_before(family, before, term + terms, i, j) - origin
                if k == 0:  # a sum without terms is a constant, or the value that it would be added to
                    count = now = 0
                value = first + k
                meant = cell(number, block, count)
                if ins[ONTO] >= 0:  # also needed after the first terms: a tree adds the value to a whole block of them
                    onto = families[ins[ONTO]]
                    value, terms_of_value, of_value = value_of(onto, elements, block, element)
                    if k == 0 and terms_of_value == 0 and held == EMPTY:
                        continue  # a FILL will compute the constant
                    if count == 0:
                        meant = cell(ins[ONTO], of_value, terms_of_value)
                    value = holder(value, terms_of_value, onto[TREE], onto[ZERO], onto[STARTED], terms_of_value)
                elif count == 0 and (not started or (k == 0 and not zero)):
                    meant = EMPTY
                if k == 0 and held == cell(number, block, 0):  # by a FILL, or an earlier tile: it does not change
                    meant = held
                if now > k or (ins[FRESH] and count > 0) or (not ins[FRESH] and held != meant):
                    _mismatch(state, i, j, held, meant)
                    return used
                if k == 0:
                    if ins[FRESH] and ins[ONTO] < 0:
                        out[used] = first * 4 + COMPUTE
                        used += 1
                    if ins[FRESH] or ins[ONTO] >= 0:
                        cells[place] = cell(number, block, 0)
                    continue
                if now == 0 and ins[ONTO] >= 0:  # no term in this tile: still the value that the sum will be added to
                    continue
                cells[place] = cell(number, block, now) if now > 0 or started else EMPTY
                scripted = ins[LAST] > ins[FIRST]
                vertex = value
                if count > 0:
                    vertex = first if count == 1 and not started else first + k + zero + started + count - 2
                if not masked and not scripted and tree == 1:  # a fast way for most sums; the loop below does the same
                    for u in range(count, now):
                        out[used] = (first + u) * 4 + COMPUTE
                        used, vertex = add(out, used + 1, first, k, zero, started, u, vertex)
                    continue
                for at_term in range(terms):
                    u, c = count + at_term, index + at_term
                    if masked:
                        u = terms_before(family, before, term + at_term, i, j) - origin
                        if terms_before(family, before, term + at_term + 1, i, j) - origin == u:
                            continue  # the mask does not allow this pair
                    if scripted:
                        used = _script(out, used, scripts, ins[FIRST], ins[LEAF], families, elements, ranges, i, c)
                    out[used] = (first + u) * 4 + COMPUTE
                    used += 1
                    if scripted:
                        used = _script(out, used, scripts, ins[LEAF], ins[LAST], families, elements, ranges, i, c)
                    if tree > 1:
                        used = close(out, used, first, k, tree, zero, started, u, value)
                    else:
                        used, vertex = add(out, used, first, k, zero, started, u, vertex)
        state[PROGRESS] = 0
        state[PC] += 1
