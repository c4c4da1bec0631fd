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


def first_beyond(value: Callable[[int], int], limit: int) -> int:
    """Return the smallest number ≥ 1 with a value above `limit`; values never fall, and exceed it somewhere.

    If they grow like a power, some dozens of steps are enough, however many digits the result has: the first steps find
    it within a factor of 4, and the others interpolate (by the rule called Illinois), with a bisection in between.
    """
    low, high, step = 0, 1, 1
    while value(high) <= limit:
        low, high, step = high, high << step, 2 * step
    while high > 4 * max(low, 1):
        middle = 1 << (low.bit_length() + high.bit_length()) // 2
        low, high = (low, middle) if value(middle) > limit else (middle, high)
    return _interpolated(value, limit, low, high, value(low) if low else limit, value(high)) + 1


def last_within(value: Callable[[int], int], limit: int, low: int, high: int) -> int:
    """Return the largest number from `low` to `high` with a value up to `limit`; `low` - 1 if there is none.

    Values never fall. If they grow like a polynomial of small degree, a few steps are enough.
    """
    if low > high:
        return low - 1
    if (most := value(high)) <= limit:
        return high
    if low == high or (least := value(low)) > limit:
        return low - 1
    return _interpolated(value, limit, low, high, least, most)


def _interpolated(value: Callable[[int], int], limit: int, low: int, high: int, least: int, most: int) -> int:
    """The largest number with a value up to a limit, between two with values `least` ≤ limit < `most`."""
    below, above = 2 * (limit - least) + 1, 2 * (most - limit) - 1  # both are more than 0
    steps, moved = 0, 0
    while high - low > 1:
        steps += 1
        share = (high - low) * below // (below + above) if steps % 4 else (high - low) // 2
        middle = low + min(max(share, 1), high - low - 1)
        over = 2 * (value(middle) - limit) - 1
        if over > 0:  # an end that stays twice is drawn nearer
            high, above, below, moved = middle, over, max(1, below // 2) if moved == 1 else below, 1
        else:
            low, below, above, moved = middle, -over, max(1, above // 2) if moved == -1 else above, -1
    return low
