"""What the tests draw: sizes from 1 up, ragged, n < d among them, blocks smaller and larger than what they cut."""

from hypothesis import strategies as st

from pebblesim import schedules  # noqa: F401 - importing it registers them
from pebblesim.registry import Schedule

SUMMATIONS = st.one_of(st.just("chain"), st.just("balanced"), st.integers(1, 6).map("blocked:{}".format))


def dims(schedule: Schedule, largest: int = 9) -> st.SearchStrategy[dict[str, int]]:
    """Sizes of a schedule's dimensions."""
    return st.fixed_dictionaries({dim: st.integers(1, largest) for dim in schedule.problem.dims})


def sizes(schedule: Schedule, largest: int = 9) -> st.SearchStrategy[dict[str, int]]:
    """Sizes of a schedule's dimensions and blocks."""
    return st.fixed_dictionaries({name: st.integers(1, largest) for name in (*schedule.problem.dims, *schedule.blocks)})
