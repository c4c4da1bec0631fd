"""Find out which pairs a mask tensor leaves out, from its values or the function that it was made of; needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pebblesim.advice.calls import SeenMask

LARGEST = 2**27
"""Most values of a mask that are looked at; a larger one is not known."""

Band = tuple[int | None, int | None]
"""Limits of j - i, where j is the number of a key and i that of a query: least and most."""


def made_of(made: WeakTensorKeyDictionary, tensor: Tensor) -> SeenMask | None:
    """Return what is known of how a tensor was made; None if nothing is."""
    found: SeenMask | None = made.get(tensor)
    return found


def of_flag(is_causal: bool) -> SeenMask:
    """Return the mask of a call without a tensor."""
    return SeenMask("causal", None, 0) if is_causal else SeenMask()


def of_band(low: int | None, high: int | None, n_q: int, n_k: int, **others: Any) -> SeenMask:
    """Return the mask of the pairs with low ≤ j - i ≤ high, where limits that leave out no pair are none."""
    low = None if low is None or low <= -(n_q - 1) else low
    high = None if high is None or high >= n_k - 1 else high
    kind = "none" if low is high is None else "causal" if low is None else "window"
    return SeenMask(kind, None if low is None else -low, high, **others)


def of_tensor(mask: Tensor, n_q: int, n_k: int, made: WeakTensorKeyDictionary, removes: bool = False) -> SeenMask:
    """Return what a mask tensor, (…, n_q, n_k) or broadcast to this, does to scores.

    Args:
        mask: booleans, True where a pair is allowed; or numbers that are added to scores.
        n_q, n_k: sizes of a score matrix.
        made: what is known of tensors by how they were made.
        removes: whether booleans are True where a pair is left out instead.
    """
    boolean = mask.dtype == torch.bool
    about = {
        "given": True,
        "shape": tuple(mask.shape),
        "boolean": boolean,
        "gradient": mask.requires_grad,
        "plain": mask.stride(-1) == 1 if mask.dim() else True,
    }
    known = made_of(made, mask)
    if known is not None:
        return SeenMask(known.kind, known.left, known.right, also=known.also, **about)
    if mask.requires_grad:
        return SeenMask("bias", **about)
    if not has_values(mask) or mask.numel() > LARGEST:
        return SeenMask("unknown", **about)
    allowed, biased = _allowed(mask, boolean, removes)
    found = of_pairs(allowed, n_q, n_k)
    kind, also = ("bias", "" if found.kind == "none" else found.kind) if biased else (found.kind, found.also)
    return SeenMask(kind, found.left, found.right, also=also, **about)


def has_values(tensor: Tensor) -> bool:
    """Whether a tensor has numbers, and not a shape alone."""
    from torch._subclasses.fake_tensor import FakeTensor

    return not tensor.is_meta and not isinstance(tensor, FakeTensor)


def _allowed(mask: Tensor, boolean: bool, removes: bool) -> tuple[Tensor, bool]:
    """The pairs that are allowed, and whether numbers are added to their scores."""
    if boolean:
        return (~mask if removes else mask), False
    least = torch.finfo(mask.dtype).min if mask.is_floating_point() else -(2**31)
    allowed = mask > least / 2
    if float(mask.abs().max() if mask.numel() else 0) >= 1e4:  # some write -1e4 or -1e9 for "not allowed"
        allowed = allowed & (mask > -9e3)
    return allowed, bool((mask.masked_fill(~allowed, 0) != 0).any())


def of_pairs(allowed: Tensor, n_q: int, n_k: int) -> SeenMask:
    """Return the kind of a table of allowed pairs, (…, n_q, n_k), or with sides of 1."""
    table = torch.atleast_2d(allowed)
    if bool(table.all()):
        return SeenMask()
    if table.shape[-2] == 1 or n_q == 1 or bool((table == table[..., :1, :]).all()):
        return SeenMask("padding")
    table = table.expand(*table.shape[:-2], n_q, n_k)
    apart = torch.arange(n_k, device=table.device) - torch.arange(n_q, device=table.device)[:, None]
    seen = table.reshape(-1, n_q, n_k)
    some = seen.any(0)
    if not bool(some.any()):
        return SeenMask("dense")
    low, high = int(apart[some].min()), int(apart[some].max())
    band = (apart >= low) & (apart <= high)
    made = of_band(low, high, n_q, n_k)
    if bool((seen == band).all()):
        return made
    keys = seen.any(1, keepdim=True)
    if made.kind != "none" and bool((seen == (band & keys)).all()):
        return of_band(low, high, n_q, n_k, also="padding")
    return SeenMask("dense")


def of_function(mask_function: Callable[..., Any] | None, moved: int, n_q: int, n_k: int) -> SeenMask | None:
    """Return the mask of a function of (batch, head, query, key), if it is a band; None otherwise.

    Args:
        mask_function: as of transformers or FlexAttention.
        moved: number of the first query among the keys, less that of the first key.
        n_q, n_k: sizes.
    """
    from pebblesim.operator.integrations.transformers_masks import band_of

    band = None if mask_function is None else band_of(mask_function)
    if band is None:
        return None
    band = band.moved(moved)
    return of_band(band.low, band.high, n_q, n_k)
