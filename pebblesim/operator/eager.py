"""Calls outside of any tracing: checked once for their sizes, then made without PyTorch's dispatcher.

`torch.compile`, `vmap` and other transformations need the operators of `torch.library`, which cost the host more than
all else. A plain call of tensors of the current GPU goes to what these operators do, its gradients by one function.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pebblesim.operator import operators, recorded
from pebblesim.operator.layout import in_one_batch, numbers_from
from pebblesim.operator.masks import Asked
from pebblesim.operator.recent import Recent

MOST = 4096
"""Calls whose arguments are kept."""

_CHECKED: Recent[Hashable, Asked] = Recent(MOST)


def call_of(query: Any, key: Any, value: Any, options: tuple[Hashable, ...]) -> tuple[Hashable, ...] | None:
    """The sizes, types and options of a plain call, which its checks depend on; None if it is another one."""
    if not plain(query, key, value) or torch.is_autocast_enabled("cuda"):
        return None
    shapes = query.shape, key.shape, value.shape, query.stride(), key.stride(), value.stride()
    return (*shapes, query.dtype, key.dtype, value.dtype, query.get_device(), *options)


def plain(*tensors: Any) -> bool:
    """Whether these are dense tensors of the current GPU, and nothing traces or transforms what is done with them."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state():
        return False
    if torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0:
        return False
    for each in tensors:
        if type(each) is not Tensor or not recorded.here(each) or each.is_nested or each.layout is not torch.strided:
            return False
        if torch._C._functorch.is_legacy_batchedtensor(each):  # as `is_grads_batched` makes
            return False
    return True


def checked(call: tuple[Hashable, ...] | None) -> Asked | None:
    """The arguments of the operators for a plain call like one that was checked and made before; else None."""
    try:
        return None if call is None else _CHECKED.get(call)
    except TypeError:  # attention takes no option without a hash
        return None


def keep(call: tuple[Hashable, ...], asked: Asked) -> None:
    """Keep the arguments of the operators for plain calls like this one, which was checked and made."""
    _CHECKED[call] = asked


def attention(query: Tensor, key: Tensor, value: Tensor, asked: Asked) -> Tensor:
    """O of a plain call, (…, heads, n_q, d_v), with its gradients if they are wanted."""
    Q, K, V = map(in_one_batch, (query, key, value))
    if torch.is_grad_enabled() and (Q.requires_grad or K.requires_grad or V.requires_grad):
        out = _Passes.apply(Q, K, V, asked)
    else:
        out, _ = operators.forward(Q, K, V, asked)
    return out if Q is query else out.reshape(*query.shape[:-1], value.shape[-1])


class _Passes(torch.autograd.Function):
    """The forward and the backward pass as one autograd function; L stays as kernels have it."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, asked: Asked) -> Tensor:
        out, L = operators.forward(query, key, value, asked)
        ctx.save_for_backward(query, key, value, out, L)
        ctx.asked = asked
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, L = ctx.saved_tensors
        if plain(grad) and not torch.is_grad_enabled():
            made = operators.backward(grad, query, key, value, out, L, ctx.asked)
        else:
            lse = numbers_from(L, query, key.shape[1])
            made = torch.ops.pebblesim.attention_backward(grad, None, query, key, value, out, lse, *ctx.asked)
        return (*(each if needed else None for each, needed in zip(made, ctx.needs_input_grad, strict=False)), None)
