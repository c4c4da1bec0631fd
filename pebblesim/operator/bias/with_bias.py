"""`attention` with a bias, or a dense mask: its checks, and the call of its operator.

Kernels add numbers to scores, of which -∞ leaves a key out. So a dense mask of booleans is a bias of 0 and -∞, or put
into the bias, whose shape is then what both broadcast to. Padding, packed sequences and key ranges are ranges of keys,
which kernels read. Sinks are added to O and L behind the kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import log
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.operator import checks, masks
from pebblesim.operator.bias import operators as operators_of_bias
from pebblesim.operator.bias.bias import in_groups
from pebblesim.operator.bias.pairs import Limits
from pebblesim.operator.bias.programs import WIDEST
from pebblesim.operator.known import eager
from pebblesim.operator.known.known import FORWARD, Family, Forward, Known, Step, Way, by_passes, learns, made
from pebblesim.operator.launching import compiling
from pebblesim.operator.launching.layout import in_one_batch
from pebblesim.operator.masks import promise
from pebblesim.operator.pattern import limits

MOST = 10**7
"""The largest number of a bias. With another one scores may reach `HIGHEST`, from which on a query has no keys."""


class Added(NamedTuple):
    """Numbers that are added to scores, all that leaves keys out or takes part in softmaxes, and what may be refused.

    Attributes:
        bias, attn_mask, sinks, dropout_p, softcap, fallback, key_padding: as for `attention`.
        masks_of: masks in tensors, by name.
    """

    bias: Any
    attn_mask: Any
    sinks: Any
    masks_of: Mapping[str, Any]
    dropout_p: float
    softcap: float | None
    fallback: str | None
    key_padding: Any

    @property
    def name(self) -> str:
        """The option that asks for kernels with a bias."""
        return "attn_mask" if self.bias is None else "bias"


def why_not_with_bias(matrices: tuple[Any, ...], given: Mapping[str, Any], enable_gqa: bool) -> str | None:
    """A sentence where PyTorch's attention is to compute a call in the place of these kernels, by `fallback`.

    `given`: the arguments that `Added` has, by name.

    Raises:
        UsageError: a tensor is not right.
    """
    if given["fallback"] is None or given["bias"] is not None:
        return None
    query, key, value = matrices
    checks.check_tensors(query, key, value, enable_gqa)
    reason = checks.unsupported(query, value, given["dropout_p"], given["softcap"])  # as float32 on a GPU
    return reason or unsupported(query, value, Added(**given))


def unsupported(query: Any, value: Any, added: Added) -> str | None:
    """A sentence where these kernels do not compute a call, whose tensors are right; else None."""
    fallback = added.bias is not None and added.fallback
    for name, given in (("dropout_p", added.dropout_p), ("softcap", added.softcap), ("fallback", fallback)):
        if given:
            advice = "give 0" if name == "dropout_p" else "leave it out"
            return f"{name} was given with {added.name}, and these kernels do not have both; {advice}."
    if (widest := max(query.shape[-1], value.shape[-1])) > WIDEST:
        advice = "leave bias out" if added.name == "bias" else 'PyTorch computes it with fallback="sdpa"'
        return f"a head dimension is {widest}, and with {added.name} it may be up to {WIDEST}; {advice}."
    if query.is_cuda and query.dtype == torch.float64:
        return f"query is of torch.float64; with {added.name} give bfloat16, float16 or float32 on a GPU."
    few = query[..., :0, :]  # of a type that `checks.unsupported` knows
    return checks.unsupported(few.bfloat16() if few.dtype == torch.float32 else few, value, 0.0, None)


def attention_with_bias(
    matrices: tuple[Tensor, ...],
    given: Mapping[str, Any],
    enable_gqa: bool,
    scale: float | None,
    within: tuple[Any, bool, str],
    return_lse: bool,
    kind: torch.dtype | None,
    call: tuple[Any, ...] | None,
) -> Any:
    """softmax(scale · Q Kᵀ + bias) V, and L with `return_lse`, for arguments of `attention`.

    Args:
        matrices: queries, keys and values, in the type that they are computed in.
        given: the arguments that `Added` has, by name.
        enable_gqa, scale, return_lse: as for `attention`.
        kind: type of O; None for that of the matrices.
        within: `window`, `is_causal` and `align`.
        call: what a plain call with a bias alone is known by from now on; else None.

    Raises:
        UsageError: an argument is not allowed, or kernels with a bias do not support it.
    """
    (query, key, value), added, known = matrices, Added(**given), None
    checks.check_tensors(query, key, value, enable_gqa)
    check(query, key, added)
    if reason := unsupported(query, value, added):
        raise UsageError(reason)
    bias, ranges, of_L = added.bias, None, return_lse or added.sinks is not None
    if call is None:
        bias, ranges, within = _all_in_one(query, key, added, within)
        call = None if ranges is not None else eager.call_of(query, key, value, (bias,), ("", scale, within, of_L))
        known = eager.checked(call)
    options = _asked(query, key, bias, scale, within) if known is None else known.family.options
    out, lse = with_bias(matrices, bias, options, of_L, known, call, ranges)
    if added.sinks is not None:
        assert lse is not None
        sinks = added.sinks.to(lse.dtype)[:, None]
        alone = (lse == -torch.inf) & (sinks == -torch.inf)  # neither a key nor a sink: gradients are 0, and not NaN
        share = torch.sigmoid(torch.where(lse > -torch.inf, lse - sinks, -torch.inf))[..., None]
        out = (out * share).to(out.dtype)
        lse = torch.logaddexp(lse.masked_fill(alone, 0.0), sinks).masked_fill(alone, -torch.inf)
    out = out.to(kind or out.dtype)
    return (out, lse) if return_lse else out


def _all_in_one(
    query: Tensor, key: Tensor, added: Added, within: tuple[Any, bool, str]
) -> tuple[Tensor, Tensor | None, Any]:
    """One bias for all that is added to scores, ranges of the keys that each query attends to, and limits."""
    bias, mask, ranges = added.bias, added.attn_mask, None
    wide = torch.promote_types(query.dtype, torch.float32)
    if mask is not None and mask.dtype != torch.bool:  # their sum is not rounded before it meets the scores
        bias, mask = (mask if bias is None else bias.to(wide) + mask.to(wide)), None
    if any(each is not None for each in added.masks_of.values()):
        of = *limits(*within, query.shape[-2], key.shape[-2]), 1.0, 0.0, None, False
        asked = masks.ranged(query, key, masks.Asked(None, None, *of), added.masks_of)
        assert asked.first is not None and asked.end is not None
        ranges, within = torch.stack((asked.first, asked.end), 1), (None, False, "start")
    if mask is not None:
        zero = query.new_zeros(()) if bias is None else bias
        if zero.requires_grad and torch.broadcast_shapes(zero.shape, mask.shape) != zero.shape:
            zero = zero.to(wide)  # so that its gradient is rounded once, behind the sum over what shares an entry
        bias = torch.where(mask, zero, -torch.inf)
    if bias is None:
        bias = query.new_zeros((1,) * query.dim())
    return bias, ranges, within


def with_bias(
    matrices: tuple[Tensor, ...],
    bias: Tensor,
    options: tuple[torch.Size, Limits],
    of_L: bool,
    known: Known | None,
    call: tuple[Any, ...] | None = None,
    ranges: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """O, and L if it is wanted, `of_L`, of arguments that are right.

    `options`: the shape of the bias, and the limits, as the operators take them. `known`: passes of such calls. `call`:
    what these are known by from now on. `ranges`: of the keys that each query attends to, as the operators take them.
    """
    (query, _, value), given, (groups, asked) = matrices, (*matrices, bias), options
    if known is not None and not of_L and (found := known.at_once(given, learns(given))) is not None:
        return found, None
    x = *map(in_one_batch, matrices), bias.reshape(groups)
    if known is None and call is None:
        out, lse = torch.ops.pebblesim.attention_with_bias(*x, ranges, *asked)
    else:
        if known is None:
            assert call is not None
            _compile(x, asked)
            eager.keep(call, Known(Family(options)))

        def forward() -> Forward:
            out, L = made(known, FORWARD, operators_of_bias.biased_without_notes, x, tuple(asked))
            return Forward((out, L if of_L else None), (*x, out, L), tuple(asked), given, None if of_L else ALL)

        out, lse = by_passes(x, learns(given), forward, _backward, _gradients, known)
    if query.dim() != 4:
        out = out.reshape(*query.shape[:-1], value.shape[-1])
    if not of_L:
        return out, None
    assert lse is not None
    return out, lse.masked_fill(lse == torch.inf, -torch.inf).reshape(query.shape[:-1]) * log(2)


ALL = (0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 5)
"""`Places` of all that is saved, and taken by the backward pass: Q, K, V, the bias, O and L."""


def _asked(
    query: Tensor, key: Tensor, bias: Tensor, scale: float | None, within: tuple[Any, bool, str]
) -> tuple[torch.Size, Limits]:
    """The shape of the bias, and the limits, as the operators take them."""
    groups, inner = in_groups(bias, query, key)
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    return groups.shape, Limits(inner, *limits(*within, query.shape[-2], key.shape[-2]), scale)


def _backward(grad: Tensor, grad_lse: Tensor | None, saved: Any, of_bias: bool, rest: Any) -> Step:
    """The backward pass for these gradients, with that of the bias or not."""
    function, inputs = operators_of_bias.gradients_of_biased_without_notes, (grad, grad_lse, *saved)
    return Step(Way.back(grad, grad_lse, of_bias), function, inputs, (of_bias, *rest))


def _gradients(known: Known | None, grads: Any, saved: Any, rest: Any, needed: Any) -> tuple[Tensor | None, ...]:
    """Gradients of queries, keys, values and bias from those of O and of L to base 2."""
    (grad, grad_lse), out = grads, saved[4]
    grad = torch.zeros_like(out) if grad is None else grad
    if torch.is_grad_enabled() or not eager.plain(*(each for each in (grad, grad_lse) if each is not None)):
        found = torch.ops.pebblesim.attention_with_bias_backward(grad, grad_lse, *saved, None, needed[3], *rest)
        return tuple(found)
    return made(known, *_backward(grad, None if grad_lse is None else grad_lse.contiguous(), saved, needed[3], rest))


def _compile(x: tuple[Tensor, ...], asked: Limits) -> None:
    """Compile the kernels of a plain call side by side, those of its backward pass, too, if gradients are wanted."""
    if torch.cuda.is_current_stream_capturing() or not compiling.can():
        return
    with suppress(torch.OutOfMemoryError), torch.no_grad(), compiling.together():
        made = operators_of_bias.biased_without_notes(*x, *asked)
        if any(each.requires_grad for each in x):
            tensors = made[0], None, *x, *made
            operators_of_bias.gradients_of_biased_without_notes(*tensors, x[3].requires_grad, *asked)


def check(query: Tensor, key: Tensor, added: Added) -> None:
    """Check what is added to scores, and sinks beside it.

    Raises:
        UsageError: it is not right.
    """
    checks.check_key_padding(added.key_padding)
    for name, each in (("bias", added.bias), ("attn_mask", added.attn_mask)):
        if each is not None:
            _check_dense(name, each, query, key)
    if added.sinks is not None:
        checks.check_sinks(query, added.sinks)
    checks.check_masks(query, bias=added.bias, attn_mask=added.attn_mask, sinks=added.sinks, **added.masks_of)


def _check_dense(name: str, x: Any, query: Tensor, key: Tensor) -> None:
    if not isinstance(x, Tensor) or x.layout != torch.strided:
        given = f"of layout {x.layout}" if isinstance(x, Tensor) else f"of {type(x).__name__}"
        raise UsageError(f"{name} is {given}; give a dense tensor that broadcasts to (…, heads, n_q, n_k).")
    allowed = [*sorted(map(str, {query.dtype, torch.float32})), *["torch.bool"] * (name == "attn_mask")]
    if str(x.dtype) not in allowed:
        raise UsageError(f"{name} is of {x.dtype}; give {' or '.join(allowed)}.")
    whole = (*query.shape[:-1], key.shape[-2])
    sides = zip(reversed(x.shape), reversed(whole), strict=False)
    if x.dim() > len(whole) or any(mine not in (1, its) for mine, its in sides):
        raise UsageError(
            f"{name} has shape {tuple(x.shape)}, which does not broadcast to {whole}, (…, heads, n_q, n_k); "
            "where sequences share it, give query as (batch, sequences, heads, n, d) and it as (batch, 1, heads, n, n)."
        )
    if x.dtype != torch.bool and x.device.type == "cpu":
        said = f"{name} has NaN, or numbers above {MOST:,}; give smaller ones, or -∞ to leave a key out."
        promise(x <= MOST, said)
