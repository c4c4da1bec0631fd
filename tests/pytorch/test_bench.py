"""`python -m pebblesim.gpu.bench`: rows, errors and the table, on the CPU with a stand-in for the clock."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pebblesim  # noqa: E402
from pebblesim.operator import bench  # noqa: E402

SMALL = bench.Shape(40, 16, 4, 2, True)


@pytest.fixture
def here(monkeypatch: Any) -> None:
    """A benchmark of the CPU, in which each call takes a second."""
    monkeypatch.setattr(bench, "DEVICE", "cpu")
    monkeypatch.setattr(bench, "CHECKED", 24)
    monkeypatch.setattr(
        bench, "measured", lambda torch, call, seconds: call() is not None and {"seconds": 1.0, "bytes": 2**20}
    )


def test_operations_are_those_of_allowed_pairs() -> None:
    pairs = sum(1 for i in range(40) for j in range(i + 1))
    assert SMALL.operations(False) == 4 * pairs * 16 * 4 and SMALL.operations(True) == 14 * pairs * 16 * 4
    assert SMALL._replace(causal=False).operations(False) == 4 * 40 * 40 * 16 * 4


def test_an_attention_that_is_wrong_has_a_large_error_and_a_right_one_about_one(here: None) -> None:
    right = bench.error(torch, bench.pytorch(), SMALL)
    assert 0.2 < right < 2
    assert bench.error(torch, bench.by_definition, SMALL) == 1
    wrong = lambda q, k, v, causal: bench.by_definition(q, k, v, False)  # noqa: E731
    assert bench.error(torch, wrong, SMALL) > 20


def test_rows_are_of_what_is_installed_and_say_what_was_refused(here: None, monkeypatch: Any) -> None:
    def refuses() -> Any:
        def attend(*given: Any) -> Any:
            raise ValueError("no heads of 16\nmore")

        return attend

    def missing() -> Any:
        raise ImportError

    monkeypatch.setattr(bench, "CONTENDERS", {"torch": bench.pytorch, "numpy": refuses, "sympy": missing})
    found = list(bench.rows(torch, [SMALL], 0.0))
    first, second = found
    assert first["attention"].startswith("torch ") and first["both"]["tflops"] == SMALL.operations(True) / 1e12
    assert second["refused"] == "no heads of 16"
    assert "refused: no heads" in bench.line(second) and len(bench.line(first)) == len(bench.HEADER)
    json.dumps(found)


def test_attentions_that_are_not_installed_but_imported_from_a_checkout_are_there(here: None, monkeypatch: Any) -> None:
    def none_installed(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(bench, "version", none_installed)
    monkeypatch.setattr(bench, "CONTENDERS", {"pebblesim": bench.ours, "another": bench.pytorch})
    found = [row["attention"] for row in bench.rows(torch, [SMALL], 0.0)]
    assert found == [f"pebblesim {pebblesim.__version__}", "another"]


def test_without_a_gpu_it_is_one_sentence(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    made = subprocess.run([sys.executable, "-m", "pebblesim.gpu.bench"], capture_output=True, text=True, check=False)
    assert made.returncode == 2 and made.stderr.startswith("error: a benchmark needs") and not made.stdout
