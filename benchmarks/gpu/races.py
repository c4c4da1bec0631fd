"""The races of docs/rates.md beside the grid: long sequences, and the causal mask.

python benchmarks/gpu/races.py -o benchmarks/gpu/race.jsonl
"""

from __future__ import annotations

import argparse
from pathlib import Path

from grid import compiled, racing

from pebblesim.advice.tiles import PROBLEM
from pebblesim.measuring.race import Track, race

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
    for track, kernels in zip(tracks, compiled(tracks, 14), strict=True):
        rows = race(track, output, only=racing(kernels), kernels=kernels, by_launch=False)
        best = {row["contender"]: f"{row['tflops']:.0f}" for row in rows if "tflops" in row}
        print(f"{track.way}, n = {track.n}, d = {track.d}, {track.mask}: {best}", flush=True)


if __name__ == "__main__":
    main()
