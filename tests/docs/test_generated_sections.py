"""What documents say of the race on drawn shapes, and of a call's CPU time, is what its rows give today."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

BENCHMARKS = ROOT / "benchmarks" / "gpu"
PAGES = {
    "README": "README.md",
    "ATTENTION": "docs/attention.md",
    "HOST_TIME": "docs/host-time.md",
    "RACE": "docs/race.md",
}


SUMMARY = re.compile(r"<!-- race: (\w+) -->\n\n(.*?)\n\n<!-- end -->", re.DOTALL)


def written(rows: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The pages that rows of a folder give, without the picture."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("drawn_document")
    (to / "docs").mkdir()
    monkeypatch.setattr(module, "picture", lambda folder, file: None)
    for name, page in PAGES.items():
        shutil.copy(ROOT / page, to / page)
        monkeypatch.setattr(module, name, to / page)
    module.document(rows)
    return {page: (to / page).read_text(encoding="utf-8") for page in PAGES.values()}


def test_the_sections_of_the_race_are_those_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After new rows: python benchmarks/gpu/drawn_race.py --document -o benchmarks/gpu/h200/drawn_race"""
    before = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES.values()}
    assert written(BENCHMARKS / "h200" / "drawn_race", tmp_path, monkeypatch) == before


def contender(forward: float, both: float, error: float = 0.01, gradient: float = 0.01) -> dict[str, Any]:
    """Times of a contender with launches, of which the card works a half, and errors of its results."""
    times = {way: {"wall_us": each, "card_us": each / 2, "host_us": 1.0} for way, each in (("f", forward), ("b", both))}
    return {"forward": times["f"], "both": times["b"], "errors": {"O": error, "dQ": gradient}}


def a_row(key: str, mask: str, commit: str | None, **contenders: dict[str, Any]) -> dict[str, Any]:
    """A row of an invented race."""
    shape = {"batch": 1, "kv_heads": 1, "shared": 1, "n": 64, "d": 64, "mask": mask, "left": None, "starts": [0, 64]}
    named = {name.replace("_", "-").replace("--", " "): each for name, each in contenders.items()}
    by_what = {what: {name: each[what] for name, each in named.items()} for what in ("forward", "both", "errors")}
    row = {"key": key, "shape": f"shape {key} {mask}", **shape, "card": "NVIDIA X", "torch": "1.2", "refused": {}}
    return {**row, **by_what, **({"commit": commit} if commit else {})}


def race_of(folder: Path, *rows: dict[str, Any]) -> Path:
    """A folder with rows of a race alone."""
    folder.mkdir()
    (folder / "race.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def test_sentences_of_a_race_follow_rows_that_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape that is raced again has its last row alone; who is behind, wrong or of other code is in the sentences."""
    rows = race_of(
        tmp_path / "rows",
        a_row("1/0", "packed", None, ours=contender(900, 900), flash_attn_4=contender(9, 9)),
        a_row(
            "2/0", "causal", "abc", ours=contender(10, 20), flash_attn_4=contender(20, 160), cudnn=contender(5, 5, 0.3)
        ),
        a_row("2/1", "none", "abc", ours=contender(10, 20), ffpa__triton=contender(30, 18)),
        a_row("3/1", "none", "abc", ours=contender(10, 20), flash_attn_4=contender(40, 1, gradient=0.5)),
        a_row("1/0", "packed", "abc", ours=contender(10, 20), flash_attn_4=contender(80, 40)),
    )
    pages = written(rows, tmp_path, monkeypatch)
    parts = dict(SUMMARY.findall(pages["docs/race.md"]))
    for said in (parts["summary"], dict(SUMMARY.findall(pages["README.md"]))["summary"]):
        assert "Forward, the fastest other kernel takes 3.72 times" in said and "from 2.00 to 8 times" in said
        assert "With gradients, it takes 2.43 times" in said and "from 0.90 to 8 times" in said
        assert "on 4 shapes that 3 seeds drew" in said
        assert "FlashAttention-4 takes 4.00 times as long as ours forward, and 4.00 times with gradients" in said
        assert "mean of 3 and 2 shapes; without packed sequences, 2.83 and 8.00 times, of 2 and 1." in said
        assert "its Triton kernels take 3 to 3 times as long as ours forward, and 0.9 to 0.9 with" in said
        assert "in the CuTe DSL" not in said
    assert "not named" not in parts["rows"] and "abc (4)" in parts["rows"]
    assert (
        "not count: O of cudnn on shape 2/0 causal (an error of 0.3); dQ of flash-attn-4 on shape 3/1" in parts["rows"]
    )
    assert "| shape 2/1 none | forward + backward | 0.90 | 0.90 | 1 / 1 | ffpa triton |" in parts["behind"]
    assert "Of 4 shapes" in parts["behind"] and "900" not in pages["docs/race.md"].split("## Above")[0]


def test_a_race_that_nobody_else_wins_has_no_table_of_what_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = race_of(
        tmp_path / "rows",
        a_row("1/0", "none", None, ours=contender(10, 20), cudnn=contender(20, 160)),
        a_row("1/1", "none", "abc", ours=contender(10, 20), cudnn=contender(20, 160)),
    )
    pages = written(rows, tmp_path, monkeypatch)
    parts = dict(SUMMARY.findall(pages["docs/race.md"]))
    assert parts["behind"] == "None of 2 shapes is below 0.95 with launches."
    assert parts["alone"] == "On the card alone, no shape is below 0.95."
    assert "not named (1), abc (1)" in parts["rows"] and "do not count: none." in parts["rows"]
    assert "FlashAttention-4" not in parts["summary"] + SUMMARY.sub("", pages["README.md"]).split("# I have a proof")[0]


def test_a_race_goes_on_where_it_was_stopped_or_races_shapes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of other commits are left alone, or their shapes are raced again; each new row names its commit."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("drawn_race")
    rows = [{"key": "1/0"}, {"key": "1/1", "commit": "abc"}, {"key": "1/2", "commit": "def"}]
    (file := tmp_path / "race.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    seen: list[set[str]] = []

    def race(asked: Any, known: set[str]) -> Iterator[dict[str, Any]]:
        seen.append(known)
        yield {"key": "1/3"}

    monkeypatch.setattr(module, "race", race)
    for given in ([], ["--again"]):
        monkeypatch.setattr("sys.argv", ["", "-o", str(tmp_path), "--commit", "def", *given])
        module.main()
    assert seen == [{"1/0", "1/1", "1/2"}, {"1/2", "1/3"}]
    new = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()][3:]
    assert new == [{"key": "1/3", "commit": "def"}] * 2


def test_no_sentence_by_hand_counts_the_shapes_of_the_race() -> None:
    by_hand = SUMMARY.sub("", (ROOT / PAGES["RACE"]).read_text(encoding="utf-8"))
    assert not re.findall(r"\b\d+ (?:of \d+ )?shapes", by_hand)


def test_the_table_of_compile_times_is_that_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """After new rows: python benchmarks/compile_times.py -o benchmarks/compile_times.jsonl --table"""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("compile_times")
    lines = (ROOT / "benchmarks" / "compile_times.jsonl").read_text(encoding="utf-8").splitlines()
    table = module.table([json.loads(line) for line in lines])
    assert len(table) == 2 + len(module.KINDS)
    assert "\n".join(table) in (ROOT / PAGES["HOST_TIME"]).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "command", "rows", "unsaid"),
    [
        ("gemma-4", "gemma_step.py --table -o h200", 3, None),
        ("race", "ranges.py --table -o h200/ranges", 10, None),
        ("attention-tests", "combined_errors.py --table -o .", 15, None),
        ("attention-tests", "flash_attention.py --table --rows flash_attention.jsonl", 23, None),
        ("plugging-in", "flash_attention.py --table --rows package.jsonl", 23, None),
        ("plugging-in", "package_training.py --table .", 7, None),
        ("attention", "sinks.py --table -o sinks_library.jsonl", 3, ""),
        ("attention", "sinks.py --table -o sinks_again.jsonl", 1, ""),
        ("bias", "bias.py --table -o bias.jsonl --beside bias_peers.jsonl", 12, "atomic dB"),
    ],
)
def test_tables_of_pages_are_those_of_committed_rows(page: str, command: str, rows: int, unsaid: str | None) -> None:
    """A page has each row of each table that a command prints, or of the table with a column that it does not say."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    ran = subprocess.run([sys.executable, *command.split()], cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    said = list[str]()
    for head, body in re.findall(r"^\|(.*)\|\n\|[-:| ]+\n((?:\|.*\n)+)", ran.stdout, re.MULTILINE):
        names = [name.strip() for name in head.split("|")]
        if unsaid is None or unsaid in names:
            cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]
            said += [" | ".join(x for name, x in zip(names, row, strict=True) if name != unsaid) for row in cells]
    assert len(said) == rows
    assert not [row for row in said if f"| {row} |" not in text]
