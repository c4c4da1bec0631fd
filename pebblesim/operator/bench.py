"""Our kernels beside the attentions that are installed here, on this GPU, in about a minute.

Each attention computes the same shapes in bfloat16. Times are medians of calls between events of the GPU, after the
kernels are compiled; memory is what a call takes at most beside its arguments; errors are the largest of O and of the
three gradients, against float64 for a head, divided by those of attention in plain bfloat16.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pebblesim.core import __version__
from pebblesim.core.errors import UsageError
from pebblesim.core.files import whole_file

Attention = Callable[..., Any]


class Shape(NamedTuple):
    """A batch of one: tokens, head dimension, heads of queries and of keys, and whether the mask is causal."""

    n: int
    d: int
    heads: int
    kv_heads: int
    causal: bool

    def __str__(self) -> str:
        shared = f" on {self.kv_heads}" if self.kv_heads != self.heads else ""
        return f"n = {self.n:,}, d = {self.d}, heads {self.heads}{shared}{', causal' if self.causal else ''}"

    def operations(self, gradients: bool) -> int:
        """Useful operations: 4d for an allowed pair, and with gradients 14d; what is computed twice counts once."""
        pairs = self.n * (self.n + 1) // 2 if self.causal else self.n**2
        return (14 if gradients else 4) * pairs * self.d * self.heads


SHAPES = (
    Shape(16384, 512, 16, 2, True),
    Shape(16384, 512, 8, 8, False),
    Shape(16384, 256, 8, 8, True),
    Shape(16384, 128, 16, 4, True),
    Shape(16384, 64, 16, 16, True),
)

DEVICE = "cuda"

CHECKED = 1024
"""Tokens of the shapes for which errors are computed."""


def ours() -> Attention:
    from pebblesim.operator.public import attention

    return lambda q, k, v, causal: attention(q, k, v, is_causal=causal, enable_gqa=True)


def pytorch() -> Attention:
    from torch.nn.functional import scaled_dot_product_attention

    return lambda q, k, v, causal: scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
    )


def flash_attn() -> Attention:
    function = import_module("flash_attn").flash_attn_func

    def attend(q: Any, k: Any, v: Any, causal: bool) -> Any:
        return function(*(each.transpose(1, 2) for each in (q, k, v)), causal=causal).transpose(1, 2)

    return attend


def ffpa() -> Attention:
    function = import_module("ffpa_attn").ffpa_attn_func
    return lambda q, k, v, causal: function(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


CONTENDERS = {"pebblesim": ours, "torch": pytorch, "flash-attn": flash_attn, "ffpa-attn": ffpa}
"""Functions that make each attention, by the name of its distribution."""


def installed() -> Iterator[tuple[str, Attention]]:
    """The attentions that can be imported here, and their versions."""
    for name, make in CONTENDERS.items():
        try:
            attend = make()
        except ImportError:
            continue
        yield f"{name} {_version(name)}".strip(), attend


def _version(name: str) -> str:
    """The version of a distribution; "" of another's checkout, which has none."""
    try:
        return __version__ if name == "pebblesim" else version(name)
    except PackageNotFoundError:
        return ""


def passes(torch: Any, attend: Attention, shape: Shape, seed: int = 0) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Calls of the forward pass alone, and of both passes."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    sizes = [(1, heads, shape.n, shape.d) for heads in (shape.heads, shape.kv_heads, shape.kv_heads, shape.heads)]
    *x, grad = (torch.randn(size, generator=generator, device=DEVICE, dtype=torch.bfloat16) for size in sizes)

    def forward() -> Any:
        with torch.no_grad():
            return attend(*x, shape.causal)

    def both() -> Any:
        given = [each.detach().requires_grad_() for each in x]
        out = attend(*given, shape.causal)
        return [out.detach(), *torch.autograd.grad(out, given, grad.to(out.dtype))]

    return forward, both


def measured(torch: Any, call: Callable[[], Any], seconds: float) -> dict[str, float]:
    """Seconds of a call, and the bytes that it takes at most."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    most, times, until = torch.cuda.max_memory_allocated() - before, list[float](), time.monotonic() + seconds
    while len(times) < 5 or (len(times) < 100 and time.monotonic() < until):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return {"seconds": median(times), "bytes": most}


def by_definition(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Attention with a score matrix, in the type of its arguments."""
    import torch

    k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
    S = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        S = S.masked_fill(torch.ones_like(S, dtype=torch.bool).triu(1), -torch.inf)
    return torch.softmax(S, -1) @ v


def error(torch: Any, attend: Attention, shape: Shape) -> float:
    """The largest error of O and of the gradients beside that of the definition in bfloat16, for fewer tokens."""
    small = shape._replace(n=CHECKED, heads=shape.heads // shape.kv_heads, kv_heads=1)

    def wide(q: Any, k: Any, v: Any, causal: bool) -> Any:
        return by_definition(q.double(), k.double(), v.double(), causal)

    found, plain, true = (passes(torch, each, small)[1]() for each in (attend, by_definition, wide))
    of = [
        max(float((each.double() - exact.double()).abs().max()) for each, exact in zip(made, true, strict=True))
        for made in (found, plain)
    ]
    return of[0] / of[1]


def rows(torch: Any, shapes: Sequence[Shape], seconds: float) -> Iterator[dict[str, Any]]:
    """Rows of all shapes and attentions, as they are measured."""
    for shape in shapes:
        for name, attend in installed():
            row: dict[str, Any] = {"shape": shape._asdict(), "attention": name}
            try:
                row["error"] = error(torch, attend, shape)
                for way, call in zip(("forward", "both"), passes(torch, attend, shape), strict=True):
                    row[way] = measured(torch, call, seconds)
                    row[way]["tflops"] = shape.operations(way == "both") / row[way]["seconds"] / 1e12
            except Exception as refused:  # whatever kind an attention raises for what it does not support
                row["refused"] = str(refused).strip().partition("\n")[0][:120]
            torch.cuda.empty_cache()
            yield row


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    if "refused" in row:
        return f"  {row['attention']:<22} refused: {row['refused']}"
    forward, both = row["forward"], row["both"]
    return (
        f"  {row['attention']:<22} {forward['tflops']:>8.0f} {both['tflops']:>12.0f} {both['bytes'] / 2**20:>14,.0f} "
        f"{row['error']:>10.2f}"
    )


HEADER = f"  {'TFLOP/s':<22} {'forward':>8} {'both passes':>12} {'MiB, both':>14} {'error':>10}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table of each shape."""
    from pebblesim.kernels.module import torch_with_gpu

    parser = argparse.ArgumentParser(prog="python -m pebblesim.gpu.bench", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, help="file of JSON lines for all rows")
    parser.add_argument("--seconds", type=float, default=0.5, help="of calls for each row and pass; 0.5 by default")
    options = parser.parse_args(arguments)
    try:
        torch = torch_with_gpu("a benchmark", "triton")
    except UsageError as missing:
        parser.exit(2, f"error: {missing}\n")
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, bfloat16; error ÷ that of plain bfloat16")
    found, before = list[dict[str, Any]](), None
    for row in rows(torch, SHAPES, options.seconds):
        shape = Shape(**row["shape"])
        if shape != before:
            print(f"\n{shape}\n{HEADER}")
        before = shape
        found.append(row)
        print(line(row), flush=True)
    if options.output is not None:
        with whole_file(options.output) as unfinished:
            unfinished.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
