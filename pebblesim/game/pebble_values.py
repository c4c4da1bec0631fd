"""Values in the machine of the `pebbles` reading: which vertex an element of a family is, and sums term by term.

A value is an element of a block of a family; a sum is a row of vertices, one for each term and each addition. The
functions here find the vertex of a value and make the additions; they are parts of `pebblesim.game.pebble_machine`.
"""

from __future__ import annotations

from typing import Any

from pebblesim.core.jit import kernel, part
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE

KINDS = COMPUTE, DELETE, READ, WRITE  # from another module; a compiled function on disk is valid for these values only

# columns of the table of families; PERIOD: number of consecutive indices of a range that make one block, 0 if there is
# only one block; RESTART: number of blocks after which a running value starts anew, or of all
BASE, STEP, LAST_BASE, INITIAL, ROW_LENGTH, ELEMENTS, K, K_LAST, BLOCKS, TREE, ZERO, STARTED, PERIOD, RESTART = range(
    14
)
# more columns, for a mask. TABLE: the family's first row in `elements`. BEFORE: its first entry in `before`. WIDE:
# number of entries of a line there. LINE: which index of an element is its line, 0 or 1. All are -1 without a mask.
TABLE, BEFORE, WIDE, LINE = range(14, 18)

# columns of the table of ranges; the tiles of a range cover its parent's indices from SKIPPED to END, or to the end of
# the parent if that comes first
PARENT, BLOCK, OFFSET, LENGTH, SKIPPED, END = range(6)

# the block that a CHECK asks for: the one that PART gives, the latest one before it, the last of all, or the last of
# the split that PART gives
THIS, BEFORE_IT, LATEST, END_OF_SPLIT = range(4)

# A cell is EMPTY, or it holds a family, a block and a number of terms, in these numbers of bits. Block -1 is the
# constant that a running value starts from.
EMPTY = -1
BLOCK_BITS, TERM_BITS = 24, 31


@kernel(allocates=False)
def cell(family: int, block: int, terms: int) -> int:
    """Return the cell of a value. `terms` is the number of terms so far for a sum, and 0 for any other value."""
    return (((family << BLOCK_BITS) | (block + 1)) << TERM_BITS) | terms


@kernel(allocates=False)
def family_of(held: int) -> int:
    return held >> (BLOCK_BITS + TERM_BITS)


@kernel(allocates=False)
def block_of(held: int) -> int:
    return ((held >> TERM_BITS) & ((1 << BLOCK_BITS) - 1)) - 1


@kernel(allocates=False)
def terms_of(held: int) -> int:
    return held & ((1 << TERM_BITS) - 1)


@part(*KINDS)
def first_of(family: Any, elements: Any, block: int, element: int) -> tuple[int, int]:
    """Return (first vertex, number of terms) of an element of a block."""
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


@part(*KINDS)
def value_of(family: Any, elements: Any, block: int, element: int) -> tuple[int, int, int]:
    """Return (first vertex, number of terms, block) of what a sum of this block is added to, in its family."""
    of_value = block if family[PERIOD] > 0 else 0
    first, k = first_of(family, elements, of_value, element)
    return first, k, of_value


@part(*KINDS)
def _node(first: int, k: int, tree: int, zero: int, started: int, block: int, layer: int, position: int) -> int:
    """Return the vertex of a sum of 2^layer neighbouring terms (fewer at the end) in a block of the tree."""
    m = min(tree, k - block * tree)
    while layer > 0:
        below = (m + (1 << (layer - 1)) - 1) >> (layer - 1)
        if 2 * position + 1 < below:
            break
        layer -= 1  # it has no neighbour here, so that it moved up unchanged
        position *= 2
    if layer == 0:
        return first + block * tree + position
    sums = first + k + zero + (block * tree - (1 - started) if block > 0 else 0)
    for g in range(1, layer):
        sums += ((m + (1 << (g - 1)) - 1) >> (g - 1)) // 2
    return sums + position


@part(*KINDS)
def holder(first: int, k: int, tree: int, zero: int, started: int, done: int) -> int:
    """Return the vertex of the sum of the first `done` terms; -1 if there is none, or if several vertices hold it."""
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


@part(*KINDS)
def close(out: Any, used: int, first: int, k: int, tree: int, zero: int, started: int, term: int, value: int) -> int:
    """Make the additions of a tree of blocks that are possible once a term is computed; return the moves used.

    `value` is the vertex that the whole sum is added to, if it starts from one.
    """
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
        before = value if block == 0 else holder(first, k, tree, zero, started, block * tree)
        total = first + k + zero + (block * tree - (1 - started)) + m - 1
        out[used] = total * 4 + COMPUTE
        out[used + 1] = before * 4 + DELETE
        out[used + 2] = _node(first, k, tree, zero, started, block, layer - 1, 0) * 4 + DELETE
        used += 3
    return used


@part(*KINDS)
def _merge(
    out: Any, used: int, first: int, k: int, tree: int, zero: int, started: int, block: int, layer: int, position: int
) -> int:
    out[used] = _node(first, k, tree, zero, started, block, layer, position) * 4 + COMPUTE
    out[used + 1] = _node(first, k, tree, zero, started, block, layer - 1, 2 * position) * 4 + DELETE
    out[used + 2] = _node(first, k, tree, zero, started, block, layer - 1, 2 * position + 1) * 4 + DELETE
    return used + 3


@part(*KINDS)
def add(out: Any, used: int, first: int, k: int, zero: int, started: int, u: int, held: int) -> tuple[int, int]:
    """Add term u of a chain to the sum so far; return the number of moves used, and the vertex of the new sum."""
    leaf = first + u
    if u == 0 and not started:
        return used, leaf
    total = first + k + zero + started + u - 1
    out[used] = total * 4 + COMPUTE
    out[used + 1] = held * 4 + DELETE
    out[used + 2] = leaf * 4 + DELETE
    return used + 3, total


@part(*KINDS)
def terms_before(family: Any, before: Any, index: int, i: int, j: int) -> int:
    """Return the number of terms that the sum of element [i, j] has before an index."""
    if family[BEFORE] < 0:
        return index
    line = 0 if family[LINE] < 0 else j if family[LINE] == 1 else i
    return before[family[BEFORE] + line * family[WIDE] + index]


@part(*KINDS)
def block_at(ranges: Any, rng: int, family: Any) -> int:
    """Return the block of a family that contains the range's current tile; 0 without a range, or with one block."""
    return ranges[rng, OFFSET] // family[PERIOD] if rng >= 0 and family[PERIOD] > 0 else 0


@part(*KINDS)
def _latest(family: Any, elements: Any, first: int, beyond: int, element: int) -> int:
    """Return the last of some blocks in which an element exists; -1 if there is none."""
    block = beyond - 1
    if family[TABLE] >= 0:
        while block >= first and elements[family[TABLE] + block * family[ELEMENTS] + element, 0] < 0:
            block -= 1
    return block if block >= first else -1


@part(*KINDS)
def block_asked(family: Any, elements: Any, kind: int, block: int, element: int) -> int:
    """Return the block that a CHECK asks for."""
    first, beyond = 0, family[BLOCKS]
    if kind == THIS:
        return block
    if kind != LATEST:
        first = block - block % family[RESTART]
        beyond = block if kind == BEFORE_IT else min(first + family[RESTART], family[BLOCKS])
    return _latest(family, elements, first, beyond, element)


@part(*KINDS)
def vertex_of(families: Any, elements: Any, held: int, i: int, j: int) -> int:
    """Return the vertex of a cell at [i, j]; -1 for a sum that several vertices hold."""
    family = families[family_of(held)]
    first, k = first_of(family, elements, block_of(held), i * family[ROW_LENGTH] + j)
    return holder(first, k, family[TREE], family[ZERO], family[STARTED], terms_of(held))
