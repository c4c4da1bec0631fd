"""Checks of the arguments of attention, and a sentence about what it does not take."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError

LARGEST = 1024
"""Largest head dimension."""

MOST_HEADS = 65535
"""Largest number of heads of all sequences together: a launch can have this number of rows of thread blocks."""


class Unsupported(UsageError):
    """No kernel of ours computes this; PyTorch's attention may."""


MOST_CAPPED = 256
"""Largest head dimension with softcap: kernels for larger ones have no scores where they compute the gradients."""

WORDS = (torch.bfloat16, torch.float16)
"""Types of the words that kernels take."""


def check_tensors(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    """Check that shapes, types and devices are such that kernels support them.

    Raises:
        UsageError: they do not.
    """
    arguments = {"query": query, "key": key, "value": value}
    for name, each in arguments.items():
        if not isinstance(each, Tensor):
            raise UsageError(f"{name} is of {type(each).__name__}; give a tensor.")
        if each.dim() < 3:
            raise UsageError(f"{name} has shape {tuple(each.shape)}; give (…, heads, tokens, head dimension).")
        if each.dtype != query.dtype:
            raise UsageError(f"{name} is of {each.dtype} and query of {query.dtype}; give all three in one type.")
        if each.device != query.device or each.device.type not in ("cuda", "cpu"):
            raise UsageError(
                f"{name} is on {each.device} and query on {query.device}; give all on one GPU, or the CPU."
            )
        if not each.is_floating_point():
            raise UsageError(f"{name} is of {each.dtype}; give numbers with a fraction.")
        if not all(each.shape):
            raise UsageError(f"{name} has shape {tuple(each.shape)} and is empty; give one token or more.")
    if key.shape[-2] != value.shape[-2]:
        raise UsageError(f"key and value have {key.shape[-2]} and {value.shape[-2]} tokens; give as many of both.")
    if query.shape[-1] != key.shape[-1]:
        raise UsageError(f"query and key have head dimensions {query.shape[-1]} and {key.shape[-1]}; give the same.")
    if key.shape[:-2] != value.shape[:-2] or query.shape[:-3] != key.shape[:-3]:
        shapes = ", ".join(str(tuple(argument.shape)) for argument in arguments.values())
        raise UsageError(f"query, key and value have shapes {shapes}; all but heads and head dimension must agree.")
    heads, shared = query.shape[-3], key.shape[-3]
    if heads != shared and not (enable_gqa and heads % shared == 0):
        raise UsageError(
            f"query has {heads} heads and key {shared}; give as many, or with enable_gqa a number that divides {heads}."
        )
    if query.shape[:-2].numel() > MOST_HEADS:
        raise UsageError(f"there are {query.shape[:-2].numel():,} heads in all; give {MOST_HEADS:,} at most at once.")


def check_numbers(scale: Any, softcap: Any, workspace: Any, dropout_p: Any, compute_dtype: Any, fallback: Any) -> None:
    """Check the arguments that are numbers or names.

    Raises:
        UsageError: one is none that attention takes.
    """
    if softcap is not None and not softcap > 0:
        raise UsageError(f"softcap is {softcap}; give a number above 0, or None.")
    if scale is not None and not abs(scale) < float("inf"):
        raise UsageError(f"scale is {scale}; give a finite number, or None for 1/√d.")
    if workspace is not None and (not isinstance(workspace, int) or workspace < 0):
        raise UsageError(f"workspace is {workspace!r}; give a number of bytes, or None for 1 GiB at most.")
    if not 0 <= dropout_p < 1:
        raise UsageError(f"dropout_p is {dropout_p}; give a probability below 1.")
    if compute_dtype is not None and compute_dtype not in WORDS:
        raise UsageError(f"compute_dtype is {compute_dtype}; give torch.bfloat16, torch.float16 or None.")
    if fallback not in (None, "sdpa"):
        raise UsageError(f'fallback is {fallback!r}; give None or "sdpa".')


def check_supported(query: Tensor, value: Tensor, attn_mask: Any, dropout_p: float, softcap: float | None) -> None:
    """Check that there are kernels for these options.

    Raises:
        Unsupported: there are none.
    """
    if attn_mask is not None:
        raise Unsupported(
            "attention takes no dense attn_mask; give is_causal, window, cu_seqlens, key_padding or key_ranges, or "
            'fallback="sdpa" to have PyTorch compute it.'
        )
    if dropout_p:
        raise Unsupported('attention has no dropout; give dropout_p=0, or fallback="sdpa" to have PyTorch compute it.')
    if not query.is_cuda:
        return
    if query.dtype not in WORDS:
        raise Unsupported(
            f"query is of {query.dtype}; give bfloat16 or float16, or compute_dtype=torch.bfloat16 to round to it."
        )
    if (largest := max(query.shape[-1], value.shape[-1])) > LARGEST:
        raise Unsupported(f"there is a head dimension of {largest:,}; it may be up to {LARGEST:,}.")
    if softcap and max(query.shape[-1], value.shape[-1]) > MOST_CAPPED:
        raise Unsupported(f"with softcap a head dimension may be up to {MOST_CAPPED}, and one is larger.")
