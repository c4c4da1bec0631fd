"""Games too long for every day."""

import random

import pytest
import strategies
from counts.test_schedules import TESTED, played

import pebblesim as ps
from pebblesim.analysis.count import count
from pebblesim.core.errors import UsageError

pytestmark = pytest.mark.slow


def test_algorithm_6_in_full() -> None:
    assert ps.play("small-cache", n=256, d=64, M=1024).passed


@pytest.mark.one_in(3)
@pytest.mark.parametrize("summation", ["chain", "balanced", "blocked:3"])
@pytest.mark.parametrize("name", TESTED)
def test_many_games_of_middling_size(name: str, summation: str) -> None:
    schedule, draw, refused = TESTED[name], random.Random(name), 0
    for _ in range(40):
        drawn = {size: draw.randint(1, 20) for size in (*schedule.problem.dims, *schedule.blocks)}
        sizes = strategies.in_whole_blocks(schedule, drawn)
        predicted = count(schedule.program, sizes, summation)
        try:
            game = played(schedule, sizes, summation, predicted.peak_red)
        except UsageError as error:
            assert "several partial sums; choose summation 'chain'" in str(error)
            refused += 1
            continue
        assert game.complete, sizes
        assert (game.reads, game.writes) == (predicted.total.reads, predicted.total.writes), sizes
        assert game.peak_red == predicted.peak_red, sizes
    assert (refused > 0) == (summation != "chain" and strategies.only_chains(schedule))
