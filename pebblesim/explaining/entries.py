"""Functions that compute attention, replaced while a model runs by ones that record their calls; needs PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from types import FunctionType
from typing import Any

import torch
import torch.nn.attention.flex_attention
from torch import Tensor

from pebblesim.advice.calls import SeenMask
from pebblesim.explaining import masks, own_masks
from pebblesim.explaining.probing import Options
from pebblesim.explaining.recorder import Recorder
from pebblesim.operator.bias import with_bias
from pebblesim.operator.checks import unsupported
from pebblesim.operator.watchers import WATCHERS

Replaced = Callable[[Recorder, Callable[..., Any]], Callable[..., Any]]


def _sdpa(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
        asked, (n_q, n_k) = Options(*args, **options), (query.shape[-2], key.shape[-2])
        mask = masks.of_flag(asked.is_causal)
        if asked.attn_mask is not None:
            mask = masks.of_tensor(asked.attn_mask, n_q, n_k, recorder.made)
        dropout, shared = asked.dropout_p, asked.enable_gqa
        before = len(recorder.calls)
        recorder.record("sdpa", query, key, value, mask, probe=asked, dropout=dropout, enable_gqa=shared)
        out = original(query, key, value, *args, **options)
        if len(recorder.calls) > before + 1:  # `replaced_sdpa` has put ours there, which is recorded by itself
            del recorder.calls[before]
        return out

    return attention


def _flex(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
        named = {**dict(zip(("score_mod", "block_mask", "scale", "enable_gqa"), args, strict=False)), **options}
        n_q, n_k = query.shape[-2], key.shape[-2]
        block_mask, score_mod = named.get("block_mask"), named.get("score_mod")
        mask = SeenMask()
        if block_mask is not None:
            mask = masks.of_function(getattr(block_mask, "mask_mod", None), 0, n_q, n_k) or SeenMask("dense")
        if score_mod is not None and not _changes_nothing(score_mod):
            mask = replace(mask, kind="bias", also="" if mask.kind == "none" else mask.kind)
        recorder.record("flex_attention", query, key, value, mask, enable_gqa=bool(named.get("enable_gqa")))
        if masks.has_values(query):
            with torch._C.DisableTorchFunction():  # what is compiled cannot be followed
                return original(query, key, value, *args, **options)
        out = query.new_empty((*query.shape[:-1], value.shape[-1]))
        lse = query.new_empty(query.shape[:-1], dtype=torch.float32)
        if named.get("return_aux") is not None:
            return out, torch.nn.attention.flex_attention.AuxOutput(lse=lse)
        return (out, lse) if named.get("return_lse") else out

    return attention


def _changes_nothing(score_mod: Callable[..., Any]) -> bool:
    """Whether a function of a score gives it back: transformers always has one."""
    score = object()
    try:
        return score_mod(score, 0, 0, 0, 0) is score
    except Exception:  # it computes with the score
        return False


def _flash(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def attention(q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Any:
        causal = bool(options.get("causal", args[2] if len(args) > 2 else False))
        left, right = options.get("window_size", (-1, -1))
        n_q, n_k = q.shape[-3], k.shape[-3]
        low = None if left in (-1, None) else n_k - n_q - left
        high = n_k - n_q if causal else None if right in (-1, None) else n_k - n_q + right
        recorder.record(
            "flash_attn",
            q.transpose(-2, -3),
            k.transpose(-2, -3),
            v.transpose(-2, -3),
            masks.of_band(low, high, n_q, n_k),
            enable_gqa=True,
            softcap=bool(options.get("softcap")),
        )
        return original(q, k, v, *args, **options) if masks.has_values(q) else q.new_empty((*q.shape[:-1], v.shape[-1]))

    return attention


def _ours(recorder: Recorder, given: dict[str, Any]) -> None:
    """Record a call of our attention, which goes on after it, with shapes alone, too."""
    query, key, value = (given[name] for name in ("query", "key", "value"))
    if not all(isinstance(each, Tensor) and each.dim() > 2 for each in (query, key, value)):
        return  # attention refuses it
    if given["fallback"] is not None and _falls_back(given):
        return  # it calls PyTorch's function, which is recorded
    recorder.record(
        "pebblesim",
        query,
        key,
        value,
        own_masks.of_arguments(given, recorder.made),
        rounded=given["compute_dtype"],
        enable_gqa=True,
        dropout=given["dropout_p"],
        softcap=bool(given["softcap"]),
        sinks=given["sinks"] is not None,
    )


def _falls_back(given: dict[str, Any]) -> bool:
    """Whether a call of our attention with a fallback needs it."""
    query, key, value, dropout, softcap = (given[name] for name in ("query", "key", "value", "dropout_p", "softcap"))
    if given["attn_mask"] is None:
        return bool(unsupported(query, value, dropout, softcap))
    added = {name: given.get(name) for name in with_bias.Added._fields} | {"masks_of": {}}
    return bool(with_bias.why_not_with_bias((query, key, value), added, given["enable_gqa"]))


ENTRIES: tuple[tuple[str, str, Replaced], ...] = (
    ("torch.nn.functional", "scaled_dot_product_attention", _sdpa),
    ("torch.nn.attention.flex_attention", "flex_attention", _flex),
    ("transformers.integrations.flex_attention", "compile_friendly_flex_attention", _flex),
    ("flash_attn", "flash_attn_func", _flash),
    ("flash_attn_interface", "flash_attn_func", _flash),
)
"""Functions that compute attention: module, name, and what takes their place. Those that are not imported are not."""

INSIDE = ("torch.", "transformers.integrations.flex_attention")
"""Modules that call these functions within another one of `ENTRIES`, or by which PyTorch finds its own."""


def _names(homes: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The modules whose names are looked at, each with its names."""
    for where, module in list(sys.modules.items()):
        if hasattr(module, "__dict__") and (where in homes or not where.startswith(INSIDE)):
            yield where, vars(module)


def _original(value: Any) -> Any:
    """A function, or that which torch.compile made it of."""
    return vars(value).get("_torchdynamo_orig_callable", value) if type(value) is FunctionType else value


@contextmanager
def replaced(recorder: Recorder) -> Iterator[None]:
    """Record the calls of all functions that compute attention, under all names by which modules have them."""
    undo: list[tuple[dict[str, Any], str, Any]] = []
    WATCHERS.append(partial(_ours, recorder))
    try:
        here = [(home, vars(sys.modules[home]).get(name), made) for home, name, made in ENTRIES if home in sys.modules]
        ours = {id(original): (home, made) for home, original, made in here}
        for where, names in _names({home for home, *_ in here}):
            for name, value in list(names.items()):
                home, made = ours.get(id(_original(value)), ("", None))
                if made is not None and (where == home or not where.startswith(INSIDE)):
                    names[name] = made(recorder, value)
                    undo.append((names, name, value))
        with _known_masks(recorder):
            yield
    finally:
        WATCHERS.pop()
        for names, name, original in reversed(undo):
            names[name] = original


@contextmanager
def _known_masks(recorder: Recorder) -> Iterator[None]:
    """Remember of which function each mask of transformers is made: without values it says nothing else."""
    utils = sys.modules.get("transformers.masking_utils")
    known = getattr(getattr(utils, "AttentionMaskInterface", None), "_global_mapping", None)
    if known is None:
        yield
        return
    before, packed = dict(known), vars(utils).get("find_packed_sequence_indices")

    def one_sequence(position_ids: Any, *args: Any, **options: Any) -> Any:
        """Without values, positions are taken to be those of one sequence."""
        return packed(position_ids, *args, **options) if masks.has_values(position_ids) and packed else None

    def remembering(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def made(*args: Any, **options: Any) -> Any:
            out = original(*args, **options)
            offsets = options.get("q_offset", 0), options.get("kv_offset", 0)
            keys = out if isinstance(out, Tensor) else getattr(out, "ranges", None)  # None: no mask is needed
            if keys is not None and all(isinstance(each, int) for each in offsets) and not args:
                function = options.get("mask_function") or getattr(utils, "causal_mask_function", None)
                seen = masks.of_function(function, offsets[0] - offsets[1], out.shape[-2], out.shape[-1])
                if seen is not None:
                    padded = "padding" if options.get("attention_mask") is not None else ""
                    at = keys if isinstance(keys, Tensor) else keys[0]  # ours has the first key of each query
                    recorder.made[at] = SeenMask(seen.kind, seen.left, seen.right, also=padded)
            return out

        return made

    try:
        ours = sys.modules.get("pebblesim.operator.integrations.transformers")
        own = [name for name, each in before.items() if ours and each is vars(ours)["seen"]]
        known.update({name: remembering(before[name]) for name in ("sdpa", "eager", *own) if name in before})
        vars(utils).update({} if packed is None else {"find_packed_sequence_indices": one_sequence})
        yield
    finally:
        known.clear()
        known.update(before)
        vars(utils).update({} if packed is None else {"find_packed_sequence_indices": packed})
