"""Models of transformers with our attention: errors of small models against eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def models(asked: Any) -> Iterator[dict[str, Any]]:
    """Small random models: errors against eager attention in float32, ours and those of eager in bfloat16."""
    import torch
    import transformers as hf
    from transformers.models.gemma4 import Gemma4ForCausalLM, Gemma4TextConfig

    from pebblesim.operator.integrations.transformers import register

    register()
    small = {
        "vocab_size": 512,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
    }
    window = {"head_dim": 256, "sliding_window": 100, "num_hidden_layers": 6, "query_pre_attn_scalar": 256}

    def gemma(kv_heads: int, global_kv_heads: int | None, sizes: dict[str, Any]) -> tuple[Any, Any]:
        """Gemma 4 with these heads of keys in sliding and in global layers."""
        config = Gemma4TextConfig(
            **sizes | {"num_key_value_heads": kv_heads},
            num_hidden_layers=6,
            head_dim=256,
            global_head_dim=512,
            sliding_window=100,
            hidden_size_per_layer_input=0,
            attention_k_eq_v=global_kv_heads is not None,
            num_global_key_value_heads=global_kv_heads,
        )
        return Gemma4ForCausalLM, config

    made = {
        "Gemma 4": gemma(2, 1, small),
        "Gemma 4 E2B": gemma(1, None, small | {"num_attention_heads": 8}),
        "Gemma 4 31B": gemma(16, 4, small | {"num_attention_heads": 32}),
        "Gemma 3": (hf.Gemma3ForCausalLM, hf.Gemma3TextConfig(**small, **window)),
        "Gemma 2": (hf.Gemma2ForCausalLM, hf.Gemma2Config(**small, **window, attn_logit_softcapping=5.0)),
        "Llama 3": (hf.LlamaForCausalLM, hf.LlamaConfig(**small, num_hidden_layers=2, head_dim=128)),
    }
    for name in asked.models or made:
        kind, config = made[name]
        torch.manual_seed(0)
        model = kind(config).to("cuda").to(torch.bfloat16).float().eval()
        for weight_name, weight in model.named_parameters():
            if weight_name.endswith("q_norm.weight") and name.startswith("Gemma 4"):
                weight.data.fill_(0.125)  # random weights have scores of up to the head dimension otherwise
        for text in ("plain", "padded", "packed"):
            try:
                yield {"model": name, "text": text, **against_eager(torch, model, text)}
            except Exception as error:
                yield {"model": name, "text": text, "error": f"{type(error).__name__}: {error}"[:300]}
        for cache in ("dynamic", "static"):
            try:
                yield {"model": name, "generate": cache, **generated(torch, model.to(torch.bfloat16), cache)}
            except Exception as error:
                yield {"model": name, "generate": cache, "error": f"{type(error).__name__}: {error}"[:300]}


def against_eager(torch: Any, model: Any, text: str) -> dict[str, Any]:
    n = 301
    ids = torch.randint(1, 512, (2, n), device="cuda")
    labels, options = ids.clone(), {"use_cache": False}
    if text == "padded":
        real = torch.ones_like(ids)
        real[1, :77] = 0
        labels[1, :78] = -100  # the first token of a text is foretold from padding
        options["attention_mask"] = real
    if text == "packed":
        at = torch.arange(n, device="cuda")
        options["position_ids"] = torch.where(at < 120, at, at - 120)[None].expand(2, -1)
    real = torch.ones_like(ids) == 1 if text != "padded" else options["attention_mask"] == 1
    found: dict[Any, Any] = {}
    for attention, kind in (("eager", torch.float32), ("eager", torch.bfloat16), ("pebblesim", torch.bfloat16)):
        model.to(kind).set_attn_implementation(attention)
        model.zero_grad()
        out = model(ids, labels=labels, **options)
        out.loss.backward()
        grads = torch.cat([p.grad.float().flatten() for p in model.parameters() if p.grad is not None])
        found[attention, kind] = out.loss.detach().float(), out.logits.detach().float()[real], grads
    model.to(torch.float32)
    right, *others = found.values()
    row = {"loss": float(right[0])}
    for name, values in zip(("eager", "ours"), others, strict=True):
        row[name] = [float((a - b).norm() / b.norm()) for a, b in zip(values, right, strict=True)]
    return row


def generated(torch: Any, model: Any, cache: str) -> dict[str, Any]:
    """Tokens, of 24, that both attentions choose alike, and the largest difference of their logits until then."""
    ids = torch.randint(1, 512, (2, 150), device="cuda")
    real = torch.ones_like(ids)
    real[1, :20] = 0
    options = {"attention_mask": real, "max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    options |= {"output_logits": True, "return_dict_in_generate": True, "disable_compile": True}
    options |= {} if cache == "dynamic" else {"cache_implementation": "static"}
    made = []
    for name in ("eager", "pebblesim"):
        model.set_attn_implementation(name)
        made.append(model.generate(ids, **options))
    alike = (made[0].sequences == made[1].sequences).all(0)[150:]
    same = 24 if bool(alike.all()) else int((~alike).int().argmax())
    pairs = list(zip(made[0].logits, made[1].logits, strict=True))[: same + 1]
    worst = max(float((a - b).abs().max() / a.abs().max()) for a, b in pairs)
    model.to(torch.float32)
    return {"same_tokens": same, "logits": worst}
