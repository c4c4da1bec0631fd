"""Attention for PyTorch whose kernels come out of our schedules: `from pebblesim.gpu.torch import attention`.

The forward and the backward pass each take the schedule and the tiles whose forecast is shortest for the sizes at hand;
`plan` says which, and why. Kernels are written and compiled for each size when it is first seen. PyTorch and Triton are
looked for when attention is first computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pebblesim.advice import cards
from pebblesim.advice.forecast import Forecast, forecasts
from pebblesim.errors import UsageError
from pebblesim.gpu.module import module_of
from pebblesim.jobs.tiles import Tiling
from pebblesim.language import masks
from pebblesim.language.masks import Band
from pebblesim.language.registry import get
from pebblesim.readings.kernels.triton import LEAST_SIDE, triton

LARGEST = 1024
"""Largest head dimension."""

MOST_HEADS = 65535
"""Most heads of all sequences together: so many rows of thread blocks a launch can have."""

CARD = "H200"
"""Whose rates stand in where nobody has measured the card at hand."""


@dataclass(frozen=True)
class Plan:
    """Which kernels compute an attention of some size, and why.

    Attributes:
        n, d, heads, causal: of the attention as it is computed.
        card: whose rates the forecasts are made with.
        forward, backward: forecasts of all kernels that fit, the one that is taken first.
    """

    n: int
    d: int
    heads: int
    causal: bool
    card: str
    forward: tuple[Forecast, ...]
    backward: tuple[Forecast, ...]

    def __str__(self) -> str:
        lines = [f"n = {self.n:,}, d = {self.d}, {self.heads:,} heads{', causal' * self.causal}, rates of {self.card}"]
        for way, found in (("forward", self.forward), ("backward", self.backward)):
            best = found[0]
            line = f"{way}: {best.tiling}: {best.seconds * 1e3:.3g} ms, most of it {best.binds}"
            other = next((each for each in found if each.tiling.schedule != best.tiling.schedule), None)
            if other is not None:
                line += f"; {other.tiling.schedule} would take {other.seconds * 1e3:.3g} ms, most of it {other.binds}"
            lines.append(line)
        return "\n".join(lines)


@lru_cache(maxsize=1024)
def plan(n: int, d: int, heads: int = 1, *, dtype: str = "bfloat16", causal: bool = False) -> Plan:
    """Which kernels attend over n tokens with a head dimension d, and why; print it to read it.

    >>> print(plan(16384, 512, 2))  # doctest: +ELLIPSIS
    n = 16,384, d = 512, 2 heads, rates of NVIDIA H200 SXM 141GB
    forward: small-cache-forward-blocked a=128, b=256, c=64, 8 warps, 4 stages: ...
    backward: small-cache-backward-blocked a=128, b=256, c=64, 8 warps, 4 stages: ...
    """
    card, mask = cards.card(CARD), masks.of("causal" if causal else None)
    width = max(d, LEAST_SIDE)
    found = [forecasts(way, {"n": n, "d": width}, card, dtype, heads, mask) for way in ("forward", "backward-qkv")]
    return Plan(n, width, heads, causal, card.name, *found)


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(Q Kᵀ scale) V, as `torch.nn.functional.scaled_dot_product_attention` computes it, with its gradients.

    Args:
        query: (…, heads, n, d_k), in bfloat16 or float16, on a GPU.
        key: (…, heads, n, d_k); with `enable_gqa` fewer heads, each for as many of the query's.
        value: (…, heads, n, d_v), with as many heads as `key`.
        attn_mask, dropout_p: none of these.
        is_causal: tokens attend to themselves and those before.
        scale: 1/√d_k if None.
        enable_gqa: whether heads of keys and values are shared.

    Returns:
        (…, heads, n, d_v). Head dimensions may be up to 1,024; where d_k and d_v differ zeros fill the shorter.

    Raises:
        UsageError: there is no PyTorch with a GPU, or something is asked for that these kernels cannot do.
    """
    torch = _torch()
    if attn_mask is not None or dropout_p:
        raise UsageError("attention takes neither attn_mask nor dropout_p; is_causal it does take.")
    _check(torch, query, key, value, enable_gqa)
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        shared = query.shape[-3] // key.shape[-3]
        key, value = (each.repeat_interleave(shared, -3) for each in (key, value))
    (n, d_k), d_v = query.shape[-2:], value.shape[-1]
    scale = d_k**-0.5 if scale is None else float(scale)
    d = max(d_k, d_v, LEAST_SIDE)
    Q, K, V = (
        torch.nn.functional.pad(each, (0, d - each.shape[-1])).reshape(-1, n, d).contiguous()
        for each in (query, key, value)
    )
    O = _function(torch).apply(Q, K, V, bool(is_causal), scale)
    return O[..., :d_v].reshape(*query.shape[:-1], d_v)


def _torch() -> Any:
    try:
        import torch
        import triton as _  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"attention needs PyTorch and Triton, and {error.name} is not here: pip install torch."
        ) from None
    if not torch.cuda.is_available():
        raise UsageError("attention needs an NVIDIA GPU that PyTorch sees, and there is none here.")
    return torch


def _check(torch: Any, query: Any, key: Any, value: Any, enable_gqa: bool) -> None:
    """See that the kernels can do what is asked for."""
    given = {"query": query, "key": key, "value": value}
    for name, each in given.items():
        if each.dim() < 3:
            raise UsageError(f"{name} has shape {tuple(each.shape)}; give (…, heads, tokens, head dimension).")
        if each.dtype not in (torch.bfloat16, torch.float16) or each.dtype != query.dtype:
            raise UsageError(f"{name} is of {each.dtype}; give all three in bfloat16, or all in float16.")
        if not each.is_cuda:
            raise UsageError(f"{name} is on {each.device}; give tensors on a GPU.")
        if not 1 <= each.shape[-1] <= LARGEST:
            raise UsageError(f"{name} has a head dimension of {each.shape[-1]}; it may be up to {LARGEST:,}.")
    if not query.shape[-2] == key.shape[-2] == value.shape[-2]:
        lengths = ", ".join(str(each.shape[-2]) for each in given.values())
        raise UsageError(f"query, key and value have {lengths} tokens; these kernels take as many of each.")
    if query.shape[-1] != key.shape[-1]:
        raise UsageError(f"query and key have head dimensions {query.shape[-1]} and {key.shape[-1]}; give the same.")
    if key.shape[:-2] != value.shape[:-2] or query.shape[:-3] != key.shape[:-3]:
        shapes = ", ".join(str(tuple(each.shape)) for each in given.values())
        raise UsageError(f"query, key and value have shapes {shapes}; all but heads and head dimension must agree.")
    heads, shared = query.shape[-3], key.shape[-3]
    if heads != shared and not (enable_gqa and heads % shared == 0):
        raise UsageError(
            f"query has {heads} heads and key {shared}; give as many, or with enable_gqa a number that divides {heads}."
        )
    if query.shape[:-2].numel() > MOST_HEADS:
        raise UsageError(f"there are {query.shape[:-2].numel():,} heads in all; give {MOST_HEADS:,} at most at once.")


@lru_cache(maxsize=256)
def _run(tiling: Tiling, n: int, d: int, dtype: str, causal: bool, scale: float) -> Any:
    """The function that launches the kernels of a tiling, and the names of the tensors it takes."""
    schedule, band = get(tiling.schedule), masks.of("causal" if causal else None)
    assert band is None or isinstance(band, Band)
    program = schedule.program if band is None else schedule.masked
    sizes = {"n": n, "d": d, **tiling.blocks}
    source = triton(program, sizes, dtype, band, scale=scale, warps=tiling.warps, stages=tiling.stages)
    return module_of(source.text), [name for name in program.tensors if name in program.inputs]


def _launch(way: str, tensors: dict[str, Any], causal: bool, scale: float) -> Any:
    Q = tensors["Q"]
    (heads, n, d), dtype = Q.shape, str(Q.dtype).removeprefix("torch.")
    chosen = plan(n, d, heads, dtype=dtype, causal=causal)
    best = (chosen.forward if way == "forward" else chosen.backward)[0]
    module, names = _run(best.tiling, n, d, dtype, causal, scale)
    return module.run(*(tensors[name] for name in names))


@lru_cache(maxsize=1)
def _function(torch: Any) -> Any:
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, Q: Any, K: Any, V: Any, causal: bool, scale: float) -> Any:
            made = _launch("forward", {"Q": Q, "K": K, "V": V}, causal, scale)
            ctx.save_for_backward(Q, K, V, made["O"], made["L"])
            ctx.asked = causal, scale
            return made["O"]

        @staticmethod
        def backward(ctx: Any, dO: Any) -> Any:
            tensors = dict(zip(("Q", "K", "V", "O", "L"), ctx.saved_tensors, strict=True)) | {"dO": dO.contiguous()}
            made = _launch("backward", tensors, *ctx.asked)
            return made["dQ"], made["dK"], made["dV"], None, None

    return Attention
