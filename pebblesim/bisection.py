"""Bisection: find the integer at which a monotone condition changes."""

from __future__ import annotations

from collections.abc import Callable


def last_that(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest number ≤ `high` for which a condition holds. It holds at `low`, and up to some number."""
    if low >= high or holds(high):
        return max(low, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def first_that(holds: Callable[[int], bool], low: int) -> int:
    """Return the smallest number ≥ `low` for which a condition holds. It holds for all numbers from some number on.

    The number of steps is proportional to the number of digits of the result.
    """
    before, step = low - 1, 1
    while not holds(before + step):
        before, step = before + step, 2 * step
    return last_that(lambda number: not holds(number), before, before + step - 1) + 1
