"""Settings that all tests share."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from pebblesim.language.registry import SCHEDULES

os.environ.setdefault("MPLBACKEND", "Agg")

# No deadline: the first call of a compiled function takes seconds, and says nothing.
settings.register_profile("default", deadline=None, max_examples=50)
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Whatever a test registers is forgotten after it."""
    with SCHEDULES.temporary():
        yield
