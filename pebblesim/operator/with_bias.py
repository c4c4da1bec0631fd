"""`attention` with a bias: its checks, and the call of its operator."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.operator import checks, operators_of_bias as _  # noqa: F401
from pebblesim.operator.bias import WIDEST, in_groups
from pebblesim.operator.layout import in_one_batch
from pebblesim.operator.pattern import limits

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
    checks.check_tensors(query, key, value, True)
    given = (name for name, each in others.items() if each is not None and (isinstance(each, Tensor) or each != 0))
    if other := next(given, None):
        raise UsageError(f"{other} was given with bias, and these kernels do not have both; {ADVICE[other]}.")
    _check(query, key, value, bias)
    checks.check_masks(query, bias=bias)
    left, right, at_end = limits(*within, query.shape[-2], key.shape[-2])
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    groups, inner = in_groups(bias, query, key)
    x = map(in_one_batch, (query, key, value))
    out, lse = torch.ops.pebblesim.attention_with_bias(*x, groups, inner, left, right, at_end, scale)
    out = out.reshape(*query.shape[:-1], value.shape[-1]).to(kind or out.dtype)
    return (out, lse.reshape(query.shape[:-1]) * log(2)) if return_lse else out


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
    few = query[..., :0, :]  # of a type that `unsupported` knows
    if reason := checks.unsupported(few.bfloat16() if few.dtype == torch.float32 else few, value, None, 0.0, None):
        raise UsageError(reason)
