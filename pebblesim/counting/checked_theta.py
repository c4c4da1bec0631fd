"""The Θ of a user's problem, compared with lower bounds and the counts of its schedules when it is first used.

Those of the problems that ship with pebblesim are tested instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Final

from pebblesim.analysis.equal_blocks import counts_of_equal_blocks
from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import listed
from pebblesim.language.catalogue import is_built_in
from pebblesim.language.problems import Problem, Theta
from pebblesim.language.registry import of_problem
from pebblesim.lower_bounds.bounds import best

STEPS: Final = (2**12, 2**24, 2**36)
"""The values of t at which a Θ is compared, with sizes that are powers of t."""

GROWTH: Final = 4
"""Bounded ratios and logarithms grow by less than this factor from one step to the next; t^(1/5) grows by more."""


@lru_cache(maxsize=64)
def check_theta(solves: Problem) -> None:
    """Refuse the Θ of a user's problem if it is not within a constant factor of bounds and counts.

    Sizes are powers of t, with each dimension over n at least as large as each over d, and M = 64 t^a. If from t = 2^12
    to 2^24 and to 2^36 a lower bound ÷ Θ grows, or Θ ÷ the least count grows, it grows without bound.

    Raises:
        UsageError: it does; the message has sizes at which it is far off.
    """
    if solves.theta is not None and not is_built_in(solves.values):
        _check(solves, solves.theta)


def _check(solves: Problem, theta: Theta) -> None:
    for exponents, a in _rays(solves):
        at = [({dim: t**power for dim, power in exponents.items()}, 64 * t**a) for t in STEPS]
        values = [theta.value({**sizes, "M": M}) for sizes, M in at]
        if min(values) <= 0:
            _refuse(solves, at[0], values[0], "every game moves a word")
        bounds = [best(solves, sizes, M) for sizes, M in at]
        if _grows([Fraction(bound.value) / Fraction(value) for bound, value in zip(bounds, values, strict=True)]):
            _refuse(solves, at[1], values[1], f"every game moves at least {_size(bounds[1].value)} ({bounds[1].name})")
        rows = [_least_of_equal_blocks(solves, t, *each) for t, each in zip(STEPS, at, strict=True)]
        if _grows([Fraction(value) / words for value, (words, _) in zip(values, rows, strict=True) if words]):
            _refuse(solves, at[1], values[1], f"{rows[1][1]} moves {_size(rows[1][0])}")


def _rays(solves: Problem) -> Iterator[tuple[dict[str, int], int]]:
    """Yield exponents of the dimensions and of M: all alike, those over n larger, each of these larger by itself."""
    long = [dim for dim, kind in solves.from_nd.items() if kind == "n"]
    larger: list[list[str]] = [[], long, *([dim] for dim in long if len(long) > 1)]
    for dims in larger:
        for a in (1, 2, 3, 6):
            yield {dim: 2 if dim in dims else 1 for dim in solves.dims}, a


def _least_of_equal_blocks(solves: Problem, t: int, sizes: Mapping[str, int], M: int) -> tuple[int, str]:
    """The least words of schedules with blocks of t^0, t^1, … that fit, and the schedule; 0 words if none fits."""
    counts = counts_of_equal_blocks(of_problem(solves.name, sizes), sizes, (1, t, t**2))
    return min(((each.total.io, schedule.name) for schedule, _, each in counts if each.peak_red <= M), default=(0, ""))


def _grows(ratios: list[Fraction]) -> bool:
    return len(ratios) == len(STEPS) and all(later > GROWTH * earlier for earlier, later in pairwise(ratios))


def _size(words: int | Decimal) -> str:
    return f"{words:,.0f} words" if words < 10**15 else f"{Decimal(words):.3g} words"


def _refuse(solves: Problem, at: tuple[dict[str, int], int], value: Decimal, says: str) -> None:
    assert solves.theta is not None
    sizes, M = at
    raise UsageError(
        f"the Θ of {solves.name}, {solves.theta.expr}, is not one: with {listed(sizes)} at M = {M:,} it is "
        f"{_size(value)}, where {says}, and the ratio grows with the sizes; declare another one, or none."
    )
