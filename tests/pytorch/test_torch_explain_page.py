"""docs/explain.md: its outputs are what the command prints for the models of benchmarks/explained_models.py."""

from __future__ import annotations

import re
import runpy
from typing import Any

import pytest
from checkout import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("diffusers")

MODELS = runpy.run_path(str(ROOT / "benchmarks" / "explained_models.py"), run_name="models")
SHOWN = re.findall(r"```text\n\$ pebblesim explain (.+)\n((?:(?!```).*\n)*)```", MODELS["PAGE"].read_text("utf-8"))

OF_THE_PAGE = torch.__version__.split(".")[:2] == ["2", "13"]


def test_the_page_has_six_models_one_of_them_in_two_ways() -> None:
    functions = {command.partition(":")[2].split()[0] for command, _ in SHOWN}
    assert functions == {"llama", "gemma_4", "gpt_oss", "vae", "dit", "pair_bias", "fused_pair_bias"}


@pytest.mark.slow
@pytest.mark.skipif(not OF_THE_PAGE, reason="the page was written with PyTorch 2.13, and its rules differ")
@pytest.mark.parametrize(("command", "said"), SHOWN)
def test_the_outputs_are_those_of_the_command(command: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert MODELS["printed"](command) == said.rstrip("\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "layers", "calls"), [("llama", "num_hidden_layers", 32), ("gpt_oss", "num_hidden_layers", 36)]
)
def test_each_layer_has_one_call(model: str, layers: str, calls: int) -> None:
    """As the configuration says how many layers there are."""
    from pebblesim.explaining.program import explain_file

    with torch.device("meta"):
        made: Any = MODELS[model]()[0]
    assert getattr(made.config, layers) == calls
    found = explain_file(f"{ROOT}/benchmarks/explained_models.py:{model}", "H200", forward=True)
    assert sum(row.times for row in found.rows) == calls
    assert {row.call.training for row in found.rows} == {False}
