"""Measure the grid of docs/kernels.md on this GPU: `python benchmarks/gpu/grid.py -o FOLDER`.

Writes FOLDER/ceilings.jsonl (what the card's memories and matrix units reach) and FOLDER/grid.jsonl (every kernel of
`TILINGS`, and PyTorch's, over d and n), a line for each as it is measured; run again, it goes on where it was stopped.
Kernels are compiled by other processes ahead of those that are measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from pebblesim.gpu.calibrate.measure import streaming
from pebblesim.gpu.module import module_of
from pebblesim.gpu.race import Track, contenders, fits, race, source_of
from pebblesim.gpu.tiles import PROBLEM, TILINGS
from pebblesim.language.registry import get

D = (64, 96, 128, 192, 256, 320, 384, 512, 576, 768, 1024)
N = (4096, 16384, 1024)
TOKENS = 65536
"""heads x n."""


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
    with ProcessPoolExecutor(asked.workers, multiprocessing.get_context("spawn")) as pool:
        compiled: list[list[Future[None]]] = [
            [pool.submit(compile_kernels, track, number) for number in range(len(TILINGS[PROBLEM[track.way]]))]
            for track in tracks
        ]
        ceilings(asked.output / "ceilings.jsonl")
        for track, futures in zip(tracks, compiled, strict=True):
            if time.monotonic() - start > asked.seconds:
                for future in (each for other in compiled for each in other):
                    future.cancel()
                break
            for future in futures:
                future.exception()  # what fails to compile fails again where it is measured
            only = [name for name in contenders(track.way) if name != "torch-flex"]
            rows = race(track, asked.output / "grid.jsonl", only=only)
            best = {row["contender"]: f"{row.get('tflops', 0):.0f}" for row in rows}
            print(f"{time.monotonic() - start:.0f} s: {track.way}, n = {track.n}, d = {track.d}: {best}", flush=True)


def compile_kernels(track: Track, number: int) -> None:
    """Compile the kernels of a tiling into Triton's cache."""
    import torch

    tiling = TILINGS[PROBLEM[track.way]][number]
    source = source_of(track, tiling)
    fits(tiling, source, track)
    module, tensors = module_of(source.text), get(tiling.schedule).program.tensors
    for kernel in source.kernels:
        shapes = (tensors[name].shape for name in kernel.tensors)
        kinds = [torch.float32 if len(shape) == 1 else getattr(torch, track.dtype) for shape in shapes]
        given = [torch.empty(16, dtype=kind, device="cuda") for kind in kinds]
        before, behind = ([track.n] * len(names) for names in kernel.numbers)
        warps, stages = tiling.of(kernel.launch.name)
        warmup = getattr(module, kernel.name).warmup
        warmup(*before, *given, *behind, grid=(1,), num_warps=warps, num_stages=stages)


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
