"""What `make docs` builds is whole: every document and every public name is in it."""

import re
import runpy
from pathlib import Path

import pebblesim as ps

ROOT = Path(__file__).resolve().parent.parent
PAGES = re.findall(r"^ +- ([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_document_has_a_place_in_the_navigation() -> None:
    documents = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(PAGES) == sorted({*documents, "index.md"})


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    listed = re.findall(r"^::: pebblesim\.(\w+)$", text, re.MULTILINE)
    assert set(ps.__all__) <= set(listed)
    assert len(listed) == len(set(listed))


def test_what_is_broken_on_purpose_still_stands_in_the_source() -> None:
    """A mutation whose text is gone would no longer be tried, and the page would speak of another program."""
    broken = runpy.run_path(str(ROOT / "benchmarks" / "mutations.py"))
    mutations = [each for many in broken["listed"]().values() for each in many]
    assert all(broken["Mutated"](each).source for each in mutations)
    page = (ROOT / "docs" / "mutations.md").read_text(encoding="utf-8")
    assert [each.what for each in mutations if f"| {each.what} |" not in page] == []
