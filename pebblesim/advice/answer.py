"""The first lines of an advice: the call to make, its time, and the times of other attentions beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pebblesim.advice import pytorch_times
from pebblesim.advice.amounts import duration
from pebblesim.advice.calls import AttentionCall, SeenMask
from pebblesim.advice.forecast import at_least
from pebblesim.advice.kernels import OurKernels
from pebblesim.advice.measured import OTHERS, OURS, WIDE, Measured, Shape, measured, useful
from pebblesim.advice.pytorch_rules import SHIPPED, Where, choose
from pebblesim.core.sizes import assigned
from pebblesim.language.masks import Band

WAYS = {"forward": "forward", "backward-qkv": "backward"}
"""The passes of attention, by problem."""

BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
"""PyTorch's attentions that a line of Python chooses."""

CLEARLY = 0.97
"""Another attention is advised if it takes less than this part of our time: two runs differ by so much."""


def sizes(advice: OurKernels) -> tuple[int, int, int, int]:
    """n_q, n_k, d_k and d_v of one head."""
    dims = advice.dims
    n, d = dims.get("n", 0), dims.get("d", 0)
    n_q = dims.get("n_q", n) // advice.heads_per_problem
    return n_q, dims.get("n_k", n), dims.get("d_k", d), dims.get("d_v", d)


def beside(advice: OurKernels) -> Measured:
    """Find what was measured for the attention of an advice, or else what is estimated."""
    n_q, n_k, d_k, d_v = sizes(advice)
    shape = Shape(WAYS[advice.problem], d_k, d_v, "" if advice.mask is None else str(advice.mask))
    heads = advice.heads * advice.batch
    kv_heads = (advice.kv_heads or advice.heads) * advice.batch
    work = useful(shape, n_q, heads)
    found = measured(advice.card.device, shape, (n_q, n_k), heads, kv_heads, advice.dtype, work)
    return replace(found, estimated=estimated(advice)) if found.why else found


def estimated(advice: OurKernels) -> dict[str, float]:
    """The kernel that PyTorch takes by its rules, and its estimated time, as in `explain`; nothing if none is known.

    A mask must be one that a flag of PyTorch says.
    """
    (n_q, n_k, d_k, d_v), mask = sizes(advice), advice.mask
    flag = isinstance(mask, Band) and (mask.before, mask.after) == (None, 0) and n_q == n_k
    if not advice.card.calibrated or not (mask is None or flag):
        return {}
    way, heads = WAYS[advice.problem], advice.heads
    asked = AttentionCall(
        "sdpa",
        advice.batch,
        heads,
        advice.kv_heads or heads,
        n_q,
        n_k,
        d_k,
        d_v,
        advice.dtype,
        SeenMask("causal", None, 0) if flag else SeenMask(),
        training=way == "backward",
        enable_gqa=True,
    )
    backend = choose(asked, Where(advice.card.capability, max(SHIPPED))).backend
    seconds = pytorch_times.seconds(asked, backend, way, advice.card.device)
    return {} if seconds is None else {backend: seconds}


def best_other(found: Measured, ours: float) -> str | None:
    """The attention of PyTorch that is faster than ours: clearly where both ran, else by its estimate; None if none."""
    near = {kernel: seconds / CLEARLY for kernel, seconds in found.seconds.items()} | dict(found.estimated)
    near = {kernel: seconds for kernel, seconds in near.items() if kernel in BACKENDS}
    fastest = min(near, key=lambda kernel: near[kernel], default=None)
    return fastest if fastest is not None and near[fastest] < ours else None


def call(advice: OurKernels, other: str | None) -> str:
    """The line of Python that computes this attention, by ours or by another one of PyTorch."""
    n_q, n_k, *_ = sizes(advice)
    arguments = ["Q", "K", "V"]
    if isinstance(mask := advice.mask, Band):
        if mask.after == 0:
            arguments.append("is_causal=True")
        if mask.before is not None or mask.after:
            arguments.append(f"window=({mask.before}, {mask.after})")
        if n_q != n_k and mask.at_end:
            arguments.append('align="end"')
    if advice.kv_heads not in (None, advice.heads):
        arguments.append("enable_gqa=True")
    asked = f"({', '.join(arguments)})"
    if other is None:
        return f"from pebblesim.gpu.torch import attention; O = attention{asked}"
    where = f"torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.{BACKENDS[other]})"
    return f"with {where}: O = torch.nn.functional.scaled_dot_product_attention{asked}"


def advised(advice: OurKernels, found: Measured) -> str:
    """The line of Python to use: that of another attention only where it is known to be faster."""
    ours = found.seconds.get(OURS, advice.kernels[0].seconds)
    return call(advice, best_other(found, ours))


def first_lines(advice: OurKernels) -> Iterator[str]:
    """Say what to call and what is gained, in four lines."""
    found = beside(advice)
    yield f"call: {advised(advice, found)}"
    yield f"ours: {', '.join(_our_times(advice, found))}; {_kernel(advice)}"
    if found.why:
        known = ", ".join([*_estimated(advice, found), *_raced(advice, found)])
        yield f"others: {f'{known}; others ' if known else ''}not measured {found.why}"
    else:
        yield from _others(advice, found)


def _kernel(advice: OurKernels) -> str:
    tiling = advice.kernels[0].tiling
    return f"{tiling.schedule}{', Gluon' * tiling.gluon}, {assigned(tiling.blocks)}"


def _our_times(advice: OurKernels, found: Measured) -> Iterator[str]:
    best = advice.kernels[0]
    if OURS in found.seconds:
        yield f"{duration(found.seconds[OURS])} {'measured' if found.exact else 'interpolated'}"
    if advice.card.calibrated:
        yield f"{duration(best.seconds)} forecast"
    else:
        yield f"{duration(at_least(best, advice.card, advice.dtype))} at least"


def _others(advice: OurKernels, found: Measured) -> Iterator[str]:
    """Times of other attentions, and where they were measured."""
    ours = found.seconds.get(OURS, advice.kernels[0].seconds)
    times = (
        f"{OTHERS[kernel]} {duration(seconds)} ({seconds / ours:.2f} x)"
        for kernel, seconds in found.seconds.items()
        if kernel in OTHERS
    )
    yield f"others: {', '.join([*times, *_raced(advice, found)])}"
    wide = max(sizes(advice)[2:]) > WIDE
    asked = ("flex", "ffpa") if wide else ("cudnn", "flash", "flex")
    missing = ", ".join(OTHERS[kernel] for kernel in asked if kernel not in {**found.seconds, **found.raced})
    said = "measured at this size" if found.exact else f"interpolated, measured at n = {_numbers(found.lengths)}"
    yield f"times: {said}{'; not measured: ' if missing else ''}{missing}"


def _estimated(advice: OurKernels, found: Measured) -> Iterator[str]:
    """The estimated time of the kernel that PyTorch takes."""
    ours = advice.kernels[0].seconds
    for kernel, seconds in found.estimated.items():
        faster = ": faster than ours" if seconds < ours else ""
        yield f"{OTHERS[kernel]} {duration(seconds)} ({seconds / ours:.2f} x, estimated{faster})"


def _raced(advice: OurKernels, found: Measured) -> Iterator[str]:
    """Times of kernels that were raced at another length, which each is said with."""
    ours = found.seconds.get(OURS, advice.kernels[0].seconds)
    for kernel, (seconds, n) in found.raced.items():
        yield f"{OTHERS[kernel]} {duration(seconds)} ({seconds / ours:.2f} x, by its rate at n = {n:,})"


def _numbers(lengths: tuple[int, ...]) -> str:
    return " and ".join(f"{n:,}" for n in lengths)
