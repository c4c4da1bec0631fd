"""The game of whole lines (docs/lower-bounds.md, section 6): its least loads by exhaustive search, and the theorem.

A cache holds b lines, of m rows and n keys; each row must be there together with each key at some time. The search
shares nothing with pebblesim.
"""

from fractions import Fraction
from functools import cache

import pytest

Lines = frozenset[int]
State = tuple[Lines, Lines, frozenset[tuple[int, int]]]
"""Rows there, keys there, pairs not met."""


def least_loads(m: int, n: int, b: int) -> int:
    """The least loads if each row meets each key."""
    return least_loads_of(frozenset((i, j) for i in range(m) for j in range(n)), m, n, b)


@cache
def least_loads_of(pairs: frozenset[tuple[int, int]], m: int, n: int, b: int) -> int:
    """Breadth-first search over states, up to the order of rows and of keys."""
    start: State = (frozenset(), frozenset(), pairs)
    seen, layer, loads = {canonical(start, m, n)}, [start], 0
    while all(unmet for _, _, unmet in layer):
        following = []
        for state in layer:
            for after in loaded(state, b):
                image = canonical(after, m, n)
                if image not in seen:
                    seen.add(image)
                    following.append(after)
        layer, loads = following, loads + 1
    return loads


def loaded(state: State, b: int) -> list[State]:
    """The states after one more load; a line leaves only if the cache is full."""
    rows, keys, unmet = state
    there = [(rows, keys)]
    if len(rows) + len(keys) == b:
        there = [(rows - {i}, keys) for i in rows] + [(rows, keys - {j}) for j in keys]
    after: list[State] = []
    for left_rows, left_keys in there:
        for i in {i for i, _ in unmet} - left_rows:
            after.append((left_rows | {i}, left_keys, unmet - {(i, j) for j in left_keys}))
        for j in {j for _, j in unmet} - left_keys:
            after.append((left_rows, left_keys | {j}, unmet - {(i, j) for i in left_rows}))
    return after


def canonical(state: State, m: int, n: int) -> object:
    """An image under renaming of rows and keys: not unique, but states with one image are the same but for names."""
    rows, keys, unmet = state
    order = sorted(range(m), key=lambda i: (i in rows, sum((i, j) in unmet for j in range(n)), i))
    columns = sorted(range(n), key=lambda j: [j in keys, *((i, j) in unmet for i in order)])
    table = sorted([i in rows, *((i, j) in unmet for j in columns)] for i in order)
    return tuple(map(tuple, table)), tuple(j in keys for j in columns)


def theorem(m: int, n: int, b: int) -> Fraction:
    """(b - 1) L ≥ mn + Σ_u (min(2u, b) - 2)/2 + b(b - 1)/2, the sum over u = 1 … min(m, n); for L ≥ b."""
    matched = sum(Fraction(min(2 * u, b) - 2, 2) for u in range(1, min(m, n) + 1))
    return (m * n + matched + Fraction(b * (b - 1), 2)) / (b - 1)


GAMES = [(m, n, b) for m in range(2, 5) for n in range(m, 6) for b in range(2, m + n) if m * n <= 12]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("m", "n", "b"), GAMES)
def test_no_game_of_lines_has_fewer_loads(m: int, n: int, b: int) -> None:
    least = least_loads(m, n, b)
    assert least >= m + n and least >= theorem(m, n, b)
    assert least >= Fraction(m * n, b) + min(m, n)  # as far as games have been solved


def several_times(m: int, n: int, b: int) -> Fraction:
    """(7) for lines of one word, r = 1, and no pairs: m + n + n - b + (m - 1)/2 for b < n, or the same turned."""
    assert b < min(m, n)
    return m + n + min(n - b + Fraction(m - 1, 2), m - b + Fraction(n - 1, 2))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("m", "n", "b"), [*(game for game in GAMES if game[2] < min(game[:2])), (4, 4, 2), (4, 4, 3)])
def test_lines_of_one_side_are_there_at_several_times_or_come_again(m: int, n: int, b: int) -> None:
    least, bound = least_loads(m, n, b), several_times(m, n, b)
    assert least >= bound
    if (m, n, b) == (4, 4, 3):
        assert least == -(-bound // 1) > theorem(m, n, b)


def test_the_theorem_is_met_and_exceeds_the_lines_themselves() -> None:
    met = [(m, n, b) for m, n, b in GAMES if least_loads(m, n, b) == -(-theorem(m, n, b) // 1) > m + n]
    assert len(met) >= 3, met


WINDOWS = [(3, 3), *(pytest.param(n, w, marks=pytest.mark.slow) for n, w in [(4, 2), (4, 3), (4, 4), (5, 2), (5, 3)])]


@pytest.mark.parametrize(("n", "w"), WINDOWS)
def test_windows_need_as_many_lines_as_they_are_wide(n: int, w: int) -> None:
    """L ≥ 2n + ⌊n/w⌋(w - b): each of ⌊n/w⌋ triangles has a time at which w of its lines are there or come again."""
    pairs = frozenset((i, j) for i in range(n) for j in range(n) if 0 <= i - j < w)
    for b in range(2, w + 2):
        least = least_loads_of(pairs, n, n, b)
        assert least >= 2 * n + n // w * max(0, w - b)
        assert (least == 2 * n) == (b >= w)
