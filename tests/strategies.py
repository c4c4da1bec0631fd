"""Strategies of the tests: sizes from 1 up, ragged, n < d among them, blocks smaller and larger than what they cut."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from numpy.typing import NDArray

from pebblesim.language.masks import BlockMask, Mask, from_array, of
from pebblesim.language.problems import problem
from pebblesim.language.registry import SCHEDULES, Schedule

Item = TypeVar("Item")

SUMMATIONS = st.one_of(st.just("chain"), st.just("balanced"), st.integers(1, 6).map("blocked:{}".format))
"""Shapes of the trees of a graph; a schedule may also have its sums in place."""


def only_chains(schedule: Schedule) -> bool:
    """Whether its sums are chains: one waits in memory where no graph has a sum of its own."""
    return schedule.name.endswith(("queries-partly-resident", "first-keys-by-columns"))


def trees(schedule: Schedule) -> st.SearchStrategy[str]:
    """Shapes of its summation trees."""
    return st.just("chain") if only_chains(schedule) else SUMMATIONS


def summations(schedule: Schedule) -> st.SearchStrategy[str]:
    """Shapes of its summation trees, or sums in place."""
    return st.one_of(trees(schedule), st.sampled_from(["chain", "in-place"]))


def draws(few: int, many: int) -> settings:
    """So many draws of a test that is run for every schedule, or is slow: few by default, many in the full profile.

    The first draw is always the simplest, with all sizes 1; so one is never enough.
    """
    assert few > 1
    return settings(max_examples=amount(few, many))


def amount(few: Item, many: Item) -> Item:
    """A size or number: few by default, many in the full profile."""
    return many if settings.default is settings.get_profile("full") else few


def some(items: Sequence[Item], few: int) -> Sequence[Item]:
    """All of them in the full profile; by default so many, evenly spread, the first and the last among them."""
    if len(items) <= few or settings.default is settings.get_profile("full"):
        return items
    return [items[at * (len(items) - 1) // (few - 1)] for at in range(few)]


def every(schedules: Mapping[str, Schedule], argument: str = "schedule", of: int = 6) -> pytest.MarkDecorator:
    """Runs a test for one in so many schedules, or for its name, by turns; for all that are no part of the package."""
    return pytest.mark.parametrize(
        argument,
        [
            pytest.param(
                schedule if argument == "schedule" else name,
                id=name,
                marks=[pytest.mark.one_in(of)] * (name in SCHEDULES),
            )
            for name, schedule in schedules.items()
        ],
    )


def dims(schedule: Schedule, largest: int = 9) -> st.SearchStrategy[dict[str, int]]:
    """Sizes of a schedule's dimensions."""
    return st.fixed_dictionaries({dim: st.integers(1, largest) for dim in schedule.problem.dims})


def sizes(schedule: Schedule, largest: int = 9) -> st.SearchStrategy[dict[str, int]]:
    """Sizes of a schedule's dimensions and blocks, for which its graph can be built."""
    names = (*schedule.problem.dims, *schedule.blocks)
    return st.fixed_dictionaries({name: st.integers(1, largest) for name in names}).map(
        lambda chosen: in_whole_blocks(schedule, chosen)
    )


def in_whole_blocks(schedule: Schedule, chosen: dict[str, int]) -> dict[str, int]:
    """Sizes with splits of whole blocks: a graph with several splits has no shorter block in them."""
    split, block = schedule.graph.get("split"), schedule.graph.get("column_block")
    if not isinstance(split, str) or not isinstance(block, str):
        return chosen
    return chosen | {split: -(-chosen[split] // chosen[block]) * chosen[block]}


@st.composite
def allowed_pairs(draw: st.DrawFn, n: int) -> NDArray[np.bool_]:
    """Booleans of shape (n, n): bands, blocks, any pairs, with empty rows and columns or not, all pairs, or none."""
    kind = draw(st.sampled_from(["gaps", "table", "blocks", "band", "all or nothing"]))
    distance = np.arange(n)[None, :] - np.arange(n)[:, None]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    match kind:
        case "all or nothing":
            return np.full((n, n), draw(st.booleans()))
        case "band":  # causal and windows among them
            before, after = draw(st.integers(0, n)), draw(st.integers(0, n // 3))
            return (-before <= distance) & (distance <= after)
        case "blocks":
            height, width = draw(st.integers(1, n // 2 + 1)), draw(st.integers(1, n // 2 + 1))
            table = rng.random((-(-n // height), -(-n // width))) < 0.5
            return table.repeat(height, axis=0).repeat(width, axis=1)[:n, :n]
    table = rng.random((n, n)) < draw(st.sampled_from([0.5, 0.2, 0.8]))
    if kind == "gaps":
        table[rng.random(n) < 0.5] = False
        table[:, rng.random(n) < 0.3] = False
    return table


def bands(n: int) -> st.SearchStrategy[str]:
    """Names of masks that have closed forms."""
    widths = st.integers(1, n + 1)
    return st.one_of(st.just("causal"), widths.map("window:{}".format), widths.map("band:{}".format))


@st.composite
def blocks(draw: st.DrawFn, n: int) -> BlockMask:
    """Masks of blocks of any size, of which some, none or all are allowed."""
    size = draw(st.integers(1, n)), draw(st.integers(1, n))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return from_array(rng.random((-(-n // size[0]), -(-n // size[1]))) < draw(st.floats(0, 1)), size=size)


def masks(n: int) -> st.SearchStrategy[Mask]:
    """Masks for n rows: bands, blocks, and any pairs, with empty rows and columns, or with nothing in them."""
    return st.one_of(bands(n).map(of), blocks(n), allowed_pairs(n).map(lambda table: from_array(table, size=(1, 1))))


def unregistered(function: Callable[..., None], of: str = "matmul", **graph: object) -> Schedule:
    """A schedule of a problem that nobody else sees."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    inputs, blocks = names[1 : code.co_argcount], names[code.co_argcount :]
    return Schedule(function.__name__, problem(of), "this test", function, inputs, blocks, graph=graph)
