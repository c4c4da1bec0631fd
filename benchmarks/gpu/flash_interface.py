"""FlashAttention's functions, as its tests call them, over our `attention`; `install` is before their import.

`use` takes the functions of a package of kernels instead (`pebblesim gpu emit --target package`).

Tensors are (batch, tokens, heads, d), packed ones (tokens, heads, d). Masks are aligned at the end. Versions 2 and 3
have the same functions here; what they say about how kernels work, such as splits, changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from pebblesim.gpu.torch import attention as of_pebblesim

KERNELS: dict[str, Any] = {"attention": of_pebblesim}
"""The attention that is tested and, of a package, its own functions with FlashAttention's signatures."""

HINTS = ("num_splits", "pack_gqa", "scheduler_metadata", "rotary_interleaved", "max_seqlen_q", "rotary_seqlens")

BEFORE: list[Callable[[], None]] = []
"""Called before each attention: they may leave something in the memory that it takes."""


class Refused(Exception):
    """What a test asks for is no argument of attention's."""


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ranges: Any = None,
    starts: Any = None,
    qv: Any = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
    softmax_scale: float | None = None,
    return_attn_probs: bool = False,
    **others: Any,
) -> Any:
    """Attention on (batch, tokens, heads, d); queries and keys may have a part that is multiplied by values, too."""
    for name, value in others.items():
        if name not in HINTS and (isinstance(value, Tensor) or value):
            raise Refused(f"attention has no {name}")
    if q.dtype == torch.float8_e4m3fn:
        raise Refused("attention takes no float8")
    if qv is not None:
        q, k = torch.cat((q, qv), -1), torch.cat((k, v), -1)
    for each in BEFORE:
        each()
    mask: dict[str, Any] = {"key_ranges": ranges}
    if ranges is None:
        mask = {"is_causal": causal, "window": tuple(map(int, window_size)), "cu_seqlens": starts}
    made = KERNELS["attention"](
        *(each.transpose(1, 2) for each in (q, k, v)),
        **mask,
        align="end",
        enable_gqa=True,
        scale=softmax_scale,
        softcap=softcap or None,
        deterministic=deterministic,
        return_lse=return_attn_probs,
    )
    return (made[0].transpose(1, 2), made[1], None) if return_attn_probs else made.transpose(1, 2)


def _ranges(q: Tensor, starts: Tensor, used: Any, low: Tensor, high: Tensor, window: Any, chunk: int) -> Any:
    """Key ranges of packed queries, of which each sequence may use the first few; its keys are low ≤ j < high."""
    left, right = map(int, window)
    number, starts, low, high = torch.arange(len(q), device=q.device), starts.long(), low.long(), high.long()
    of = (torch.searchsorted(starts, number, right=True) - 1).clamp(0, len(starts) - 2)
    used = (starts.diff() if used is None else used.long())[of]
    rank, low, high = number - starts[of], low[of], high[of]
    place = rank + high - used  # the key beside a query
    first, end = low, high
    if left >= 0:
        first = torch.maximum(first, place - left)
    if right >= 0:
        end = torch.minimum(end, place + right + 1)
    if chunk:
        start = place - (place - low) % chunk
        first, end = torch.maximum(first, start), torch.minimum(end, start + chunk)
    first, end = (
        torch.where(rank < used, torch.minimum(torch.maximum(each, low), high), high) for each in (first, end)
    )
    return first.int()[None], end.int()[None]


def use(package: Any, whole: bool) -> None:
    """Test a package of kernels: `whole`: by its own functions where it has them, with nothing of ours between."""
    KERNELS["attention"] = package.attention
    for name in ("flash_attn_func", "flash_attn_varlen_func") if whole else ():
        KERNELS[name] = getattr(package, name)


def _own(name: str, *given: Any, **options: Any) -> Any:
    """What the function of a package returns."""
    for each in BEFORE:
        each()
    return KERNELS[name](*given, **options)


def flash_attn_func(*given: Any, **options: Any) -> Any:
    if "flash_attn_func" in KERNELS:
        return _own("flash_attn_func", *given, **options)
    return _flash_attn_func(*given, **options)


def flash_attn_varlen_func(*given: Any, **options: Any) -> Any:
    if "flash_attn_varlen_func" in KERNELS:
        return _own("flash_attn_varlen_func", *given, **options)
    return _flash_attn_varlen_func(*given, **options)


def _flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, attention_chunk: int = 0, **options: Any
) -> Any:
    if attention_chunk:
        starts = [torch.tensor([0, x.shape[1]], device=q.device) for x in (q, k)]
        window = _window(options)
        options["ranges"] = _ranges(q[0], starts[0], None, starts[1][:1], starts[1][1:], window, attention_chunk)
    return _call(q, k, v, dropout_p=dropout_p, **options)


def _flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float = 0.0,
    seqused_q: Any = None,
    seqused_k: Any = None,
    attention_chunk: int = 0,
    **options: Any,
) -> Any:
    if attention_chunk or seqused_q is not None or seqused_k is not None:
        high = cu_seqlens_k[1:] if seqused_k is None else cu_seqlens_k[:-1] + seqused_k
        window = _window(options)
        options["ranges"] = _ranges(q, cu_seqlens_q, seqused_q, cu_seqlens_k[:-1], high, window, attention_chunk)
    qv = options.pop("qv", None)
    options["qv"] = None if qv is None else qv[None]
    made = _call(q[None], k[None], v[None], starts=(cu_seqlens_q, cu_seqlens_k), dropout_p=dropout_p, **options)
    return (made[0][0], made[1][0], None) if isinstance(made, tuple) else made[0]


def _window(options: dict[str, Any]) -> tuple[int, int]:
    left, right = map(int, options.get("window_size", (-1, -1)))
    return left, 0 if options.get("causal") else right


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Any = None,
    v: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    cu_seqlens_q: Any = None,
    qv: Any = None,
    return_softmax_lse: bool = False,
    **options: Any,
) -> Any:
    """Caches of all sequences are packed one behind the other, with the places that nobody has written yet."""
    if cache_batch_idx is not None:
        k_cache, v_cache = (each[cache_batch_idx.long()] for each in (k_cache, v_cache))
    batch, places = k_cache.shape[:2]
    begin = torch.arange(batch, device=q.device) * places
    low = begin if cache_leftpad is None else begin + cache_leftpad
    starts = torch.arange(batch + 1, device=q.device) * q.shape[1] if cu_seqlens_q is None else cu_seqlens_q
    packed, parts = (q.flatten(0, 1), None if qv is None else qv.flatten(0, 1)) if cu_seqlens_q is None else (q, qv)
    chunk = options.pop("attention_chunk", 0)
    ranges = _ranges(packed, starts, None, low, begin + cache_seqlens, _window(options), chunk)
    made, lse, _ = _call(
        packed[None],
        k_cache.flatten(0, 1)[None],
        v_cache.flatten(0, 1)[None],
        ranges,
        new_keys=k,
        return_attn_probs=True,
        qv=None if parts is None else parts[None],
        **options,
    )
    out = made[0] if cu_seqlens_q is not None else made[0].view(*q.shape[:-1], -1)
    return (out, lse) if return_softmax_lse else out


def flash_attn_combine(*given: Any, **options: Any) -> Any:
    raise Refused("attention puts no parts together")


FUNCTIONS = {
    "flash_attn_func": flash_attn_func,
    "flash_attn_varlen_func": flash_attn_varlen_func,
    "flash_attn_with_kvcache": flash_attn_with_kvcache,
    "flash_attn_combine": flash_attn_combine,
    "flash_attn_qkvpacked_func": lambda qkv, *rest, **o: flash_attn_func(*qkv.unbind(2), *rest, **o),
    "flash_attn_kvpacked_func": lambda q, kv, *rest, **o: flash_attn_func(q, *kv.unbind(2), *rest, **o),
    "flash_attn_varlen_qkvpacked_func": lambda qkv, starts, longest, *rest, **o: flash_attn_varlen_func(
        *qkv.unbind(1), starts, starts, longest, longest, *rest, **o
    ),
    "flash_attn_varlen_kvpacked_func": lambda q, kv, *rest, **o: flash_attn_varlen_func(q, *kv.unbind(1), *rest, **o),
    "get_scheduler_metadata": lambda *given, **options: None,
    "_get_block_size_n": lambda *given: 64,
    "USE_TRITON_ROCM": False,
}


def install(checkout: Path) -> None:
    """Have `flash_attn` and `flash_attn_interface` be this interface; what has no attention is that of a checkout."""
    for name in ("flash_attn", "flash_attn.flash_attn_interface", "flash_attn_interface"):
        module = sys.modules[name] = ModuleType(name)
        vars(module).update(FUNCTIONS)
    sys.modules["flash_attn"].__path__ = [str(checkout / "flash_attn")]
