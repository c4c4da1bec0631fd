"""Thread blocks that share multiprocessors: how long all of them take.

Times are in units of the time for which an average block keeps a multiprocessor busy. A block that is alone waits
between its steps: for what it reads, and for each result before the next operation. The steps of other blocks fill this
time, until the multiprocessor is busy. So k average blocks together take about the longer of `alone` and k, and each
progresses at the same pace; a block that ends makes room for the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from heapq import heappop, heappush
from math import ceil, floor, log

from pebblesim.advice.launch_rounds import Round

POWER = 3
"""Power of the two times of which the longer one counts, in their joint time: where they are equal, 2^(1/3)."""

MANY = 6
"""From this number of blocks for each place on they drift apart, so that all multiprocessors are busy to the end."""

STEP = 1.25
"""Ratio of the neighbouring values of `alone` for which different blocks are simulated."""


def together(times: Iterable[float], power: float) -> float:
    """The joint time of what runs side by side: the longest of the times, and up to a half more where they are near."""
    times = tuple(times)
    longest = max(times)
    return longest * sum((time / longest) ** power for time in times) ** (1 / power) if longest else 0.0


def time_of(blocks: Round, heads: int, units: int, places: int, alone: float, side_by_side: int = 1) -> float:
    """The time until the last block of a launch has ended.

    Args:
        blocks: (time of a block divided by the average, number of such blocks), the longest first.
        heads: those that the blocks are of.
        units: multiprocessors.
        places: blocks that fit on one at a time.
        alone: time of an average block that is alone.
        side_by_side: heads that begin together, their longest blocks first; the next ones come after them.
    """
    work, number = sum(time * each for time, each in blocks), sum(each for _, each in blocks)
    if number > MANY * units * places:
        return work / units * pace(places, alone)
    if len(blocks) == 1:
        full, rest = divmod(number, units * places)
        return blocks[0][0] * (full * _of(places, alone) + (_of(ceil(rest / units), alone) if rest else 0.0))
    sides = [min(side_by_side, heads - first) for first in range(0, heads, side_by_side)]
    queue = tuple(time for side in sides for time, each in blocks for _ in range(each // heads * side))
    power = log(alone) / log(STEP)
    low = floor(power)
    left, right = (_simulated(queue, units, places, STEP**each) for each in (low, low + 1))
    return left + (right - left) * (power - low)


def pace(places: int, alone: float) -> float:
    """The time of a block, of many, on a multiprocessor where all places are taken."""
    return _of(places, alone) / places


def _of(together_there: int, alone: float) -> float:
    """The time of average blocks that are together on a multiprocessor."""
    return together((alone, together_there), POWER)


@lru_cache(maxsize=2**14)
def _simulated(blocks: tuple[float, ...], units: int, places: int, alone: float) -> float:
    """The time of blocks in their order, by the time of each; each next one begins where one has ended."""
    queue = list(reversed(blocks))
    paces = [0.0, *(1 / _of(number, alone) for number in range(1, places + 1))]
    running: list[list[float]] = [[] for _ in range(units)]
    for _ in range(places):
        for own in running[: len(queue)]:
            own.append(queue.pop())
    ends: list[tuple[float, int]] = []
    since, now = [0.0] * units, 0.0
    for unit, own in enumerate(running):
        if own:
            heappush(ends, (min(own) / paces[len(own)], unit))
    while ends:
        now, unit = heappop(ends)
        own = running[unit]
        done = (now - since[unit]) * paces[len(own)]
        own = [time - done for time in own if time - done > 1e-9]
        while queue and len(own) < places:
            own.append(queue.pop())
        running[unit], since[unit] = own, now
        if own:
            heappush(ends, (now + min(own) / paces[len(own)], unit))
    return now
