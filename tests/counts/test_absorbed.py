"""Weights absorbed: schedules for few queries or few keys, held against words counted by hand.

Their games, closed forms and numbers are in the tests of every schedule.
"""

from typing import Any

import pytest
import strategies
from hypothesis import given, strategies as st

import pebblesim as ps
from pebblesim.language.registry import SCHEDULES

DECODING = {"n_q": 1, "n_k": 4096, "d": 64}
GAMES = [  # of one query, word by word: each input and output once; of dL/dX A1 twice
    ("projected-forward", 256, 2 * 4096 * 64 + 64 + 3 * 64**2 + 64),
    ("backward", 326, 2 * 4096 * 64 + 3 * 64 + 3 * 64**2),
    ("projected-backward-qkv", 600, 4 * 4096 * 64 + 4 * 64 + 1 + 3 * 64**2),
]
ABSORBED = [schedule for schedule in SCHEDULES.values() if schedule.graph.get("absorbed")]
BY_NAME = pytest.mark.parametrize("schedule", ABSORBED, ids=lambda schedule: schedule.name)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("problem", "M", "game"), GAMES)
def test_one_query_costs_hardly_more_than_a_game_word_by_word(problem: str, M: int, game: int) -> None:
    best = ps.compare(problem, M=M, **DECODING).rows[0]
    assert best.feasible
    assert best.every_way.value <= best.io
    assert 100 * best.io <= 101 * game


@pytest.mark.one_in(3)
def test_few_keys_cost_hardly_more_than_their_words() -> None:
    """4,096 queries see four keys: A1 and dO once, or A1, O and l; the words of keys and weights are few."""
    few = {"n_q": 4096, "n_k": 4, "d": 64}
    compulsory = 2 * 4096 * 64 + 2 * 4 * 64 + 3 * 64**2
    for problem, M, l in (("backward", 900, 0), ("projected-forward", 1200, 4096)):
        best = ps.compare(problem, M=M, **few).rows[0]
        assert best.feasible
        assert 1000 * best.io <= 1003 * (compulsory + l)


@BY_NAME
@given(data=st.data())
@strategies.draws(4, 60)
def test_no_key_or_value_that_is_not_made_is_moved(schedule: Any, data: st.DataObject) -> None:
    """An absorbed weight leaves no tensor in memory, and each input of the other side is read once a pass."""
    not_made = {"X": "S", "Y": "h", "W_Q": "Q", "W_K": "K", "W_V": "V"}
    dims = {dim: data.draw(st.integers(1, 50), dim) for dim in schedule.problem.rectangle.dims}
    blocks = {block: data.draw(st.integers(1, 9), block) for block in schedule.blocks}
    counted = ps.count(schedule, M=1, blocks=blocks, **dims)
    assert {not_made[weight] for weight in schedule.graph["absorbed"]}.isdisjoint(counted.by_tensor)
