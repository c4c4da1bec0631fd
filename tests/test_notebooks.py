"""The notebooks run, each in a fresh kernel, and what they print is what stands in them.

After a change that is meant, `make notebooks` writes the new outputs and pictures into them; with names behind it,
`.venv/bin/python tests/test_notebooks.py notebooks/01-the-game-by-hand.ipynb` does so for these.
"""

import copy
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST_PICTURE = 100_000  # bytes

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


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 6


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else NOTEBOOKS:
        nbformat.write(executed(read(path)), path)
        print(f"executed {path.name}")
