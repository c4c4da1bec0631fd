"""Calls under Nsight Compute, as `ncu --profile-from-start off` sees them; needs a GPU."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

FLAGS = "--clock-control none --cache-control none --profile-from-start off --csv --metrics"
SCALE = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}

MARK = "spin_kernel"
"""The kernel of PyTorch that stands before each case."""


class Counter(NamedTuple):
    """What a counter of a launch says: the kernel, what is counted, and bytes."""

    kernel: str
    what: str
    bytes: float


def counters(metrics: Mapping[str, str], *script: str) -> tuple[list[list[Counter]], list[str]]:
    """Run a script with its arguments, and return the counters of each case `under_profiler`, and the lines it printed.

    `metrics`: what is counted, by the profiler's names.

    Raises:
        SystemExit: the profiler, or the script, ended with an error.
    """
    command = ["ncu", *FLAGS.split(), ",".join(metrics), sys.executable, *script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stderr[-2000:], file=sys.stderr)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}.\n{done.stdout[-2000:]}")
    found, marks, lines = list[list[Counter]](), set[str](), done.stdout.splitlines()
    for line in csv.DictReader(text for text in lines if text.startswith('"')):
        if MARK not in line["Kernel Name"]:
            value = float(line["Metric Value"].replace(",", "")) * SCALE[line["Metric Unit"]]
            found[-1].append(Counter(line["Kernel Name"], metrics[line["Metric Name"]], value))
        elif line["ID"] not in marks:  # a mark has a line for each counter, too
            marks.add(line["ID"])
            found.append([])
    return found, [text for text in lines if not text.startswith('"')]


def under_profiler(call: Callable[[], Any]) -> None:
    """Make a call that was made before while the profiler looks, behind a kernel that marks where it begins."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    torch.cuda._sleep(1000)
    call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def launched(case: Any) -> Callable[[], Any]:
    """A case's call, made once, so that Triton's cache on disk holds its kernels; if that fails, a call of nothing."""
    import torch

    try:
        call: Callable[[], Any] = case.call()
        call()
    except Exception as error:  # the other cases are measured
        print(case, error, file=sys.stderr)
        return int
    torch.cuda.synchronize()
    return call
