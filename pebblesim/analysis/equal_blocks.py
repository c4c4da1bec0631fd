"""Counts without a choice of blocks: all blocks of a schedule have one side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pebblesim.analysis.count import Count, count
from pebblesim.language.registry import Schedule


def counts_of_equal_blocks(
    schedules: Iterable[Schedule], dims: Mapping[str, int], sides: tuple[int, ...]
) -> Iterator[tuple[Schedule, dict[str, int], Count]]:
    """Yield each schedule's blocks and count with blocks that are all of one side, for several sides: no search."""
    for schedule in schedules:
        for side in sides if schedule.blocks else sides[:1]:
            blocks = dict.fromkeys(schedule.blocks, side)
            yield schedule, blocks, count(schedule.in_dims(dims).program, {**dims, **blocks})
