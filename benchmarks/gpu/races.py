"""The races of docs/kernels.md beside the grid: long sequences, the causal mask, FlexAttention.

python benchmarks/gpu/races.py -o benchmarks/gpu/race.jsonl
"""

from __future__ import annotations

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from grid import compile_kernels

from pebblesim.gpu.race import Track, race
from pebblesim.gpu.tiles import PROBLEM, TILINGS

TRACKS = (
    (16384, 512, 2, None),
    (16384, 512, 2, "causal"),
    (16384, 256, 2, None),
    (16384, 256, 2, "causal"),
    (16384, 128, 4, None),
    (16384, 128, 4, "causal"),
    (4096, 64, 32, None),
    (1024, 512, 64, None),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args().output
    tracks = [Track(way, *sizes) for sizes in TRACKS for way in PROBLEM]
    with ProcessPoolExecutor(14, multiprocessing.get_context("spawn")) as pool:
        compiled = [
            pool.submit(compile_kernels, track, number)
            for track in tracks
            for number in range(len(TILINGS[PROBLEM[track.way]]))
        ]
        for future in compiled:
            future.exception()  # what fails to compile fails again where it is measured
    for track in tracks:
        rows = race(track, output)
        best = {row["contender"]: f"{row['tflops']:.0f}" for row in rows if "tflops" in row}
        print(f"{track.way}, n = {track.n}, d = {track.d}, {track.mask}: {best}", flush=True)


if __name__ == "__main__":
    main()
