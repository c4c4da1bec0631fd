"""Devices of few words against brute force: the passes of `tiles-in-passes`, and the bound P3."""

import itertools
from functools import cache
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings, strategies as st
from machines.test_devices import may_see, teams
from strategies import amount

from pebblesim.parallel.bounds import with_memory
from pebblesim.parallel.count import Layout, Moved, best, splits
from pebblesim.parallel.schedules import SCHEDULES, Split
from pebblesim.parallel.team import Team

PASSES = SCHEDULES["tiles-in-passes"]

# -- tiles-in-passes ------------------------------------------------------------------------------------------------


def words_by_hand(team: Team) -> tuple[int, int, int]:
    """The words of a row and of a key, received and sent, and the most that a device owns."""
    if team.backward:
        row = 2 * team.d_k + team.d_v + 2  # Q, dO, L, D; dQ
        key = 2 * team.d_k if team.latent else 2 * (team.d_k + team.d_v)
    else:
        row, key = team.d_k + team.d_v + 1, team.d_k if team.latent else team.d_k + team.d_v
    return row, key, max(owned(team, p, row, key) for p in range(team.P))


def owned(team: Team, p: int, row: int, key: int) -> int:
    return team.heads * len(set(team.own_rows[p])) * row + team.kv_heads * len(set(team.own_keys[p])) * key


def least_passes(rows: int, at_once: int) -> int:
    """The fewest lots of at most so many rows: found by dealing one more lot until no row is left."""
    lots = 0
    while rows > 0:
        rows, lots = rows - at_once, lots + 1
    return lots


def device(team: Team, split: Split, p: int, M: int) -> tuple[int, int]:
    """The words that a device moves, and the least that it must hold: every set of rows at once is tried.

    A device has a tile of rows and keys, and of these it gets what it does not own and what some pair needs.
    """
    row, key, _ = words_by_hand(team)
    share = Layout(team, split).shares[p]
    I, J = set(share.rows), set(share.keys)
    if team.causal:
        I, J = (
            {i for i in I if any(may_see(team, i, j) for j in J)},
            {j for j in J if any(may_see(team, i, j) for i in I)},
        )
    rows, keys = I - set(team.own_rows[p]), J - set(team.own_keys[p])
    beside = owned(team, p, row, key) + (key if keys else 0)
    sharing, groups = len(share.heads) // len(share.kv_heads), len(share.kv_heads)
    ways = [at_once for at_once in range(1, sharing * len(rows) + 1) if beside + at_once * row <= M]
    held = beside + (max(ways, default=1) * row if rows else 0)
    passes = min((least_passes(sharing * len(rows), each) for each in ways), default=sharing * len(rows))
    return groups * (sharing * len(rows) * row + len(keys) * key * (passes if rows else 1)), held


@given(teams(), st.integers(0, 60))
@settings(max_examples=amount(20, 1500))
def test_tiles_in_passes_moves_what_trying_all_lots_of_rows_moves(team: Team, more: int) -> None:
    """For each tile, device by device; and the best tile is the one with the fewest words of those that fit into M."""
    M = words_by_hand(team)[2] + more
    fitting = []
    for split in splits(PASSES, team):
        moved = Moved(PASSES, Layout(team, split), M)
        by_hand = [device(team, split, p, M) for p in range(team.P)]
        assert moved.each == [words for words, _ in by_hand]
        assert moved.words_held == max(held for _, held in by_hand)
        if max(held for _, held in by_hand) <= M:
            fitting.append(max(words for words, _ in by_hand))
    found = best(PASSES, team, M)
    assert (found.words_held <= M) == bool(fitting)
    assert not fitting or found.words == min(fitting)


# -- P3

Word = tuple[str, int, int]
State = tuple[frozenset[Word], frozenset[tuple[int, int]]]


def least_of_a_device(n_q: int, n_k: int, M: int, pairs: int) -> int | None:
    """The fewest words that a device with M words moves until it has computed so many pairs; d = 1 and one head.

    A device begins with any words; a score waits as one word, is computed from Q and K, or is received. A sum O_i
    begins without a word and leaves as one, or stays to the end; no term may be lost. Dijkstra over what is held and
    which pairs are done, up to the names of rows and keys.
    """
    words = [("Q", i, 0) for i in range(n_q)] + [("O", i, 0) for i in range(n_q)]
    words += [(name, j, 0) for name in "KV" for j in range(n_k)]
    words += [("S", i, j) for i in range(n_q) for j in range(n_k)]
    best_of: dict[State, int] = {}
    queue: list[tuple[int, int, State]] = []
    ties = itertools.count()

    def reach(io: int, held: frozenset[Word], done: frozenset[tuple[int, int]]) -> None:
        state = smallest(n_q, n_k, held, done)
        if io < best_of.get(state, 1 << 30):
            best_of[state] = io
            heappush(queue, (io, next(ties), state))

    for size in range(M + 1):
        for some in itertools.combinations(words, size):
            reach(0, frozenset(some), frozenset())
    while queue:
        io, _, (held, done) = heappop(queue)
        if best_of[held, done] < io:
            continue
        if len(done) >= pairs:
            return io
        for word in held:
            reach(io + (word[0] == "O"), held - {word}, done)
        for i, j in itertools.product(range(n_q), range(n_k)):
            scored = ("S", i, j) in held
            if (i, j) not in done and scored and {("O", i, 0), ("V", j, 0)} <= held:
                reach(io, held - {("S", i, j)}, done | {(i, j)})
        if len(held) < M:
            for word in set(words) - held:
                name, i, j = word
                free = name == "O" or (name == "S" and {("Q", i, 0), ("K", j, 0)} <= held)
                if name != "S" or (i, j) not in done:
                    reach(io + (not free), held | {word}, done)
    return None


def smallest(n_q: int, n_k: int, held: frozenset[Word], done: frozenset[tuple[int, int]]) -> State:
    """One state of those that differ in the order of rows and of keys only."""

    def image(rows: tuple[int, ...], keys: tuple[int, ...]) -> tuple[list[Word], list[tuple[int, int]]]:
        place = {"Q": rows, "O": rows, "K": keys, "V": keys}
        return (
            sorted((x, rows[i], keys[j]) if x == "S" else (x, place[x][i], 0) for x, i, j in held),
            sorted((rows[i], keys[j]) for i, j in done),
        )

    first, second = min(image(rows, keys) for rows, keys in _orders(n_q, n_k))
    return frozenset(first), frozenset(second)


@cache
def _orders(n_q: int, n_k: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return list(itertools.product(itertools.permutations(range(n_q)), itertools.permutations(range(n_k))))


SIZES = [
    (2, 2, 1, 3),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 3, 1, 3), (3, 2, 1, 3), (3, 3, 2, 3), (3, 3, 1, 3))),
]


@pytest.mark.parametrize(("n_q", "n_k", "P", "M"), SIZES)
def test_no_device_of_m_words_moves_fewer_than_p3(n_q: int, n_k: int, P: int, M: int) -> None:
    team = Team(n_q, n_k, 1, 1, 1, 1, P, False, False)
    least = least_of_a_device(n_q, n_k, M, -(-n_q * n_k // P))
    assert least is not None
    assert 0 < with_memory(team, M) <= least
