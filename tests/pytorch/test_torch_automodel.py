"""NVIDIA's NeMo Automodel makes its models with our attention, as docs/plugging-in.md says; where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
automodel = pytest.importorskip("nemo_automodel")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of what Automodel imports

PAGE = ROOT / "docs" / "plugging-in.md"

SIZES = {"hidden_size": 64, "intermediate_size": 32, "vocab_size": 97, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 2}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}


def configurations() -> dict[str, Any]:
    """Small models by name."""
    gemma = {"global_head_dim": 32, "num_global_key_value_heads": 2, "hidden_size_per_layer_input": 0}
    gemma |= {"vocab_size_per_layer_input": 97, "num_kv_shared_layers": 0}
    return {
        "gemma 4": transformers.Gemma4TextConfig(**SIZES, **WINDOWS, **gemma),
        "gpt-oss": transformers.GptOssConfig(**SIZES, **WINDOWS, num_local_experts=4, num_experts_per_tok=2),
        "llama": transformers.LlamaConfig(**SIZES),
        "qwen 3": transformers.Qwen3Config(**SIZES),
    }


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Automodel asks for the current GPU, and takes what it is told."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))


@pytest.mark.parametrize("name", ["gemma 4", "gpt-oss", "llama", "qwen 3"])
def test_losses_and_gradients_are_those_of_eager_attention(on_the_cpu: None, name: str) -> None:
    from pebblesim.gpu.transformers import register

    register()
    tokens, found = torch.arange(66).view(2, 33) % 97, []
    for attention in ("eager", "pebblesim"):
        options = {"attn_implementation": attention, "torch_dtype": torch.float32, "use_liger_kernel": False}
        model = automodel.NeMoAutoModelForCausalLM.from_config(configurations()[name], **options)
        assert model.config._attn_implementation == attention
        torch.manual_seed(0)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.05)
        model(input_ids=tokens).logits.float().log_softmax(-1)[..., 5].sum().backward()
        found.append([x.grad for x in model.parameters() if x.grad is not None])
    assert len(found[0]) == len(found[1]) > 10
    for mine, true in zip(*found, strict=True):
        torch.testing.assert_close(mine, true, atol=1e-5, rtol=1e-3)


def test_the_recipe_of_the_page_makes_a_model(on_the_cpu: None, tmp_path: Path, monkeypatch: Any) -> None:
    """With `from_config`, as `from_pretrained` needs a GPU."""
    from nemo_automodel.components.config.loader import load_yaml_config

    text = PAGE.read_text(encoding="utf-8")
    function = text.split("# my_model.py\n")[1].split("```")[0]
    recipe = next(part for part in text.split("```yaml\n")[1:] if "my_model" in part).split("```")[0]
    (tmp_path / "my_model.py").write_text(function.replace("from_pretrained", "from_config"), encoding="utf-8")
    transformers.AutoModelForCausalLM.from_config(configurations()["gemma 4"]).save_pretrained(tmp_path / "weights")
    (tmp_path / "recipe.yaml").write_text(recipe.replace("google/…", str(tmp_path / "weights")), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    model = load_yaml_config(str(tmp_path / "recipe.yaml")).model.instantiate()
    assert model.config._attn_implementation == "pebblesim"
    assert sum(parameter.numel() for parameter in model.parameters()) > 10_000
