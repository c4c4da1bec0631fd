"""The best of several schedules: the one that moves the fewest words, without a search for the blocks of all others."""

from __future__ import annotations

from collections.abc import Sequence

from pebblesim.analysis import blocks as block_rules
from pebblesim.analysis.count import io
from pebblesim.core.errors import Infeasible
from pebblesim.counting.count import Counted, count_run
from pebblesim.counting.run import Run

CHOSEN = ("fit", "best")
"""Rules that choose among all feasible blocks, so that a lower bound for all of them holds."""


def best_of(runs: Sequence[Run], first: str = "") -> Counted | None:
    """Count the run that moves the fewest words, the first of equals; None if none fits.

    A schedule is left out as soon as it is proved that none of its blocks move fewer words than another schedule does.
    The schedule called `first` is looked at first, such as the best for a similar M; then those with the smallest lower
    bounds, but the last of all those whose blocks take long to find.
    """

    def order(number: int) -> tuple[bool, bool, int]:
        return runs[number].schedule.name != first, *_promise(runs[number])

    least: tuple[int, int] | None = None  # words, and the number of the run
    for number in sorted(range(len(runs)), key=order):
        if least is None or not _moves_at_least(runs[number], least[0] + (number < least[1])):
            words = _words(runs[number])
            if words is not None:
                least = min(least or (words, number), (words, number))
    return None if least is None else count_run(runs[least[1]])


def _promise(run: Run) -> tuple[bool, int]:
    """Whether the best blocks take long to find, and a lower bound on the words."""
    if run.blocks not in CHOSEN:
        return False, 0
    of_parts = [(part.schedule, part.dims, part.summation, part.only_mask) for part in run.parts]
    slow = any(not each.words.nonincreasing for asked in of_parts for each in block_rules.parts(*asked))
    return slow, sum(block_rules.least_words(*asked[:2], run.M, *asked[2:]) for asked in of_parts)


def _moves_at_least(run: Run, words: int) -> bool:
    """Whether it is proved that no feasible blocks move fewer words than this."""
    if run.blocks not in CHOSEN or len(run.parts) > 1:
        return False
    (part,) = run.parts
    return block_rules.moves_at_least(part.schedule, part.dims, part.M, part.summation, part.only_mask, words)


def _words(run: Run) -> int | None:
    """The words that the blocks of a run move; None if they do not fit."""
    try:
        if run.blocks not in CHOSEN:
            row = count_run(run)
            return row.io if row.feasible else None
        return sum(io(part.program, part.sizes, part.only_mask) for part in run.parts)
    except Infeasible:
        return None
