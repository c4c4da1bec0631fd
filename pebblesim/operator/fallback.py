"""PyTorch's attention in the place of ours, for what our kernels do not support."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.operator.definition import allowed
from pebblesim.operator.masks import Asked
from pebblesim.operator.once import warn_once

ALIGNED = 16
"""Bytes that PyTorch's kernels read at once."""


def by_pytorch(
    reason: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    asked: Asked,
) -> Tensor:
    """Attention by `scaled_dot_product_attention`, 0 for a query without a key; a warning gives each reason once.

    Args:
        reason: a sentence that says why it is taken.
        query, key, value, attn_mask, dropout_p: as for `attention`.
        asked: the keys that each query may attend to, besides `attn_mask`, and the scale.

    Raises:
        UsageError: `attn_mask` is no mask for these queries and keys.
    """
    if attn_mask is not None:
        _check_mask(attn_mask, query.dtype, (*query.shape[:-1], key.shape[-2]))
        attn_mask = torch.atleast_2d(attn_mask)
    if not torch.compiler.is_compiling():
        warn_once(f"PyTorch's attention is used: {reason.partition(';')[0]}.")
    gqa = {"enable_gqa": True} if query.shape[-3] != key.shape[-3] else {}
    causal = attn_mask is None and asked[:5] == (None, None, None, 0, False)
    mask = attn_mask
    if not causal:
        found = allowed(query, key, asked)
        if found is not None and asked.first is not None:
            found = found.reshape(*query.shape[:-3], *found.shape[1:])
        mask = found if mask is None else mask if found is None else _joined(mask, found)
    query, key, value = map(_aligned, (query, key, value))
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask if mask is None else _aligned(mask), dropout_p, causal, scale=asked.scale, **gqa
    )
    if mask is None:
        return out
    some = (mask if mask.dtype == torch.bool else mask > -torch.inf).any(-1, keepdim=True)
    return out.masked_fill(~some, 0.0)  # which some kernels of PyTorch give to queries without a key, and some do not


def _aligned(x: Tensor) -> Tensor:
    """A tensor whose rows begin at multiples of 16 bytes, or a contiguous copy of it.

    PyTorch 2.11 hands tensors to its memory-efficient kernel as they lie. The kernel reads 16 bytes at once: from other
    addresses its results were wrong, or the context of the GPU was lost.
    """
    if torch.compiler.is_compiling():  # a graph does not know where its tensors begin
        return x.clone(memory_format=torch.contiguous_format)
    words = ALIGNED // x.element_size()
    *rows, last = x.stride()
    in_place = x.is_contiguous() or (last == 1 and not any(stride % words for stride in rows))
    return x if in_place and x.storage_offset() % words == 0 else x.clone(memory_format=torch.contiguous_format)


def _check_mask(mask: Any, dtype: torch.dtype, pairs: tuple[int, ...]) -> None:
    if not isinstance(mask, Tensor) or mask.dtype not in (torch.bool, torch.float32, dtype):
        given = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise UsageError(f"attn_mask is of {given}; give a tensor of booleans, or of {dtype} that is added to scores.")
    sides = zip(reversed(mask.shape), reversed(pairs), strict=False)
    if mask.dim() > len(pairs) or any(mine not in (1, its) for mine, its in sides):
        raise UsageError(f"attn_mask has shape {tuple(mask.shape)}; give one that broadcasts to {pairs}.")


def _joined(mask: Tensor, found: Tensor) -> Tensor:
    """A user's mask, of booleans or of numbers that are added to the scores, where others allow a pair."""
    return mask & found if mask.dtype == torch.bool else mask.masked_fill(~found, -torch.inf)
