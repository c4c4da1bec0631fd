"""FlashAttention's functions over our `attention`: its signatures, its shapes, and masks aligned at the end."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.operator.public import attention


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    s_aux: Tensor | None = None,
) -> Any:
    """softmax(softmax_scale · Q Kᵀ) V with its gradients, as `flash_attn.flash_attn_func` has it.

    Args:
        q: (batch, n_q, heads, d), bfloat16 or float16.
        k, v: (batch, n_k, kv_heads, d); `kv_heads` divides `heads`.
        dropout_p: 0 alone.
        softmax_scale: factor of the scores; 1/√d if None.
        causal: query i attends to the keys up to i + n_k - n_q.
        window_size: (left, right), keys before and after this one; -1 is no limit.
        softcap: scores become softcap · tanh(score / softcap); 0 for none.
        alibi_slopes: None alone.
        deterministic: True to have the same bits in every run.
        return_attn_probs: True to return (O, L, None): L is the logarithm of each query's sum, (batch, heads, n_q).
        s_aux: (heads,), sinks, as of FlashAttention 3 in vLLM.

    Returns:
        O, (batch, n_q, heads, d). A query without a key has O = 0.

    Raises:
        UsageError: what is asked for is not supported.
    """
    _check(dropout_p, alibi_slopes)
    _check_shapes((q, k, v), ("batch", "tokens", "heads", "d"))
    made = attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        is_causal=causal,
        scale=softmax_scale,
        enable_gqa=True,
        window=_window(window_size),
        align="end",
        softcap=softcap or None,
        sinks=s_aux,
        return_lse=return_attn_probs,
        deterministic=deterministic,
    )
    return (made[0].transpose(1, 2), made[1], None) if return_attn_probs else made.transpose(1, 2)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    s_aux: Tensor | None = None,
) -> Any:
    """Attention of packed sequences and its gradients, as `flash_attn.flash_attn_varlen_func` has it.

    Args:
        q: (total_q, heads, d).
        k, v: (total_k, kv_heads, d).
        cu_seqlens_q, cu_seqlens_k: (sequences + 1,), int32, where sequences begin, and the end of the last.
        max_seqlen_q, max_seqlen_k: are not read: the kernels find the lengths themselves.
        block_table: None alone.

    Other arguments as of `flash_attn_func`.

    Returns:
        O, (total_q, heads, d); with `return_attn_probs` (O, L, None), L (heads, total_q).

    Raises:
        UsageError: what is asked for is not supported.
    """
    _check(dropout_p, alibi_slopes, block_table)
    _check_shapes((q, k, v), ("tokens", "heads", "d"))
    made = attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        is_causal=causal,
        scale=softmax_scale,
        enable_gqa=True,
        window=_window(window_size),
        align="end",
        softcap=softcap or None,
        cu_seqlens=(cu_seqlens_q, cu_seqlens_k),
        sinks=s_aux,
        return_lse=return_attn_probs,
        deterministic=deterministic,
    )
    if return_attn_probs:
        return made[0][0].transpose(0, 1), made[1][0], None
    return made[0].transpose(0, 1)


def _window(size: Any) -> Any:
    """FlashAttention takes any number below 0 for no limit.

    Raises:
        UsageError: it is no pair of numbers.
    """
    if (
        not isinstance(size, tuple | list)
        or len(size) != 2
        or not all(each is None or (isinstance(each, (int, Integral)) and not isinstance(each, bool)) for each in size)
    ):
        raise UsageError(f"window_size is {size!r}; give (left, right), numbers of keys, -1 where there is no limit.")
    return tuple(None if each is None or each < 0 else int(each) for each in size)


def _check_shapes(matrices: tuple[Any, ...], sides: tuple[str, ...]) -> None:
    """Check shapes as FlashAttention has them, which `attention` would name in another order.

    Raises:
        UsageError: they do not go together.
    """
    for name, each in zip("qkv", matrices, strict=True):
        if not isinstance(each, Tensor) or each.dim() != len(sides):
            given = f"has shape {tuple(each.shape)}" if isinstance(each, Tensor) else f"is of {type(each).__name__}"
            raise UsageError(f"{name} {given}; give a tensor of shape ({', '.join(sides)}).")
    q, k, v = (each.shape for each in matrices)
    fits = k[:-1] == v[:-1] and q[-1] == k[-1] and q[:-3] == k[:-3] and k[-2] > 0 and q[-2] % k[-2] == 0
    if not fits:
        raise UsageError(
            f"q, k and v have shapes {tuple(q)}, {tuple(k)} and {tuple(v)}, which are ({', '.join(sides)}); give k and "
            "v as many tokens, and heads that divide those of q, q and k the same d, and all three one batch."
        )


def _check(dropout_p: float, alibi_slopes: Any, block_table: Any = None) -> None:
    """Refuse what these kernels do not compute.

    Raises:
        UsageError: it is asked for.
    """
    if dropout_p:
        raise UsageError(f"dropout_p is {dropout_p!r}; these kernels have no dropout: give 0.")
    if alibi_slopes is not None:
        raise UsageError("alibi_slopes were given, and these functions have none: give None, or `attention` a bias.")
    if block_table is not None:
        raise UsageError("block_table was given; these kernels read no pages of a cache: give None and packed keys.")
