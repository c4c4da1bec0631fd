"""`explain` of models whose attention is ours already: by shapes alone, by real tensors, and by its own masks."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pebblesim as ps  # noqa: E402
from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.explaining.program import explain_file  # noqa: E402
from pebblesim.explaining.watching import recorded  # noqa: E402
from pebblesim.gpu.torch import attention, flash_attn_func  # noqa: E402
from pebblesim.operator.integrations import sdpa  # noqa: E402

FILE = """
import torch
from pebblesim.gpu.torch import attention, flash_attn_varlen_func

def named():
    x = torch.randn(2, 4, 64, 32, dtype=torch.bfloat16, requires_grad=True)
    return lambda: attention(x, x, x, is_causal=True)

def kept():
    from pebblesim.gpu.torch import attention as within
    x = torch.randn(2, 4, 64, 32, dtype=torch.bfloat16)
    bias, sinks = torch.randn(4, 64, 64), torch.randn(4)
    def run():
        within(x, x, x, bias=bias).sum()
        return within(x, x, x, sinks=sinks, window=(7, 0))
    return run

def packed():
    x, starts = torch.randn(64, 4, 32, dtype=torch.bfloat16), torch.tensor([0, 20, 64], dtype=torch.int32)
    return lambda: flash_attn_varlen_func(x, x, x, starts, starts, causal=True)
"""


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("name", "masks"),
    [("named", ["causal"]), ("kept", ["bias tensor", "window 8"]), ("packed", ["causal + packed"])],
)
def test_our_attention_in_a_file_is_found(tmp_path: Path, name: str, masks: list[str], live: bool) -> None:
    """Under names that the file, a function in it and our own modules have for it."""
    (tmp_path / "model.py").write_text(FILE)
    rows = explain_file(f"{tmp_path}/model.py:{name}", "H200", live=live).rows
    assert [str(row.call.mask) for row in rows] == masks
    assert all((row.call.entry, row.choice.backend, row.times) == ("pebblesim",) * 2 + (1,) for row in rows)
    assert all(row.call.heads == 4 and row.call.n_q == 64 and row.call.d_k == 32 for row in rows)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(("padded", "mask"), [(False, "causal"), (True, "causal + padding")])
def test_a_model_of_transformers_with_our_attention(tmp_path: Path, live: bool, padded: bool, mask: str) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "llama.py").write_text(
        "import torch\nfrom transformers import LlamaConfig, LlamaForCausalLM\n"
        "from pebblesim.gpu.transformers import register\n\n"
        "def llama():\n    register()\n"
        "    sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, vocab_size=8)\n"
        "    config = LlamaConfig(**sizes, num_attention_heads=2, attn_implementation='pebblesim')\n"
        "    ids, seen = torch.zeros(2, 16, dtype=torch.long), torch.ones(2, 16, dtype=torch.long)\n"
        f"    seen[0, :3 * {padded:d}] = 0\n"
        f"    seen = dict(attention_mask=seen) if {padded} else {{}}\n"
        "    return LlamaForCausalLM(config), dict(input_ids=ids, **seen, use_cache=False)\n"
    )
    (row,) = explain_file(f"{tmp_path}/llama.py:llama", "H200", live=live).rows
    assert (row.call.entry, str(row.call.mask), row.times) == ("pebblesim", mask, 2)


def test_shapes_alone_give_shapes_and_gradients() -> None:
    with torch.device("meta"):
        q, k = (torch.randn(2, heads, 5, 8, requires_grad=True) for heads in (4, 2))
        starts, sinks = torch.tensor([0, 2, 5]), torch.randn(4, requires_grad=True)
        out, L = attention(q, k, k, enable_gqa=True, cu_seqlens=starts, sinks=sinks, return_lse=True)
        (out.sum() + L.sum()).backward()
        bias = torch.randn(4, 5, 5, requires_grad=True)
        attention(q, q, q, bias=bias).sum().backward()
    assert (out.shape, L.shape, out.device.type) == ((2, 4, 5, 8), (2, 4, 5), "meta")
    assert (q.grad.shape, k.grad.shape, sinks.grad.shape) == (q.shape, k.shape, sinks.shape)
    assert bias.grad.shape == bias.shape and bias.grad.is_meta


def rows(*options: dict[str, Any]) -> Any:
    x = torch.randn(2, 4, 6, 8, dtype=torch.bfloat16)
    with ps.explain(gpu="H200") as found:
        for each in options:
            attention(x, x, x, **each)
    return found.result


def ints(*each: int) -> Any:
    return torch.tensor([each], dtype=torch.int32)


def test_the_mask_is_that_of_our_own_arguments() -> None:
    padding = torch.tensor([[True, False, False, False, False, False]])
    triangle = ints(0, 0, 0, 0, 0, 0), ints(1, 2, 3, 4, 5, 6)
    expected = {
        "padding": {"key_padding_mask": padding},
        "none": {"key_padding_mask": padding & False},
        "causal": {"key_ranges": triangle},
        "causal + padding": {"key_padding_mask": padding, "is_causal": True},
        "window 2": {"key_ranges": triangle, "window": (1, None)},
        "ranges": {"key_ranges": (ints(0, 0, 0, 2, 2, 2), ints(3, 3, 3, 5, 6, 6))},
        "packed": {"cu_seqlens": torch.tensor([0, 2, 6])},
        "window 3 + packed": {"cu_seqlens": torch.tensor([0, 2, 6]), "window": (2, 0), "align": "end"},
        "bias + causal tensor": {"bias": torch.zeros(4, 6, 6), "is_causal": True},
    }
    for text, options in expected.items():
        (row,) = rows(options).rows
        assert str(row.call.mask) == text


def test_what_is_not_forecast_is_not_said_to_be_refused() -> None:
    made = rows({"cu_seqlens": torch.tensor([0, 2, 6])})
    assert "no kernel of ours" not in str(made) and "packed sequences and key ranges" in str(made)
    assert made.rows[0].passes["forward"].words is made.rows[0].passes["forward"].least is None
    biased = rows({"bias": torch.zeros(4, 6, 6), "is_causal": True})
    assert "its time is not forecast" in str(biased) and "bias + causal tensor" in str(biased)
    alone = rows({"bias": torch.zeros(4, 6, 6)}).rows[0]
    assert not alone.refusal and all(each.ours for each in alone.passes.values())
    both = recorded(lambda: flash_attn_func(*(torch.randn(1, 5, 2, 8),) * 3, causal=True))
    assert [call.entry for _, call in both.calls] == ["pebblesim"]


def test_words_are_those_of_the_type_that_a_call_rounds_to() -> None:
    """The call was said to be refused, since its tensors are of float32."""
    x = torch.randn(2, 4, 64, 32)
    with ps.explain(gpu="H200") as found:
        attention(x, x.double(), x, compute_dtype=torch.bfloat16)
    (row,) = found.result.rows
    assert (row.call.dtype, row.call.alike, row.refusal) == ("bfloat16", True, "")
    assert row.passes["forward"].ours is not None


@pytest.mark.filterwarnings("ignore:PyTorch's attention is used:UserWarning")
def test_what_is_handed_to_pytorch_is_one_call_of_pytorchs() -> None:
    x, mask = torch.randn(2, 4, 6, 8, dtype=torch.bfloat16), torch.ones(6, 6, dtype=torch.bool)
    refused = ({"dropout_p": 0.5}, {"attn_mask": mask, "dropout_p": 0.5})
    calls = recorded(lambda: [attention(x, x, x, fallback="sdpa", **each) for each in refused]).calls
    assert [call.entry for _, call in calls] == ["sdpa", "sdpa"]
    taken = recorded(lambda: [attention(x, x, x, fallback="sdpa", **each) for each in ({}, {"attn_mask": mask})]).calls
    assert [call.entry for _, call in taken] == ["pebblesim", "pebblesim"]


@pytest.mark.filterwarnings("ignore:PyTorch's attention is used:UserWarning")
@pytest.mark.parametrize("outside", [True, False])
def test_a_call_of_pytorchs_function_is_one_call_where_ours_has_its_place(
    outside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program puts ours there before it is explained, or while it is; both were recorded as two calls."""
    monkeypatch.setattr(sdpa, "on_gpu", lambda query: True)
    x = torch.randn(2, 4, 6, 8, dtype=torch.bfloat16)

    def run() -> None:
        for options in ({}, {"dropout_p": 0.5}):
            torch.nn.functional.scaled_dot_product_attention(x, x, x, **options)

    def replacing() -> None:
        with sdpa.replaced_sdpa():
            run()

    with sdpa.replaced_sdpa() if outside else nullcontext():
        calls = recorded(run if outside else replacing).calls
    assert [call.entry for _, call in calls] == ["pebblesim", "sdpa"]


def test_the_result_is_read_behind_the_block() -> None:
    with (
        pytest.raises(UsageError, match="the result is known behind the block; read it after"),
        ps.explain(gpu="H200") as found,
    ):
        _ = found.result


def test_what_a_function_of_a_file_may_not_return(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\n\ndef called():\n    return torch.nn.Linear(2, 2), lambda: torch.ones(2)\n"
    )
    with pytest.raises(UsageError, match=r"returned \(Linear, function\), and a batch may not be something to call"):
        explain_file(f"{tmp_path}/model.py:called", "H200")


def test_experts_in_float32_need_bfloat16_by_shapes_alone(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "model.py").write_text(
        "import torch\nfrom transformers import GptOssConfig, GptOssForCausalLM\n\n"
        "def made():\n    sizes = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=2, vocab_size=64)\n"
        "    heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_local_experts=4)\n"
        "    ids = torch.zeros(1, 32, dtype=torch.long)\n"
        "    return GptOssForCausalLM(GptOssConfig(**sizes, **heads)), dict(input_ids=ids, use_cache=False)\n\n"
        "def rounded():\n    model, batch = made()\n    return model.bfloat16(), batch\n"
    )
    with pytest.raises(UsageError, match=r"for bfloat16: return model.bfloat16\(\)"):
        explain_file(f"{tmp_path}/model.py:made", "H200")
    assert explain_file(f"{tmp_path}/model.py:rounded", "H200").rows[0].refusal == ""
    live = explain_file(f"{tmp_path}/model.py:made", "H200", live=True).rows[0]
    assert live.refusal == "words are float32, and attention takes bfloat16 and float16 on a card: model.bfloat16()"
