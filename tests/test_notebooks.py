"""The notebooks run, each in a fresh kernel, and what they print is what stands in them.

After a change that is meant, `make notebooks` writes the new outputs and pictures into them; with names behind it,
`.venv/bin/python tests/test_notebooks.py notebooks/01-the-game.ipynb` does so for these.
"""

import copy
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from checkout import ROOT
from nbclient import NotebookClient

FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
COURSE = ["01-the-game", "02-the-two-algorithms", "03-the-crossing", "04-the-bounds", "05-your-own-schedule"]
LARGEST_PICTURE = 100_000  # bytes
LINK = re.compile(r"\]\(([^)\s]+)\)")
NOTEBOOK = re.compile(r"\]\((\S+\.ipynb)\)")
EXERCISE = re.compile(r"^\*\*\d\.\*\*", re.MULTILINE)
PUBLIC = re.compile(r"^::: (\S+)$", re.MULTILINE)
IMPORT = re.compile(r"^from (pebblesim\S*) import (.+)$", re.MULTILINE)

Notebook = Any


def read(path: Path) -> Notebook:
    return nbformat.read(path, as_version=4)


def executed(notebook: Notebook) -> Notebook:
    """A copy with the outputs that its cells have now; an error in a cell is raised, with its traceback."""
    fresh = copy.deepcopy(notebook)
    for cell in fresh.cells:
        cell.metadata = {}
    NotebookClient(
        fresh,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},
        coalesce_streams=True,
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],
    ).execute(env={name: value for name, value in os.environ.items() if name != "MPLBACKEND"})  # the notebook's own
    fresh.metadata.language_info = {"name": "python"}  # the rest says which Python it was
    return fresh


def told(notebook: Notebook) -> list[tuple[int, str]]:
    """The output of each cell, and whether it shows a picture; not what goes to stderr, as when matplotlib is new."""
    found = []
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", ()):
            if output.output_type == "stream" and output.name == "stdout":
                found.append((number, output.text))
            elif output.output_type != "stream":
                found += [(number, output.data["text/plain"]), *((number, f"a {kind}") for kind in sorted(output.data))]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_stands_in_it(path: Path) -> None:
    notebook = read(path)
    assert told(executed(notebook)) == told(notebook)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_its_outputs_and_its_pictures_are_small(path: Path) -> None:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert [output.name for output in outputs if output.output_type == "stream" and output.name != "stdout"] == []
    pictures = [len(output.data["image/png"]) * 3 // 4 for output in outputs if "image/png" in output.get("data", {})]
    assert pictures
    assert max(pictures) <= LARGEST_PICTURE


def text(notebook: Notebook, kind: str) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == kind]


def test_the_notebooks_are_a_course_in_order() -> None:
    """Each begins with what its reader will be able to say and links to the four others; the last lines lead on."""
    assert [path.stem for path in NOTEBOOKS] == COURSE
    names = [path.name for path in NOTEBOOKS]
    for number, path in enumerate(NOTEBOOKS):
        first, *_, last = text(read(path), "markdown")
        assert "At its end you can say" in first
        assert NOTEBOOK.findall(first) == names[:number] + names[number + 1 :]
        assert NOTEBOOK.findall(last) == names[number + 1 :][:1]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_ends_with_exercises_and_behind_all_of_them_answers_that_are_asserted(path: Path) -> None:
    cells = read(path).cells
    exercises, answers = (
        next(number for number, cell in enumerate(cells) if title in cell.source)
        for title in ("## Exercises\n", "## Answers\n")
    )
    asked = [number for cell in cells[exercises:answers] for number in EXERCISE.findall(cell.source)]
    assert not any("assert " in cell.source for cell in cells[exercises:answers])
    checks: dict[str, int] = {}  # for each answer, the asserts behind it
    for cell in cells[answers:]:
        if cell.cell_type == "code":
            checks[list(checks)[-1]] += cell.source.count("assert ")
        else:
            checks |= dict.fromkeys(EXERCISE.findall(cell.source), 0)
    assert len(asked) in (3, 4)
    assert list(checks) == asked and all(checks.values())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_takes_the_public_names_alone(path: Path) -> None:
    """What is imported beyond `ps` stands on a page of the API."""
    pages = (FOLDER.parent / "docs" / "api").glob("*.md")
    public = {name for page in pages for name in PUBLIC.findall(page.read_text(encoding="utf-8"))}
    for cell in text(read(path), "code"):
        for module, names in IMPORT.findall(cell):
            for name in names.split(", "):
                assert {module, f"{module}.{name.partition(' as ')[0]}"} & public, f"{name} of {module}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_links_of_a_notebook_lead_to_files(path: Path) -> None:
    links = [link for cell in text(read(path), "markdown") for link in LINK.findall(cell) if "://" not in link]
    assert links
    assert [link for link in links if not (FOLDER / link.partition("#")[0]).is_file()] == []


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else NOTEBOOKS:
        nbformat.write(executed(read(path)), path)
        print(f"executed {path.name}")
