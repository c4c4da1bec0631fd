"""`benchmarks/gpu/flash_attention.py`: sets that a seed draws, what becomes of them, and its rows and table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import ROOT

torch = pytest.importorskip("torch")

SCRIPT = ROOT / "benchmarks" / "gpu" / "flash_attention.py"
sys.path.append(str(SCRIPT.parent))

import flash_attention  # noqa: E402
import flash_interface  # noqa: E402

TESTS = """
import pytest
import torch
from flash_attn import flash_attn_func, flash_attn_varlen_func


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seqlen_q,seqlen_k", [(2, 5), (5, 2)])
def test_flash_attn_shown(seqlen_q, seqlen_k, causal, dropout_p):
    q, k = (torch.randn(1, n, 2, 16, device="cuda") for n in (seqlen_q, seqlen_k))
    out = flash_attn_func(q, k, k, dropout_p, causal=causal)
    S = torch.einsum("bthd,bshd->bhts", q, k) / 4
    allowed = torch.ones_like(S, dtype=torch.bool).tril(seqlen_k - seqlen_q if causal else 9)
    P = torch.where(allowed, S, -1e30).softmax(-1) * allowed
    assert (out - torch.einsum("bhts,bshd->bthd", P, k)).abs().max().item() <= 1e-5


@pytest.mark.parametrize("much", [1e-4, -1.0])
def test_flash_attn_wrong(much):
    assert (torch.ones(1) * much).max().item() <= 0.0


@pytest.mark.parametrize("d", [16, 4096])
def test_flash_attn_refused(d):
    x = torch.randn(3, 1, d, device="cuda")
    flash_attn_varlen_func(x, x, x, torch.tensor([0, 3]), torch.tensor([0, 3]), 3, 3, alibi_slopes=d)
"""


@pytest.mark.slow
def test_a_run_goes_on_where_another_ended(tmp_path: Path) -> None:
    """All sets but those with dropout, each once: two runs of a part of them and of the rest."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "tests" / "test_flash_attn.py").write_text(TESTS)
    rows = tmp_path / "rows.jsonl"
    for sets in (3, 8):
        given = [tmp_path, "--cpu", "--sets", sets, "--workers", 2, "--rows", rows]
        ran = subprocess.run([sys.executable, SCRIPT, *map(str, given)], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
    first, second = map(json.loads, rows.read_text().splitlines())
    assert (first["done"], second["done"]) == ("0-2", "3-7")
    whole: dict[str, Any] = {}
    for row in (first, second):
        for name, results in row["results"].items():
            for result, number in results.items():
                whole.setdefault(name, {}).setdefault(result, 0)
                whole[name][result] += number
    assert whole == {
        "test_flash_attn_shown": {"passed": 4},
        "test_flash_attn_wrong": {"failed": 1, "passed": 1},
        "test_flash_attn_refused": {"refused": 2},
    }
    assert {**first["refused"], **second["refused"]}.keys() == {"attention has no alibi_slopes"}
    (failed,) = (*first["failed"], *second["failed"])
    assert "is 0.0001 for 0" in failed["said"] and failed["set"] == {"much": "0.0001"}


def test_a_run_that_is_stopped_leaves_the_results_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two results, then a run that is killed; what was in the file before stays."""
    before = {"file": "tests", "seed": 1, "done": "0", "results": {}}
    (rows := tmp_path / "rows.jsonl").write_text(json.dumps(before) + "\n")

    def stopped(options: Any) -> Any:
        for number in (4, 5):
            yield {"number": number, "test": "test_x", "result": "passed", "said": "", "seconds": 1.5}
        raise KeyboardInterrupt

    monkeypatch.setattr(flash_attention, "run", stopped)
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path), "--seed", "7", "--rows", str(rows)])
    with pytest.raises(KeyboardInterrupt):
        flash_attention.main()
    first, second = map(json.loads, rows.read_text().splitlines())
    assert first == before and (second["done"], second["seconds"]) == ("4-5", {"test_x": 3.0})


def test_sets_with_few_kernels_are_run_first_and_those_that_fill_a_card_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they are dealt to one process, which names each."""
    wide, race = {"d": 64, "V_colmajor": False}, "test_flash_attn_race_condition"
    sets = [("test_a", wide), (race, {"d": 128}), ("test_b", {"d": 192}), ("test_c", {"d": 128}), ("test_d", wide)]
    monkeypatch.setattr(flash_attention, "DEALT", 4)
    monkeypatch.setattr(flash_attention, "tests_of", lambda *given: {})
    monkeypatch.setattr(flash_attention, "drawn", lambda *given: sets)
    says = "import json, sys\nfor n in sys.stdin: print(json.dumps({'number': int(n)}), flush=True)"
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **given: popen([sys.executable, "-c", says], **given))
    options = SimpleNamespace(checkout=None, file="hopper", seed=1, sets=5, rows=Path("none"), seconds=60, workers=1)
    found = flash_attention.run(SimpleNamespace(**vars(options), given=None, on="H200"))  # type: ignore[arg-type]
    assert [row["number"] for row in found] == [3, 2, 0, 1, 4]


def test_numbers_of_sets_are_kept_as_a_text() -> None:
    for found, text in (([], ""), ([3], "3"), ([0, 1, 2, 5, 7, 8], "0-2,5,7-8")):
        assert flash_attention.spans(found) == text and flash_attention.numbers(text) == found


def test_key_ranges_of_sequences_that_use_a_part_of_their_tokens() -> None:
    """Against each pair: windows, chunks, and the last query at the last key."""
    used_q, starts = torch.tensor([2, 0, 3]), torch.tensor([0, 3, 4, 7])
    low, high = torch.tensor([0, 5, 6]), torch.tensor([4, 5, 12])
    for window, chunk in (((-1, -1), 0), ((1, 0), 0), ((-1, 1), 2), ((2, -1), 3)):
        first, end = flash_interface._ranges(torch.zeros(7), starts, used_q, low, high, window, chunk)
        assert (first.diff() >= 0).all() and (end.diff() >= 0).all()
        for i in range(7):
            of = int((starts <= i).sum()) - 1
            at = i - int(starts[of]) + int(high[of] - low[of] - used_q[of])  # among the keys of its sequence
            for j in range(12):
                key = j - int(low[of])
                seen = low[of] <= j < high[of] and i - starts[of] < used_q[of]
                seen &= window[0] < 0 or key >= at - window[0]
                seen &= window[1] < 0 or key <= at + window[1]
                seen &= not chunk or key // chunk == at // chunk
                assert bool(seen) == bool(first[0, i] <= j < end[0, i]), (window, chunk, i, j)


def test_the_table_of_the_document_is_that_of_the_rows() -> None:
    made = flash_attention.table(flash_attention.rows_of(flash_attention.ROWS))
    assert made in (SCRIPT.parents[2] / "docs" / "attention-tests.md").read_text(encoding="utf-8")


def test_the_page_has_the_results_of_a_package_and_the_kernels_that_the_profiler_saw() -> None:
    page = (SCRIPT.parents[2] / "docs" / "plugging-in.md").read_text(encoding="utf-8")
    assert flash_attention.table(flash_attention.rows_of(flash_attention.OF_PACKAGE)) in page
    ours = {"flash2_forward_1", "dQ_dK_dV_2", "dK_dV_1", "dQ_1"}
    most = {"ours": 0.0, "cuDNN": 0.0}
    for row in json.loads((SCRIPT.parent / "sdpa.json").read_text(encoding="utf-8")):
        whose = "ours" if ours & {*row["kernels"]} else "cuDNN"
        assert any("cudnn_generated" in each for each in row["kernels"]) == (whose == "cuDNN")
        assert whose == ("cuDNN" if row["way"] in ("PyTorch", "registry") else "ours")
        most[whose] = max(most[whose], *row["errors"])
    assert f"at most {most['ours']:.1f} times" in page and f"and {most['cuDNN']:.1f} times" in page


def test_sets_are_drawn_alike_and_differ() -> None:
    marks = [SimpleNamespace(name="parametrize", args=each) for each in (("a,b", [(1, 2), (3, 4)]), ("c", [5, 6]))]
    tests = {"test_x": SimpleNamespace(pytestmark=marks), "test_y": SimpleNamespace()}
    found = flash_attention.drawn(tests, 7, 9)  # type: ignore[arg-type]
    assert len(found) == 5 and found[:3] == flash_attention.drawn(tests, 7, 3)  # type: ignore[arg-type]
    assert ("test_y", {}) in found and {each["a"] + each["b"] for _, each in found if each} == {3, 7}
