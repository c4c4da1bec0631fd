"""Ask PyTorch itself: its settings, and on a card that is here the backend it takes; needs PyTorch."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

NAMES = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
"""Backends by their numbers in PyTorch."""


def release() -> tuple[int, int]:
    """Return (major, minor) of PyTorch."""
    major, minor, *_ = torch.__version__.split(".")
    return int(major), int(minor)


def cudnn() -> int | None:
    """Return the version of cuDNN that is here, such as 91900; None without one."""
    return torch.backends.cudnn.version() if torch.cuda.is_available() else None


def settings() -> tuple[tuple[str, ...], bool]:
    """Return the backends that are switched off, and whether deterministic algorithms are asked for."""
    cuda = torch.backends.cuda
    on = {
        "cudnn": cuda.cudnn_sdp_enabled(),
        "flash": cuda.flash_sdp_enabled(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
    }
    same_bits = torch.are_deterministic_algorithms_enabled() and not (
        torch.is_deterministic_algorithms_warn_only_enabled()
    )
    return tuple(name for name, enabled in on.items() if not enabled), same_bits


def dtype_of(x: Tensor) -> torch.dtype:
    """Return the type in which attention computes with a tensor: its own, or that of autocast."""
    where = x.device.type
    casts = where in ("cuda", "cpu") and torch.is_autocast_enabled(where) and x.dtype != torch.float64
    return torch.get_autocast_dtype(where) if casts and x.is_floating_point() else x.dtype


class Options(NamedTuple):
    """Arguments of `scaled_dot_product_attention` behind query, key and value, as PyTorch names them."""

    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


def asked(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Ask PyTorch which backend it takes for tensors on a card, and what it says against those before it."""
    cuda, (attn_mask, dropout_p, is_causal, scale, enable_gqa) = torch.backends.cuda, options
    q, k, v = (x.to(dtype_of(x)) for x in (q, k, v))
    number = torch._fused_sdp_choice(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    taken = NAMES.get(int(number), "other")
    params = cuda.SDPAParams(q, k, v, attn_mask, dropout_p, is_causal, enable_gqa)
    can = {
        "cudnn": cuda.can_use_cudnn_attention,
        "flash": cuda.can_use_flash_attention,
        "efficient": cuda.can_use_efficient_attention,
    }
    order = [NAMES[each] for each in torch._C._get_sdp_priority_order() if each in NAMES]
    why = []
    for name in order[: order.index(taken)] if taken in order else ():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            usable: Any = can[name](params, True) if name in can else False
        reason = " ".join(str(each.message).partition(" (Triggered internally")[0] for each in said)
        why.append((name, reason or ("it could be used" if usable else "PyTorch gives no reason")))
    return taken, tuple(why)
