"""What holds the kernels with a bias up: counters of a layer, by Nsight Compute; on a GPU, with `ncu`.

    python benchmarks/gpu/bias_limits.py -o bias_limits.jsonl

The layer has 4 heads of 384 tokens and 512 sequences that share their bias, bfloat16, d = 32. A row has the counters of
one kernel that are of use: microseconds, how busy the parts of the card are, and what warps wait for.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from bias_tiles import passes
from profiler import under_profiler

N, D, HEADS, SEQUENCES = 384, 32, 4, 512

SECTIONS = (
    "SpeedOfLight", "WarpStateStats", "SchedulerStats", "Occupancy", "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis", "LaunchStats",
)  # fmt: skip

OF_USE = re.compile(
    r"gpu__time_duration|throughput|issue_active|issue_stalled.*ratio|warps_active|inst_executed_pipe|inst_issued"
    r"|occupancy|registers_per_thread|shared_mem|hit_rate|_cycles_active|bytes.*per_second"
)
"""Counters that are kept, by their names."""


def rows(text: str) -> list[dict[str, Any]]:
    """The counters of each kernel, from a table of ncu: names, units, and a line for each kernel."""
    lines = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    names, units, *kernels = lines
    made = []
    for line in kernels:
        row: dict[str, Any] = {"kernel": dict(zip(names, line, strict=True))["Kernel Name"]}
        for name, unit, value in zip(names, units, line, strict=True):
            if OF_USE.search(name):
                try:
                    row[f"{name} [{unit}]"] = float(value.replace(",", ""))
                except ValueError:
                    continue
        made.append(row)
    return made


def profiled() -> None:
    """Both passes of the layer, by kernels, under the profiler."""
    import torch

    from pebblesim.operator import bias as kernels

    normal = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    q, k, v, dO = (normal(SEQUENCES, HEADS, N, D) for _ in range(4))
    limits = kernels.Limits(SEQUENCES, None, None, False, D**-0.5)
    call = partial(passes, torch, (q, k, v), normal(1, 1, HEADS, N, N), dO, limits)
    call()  # compiled, and in Triton's cache
    under_profiler(call)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    parser.add_argument("--profiled", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.profiled:
        return profiled()
    words = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw"]
    words += [word for section in SECTIONS for word in ("--section", section)]
    done = subprocess.run([*words, sys.executable, __file__, "--profiled"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:] or done.stdout[-2000:])
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    found = rows(done.stdout)
    asked.output.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    for row in found:
        print(row, flush=True)


if __name__ == "__main__":
    main()
