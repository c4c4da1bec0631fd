"""Automatic caches against the best possible one, the schedules' own scratchpad, and the lower bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from typing import Any

from pebblesim.cachesim import policies
from pebblesim.cachesim.cache import accesses, cache
from pebblesim.cachesim.result import Cached
from pebblesim.cachesim.streams import of_ids
from pebblesim.claims.claim import FAILS, HOLDS, Effort, Finding, claim, shown, tried
from pebblesim.claims.games import drawn
from pebblesim.counting.count import Counted, count
from pebblesim.language.registry import SCHEDULES, get

OPERANDS = 8
"""Most words that an operation and its temporaries touch: pebbles that a game needs besides the cache."""


def _drawn(random: Random, largest: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield schedules by name, each with sizes at which it is feasible."""
    while True:
        name = random.choice(sorted(SCHEDULES))
        yield name, drawn(get(name), random, largest, 40)


def _everywhere(effort: Effort, says: str, holds: Callable[[Cached, Counted], bool]) -> Finding:
    """Check that something holds for random schedules, in a cache of their M words, word by word."""
    number = effort.draws(12, 200)
    for name, sizes in islice(_drawn(Random(12), 8), number):
        counted = count(name, **sizes)
        (cached,) = cache(name, policy=("lru", "opt", "fifo"), grain="words", **sizes)
        if not holds(cached, counted):
            return Finding(FAILS, f"not so for {name} with {sizes}")
    return tried(number, f"{says} for {number} schedules and sizes drawn by chance")


@claim(
    "Belady's rule",
    "Belady 1966; Mattson et al. 1970",
    "evicting the word with the latest next use fetches the fewest words: no more than LRU, FIFO or the schedule does",
    HOLDS,
)
def _belady(effort: Effort) -> Finding:
    def holds(cached: Cached, counted: Counted) -> bool:
        least = min(cached.by_policy["lru"].fetched, cached.by_policy["fifo"].fetched, counted.reads)
        return cached.compulsory <= cached.by_policy["opt"].fetched <= least

    result = _everywhere(effort, "compulsory ≤ opt.fetched ≤ lru.fetched, fifo.fetched and the schedule's reads", holds)
    _, line = shown('ps.cache("flash2-forward", n=256, d=16, M=1024)[0].opt.fetched')
    _, own = shown('ps.count("flash2-forward", n=256, d=16, M=1024).reads')
    return Finding(result.status, f"{line}\n{own}\n{result.evidence}")


@claim(
    "Theorem 6",
    "Sleator & Tarjan 1985",
    "an LRU of k words misses at most k/(k - h + 1) times as often as the best cache of h words, and h times more",
    HOLDS,
)
def _competitive(effort: Effort) -> Finding:
    random, number = Random(7), effort.draws(8, 100)
    for name, sizes in islice(_drawn(random, 6), number):  # requests word by word; as in the theorem, none is a write
        stream = of_ids(accesses(name, grain="words", **sizes).ids)
        h = random.randint(1, 1 + stream.touched // 2)
        for k in (h, h + 1, 2 * h):
            (lru,), (opt,) = (policies.misses(stream, [size], policy) for size, policy in ((k, "lru"), (h, "opt")))
            if lru.misses * (k - h + 1) > k * opt.misses + h * (k - h + 1):
                return Finding(
                    FAILS, f"not so for {name} with {sizes}, k = {k}, h = {h}: {lru.misses} and {opt.misses} misses"
                )
    return tried(number, f"for k = h, h + 1 and 2h, of {number} schedules and sizes drawn by chance")


@claim(
    "The stack property",
    "Mattson et al. 1970",
    "a larger LRU cache contains all words of a smaller one, so words fetched and written back never increase with M",
    HOLDS,
)
def _stack(effort: Effort) -> Finding:
    number = effort.draws(6, 60)
    for name, sizes in islice(_drawn(Random(3), 8), number):
        stream = accesses(name, **sizes)
        counts = policies.lru_counts(stream, range(1, stream.touched + 1))
        if (counts[:, 1:] > counts[:, :-1]).any():
            return Finding(FAILS, f"not so for {name} with {sizes}")
    return tried(number, f"for every M from 1 to all words, of {number} schedules and sizes drawn by chance")


@claim(
    "Lower bounds hold for caches",
    "ours",
    f"the best cache of M words fetches and writes back at least the lower bound for M + {OPERANDS} pebbles, because "
    "it gives a game with pebbles for the words of one more operation",
    HOLDS,
)
def _lower(effort: Effort) -> Finding:
    def holds(cached: Cached, counted: Counted) -> bool:
        dims: dict[str, Any] = dict(counted.dims)
        bound = count(counted.schedule, M=cached.M + OPERANDS, blocks=counted.blocks or "fit", **dims).lower_bound
        return bound.value <= cached.by_policy["opt"].io

    return _everywhere(effort, f"bound(M + {OPERANDS}) ≤ opt.io", holds)
