"""A small call without gradients costs the host little: what was found for its sizes is kept and launched at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from pebblesim.gpu.torch.launch import noted
from pebblesim.gpu.torch.launching import Setting, loaded_for
from pebblesim.gpu.torch.layout import empty_like, fits
from pebblesim.gpu.torch.masks import Asked, seen_keys
from pebblesim.gpu.torch.recorded import MOST, Again

Replay = Callable[[Tensor, Tensor, Tensor], Tensor | None]
"""A launch of query, key and value; None if their alignment is another one."""

_KEPT: dict[Hashable, Replay | None] = {}

_ASKED: dict[Hashable, Asked] = {}
"""The arguments of the operator for calls that have been checked."""


def kept(query: Any, key: Any, value: Any, rest: tuple[Hashable, ...]) -> tuple[Hashable, ...] | None:
    """The sizes and options of a call by which it may be kept; None if it may not be.

    Args:
        query, key, value: its tensors.
        rest: its other arguments.

    Returns:
        The last one says whether it needs gradients.
    """
    if (
        type(query) is not Tensor
        or type(key) is not Tensor
        or type(value) is not Tensor
        or torch.compiler.is_compiling()
        or not query.is_cuda
        or torch.is_autocast_enabled("cuda")
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.maybe_current_level() is not None
    ):
        return None
    device = torch._C._cuda_getDevice()
    if not (query.get_device() == key.get_device() == value.get_device() == device):
        return None
    shapes = query.shape, key.shape, value.shape, query.stride(), key.stride(), value.stride()
    learning = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    return (*shapes, query.dtype, key.dtype, value.dtype, device, rest, learning)


def checked(sizes: tuple[Hashable, ...] | None) -> Asked | None:
    """The arguments of the operator for a call that needs gradients and was checked before; else None."""
    return _found(_ASKED, sizes) if sizes is not None and sizes[-1] else None


def known(sizes: tuple[Hashable, ...] | None) -> Replay | None:
    """The launch of a call that was made before; None if there was none, or if it is not kept."""
    return None if sizes is None else _found(_KEPT, sizes)


def _found(kept: dict[Hashable, Any], sizes: tuple[Hashable, ...]) -> Any:
    """The entry that is kept for some sizes, or None."""
    try:
        return kept.get(sizes)
    except TypeError:  # an option that has no hash is none that attention takes
        return None


def keep(sizes: tuple[Hashable, ...] | None, query: Tensor, key: Tensor, value: Tensor, asked: Asked) -> None:
    """Keep a call that has just been made, if all its heads are computed at once from tensors where they are.

    Args:
        sizes: from `kept`.
        query, key, value, asked: as of the operator, with any dimensions of batches.
    """
    if sizes is not None and sizes[-1]:
        if len(_ASKED) < MOST:
            _ASKED[sizes] = asked
        return
    if sizes is None or sizes in _KEPT or len(_KEPT) >= MOST or torch.cuda.is_current_stream_capturing():
        return
    if len({each.data_ptr() for each in (query, key, value)}) < 3:
        return  # which of them a launch took could not be told
    _KEPT[sizes] = _launch(query, key, value, asked)


def _launch(query: Tensor, key: Tensor, value: Tensor, asked: Asked) -> Replay | None:
    """A function that launches the kernels of these sizes, or None."""
    n_k, pattern = key.shape[-2], asked.pattern(query, key)
    if pattern.ranged or seen_keys(query.shape[-2], n_k, pattern) != slice(0, n_k):
        return None
    inputs = (query, key, value)
    Q, K, V = (each.reshape(-1, *each.shape[-3:]) for each in inputs)
    O = empty_like(Q, value.shape[-1])
    out = O.reshape(*query.shape[:-1], value.shape[-1])
    there = all(a.data_ptr() == b.data_ptr() for a, b in zip((Q, K, V, O), (*inputs, out), strict=True))
    if not there or not all(map(fits, (Q, K, V, O))):
        return None
    with noted() as written:
        run = loaded_for({"Q": Q, "K": K, "V": V}, {"O": O}, Setting(pattern, asked.scale, asked.workspace))
        if run is None or written.other:
            return None
        run(Q, K, V, {"O": O})
    launches = Again(inputs, (out,), written)

    def replay(query: Tensor, key: Tensor, value: Tensor) -> Tensor | None:
        made = launches((query, key, value))
        return None if made is None else made[0][0]

    return replay
