"""Attention with sinks: a number s for each head of queries, whose exponential is a term of its softmax's denominator.

A sink is as one more key of all queries, with the score s and the value 0. With L of the other keys alone, the
logarithm of the denominator is L′ = log(exp(L) + exp(s)), and the output is O′ = exp(L - L′) O = σ(L - s) O. Kernels
compute O and L as without sinks, and one pass over O makes it O′ where it is. Probabilities are exp(S - L′), so that
the backward pass is that of attention with L′ and O′ in the place of L and O, as it stands. Only the gradient of s is
new: the probability of the sink, exp(s - L′), times (dL′ - dO · O′), summed over the queries. Where s = -∞ nothing
changes.
"""

from __future__ import annotations

from math import e, log2
from typing import Any

import torch
from torch import Tensor

from pebblesim.operator import operators, recorded
from pebblesim.operator.layout import numbers_from, numbers_of
from pebblesim.operator.masks import Asked
from pebblesim.operator.operators import MASK, fake, forward_by_definition, forward_on_gpu, mapped

WITH_SINKS = "pebblesim::attention_with_sinks"

torch.library.define(WITH_SINKS, f"(Tensor query, Tensor key, Tensor value, Tensor sinks, {MASK}) -> (Tensor, Tensor)")


def for_batches(sinks: Tensor, query: Tensor) -> Tensor:
    """Sinks (heads,) as the operator takes them: (batch, heads) of queries (…, heads, n, d), in the type of L.

    So gradients of batches are added before they are rounded to the type of the sinks.
    """
    kind = torch.float64 if query.dtype == torch.float64 else torch.float32
    return sinks.to(kind).expand(query.shape[:-3].numel(), -1)


def forward(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, asked: Asked) -> tuple[Tensor, Tensor]:
    """O by kernels, and L as they have it: with sinks (batch, heads), if there are any."""
    if sinks is None:
        return operators.forward(query, key, value, asked)
    first, end, *rest = asked
    out, L = recorded.made(_with_sinks, (query, key, value, sinks, first, end), tuple(rest))
    return out, L


def _with_sinks(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    kv_heads = key.shape[1]
    out, L = operators.without_notes(query, key, value, *rest)
    return out, numbers_of(add_sinks(out, numbers_from(L, query, kv_heads), sinks), kv_heads)


def add_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """Make O that with sinks, in its place, and return L with sinks, to base 2.

    Args:
        out: O without sinks, (batch, heads, n, d).
        lse: L without sinks, to base 2, (batch, heads, n).
        sinks: (batch, heads), in the type of L, as exponents of e.
    """
    whole = torch.logaddexp2(lse, _exponents(sinks))
    share = torch.exp2(lse - whole).nan_to_num_()  # not a number: no key, and s = -∞
    out.mul_(share[..., None])
    return whole


def gradient_of_sinks(grad: Tensor | None, grad_lse: Tensor | None, out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """The gradient of sinks, (batch, heads), from those of O and of L to base 2; O and L are those with sinks."""
    slope: float | Tensor = 0.0 if grad_lse is None else grad_lse * log2(e)
    if grad is not None:
        slope = slope - (grad.to(lse.dtype) * out).sum(-1)
    probability = torch.exp2(_exponents(sinks) - lse).nan_to_num()
    return (probability * slope).sum(-1)


def _exponents(sinks: Tensor) -> Tensor:
    """Sinks as exponents of 2, (batch, heads, 1)."""
    return sinks[..., None] * log2(e)


def _on_gpu(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *mask: Any) -> tuple[Tensor, Tensor]:
    out, lse = forward_on_gpu(query, key, value, *mask)
    return out, add_sinks(out, lse, sinks)


def _by_definition(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *mask: Any) -> tuple[Tensor, Tensor]:
    out, lse = forward_by_definition(query, key, value, *mask)
    return out, add_sinks(out, lse, sinks)


torch.library.impl(WITH_SINKS, "CUDA", _on_gpu)
torch.library.impl(WITH_SINKS, "CPU", _by_definition)


@torch.library.register_fake(WITH_SINKS)
def _fake(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *mask: Any) -> tuple[Tensor, Tensor]:
    return fake(query, key, value, *mask)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, sinks, first, end, *rest = inputs
    ctx.save_for_backward(query, key, value, sinks, *output, first, end)
    ctx.rest = rest
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    query, key, value, sinks, out, lse, first, end = ctx.saved_tensors
    made: tuple[Tensor | None, ...] = (None,) * 4
    if grad is None and grad_lse is None:
        return (*made, *(None,) * 9)
    if any(ctx.needs_input_grad[:3]):
        dO = torch.zeros_like(out) if grad is None else grad
        of_matrices = torch.ops.pebblesim.attention_backward(
            dO, grad_lse, query, key, value, out, lse, first, end, *ctx.rest
        )
        made = *(x if needed else None for x, needed in zip(of_matrices, ctx.needs_input_grad, strict=False)), None
    if ctx.needs_input_grad[3]:
        made = *made[:3], gradient_of_sinks(grad, grad_lse, out, lse, sinks)
    return (*made, *(None,) * 9)


torch.library.register_autograd(WITH_SINKS, _gradients, setup_context=_keep)
mapped(WITH_SINKS, 4)
