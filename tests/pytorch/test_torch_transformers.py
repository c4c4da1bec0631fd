"""`register()`: models of transformers with our attention, which on the CPU follows the definition, against eager."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.models.gemma4 import Gemma4ForCausalLM, Gemma4TextConfig  # noqa: E402

from pebblesim.core.errors import UsageError  # noqa: E402
from pebblesim.operator.integrations.transformers import attend, register, seen  # noqa: E402
from pebblesim.operator.integrations.transformers_masks import Seen  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
GPT_OSS = SMALL | {"head_dim": 8, "sliding_window": 6, "num_local_experts": 2, "num_experts_per_tok": 1}
WINDOW = {"head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8}
MODELS = {
    "Llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, num_hidden_layers=2)),
    "Llama 4": lambda: transformers.Llama4ForCausalLM(
        transformers.Llama4TextConfig(
            **SMALL,
            num_hidden_layers=4,
            head_dim=8,
            intermediate_size_mlp=64,
            num_local_experts=2,
            attention_chunk_size=6,
        )
    ),
    "Gemma 2": lambda: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**SMALL, **WINDOW, num_hidden_layers=4, attn_logit_softcapping=5.0)
    ),
    "Gemma 3": lambda: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(**SMALL, **WINDOW, num_hidden_layers=6)
    ),
    "gpt-oss": lambda: with_sinks(
        transformers.GptOssForCausalLM(transformers.GptOssConfig(**GPT_OSS, num_hidden_layers=4))
    ),
    "Gemma 4": lambda: Gemma4ForCausalLM(
        Gemma4TextConfig(
            **SMALL,
            num_hidden_layers=6,
            head_dim=8,
            global_head_dim=16,
            sliding_window=6,
            hidden_size_per_layer_input=0,
            attention_k_eq_v=True,
            num_global_key_value_heads=1,
        )
    ),
}
N = 20


def with_sinks(model: Any) -> Any:
    """The sinks of gpt-oss as they are after training: from far below the scores to far above them."""
    for layer in model.model.layers:
        layer.self_attn.sinks.data = torch.tensor([-8.0, -0.5, 1.5, 6.0])
    return model


def model_of(name: str) -> Any:
    register()
    torch.manual_seed(0)
    return MODELS[name]().eval()


def computed(model: Any, attention: str, ids: Any, labels: Any, real: Any, **options: Any) -> list[Any]:
    """Loss, logits of what is no padding, and all gradients."""
    model.set_attn_implementation(attention)
    model.zero_grad()
    out = model(ids, labels=labels, use_cache=False, **options)
    out.loss.backward()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [out.loss.detach(), out.logits.detach()[real], *grads]


@pytest.mark.parametrize("name", MODELS)
def test_loss_logits_and_gradients(name: str) -> None:
    model, ids = model_of(name), torch.randint(1, 97, (2, N))
    left, right = torch.ones_like(ids), torch.ones_like(ids)
    left[1, :5], right[1, 15:] = 0, 0
    packed = torch.cat([torch.arange(7), torch.arange(N - 7)])[None].expand(2, -1)
    for padding, options in (
        (None, {}),
        (left, {"attention_mask": left}),
        (right, {"attention_mask": right}),
        (None, {"position_ids": packed}),
    ):
        real = torch.ones_like(ids).bool() if padding is None else padding.bool()
        labels = ids.masked_fill(~real, -100)
        if padding is left:
            labels[1, 5] = -100  # it is foretold from padding
        eager, ours = (computed(model, each, ids, labels, real, **options) for each in ("eager", "pebblesim"))
        for a, b in zip(eager, ours, strict=True):
            assert float((a - b).norm()) <= 1e-4 * max(float(a.norm()), 1e-2), options.keys()


def test_labels_of_texts_with_padding_on_the_left() -> None:
    """The last padding predicts a text's first token: with -100 for both, as docs/attention.md says, losses agree."""
    model, ids = model_of("Llama"), torch.randint(1, 97, (2, N))
    real = torch.ones_like(ids).bool()
    real[1, :5] = False
    padding_alone = ids.masked_fill(~real, -100)
    with_first = padding_alone.masked_fill(real & (real.cumsum(-1) == 1) & ~real[:, :1], -100)
    assert with_first[1].ne(-100).nonzero()[0] == 6 and with_first[0].eq(ids[0]).all()
    for labels, agree in ((padding_alone, False), (with_first, True)):
        losses = [
            computed(model, each, ids, labels, real, attention_mask=real.long())[0] for each in ("eager", "pebblesim")
        ]
        assert (abs(float(losses[0] - losses[1])) < 1e-5) == agree


PUBLISHED = {
    "E2B": (8, 1, None, 5, 5),
    "E4B": (8, 2, None, 6, 6),
    "26B-A4B": (16, 8, 2, 6, 0),
    "31B": (32, 16, 4, 6, 0),
}
"""Heads of queries, of keys, of keys in global layers, every how many layers one is global, and layers at the end that
take the keys and values of earlier ones (fewer than the model has)."""


@pytest.mark.parametrize("size", PUBLISHED)
def test_heads_and_layers_of_the_published_sizes_of_gemma_4(size: str) -> None:
    heads, kv, global_kv, every, reused = PUBLISHED[size]
    layers = 2 * every
    config = Gemma4TextConfig(
        **SMALL | {"num_attention_heads": heads, "num_key_value_heads": kv},
        num_hidden_layers=layers,
        layer_types=["sliding_attention" if (each + 1) % every else "full_attention" for each in range(layers)],
        head_dim=8,
        global_head_dim=16,
        sliding_window=6,
        hidden_size_per_layer_input=0 if global_kv else 8,
        vocab_size_per_layer_input=97,
        attention_k_eq_v=global_kv is not None,
        num_global_key_value_heads=global_kv,
        num_kv_shared_layers=reused,
    )
    register()
    torch.manual_seed(0)
    model, ids = Gemma4ForCausalLM(config).eval(), torch.randint(1, 97, (2, N))
    real = torch.ones_like(ids).bool()
    eager, ours = (computed(model, each, ids, ids, real) for each in ("eager", "pebblesim"))
    for a, b in zip(eager, ours, strict=True):
        assert float((a - b).norm()) <= 1e-4 * max(float(a.norm()), 1e-2)
    made = []
    for each in ("eager", "pebblesim"):  # layers that take keys of earlier ones get a part of the mask
        model.set_attn_implementation(each)
        made.append(model.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None))
    assert (made[0] == made[1]).all()


@pytest.mark.parametrize("name", MODELS)
def test_generation_with_caches_and_checkpoints(name: str) -> None:
    model, ids = model_of(name), torch.randint(1, 97, (2, N))
    padded = torch.ones_like(ids)
    padded[1, :5] = 0
    for options in (
        {},
        {"attention_mask": padded},
        {"cache_implementation": "static"},
        {"cache_implementation": "static", "attention_mask": padded},
    ):
        made = []
        for each in ("eager", "pebblesim"):
            model.set_attn_implementation(each)
            made.append(model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None, **options))
        assert (made[0] == made[1]).all(), options.keys()
    model.train()
    real = torch.ones_like(ids).bool()
    plain = computed(model, "pebblesim", ids, ids, real)
    model.gradient_checkpointing_enable()
    for a, b in zip(plain, computed(model, "pebblesim", ids, ids, real), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", ["Gemma 3", "Llama 4", "gpt-oss"])
def test_compiled_whole(name: str) -> None:
    """A whole model is one graph: windows and chunks, padding that may not be looked at, and packed texts."""
    model, ids = model_of(name), torch.randint(1, 97, (2, N))
    real = torch.ones_like(ids)
    real[1, :5] = 0
    packed = torch.cat([torch.arange(7), torch.arange(N - 7)])[None].expand(2, -1)
    for options in ({}, {"attention_mask": real}, {"position_ids": packed}):
        made = []
        for attention in ("eager", "pebblesim"):
            model.set_attn_implementation(attention)
            run = model if attention == "eager" else torch.compile(model, fullgraph=True, backend="eager")
            with torch.no_grad():
                made.append(run(ids, use_cache=False, **options).logits[real.bool()])
        torch._dynamo.reset()
        assert (made[0] - made[1]).abs().max() <= 1e-5


def test_what_a_layer_may_not_ask_for() -> None:
    x = torch.zeros(1, 2, 4, 8)
    with pytest.raises(UsageError, match="has no block_indices; give this model another attn_implementation"):
        attend(None, x, x, x, None, block_indices=torch.zeros(1, 2, 4, 1))
    layer = torch.nn.Module()
    layer.sinks = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(UsageError, match="has no sinks that a layer keeps to itself; give this model another"):
        attend(layer, x, x, x, None)
    dropped = r'dropout of 0.1, .* set config.attention_dropout=0, or register\(fallback="sdpa"\)'
    with pytest.raises(UsageError, match=dropped):
        attend(None, x, x, x, None, dropout=0.1)
    with pytest.warns(UserWarning, match="PyTorch's attention is used"):
        from pebblesim.operator import once

        once._SAID.clear()
        attend(None, x, x, x, torch.zeros(1, 1, 4, 4), dropout=0.1, fallback="sdpa")


def test_sinks_and_keys_of_single_queries() -> None:
    """Against the softmax with one more column; keys are chosen one by one beside a mask, and one query sees none."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, heads, 5, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2))
    sinks = torch.randn(2, 4, 5, 1, dtype=torch.float64, requires_grad=True)
    indices = torch.stack([torch.randperm(5)[:3] for _ in range(10)]).view(2, 5, 3)
    indices[0, 0] = 4  # behind the first query
    for mask in (seen(2, 5, 5, device="cpu"), torch.rand(2, 1, 5, 5) < 0.7, torch.zeros(2, 1, 5, 5).log()):
        made, _ = attend(None, q, k, v, mask, scaling=0.3, sinks=sinks, indices=indices)
        S = 0.3 * q @ k.repeat_interleave(2, 1).mT
        only = torch.zeros(2, 5, 5, dtype=torch.bool).scatter(-1, indices, True)[:, None]
        dense = torch.ones(5, 5, dtype=torch.bool).tril() if isinstance(mask, Seen) else mask
        allowed = only & dense if dense.dtype == torch.bool else only & (dense > -torch.inf)
        P = torch.cat([S.masked_fill(~allowed, -torch.inf), sinks], -1).softmax(-1)[..., :-1]
        O = (P @ v.repeat_interleave(2, 1)).transpose(1, 2)
        dO = torch.randn_like(O)
        right, found = (torch.autograd.grad(each, (q, k, v, sinks), dO, retain_graph=True) for each in (O, made))
        for mine, its in zip((made, *found), (O, *right), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-12)


def test_the_two_lines_of_the_readme(tmp_path: Path) -> None:
    """Of the row for users of transformers, for a model that is in a folder."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    row = next(line for line in readme.splitlines() if line.startswith("| **I use transformers**"))
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, num_hidden_layers=1)).save_pretrained(tmp_path)
    names: dict[str, Any] = {"name": str(tmp_path), "AutoModelForCausalLM": transformers.AutoModelForCausalLM}
    lines = re.findall("`([^`]+)`", row)
    assert len(lines) == 2
    for line in lines:
        exec(line, names)
    model, ids = names["model"], torch.randint(1, 97, (1, N))
    made = model(ids).logits
    model.set_attn_implementation("eager")
    assert model.dtype == torch.bfloat16 and (made - model(ids).logits).abs().max() <= 0.05


def test_ranges_of_mask_functions() -> None:
    """Images look both ways; a mask with holes is refused."""

    def spans(batch: Any, head: Any, q: Any, k: Any) -> Any:
        return (k <= q) | ((q >= 2) & (q < 5) & (k >= 2) & (k < 5))

    for said in (False, True):  # a flag says nothing of a function that says otherwise
        made = torch.stack(seen(1, 6, 6, mask_function=spans, allow_is_causal_skip=said).ranges, -1)
        assert made[0].tolist() == [[0, 1], [0, 2], [0, 5], [0, 5], [0, 5], [0, 6]]
    holes = seen(1, 6, 6, mask_function=lambda b, h, q, k: (k % 2 == 0) & (q >= 0))
    assert holes.dtype == torch.bool and holes[0, 0].tolist() == [[True, False] * 3] * 6
    dense = seen(1, 6, 6, mask_function=lambda b, h, q, k: k <= 5 - q)
    assert dense.dtype == torch.bool and dense[0, 0].tolist() == torch.ones(6, 6).tril().flip(0).bool().tolist()


@pytest.mark.parametrize("version", ["4.57.6", "5.3.0", "6.0.0"])
def test_register_names_the_versions_that_it_is_for(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    register("one-of-ours")
    monkeypatch.setattr("transformers.__version__", version)
    with pytest.raises(UsageError) as error:
        register()
    assert str(error.value) == (
        f"register is for transformers>=5.4,<6, and here is transformers {version}: pip install 'transformers>=5.4,<6'."
    )


@pytest.mark.parametrize("fallback", [None, "sdpa"])
def test_a_layer_that_makes_a_mask_without_ours_is_refused(fallback: str | None) -> None:
    """Doge's would be computed by PyTorch as if its queries saw later keys."""
    from transformers import DogeConfig, DogeForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = DogeForCausalLM(DogeConfig(vocab_size=97, num_key_value_heads=2, **sizes)).eval()
    register("one-of-ours", fallback=fallback)
    model.set_attn_implementation("one-of-ours")
    with pytest.raises(UsageError, match="has no masks of numbers that a layer makes itself; give this model another"):
        model(torch.randint(1, 97, (1, 12)))


def test_images_of_gemma_4_look_both_ways() -> None:
    """Masks that transformers makes of token types; tokens 3 to 10 and 14 to 16 are images, the first longer than the
    window. Gradients of the embeddings by the first eight tokens show which tokens these see in sliding layers.
    """
    from transformers.models.gemma4 import modeling_gemma4 as gemma4

    model, ids = model_of("Gemma 4").model, torch.randint(1, 97, (2, N))
    types = torch.zeros(2, N, dtype=torch.long)
    types[0, 3:11], types[0, 14:17], types[1, 6:9] = 1, 1, 2
    images = gemma4.get_block_sequence_ids_for_mask(types, device=ids.device)
    weights, found = torch.randn(2, N, 32), dict[str, list[Any]]()
    without_cache = dict.fromkeys(  # its name is another one from transformers 5.24 on
        {"cache", "past_key_values"} & signature(gemma4.create_masks_for_vision_model).parameters.keys()
    )
    for attention in ("eager", "pebblesim"):
        model.set_attn_implementation(attention)
        for blocks in (images, torch.full_like(images, -1)):
            embedded = model.embed_tokens(ids).detach().requires_grad_()
            masks = gemma4.create_masks_for_vision_model(
                config=model.config,
                inputs_embeds=embedded,
                attention_mask=None,
                position_ids=torch.arange(N)[None],
                block_sequence_ids=blocks,
                **without_cache,
            )
            made = model(inputs_embeds=embedded, attention_mask=masks, use_cache=False).last_hidden_state
            (made * weights)[0, :8].sum().backward()
            found.setdefault(attention, []).extend((made.detach(), embedded.grad))
    for a, b in zip(*found.values(), strict=True):
        assert float((a - b).norm()) <= 1e-4 * float(a.norm())
    seen, plain = (each[0].abs().sum(-1) > 0 for each in found["pebblesim"][1::2])
    assert seen.tolist() == [True] * 11 + [False] * 9
    assert plain.tolist() == [True] * 8 + [False] * 12


def test_two_processes_with_sharded_parameters(tmp_path: Path) -> None:
    """FSDP2 over gloo: loss and gathered gradients are those of one process with eager's attention."""
    script = ROOT / "benchmarks" / "gpu" / "fsdp.py"
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    results = tmp_path / "fsdp.jsonl"
    subprocess.run([*launched, "-o", results, "-n", "20", "--hidden", "32"], check=True, capture_output=True)
    row = json.loads(results.read_text())
    assert (row["devices"], row["device"]) == (2, "cuda" if torch.cuda.is_available() else "cpu")
    assert row["pebblesim"]["loss"] <= 1e-6
    assert row["pebblesim"]["gradients"] <= 1e-5
