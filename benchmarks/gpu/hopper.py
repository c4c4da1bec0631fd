"""Gluon kernels of our schedules beside PyTorch's attentions, in one process; run it on a Hopper GPU.

    python benchmarks/gpu/hopper.py -o benchmarks/gpu/hopper.jsonl

A row says useful operations a second, in TFLOP/s (4 n² d for each head forward, 10 n² d backward, half under a causal
mask): the median, best and worst of five replays of a CUDA graph of four calls. Errors are relative to float64, of
bfloat16 words, n = 1,024; `same_again` is whether a second call gives the same bits.

Needs PyTorch and Triton 3.6.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from pebblesim.gpu.emit.gluon import gluon
from pebblesim.gpu.emit.gluon_tiles import HopperTiles, tiles_of
from pebblesim.gpu.module import module_of
from pebblesim.language import masks
from pebblesim.language.registry import get

SCHEDULES = {
    "forward": {64: "flash2-forward", 128: "flash2-forward", 256: "flash2-forward", 512: "scores-stored-resident"},
    "backward": {
        64: "flash2-backward-blocked",
        128: "flash2-backward-blocked",
        256: "small-cache-backward-resident",
        512: "small-cache-backward-resident",
    },
}
"""The fastest schedule of each pass, by the width of a head."""

TWO_PASSES = "backward-two-pass-blocked"
"""Gradients whose bits are the same each time, to d = 128."""

SHAPES = ((16384, 4), (4096, 16))
LARGEST_OF_PYTORCH = 256
"""The widest heads of cuDNN's and FlashAttention's kernels."""

CHECKED = 1024
"""Queries and keys of the shapes whose errors are measured."""


def kernels(tiles: HopperTiles, d: int, mask: str | None) -> Any:
    """The module of a schedule's kernels."""
    dims, band = {"n_q": CHECKED, "n_k": CHECKED, "d_k": d, "d_v": d}, masks.of(mask)
    program = get(tiles.schedule).in_dims(dims).under(band)
    ring: dict[str, Any] = {
        "stages": tiles.stages,
        "apart": tiles.apart,
        "persistent": tiles.persistent and mask is None,
    }
    source = gluon(program, {**dims, **tiles.blocks}, "bfloat16", band, scale=d**-0.5, **ring)
    return module_of(source.text)


def tensors(torch: Any, heads: int, n: int, d: int) -> list[Any]:
    """Q, K, V and dO."""
    chance = torch.Generator("cuda").manual_seed(0)
    kind = {"device": "cuda", "dtype": torch.bfloat16, "generator": chance}
    return [torch.randn(heads, n, d, **kind) for _ in range(4)]


def exact(torch: Any, given: list[Any], mask: str | None) -> dict[str, Any]:
    """The results in float64; L is to base 2."""
    q, k, v, dO = (each.double() for each in given)
    scale = q.shape[-1] ** -0.5
    scores = q @ k.transpose(1, 2) * scale
    if mask is not None:
        later = torch.ones(scores.shape[-2:], device="cuda", dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    logarithm = torch.logsumexp(scores, -1)
    p = torch.exp(scores - logarithm[..., None])
    o = p @ v
    dS = p * (dO @ v.transpose(1, 2) - (dO * o).sum(-1)[..., None]) * scale
    gradients = {"dQ": dS @ k, "dK": dS.transpose(1, 2) @ q, "dV": p.transpose(1, 2) @ dO}
    return {"O": o, "L": logarithm * math.log2(math.e), **gradients}


def timed(torch: Any, call: Callable[[], Any], operations: float) -> dict[str, int]:
    """Operations a second of a call, in 10¹²."""
    call()
    call()
    torch.cuda.synchronize()
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for _ in range(4):
            call()
    graph.replay()
    torch.cuda.synchronize()
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 4)
    rates = {"tflops": median(times), "best": min(times), "worst": max(times)}
    return {name: round(operations / time * 1e-9) for name, time in rates.items()}


def gradients(torch: Any, module: Any, given: list[Any]) -> dict[str, Any]:
    """What a module computes; sums that were added in memory are rounded to the words of the inputs."""
    kind = given[0].dtype
    return {
        name: x.to(kind) if name == "dQ" and x.dtype == torch.float32 else x for name, x in module.run(*given).items()
    }


def ours(torch: Any, way: str, schedule: str, d: int, mask: str | None) -> Iterator[dict[str, Any]]:
    """Rows of our kernels."""
    tiles = tiles_of(schedule, {"d": d})
    module = kernels(tiles, d, mask)
    q, k, v, dO = tensors(torch, 2, CHECKED, d)
    right = exact(torch, [q, k, v, dO], mask)
    backward = (dO, right["O"].bfloat16(), right["L"].float()) if way == "backward" else ()
    made, again = (gradients(torch, module, [q, k, v, *backward]) for _ in range(2))
    compared = {name: x for name, x in made.items() if name in right}
    errors = {name: ((x.double() - right[name]).norm() / right[name].norm()).item() for name, x in compared.items()}
    found = {
        "kernel": tiles.schedule,
        "way": way,
        "d": d,
        "mask": mask,
        "persistent": tiles.persistent and mask is None,
        "blocks": dict(tiles.blocks),
        "stages": tiles.stages,
        "errors": {name: float(f"{error:.2e}") for name, error in errors.items()},
        "same_again": all(torch.equal(x, again[name]) for name, x in made.items()),
    }
    forward = kernels(tiles_of(SCHEDULES["forward"][d], {"d": d}), d, mask)
    for n, heads in SHAPES:
        q, k, v, dO = tensors(torch, heads, n, d)
        given = [q, k, v]
        if way == "backward":
            before = forward.run(q, k, v)
            given += [dO, before["O"], before["L"]]
        operations = (4 if way == "forward" else 10) * n * n * d * heads / (1 if mask is None else 2)
        yield {**found, "n": n, "heads": heads, **timed(torch, partial(gradients, torch, module, given), operations)}


def theirs(torch: Any, d: int, mask: str | None) -> Iterator[dict[str, Any]]:
    """Rows of the attentions that PyTorch has at this width."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attention = torch.nn.functional.scaled_dot_product_attention
    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
    if d > LARGEST_OF_PYTORCH:
        backends = {"efficient": SDPBackend.EFFICIENT_ATTENTION}
    for (n, heads), (name, backend) in product(SHAPES, backends.items()):
        q, k, v, dO = (each[None].requires_grad_() for each in tensors(torch, heads, n, d))
        with sdpa_kernel(backend):
            o = attention(q, k, v, is_causal=mask is not None)
            calls = {
                "forward": partial(attention, q, k, v, is_causal=mask is not None),
                "backward": partial(torch.autograd.grad, o, (q, k, v), dO, retain_graph=True),
            }
            for way, call in calls.items():
                operations = (4 if way == "forward" else 10) * n * n * d * heads / (1 if mask is None else 2)
                row = {"kernel": name, "way": way, "d": d, "mask": mask, "n": n, "heads": heads}
                yield {**row, **timed(torch, call, operations)}


def rows(torch: Any, cases: Iterable[tuple[int, str | None]]) -> Iterator[dict[str, Any]]:
    """All rows; a case that fails is a row that says why."""
    for d, mask in cases:
        made: list[tuple[str, Callable[[], Iterator[dict[str, Any]]]]] = [
            (f"{way}, {schedule}", partial(ours, torch, way, schedule, d, mask))
            for way in SCHEDULES
            for schedule in dict.fromkeys((SCHEDULES[way][d], *[TWO_PASSES] * (way == "backward" and d <= 128)))
        ]
        for name, each in [("PyTorch", partial(theirs, torch, d, mask)), *made]:
            try:
                yield from each()
            except Exception as error:  # the other cases are measured
                yield {"kernel": name, "d": d, "mask": mask, "error": str(error).partition("\n")[0]}


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to add rows to")
    parser.add_argument("-d", type=int, nargs="+", default=list(SCHEDULES["forward"]), help="widths of heads")
    given = parser.parse_args()
    for row in rows(torch, product(given.d, (None, "causal"))):
        row["device"] = torch.cuda.get_device_name()
        print(json.dumps(row), flush=True)
        with given.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
