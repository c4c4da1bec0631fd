"""Who computes attention in a race of drawn shapes: ours, PyTorch's kernels, and others that are installed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from drawn_shapes import Shape, allowed

Call = Callable[..., Any]
"""O, (batch, heads, n, d), of Q, K and V."""

BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}

MOST_PAIRS = 2**28
"""Pairs of queries and keys up to which PyTorch is given a mask of booleans: 256 MiB."""


def contenders(torch: Any, shape: Shape, flex: str = "masks", peers: tuple[str, ...] = ()) -> dict[str, Call]:
    """The calls that may compute a shape, by name; what is made once for a mask is made here.

    Heads that share keys are given as they are or, behind "repeated", each with keys of its own.
    """
    found: dict[str, Call] = {"ours": ours(torch, shape)}
    grouped = shape.shared > 1
    if shape.mask in ("none", "causal"):
        for name, backend in BACKENDS.items():
            if name != "efficient" or not grouped:
                found[name] = partial(by_pytorch, torch, backend, shape, None, False)
            if grouped:
                found[f"{name}, repeated"] = partial(by_pytorch, torch, backend, shape, None, True)
    elif shape.n**2 <= MOST_PAIRS:
        mask = allowed(torch, shape, slice(0, shape.n))[None, None]
        for name in ("efficient", "cudnn"):
            found[f"{name}, mask"] = partial(by_pytorch, torch, BACKENDS[name], shape, mask, grouped)
    if shape.mask == "packed" and importlib.util.find_spec("torch.nn.attention.varlen"):
        found["varlen"] = varlen(torch, shape)
    if flex == "all" or (flex == "masks" and shape.mask in ("window", "packed")):
        found["flex"] = by_flex(torch, shape)
    if "ffpa" in peers and 256 < shape.d <= 1024 and shape.mask in ("none", "causal"):
        backend = "cutedsl" if 320 <= shape.d <= 512 and importlib.util.find_spec("cutlass") else "triton"
        found[f"ffpa {backend}"] = by_ffpa(shape, backend)
    for name in ("flash-attn", "flash-attn-4"):
        if name in peers and shape.d <= 256:
            found[name] = by_flash_attention(torch, shape, name)
    return found


def ours(torch: Any, shape: Shape) -> Call:
    """Ours, as a user calls it."""
    from pebblesim.gpu.torch import attention

    options: dict[str, Any] = {"is_causal": shape.mask != "none", "enable_gqa": shape.shared > 1}
    if shape.mask == "window":
        options["window"] = (shape.left, 0)
    if shape.mask == "packed":
        options["cu_seqlens"] = torch.tensor(shape.starts, dtype=torch.int32, device="cuda")
    return partial(attention, **options)


def by_pytorch(torch: Any, backend: str, shape: Shape, mask: Any, repeated: bool, Q: Any, K: Any, V: Any) -> Any:
    """A kernel of scaled_dot_product_attention."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if repeated and shape.shared > 1:
        K, V = (each.repeat_interleave(shape.shared, 1) for each in (K, V))
    rest = {"enable_gqa": True} if shape.shared > 1 and not repeated else {}
    with sdpa_kernel(getattr(SDPBackend, backend)):
        return torch.nn.functional.scaled_dot_product_attention(
            Q, K, V, mask, is_causal=mask is None and shape.mask == "causal", **rest
        )


def varlen(torch: Any, shape: Shape) -> Call:
    """PyTorch's flash kernel of packed sequences."""
    from torch.nn.attention.varlen import varlen_attn

    starts = torch.tensor(shape.starts, dtype=torch.int32, device="cuda")
    longest = max(b - a for a, b in zip(shape.starts, shape.starts[1:], strict=False))

    def call(Q: Any, K: Any, V: Any) -> Any:
        if shape.shared > 1:
            K, V = (each.repeat_interleave(shape.shared, 1) for each in (K, V))
        q, k, v = (each[0].transpose(0, 1) for each in (Q, K, V))
        try:
            out = varlen_attn(q, k, v, starts, starts, longest, longest, is_causal=True)
        except TypeError:  # since 2.11 a causal mask is a window
            out = varlen_attn(q, k, v, starts, starts, longest, longest, window_size=(-1, 0))
        return out.transpose(0, 1)[None]

    return call


def by_flex(torch: Any, shape: Shape) -> Call:
    """FlexAttention, compiled for the shape; its mask of blocks is made once."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    starts = torch.tensor(shape.starts[1:] or (shape.n,), device="cuda")
    number = torch.bucketize(torch.arange(shape.n, device="cuda"), starts, right=True)
    left = shape.left

    def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    def window(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (q - k <= left)

    def packed(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (number[q] == number[k])

    which = {"causal": causal, "window": window, "packed": packed}.get(shape.mask)
    mask = None if which is None else create_block_mask(which, None, None, shape.n, shape.n)
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    return partial(compiled, block_mask=mask, enable_gqa=shape.shared > 1)


def by_ffpa(shape: Shape, backend: str) -> Call:
    """FFPA's kernels for head dimensions above 256, from the package ffpa-attn.

    Those in the CuTe DSL are for a Hopper card and head dimensions from 320 to 512, and need nvidia-cutlass-dsl.
    """
    from ffpa_attn import ffpa_attn_func

    rest = {"is_causal": shape.mask == "causal", "enable_gqa": shape.shared > 1}
    return partial(ffpa_attn_func, **rest, forward_backend=backend, backward_backend=backend)


def by_flash_attention(torch: Any, shape: Shape, package: str) -> Call:
    """FlashAttention from the package flash-attn, or flash-attn-4 in the CuTe DSL, which want tokens before heads."""
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")  # read when the package is imported
    flash = importlib.import_module("flash_attn.cute" if package == "flash-attn-4" else "flash_attn")
    starts = torch.tensor(shape.starts, dtype=torch.int32, device="cuda")
    longest = max((b - a for a, b in zip(shape.starts, shape.starts[1:], strict=False)), default=0)
    window = {"window_size": (shape.left, 0)} if shape.mask == "window" else {}
    lengths = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": longest, "max_seqlen_k": longest}

    def alone(made: Any) -> Any:
        return made[0] if isinstance(made, tuple) else made

    def call(Q: Any, K: Any, V: Any) -> Any:
        if shape.mask == "packed":
            q, k, v = (each[0].transpose(0, 1) for each in (Q, K, V))
            return alone(flash.flash_attn_varlen_func(q, k, v, **lengths, causal=True)).transpose(0, 1)[None]
        q, k, v = (each.transpose(1, 2) for each in (Q, K, V))
        return alone(flash.flash_attn_func(q, k, v, causal=shape.mask != "none", **window)).transpose(1, 2)

    return call
