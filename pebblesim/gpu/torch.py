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

PROBLEM = {"forward": "forward", "backward": "backward-qkv"}
"""What each pass computes."""

FEWEST_ROWS = 256
"""Rows are cut at multiples of this: longest side of the tiles."""

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
    *,
    workspace: int | None = None,
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
        workspace: bytes that tables of scores and their gradients may take, as many as they need if None. Fewer heads
            are done at once, or, where one head needs more, fewer rows; that not with `is_causal` yet.

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
    O = _function(torch).apply(Q, K, V, bool(is_causal), scale, workspace)
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
def _run(tiling: Tiling, dims: tuple[tuple[str, int], ...], dtype: str, causal: bool, scale: float) -> Any:
    """The module that launches the kernels of a tiling, and the names of the tensors it takes."""
    schedule, band = get(tiling.schedule).in_dims(dict(dims)), masks.of("causal" if causal else None)
    assert band is None or isinstance(band, Band)
    program = schedule.program if band is None else schedule.masked
    sizes = {**dict(dims), **tiling.blocks}
    source = triton(program, sizes, dtype, band, scale=scale, warps=tiling.warps, stages=tiling.stages)
    return module_of(source.text), [name for name in program.tensors if name in program.inputs]


@lru_cache(maxsize=1024)
def _tiling(way: str, dims: tuple[tuple[str, int], ...], heads: int, dtype: str, causal: bool) -> Tiling:
    """The kernels whose forecast is shortest."""
    mask = masks.of("causal" if causal else None)
    return forecasts(PROBLEM[way], dict(dims), cards.card(CARD), dtype, heads, mask)[0].tiling


def at_once(tiling: Tiling, n: int, heads: int, workspace: int) -> tuple[int, int]:
    """(heads, rows) whose tables of scores and the like fit into so many bytes: whole heads, or rows of all heads.

    Raises:
        UsageError: not even a few rows do.
    """
    program = get(tiling.schedule).program
    made = [tensor for name, tensor in program.tensors.items() if name not in (*program.inputs, *program.outputs)]
    row = n * 2 * sum(tensor.shape == ("n", "n") for tensor in made)
    if row * n <= workspace:
        return (min(heads, workspace // (row * n)) if row else heads), n
    rows = workspace // (row * heads) // FEWEST_ROWS * FEWEST_ROWS
    if not rows:
        raise UsageError(
            f"workspace = {workspace:,} bytes holds no {FEWEST_ROWS} rows of {tiling.schedule}; give "
            f"{row * heads * FEWEST_ROWS:,} or more."
        )
    return heads, rows


def _launch(way: str, tensors: dict[str, Any], causal: bool, scale: float, workspace: int | None) -> dict[str, Any]:
    """Outputs by name, made for some heads or rows after the others if there is a workspace."""
    Q = tensors["Q"]
    (heads, n, d), dtype = Q.shape, str(Q.dtype).removeprefix("torch.")
    square = (("n", n), ("d", d))
    together, rows = heads, n
    if workspace is not None:
        together, rows = at_once(_tiling(way, square, heads, dtype, causal), n, heads, workspace)
    if rows < n and causal:
        raise UsageError("rows are not cut under the causal mask yet; give a larger workspace, or none.")
    parts: dict[str, list[Any]] = {}
    for start in range(0, n if rows < n else heads, rows if rows < n else together):
        if rows < n:
            part = slice(start, min(start + rows, n))
            dims: tuple[tuple[str, int], ...] = (("n_q", part.stop - start), ("n_k", n), ("d_k", d), ("d_v", d))
            given = {name: each if name in "KV" else each[:, part].contiguous() for name, each in tensors.items()}
        else:
            part, dims = slice(start, min(start + together, heads)), square
            given = {name: each[part] for name, each in tensors.items()}
        module, names = _run(_tiling(way, dims, given["Q"].shape[0], dtype, causal), dims, dtype, causal, scale)
        for name, made in module.run(*(given[name] for name in names)).items():
            if rows < n and name in ("dK", "dV"):  # sums over all rows, in float32
                parts[name] = [parts[name][0].add_(made)] if name in parts else [made.float()]
            else:
                parts.setdefault(name, []).append(made)
    axis = 1 if rows < n else 0
    whole = {name: made[0] if len(made) == 1 else _torch().cat(made, axis) for name, made in parts.items()}
    return {name: made.to(Q.dtype) if name in ("dK", "dV") else made for name, made in whole.items()}


@lru_cache(maxsize=1)
def _function(torch: Any) -> Any:
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, Q: Any, K: Any, V: Any, causal: bool, scale: float, workspace: int | None) -> Any:
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
