"""`attention`, as users call it."""

from __future__ import annotations

from pebblesim.gpu.torch import pytorch as _pytorch  # noqa: F401

# isort: split
from math import log
from typing import Any

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.gpu.torch import checks, eager, masks
from pebblesim.gpu.torch.fallback import by_pytorch
from pebblesim.gpu.torch.planning import Pattern, limits


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
    return_lse: bool = False,
    compute_dtype: torch.dtype | None = None,
    workspace: int | None = None,
    deterministic: bool = False,
    fallback: str | None = None,
    key_padding: None = None,
) -> Any:
    """softmax(Q Kᵀ scale) V, as `torch.nn.functional.scaled_dot_product_attention` computes it, with its gradients.

    Results are the same to the last bit in every run with the same room for tables, but for the gradient of the queries
    in one pass on Hopper cards, where blocks add to it in any order; see `deterministic`. Tensors on the CPU are
    computed by the definition, in plain PyTorch, with a table of all scores.

    Args:
        query: (…, heads, n_q, d_k), in bfloat16 or float16 on a GPU; any strides. Under autocast, other types are cast.
        key: (…, heads, n_k, d_k); with `enable_gqa` fewer heads, each shared by the same number of query heads.
        value: (…, heads, n_k, d_v), with as many heads as `key`. Head dimensions may be up to 1,024.
        attn_mask, dropout_p: only with `fallback`.
        is_causal: query i attends to the keys up to i. As in PyTorch, query 0 is at key 0, also if there are fewer
            queries than keys; see `align`.
        scale: 1/√d_k if None.
        enable_gqa: whether heads of keys and values are shared.
        window: (left, right), numbers of keys before and behind each query that it may attend to; None or -1 for no
            limit. With `is_causal`, right is 0.
        align: "start", or "end" for queries at the end of a longer text: the last query is at the last key.
        softcap: scores become softcap · tanh(score / softcap).
        cu_seqlens: packed sequences: positions at which they start, and the end of the last, integers of shape
            (sequences + 1,), or a pair of these for queries and keys. Other masks then hold within each sequence.
        key_padding_mask: booleans of shape (batch, n_k) or (1, n_k), True where a key is padding, as in
            `torch.nn.MultiheadAttention`: no query attends to it. Padding may be on the left of the keys, on the
            right or on both sides, but not between two of them.
        key_ranges: (first, end), int32 of shape (batch, n_q) or (1, n_q): query i attends to first[i] ≤ j < end[i].
            Neither may decrease from one query to the next.
        return_lse: return (O, L), too: the natural logarithm of each query's sum of exponentials, (…, heads, n_q) in
            float32, differentiable; -∞ for a query without a key, whose O is 0.
        compute_dtype: torch.bfloat16 or torch.float16: what inputs of other types are rounded to; O has the type of
            `query`.
        workspace: bytes that tables of scores and their gradients may take; at most 1 GiB, or what is free, if None.
            Fewer heads are computed at once or, if one head needs more, fewer rows.
        deterministic: have results that are the same to the last bit in every run, also where others are faster, as
            `torch.use_deterministic_algorithms` does.
        fallback: "sdpa" to have PyTorch's attention compute what these kernels do not support; a warning says so once.
        key_padding: is refused; it was the name of the negation of `key_padding_mask`.

    Returns:
        (…, heads, n_q, d_v), and L with `return_lse`.

    Raises:
        UsageError: these kernels do not support the arguments.
    """
    if not (type(is_causal) is type(enable_gqa) is type(return_lse) is type(deterministic) is bool):
        checks.check_flags(
            is_causal=is_causal, enable_gqa=enable_gqa, return_lse=return_lse, deterministic=deterministic
        )
    window = tuple(window) if isinstance(window, list) else window
    same_bits = deterministic or torch.are_deterministic_algorithms_enabled()
    call = None
    if (
        attn_mask is cu_seqlens is key_padding_mask is key_padding is key_ranges is compute_dtype is None
        and not return_lse
        and not dropout_p
    ):
        options = is_causal, scale, enable_gqa, window, align, softcap, workspace, same_bits, dropout_p, fallback
        call = eager.call_of(query, key, value, options)
        if (asked := eager.checked(call)) is not None:
            return eager.attention(query, key, value, asked)
    kind = query.dtype if compute_dtype is not None and isinstance(query, Tensor) else None
    checks.check_numbers(scale, softcap, workspace, dropout_p, compute_dtype, fallback)
    query, key, value = _cast((query, key, value), compute_dtype)
    checks.check_tensors(query, key, value, enable_gqa)
    if key_padding is not None:
        raise UsageError(
            "key_padding was documented as True where a key is padding, and computed as True where a key is not "
            "padding; give key_padding_mask, which is True where a key is padding: key_padding_mask=~mask if the mask "
            "is True where a key is not padding."
        )
    masks_of = {"cu_seqlens": cu_seqlens, "key_padding_mask": key_padding_mask, "key_ranges": key_ranges}
    checks.check_masks(query, attn_mask=attn_mask, **masks_of)
    pattern = limits(window, is_causal, align, 1)
    reason = checks.unsupported(query, value, attn_mask, dropout_p, softcap)
    if reason is not None and fallback is None:
        raise UsageError(reason)
    if reason is not None and (return_lse or softcap):
        why, _, _ = reason.partition(";")
        raise UsageError(
            f'{why}, and fallback="sdpa" has no return_lse and no softcap; leave out the one or the other.'
        )
    shown = _shown(query, key, pattern, **masks_of)
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    if reason is not None:
        out = by_pytorch(reason, query, key, value, attn_mask, dropout_p, scale, shown)
        return out if kind is None else out.to(kind)
    asked = masks.Asked(*shown, scale, float(softcap or 0.0), workspace, same_bits)
    checks.check_room(query, key, value, asked)
    if call is not None:
        out = eager.attention(query, key, value, asked)
        eager.keep(call, asked)
        return out
    four = (each.reshape(-1, *each.shape[-3:]) for each in (query, key, value))
    out, lse = torch.ops.pebblesim.attention(*four, *asked)
    out = out.reshape(*query.shape[:-1], value.shape[-1])
    out = out if kind is None else out.to(kind)
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


def _shown(
    query: Tensor, key: Tensor, pattern: Pattern, cu_seqlens: Any, key_padding_mask: Any, key_ranges: Any
) -> masks.Shown:
    """The keys that each query may attend to."""
    n_q, n_k, batch = query.shape[-2], key.shape[-2], query.shape[:-3].numel()
    left, right, at_end = pattern.left, pattern.right, pattern.at_end
    ranges = None
    if cu_seqlens is not None:
        ranges = masks.ranges_of_sequences(cu_seqlens, n_q, n_k, left, right, at_end)
    elif key_padding_mask is not None or key_ranges is not None:
        ranges = masks.ranges_of_band(n_q, n_k, left, right, at_end, query.device)
    if key_padding_mask is not None:
        ranges = masks.both(ranges, masks.ranges_of_padding(key_padding_mask, batch, n_q, n_k))
    if key_ranges is not None:
        ranges = masks.both(ranges, masks.check_ranges(key_ranges, batch, n_q, n_k))
    if ranges is None:
        return masks.Shown(None, None, left, right, at_end)
    first, end = (each.expand(batch, n_q) for each in ranges)
    return masks.Shown(first, end, None, None, False)
