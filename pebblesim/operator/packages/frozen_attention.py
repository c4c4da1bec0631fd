"""`attention` of a package of kernels: what its table does not have is brought to what it has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.operator.masks import both, check_ranges, ranges_of_band
from pebblesim.operator.packages.frozen import TABLE, lacking
from pebblesim.operator.pattern import limits
from pebblesim.operator.public import attention as by_kernels


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: tuple[int | None, int | None] | None = None,
    align: str = "start",
    softcap: float | None = None,
    cu_seqlens: Any = None,
    key_padding_mask: Tensor | None = None,
    key_ranges: tuple[Tensor, Tensor] | None = None,
    workspace: int | None = None,
    **others: Any,
) -> Any:
    """softmax(scale · Q Kᵀ) V with its gradients: `public.attention`, by the kernels of this package.

    A head dimension between those of the package is filled up with zeros, and a window that it has no kernels for is
    computed by those that read key ranges.

    Raises:
        UsageError: an argument is not allowed, or this package has no kernels for it.
    """
    if workspace is not None:
        raise UsageError("this package has no kernels for a workspace; leave it out.")
    if scale is not None and not scale > 0:
        raise UsageError(
            f"scale is {scale!r}, and this package has kernels for scales above 0; give one, or negate keys."
        )
    matrices = query, key, value
    if all(isinstance(each, Tensor) and each.dim() > 2 for each in matrices):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        if softcap is not None:
            _check_capped(max(query.shape[-1], value.shape[-1]))
        if others.get("fallback") is None:
            _check_classes(query, key, value)
        matrices = tuple(_widened(each, max(query.shape[-1], value.shape[-1])) for each in matrices)
        if not _known(query, key, window, is_causal, align) and cu_seqlens is None:
            n_q, n_k, batch = query.shape[-2], key.shape[-2], query.shape[:-3].numel()
            ranges = None if key_ranges is None else check_ranges(key_ranges, batch, n_q, n_k)
            key_ranges = both(
                ranges, ranges_of_band(n_q, n_k, *limits(window, is_causal, align, n_q, n_k), query.device)
            )
            window, is_causal = None, False
    masks = {"cu_seqlens": cu_seqlens, "key_padding_mask": key_padding_mask, "key_ranges": key_ranges}
    if not TABLE["ranges"] and any(each is not None for each in masks.values()):
        raise UsageError(
            "this package has no kernels that read key ranges, as other windows, packed sequences and padding need; "
            "leave these masks out, or emit a package with ranges in --mask."
        )
    options = {"window": window, "align": align, "softcap": softcap, **masks, **others}
    made = by_kernels(*matrices, attn_mask, dropout_p, is_causal, scale, enable_gqa, **options)
    if matrices[2] is value:
        return made
    if isinstance(made, tuple):
        return made[0][..., : value.shape[-1]], made[1]
    return made[..., : value.shape[-1]]


def _check_classes(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check that the package has kernels for the heads of a call, on the CPU, too, which needs none.

    Raises:
        UsageError: it has none.
    """
    d, (heads, kv_heads) = max(query.shape[-1], value.shape[-1]), (each.shape[-3] for each in (query, key))
    shared = heads // kv_heads if kv_heads and heads % kv_heads == 0 else None  # else attention says what is wrong
    if shared and (d > TABLE["widths"][-1] or shared not in TABLE["shared"]):
        raise UsageError(lacking(d, shared))


def _check_capped(d: int) -> None:
    """Check that the package has kernels that cap scores at a head dimension.

    Raises:
        UsageError: it has none.
    """
    capped = TABLE["softcap"]
    if not capped:
        raise UsageError("this package has no kernels for softcap; leave it out, or emit a package with --softcap.")
    if d > capped[-1]:
        raise UsageError(
            f"this package has kernels for softcap up to a head dimension of {capped[-1]}, and the call has {d}; leave "
            "softcap out, or emit a package for it, which may have 256 at most."
        )


def _widened(x: Tensor, d: int) -> Tensor:
    """A matrix with columns of zeros up to the next head dimension of the package."""
    wide = next((each for each in TABLE["widths"] if each >= d), d)
    return x if x.shape[-1] == wide else torch.nn.functional.pad(x, (0, wide - x.shape[-1]))


def _known(query: Tensor, key: Tensor, window: Any, is_causal: bool, align: str) -> bool:
    """Whether the package has kernels for the limits of a call, if it has any."""
    n_q, n_k = query.shape[-2], key.shape[-2]
    left, right, _ = limits(window, is_causal, align, n_q, n_k)
    return left is right is None or [left, right] in TABLE["limits"]
