"""The figures of every schedule at sizes that a seed draws are those that are stored beside this test.

Words, peaks and sectors of a schedule, and words under a mask, are checked against games, closed forms and loops
elsewhere: all of these follow from the program, so that a schedule that is changed by accident changes with them. What
is stored does not.
After a change that is meant, `.venv/bin/python tests/test_figures.py` writes the new figures; read their difference.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import strategies

from pebblesim.analysis.blocks import choose
from pebblesim.analysis.count import count, io
from pebblesim.core.errors import UsageError
from pebblesim.language import masks
from pebblesim.language.registry import SCHEDULES, Schedule
from pebblesim.launches.launches import check_alike, launches
from pebblesim.launches.sectors import moved

STORED = Path(__file__).with_suffix(".json")
DRAWN = 3
"""Sizes of each schedule."""

OURS = {name: each for name, each in sorted(SCHEDULES.items()) if each.function.__module__.startswith("pebblesim.")}
"""Without what other tests declare."""

Figures = dict[str, Any]


def figures_of(square: Schedule) -> list[Figures]:
    """The figures of a schedule at ragged sizes."""
    random, of_masks, made = Random(square.name), Random(f"{square.name} masked"), []
    schedule = square.in_dims((square.problem.rectangle or square.problem).dims)
    for _ in range(DRAWN):
        dims = {dim: random.randint(2, 11) for dim in schedule.problem.dims}
        blocks = {name: random.randint(1, 6) for name in schedule.blocks}
        sizes = strategies.in_whole_blocks(schedule, dims | blocks)
        counted = count(schedule.program, sizes)
        M = counted.peak_red + random.randint(0, 40)
        made.append(
            {
                "sizes": list(sizes.values()),
                "words": [counted.total.reads, counted.total.writes],
                "peaks": [counted.peak_words, counted.peak_red],
                "sectors": sectors_of(schedule, sizes),
                "fit": [M, io(schedule.program, dims | choose(schedule, dims, M))],
                "masked": masked(square, of_masks),
            }
        )
    return made


def masked(schedule: Schedule, random: Random) -> list[Any] | None:
    """Sizes, a mask, words read and written under it, and their peak; None if no mask applies."""
    if not schedule.maskable:
        return None
    dims = {name: random.randint(2, 11) for name in schedule.problem.dims}
    sizes = strategies.in_whole_blocks(schedule, dims | {name: random.randint(1, 4) for name in schedule.blocks})
    mask = random.choice(["causal", "window:3", "band:4"])
    counted = count(schedule.masked, sizes, mask=masks.of(mask))
    return [[*sizes.values()], mask, counted.total.reads, counted.total.writes, counted.peak_words]


def sectors_of(schedule: Schedule, sizes: dict[str, int]) -> list[int] | None:
    """Sectors read and written by all launches, three blocks at most; None if no kernel is written for it."""
    try:
        check_alike(schedule.program)
    except UsageError:
        return None
    each = [moved(launch, sizes, workers=3) for launch in launches(schedule.program, workers=3)]
    return [sum(of.sectors_read for of in each), sum(of.sectors_written for of in each)]


def stored() -> dict[str, list[Figures]]:
    return dict(json.loads(STORED.read_text(encoding="utf-8")))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("schedule", OURS.values(), ids=[*OURS])
def test_the_figures_are_those_that_are_stored(schedule: Schedule) -> None:
    known = stored()
    assert schedule.name in known, f"{schedule.name} is new: .venv/bin/python tests/test_figures.py stores its figures"
    assert figures_of(schedule) == known[schedule.name]


def test_each_schedule_has_figures() -> None:
    assert [*stored()] == [*OURS]


def main() -> None:
    lines = (f" {json.dumps(name)}: {json.dumps(figures_of(schedule))}" for name, schedule in OURS.items())
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
