"""The lists of mutations stand up to changes of the code: what they break is there, and so is what finds it."""

import importlib.util
import json
import re
from types import ModuleType

import pytest
from checkout import ROOT


def script(name: str) -> ModuleType:
    """A file of benchmarks/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_mutation_has_its_text_and_a_line_of_the_page() -> None:
    mutations = script("mutations")
    listed = {each.what: each for many in mutations.listed().values() for each in many}
    for each in listed.values():
        mutations.Mutated(each)
    page = (ROOT / "benchmarks" / "mutations.md").read_text(encoding="utf-8")
    lines = dict(re.findall(r"^\| (.+?) \| (`.+) \|$", page, re.MULTILINE))
    assert lines.keys() == listed.keys()
    assert f"{len(listed)} mutations, {len(listed)} found." in page


def test_the_page_of_drawn_mutations_is_that_of_its_data() -> None:
    page = (ROOT / "benchmarks" / "drawn-mutations.md").read_text(encoding="utf-8")
    assert page == script("drawn_mutations").page()
    for path in sorted((ROOT / "benchmarks" / "drawn_mutations").glob("*.json")):
        for key, each in json.loads(path.read_text(encoding="utf-8"))["mutations"].items():
            assert each["found by"] or each.get("since") or each.get("why"), key


@pytest.mark.parametrize("page", ["mutations", "drawn-mutations"])
def test_every_test_that_finds_a_mutation_exists(page: str) -> None:
    text = (ROOT / "benchmarks" / f"{page}.md").read_text(encoding="utf-8")
    tests = set(re.findall(r"`(test_\w+\.py)::(?:(\w+)::)?(\w+)", text))
    assert len(tests) > 10
    known = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
    sources = {file: known[file].read_text(encoding="utf-8") for file, _, _ in tests}
    missing = {(file, test) for file, group, test in tests if not re.search(rf"\b{group or test}\b", sources[file])}
    assert missing == set()
