"""Attention for PyTorch with kernels from our schedules: `from pebblesim.gpu.torch import attention`.

The forward and the backward pass each use the schedule and the tiles with the shortest forecast for lengths rounded up
to powers of two; `plan` shows which, and why. Kernels are generated and compiled for head dimensions, a type and a mask
at their first use, and then serve all lengths. PyTorch and Triton are imported when attention is first computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import listed
from pebblesim.gpu.advice import cards
from pebblesim.gpu.advice.forecast import Forecast, forecast, forecasts
from pebblesim.gpu.emit.triton import divided, far_away, triton
from pebblesim.gpu.emit.words import LEAST_SIDE
from pebblesim.gpu.module import module_of
from pebblesim.gpu.tiles import Tiling
from pebblesim.language import masks
from pebblesim.language.masks import Band
from pebblesim.language.program import Program
from pebblesim.language.registry import get

LARGEST = 1024
"""Largest head dimension."""

MOST_HEADS = 65535
"""Largest number of heads of all sequences together: a launch can have this number of rows of thread blocks."""

PROBLEM = {"forward": "forward", "backward": "backward-qkv"}
"""The problem of each pass."""

RESULTS = {"forward": ("O", "L"), "backward": ("dQ", "dK", "dV")}
"""The outputs of each pass that are kept."""

Dims = tuple[tuple[str, int], ...]
"""Sizes by name, as a key of a table."""

CARD = "H200"
"""The card whose rates are used if the current card was not measured."""


@dataclass(frozen=True)
class KernelPlan:
    """The kernels that compute an attention of some size, and the reason.

    Attributes:
        dims: n_q, n_k, d_k and d_v as they are computed.
        heads: number of heads, computed all at once or in several rounds.
        causal: tokens attend to themselves and earlier tokens.
        card: the card whose rates are used in the forecasts.
        forward, backward: forecasts of all kernels that fit; the first one is used.
    """

    dims: Mapping[str, int]
    heads: int
    causal: bool
    card: str
    forward: tuple[Forecast, ...]
    backward: tuple[Forecast, ...]

    def __str__(self) -> str:
        sizes = listed(self.dims)
        lines = [f"{sizes}, {self.heads:,} heads{', causal' * self.causal}, rates of {self.card}"]
        for way, ranked in (("forward", self.forward), ("backward", self.backward)):
            best = ranked[0]
            line = f"{way}: {best.tiling}: {best.seconds * 1e3:.3g} ms, most of it {best.binds}"
            other = next((each for each in ranked if each.tiling.schedule != best.tiling.schedule), None)
            if other is not None:
                line += f"; {other.tiling.schedule} would take {other.seconds * 1e3:.3g} ms, most of it {other.binds}"
            lines.append(line)
        return "\n".join(lines)


def plan(
    n: int,
    d: int,
    heads: int = 1,
    *,
    n_k: int | None = None,
    d_v: int | None = None,
    dtype: str = "bfloat16",
    causal: bool = False,
    workspace: int | None = None,
) -> KernelPlan:
    """Return the kernels for attention over n tokens with head dimension d, and the reason; print it to read it.

    Args:
        n, d: tokens of queries, and words in a row of queries and keys.
        heads: number of heads in all.
        n_k, d_v: tokens of keys, and words in a row of values; as many as n and d if None.
        dtype, causal, workspace: as for `attention`.

    >>> print(plan(16384, 512, 2))  # doctest: +ELLIPSIS
    n_q = 16,384, n_k = 16,384, d_k = 512, d_v = 512, 2 heads, rates of NVIDIA H200 SXM 141GB
    forward: scores-stored-blocked a=128, b=256, c=64, 8 warps, 4 stages: ...
    backward: small-cache-backward-blocked a=128, b=256, c=64, 8 warps, 4 stages: ...
    """
    widths = {"d_k": max(d, LEAST_SIDE), "d_v": max(d if d_v is None else d_v, LEAST_SIDE)}
    dims = {"n_q": n, "n_k": n if n_k is None else n_k, **widths}
    key, card = tuple(dims.items()), cards.card(CARD)
    ranked = []
    for way in PROBLEM:
        found = _forecasts(way, _lengths(key, int(causal), workspace), heads, dtype, int(causal), workspace)
        best, _ = _chosen(way, key, heads, dtype, int(causal), workspace)
        first = (best, *(each for each in found if each is not best))
        ranked.append(tuple(_at(each, dims, card, dtype, heads, int(causal)) for each in first))
    return KernelPlan(dims, heads, causal, card.name, *ranked)


def _at(made: Forecast, dims: Mapping[str, int], card: cards.Card, dtype: str, heads: int, causal: int) -> Forecast:
    """The forecast of the kernels of another one, for these sizes."""
    at_once = heads // made.rounds
    return replace(forecast(made.tiling, dims, card, dtype, at_once, _mask(dims, causal)), rounds=made.rounds)


def _lengths(dims: Dims, causal: int, workspace: int | None) -> Dims:
    """The sizes that kernels are chosen for: lengths are rounded up to powers of two, unless a workspace is to be kept.

    So few kernels serve all lengths.
    """
    if workspace is not None:
        return dims
    several = max(1, causal)
    return tuple(
        (name, 2 ** (-(-size // by) - 1).bit_length() * by if name.startswith("n") else size)
        for name, size in dims
        for by in (several if name == "n_q" else 1,)
    )


@lru_cache(maxsize=1024)
def _forecasts(
    way: str, dims: Dims, heads: int, dtype: str, causal: int, workspace: int | None
) -> tuple[Forecast, ...]:
    """Forecasts of the kernels that fit, the fastest first; `causal`: 0, or queries at each position."""
    sizes = dict(dims)
    return forecasts(PROBLEM[way], sizes, cards.card(CARD), dtype, heads, _mask(sizes, causal), workspace)


def _mask(sizes: Mapping[str, int], causal: int) -> Band | None:
    """Allow key j for query i if j ≤ i, also if the numbers of queries and keys differ, as in PyTorch."""
    if not causal:
        return None
    band = masks.of("causal:start")
    assert isinstance(band, Band)
    return band.grouped(causal, (sizes["n_q"] // causal, sizes["n_k"]))


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    workspace: int | None = None,
) -> Any:
    """softmax(Q Kᵀ scale) V, as `torch.nn.functional.scaled_dot_product_attention` computes it, with its gradients.

    Args:
        query: (…, heads, n_q, d_k), in bfloat16 or float16, on a GPU.
        key: (…, heads, n_k, d_k); with `enable_gqa` fewer heads, each shared by the same number of query heads.
        value: (…, heads, n_k, d_v), with as many heads as `key`.
        attn_mask, dropout_p: none of these.
        is_causal: query i attends to the keys up to i. As in PyTorch, query 0 is at key 0, also if there are fewer
            queries than keys; so do not use `is_causal` for queries at the end of a longer text.
        scale: 1/√d_k if None.
        enable_gqa: whether heads of keys and values are shared.
        workspace: bytes that tables of scores and their gradients may take; unlimited if None. Fewer heads are computed
            at once or, if one head needs more, fewer rows.

    Returns:
        (…, heads, n_q, d_v). Head dimensions may be up to 1,024.

    Raises:
        UsageError: there is no PyTorch with a GPU, or these kernels do not support the arguments.
    """
    torch = _torch()
    if attn_mask is not None or dropout_p:
        raise UsageError("attention takes neither attn_mask nor dropout_p; is_causal it does take.")
    _check(torch, query, key, value, enable_gqa)
    *batch, heads, n_q, d_k = query.shape
    shared, d_v = heads // key.shape[-3], value.shape[-1]
    scale = d_k**-0.5 if scale is None else float(scale)
    if is_causal:  # no query sees the keys behind the last one
        key, value = key[..., :n_q, :], value[..., :n_q, :]
    Q = query.reshape(-1, shared, n_q, d_k)
    if shared > 1:  # the queries of one position stand together, as rows of one head
        Q = Q.transpose(1, 2)
    Q, K, V = (
        torch.nn.functional.pad(each, (0, max(0, LEAST_SIDE - each.shape[-1]))).contiguous()
        for each in (
            Q.reshape(-1, n_q * shared, d_k),
            key.reshape(-1, *key.shape[-2:]),
            value.reshape(-1, *value.shape[-2:]),
        )
    )
    O = _function(torch).apply(Q, K, V, shared if is_causal else 0, scale, workspace)[..., :d_v]
    if shared > 1:
        O = O.reshape(-1, n_q, shared, d_v).transpose(1, 2)
    return O.reshape(*batch, heads, n_q, d_v)


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
    """Check that the kernels support the arguments."""
    arguments = {"query": query, "key": key, "value": value}
    for name, each in arguments.items():
        if each.dim() < 3:
            raise UsageError(f"{name} has shape {tuple(each.shape)}; give (…, heads, tokens, head dimension).")
        if each.dtype not in (torch.bfloat16, torch.float16) or each.dtype != query.dtype:
            raise UsageError(f"{name} is of {each.dtype}; give all three in bfloat16, or all in float16.")
        if not each.is_cuda:
            raise UsageError(f"{name} is on {each.device}; give tensors on a GPU.")
        if not each.shape[-2]:
            raise UsageError(f"{name} has no tokens; give one or more.")
        if not 1 <= each.shape[-1] <= LARGEST:
            raise UsageError(f"{name} has a head dimension of {each.shape[-1]}; it may be up to {LARGEST:,}.")
    if key.shape[-2] != value.shape[-2]:
        raise UsageError(f"key and value have {key.shape[-2]} and {value.shape[-2]} tokens; give as many of both.")
    if query.shape[-1] != key.shape[-1]:
        raise UsageError(f"query and key have head dimensions {query.shape[-1]} and {key.shape[-1]}; give the same.")
    if key.shape[:-2] != value.shape[:-2] or query.shape[:-3] != key.shape[:-3]:
        shapes = ", ".join(str(tuple(argument.shape)) for argument in arguments.values())
        raise UsageError(f"query, key and value have shapes {shapes}; all but heads and head dimension must agree.")
    heads, shared = query.shape[-3], key.shape[-3]
    if heads != shared and not (enable_gqa and heads % shared == 0):
        raise UsageError(
            f"query has {heads} heads and key {shared}; give as many, or with enable_gqa a number that divides {heads}."
        )
    if query.shape[:-2].numel() > MOST_HEADS:
        raise UsageError(f"there are {query.shape[:-2].numel():,} heads in all; give {MOST_HEADS:,} at most at once.")


@lru_cache(maxsize=256)
def _run(
    tiling: Tiling, widths: Dims, even: bool, far: bool, dtype: str, causal: int, scale: float
) -> tuple[Any, list[str]]:
    """The module that launches the kernels of a tiling for all lengths, and the names of the tensors it takes.

    `even`: for lengths that the tiles divide; `far`: see `triton`.
    """
    n = 2**14 if even else 2**14 - 1
    sizes = {"n_q": n * max(1, causal), "n_k": n, **dict(widths)}
    band, program = _mask(sizes, causal), _program(tiling, causal)
    source = triton(
        program,
        {**sizes, **tiling.blocks},
        dtype,
        band,
        scale=scale,
        warps=tiling.warps,
        stages=tiling.stages,
        apart=tiling.apart,
        far=far,
    )
    return module_of(source.text), [name for name in program.tensors if name in program.inputs]


@lru_cache(maxsize=1024)
def _chosen(way: str, dims: Dims, heads: int, dtype: str, causal: int, workspace: int | None) -> tuple[Forecast, bool]:
    """The first of the kernels that are for these lengths, and whether its tiles divide them."""
    for each in _forecasts(way, _lengths(dims, causal, workspace), heads, dtype, causal, workspace):
        even = divided(_program(each.tiling, causal), {**dict(dims), **each.tiling.blocks})
        if even or not each.tiling.even:
            return each, even
    raise UsageError("no kernel is for these lengths; give a larger workspace.")


def _program(tiling: Tiling, causal: int) -> Program:
    schedule = get(tiling.schedule).in_dims({"n_q": 1, "n_k": 1, "d_k": 1, "d_v": 1})
    return schedule.masked if causal else schedule.program


def _launch(way: str, tensors: dict[str, Any], causal: int, scale: float, workspace: int | None) -> dict[str, Any]:
    """Return outputs by name, computed for all heads at once or, if there is a workspace, for groups of heads."""
    torch, Q = _torch(), tensors["Q"]
    heads, dtype = Q.shape[0], str(Q.dtype).removeprefix("torch.")
    lengths = (Q.shape[1], tensors["K"].shape[1], Q.shape[2], tensors["V"].shape[2])
    dims = tuple(zip(("n_q", "n_k", "d_k", "d_v"), lengths, strict=True))
    best, even = _chosen(way, dims, heads, dtype, causal, workspace)
    far = far_away(_program(best.tiling, causal), dict(dims))
    module, names = _run(best.tiling, dims[2:], even, far, dtype, causal, scale)
    at_once = heads // best.rounds
    whole: dict[str, Any] = {}
    for start in range(0, heads, at_once):
        part = slice(start, start + at_once)
        results = module.run(*(tensors[each][part] for each in names))
        for name, made in ((result, results[result]) for result in RESULTS[way]):
            kind = torch.float32 if name == "L" else Q.dtype  # sums of dK and dV may be in float32
            if best.rounds == 1:
                whole[name] = made.to(kind)
                continue
            if name not in whole:
                whole[name] = torch.empty((heads, *made.shape[1:]), dtype=kind, device=Q.device)
            whole[name][part].copy_(made)
    return whole


@lru_cache(maxsize=1)
def _function(torch: Any) -> Any:
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, Q: Any, K: Any, V: Any, causal: int, scale: float, workspace: int | None) -> Any:
            made = _launch("forward", {"Q": Q, "K": K, "V": V}, causal, scale, workspace)
            ctx.save_for_backward(Q, K, V, made["O"], made["L"])
            ctx.asked = causal, scale, workspace
            return made["O"]

        @staticmethod
        def backward(ctx: Any, dO: Any) -> Any:
            tensors = dict(zip(("Q", "K", "V", "O", "L"), ctx.saved_tensors, strict=True)) | {"dO": dO.contiguous()}
            made = _launch("backward", tensors, *ctx.asked)
            return made["dQ"], made["dK"], made["dV"], None, None, None

    return Attention
