"""The least words over the edges of a level; docs/machines.md has the proofs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import isqrt

from pebblesim.core.bisection import first_beyond
from pebblesim.language.masks import Mask
from pebblesim.language.problems import Problem
from pebblesim.lower_bounds.bounds import LowerBound, best
from pebblesim.parallel.bounds import most_starts, products_of
from pebblesim.parallel.team import Team

MERGED = "all memories of a level as one, and the busiest moves as much as the others"
BUSIEST = "P3: a memory below which its share of the products is computed, docs/machines.md"


@lru_cache(maxsize=1024)
def least(
    solves: Problem, dims: tuple[tuple[str, int], ...], times: int, mask: Mask | None, number: int, words: int
) -> LowerBound:
    """Return the largest lower bound on the words over the busiest edge of a level.

    Args:
        solves, dims: the problem and its sizes.
        times: how many such problems there are, which share nothing.
        mask: the allowed pairs, or None.
        number: the memories of the level.
        words: the words of one of them and of all beneath it.
    """
    merged = best(solves, dict(dims), number * words, pairs=mask)
    if number == times == 1:
        return merged
    source = merged.source + (f"; {times:,} times" if times > 1 else "") + (f"; {MERGED}" if number > 1 else "")
    merged = replace(merged, value=-(-merged.value * times // number), form=None, source=source)
    capacity, products = _products(solves.name, dict(dims)) if number > 1 and mask is None else (None, 0)
    if capacity is None:
        return merged
    busiest = busiest_words(capacity, -(-times * products // number), words)
    return merged if busiest <= merged.value else LowerBound("P3", busiest, BUSIEST, None)


def busiest_words(capacity: Callable[[int], int], products: int, words: int) -> int:
    """Return the least words over the edge above a memory below which so many products are computed.

    Args:
        capacity: the most products that X words within reach allow.
        products: how many there are, at least one.
        words: of this memory and all beneath it, which are empty at the start.
    """
    started = most_starts(capacity, products, words)
    return max(first_beyond(capacity, products - 1), started + words + 1 if started else 0)


def _products(problem: str, dims: dict[str, int]) -> tuple[Callable[[int], int] | None, int]:
    """The most products that X words allow, and how many products there are; None if that is not proved."""
    if problem == "matmul":
        return lambda X: isqrt(X**3 // 27), dims["m"] * dims["k"] * dims["n"]
    if problem not in ("forward", "backward-qkv"):
        return None, 0
    n, d = dims.get("n"), dims.get("d")
    n_q, n_k, d_k, d_v = (dims.get(name, same) or 0 for name, same in (("n_q", n), ("n_k", n), ("d_k", d), ("d_v", d)))
    of = products_of(Team(n_q, n_k, d_k, d_v, 1, 1, 1, backward=problem != "forward"))
    return of.capacity, n_q * n_k * of.of_a_pair
