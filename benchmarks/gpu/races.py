"""The races of docs/kernels.md beside the grid: long sequences, the causal mask, FlexAttention.

python benchmarks/gpu/races.py -o benchmarks/gpu/race.jsonl
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pebblesim.gpu.race import PROBLEM, Track, race

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
    for n, d, heads, mask in TRACKS:
        for way in PROBLEM:
            rows = race(Track(way, n, d, heads, mask), output)
            best = {row["contender"]: f"{row['tflops']:.0f}" for row in rows if "tflops" in row}
            print(f"{way}, n = {n}, d = {d}, {mask}: {best}", flush=True)


if __name__ == "__main__":
    main()
