"""Calls outside of any tracing: checked once for their sizes, then made without PyTorch's dispatcher.

`torch.compile`, `vmap` and other transformations need the operators of `torch.library`, which cost the host more than
all else. A plain call of tensors of the current GPU goes to what these operators do, its gradients by one function.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from math import e, log2
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pebblesim.operator import compiling, layout, masks, operators, recorded
from pebblesim.operator.layout import in_one_batch, numbers_from, numbers_of
from pebblesim.operator.masks import Asked
from pebblesim.operator.operators_of_sinks import backward, forward, from_definition
from pebblesim.operator.pattern import Within
from pebblesim.operator.recent import Recent
from pebblesim.operator.recorded import Again
from pebblesim.operator.texts import BEGIN_WITH_SINKS

MOST = 4096
"""Calls whose arguments are kept."""


class Known:
    """Arguments and passes of plain calls of some sizes, types and options, which were checked.

    Attributes:
        asked: the arguments of the operators, without ranges.
        forward: the forward pass, made again, of three matrices alone; None if it is not kept yet.
        backward: backward passes for it, made again, by strides and type of the gradient of O.
    """

    __slots__ = ("asked", "backward", "forward")

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.forward: Again | None = None
        self.backward: dict[Hashable, Again] = {}


_CHECKED: Recent[Hashable, Known] = Recent(MOST)


def call_of(
    query: Any, key: Any, value: Any, beside: tuple[Any, ...], options: tuple[Hashable, ...]
) -> tuple[Hashable, ...] | None:
    """The sizes, types and options of a plain call, which its checks depend on; None if it is another one.

    `beside`: any number of tensors of masks, sinks or a bias, pairs of these, or None.
    """
    if not plain(query, key, value) or torch.is_autocast_enabled("cuda"):
        return None
    shapes = query.shape, key.shape, value.shape, query.stride(), key.stride(), value.stride()
    kinds = None
    for each in beside:  # == of a tensor and None would take longer than all else
        if each is not None:
            kinds = tuple(map(_kind, beside))
            if False in kinds:
                return None
            break
    return (*shapes, query.dtype, key.dtype, value.dtype, query.get_device(), kinds, *options)


_COMPILED: Recent[Hashable, bool] = Recent(MOST)

EVEN = 256
"""Tokens that a length is a multiple of if all tiles divide it."""


def _kind(x: Any) -> Hashable:
    """The sizes and the type of a plain tensor, or of several; False of anything else."""
    if x is None:
        return None
    if isinstance(x, tuple | list):
        return type(x), *((False if each is None else _kind(each)) for each in x)
    return (x.shape, x.dtype) if plain(x) else False


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


def checked(call: tuple[Hashable, ...] | None) -> Known | None:
    """Arguments and passes of plain calls with these sizes and options, if one was checked and made; else None."""
    try:
        return None if call is None else _CHECKED.get(call)
    except TypeError:  # attention takes no option without a hash
        return None


def keep(call: tuple[Hashable, ...], asked: Asked) -> None:
    """Keep the arguments of the operators for plain calls like this one, which was checked and made."""
    _CHECKED[call] = Known(asked)


def ranged(query: Tensor, key: Tensor, asked: Asked, masks_of: dict[str, Any]) -> Asked:
    """As `masks.ranged`, for masks that are right but for their numbers: packed sequences alone by one kernel."""
    if all(each is None for each in masks_of.values()):
        return asked
    starts, (n_q, n_k) = masks_of["cu_seqlens"], (query.shape[-2], key.shape[-2])
    pair = starts if isinstance(starts, tuple | list) else (starts, starts)
    alone = starts is not None and masks_of["key_padding_mask"] is masks_of["key_ranges"] is None
    if not (
        alone and n_q and all(layout.on_gpu(each) and each.dtype in WHOLE and each.is_contiguous() for each in pair)
    ):
        return masks.ranged(query, key, asked, masks_of)
    of_q, of_k = pair
    found = recorded.made(_packed, (of_q, None if of_k is of_q else of_k), (n_q, n_k, asked[2:5]))
    first, end = (each.expand(query.shape[:-3].numel(), n_q) for each in found)
    return asked._replace(first=first, end=end, left=None, right=None, at_end=False)


def _packed(of_q: Tensor, of_k: Tensor | None, n_q: int, n_k: int, within: Within) -> masks.Ranges:
    from pebblesim.operator.sequences import ranges_of_sequences

    return ranges_of_sequences(of_q, of_q if of_k is None else of_k, n_q, n_k, within)


WHOLE = (torch.int32, torch.int64)
"""Types of positions that the kernel of packed sequences takes."""


def compile_for(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, asked: Asked) -> None:
    """Compile the kernels of a plain call side by side, those of its backward pass, too, if gradients are wanted.

    They are for all lengths of its kind, and for those that kernels are chosen for alike; once for each kind.
    """
    learning = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    alike = [((n - 1).bit_length(), n % EVEN == 0) for n in (query.shape[-2], key.shape[-2])]
    widths, pattern = (query.shape[-1], value.shape[-1]), asked.pattern(query, key)
    kind = query.dtype, *widths, pattern, asked.scale, asked.workspace, query.get_device(), learning
    taught = sinks is not None and sinks.requires_grad
    known = *kind, None if sinks is None else (sinks.dtype, taught), *alike
    if known in _COMPILED or torch.cuda.is_current_stream_capturing() or not compiling.can():
        return
    _COMPILED[known] = True
    Q, K, V = (in_one_batch(each.detach()) for each in (query, key, value))
    with suppress(torch.OutOfMemoryError), torch.no_grad(), compiling.together():
        out, L = operators.without_notes(Q, K, V, sinks if BEGIN_WITH_SINKS else None, *asked)
        if learning:
            operators.gradients_without_notes(
                out, None, Q, K, V, out, L, sinks if BEGIN_WITH_SINKS and taught else None, *asked
            )


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor | None,
    asked: Asked,
    return_lse: bool,
    known: Known | None = None,
) -> tuple[Tensor, Tensor | None]:
    """O of a plain call, (…, heads, n_q, d_v), and L to base 2 if it is wanted, with gradients if they are wanted."""
    Q, K, V = in_one_batch(query), in_one_batch(key), in_one_batch(value)
    lse, known = None, known if sinks is asked.first is None else None
    learning = Q.requires_grad or K.requires_grad or V.requires_grad or (sinks is not None and sinks.requires_grad)
    if learning and torch.is_grad_enabled():
        out, lse = _Passes.apply(Q, K, V, sinks, return_lse, asked, known)
    else:
        out, L = _forward(Q, K, V, sinks, asked, known)
        lse = numbers_from(L, Q, K.shape[1]) if return_lse else None
    return out if Q is query else out.reshape(*query.shape[:-1], value.shape[-1]), lse


def _forward(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, asked: Asked, known: Known | None
) -> tuple[Tensor, Tensor]:
    """O and L by kernels: those that are known, if some are."""
    if known is None:
        return forward(query, key, value, sinks, asked)
    given = query, key, value, None, None, None
    if known.forward is not None and (found := known.forward.if_room(given)) is not None:
        out, L = found
        return out, L
    out, L = forward(query, key, value, None, asked)
    known.forward = recorded.kept(operators.without_notes, given, asked[2:])
    return out, L


def _backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, L: Tensor, known: Known
) -> Sequence[Tensor]:
    """Gradients by kernels that are known for this gradient of O, if some are."""
    given, kind = (grad, None, query, key, value, out, L, None, None, None), (grad.stride(), grad.dtype)
    again = known.backward.get(kind)
    if again is not None and (found := again.if_room(given)) is not None:
        return found
    made = operators.backward(grad, query, key, value, out, L, known.asked)
    again = recorded.kept(operators.gradients_without_notes, given, known.asked[2:])
    if again is not None and len(known.backward) < MOST_GRADIENTS:
        known.backward[kind] = again
    return made


MOST_GRADIENTS = 16
"""Kinds of gradients that are kept for the calls of some sizes."""


class _Passes(torch.autograd.Function):
    """The forward and the backward pass as one autograd function; L stays as kernels have it."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        return_lse: bool,
        asked: Asked,
        known: Known | None,
    ) -> tuple[Tensor, Tensor | None]:
        out, L = _forward(query, key, value, sinks, asked, known)
        ctx.known, ctx.asked = known, asked[2:]
        if known is None:
            ctx.save_for_backward(query, key, value, out, L, sinks, asked.first, asked.end)
        else:
            ctx.save_for_backward(query, key, value, out, L)
        ctx.set_materialize_grads(False)
        return out, numbers_from(L, query, key.shape[1]) if return_lse else None

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        query, key, value, out, L, *others = ctx.saved_tensors
        needed, known = ctx.needs_input_grad, ctx.known
        if grad is None and grad_lse is None:
            return (None,) * 7
        dO = torch.zeros_like(out) if grad is None else grad
        learning = not torch.is_grad_enabled() and plain(dO)
        if known is not None and grad_lse is None and learning:
            dQ, dK, dV = _backward(dO, query, key, value, out, L, known)
            return (
                dQ if needed[0] else None,
                dK if needed[1] else None,
                dV if needed[2] else None,
                None,
                None,
                None,
                None,
            )
        sinks, *ranges = others or (None,) * 3
        asked, kv_heads, of_sinks = Asked(*ranges, *ctx.asked), key.shape[1], None
        made: Sequence[Tensor | None] = (None,) * 3
        if any(needed[:3]) and learning and (grad_lse is None or plain(grad_lse)):
            grad_L = None if grad_lse is None else numbers_of(grad_lse * log2(e), kv_heads)
            x = dO, query, key, value, out, L
            if needed[3]:
                *made, of_sinks = backward(*x, sinks, asked, grad_L)
            else:
                made = operators.backward(*x, asked, grad_L)
        elif any(needed[:3]):
            given = dO, grad_lse, query, key, value, out, numbers_from(L, query, kv_heads), *asked
            made = torch.ops.pebblesim.attention_backward(*given)
        if needed[3] and of_sinks is None:
            of_sinks = from_definition(grad, grad_lse, out, numbers_from(L, query, kv_heads), sinks)
        wanted = (each if needs else None for each, needs in zip(made, needed, strict=False))
        return *wanted, of_sinks, None, None, None
