"""A small call without gradients costs the host little: what was found for its sizes is kept and launched at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from pebblesim.gpu.torch.launching import loaded_for
from pebblesim.gpu.torch.masks import Shown, pattern_of, seen_keys

MOST = 4096
"""Calls that are kept."""

_KEPT: dict[Hashable, Callable[[Tensor, Tensor, Tensor], Tensor] | None] = {}


def kept(query: Any, key: Any, value: Any, rest: tuple[Hashable, ...]) -> tuple[Hashable, ...] | None:
    """The sizes and options of a call by which it may be kept; None if it may not be.

    Args:
        query, key, value: its tensors.
        rest: its other arguments.
    """
    if (
        type(query) is not Tensor
        or type(key) is not Tensor
        or type(value) is not Tensor
        or not query.is_cuda
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cuda")
        or (torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad))
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.maybe_current_level() is not None
        or query.device.index != torch._C._cuda_getDevice()
        or not (query.device == key.device == value.device)
    ):
        return None
    shapes = query.shape, key.shape, value.shape, query.stride(), key.stride(), value.stride()
    return (*shapes, query.dtype, key.dtype, value.dtype, query.device.index, *rest)


def known(sizes: tuple[Hashable, ...] | None) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """The launch of a call that was made before; None if there was none, or if it is not kept."""
    return None if sizes is None else _KEPT.get(sizes)


def keep(
    sizes: tuple[Hashable, ...] | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    shown: Shown,
    scale: float,
    workspace: int | None,
) -> None:
    """Keep a call that has just been made, if all its heads are computed at once from tensors as they are.

    Args:
        sizes: from `kept`.
        query, key, value, shown, scale, workspace: as of the operator, with any dimensions of batches.
    """
    if sizes is None or sizes in _KEPT or len(_KEPT) >= MOST:
        return
    _KEPT[sizes] = _launch(query, key, value, shown, scale, workspace)


def _launch(
    query: Tensor, key: Tensor, value: Tensor, shown: Shown, scale: float, workspace: int | None
) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """A function that launches the kernels of these sizes, or None."""
    (n_q, d), n_k, kv_heads = query.shape[-2:], key.shape[-2], key.shape[-3]
    shared = query.shape[-3] // kv_heads
    pattern = pattern_of(shared, shown.left, shown.right, shown.at_end, n_q, n_k)
    whole = seen_keys(n_q, n_k, pattern) == slice(0, n_k)
    if shown.first is not None or not whole or (shared > 1 and n_q > 1):
        return None
    if not all(each.is_contiguous() and each.shape[-1] >= 16 for each in (query, key, value)):
        return None
    heads = query.shape[:-3].numel() * kv_heads
    rows, columns, d_v = (heads, n_q * shared, d), (heads, n_k, d), value.shape[-1]
    run = loaded_for("forward", query, rows, n_k, d_v, pattern, scale, workspace)
    if run is None:
        return None
    values, shape = (heads, n_k, d_v), (*query.shape[:-1], d_v)

    def launch(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return run(query.view(rows), key.view(columns), value.view(values))["O"].view(shape)

    return launch
