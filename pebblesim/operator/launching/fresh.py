"""Memory that a launch writes: as PyTorch gives it or, to find words that are read before they are written, filled.

The environment variable `PEBBLESIM_FILL`, a number such as nan or 777, fills all of it from the start.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.operator.known.native import FILLED as VARIABLE, paused

BYTE = 119
"""The integer that new memory of integers is filled with."""


def _from_start() -> float | None:
    """The number that the environment asks for; None if it does not.

    Raises:
        UsageError: it is no number.
    """
    given = os.environ.get(VARIABLE)
    try:
        return float(given) if given else None
    except ValueError:
        raise UsageError(
            f"{VARIABLE} is {given!r}; give a number that new memory is filled with, such as nan, or leave it out."
        ) from None


_FILL: float | None = _from_start()


def fresh(x: Tensor) -> Tensor:
    """A tensor that was just made, and that nobody has written yet."""
    if _FILL is not None:
        x.fill_(_FILL if x.is_floating_point() else BYTE)
    return x


@contextmanager
def filled(value: float) -> Iterator[None]:
    """Fill all that is made meanwhile, in all threads: those of gradients, too."""
    global _FILL
    before, _FILL = _FILL, value
    try:
        with paused():
            yield
    finally:
        _FILL = before
