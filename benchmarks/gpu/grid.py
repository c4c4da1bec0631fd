"""Measure the grid of docs/rates.md on this GPU: `python benchmarks/gpu/grid.py -o FOLDER`.

Writes FOLDER/ceilings.jsonl (what the card's memories and tensor cores reach) and FOLDER/grid.jsonl (our kernels for
many queries, and PyTorch's, over d and n), a line for each as it is measured; run again, it goes on where it was
stopped. Of each schedule those kernels race, in Triton and in Gluon, whose forecasts are within 15 % of its fastest;
not those for few queries. Kernels are compiled by several processes first.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from pebblesim.advice import cards
from pebblesim.advice.forecast import forecast
from pebblesim.advice.tiles import PROBLEM, Tiling
from pebblesim.core.errors import UsageError
from pebblesim.language import masks
from pebblesim.language.registry import get
from pebblesim.measuring.calibrate.measure import streaming
from pebblesim.measuring.race import BACKENDS, Track, offered, prepared, race, source_of

D = (64, 96, 128, 192, 256, 320, 384, 512, 576, 768, 1024)
N = (4096, 16384, 1024)
TOKENS = 65536
"""heads x n."""

WITHIN = 1.15
"""How far the forecasts of kernels that race may be from that of their schedule's fastest."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path())
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no cell after these")
    parser.add_argument("-n", type=int, nargs="*", default=N)
    parser.add_argument("-d", type=int, nargs="*", default=D)
    asked = parser.parse_args()
    asked.output.mkdir(parents=True, exist_ok=True)
    tracks = [Track(way, n, d, TOKENS // n) for n in asked.n for d in asked.d for way in PROBLEM]
    start = time.monotonic()
    kernels = compiled(tracks, asked.workers)
    print(f"{time.monotonic() - start:.0f} s: compiled", flush=True)
    ceilings(asked.output / "ceilings.jsonl")
    for track, own in zip(tracks, kernels, strict=True):
        if time.monotonic() - start > asked.seconds:
            break
        rows = race(track, asked.output / "grid.jsonl", only=racing(own), kernels=own, by_launch=False)
        best = {row["contender"]: f"{row.get('tflops', 0):.0f}" for row in rows}
        print(f"{time.monotonic() - start:.0f} s: {track.way}, n = {track.n}, d = {track.d}: {best}", flush=True)


def racing(kernels: Sequence[Tiling]) -> list[str]:
    """The contenders: the schedules of kernels, and PyTorch's attentions but FlexAttention."""
    return [*dict.fromkeys(each.schedule for each in kernels), *(f"torch-{name}" for name in BACKENDS)]


def compiled(tracks: Sequence[Track], workers: int) -> list[list[Tiling]]:
    """The kernels that race in each task, compiled into Triton's cache; one text is for many lengths."""
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        named = list(pool.map(near, tracks))
        first: dict[str, tuple[Track, Tiling]] = {}
        for track, found in zip(tracks, named, strict=True):
            for tiling, text in found:
                first.setdefault(text, (track, tiling))
        for failed in pool.map(compile_kernels, *zip(*first.values(), strict=True)):
            if failed:
                print(failed, flush=True)
    return [[tiling for tiling, _ in found] for found in named]


def near(track: Track) -> list[tuple[Tiling, str]]:
    """The kernels that race in a task, with their texts: those near the fastest forecast of their schedule."""
    card, band, found = cards.card("H200"), masks.of(track.mask), list[tuple[float, Tiling, str]]()
    for tiling in (each for each in offered(track) if not each.one_source and "decoding" not in each.schedule):
        try:
            seconds = forecast(tiling, track.dims, card, track.dtype, track.heads, band).seconds
            found.append((seconds, tiling, source_of(track, tiling).text))
        except UsageError:  # blocks that no multiprocessor has room for
            continue
    least: dict[tuple[str, bool], float] = {}
    for seconds, tiling, _ in found:
        kind = tiling.schedule, tiling.gluon
        least[kind] = min(seconds, least.get(kind, seconds))
    return [
        (tiling, text) for seconds, tiling, text in found if seconds <= WITHIN * least[tiling.schedule, tiling.gluon]
    ]


def compile_kernels(track: Track, tiling: Tiling) -> str:
    """Run the kernels of a tiling once, so that Triton's cache on disk holds them; the error that this ends with."""
    import torch

    program, shape = (
        get(tiling.schedule).in_dims(track.dims).under(masks.of(track.mask)),
        (track.heads, track.n, track.d),
    )
    try:
        given = {name: torch.randn(shape, device="cuda").to(torch.bfloat16) for name in ("Q", "K", "V", "dO", "O")}
        given["L"] = torch.full(shape[:2], 8.0, device="cuda")
        prepared(source_of(track, tiling), program, given, track.outputs)()
        torch.cuda.synchronize()
    except Exception as error:  # Triton's, PyTorch's
        return f"{tiling}, d = {track.d}: {type(error).__name__}: {error}"[:300]
    return ""


def ceilings(path: Path) -> None:
    """The rates that the card reaches: reads from L2 past L1, copies in memory, and products of matrices."""
    import torch
    from triton.testing import do_bench

    rows: list[dict[str, Any]] = []
    for megabytes in (16, 32, 40, 48, 56, 1024):
        words = megabytes * 2**20 // 4
        x = torch.randn(words, device="cuda")
        best = 0.0
        for programs in (264, 1056):
            for block in (8192, 16384):
                loops = max(1, 2**30 // (programs * block))
                out = torch.empty(programs, device="cuda")
                call = streaming(x, out, words, block, loops, programs)
                seconds = do_bench(call, warmup=5, rep=20, return_mode="median") / 1e3
                best = max(best, 4 * programs * block * loops / seconds)
        rows.append({"ceiling": "read", "megabytes": megabytes, "bytes_per_second": best})
    a = torch.randn(2**30, device="cuda", dtype=torch.bfloat16)
    b = torch.empty_like(a)
    seconds = do_bench(lambda: b.copy_(a), warmup=10, rep=60, return_mode="median") / 1e3
    rows.append({"ceiling": "copy", "bytes_per_second": 2 * a.nbytes / seconds})
    for side in (4096, 8192):
        p, q = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        seconds = do_bench(lambda p=p, q=q: p @ q, warmup=10, rep=60, return_mode="median") / 1e3
        rows.append({"ceiling": "products", "side": side, "operations_per_second": 2 * side**3 / seconds})
    for row in rows:
        print(row, flush=True)
    text = "".join(json.dumps({"device": torch.cuda.get_device_name(), **row}) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
