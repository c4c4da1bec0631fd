"""Predict the traffic to HBM of what was measured anew, after a change of the model of L2: `predict.py [GROUP…]`."""

from __future__ import annotations

import sys
from pathlib import Path

from pebblesim.measuring.cases import Case
from pebblesim.measuring.measure import predicted
from pebblesim.measuring.results import load, save

HERE = Path(__file__).resolve().parent
QUANTITIES = ("hbm_read", "hbm_written")


def main() -> None:
    for group in sys.argv[1:] or ("exact", "crossover", "fitted", "unseen", "workers", "heads", "rectangles"):
        rows = load(HERE / f"{group}.jsonl")
        for number, row in enumerate(rows, 1):
            if sys.stderr.isatty():
                print(f"{group}: {number} of {len(rows)}", end="\r", file=sys.stderr)
            case = Case(row["schedule"], row["dims"], row["M"], row["blocks"], row["workers"], row["threads"])
            for kernel, launch in zip(case.source.kernels, row["launches"], strict=True):
                found = predicted(case, kernel, launch["at_once"], row["gpu"])
                launch["predicted"] |= {name: found[name] for name in QUANTITIES}
            for name in QUANTITIES:
                values = [launch["predicted"][name] for launch in row["launches"]]
                row["total"]["predicted"][name] = None if None in values else sum(values)
        save(HERE / f"{group}.jsonl", rows)


if __name__ == "__main__":
    main()
