"""Bisection: find the integer at which a monotone condition changes."""

from __future__ import annotations

from collections.abc import Callable


def last_that(holds: Callable[[int], bool], low: int, high: int, guess: int | None = None) -> int:
    """Return the largest number ≤ `high` for which a condition holds. It holds at `low`, and up to some number.

    A good `guess` of it saves steps.
    """
    if low >= high or holds(high):
        return max(low, high)
    if guess is not None and low < guess < high:
        step = 1 + guess // 8
        if holds(guess):
            low = guess
            while low + step < high and holds(low + step):
                low, step = low + step, 2 * step
            high = min(high, low + step)
        else:
            high = guess
            while high - step > low and not holds(high - step):
                high, step = high - step, 2 * step
            low = max(low, high - step)
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
