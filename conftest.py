"""Modules that cannot be collected here: those that import PyTorch, where there is none; and examples of docstrings."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from _pytest.doctest import DoctestItem

ROOT = Path(__file__).parent
HERE = find_spec("torch") is not None
FOLDERS = ("pebblesim/explaining", "pebblesim/operator", "tests")


def needs_torch(path: Path) -> bool:
    """Whether a file is one that imports it, or is another path of such modules, or shares with tests what imports it.

    Tests skip themselves.
    """
    text = path.read_text(encoding="utf-8")
    if re.search(r"^(try:\n    )?(import|from) torch\b", text, re.MULTILINE):
        return True
    folders = path.relative_to(ROOT).parts
    shared = folders[0] == "tests" and not path.name.startswith("test_")
    return folders[1] == "gpu" or (shared and "from pebblesim.operator." in text)


IGNORED = {
    path
    for folder in (*FOLDERS, "pebblesim/gpu")
    for path in (ROOT / folder).rglob("*.py")
    if not HERE and needs_torch(path)
}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """A set, as pytest makes a path of each name of `collect_ignore` for each file that it finds."""
    return True if collection_path in IGNORED else None


@pytest.fixture(autouse=True)
def schedules_of_an_example(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the example of a docstring registers is gone behind it: other tests go through all schedules."""
    if not isinstance(request.node, DoctestItem):
        yield
        return
    from pebblesim.language.registry import SCHEDULES

    with SCHEDULES.temporary():
        yield
