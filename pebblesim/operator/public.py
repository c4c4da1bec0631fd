"""`attention`, as users call it."""

from __future__ import annotations

from pebblesim.operator import pytorch as _pytorch  # noqa: F401

# isort: split
from math import log
from typing import Any

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.operator import checks, masks
from pebblesim.operator.bias.with_bias import attention_with_bias, why_not_with_bias, with_bias
from pebblesim.operator.fallback import by_pytorch
from pebblesim.operator.known import eager
from pebblesim.operator.known.known import Family, Known
from pebblesim.operator.launching.layout import in_one_batch
from pebblesim.operator.pattern import limits
from pebblesim.operator.sinks.operators import for_batches
from pebblesim.operator.sizes import check_flag
from pebblesim.operator.watchers import WATCHERS


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: tuple[int | None, int | None] | None = None,
    align: str = "start",
    softcap: float | None = None,
    cu_seqlens: Any = None,
    key_padding_mask: Tensor | None = None,
    key_ranges: tuple[Tensor, Tensor] | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    return_lse: bool = False,
    compute_dtype: torch.dtype | None = None,
    workspace: int | None = None,
    deterministic: bool = False,
    fallback: str | None = None,
    key_padding: None = None,
) -> Any:
    """softmax(scale · Q Kᵀ) V, as `torch.nn.functional.scaled_dot_product_attention` computes it, with its gradients.

    Scores are S = scale · Q Kᵀ, with a bias S = scale · Q Kᵀ + bias, or with softcap S = softcap · tanh(scale · Q Kᵀ /
    softcap). For each query, O is the mean of the values under the weights exp(S), and L = log Σ exp(S), over the keys
    that all given masks allow. A query for which no key is allowed has O = 0 and L = -∞, and takes no part in
    gradients. With sinks, the denominator of O and the sum in L have one more term, exp(s) of the query's head, so that
    L = s where no key is allowed.

    Query i is at position i among the keys, or at i + n_k - n_q with align="end". `is_causal` and `window` compare this
    position with the number of a key; padding does not change positions. In packed sequences i, n_q, n_k and the number
    of a key are counted within each sequence.

    Dimensions before the heads are batches. There may be none or several, and they must be the same in `query`, `key`
    and `value`: nothing is broadcast. In the shapes of masks, `batch` is the product of these dimensions, or 1. Masks
    must be on the device of `query`. Batches, n_q and n_k may be 0; heads and head dimensions may not.

    Results are the same to the last bit in every run with the same room for matrices, except the gradient of `query` on
    Hopper cards up to a head dimension of 128; see `deterministic`. Tensors of the CPU are computed by the definition,
    in plain PyTorch, with the whole score matrix; what is refused on a GPU is refused for them, too, except float32 and
    float64.

    Args:
        query: (…, heads, n_q, d_k), bfloat16 or float16; on the CPU also float32 or float64. Any strides.
        key: (…, kv_heads, n_k, d_k), in the type of `query`. d_k is up to 1,024.
        value: (…, kv_heads, n_k, d_v), in the type of `query`. d_v is up to 1,024, and may differ from d_k. Keys and
            values must be finite also where no query attends to them, as in padding: 0 · NaN is NaN.
        attn_mask: (…, n_q, n_k), broadcast to (…, heads, n_q, n_k); booleans, True where a query attends to a key, or
            numbers in the type of `query` or float32, which are added to scores. Head dimensions are up to 128.
        dropout_p: only with `fallback`, if it is not 0.
        is_causal: True if a query does not attend to keys after its position.
        scale: a finite number; it may be 0 or negative. 1/√d_k if None.
        enable_gqa: True if `kv_heads` may be a divisor of `heads`: query head h then has key head ⌊h·kv_heads/heads⌋.
            If False, both numbers must be equal.
        window: (left, right): a query at position p attends to the keys from p - left to p + right, both included.
            Integers from 0 up; None or -1: not limited on this side. With `is_causal`, right is 0 whatever is given.
        align: "start" or "end", see above. It matters to `is_causal` and `window` alone.
        softcap: a number above 0, or None. Only with head dimensions up to 256.
        cu_seqlens: packed sequences: (sequences + 1,) integers, the positions at which sequences begin, and the end of
            the last; or a pair of these for queries and for keys, with as many sequences. They begin with 0 and do not
            decrease, and the last may be less than the number of tokens: queries after it do not attend to any key, and
            keys after it are not attended to. All batches have the same sequences. A query attends to keys of its
            sequence.
        key_padding_mask: booleans of shape (batch, n_k) or (1, n_k), True where a key is padding, as in
            `torch.nn.MultiheadAttention`: queries do not attend to it. Padding may be on the left of the text, on the
            right or on both sides, but not inside. All keys may be padding.
        key_ranges: (first, end), int32 of shape (batch, n_q) or (1, n_q) each: query i attends to the keys j with
            first[i] ≤ j < end[i], numbers in the whole tensor, also in packed sequences. Both are from 0 to n_k, and
            neither decreases from one query to the next. Where end[i] ≤ first[i], query i does not attend to any key.
        sinks: (heads,), a number s for each query head, in bfloat16, float16, float32 or float64, differentiable:
            as if each query attended to one more key, with the score s and the value 0. Neither `scale` nor `softcap`
            changes it. Finite, or -∞ for a head without a sink.
        bias: numbers that are added to scores, differentiable: of any shape that broadcasts to (…, heads, n_q, n_k), in
            the type of `query` or float32; -∞ leaves a key out, and a query has no keys if all of its scores are below
            -726,817, or one is above 11,600,000. Its gradient is summed over all that share an entry, in the same order
            in every run. Sequences that share a bias are batches: query (batch, sequences, heads, n, d)
            and bias (batch, 1, heads, n, n). Head dimensions are up to 128, and on a GPU `query` may be float32, too.
            Other masks are put into the bias, in the shape that both broadcast to. Softcap, dropout and `fallback` are
            refused with it, and `deterministic` and `workspace` have no effect: tables for the gradient take 1 GiB at
            most, or one head's batch if that is more.
        return_lse: True to return (O, L).
        compute_dtype: torch.bfloat16 or torch.float16, to which `query`, `key` and `value` are rounded first; they may
            then be of several types. It goes before autocast, which otherwise rounds all types but float64.
        workspace: bytes that score matrices and their gradients may take: an integer from 0 up. At most 1 GiB, or the
            memory that is free if that is less, if None. Fewer heads are computed at once or, if one head needs more,
            fewer rows. On the CPU it has no effect, but it is refused there, too, if it is too small for every kernel.
        deterministic: True to have all results the same to the last bit in every run, also where other kernels are
            faster, as with `torch.use_deterministic_algorithms(True)`.
        fallback: "sdpa" to have PyTorch's attention compute what these kernels do not support: dropout, float32 and
            float64 on a GPU, head dimensions above 1,024, or above 128 with `attn_mask`, cards with a compute
            capability below 8.0. All masks still apply. A warning gives each reason once. Not with `return_lse`,
            `softcap` or `sinks`.
        key_padding: is refused; it was the negation of `key_padding_mask`.

    Returns:
        O, (…, heads, n_q, d_v), in the type of `query`, or of autocast. With `return_lse` (O, L): L is (…, heads, n_q)
        in float32, or float64 for float64, differentiable; so parts that were computed apart can be put together.

    Raises:
        UsageError: an argument is not allowed, or these kernels do not support it; on a GPU a call does not wait for
            the numbers in a mask, and wrong ones make an assertion fail on the device.
    """
    if WATCHERS:
        WATCHERS[-1](dict(locals()))
    if not (type(is_causal) is type(enable_gqa) is type(return_lse) is type(deterministic) is bool):
        flags = {"is_causal": is_causal, "enable_gqa": enable_gqa, "return_lse": return_lse}
        for name, flag in {**flags, "deterministic": deterministic}.items():
            check_flag(name, flag)
    window = tuple(window) if isinstance(window, list) else window
    same_bits = deterministic or torch.are_deterministic_algorithms_enabled()
    call, masks_of = None, {"cu_seqlens": cu_seqlens, "key_padding_mask": key_padding_mask, "key_ranges": key_ranges}
    why: str | None = None
    alone = bias is None or all(each is None for each in (sinks, softcap, fallback, *masks_of.values()))
    if alone and attn_mask is key_padding is compute_dtype is None and not dropout_p:
        options = is_causal, scale, enable_gqa, window, align, softcap, workspace, same_bits, dropout_p, fallback
        beside = cu_seqlens, key_padding_mask, key_ranges, sinks, bias
        call, known = eager.known_of(query, key, value, beside, (*options, return_lse))
        if known is not None:
            return _known(query, key, value, sinks, bias, return_lse, known, masks_of)
    if bias is not None or attn_mask is not None:
        checks.check_numbers(scale, softcap, workspace, dropout_p, compute_dtype, fallback)
        added = {"bias": bias, "attn_mask": attn_mask, "sinks": sinks, "masks_of": masks_of, "dropout_p": dropout_p}
        added |= {"softcap": softcap, "fallback": fallback, "key_padding": key_padding}
        made, kind_of = _cast((query, key, value), compute_dtype), compute_dtype and getattr(query, "dtype", None)
        if (why := why_not_with_bias(made, added, enable_gqa)) is None:
            place = window, is_causal, align
            return attention_with_bias(made, added, enable_gqa, scale, place, return_lse, kind_of, call)
    kind = query.dtype if compute_dtype is not None and isinstance(query, Tensor) else None
    checks.check_numbers(scale, softcap, workspace, dropout_p, compute_dtype, fallback)
    query, key, value = _cast((query, key, value), compute_dtype)
    checks.check_tensors(query, key, value, enable_gqa)
    if sinks is not None:
        checks.check_sinks(query, sinks)
    checks.check_key_padding(key_padding)
    checks.check_masks(query, attn_mask=attn_mask, sinks=sinks, **masks_of)
    within = limits(window, is_causal, align, query.shape[-2], key.shape[-2])
    reason = why or checks.unsupported(query, value, dropout_p, softcap)
    if reason is not None and fallback is None:
        raise UsageError(reason)
    lacking = {"return_lse": return_lse, "softcap": softcap, "sinks": sinks is not None}
    if reason is not None and (other := next((name for name, asked in lacking.items() if asked), None)):
        why, _, _ = reason.partition(";")
        raise UsageError(f'{why}, and fallback="sdpa" has no {other}; leave out the one or the other.')
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    limited = masks.Asked(None, None, *within, scale, float(softcap or 0.0), workspace, same_bits)
    asked = masks.ranged(query, key, limited, masks_of)
    if reason is not None:
        out = by_pytorch(reason, query, key, value, attn_mask, dropout_p, asked)
        return out if kind is None else out.to(kind)
    checks.check_room(query, key, value, asked)
    if call is not None:
        eager.compile_for(query, key, value, sinks, asked)
        found = _plain(query, key, value, sinks, asked, return_lse)
        eager.keep(call, Known(Family(limited)))
        return found
    x = map(in_one_batch, (query, key, value))
    if sinks is None:
        out, lse = torch.ops.pebblesim.attention(*x, *asked)
    else:
        out, lse = torch.ops.pebblesim.attention_with_sinks(*x, for_batches(sinks, query), *asked)
    out = out.reshape(*query.shape[:-1], value.shape[-1]).to(kind or out.dtype)
    return (out, lse.reshape(query.shape[:-1]) * log(2)) if return_lse else out


def _cast(tensors: tuple[Tensor, ...], compute_dtype: torch.dtype | None) -> tuple[Tensor, ...]:
    """The tensors in the type that they are computed in: the given one, or that of autocast but for float64."""
    if not all(isinstance(each, Tensor) for each in tensors):
        return tensors
    where = tensors[0].device.type
    stays = None
    if compute_dtype is None and where in ("cuda", "cpu") and torch.is_autocast_enabled(where):
        compute_dtype, stays = torch.get_autocast_dtype(where), torch.float64
    if compute_dtype is None:
        return tensors
    return tuple(
        each.to(compute_dtype) if each.is_floating_point() and each.dtype != stays else each for each in tensors
    )


def _known(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    return_lse: bool,
    known: Known,
    masks_of: dict[str, Any],
) -> Any:
    """A call as one before it, which was checked."""
    if bias is None:
        return _plain(query, key, value, sinks, known.family.options, return_lse, known, masks_of)
    out, lse = with_bias((query, key, value), bias, known.family.options, return_lse, known)
    return (out, lse) if return_lse else out


def _plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor | None,
    asked: masks.Asked,
    return_lse: bool,
    known: Known | None = None,
    masks_of: dict[str, Any] | None = None,
) -> Any:
    """A plain call, whose arguments are right."""
    out, lse = eager.attention(query, key, value, sinks, asked, return_lse, known, masks_of)
    return out if lse is None else (out, lse.reshape(query.shape[:-1]) * log(2))
