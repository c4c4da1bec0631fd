"""The mask of a call of our attention, from its own arguments; needs PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pebblesim.advice.calls import SeenMask
from pebblesim.explaining import masks


def of_arguments(given: dict[str, Any], made: WeakTensorKeyDictionary) -> SeenMask:
    """Return what the arguments of `attention` leave out of its scores, or add to them.

    Args:
        given: all arguments, by their names.
        made: what is known of tensors by how they were made.

    Raises:
        UsageError: a mask is not one for these queries and keys.
    """
    found = [each for each in _each(given, made) if each.kind != "none"]
    if not found:
        return SeenMask()
    kinds = dict.fromkeys(kind for each in found for kind in (each.kind, *each.also.split(" + ")) if kind)
    return replace(found[0], also=" + ".join(kind for kind in kinds if kind != found[0].kind))


def _each(given: dict[str, Any], made: WeakTensorKeyDictionary) -> Iterator[SeenMask]:
    """Yield the mask of each argument, that of a tensor that is added to scores first: it decides about kernels."""
    n_q, n_k = given["query"].shape[-2], given["key"].shape[-2]
    bias, dense, packed = given["bias"], given["attn_mask"], given["cu_seqlens"] is not None
    if isinstance(bias, Tensor):
        about = {"gradient": bias.requires_grad, "plain": bias.stride(-1) == 1 if bias.dim() else True}
        yield SeenMask("bias", given=True, shape=tuple(bias.shape), **about)
    if isinstance(dense, Tensor):
        yield masks.of_tensor(dense, n_q, n_k, made)
    yield _positions(given, made, n_q, n_k)
    if packed:
        yield SeenMask("packed")
    padding = given["key_padding_mask"]
    if isinstance(padding, Tensor) and not (masks.has_values(padding) and not bool(padding.any())):
        yield SeenMask("padding")


def _positions(given: dict[str, Any], made: WeakTensorKeyDictionary, n_q: int, n_k: int) -> SeenMask:
    """The pairs that flags, windows and ranges of keys allow: a band where they are one."""
    from pebblesim.operator.masks import ranges_of
    from pebblesim.operator.pattern import limits

    window = given["window"]
    within = limits(tuple(window) if isinstance(window, list) else window, given["is_causal"], given["align"], n_q, n_k)
    left, right, at_end = within
    moved = n_k - n_q if at_end and given["cu_seqlens"] is None else 0
    low, high = (None if left is None else moved - left), (None if right is None else moved + right)
    band, ranges = masks.of_band(low, high, n_q, n_k), given["key_ranges"]
    if ranges is None:
        return band
    batch = given["query"].shape[:-3].numel()
    found = ranges_of((batch, n_q, n_k), given["query"].device, within, None, None, ranges)
    assert found is not None
    known = masks.made_of(made, ranges[0])
    if known is not None and band.kind == "none":
        return known
    if not masks.has_values(found[0]) or max(found[0].shape[0], found[1].shape[0]) * n_q * n_k > masks.LARGEST:
        return SeenMask("ranges", also="" if band.kind == "none" else band.kind)
    keys = found[0].new_tensor(range(n_k))
    seen = masks.of_pairs((keys >= found[0][..., None]) & (keys < found[1][..., None]), n_q, n_k)
    return SeenMask("ranges") if seen.kind == "dense" else seen
