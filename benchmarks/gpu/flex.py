"""Race FlexAttention where it runs, beside PyTorch's others: `python benchmarks/gpu/flex.py -o race.jsonl`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pebblesim.gpu.race import PROBLEM, Track, race

TRACKS = (
    (4096, 64, 16, None),
    (4096, 128, 16, None),
    (4096, 256, 16, None),
    (4096, 512, 16, None),
    (4096, 128, 16, "causal"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args().output
    for n, d, heads, mask in TRACKS:
        for way in PROBLEM:
            (row,) = race(Track(way, n, d, heads, mask), output, only=["torch-flex"])
            print(way, n, d, mask, row.get("tflops"), row.get("errors"), row.get("error"), flush=True)


if __name__ == "__main__":
    main()
