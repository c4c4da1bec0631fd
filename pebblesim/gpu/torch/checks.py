"""Checks of the arguments of attention, and a sentence about what it does not take."""

from __future__ import annotations

from functools import lru_cache
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.gpu.torch.sizes import WORDS, check_heads, check_workspace, too_wide


class Unsupported(UsageError):
    """No kernel of ours computes this; PyTorch's attention may."""


TYPES = tuple(getattr(torch, name) for name in WORDS)
"""Types of the words that kernels take."""

LEAST_CAPABILITY = (8, 0)
"""Compute capability of the oldest cards on which the kernels run: they multiply words of bfloat16."""


def check_tensors(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    """Check that shapes, types and devices are such that kernels support them.

    Raises:
        UsageError: they do not.
    """
    arguments = {"query": query, "key": key, "value": value}
    for name, each in arguments.items():
        if not isinstance(each, Tensor):
            raise UsageError(f"{name} is of {type(each).__name__}; give a tensor.")
        if each.layout != torch.strided or each.is_nested:
            raise UsageError(
                f"{name} is {'nested' if each.is_nested else 'sparse'}; give tensors of one length, or packed "
                "sequences with cu_seqlens."
            )
        if each.dim() < 3:
            raise UsageError(f"{name} has shape {tuple(each.shape)}; give (…, heads, tokens, head dimension).")
        if each.dtype != query.dtype:
            raise UsageError(f"{name} is of {each.dtype} and query of {query.dtype}; give all three in one type.")
        if each.device != query.device or each.device.type not in ("cuda", "cpu"):
            others = "" if each.device == query.device else f" and query on {query.device}"
            raise UsageError(f"{name} is on {each.device}{others}; give all on one GPU, or the CPU.")
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
    check_heads(query.shape[:-2].numel())


def check_numbers(scale: Any, softcap: Any, workspace: Any, dropout_p: Any, compute_dtype: Any, fallback: Any) -> None:
    """Check the arguments that are numbers or names.

    Raises:
        UsageError: one is none that attention takes.
    """
    if softcap is not None and not (_is_number(softcap) and 0 < softcap < float("inf")):
        raise UsageError(f"softcap is {softcap!r}; give a finite number above 0, or None.")
    if scale is not None and not (_is_number(scale) and abs(scale) < float("inf")):
        raise UsageError(f"scale is {scale!r}; give a finite number, or None for 1/√d.")
    check_workspace(workspace)
    if not (_is_number(dropout_p) and 0 <= dropout_p < 1):
        raise UsageError(f"dropout_p is {dropout_p!r}; give a probability below 1.")
    if compute_dtype is not None and compute_dtype not in TYPES:
        raise UsageError(f"compute_dtype is {compute_dtype!r}; give torch.bfloat16, torch.float16 or None.")
    if fallback not in (None, "sdpa"):
        raise UsageError(f'fallback is {fallback!r}; give None or "sdpa".')


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, Real))


def check_masks(query: Tensor, **masks: Any) -> None:
    """Check that the tensors of masks are where the queries are.

    Args:
        query: the queries.
        masks: by name, None, a tensor or several.

    Raises:
        UsageError: one is on another device.
    """
    for name, mask in masks.items():
        for each in mask if isinstance(mask, tuple | list) else (mask,):
            if isinstance(each, Tensor) and each.device != query.device:
                raise UsageError(f"{name} is on {each.device} and query on {query.device}; give both on one device.")


def check_supported(query: Tensor, value: Tensor, attn_mask: Any, dropout_p: float, softcap: float | None) -> None:
    """Check that there are kernels for these options.

    Raises:
        Unsupported: there are none.
    """
    if attn_mask is not None:
        raise Unsupported(
            "attention takes no dense attn_mask; give is_causal, window, cu_seqlens, key_padding_mask or key_ranges, "
            'or fallback="sdpa" to have PyTorch compute it.'
        )
    if dropout_p:
        raise Unsupported('attention has no dropout; give dropout_p=0, or fallback="sdpa" to have PyTorch compute it.')
    if not query.is_cuda:
        return
    if query.dtype not in TYPES:
        raise Unsupported(
            f"query is of {query.dtype}; give bfloat16 or float16, or compute_dtype=torch.bfloat16 to round to it."
        )
    if sentence := too_wide(query.shape[-1], value.shape[-1], softcap):
        raise Unsupported(sentence)
    if not torch.compiler.is_compiling() and (sentence := _too_old(query.device)):
        raise Unsupported(sentence)


@lru_cache(maxsize=64)
def _too_old(device: torch.device) -> str | None:
    """A sentence where kernels do not run on a card, else None."""
    capability = torch.cuda.get_device_capability(device)
    if capability >= LEAST_CAPABILITY:
        return None
    return (
        f"{torch.cuda.get_device_name(device)} has compute capability {'.'.join(map(str, capability))}, and kernels "
        'need 8.0 or more; PyTorch computes it with fallback="sdpa".'
    )
