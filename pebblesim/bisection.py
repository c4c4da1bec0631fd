"""Where something that holds up to some number ceases to hold, or begins to."""

from __future__ import annotations

from collections.abc import Callable


def last_that(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last number up to `high` for which something holds that holds up to some number, and at `low`."""
    if low >= high or holds(high):
        return max(low, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def first_that(holds: Callable[[int], bool], low: int) -> int:
    """The first number from `low` on for which something holds that holds from some number on.

    Where that lies far off, it is found in as many steps as it has digits.
    """
    before, step = low - 1, 1
    while not holds(before + step):
        before, step = before + step, 2 * step
    return last_that(lambda number: not holds(number), before, before + step - 1) + 1
