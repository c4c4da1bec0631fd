"""The site that `make docs` builds is whole: every document and every public name is in it."""

import inspect
import re
import runpy
import tarfile
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

import pebblesim as ps
from pebblesim.catalogue.literature import STATEMENTS

PAGES = re.findall(r"^ +- ([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_document_has_a_place_in_the_navigation() -> None:
    documents = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(PAGES) == sorted({*documents, "index.md"})


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_lists_begin_behind_an_empty_line(path: Path) -> None:
    """Otherwise the site shows them as a part of the paragraph above."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    blocks = [block.splitlines() for block in re.split(r"\n\s*\n", text)]
    item = re.compile(r"(?:[-*]|\d+\.) ")
    swallowed = [
        line for block in blocks for line in block[1:] if item.match(line) and not re.match(r"[-*\d #]", block[0])
    ]
    assert swallowed == []


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    listed = re.findall(r"^::: pebblesim\.(\w+)$", text, re.MULTILINE)
    assert set(ps.__all__) <= set(listed)
    assert len(listed) == len(set(listed))


FUNCTIONS = [name for name in ps.__all__ if inspect.isfunction(getattr(ps, name))]
LANGUAGE = ("exp", "log", "maximum", "relu", "rowmax", "rowsum", "sigmoid", "step")
"""Names that make sense inside a schedule alone; the schedules are its examples."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_tells_of_its_arguments_its_result_and_an_example(name: str) -> None:
    function = getattr(ps, name)
    told = inspect.getdoc(function) or ""
    arguments = re.search(r"^Args:\n((?:    .*\n?|\n(?=    ))+)", told, re.MULTILINE)
    described = re.findall(r"[\w, ]+(?=: )", arguments[1], re.MULTILINE) if arguments else []
    words = set(re.findall(r"\w+", " ".join(described)))
    signature = inspect.signature(function)
    assert [each for each in signature.parameters if each not in words] == []
    assert signature.return_annotation in ("None", None) or "\nReturns:\n" in told
    assert name in LANGUAGE or ">>> " in told


@pytest.mark.parametrize("name", sorted({*ps.__all__} - {*FUNCTIONS}))
def test_every_class_is_described(name: str) -> None:
    told = inspect.getdoc(getattr(ps, name)) or ""
    assert len(told) > 30


def test_what_is_broken_on_purpose_still_stands_in_the_source() -> None:
    """A mutation whose text is gone would no longer be tried, and the page would speak of another program."""
    broken = runpy.run_path(str(ROOT / "benchmarks" / "mutations.py"))
    mutations = [each for many in broken["listed"]().values() for each in many]
    assert all(broken["Mutated"](each).source for each in mutations)
    page = (ROOT / "benchmarks" / "mutations.md").read_text(encoding="utf-8")
    assert [each.what for each in mutations if f"| {each.what} |" not in page] == []


WORKER = """
addEventListener("message", ({ data }) => postMessage(2 * data));
"""
PAGE_OF_WORKER = """<!doctype html><body><script src="iframe-worker.js"></script><script>
const worker = new Worker(new URL("worker.js", location));
worker.addEventListener("message", ({ data }) => (document.title += ` ${data}`));
worker.postMessage(3);
worker.postMessage(4);
</script></body>"""


def test_search_takes_the_worker_of_this_checkout() -> None:
    """Without a polyfill of this name the theme would fetch one from another site, and have no search without it."""
    assert "polyfills: [iframe-worker.js]" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert (ROOT / "docs" / "iframe-worker.js").is_file()


@pytest.mark.slow
def test_a_page_from_disk_has_a_worker(offline: Any, tmp_path: Path) -> None:
    for name, text in (("worker.js", WORKER), ("page.html", PAGE_OF_WORKER)):
        (tmp_path / name).write_text(text)
    (tmp_path / "iframe-worker.js").write_text((ROOT / "docs" / "iframe-worker.js").read_text(encoding="utf-8"))
    tab = offline().new_page()
    tab.goto((tmp_path / "page.html").as_uri())
    tab.wait_for_function("document.title === '6 8'")


FORMULAS = runpy.run_path(str(ROOT / "docs" / "formulas.py"))


@pytest.mark.one_in(2)
def test_the_site_has_all_closed_forms_and_statements_as_formulas() -> None:
    table = FORMULAS["closed_forms"]()
    assert "<!-- closed forms -->" in (ROOT / "docs" / "lower-bounds.md").read_text(encoding="utf-8")
    for each in ps.claims.theorems.theorems():
        assert f"| **{each.name}** | {each.problem} | $" in table
    assert all(line.count("|") == 5 and line.count("$") == 4 for line in table.splitlines()[2:])
    page = (ROOT / "docs" / "ERRATA.md").read_text(encoding="utf-8")
    typeset = FORMULAS["statements_as_formulas"](page)
    wrong = [each for each in STATEMENTS if each.expr and each.erratum and each.relation != "≥"]
    assert len(wrong) > 15 and all(f": ${each.latex}$ for " in typeset for each in wrong)
    assert r"$O\left(\frac{n^{2}}{\sqrt{M}}\right)$ for $M \le d^{2}$" in typeset


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_formulas_are_whole(path: Path) -> None:
    """Each display begins and ends on a line of its own, and has as many opening signs as closing ones."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = [line.strip() for line in text.splitlines()]
    marks = [number for number, line in enumerate(lines) if "$$" in line]
    assert len(marks) % 2 == 0 and all(lines[number] == "$$" for number in marks)
    for first, last in zip(marks[::2], marks[1::2], strict=True):
        assert last == first + 2 and lines[first - 1] == lines[last + 1] == ""
        formula = lines[first + 1]
        for opening, closing in (("{", "}"), (r"\left", r"\right"), (r"\begin{", r"\end{")):
            assert len(re.findall(re.escape(opening) + r"(?![a-z]*arrow)", formula)) == formula.count(closing)


def test_katex_is_taken_from_its_package_with_its_license(tmp_path: Path) -> None:
    package = tmp_path / "katex.tgz"
    wanted = ("dist/katex.min.js", "dist/katex.min.css", "dist/fonts/KaTeX_Main-Bold.woff2", "LICENSE")
    with tarfile.open(package, "w:gz") as archive:
        for name in (*wanted, "dist/katex.js", "dist/fonts/KaTeX_Main-Bold.ttf", "src/katex.min.js", "README.md"):
            (tmp_path / "file").write_text(name)
            archive.add(tmp_path / "file", f"package/{name}")
    assert {name: text.decode() for name, text in FORMULAS["katex"](package)} == {
        name.removeprefix("dist/"): name for name in wanted
    }
