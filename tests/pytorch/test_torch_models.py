"""Tiny random models of transformers with our attention beside eager's: those of docs/transformers-models.md by turns,
and some of each kind of mask always.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

sys.path.append(str(ROOT / "benchmarks"))
import models_beside_eager as beside  # noqa: E402
import tiny_models  # noqa: E402

from pebblesim.operator.integrations import transformers as ours  # noqa: E402
from pebblesim.operator.integrations.transformers_masks import Band, Seen  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

LOCAL = {
    "Llama4ForCausalLM": "chunks",
    "PhimoeForCausalLM": "a window that layers are not told of",
    "Gemma3ForCausalLM": "windows and full layers",
    "GptOssForCausalLM": "windows and full layers with sinks",
    "MiMoV2FlashForCausalLM": "sinks in layers with windows alone",
    "T5GemmaForConditionalGeneration": "windows both ways, and keys of another text",
    "ModernBertForMaskedLM": "windows both ways",
}
"""Models with local masks."""

OTHERS = {
    "BartForConditionalGeneration": "equal",  # keys of another text
    "BertModel": "equal",  # all keys
    "BigBirdPegasusForCausalLM": "equal",  # causal, by layers that do not say so
    "Qwen3NextForCausalLM": "equal",  # layers of other kinds between
    "T5ForConditionalGeneration": "equal",  # position biases
    "DogeForCausalLM": "refused",  # masks of numbers
    "T5Gemma2ForConditionalGeneration": "equal",  # two masks put together
    "GlmMoeDsaForCausalLM": "equal",  # keys chosen one by one
    "Qwen4ExpForCausalLM": "equal",  # a mask that is joined with another
    "Inkling2ForCausalLM": "equal",  # sinks of single queries
    "MiniMaxM3VLTextModel": "refused",  # keys chosen block by block
    "FalconForCausalLM": "own attention",
}


@pytest.mark.parametrize("name", LOCAL)
def test_models_with_local_masks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cases are equal; with the lengths alone, as if masks were causal or all, they would not be."""
    row = beside.row_of(name)
    assert beside.state(row) == "equal", row

    def no_window(batch_size: int, q_length: int, kv_length: int, *given: Any, **options: Any) -> Seen:
        high = kv_length - q_length if options["allow_is_causal_skip"] else None
        return Seen((batch_size, 1, q_length, kv_length), Band(None, high))

    monkeypatch.setattr(ours, "seen", no_window)
    assert beside.row_of(name)["cases"]["plain"]["verdict"] == "different"


@pytest.mark.parametrize("name", OTHERS)
def test_models_of_other_kinds(name: str) -> None:
    row = beside.row_of(name)
    assert beside.state(row) == OTHERS[name], row


OWN = {
    "BloomForCausalLM": "refused",
    "DebertaModel": "as eager",  # no mask of transformers
    "FalconForCausalLM": "not made",  # its classes of layers by the names of PyTorch's attentions
    "LongformerModel": "refused",  # it takes a row of the mask for numbers below 0
    "MptForCausalLM": "refused",
}
"""Models whose layers compute attention themselves, made with `attn_implementation="pebblesim"`."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "LongformerModel" else pytest.mark.slow) for name in OWN]
)
def test_models_with_an_attention_of_their_own_made_with_ours(name: str) -> None:
    """None of them takes what stands for a mask here for numbers."""
    model = tiny_models.made(name)
    ours.register()
    found = beside.made_with_ours(model)
    assert found["verdict"] == OWN[name], found
    if found["verdict"] == "refused":
        assert "computes attention itself" in found["why"]


def test_the_layers_of_bloom_as_the_page_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits, losses, gradients and words, with padding before a text."""
    from transformers.models.bloom.modeling_bloom import BloomAttention

    page = (
        (ROOT / "docs" / "plugging-in.md").read_text(encoding="utf-8").partition("## A model with an attention of")[2]
    )
    model = tiny_models.made("BloomForCausalLM").eval()
    ids, real = beside.padded(left=True)
    labels = ids.where(real.bool(), -100)
    labels[1, 7] = -100  # the last token of padding predicts it

    def found() -> list[Any]:
        model.zero_grad()
        made = model(ids, attention_mask=real, labels=labels)
        made.loss.backward()
        words = model.generate(ids, attention_mask=real, max_new_tokens=5, min_new_tokens=5, do_sample=False)
        return [made.loss.detach(), made.logits.detach()[real.bool()], words, *(x.grad for x in model.parameters())]

    expected = found()
    monkeypatch.setattr(BloomAttention, "forward", BloomAttention.forward)  # put back at the end
    exec(page.partition("```py\n")[2].partition("```")[0], {})
    assert "alibi" in BloomAttention.forward.__code__.co_varnames and not BloomAttention.forward.__closure__
    for one, other in zip(found(), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_swin_asks_for_an_attention_by_name() -> None:
    """The bias of its windows gets its gradient, also where windows are moved and others are masked."""
    from transformers import SwinConfig, SwinModel

    ours.register()
    sizes = {
        "image_size": 32,
        "patch_size": 2,
        "embed_dim": 16,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 3,
    }
    config = SwinConfig(**sizes, drop_path_rate=0.0)
    image, found = torch.randn(2, 3, 32, 32), list[Any]()
    for name in ("eager", ours.NAME):
        torch.manual_seed(0)
        model = SwinModel._from_config(config, attn_implementation=name).eval()
        for each in model.parameters():
            each.data += 0.05 * torch.randn_like(each)
        model(image).last_hidden_state.square().sum().backward()
        assert model.config._attn_implementation == name
        found.append({key: each.grad for key, each in model.named_parameters()})
    assert any("relative_position_bias" in key for key in found[0])
    largest = max(float(grad.abs().max()) for grad in found[0].values())
    for key, grad in found[0].items():
        torch.testing.assert_close(found[1][key], grad, atol=1e-6 * largest, rtol=1e-4)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.one_in(40)) for name in tiny_models.text_models()]
)
def test_a_text_model_in_turn(name: str) -> None:
    row = beside.row_of(name)
    assert beside.state(row) != "different", row
    assert row.get("made with ours", {}).get("verdict") != "different", row


def test_models_that_a_configuration_makes_look_both_ways() -> None:
    """transformers turns causal masks around; the layers still say of themselves that they are causal."""
    ours.register()
    for config in (
        transformers.LlamaConfig(is_causal=False, **SIZES),
        transformers.MistralConfig(is_causal=False, sliding_window=6, **SIZES),
        transformers.Gemma3TextConfig(use_bidirectional_attention=True, sliding_window=6, head_dim=8, **SIZES),
    ):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            ids = beside.token_ids()
            before = model(ids).logits[:, 0]
            ids[:, 1] = 5
            assert not torch.equal(model(ids).logits[:, 0], before)  # a later token is seen
        for case in (beside.plain, beside.left, beside.right):
            assert beside.verdict(model, case)["verdict"] == "equal"


SIZES = {
    "vocab_size": tiny_models.WORDS,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}


def test_a_table_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are there are not made again, unless the code has changed; the page holds each model once."""
    names, output = ["LlamaForCausalLM", "DogeForCausalLM", "FNetForMaskedLM"], tmp_path / "rows.jsonl"
    first = beside.rows(names, output)
    begun = [next(first), next(first)]
    made = list[str]()
    row_of = beside.row_of
    monkeypatch.setattr(beside, "row_of", lambda name: made.append(name) or row_of(name))
    rows = list(beside.rows(names, output))
    assert rows[:2] == begun and made == names[2:]
    page = beside.page(rows)
    assert all(page.count(name) == 1 for name in names) and max(map(len, page.splitlines())) <= 100
    assert [beside.state(row) for row in rows] == ["equal", "refused", "own attention"]
    monkeypatch.setattr(beside, "told", lambda: {"transformers": "6", "code": ""})
    monkeypatch.setattr(beside, "row_of", lambda name: made.append(name) or {"model": name} | beside.told())
    list(beside.rows(names, output))
    assert made == names[2:] + names


def test_a_model_that_takes_too_long_has_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was "not made"; now it is given up by the time of the processor, not by the clock, and tried again."""
    output = tmp_path / "rows.jsonl"
    monkeypatch.setattr(beside, "SECONDS", 0.02)
    (row,) = beside.rows(["LlamaForCausalLM"], output)
    assert beside.state(row) == beside.LATE and "cases" not in row
    assert "Given up, without a verdict (1)" in beside.page([row])
    monkeypatch.setattr(beside, "SECONDS", 120)
    (again,) = beside.rows(["LlamaForCausalLM"], output)
    assert beside.state(again) == "equal"

    def waits(name: str) -> Any:
        time.sleep(0.5)
        raise tiny_models.NoText("it waits")

    monkeypatch.setattr(beside, "SECONDS", 0.2)
    monkeypatch.setattr(tiny_models, "made", waits)
    assert beside.row_of("LlamaForCausalLM")["not"] == "no text model"


def test_the_page_is_made_of_the_rows() -> None:
    """`--page` again, with the rows that are there, changes nothing."""
    rows = [json.loads(line) for line in beside.OUTPUT.read_text(encoding="utf-8").splitlines()]
    document = beside.HERE.parent / "docs" / "transformers-models.md"
    assert document.read_text(encoding="utf-8") == beside.page(rows)
    assert not any(beside.state(row) == "different" for row in rows)
