"""Packages of kernels as Hugging Face's libraries load them: `kernels`, and transformers by `attn_implementation`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

from pytorch.test_package import loaded  # noqa: E402

from pebblesim.advice import cards  # noqa: E402
from pebblesim.operator.packages.frozen_table import Asked  # noqa: E402
from pebblesim.operator.packages.package import emit  # noqa: E402

pytestmark = pytest.mark.slow

NAME = "an-organisation/attention@v1"

SMALL = {"hidden_size": 64, "intermediate_size": 32, "vocab_size": 97, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 2, "sliding_window": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("packages") / "attention"
    emit(Asked(cards.card("H200"), widths=(32,), lengths=(64,), shared=(2,), heads=(8,)), made, "attention")
    return made


def for_the_cpu(folder: Path, copy: Path, mark: str) -> Path:
    """A copy of a package as one that `kernels` loads here, by PyTorch's build, with operators of a name of its own."""
    shutil.copytree(folder, copy)
    backend = "cuda" if torch.version.cuda else "cpu"
    built = copy / "build" / f"torch-{backend}"
    (copy / "build" / "torch-cuda").rename(built)
    metadata = json.loads((built / "metadata.json").read_text(encoding="utf-8"))
    name = f"{metadata['id']}_{mark}"
    text = json.dumps(metadata | {"backend": {"type": backend}, "id": name})
    (built / "metadata.json").write_text(text, encoding="utf-8")
    operators = (built / "_ops.py").read_text(encoding="utf-8")
    (built / "_ops.py").write_text(operators.replace(metadata["id"], name), encoding="utf-8")
    return copy


def test_the_kernels_library_loads_the_folder(folder: Path, tmp_path: Path) -> None:
    """For the CPU of this test: `build/torch-cuda` under the name of its backend."""
    kernels = pytest.importorskip("kernels")
    made = kernels.get_local_kernel(for_the_cpu(folder, tmp_path / "attention", "cpu"))
    q, kv = torch.randn(1, 5, 2, 32), torch.randn(1, 5, 1, 32)
    matrices = (x.transpose(1, 2) for x in (q, kv, kv))
    close = torch.nn.functional.scaled_dot_product_attention(*matrices, is_causal=True, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(made.flash_attn_func(q, kv, kv, causal=True), close)


def models() -> dict[str, Any]:
    """Configurations of small models."""
    gpt_oss = {"num_local_experts": 4, "num_experts_per_tok": 2}
    gemma = {"global_head_dim": 32, "num_global_key_value_heads": 2, "hidden_size_per_layer_input": 0}
    gemma |= {"vocab_size_per_layer_input": 97, "num_kv_shared_layers": 0}
    kinds = {"layer_types": ["sliding_attention", "full_attention"]}
    return {
        "llama": transformers.LlamaConfig(**{name: size for name, size in SMALL.items() if name != "sliding_window"}),
        "gpt-oss": transformers.GptOssConfig(**SMALL, **gpt_oss, **kinds),
        "gemma 4": transformers.Gemma4TextConfig(**SMALL, **gemma, **kinds),
    }


@pytest.mark.parametrize("name", ["llama", "gpt-oss", "gemma 4"])
@pytest.mark.parametrize("padded", [False, True])
def test_transformers_trains_a_model_with_a_package(folder: Path, monkeypatch: Any, name: str, padded: bool) -> None:
    """Losses and gradients are those of eager attention, in float32."""
    from transformers.integrations import hub_kernels

    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda *given: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda *given, **options: loaded(folder))
    torch.manual_seed(1)
    config = models()[name]
    tokens = torch.randint(0, 97, (2, 33))
    mask = torch.ones_like(tokens)
    labels = tokens.clone()
    if padded:
        mask[0, :7] = 0
        labels[0, :8] = -100  # the first token is predicted from padding, which nothing defines
    found = []
    for attention in ("eager", NAME):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        assert model.config._attn_implementation == attention
        out = model(tokens, attention_mask=mask, labels=labels)
        out.loss.backward()
        found.append([out.loss.detach(), *(x.grad for x in model.parameters() if x.grad is not None)])
    assert len(found[0]) == len(found[1]) > 10
    for mine, true in zip(*found, strict=True):
        torch.testing.assert_close(mine, true, atol=2e-6, rtol=1e-3)


def test_transformers_loads_the_folder_itself(folder: Path, monkeypatch: Any, tmp_path: Path) -> None:
    """By `kernels`' variable for local folders, with nothing of transformers replaced."""
    from transformers.utils import import_utils

    if not import_utils.is_kernels_available():
        pytest.skip("transformers takes no version of kernels that is here")
    made = for_the_cpu(folder, tmp_path / "attention", "local")
    monkeypatch.setenv("LOCAL_KERNELS", f"another-organisation/attention={made}")
    tokens, found = torch.randint(0, 97, (2, 33), generator=torch.Generator().manual_seed(1)), []
    for attention in ("eager", "another-organisation/attention@v1"):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(models()["llama"], attn_implementation=attention)
        found.append(model(tokens, labels=tokens).loss)
    torch.testing.assert_close(*found)
