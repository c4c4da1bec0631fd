"""Automatic caches: every policy against a simulation that is written down as the definition says, word by word."""

import bisect
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pebblesim.caches import kernels

READ, WRITE, UPDATE = 1, 2, 3
Use = tuple[int, int]  # an item, and what is done with it


def words(uses: list[Use], sizes: list[int]) -> list[tuple[tuple[int, int], int]]:
    return [((item, word), kind) for item, kind in uses for word in range(sizes[item])]


def listed(uses: list[tuple[Any, int]], capacity: int, policy: str, kept: Any) -> tuple[int, int, int]:
    """(missed, fetched, written) of a cache of so many words, as a list from which a victim is taken."""
    held: list[Any] = []
    dirty: set[Any] = set()
    missed = fetched = written = 0
    for now, (word, kind) in enumerate(uses):
        if word in held:
            if policy == "lru":
                held.remove(word)
                held.append(word)
        else:
            missed += 1
            fetched += kind in (READ, UPDATE)
            held.append(word)
            if len(held) > capacity:
                choice = {"lru": held, "fifo": held, "belady": held[:-1], "opt": held[::-1]}[policy]
                victim = choice[0] if policy in ("lru", "fifo") else max(choice, key=lambda word: _rank(uses, now, word))
                held.remove(victim)
                if victim in dirty:
                    written += 1
                    dirty.discard(victim)
        if kind in (WRITE, UPDATE):
            if word in held:
                dirty.add(word)
            else:
                written += 1
    return missed, fetched, written + sum(kept(word) for word in dirty)


def _rank(uses: list[tuple[Any, int]], now: int, word: Any) -> tuple[int, int]:
    for later in range(now + 1, len(uses)):
        if uses[later][0] == word:
            return (int(uses[later][1] == WRITE), later)
    return (2, 0)


@st.composite
def streams(draw: st.DrawFn, largest: int = 4) -> tuple[list[Use], list[int], list[bool]]:
    """Uses of some items, their sizes, and which are kept."""
    items = draw(st.integers(1, 6))
    kinds = st.sampled_from(draw(st.sampled_from([[READ], [READ, WRITE, UPDATE]])))
    uses = draw(st.lists(st.tuples(st.integers(0, items - 1), kinds), max_size=40))
    sizes = draw(st.lists(st.integers(1, largest), min_size=items, max_size=items))
    return uses, sizes, draw(st.lists(st.booleans(), min_size=items, max_size=items))


def arrays(stream: tuple[list[Use], list[int], list[bool]]) -> tuple[Any, Any, Any, Any]:
    uses, sizes, kept = stream
    return (
        np.array([item for item, _ in uses], np.int32),
        np.array([kind for _, kind in uses], np.uint8),
        np.array(sizes, np.int64),
        np.array(kept, bool),
    )


@given(streams(), st.integers(1, 20))
def test_lru_of_items_is_lru_of_their_words(stream: Any, capacity: int) -> None:
    uses, sizes, kept = stream
    ids, kinds, size, keep = arrays(stream)
    expected = listed(words(uses, sizes), capacity, "lru", lambda word: kept[word[0]])
    missed, fetched, written = kernels.lru_sized(ids, kinds, size, keep, capacity, capacity)
    assert fetched == expected[1]
    if all(kept) and max(sizes) <= capacity:  # items are written back whole, the larger ones when they are used
        assert written == expected[2]
    distances = kernels.sized_distances(ids, size)
    capacities = np.arange(1, 21)
    all_of_them = kernels.tally(ids, kinds, size, keep, distances, capacities)
    assert tuple(all_of_them[:, capacity - 1]) == (missed, fetched, written)


@given(streams(largest=1), st.integers(1, 8))
def test_policies_for_single_words(stream: Any, capacity: int) -> None:
    uses, sizes, kept = stream
    ids, kinds, size, keep = arrays(stream)
    single = [(word[0], kind) for word, kind in words(uses, sizes)]
    naive = {policy: listed(single, capacity, policy, lambda word: kept[word]) for policy in ("lru", "fifo", "opt")}
    assert kernels.lru_sized(ids, kinds, size, keep, capacity, capacity) == naive["lru"]
    assert kernels.fifo(ids, kinds, size, keep, capacity) == naive["fifo"]
    assert kernels.opt_sized(ids, kinds, size, keep, capacity) == naive["opt"]
    assert kernels.lru(ids, len(sizes), capacity) == naive["lru"][0]
    reads = [(word, READ) for word, _ in single]
    assert kernels.opt(ids, len(sizes), capacity) == listed(reads, capacity, "belady", lambda word: True)[0]
    assert (kernels.unit_distances(ids, len(sizes)) == kernels.sized_distances(ids, size)).all()


@given(streams(), st.integers(1, 12))
def test_opt_of_items_is_opt_of_their_words(stream: Any, capacity: int) -> None:
    uses, sizes, kept = stream
    missed, fetched, _ = kernels.opt_sized(*arrays(stream), capacity)
    assert (missed, fetched) == listed(words(uses, sizes), capacity, "opt", lambda word: True)[:2]
