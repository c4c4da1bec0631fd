"""Attention with sinks: a number s for each query head, whose exponential is a term of its softmax's denominator.

A sink is as one more key of all queries, with the score s and the value 0. Kernels whose softmaxes begin with it
(`kernels.sinks`) compute O and L with sinks, at the cost of those without. Probabilities are exp(S - L), so that the
backward pass is that of attention, as it stands. Only the gradient of s is new (`gradient_of_sinks`).

Packages of kernels without sinks make them of O and L of the keys alone: with the logarithm of the denominator
L′ = log(exp(L) + exp(s)), the output is O′ = exp(L - L′) O = σ(L - s) O, rounded a second time. Where s = -∞ nothing
changes.
"""

from __future__ import annotations

from math import e, log2, prod
from typing import Any

import torch
from torch import Tensor

from pebblesim.operator import operators
from pebblesim.operator.checks import check_forward_mode
from pebblesim.operator.known import recorded
from pebblesim.operator.launching.fresh import fresh
from pebblesim.operator.launching.layout import empty_like, numbers_from, numbers_of
from pebblesim.operator.masks import Asked
from pebblesim.operator.operators import (
    MASK,
    backward_by_definition,
    fake,
    forward_by_definition,
    mapped,
    no_second,
)
from pebblesim.operator.texts import BEGIN_WITH_SINKS

WITH_SINKS, BACKWARD_WITH_SINKS = "pebblesim::attention_with_sinks", "pebblesim::attention_with_sinks_backward"

torch.library.define(WITH_SINKS, f"(Tensor query, Tensor key, Tensor value, Tensor sinks, {MASK}) -> (Tensor, Tensor)")
torch.library.define(
    BACKWARD_WITH_SINKS,
    "(Tensor grad, Tensor? grad_lse, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, Tensor sinks, "
    f"{MASK}) -> (Tensor, Tensor, Tensor, Tensor)",
)


def for_batches(sinks: Tensor, query: Tensor) -> Tensor:
    """Sinks (heads,) as the operator takes them: (batch, heads) of queries (…, heads, n, d), in the type of L.

    So gradients of batches are added before they are rounded to the type of the sinks.
    """
    kind = torch.float64 if query.dtype == torch.float64 else torch.float32
    return sinks.to(kind).expand(prod(query.shape[:-3]), -1)


def forward(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, asked: Asked) -> tuple[Tensor, Tensor]:
    """O by kernels, and L as they have it: with sinks, (heads,) or (batch, heads), if there are any."""
    if sinks is None or BEGIN_WITH_SINKS:
        return operators.forward(query, key, value, asked, sinks)
    first, end, *rest = asked
    out, L = recorded.made(afterwards, (query, key, value, sinks, first, end), tuple(rest))
    return out, L


def afterwards(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """As `operators.without_notes`, by kernels without sinks."""
    kv_heads = key.shape[1]
    out, L = operators.without_notes(query, key, value, None, *rest)
    return out, numbers_of(add_sinks(out, numbers_from(L, query, kv_heads), sinks), kv_heads)


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    L: Tensor,
    sinks: Tensor,
    asked: Asked,
    grad_L: Tensor | None,
) -> tuple[Tensor, ...]:
    """Gradients of query, key, value and sinks by kernels, from those of O and of L, both L as kernels have it."""
    if BEGIN_WITH_SINKS:
        return operators.backward(grad, query, key, value, out, L, asked, grad_L, sinks)
    kv_heads = key.shape[1]
    made = operators.backward(grad, query, key, value, out, L, asked, grad_L)
    grad_lse = None if grad_L is None else numbers_from(grad_L, query, kv_heads) / log2(e)
    return *made, from_definition(grad, grad_lse, out, numbers_from(L, query, kv_heads), sinks)


def add_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """Make O that with sinks, in its place, and return L with sinks, to base 2.

    Args:
        out: O without sinks, (batch, heads, n, d).
        lse: L without sinks, to base 2, (batch, heads, n).
        sinks: (heads,) or (batch, heads), as exponents of e.
    """
    whole = torch.logaddexp2(lse, _exponents(sinks, lse))
    share = torch.exp2(lse - whole).nan_to_num_()  # not a number: no key, and s = -∞
    out.mul_(share[..., None])
    return whole


def from_definition(grad: Tensor | None, grad_lse: Tensor | None, out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """The gradient of sinks from those of O and of L to base 2; O and L are those with sinks.

    It is in the shape and type of the sinks, rounded once after the sum, and differentiable itself.
    """
    slope: float | Tensor = 0.0 if grad_lse is None else grad_lse * log2(e)
    if grad is not None:
        slope = slope - (grad.to(lse.dtype) * out).sum(-1)
    probability = torch.exp2(_exponents(sinks, lse) - lse).nan_to_num()
    return (probability * slope).sum(-1).sum_to_size(sinks.shape).to(sinks.dtype)


def _exponents(sinks: Tensor, lse: Tensor) -> Tensor:
    """Sinks as exponents of 2, (…, heads, 1), in the type of L."""
    return sinks.to(lse.dtype)[..., None] * log2(e)


def _on_gpu(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *mask: Any) -> tuple[Tensor, Tensor]:
    check_forward_mode()
    out, L = forward(query, key, value, sinks, Asked(*mask))
    return out, numbers_from(L, query, key.shape[1])


def _backward_on_gpu(
    grad: Tensor, grad_lse: Tensor | None, query: Tensor, key: Tensor, value: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    check_forward_mode()
    (out, lse, sinks, *rest), kv_heads = others, key.shape[1]
    grad_L = None if grad_lse is None else numbers_of(grad_lse * log2(e), kv_heads)
    return backward(grad, query, key, value, out, numbers_of(lse, kv_heads), sinks, Asked(*rest), grad_L)


def _by_definition(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *mask: Any) -> tuple[Tensor, Tensor]:
    return forward_by_definition(query, key, value, *mask, sinks=sinks)


def _backward_by_definition(
    grad: Tensor, grad_lse: Tensor | None, query: Tensor, key: Tensor, value: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    out, lse, sinks, *rest = others
    made = backward_by_definition(grad, grad_lse, query, key, value, out, lse, *rest)
    return *made, from_definition(grad, grad_lse, out, lse, sinks)


torch.library.impl(WITH_SINKS, "CUDA", _on_gpu)
torch.library.impl(WITH_SINKS, "CPU", _by_definition)
torch.library.impl(BACKWARD_WITH_SINKS, "CUDA", _backward_on_gpu)
torch.library.impl(BACKWARD_WITH_SINKS, "CPU", _backward_by_definition)


@torch.library.register_fake(WITH_SINKS)
def _fake(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, *mask: Any) -> tuple[Tensor, Tensor]:
    return fake(query, key, value, *mask)


@torch.library.register_fake(BACKWARD_WITH_SINKS)
def _fake_backward(
    grad: Tensor, grad_lse: Tensor | None, query: Tensor, key: Tensor, value: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    check_forward_mode()
    return *(empty_like(each, each.shape[-1]) for each in (query, key, value)), fresh(torch.empty_like(others[2]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, sinks, first, end, *rest = inputs
    ctx.save_for_backward(query, key, value, sinks, *output, first, end)
    ctx.rest = rest
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    query, key, value, sinks, out, lse, first, end = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    if grad is None and grad_lse is None:
        return (None,) * 13
    if not any(wanted[:3]):
        return *(None,) * 3, from_definition(grad, grad_lse, out, lse, sinks), *(None,) * 9
    given = torch.zeros_like(out) if grad is None else grad, grad_lse, query, key, value, out, lse
    if wanted[3]:
        made = torch.ops.pebblesim.attention_with_sinks_backward(*given, sinks, first, end, *ctx.rest)
    else:
        made = *torch.ops.pebblesim.attention_backward(*given, first, end, *ctx.rest), None
    return *(x if needed else None for x, needed in zip(made, wanted, strict=False)), *(None,) * 9


torch.library.register_autograd(WITH_SINKS, _gradients, setup_context=_keep)
torch.library.register_autograd(BACKWARD_WITH_SINKS, no_second)
mapped(WITH_SINKS, 4)
mapped(BACKWARD_WITH_SINKS, 8)
