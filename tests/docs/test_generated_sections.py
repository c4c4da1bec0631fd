"""What documents say of the race on drawn shapes, and of a call's CPU time, is what its rows give today."""

import importlib
import json
import shutil
from pathlib import Path

import pytest
from checkout import ROOT

BENCHMARKS = ROOT / "benchmarks" / "gpu"
PAGES = {
    "README": "README.md",
    "ATTENTION": "docs/attention.md",
    "HOST_TIME": "docs/host-time.md",
    "RACE": "docs/race.md",
}


def test_the_sections_of_the_race_are_those_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After new rows: python benchmarks/gpu/drawn_race.py --document -o benchmarks/gpu/h200/drawn_race"""
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("drawn_document")
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "picture", lambda folder, file: None)
    before = {}
    for name, page in PAGES.items():
        shutil.copy(ROOT / page, tmp_path / page)
        monkeypatch.setattr(module, name, tmp_path / page)
        before[page] = (ROOT / page).read_text(encoding="utf-8")
    module.document(BENCHMARKS / "h200" / "drawn_race")
    assert {page: (tmp_path / page).read_text(encoding="utf-8") for page in before} == before


def test_the_table_of_compile_times_is_that_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """After new rows: python benchmarks/compile_times.py -o benchmarks/compile_times.jsonl --table"""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("compile_times")
    lines = (ROOT / "benchmarks" / "compile_times.jsonl").read_text(encoding="utf-8").splitlines()
    table = module.table([json.loads(line) for line in lines])
    assert len(table) == 2 + len(module.KINDS)
    assert "\n".join(table) in (ROOT / PAGES["HOST_TIME"]).read_text(encoding="utf-8")
