"""Attention with a bias that is added to scores: pebblesim::attention_with_bias and its backward operator.

The bias is (outer, inner, heads, n_q, n_k), as `bias` has it, where each of these may be 1: batch b has that of group
⌊b / inner⌋ and place b mod inner. Its gradient has the same shape, summed over what shares an entry. `left_out`,
booleans (batch, n_k), are keys that no query of a batch attends to: they make no table of pairs for each batch.
"""

from __future__ import annotations

from math import e, log2
from typing import Any

import torch
from torch import Tensor

from pebblesim.operator import bias as kernels, definition, recorded
from pebblesim.operator.bias import Limits, summed, without_pairs
from pebblesim.operator.checks import check_forward_mode
from pebblesim.operator.fresh import fresh
from pebblesim.operator.launching import check_triton
from pebblesim.operator.layout import empty_like, in_order
from pebblesim.operator.masks import Asked
from pebblesim.operator.operators import fake, no_second

LIMITS = "SymInt inner, SymInt? left, SymInt? right, bool at_end, float scale"
WITH_BIAS, BACKWARD = "pebblesim::attention_with_bias", "pebblesim::attention_with_bias_backward"

torch.library.define(
    WITH_BIAS, f"(Tensor query, Tensor key, Tensor value, Tensor bias, Tensor? left_out, {LIMITS}) -> (Tensor, Tensor)"
)
torch.library.define(
    BACKWARD,
    "(Tensor grad, Tensor? grad_lse, Tensor query, Tensor key, Tensor value, Tensor bias, Tensor out, Tensor lse, "
    f"Tensor? left_out, bool of_bias, {LIMITS}) -> (Tensor, Tensor, Tensor, Tensor)",
)


def forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, asked: Limits) -> tuple[Tensor, Tensor]:
    """O, and L to base 2, by kernels."""
    check_forward_mode()
    out, lse = recorded.made(biased_without_notes, (query, key, value, bias), tuple(asked))
    return out, lse


def biased_without_notes(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, *limits: Any
) -> tuple[Tensor, Tensor]:
    """As `forward`, of the arguments of `Limits`: kernels are found, and launched."""
    out = empty_like(query, value.shape[-1])
    if without_pairs(query, key):
        lse = fresh(query.new_empty(query.shape[:-1], dtype=torch.float32))
        return out.zero_(), lse.fill_(-torch.inf)
    check_triton()
    with torch.cuda.device(query.device):
        return out, kernels.forward(query, key, value, bias, out, Limits(*limits))


def backward(tensors: tuple[Tensor | None, ...], of_bias: bool, asked: Limits) -> tuple[Tensor, ...]:
    """Gradients of query, key, value and, if it is wanted, bias by kernels.

    `tensors`: the gradients of O and of L to base 2, query, key, value, bias, O and L to base 2.
    """
    check_forward_mode()
    return recorded.made(gradients_of_biased_without_notes, tensors, (of_bias, *asked))


def gradients_of_biased_without_notes(
    grad: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    out: Tensor,
    lse: Tensor,
    of_bias: bool,
    *limits: Any,
) -> tuple[Tensor, ...]:
    """As `backward`, of the arguments of `Limits`: kernels are found, and launched."""
    made = empty_like(query, query.shape[-1]), empty_like(key, key.shape[-1]), empty_like(value, value.shape[-1])
    dB = _room_for_dB(bias, of_bias)
    if without_pairs(query, key):
        return *(each.zero_() for each in made), dB.zero_()
    grad_L = None if grad_lse is None else grad_lse * log2(e)
    with torch.cuda.device(query.device):
        asked, wanted = Limits(*limits), dB if of_bias else None
        kernels.backward(grad, grad_L, query, key, value, bias, out, lse, made, wanted, asked)
    return *made, dB


def _room_for_dB(bias: Tensor, of_bias: bool) -> Tensor:
    return fresh(bias.new_empty(bias.shape if of_bias else (0,) * 5))


def _by_definition(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, left_out: Tensor | None, *limits: Any
) -> tuple[Tensor, Tensor]:
    check_forward_mode()
    out, lse = definition.forward(query, key, value, *_pairs(query, key, bias, left_out, Limits(*limits)))
    return in_order(out, query), lse


def _gradients_by_definition(
    grad: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    out: Tensor,
    lse: Tensor,
    left_out: Tensor | None,
    of_bias: bool,
    *limits: Any,
) -> tuple[Tensor, ...]:
    check_forward_mode()
    asked = Limits(*limits)
    pairs = _pairs(query, key, bias, left_out, asked)
    *made, dS = definition.backward(grad, grad_lse, query, key, value, out, lse, *pairs)
    dB = _room_for_dB(bias, of_bias)
    if of_bias:
        dB = summed(dS.unflatten(0, (_groups(query, asked), asked.inner)), bias.shape).to(bias.dtype)
    return *(in_order(each, like) for each, like in zip(made, (query, key, value), strict=True)), dB


def _groups(query: Tensor, asked: Limits) -> int:
    return query.shape[0] // asked.inner if query.shape[0] else 0


def _pairs(
    query: Tensor, key: Tensor, bias: Tensor, left_out: Tensor | None, asked: Limits
) -> tuple[float, float, Tensor | None, Tensor]:
    """The scale, no cap, the allowed pairs, and the bias of all batches, as the definition takes them."""
    whole = bias.expand(_groups(query, asked), asked.inner, *bias.shape[2:]).flatten(0, 1)
    limits = Asked(None, None, asked.left, asked.right, asked.at_end, asked.scale, 0.0, None, False)
    seen = definition.allowed(query, key, limits)
    if left_out is not None:
        kept = ~left_out[:, None, None]
        seen = kept if seen is None else seen & kept
    return asked.scale, 0.0, seen, whole


def _on_gpu(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, left_out: Tensor | None, *limits: Any
) -> tuple[Tensor, Tensor]:
    if left_out is None:
        return forward(query, key, value, bias, Limits(*limits))
    check_forward_mode()
    out, lse = recorded.made(leaving_out_without_notes, (query, key, value, bias, left_out), limits)
    return out, lse


def leaving_out_without_notes(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, left_out: Tensor, *limits: Any
) -> tuple[Tensor, Tensor]:
    """As `biased_without_notes`, with keys that batches leave out."""
    wide = kernels.with_columns(query, key, left_out, Limits(*limits).scale, False)
    return biased_without_notes(*wide, value, bias, *limits)


def _gradients_on_gpu(*given: Any) -> tuple[Tensor, ...]:
    *tensors, left_out, of_bias = given[:10]
    if left_out is None:
        return backward(tuple(tensors), of_bias, Limits(*given[10:]))
    check_forward_mode()
    return recorded.made(gradients_of_leaving_out_without_notes, (*tensors, left_out), given[9:])


def gradients_of_leaving_out_without_notes(*given: Any) -> tuple[Tensor, ...]:
    """As `gradients_of_biased_without_notes`, with keys that batches leave out behind O and L."""
    *tensors, left_out = given[:9]
    query, key = tensors[2:4]
    tensors[2:4] = kernels.with_columns(query, key, left_out, Limits(*given[10:]).scale, True)
    dQ, dK, *others = gradients_of_biased_without_notes(*tensors, *given[9:])
    dQ, dK = (in_order(each[..., : like.shape[-1]], like) for each, like in ((dQ, query), (dK, key)))
    return dQ, dK, *others


torch.library.impl(WITH_BIAS, "CUDA", _on_gpu)
torch.library.impl(BACKWARD, "CUDA", _gradients_on_gpu)
torch.library.impl(WITH_BIAS, "CPU", _by_definition)
torch.library.impl(BACKWARD, "CPU", _gradients_by_definition)


@torch.library.register_fake(WITH_BIAS)
def _fake(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, left_out: Tensor | None, *limits: Any
) -> tuple[Tensor, Tensor]:
    return fake(query, key, value)


@torch.library.register_fake(BACKWARD)
def _fake_gradients(
    grad: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    out: Tensor,
    lse: Tensor,
    left_out: Tensor | None,
    of_bias: bool,
    *limits: Any,
) -> tuple[Tensor, ...]:
    check_forward_mode()
    made = (empty_like(each, each.shape[-1]) for each in (query, key, value))
    return *made, _room_for_dB(bias, of_bias)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.limits = *inputs[:5], inputs[5:]
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    if grad is None and grad_lse is None:
        return (None,) * 10
    *tensors, left_out, out, lse = ctx.saved_tensors
    grad = torch.zeros_like(out) if grad is None else grad
    rest = left_out, ctx.needs_input_grad[3], *ctx.limits
    made = torch.ops.pebblesim.attention_with_bias_backward(grad, grad_lse, *tensors, out, lse, *rest)
    wanted = (each if needed else None for each, needed in zip(made, ctx.needs_input_grad, strict=False))
    return *wanted, *(None,) * 6


torch.library.register_autograd(WITH_BIAS, _gradients, setup_context=_keep)
torch.library.register_autograd(BACKWARD, no_second)


def _in_batches(name: str) -> None:
    """Let `vmap` make one more dimension of batches part of the batch. A bias for all of them stays one."""
    operator = getattr(torch.ops.pebblesim, name.removeprefix("pebblesim::")).default
    names = [each.name for each in operator._schema.arguments]

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        count, bias_dim = info.batch_size, in_dims[names.index("bias")]
        given = {
            name: each
            if not isinstance(each, Tensor)
            else each.expand(count, *each.shape)
            if dim is None
            else each.movedim(dim, 0)
            for name, each, dim in zip(names, arguments, in_dims, strict=True)
        }
        batch, bias = given["query"].shape[1], given.pop("bias")
        for name, each in given.items():
            if isinstance(each, Tensor):
                given[name] = each.expand(count, batch, *each.shape[2:]).flatten(0, 1)
        one, of_bias = bias.shape[1] == 1, given.get("of_bias", False)
        if bias_dim is None and one and not of_bias:
            bias = bias[0]  # a gradient is wanted of all calls together, if at all
        elif one and bias.shape[2] == 1:
            bias, given["inner"] = bias.flatten(0, 1), batch
        else:
            bias = bias.expand(count, batch // given["inner"] if batch else 0, *bias.shape[2:]).flatten(0, 1)
        made = operator(*(bias if name == "bias" else given[name] for name in names))
        *found, last = (each.unflatten(0, (count, each.shape[0] // count)) for each in made)
        if of_bias and one:
            last = last.sum(1, keepdim=True)
        return (*found, last), (0,) * len(made)

    torch.library.register_vmap(name, rule)


_in_batches(WITH_BIAS)
_in_batches(BACKWARD)
