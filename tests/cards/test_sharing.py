"""Blocks that share multiprocessors: against a list of ends, a clock of small steps, and cases done by hand."""

from __future__ import annotations

from heapq import heapreplace

import pytest
from hypothesis import given, strategies as st

from pebblesim.advice import cards
from pebblesim.advice.forecast import forecasts
from pebblesim.advice.sharing import MANY, pace, time_of, together
from pebblesim.kernels.domains import Call


def clock(times: list[float], units: int, places: int, alone: float, step: float = 1e-3) -> float:
    """The time of blocks, in small steps: in each, all blocks on a multiprocessor progress by the same amount."""
    queue, now = list(times), 0.0
    running: list[list[float]] = [[] for _ in range(units)]
    while queue or any(running):
        for place in range(places):
            for own in running:
                if queue and len(own) == place:
                    own.append(queue.pop(0))
        for own in running:
            if own:
                own[:] = [left - step / (alone**3 + len(own) ** 3) ** (1 / 3) for left in own]
        running = [[left for left in own if left > 0] for own in running]
        now += step
    return now


@given(
    lengths=st.lists(st.integers(1, 8), min_size=2, max_size=9, unique=True),
    heads=st.integers(1, 3),
    units=st.integers(1, 4),
    alone=st.floats(1.0, 6.0),
)
def test_one_block_at_a_time_is_a_list_of_ends(lengths: list[int], heads: int, units: int, alone: float) -> None:
    blocks = tuple((float(length), heads) for length in sorted(lengths, reverse=True))
    ends = [0.0] * units
    for _ in range(heads):
        for length, _ in blocks:
            heapreplace(ends, ends[0] + length * (alone**3 + 1) ** (1 / 3))
    total = sum(length for length, _ in blocks) * heads / units * (alone**3 + 1) ** (1 / 3)
    expected = total if heads * len(blocks) > MANY * units else max(ends)
    assert time_of(blocks, heads, units, 1, alone) == pytest.approx(expected, rel=0.02)


@given(
    lengths=st.lists(st.integers(1, 8), min_size=2, max_size=6, unique=True),
    heads=st.integers(1, 5),
    side=st.integers(1, 6),
    units=st.integers(1, 4),
)
def test_heads_side_by_side_begin_with_the_longest_blocks_of_all(
    lengths: list[int], heads: int, side: int, units: int
) -> None:
    ends = [0.0] * units
    for first in range(0, heads, side):
        for length in sorted(lengths * min(side, heads - first), reverse=True):
            heapreplace(ends, ends[0] + length)
    if heads * len(lengths) <= MANY * units:
        blocks = tuple((float(length), heads) for length in sorted(lengths, reverse=True))
        assert time_of(blocks, heads, units, 1, 1e-9, side) == pytest.approx(max(ends), rel=0.02)


@pytest.mark.parametrize(("units", "places", "alone"), [(1, 2, 1.5), (2, 3, 2.0), (3, 2, 4.0)])
def test_blocks_together_progress_at_the_same_pace(units: int, places: int, alone: float) -> None:
    lengths = [3.0, 2.5, 2.0, 1.0, 0.5]
    expected = clock(lengths, units, places, alone)
    assert time_of(tuple((length, 1) for length in lengths), 1, units, places, alone) == pytest.approx(
        expected, rel=0.02
    )
    alike = clock([1.0] * 7, units, places, alone)
    if 7 % (units * places) == 1:  # each wave ends at once
        assert time_of(((1.0, 7),), 1, units, places, alone) == pytest.approx(alike, rel=0.02)


def test_cases_by_hand() -> None:
    assert (
        together((3.0, 0.0), 4) == 3
        and together((1.0, 1.0), 3) == pytest.approx(2 ** (1 / 3))
        and not together((0,), 3)
    )
    assert (
        pace(1, 1e-9) == pytest.approx(1)
        and pace(4, 1e-9) == pytest.approx(1)
        and pace(2, 100) == pytest.approx(50, rel=1e-3)
    )
    # Blocks of 2 and 1 on a multiprocessor, always busy: both for 2, then the longer one for its other half.
    assert time_of(((2.0, 1), (1.0, 1)), 1, 1, 2, 1e-3) == pytest.approx(3, rel=1e-2)
    # With nothing but waiting they do not hinder one another.
    assert time_of(((2.0, 1), (1.0, 1)), 1, 1, 2, 1e3) == pytest.approx(2000, rel=1e-2)


@pytest.mark.parametrize("name", ["RTX4090", "L40S", "A100", "B200"])
def test_one_head_needs_no_split_of_its_keys(name: str) -> None:
    """Rates that are scaled do not tell kernels apart that are near; a split takes tables and a second launch."""
    card = cards.with_rates(cards.card(name))
    assert forecasts("forward", Call({"n": 2500, "d": 64}, capability=""), card)[0].tiling.schedule == "flash2-forward"
