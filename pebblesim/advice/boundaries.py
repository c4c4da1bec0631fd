"""The schedules with the least I/O at two boundaries of a card, each with the one-cache game and tiles of any size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pebblesim.advice import cards
from pebblesim.advice.cards import Card
from pebblesim.core.errors import Infeasible
from pebblesim.counting.best import best_of
from pebblesim.counting.compare import compare, runs_of
from pebblesim.counting.count import Counted, count
from pebblesim.language.masks import Mask
from pebblesim.language.registry import Schedule, some_of_problem

NEAR = 1.5
"""Better blocks are searched for schedules whose largest blocks move at most this multiple of the fewest words."""

SEARCHED = 3
"""Schedules for which the best blocks are searched at most, at each boundary: a search takes up to a second."""


@dataclass(frozen=True)
class Boundary:
    """The traffic across one boundary of the card.

    Attributes:
        name: "SM" (shared memory of a block) or "HBM" (the memory of the card).
        cache: the cache of size M.
        M: the number of words that fit there.
        rows: the schedules that fit, least I/O first. Schedules that move at most 1.5 times the words of the first have
            the blocks of the rule "fit", and three of them those of "best"; the others have the blocks of "fit" without
            a mask.
        too_large: the smallest feasible M of schedules that do not fit, by name.
        bandwidth: bytes per second across the boundary; None if it is not known.
        own: the schedules with the user's blocks, whether they fit or not.
    """

    name: str
    cache: str
    M: int
    rows: tuple[Counted, ...]
    too_large: Mapping[str, int]
    bandwidth: float | None
    own: tuple[Counted, ...] = ()

    @property
    def best(self) -> Counted:
        """The schedule with the least I/O."""
        return self.rows[0]


def boundaries(
    card: Card,
    dtype: str,
    problem_name: str,
    sizes: Mapping[str, int],
    mask: Mask | None,
    blocks: Mapping[str, int],
) -> tuple[Boundary, ...]:
    """Count the schedules of a problem at the multiprocessors, a user's blocks there, too, and at the memory.

    Raises:
        Infeasible: no schedule fits into the shared memory of a block.
        UsageError: no schedule has such blocks.
    """
    last = card.last_cache
    boundary = partial(_boundary, card, dtype, problem_name, sizes, mask)
    return (
        boundary("SM", "shared memory of a block", "shared_per_block", "l2_bandwidth", blocks),
        boundary("HBM", last.upper(), last, "memory_bandwidth"),
    )


def _binary(size: int) -> str:
    for unit, each in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= each:
            return f"{size / each:.4g} {unit}"
    return f"{size} bytes"


def _boundary(
    card: Card,
    dtype: str,
    problem_name: str,
    sizes: Mapping[str, int],
    mask: Mask | None,
    name: str,
    cache: str,
    figure: str,
    bandwidth: str,
    blocks: Mapping[str, int] | None = None,
) -> Boundary:
    M = cards.words(card, figure, dtype)
    arguments: dict[str, Any] = {**sizes, "M": M, "mask": mask}
    rows, too_large = [], {}
    for algorithm in some_of_problem(problem_name, sizes, mask is not None):
        try:
            rows.append(_largest(algorithm, arguments))
        except Infeasible as error:
            too_large[algorithm.name] = error.least_M
    if not rows:
        least = min(too_large.values())
        raise Infeasible(f"no schedule of {problem_name} fits into {M:,} words ({cache}); one needs {least:,}.", least)
    # Better blocks change little, so they are searched only for schedules that may win, and for the one that does
    # without a mask: to find the one that does under it takes seconds.
    rows.sort(key=lambda row: row.io)
    near = [row for row in rows if row.io <= NEAR * rows[0].io]
    searched = [_better(row, "best" if place < SEARCHED else "fit", arguments) for place, row in enumerate(near)]
    unmasked = arguments | {"mask": None}
    runs = runs_of(problem_name, schedules=[row.schedule for row in rows], blocks="best", **unmasked)
    best = best_of(runs, searched[0].schedule)
    if best is not None:
        known = min((row for row in (*rows, *searched) if row.schedule == best.schedule), key=lambda row: row.io)
        searched.append(best if mask is None else _better(known, "best", arguments))
    rows = sorted({row.schedule: row for row in (*rows, *searched)}.values(), key=lambda row: row.io)
    own = tuple(compare(problem_name, blocks=blocks, **arguments)) if blocks else ()
    said = f"{cache}, {_binary(card.size(figure))}"
    return Boundary(name, said, M, tuple(rows), too_large, card.rate(bandwidth), own)


def _largest(algorithm: Schedule, arguments: dict[str, Any]) -> Counted:
    """Count with the largest blocks that fit; with tiles without an allowed pair, a smaller block could move less."""
    chosen = count(algorithm, **arguments | {"mask": None})
    return chosen if arguments["mask"] is None else count(algorithm, **arguments | {"blocks": chosen.blocks})


def _better(row: Counted, rule: str, arguments: dict[str, Any]) -> Counted:
    """Count with the blocks of a rule under the mask, if they move fewer words; no search for what is optimal."""
    if row.io == row.lower_bound.value:
        return row
    return min(row, count(row.schedule, blocks=rule, **arguments), key=lambda each: each.io)
