"""Texts of kernels are those that are kept: some to be read, in goldens/, and of all that are offered a hash.

After a change that is meant, `.venv/bin/python tests/test_goldens.py` writes them anew; read their difference.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from golden_texts import GOLDENS, hashed, offered

FOLDER = Path(__file__).parent / "goldens"
HASHES = FOLDER / "hashes.json"
OFFERED = offered()


def file_of(name: str) -> Path:
    return FOLDER / f"{name}{'.cu' if name.startswith('cuda') else '.py'}"


@pytest.mark.parametrize("name", GOLDENS)
def test_a_text_is_the_one_that_is_kept(name: str) -> None:
    assert GOLDENS[name].text() == file_of(name).read_text(encoding="utf-8")


def test_each_text_has_a_file_and_each_kernel_hashes() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {HASHES.name, *(file_of(name).name for name in GOLDENS)}
    assert [*json.loads(HASHES.read_text(encoding="utf-8"))] == [*OFFERED]


@pytest.mark.one_in(24)
@pytest.mark.parametrize("name", OFFERED)
def test_texts_of_a_kernel_that_is_offered_have_the_hashes_that_are_kept(name: str) -> None:
    assert hashed(OFFERED[name]) == json.loads(HASHES.read_text(encoding="utf-8"))[name]


def main() -> None:
    for path in FOLDER.iterdir():
        path.unlink()
    for name, case in GOLDENS.items():
        file_of(name).write_text(case.text(), encoding="utf-8")
    lines = (f" {json.dumps(name)}: {json.dumps(hashed(tiling))}" for name, tiling in OFFERED.items())
    HASHES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
