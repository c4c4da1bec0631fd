"""Random models of transformers with a few thousand parameters: every text model, its configuration made small.

A field of a configuration is known by its name: sizes, heads, layers, experts, windows and chunks have values that fit
together, so that n = 24 tokens are more than any window and chunk. There are as many layers as it takes to have each
kind of layer that the configuration's own default has. What cannot be made so says why.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

WORDS, WINDOW = 128, 6
FIELDS = {
    r".*vocab_size(_per_layer_input)?|.*_group_vocab": WORDS,
    r"(max_position_embeddings|n_positions|max_seq_len|n_ctx|max_(source|target)_positions|context_length)": 128,
    r"max_(encoder|decoder)_position_embeddings": 128,
    r"(hidden_size|d_model|n_embd|dim|emb_dim|(input_|output_)?embedding_size|word_embed_proj_dim)": 32,
    r"(encoder_|global_)?embed_dim|lru_width|embedding_dim|backbone_hidden_size|router_hidden_size": 32,
    r".*(intermediate_size.*|ffn_dim|d_ff|dff|d_inner|dim_ff|ffn_hidden_size|n_inner|hidden_dim)": 32,
    r"feed_forward_size|mamba_d_ssm": 64,
    r".*(attention|query|indexer_n|index_n|linear_num|swa_num|num|n)_heads?": 4,
    r"(encoder|decoder)?_?attention_heads|n_head|index_n_heads|linear_num_key_heads|linear_num_value_heads": 4,
    r".*(key_value_heads|kv_heads)": 2,
    r"(.*head_dim|d_kv|kv_channels|dim_head|d_head|linear_(key|value)_head_dim|attention_head_size)": 8,
    r"(qk_rope_head_dim|qk_nope_head_dim|v_head_dim|qk_head_dim|global_head_dim)": 8,
    r"rotary_dim": 4,
    r".*lora_rank|laurel_rank|adapter_rank|gated_norm_rank|hidden_size_per_layer_input": 8,
    r"(num_(local_|routed_)?experts|n_routed_experts|moe_num_experts|num_experts)": 4,
    r"(num_experts_per_tok|moe_topk|moe_k|top_k_experts)": 2,
    r"(n_group|topk_group|num_groups)": 1,
    r"(sliding_window|sliding_window_size|attention_window|attention_window_size|window_size|keep_window_size)": WINDOW,
    r"(local_attention|attention_chunk_size|local_attention_window_len)": WINDOW,
    r"index_topk|index_topk_blocks|indexer_budget": 4,
    r"index_block_size|global_block_size": 4,
    r".*(d_state|state_size)": 4,
    r"conv_kernel_size": 3,
    r"mamba_n_heads|n_mamba_heads|mamba_num_heads": 4,
    r".*chunk_size": 8,
    r"num_latents|d_latents": 32,
    r"num_self_attends_per_block": 2,
    r"num_kv_shared_layers": 0,
    r"entity_vocab_size|entity_emb_size|char_vocab_size|task_type_vocab_size": 32,
}
"""Values of whole numbers, by name."""

LAYERS = r"(num_hidden_layers|n_layers?|num_layers|(encoder|decoder)_layers|num_(encoder|decoder)_layers)"
FILLED = {
    r"head_dim": 8,
    r"num_key_value_heads": 2,
    r"sliding_window": WINDOW,
    r"(n_routed|num)_experts": 4,
    r"num_experts_per_tok": 2,
    r"n_group|topk_group|n_shared_experts|first_k_dense_replace|decoder_start_token_id": 1,
    r"(audio_)?vocab_size": WORDS,
}
"""Values where the default is None."""

THREE_POSITIONS = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [1, 1, 2],
        "partial_rotary_factor": 1.0,
    }
}
"""Rotary embeddings of time, height and width."""

RECIPES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1], "num_hidden_layers": 3},
    "cohere_compass_text": {
        "rope_parameters": {
            key: {"rope_type": "default", "rope_theta": 10000.0} for key in ("full_attention", "sliding_attention")
        }
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0}},
    "esm": {"pad_token_id": 0, "mask_token_id": 3},
    "gemma4_assistant": {"hidden_size_per_layer_input": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, "num_hidden_layers": 4, "mamba_n_heads": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4},
    "mamba2": {"head_dim": 16, "n_groups": 2},
    "nemotron_h": {"n_groups": 2},
    "neomme": {"hidden_size": 64, "head_dim": 16},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    },
    "xmod": {"default_language": "en_XX"},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"], "num_hidden_layers": 2},
    "zaya": {"layer_types": ["hybrid", "hybrid_sliding"], "num_hidden_layers": 2},
    "zamba": {"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "num_hidden_layers": 4},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2, "num_hidden_layers": 4, "num_mem_blocks": 1},
    "T5GemmaEncoderModel": {"is_encoder_decoder": False},
    **dict.fromkeys(
        (
            "glm4v_moe_text",
            "glm4v_text",
            "glm_image_text",
            "glm_ocr_text",
            "hunyuan_vl_text",
            "qwen2_5_vl_text",
            "qwen2_vl_text",
        ),
        THREE_POSITIONS,
    ),
}
"""What a type of models, or a class, takes besides."""

OTHERS = ("CanineModel", "DPRQuestionEncoder", "Mistral4Model", "OpenAIPrivacyFilterModel", "SplinterModel")
"""Text models that transformers lists with models of all kinds only."""

TOWER = re.compile(r"(vision|audio|(audio_|speech_|acoustic_tokenizer_)?encoder|vq|projector)_config|audio_channels")
"""Names of configurations of what reads images and sounds."""

KINDS = ("layer_types", "layers_block_type", "block_types", "mlp_layer_types", "attn_layers", "attention_types")
"""Lists of configurations that say which kind each layer is."""


def small(name: str, default: Any) -> Any:
    """The value of a field in a small configuration; the default where nothing is known of it."""
    if isinstance(default, bool) or not isinstance(default, int) or default <= 0:
        return default
    for pattern, value in FIELDS.items():
        if re.fullmatch(pattern, name):
            return min(value, default)
    return default


def shrunk(kind: Any, layers: int, given: dict[str, Any] | None = None) -> Any:
    """A small configuration, with small ones inside it."""
    fields = {each.name: each.default for each in dataclasses.fields(kind)}
    options: dict[str, Any] = {}
    special = iter(range(WORDS - 1, 0, -1))
    for name, default in fields.items():
        if re.fullmatch(LAYERS, name) and isinstance(default, int):
            options[name] = layers
        elif re.fullmatch(r"(pad|bos|eos)_(token_id|index)", name) and default is not None:
            options[name] = {"pad": 0, "bos": 1, "eos": 2}[name[:3]]
        elif re.search(r"_(token_id|token_index|index)$", name) and isinstance(default, int) and default >= WORDS // 2:
            options[name] = next(special)
        elif name == "use_sliding_window":
            options[name] = True
        elif name == "max_window_layers":
            options[name] = 1
        elif name == "num_key_value_heads" and "kv_lora_rank" in fields:
            options[name] = 4
        elif default is None:
            filled = [value for pattern, value in FILLED.items() if re.fullmatch(pattern, name)]
            options |= dict.fromkeys([name], filled[0]) if filled else {}
        elif (value := small(name, default)) != default:
            options[name] = value
    for name in getattr(kind, "sub_configs", {}):
        if name in fields and (inner := getattr(kind(), name, None)) is not None:
            options[name] = shrunk(type(inner), layers).to_dict()
    return kind(**options | (given or {}))


def kinds_of(config: Any) -> set[str]:
    """The kinds of layers that a configuration has."""
    text = config.get_text_config(decoder=True)
    return {f"{name} {each}" for name in KINDS for each in getattr(text, name, None) or ()}


def tiny(kind: Any, name: str = "") -> Any:
    """The small configuration with the fewest layers, two or more, that has all kinds of layers of the default.

    Where all layers of the default are full ones and there may be sliding ones, every other layer is.
    """
    wanted, best, error = kinds_of(kind()), None, None
    recipe = RECIPES.get(name, RECIPES.get(kind.model_type, {}))
    tries: list[dict[str, Any]] = [{}, {"num_key_value_heads": 4}]
    if "layer_types full_attention" in wanted and "sliding_window" in {each.name for each in dataclasses.fields(kind)}:
        wanted.add("layer_types sliding_attention")
        tries.append({"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2})
    for layers, others in product((2, 3, 4, 5, 6, 8, 12), tries):
        try:
            config = shrunk(kind, layers, recipe | others)
        except Exception as reason:
            error = error or reason
            continue
        if best is None or len(kinds_of(config) & wanted) > len(kinds_of(best) & wanted):
            best = config
    if best is None:
        assert error is not None
        raise error
    return best


def text_models() -> Iterator[str]:
    """Names of classes: language models, encoders, those that turn texts into others, and what reads others' texts."""
    from transformers.models.auto import modeling_auto as auto

    found = set[str]()
    for names in (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
    ):
        for classes in names.values():
            found.update((classes,) if isinstance(classes, str) else classes)
    found.update(
        each for each in auto.MODEL_MAPPING_NAMES.values() if re.fullmatch("(?!.*Speech).*TextModel", str(each))
    )
    found.update(OTHERS)
    yield from sorted(found)


class NoText(Exception):
    """The model is not made for texts alone."""


def made(name: str, seed: int = 0) -> Any:
    """A random model; matrices have entries of 1/√columns, so that what a query sees matters.

    Raises:
        NoText: it has a tower for images or sounds.
    """
    import torch
    import transformers

    torch.manual_seed(seed)
    kind = getattr(transformers, name)
    names = {*kind.config_class.sub_configs, *(each.name for each in dataclasses.fields(kind.config_class))}
    if towers := {each for each in names if TOWER.fullmatch(each)}:
        raise NoText(", ".join(sorted(towers)))
    model = kind(tiny(kind.config_class, name)).float().eval()
    if model.config.is_encoder_decoder and getattr(model, "generation_config", None):
        model.generation_config.decoder_start_token_id = 1
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, weight.shape[-1] ** -0.5)
    return model
