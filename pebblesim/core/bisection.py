"""Bisection: find the integer at which a monotone condition changes."""

from __future__ import annotations

from collections.abc import Callable


def last_that(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest number ≤ `high` for which a condition holds. It holds at `low`, and up to some number.

    Its distance from `low` is found by its number of binary digits first, then digit by digit: far above the result
    there are hardly any steps.
    """
    if low >= high or holds(high):
        return max(low, high)
    few, many = 0, (high - low).bit_length()
    while many - few > 1:
        digits = (few + many) // 2
        few, many = (digits, many) if holds(low + 2**digits - 1) else (few, digits)
    low, high = low + 2**few - 1, min(high, low + 2**many - 1)
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
