"""Attention with a bias that is added to scores: pebblesim::attention_with_bias and its backward operator.

The bias is (outer, inner, heads, n_q, n_k), as `bias` has it, where each of these may be 1: batch b has that of group
⌊b / inner⌋ and place b mod inner. Its gradient has the same shape, summed over what shares an entry. `ranges`, int32
(batch, 2, n_q), are the first key that each query attends to, and the end of its keys; then there are no limits. Query
heads may share keys: these have a number of heads that divides theirs.
"""

from __future__ import annotations

from math import e, log2
from typing import Any

import torch
from torch import Tensor

from pebblesim.operator import definition
from pebblesim.operator.bias import bias as kernels
from pebblesim.operator.bias.bias import without_pairs
from pebblesim.operator.bias.gradient import summed
from pebblesim.operator.bias.pairs import Limits
from pebblesim.operator.checks import check_forward_mode
from pebblesim.operator.known import recorded
from pebblesim.operator.launching.fresh import fresh
from pebblesim.operator.launching.launching import check_triton
from pebblesim.operator.launching.layout import empty_like, in_order
from pebblesim.operator.masks import Asked
from pebblesim.operator.operators import by_vmap, fake, no_second

LIMITS = "SymInt inner, SymInt? left, SymInt? right, bool at_end, float scale"
WITH_BIAS, BACKWARD = "pebblesim::attention_with_bias", "pebblesim::attention_with_bias_backward"

torch.library.define(
    WITH_BIAS, f"(Tensor query, Tensor key, Tensor value, Tensor bias, Tensor? ranges, {LIMITS}) -> (Tensor, Tensor)"
)
torch.library.define(
    BACKWARD,
    "(Tensor grad, Tensor? grad_lse, Tensor query, Tensor key, Tensor value, Tensor bias, Tensor out, Tensor lse, "
    f"Tensor? ranges, bool of_bias, {LIMITS}) -> (Tensor, Tensor, Tensor, Tensor)",
)


def forward_without_notes(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, ranges: Tensor | None, *limits: Any
) -> tuple[Tensor, Tensor]:
    """O, and L to base 2, by kernels, which are found, and launched."""
    out = empty_like(query, value.shape[-1])
    if without_pairs(query, key):
        lse = fresh(query.new_empty(query.shape[:-1], dtype=torch.float32))
        return out.zero_(), lse.fill_(-torch.inf)
    check_triton()
    with torch.cuda.device(query.device):
        return out, kernels.forward(query, key, value, bias, ranges, out, Limits(*limits))


def biased_without_notes(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, *limits: Any
) -> tuple[Tensor, Tensor]:
    """As `forward_without_notes`, of plain calls, which have no ranges."""
    return forward_without_notes(query, key, value, bias, None, *limits)


def backward_without_notes(
    grad: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    out: Tensor,
    lse: Tensor,
    ranges: Tensor | None,
    of_bias: bool,
    *limits: Any,
) -> tuple[Tensor | None, ...]:
    """Gradients of query, key, value and bias, or None for one that is not wanted: kernels are found, and launched."""
    made = empty_like(query, query.shape[-1]), empty_like(key, key.shape[-1]), empty_like(value, value.shape[-1])
    dB = _room_for_dB(bias, True) if of_bias else None
    if without_pairs(query, key):
        return *(each.zero_() for each in made), None if dB is None else dB.zero_()
    grad_L = None if grad_lse is None else grad_lse * log2(e)
    with torch.cuda.device(query.device):
        kernels.backward(grad, grad_L, query, key, value, bias, out, lse, ranges, made, dB, Limits(*limits))
    return *made, dB


def gradients_of_biased_without_notes(*given: Any) -> tuple[Tensor | None, ...]:
    """As `backward_without_notes`, of plain calls, which have no ranges."""
    return backward_without_notes(*given[:8], None, *given[8:])


def _room_for_dB(bias: Tensor, of_bias: bool) -> Tensor:
    return fresh(bias.new_empty(bias.shape if of_bias else (0,) * 5))


def _by_definition(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, ranges: Tensor | None, *limits: Any
) -> tuple[Tensor, Tensor]:
    check_forward_mode()
    out, lse = definition.forward(query, key, value, *_pairs(query, key, bias, ranges, Limits(*limits)))
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
    ranges: Tensor | None,
    of_bias: bool,
    *limits: Any,
) -> tuple[Tensor, ...]:
    check_forward_mode()
    asked = Limits(*limits)
    pairs = _pairs(query, key, bias, ranges, asked)
    *made, dS = definition.backward(grad, grad_lse, query, key, value, out, lse, *pairs)
    dB = _room_for_dB(bias, of_bias)
    if of_bias:
        groups = _groups(query.shape[0], bias.shape[0], asked.inner)
        dB = summed(dS.unflatten(0, (groups, asked.inner)), bias.shape).to(bias.dtype)
    return *(in_order(each, like) for each, like in zip(made, (query, key, value), strict=True)), dB


def _groups(batch: int, outer: int, inner: int) -> int:
    """The groups of a batch; those of the bias where each is without batches."""
    return batch // inner if inner else outer


def _pairs(
    query: Tensor, key: Tensor, bias: Tensor, ranges: Tensor | None, asked: Limits
) -> tuple[float, float, Tensor | None, Tensor]:
    """The scale, no cap, the allowed pairs, and the bias of all batches, as the definition takes them."""
    groups = _groups(query.shape[0], bias.shape[0], asked.inner)
    whole = bias.expand(groups, asked.inner, *bias.shape[2:]).flatten(0, 1)
    first, end = (None, None) if ranges is None else ranges.unbind(1)
    limits = Asked(first, end, asked.left, asked.right, asked.at_end, asked.scale, 0.0, None, False)
    return asked.scale, 0.0, definition.allowed(query, key, limits), whole


def forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, ranges: Tensor | None, *limits: Any
) -> tuple[Tensor, Tensor]:
    """O, and L to base 2, by kernels: those of the last call of these sizes."""
    check_forward_mode()
    x = query, key, value, bias
    if ranges is None:
        out, lse = recorded.made(biased_without_notes, x, limits)
    else:
        out, lse = recorded.made(forward_without_notes, (*x, ranges), limits)
    return out, lse


def backward(*given: Any) -> tuple[Tensor, ...]:
    """Gradients of query, key, value and, if it is wanted, bias by kernels: those of the last call of these sizes."""
    check_forward_mode()
    *tensors, ranges = given[:9]
    if ranges is None:
        *made, dB = recorded.made(gradients_of_biased_without_notes, tuple(tensors), given[9:])
    else:
        *made, dB = recorded.made(backward_without_notes, given[:9], given[9:])
    return *made, _room_for_dB(given[5], False) if dB is None else dB


torch.library.impl(WITH_BIAS, "CUDA", forward)
torch.library.impl(BACKWARD, "CUDA", backward)
torch.library.impl(WITH_BIAS, "CPU", _by_definition)
torch.library.impl(BACKWARD, "CPU", _gradients_by_definition)


@torch.library.register_fake(WITH_BIAS)
def _fake(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, ranges: Tensor | None, *limits: Any
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
    ranges: Tensor | None,
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
    *tensors, ranges, out, lse = ctx.saved_tensors
    grad = torch.zeros_like(out) if grad is None else grad
    rest = ranges, ctx.needs_input_grad[3], *ctx.limits
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
            bias = bias.expand(count, _groups(batch, bias.shape[1], given["inner"]), *bias.shape[2:]).flatten(0, 1)
        made = operator(*(bias if name == "bias" else given[name] for name in names))
        *found, last = (each.unflatten(0, (count, each.shape[0] // count)) for each in made)
        if of_bias and one:
            last = last.sum(1, keepdim=True)
        return (*found, last), (0,) * len(made)

    by_vmap(name, rule)


_in_batches(WITH_BIAS)
_in_batches(BACKWARD)
