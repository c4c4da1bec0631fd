"""The operators of `torch.library`: pebblesim::attention and pebblesim::attention_backward.

Both take (batch, heads, n, d) with any strides. On a GPU they launch kernels from our schedules, on the CPU they follow
the definition. L is the logarithm to base 2 of each query's sum of exponentials. `sinks.operators` has the operator
with sinks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import e, log2
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.kernels.key_ranges import ARGUMENTS
from pebblesim.kernels.passes.sinks import SINKS
from pebblesim.operator import definition
from pebblesim.operator.checks import check_forward_mode
from pebblesim.operator.known import recorded
from pebblesim.operator.launching import layout
from pebblesim.operator.launching.fresh import fresh
from pebblesim.operator.launching.launching import OF_QUERIES, Setting, check_triton, compute
from pebblesim.operator.launching.layout import empty_like, in_order, numbers_from, numbers_of
from pebblesim.operator.masks import Asked, Ranged, arguments_of
from pebblesim.operator.sinks.gradient import gradient_of_sinks
from pebblesim.operator.sizes import met

MASK = (
    "Tensor? first, Tensor? end, SymInt? left, SymInt? right, bool at_end, float scale, float softcap, int? workspace, "
    "bool deterministic"
)
FORWARD, BACKWARD = "pebblesim::attention", "pebblesim::attention_backward"

torch.library.define(FORWARD, f"(Tensor query, Tensor key, Tensor value, {MASK}) -> (Tensor, Tensor)")
torch.library.define(
    BACKWARD,
    "(Tensor grad, Tensor? grad_lse, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
    f"{MASK}) -> (Tensor, Tensor, Tensor)",
)


class Met(NamedTuple):
    """The queries and keys that meet, which are all that kernels compute.

    Attributes:
        setting: the setting of the kernels, for these.
        queries, keys: which they are.
        sizes: numbers of queries and of keys in all.
    """

    setting: Setting
    queries: slice
    keys: slice
    sizes: tuple[int, int]

    def rows(self, x: Tensor, otherwise: float | None = None) -> Tensor:
        """The part of a matrix with a row for each query that kernels take; other rows become `otherwise`."""
        return _part(x, self.queries, otherwise)

    def columns(self, x: Tensor, otherwise: float | None = None) -> Tensor:
        """The part of a matrix with a row for each key."""
        return _part(x, self.keys, otherwise)

    def gathered(self, L: Tensor) -> Tensor:
        """The numbers of these queries, from (batch · kv_heads, n_q · shared)."""
        if self.queries == slice(0, self.sizes[0]):
            return L
        return L.unflatten(1, (self.sizes[0], -1))[:, self.queries].flatten(1).contiguous()

    def spread(self, L: Tensor, without: Callable[[int], Tensor]) -> Tensor:
        """L of all queries; `without`: gives that of so many queries without a key."""
        if self.queries == slice(0, self.sizes[0]):
            return L
        whole, shared = without(self.sizes[0]), L.shape[1] // (self.queries.stop - self.queries.start)
        whole.unflatten(1, (-1, shared))[:, self.queries] = L.unflatten(1, (-1, shared))
        return whole


def _part(x: Tensor, part: slice, otherwise: float | None) -> Tensor:
    if part == slice(0, x.shape[2]):
        return x
    if otherwise is not None:
        x.fill_(otherwise)
    return x[:, :, part]


def _pairs(query: Tensor, key: Tensor, asked: Asked) -> Met:
    """The queries and keys that meet; under ranges, which are known to the GPU alone, all of them."""
    sizes = query.shape[2], key.shape[2]
    queries, keys = met(*sizes, asked.left, asked.right, asked.at_end)
    pattern = asked.pattern(_part(query, queries, None), key)
    return Met(Setting(pattern, asked.scale, asked.workspace), queries, keys, sizes)


def _without_pairs(query: Tensor, key: Tensor) -> bool:
    """Whether there is no query, no key or no batch, so that no kernel is launched."""
    return 0 in (query.shape[0], query.shape[2], key.shape[2])


def _arguments(first: Tensor | Ranged | None, end: Tensor | None, n_k: int, forward: bool = False) -> dict[str, Tensor]:
    """As `arguments_of`; on a GPU by one kernel, unless they are there.

    `forward`: for kernels that read the keys of queries alone; the queries of keys may then be anything.
    """
    if isinstance(first, Ranged):
        return dict(zip(ARGUMENTS, first, strict=False))
    if first is None or end is None or not layout.on_gpu(first):
        return arguments_of(first, end, n_k)
    from pebblesim.operator.sequences import above_and_below

    first, end = first.contiguous(), end.contiguous()
    of_keys = (first, end) if forward else above_and_below(first, end, n_k)
    return dict(zip(ARGUMENTS, (first, end, *of_keys), strict=False))


def forward(
    query: Tensor, key: Tensor, value: Tensor, asked: Asked, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """O by kernels, and L as they have it, (batch · kv_heads, n_q · shared); sinks are (heads,) or (batch, heads)."""
    first, end, *rest = asked
    out, L = recorded.made(without_notes, (query, key, value, sinks, first, end), tuple(rest))
    return out, L


def without_notes(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    """As `forward`, of the arguments of `Asked`: kernels are found, and launched."""
    asked, out = Asked(*rest), empty_like(query, value.shape[-1])
    without = partial(_without_keys, query, key.shape[1], sinks)
    if _without_pairs(query, key):
        return out.zero_(), without(query.shape[2])
    check_triton()
    pairs = _pairs(query, key, asked)
    ranges = _arguments(asked.first, asked.end, key.shape[2], forward=True)
    tensors = {"Q": pairs.rows(query), "K": pairs.columns(key), "V": pairs.columns(value), **ranges}
    if sinks is not None:
        tensors[SINKS] = (sinks if sinks.stride(-1) == 1 else sinks.contiguous()).expand(query.shape[0], -1)
    setting = pairs.setting._replace(sinks=sinks is not None)
    L = compute("forward", tensors, {"O": pairs.rows(out, 0.0)}, setting)
    return out, pairs.spread(L, without)


def _without_keys(query: Tensor, kv_heads: int, sinks: Tensor | None, n: int) -> Tensor:
    """L to base 2 of so many queries without a key, as kernels have it: that of the sink alone."""
    batch, heads = query.shape[:2]
    L = query.new_full((batch, kv_heads, n, heads // kv_heads), -torch.inf, dtype=torch.float32)
    if sinks is not None:
        exponents = sinks.to(torch.float32) * log2(e)
        L.copy_(exponents.unflatten(-1, (kv_heads, 1, -1)))
    return L.flatten(0, 1).flatten(1)


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    L: Tensor,
    asked: Asked,
    grad_L: Tensor | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of query, key and value by kernels, from those of O and of L, both L as kernels have it.

    With sinks, (heads,) or (batch, heads), theirs is the last one.
    """
    first, end, *rest = asked
    given = grad, grad_L, query, key, value, out, L, sinks, first, end
    return recorded.made(gradients_without_notes, given, tuple(rest))


def gradients_without_notes(
    grad: Tensor,
    grad_L: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    L: Tensor,
    sinks: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    """As `backward`, of the arguments of `Asked`: kernels are found, and launched."""
    asked = Asked(*rest)
    made = dQ, dK, dV = tuple(empty_like(each, each.shape[-1]) for each in (query, key, value))
    if _without_pairs(query, key):
        found = dQ.zero_(), dK.zero_(), dV.zero_()
        none = slice(0, 0)
        return found if sinks is None else (*found, gradient_of_sinks(L[:, :0], L, grad_L, sinks, key.shape[1], none))
    pairs = _pairs(query, key, asked)
    matrices = zip(("Q", "dO", "O", "K", "V"), (query, grad, out, key, value), strict=True)
    tensors = {name: pairs.rows(each) if name in OF_QUERIES else pairs.columns(each) for name, each in matrices}
    tensors |= {"L": pairs.gathered(L), **_arguments(asked.first, asked.end, key.shape[2])}
    if grad_L is not None:
        tensors["dL"] = pairs.gathered(grad_L)
    results = {"dQ": pairs.rows(dQ, 0.0), "dK": pairs.columns(dK, 0.0), "dV": pairs.columns(dV, 0.0)}
    if sinks is None:
        compute("backward", tensors, results, pairs.setting)
        return made
    alone = grad_L is None and sinks.stride(-1) == 1
    sums_of = (sinks, fresh(sinks.new_empty(sinks.shape))) if alone else None
    v = compute("backward", tensors, results, pairs.setting._replace(sinks=True, sums_of=sums_of))
    if v is None and sums_of is not None:
        return *made, sums_of[1]
    return *made, gradient_of_sinks(v, L, grad_L, sinks, key.shape[1], pairs.queries)


def forward_on_gpu(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """O and L by kernels; the same arguments as the operator, those of `Asked` behind the matrices."""
    check_forward_mode()
    out, L = forward(query, key, value, Asked(*rest))
    return out, numbers_from(L, query, key.shape[1])


def backward_on_gpu(
    grad: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value by kernels; `grad_lse` is that of the natural logarithm."""
    check_forward_mode()
    grad_L = None if grad_lse is None else numbers_of(grad_lse * log2(e), key.shape[1])
    dQ, dK, dV = backward(grad, query, key, value, out, numbers_of(lse, key.shape[1]), Asked(*rest), grad_L)
    return dQ, dK, dV


def forward_by_definition(
    query: Tensor, key: Tensor, value: Tensor, *rest: Any, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """O and L on the CPU; arguments as for `forward_on_gpu`, and sinks."""
    check_forward_mode()
    out, lse = definition.forward(query, key, value, *_factors_and_pairs(query, key, Asked(*rest)), sinks=sinks)
    return in_order(out, query), lse


def backward_by_definition(
    grad: Tensor, grad_lse: Tensor | None, query: Tensor, key: Tensor, value: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients on the CPU; arguments as for `backward_on_gpu`."""
    check_forward_mode()
    out, lse, *rest = others
    pairs = _factors_and_pairs(query, key, Asked(*rest))
    made = definition.backward(grad, grad_lse, query, key, value, out, lse, *pairs)
    return in_order(made[0], query), in_order(made[1], key), in_order(made[2], value)


def _factors_and_pairs(query: Tensor, key: Tensor, asked: Asked) -> tuple[float, float, Tensor | None]:
    """The scale, the cap, and the allowed pairs, as the definition takes them."""
    return asked.scale, asked.softcap, definition.allowed(query, key, asked)


torch.library.impl(FORWARD, "CUDA", forward_on_gpu)
torch.library.impl(BACKWARD, "CUDA", backward_on_gpu)
torch.library.impl(FORWARD, "CPU", forward_by_definition)
torch.library.impl(BACKWARD, "CPU", backward_by_definition)


@torch.library.register_fake(FORWARD)
def fake(query: Tensor, key: Tensor, value: Tensor, *mask: Any) -> tuple[Tensor, Tensor]:
    """O and L without numbers, as tracing has them."""
    check_forward_mode()
    kind = torch.float64 if query.dtype == torch.float64 else torch.float32
    return empty_like(query, value.shape[-1]), query.new_empty(query.shape[:-1], dtype=kind)


@torch.library.register_fake(BACKWARD)
def _fake_backward(
    grad: Tensor, grad_lse: Tensor | None, query: Tensor, key: Tensor, value: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    check_forward_mode()
    return tuple(empty_like(each, each.shape[-1]) for each in (query, key, value))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, first, end, *rest = inputs
    ctx.save_for_backward(query, key, value, *output, first, end)
    ctx.rest = rest
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    query, key, value, out, lse, first, end = ctx.saved_tensors
    if grad is None and grad_lse is None:
        return (None,) * 12
    grad = torch.zeros_like(out) if grad is None else grad
    made = torch.ops.pebblesim.attention_backward(grad, grad_lse, query, key, value, out, lse, first, end, *ctx.rest)
    wanted = (each if needed else None for each, needed in zip(made, ctx.needs_input_grad, strict=False))
    return (*wanted, *(None,) * 9)


def no_second(ctx: Any, *grads: Any) -> Any:
    """Refuse a second derivative.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        "attention has first derivatives only; for derivatives of gradients (create_graph=True) use "
        "torch.nn.functional.scaled_dot_product_attention with its math kernel."
    )


torch.library.register_autograd(FORWARD, _gradients, setup_context=_keep)
torch.library.register_autograd(BACKWARD, no_second)


def mapped(name: str, tensors: int) -> None:
    """Let `vmap` make one more dimension of batches part of the batch.

    `tensors`: the number of arguments with a batch, before the ranges of the mask, which have one, too.
    """

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        count, flat = info.batch_size, []
        for at, (each, dim) in enumerate(zip(arguments, in_dims, strict=True)):
            if isinstance(each, Tensor) and at < tensors + 2:
                each = each.unsqueeze(0).expand(count, *each.shape) if dim is None else each.movedim(dim, 0)
                each = each.flatten(0, 1)
            flat.append(each)
        namespace, function = name.split("::")
        made = getattr(getattr(torch.ops, namespace), function)(*flat)
        return tuple(each.unflatten(0, (count, -1)) for each in made), (0,) * len(made)

    by_vmap(name, rule)


def by_vmap(name: str, rule: Callable[..., Any]) -> None:
    """Register a rule of `vmap` for an operator; over no call, it is that of one, of which nothing is taken."""

    def of_any(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        if info.batch_size:
            return rule(info, in_dims, *arguments)
        one = [
            each
            if dim is None
            else torch.cat([each, each.new_zeros([*each.shape[:dim], 1, *each.shape[dim + 1 :]])], dim)
            for each, dim in zip(arguments, in_dims, strict=True)
        ]
        made, dims = rule(info._replace(batch_size=1), in_dims, *one)
        return tuple(each[:0] for each in made), dims

    torch.library.register_vmap(name, of_any)


mapped(FORWARD, 3)
mapped(BACKWARD, 7)
