"""`attention` with a bias: its checks, and the call of its operator."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from math import log
from typing import Any

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.operator import checks, compiling, eager, operators_of_bias
from pebblesim.operator.bias import WIDEST, Limits, in_groups
from pebblesim.operator.layout import in_one_batch
from pebblesim.operator.masks import promise
from pebblesim.operator.pattern import limits
from pebblesim.operator.recent import Recent

ADVICE = {
    "attn_mask": "add it to the bias",
    "dropout_p": "give 0",
    "softcap": "leave it out",
    "cu_seqlens": "give sequences of one length as batches",
    "key_padding_mask": "add a large negative number, such as -1e4, to the bias of such keys",
    "key_padding": "add a large negative number, such as -1e4, to the bias of such keys",
    "key_ranges": "add a large negative number, such as -1e4, to the bias of other keys",
    "sinks": "leave them out",
    "fallback": "leave it out",
}
"""Options that kernels with a bias do not have, and what to do in their place."""


def attention_with_bias(
    matrices: tuple[Tensor, ...],
    bias: Any,
    scale: float | None,
    within: tuple[Any, bool, str],
    return_lse: bool,
    kind: torch.dtype | None,
    others: Mapping[str, Any],
) -> Any:
    """softmax(scale · Q Kᵀ + bias) V, and L with `return_lse`, for arguments of `attention`.

    Args:
        matrices: queries, keys and values, in the type that they are computed in.
        bias: numbers that broadcast to (…, heads, n_q, n_k).
        scale, return_lse: as for `attention`.
        kind: type of O; None for that of the matrices.
        within: `window`, `is_causal` and `align`.
        others: options that are refused, by name.

    Raises:
        UsageError: an argument is not allowed, or not with a bias.
    """
    query, key, value = matrices
    given = [name for name, each in others.items() if each is not None and (isinstance(each, Tensor) or each != 0)]
    call = None if given else eager.call_of(query, key, value, (None, None, None, bias), (scale, within))
    known = None
    with suppress(TypeError):  # attention takes no option without a hash
        known = None if call is None else _CHECKED.get(call)
    if known is None:
        checks.check_tensors(query, key, value, True)
        if given:
            name = given[0]
            raise UsageError(f"{name} was given with bias, and these kernels do not have both; {ADVICE[name]}.")
        _check(query, key, value, bias)
        checks.check_masks(query, bias=bias)
    groups, asked = known or _asked(query, key, bias, scale, within)
    x = (*map(in_one_batch, matrices), bias.reshape(groups))
    if call is None:
        out, lse = torch.ops.pebblesim.attention_with_bias(*x, *asked)
    else:
        if known is None:
            _compile(x, asked)
            _CHECKED[call] = groups, asked
        out, lse = _plain(x, asked)
    out = out.reshape(*query.shape[:-1], value.shape[-1]).to(kind or out.dtype)
    return (out, lse.reshape(query.shape[:-1]) * log(2)) if return_lse else out


_CHECKED: Recent[Hashable, tuple[torch.Size, Limits]] = Recent(eager.MOST)
"""Shapes of the bias and limits, as the operators take them, of plain calls whose arguments were right."""


def _asked(
    query: Tensor, key: Tensor, bias: Tensor, scale: float | None, within: tuple[Any, bool, str]
) -> tuple[torch.Size, Limits]:
    """The shape of the bias, and the limits, as the operators take them."""
    groups, inner = in_groups(bias, query, key)
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    return groups.shape, Limits(inner, *limits(*within, query.shape[-2], key.shape[-2]), scale)


def _plain(x: tuple[Tensor, ...], asked: Limits) -> tuple[Tensor, Tensor]:
    """O and L of a call outside of any tracing, which needs no operator of PyTorch."""
    if torch.is_grad_enabled() and any(each.requires_grad for each in x):
        out, lse = _Passes.apply(*x, asked)
        return out, lse
    query, key, value, bias = x
    return operators_of_bias.forward(query, key, value, bias, asked)


class _Passes(torch.autograd.Function):
    """Both passes as one autograd function."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, asked: Limits
    ) -> tuple[Tensor, Tensor]:
        made, ctx.asked = operators_of_bias.forward(query, key, value, bias, asked), asked
        ctx.save_for_backward(query, key, value, bias, *made)
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None and grad_lse is None:
            return (None,) * 5
        *x, out, lse = ctx.saved_tensors
        grad, of_bias = torch.zeros_like(out) if grad is None else grad, ctx.needs_input_grad[3]
        tensors, learning = (grad, grad_lse, *x, out, lse), torch.is_grad_enabled()
        if learning or not eager.plain(*(each for each in (grad, grad_lse) if each is not None)):
            made = torch.ops.pebblesim.attention_with_bias_backward(*tensors, of_bias, *ctx.asked)
        else:
            made = operators_of_bias.backward(tensors, of_bias, ctx.asked)
        return *(each if needed else None for each, needed in zip(made, ctx.needs_input_grad, strict=False)), None


def _compile(x: tuple[Tensor, ...], asked: Limits) -> None:
    """Compile the kernels of a plain call side by side, those of its backward pass, too, if gradients are wanted."""
    if torch.cuda.is_current_stream_capturing() or not compiling.can():
        return
    with suppress(torch.OutOfMemoryError), torch.no_grad(), compiling.together():
        made = operators_of_bias.biased_without_notes(*x, *asked)
        if any(each.requires_grad for each in x):
            tensors = made[0], None, *x, *made
            operators_of_bias.gradients_of_biased_without_notes(*tensors, x[3].requires_grad, *asked)


def _check(query: Tensor, key: Tensor, value: Tensor, bias: Any) -> None:
    """Check what kernels with a bias are for.

    Raises:
        UsageError: they are not for this.
    """
    heads, kv_heads = query.shape[-3], key.shape[-3]
    if heads != kv_heads:
        raise UsageError(
            f"query has {heads} heads and key {kv_heads}, and with a bias they need as many; give "
            f"key.repeat_interleave({heads // kv_heads}, -3), and value alike."
        )
    if (widest := max(query.shape[-1], value.shape[-1])) > WIDEST:
        raise UsageError(f"a head dimension is {widest}, and with a bias it may be up to {WIDEST}; leave the bias out.")
    if query.is_cuda and query.dtype == torch.float64:
        raise UsageError("query is of torch.float64; with a bias give bfloat16, float16 or float32 on a GPU.")
    if not isinstance(bias, Tensor) or bias.layout != torch.strided:
        given = f"of layout {bias.layout}" if isinstance(bias, Tensor) else f"of {type(bias).__name__}"
        raise UsageError(f"bias is {given}; give a dense tensor that broadcasts to (…, heads, n_q, n_k).")
    allowed = {query.dtype, torch.float32}
    if bias.dtype not in allowed:
        raise UsageError(f"bias is of {bias.dtype}; give {' or '.join(sorted(map(str, allowed)))}.")
    if bias.device.type == "cpu":
        promise(
            bias.isfinite(),
            "bias has NaN or an infinity among its numbers; give finite ones, such as -1e4 to leave a key out.",
        )
    few = query[..., :0, :]  # of a type that `unsupported` knows
    if reason := checks.unsupported(few.bfloat16() if few.dtype == torch.float32 else few, value, None, 0.0, None):
        raise UsageError(reason)
