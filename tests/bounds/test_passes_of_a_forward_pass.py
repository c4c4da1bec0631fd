"""At M = d² no sequence of passes over all pairs moves less than 4n² words forward: the cheapest one, by search."""

from __future__ import annotations

from functools import cache
from heapq import heappop, heappush
from math import inf, sqrt

import pytest

PARTS = 6
"""Columns of Q and K, and of V and O, are taken in so many equal parts."""

BLOCKS = [2 ** (k / 4) for k in range(-20, 21)]
"""Keys of a tile that waits, in units of d."""

State = tuple[frozenset[int], int]
"""For each value that memory has of all pairs, how many parts of its score are summed; and the parts of O done."""


def shares(t: float) -> list[float]:
    """What may stay of t, in parts of the columns."""
    return [k / PARTS for k in range(round(t * PARTS) + 1)]


@cache
def words(x: float, y: float, held: bool) -> float:
    """The least of the ways of a pass, words a pair; `held`: P comes from memory, whose words are counted elsewhere."""
    rows, keys, tiles = (x + y) ** 2, (x + y) * (x + 2 * y), 2 * x + 2 * sqrt(2) * y
    mixed = min((x + y) * (b + w) + (x + 2 * y - w - min(w, y)) / b for w in shares(x + y) for b in BLOCKS)
    of_sums = min(y * (b + 1 / b) - 1 for b in (y / 2, y)) if held and not x and y else inf  # the read of P is in it
    return min(rows, keys, tiles, mixed, of_sums)


def after(state: State, most: float = 1.0) -> list[tuple[float, State]]:
    """The passes from a state on, each with its words, reads and writes of pairs among them."""
    stored, done = state
    found = []
    for begun in (0, *stored):
        for scores in range(PARTS - begun + 1):
            complete = begun + scores == PARTS
            for columns in range(PARTS - done + 1 if complete else 1):
                moved = words(scores / PARTS, columns / PARTS, held=begun == PARTS) + (begun > 0) * most
                found.append((moved, (stored, done + columns)))
                found.append((moved + most, (stored | {begun + scores} - {0}, done + columns)))
    return found


def least(word: float) -> float:
    """The words a pair of the cheapest sequence, if a read or a write of a pair costs so much."""
    start: State = frozenset(), 0
    best, waiting, number = {start: 0.0}, [(0.0, 0, start)], 0
    while waiting:
        moved, _, state = heappop(waiting)
        if state[1] == PARTS:
            return moved
        if moved > best[state]:
            continue
        for more, following in after(state, word):
            if moved + more < best.get(following, inf):
                best[following] = moved + more
                number += 1
                heappush(waiting, (moved + more, number, following))
    raise AssertionError("no sequence computes O")


def test_no_sequence_of_passes_moves_less() -> None:
    assert least(1.0) == pytest.approx(4)


def test_with_cheaper_words_of_pairs_some_do() -> None:
    """Stored scores cost 2 + 2w then, so that the search sees them."""
    assert least(0.5) < 3.1
