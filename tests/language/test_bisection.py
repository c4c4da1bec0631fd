"""Where a value first exceeds a limit: found as a plain search finds it, and in few steps however large it is."""

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given, strategies as st

from pebblesim.core.bisection import first_beyond, last_within

VALUES: dict[str, Callable[[int], int]] = {
    "linear": lambda x: x,
    "square": lambda x: x * x // 7,
    "steps": lambda x: x // 100,
    "squares of steps": lambda x: (x // 13) ** 2 * 5,
    "flat, then a jump": lambda x: 0 if x < 77 else 10**9 * x,
    "powers": lambda x: 2 ** x.bit_length(),
    "difference": lambda x: max(x, (x // 9) ** 2 // 4 + x - 9 * (x // 9)),
}


@pytest.mark.parametrize("name", VALUES)
@given(limit=st.integers(0, 100))
def test_the_first_beyond_a_limit_is_that_of_a_plain_search(name: str, limit: int) -> None:
    value = VALUES[name]
    assert first_beyond(value, limit) == next(x for x in count(1) if value(x) > limit)


@pytest.mark.parametrize("name", VALUES)
@given(limit=st.integers(0, 100), low=st.integers(1, 90), more=st.integers(-1, 90))
def test_the_last_within_a_limit_is_that_of_a_plain_search(name: str, limit: int, low: int, more: int) -> None:
    value, high = VALUES[name], low + more
    within = [x for x in range(low, high + 1) if value(x) <= limit]
    assert last_within(value, limit, low, high) == max(within, default=low - 1)


@pytest.mark.parametrize("name", ["linear", "square", "steps", "squares of steps", "difference"])
@given(limit=st.integers(2**190, 2**400))
def test_few_steps_are_enough_for_a_power(name: str, limit: int) -> None:
    asked = []

    def value(x: int) -> int:
        asked.append(x)
        return VALUES[name](x)

    found = first_beyond(value, limit)
    assert VALUES[name](found) > limit >= VALUES[name](found - 1)
    assert len(asked) < 60  # bisection takes at least 190
