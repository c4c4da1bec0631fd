"""Hardware counters, kernel by kernel, from Nsight Compute's command line."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pebblesim.core.errors import UsageError

SECTOR = 32
"""Bytes in a sector."""

SM_READ_BYTES = "l1tex__m_xbar2l1tex_read_bytes.sum"
L2_READ_SECTORS = "lts__t_sectors_srcunit_tex_op_read.sum"
SM_WRITE_SECTORS = "l1tex__m_l1tex2xbar_write_sectors.sum"
L2_WRITE_SECTORS = "lts__t_sectors_srcunit_tex_op_write.sum"
HBM_READ_BYTES = "dram__bytes_read.sum"
HBM_WRITE_BYTES = "dram__bytes_write.sum"
WORD_READ_BYTES = "smsp__sass_data_bytes_mem_global_op_ld.sum"
WORD_WRITE_BYTES = "smsp__sass_data_bytes_mem_global_op_st.sum"
TIME = "gpu__time_duration.sum"
CLOCK = "sm__cycles_elapsed.avg.per_second"
METRICS = (
    SM_READ_BYTES,
    SM_WRITE_SECTORS,
    L2_READ_SECTORS,
    L2_WRITE_SECTORS,
    HBM_READ_BYTES,
    HBM_WRITE_BYTES,
    WORD_READ_BYTES,
    WORD_WRITE_BYTES,
    TIME,
    CLOCK,
)
"""The metrics: bytes into the SMs and sectors out of them; sectors read and written at L2, which are fewer if L2 serves
several SMs with one read; bytes at HBM; bytes that the instructions requested, in whole sectors or not; and time."""

OF_BATCHES: tuple[tuple[str, ...], ...] = ((HBM_READ_BYTES, HBM_WRITE_BYTES), (SM_READ_BYTES,))
"""The metrics for batches of heads, which fill the card's memory, those that one run of the program counts together."""

ROOTS = ("usr/local/cuda*/bin", "usr/local/NVIDIA-Nsight-Compute*", "opt/nvidia/nsight-compute/*")


@dataclass(frozen=True)
class Profiled:
    """A launch of a kernel: its name, and the value of each metric in its base unit (bytes, ns, Hz)."""

    kernel: str
    values: Mapping[str, float]


def find() -> str | None:
    """Find Nsight Compute's command line, on the path or in its usual folders."""
    if path := shutil.which("ncu"):
        return path
    for pattern in ROOTS:
        places = sorted(Path("/").glob(f"{pattern}/ncu"), reverse=True)
        if places:
            return str(places[0])
    return None


def require() -> str:
    """Like `find`.

    Raises:
        UsageError: it was not found.
    """
    path = find()
    if path is None:
        raise UsageError(
            "Nsight Compute (ncu) was not found, and nothing else reads the counters; `pebblesim gpu doctor` says how "
            "to get it."
        )
    return path


def version(ncu: str) -> str:
    """Version of Nsight Compute, as its command line tool prints it; "unknown" if it prints none."""
    printed = subprocess.run([ncu, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"Version ([\d.]+)", printed)
    return match[1] if match else "unknown"


def profile(
    command: Sequence[str],
    *,
    kernels: str | None = None,
    timeout: float | None = None,
    metrics: Sequence[str] = METRICS,
    cold: bool = True,
    marked: bool = False,
) -> list[Profiled]:
    """Run a command and read the counters of each kernel that it launches.

    Args:
        command: a program and its arguments.
        kernels: a regular expression that the names of the kernels must match; all by default.
        timeout: time limit in seconds.
        metrics: the counters.
        cold: whether caches are empty before each kernel, which is run once for each few counters, on the same memory.
            Else caches are as the kernel before left them, and the whole program is run once for each few counters.
        marked: whether only kernels are measured that the program marks, by `cudaProfilerStart` and `cudaProfilerStop`.

    Raises:
        UsageError: there is no Nsight Compute, it may not read the counters, or the command launched no kernel.
    """
    ncu = require()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        options = [
            "--csv",
            "--page",
            "raw",
            "--print-units",
            "base",
            "--log-file",
            str(log),
            "--metrics",
            ",".join(metrics),
        ]
        options += ["--clock-control", "none", "--cache-control", "all" if cold else "none"]
        options += ["--replay-mode", "kernel" if cold else "application"]
        options += ["--target-processes", "all"]
        if marked:
            options += ["--profile-from-start", "off"]
        if kernels:
            options += ["--kernel-name", f"regex:{kernels}"]
        try:
            done = subprocess.run(
                [ncu, *options, *command], capture_output=True, text=True, check=False, timeout=timeout
            )
        except subprocess.TimeoutExpired:
            raise UsageError(f"ncu was still running after {timeout} s; measure smaller sizes.") from None
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    launches = parse_launches(text, metrics)
    if not launches or done.returncode:
        raise UsageError(_complaint(text, done.stdout + done.stderr, done.returncode))
    return launches


def parse_launches(text: str, metrics: Sequence[str] = METRICS) -> list[Profiled]:
    """Parse ncu's CSV: lines that start with ==, a header, a line of units, then a line for each launch."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if not lines:
        return []
    header, _, *records = csv.reader(lines)
    names = {name: at for at, name in enumerate(header)}
    return [
        Profiled(
            record[names["Kernel Name"]],
            {metric: _number(record[names[metric]]) if metric in names else float("nan") for metric in metrics},
        )
        for record in records
    ]


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:  # "n/a": the device does not have it
        return float("nan")


def _complaint(log: str, printed: str, code: int) -> str:
    """Return the reason for missing numbers, in a sentence."""
    both = log + printed
    if "ERR_NVGPUCTRPERM" in both:
        return (
            "ncu may not read the hardware counters here (ERR_NVGPUCTRPERM): run as root, or let the driver allow it "
            "(NVreg_RestrictProfilingToAdminUsers=0)."
        )
    errors = re.findall(r"==(?:ERROR|WARNING)== *(.*)", both)
    said = errors[0] if errors else (printed.strip().splitlines() or ["nothing"])[-1]
    return f"ncu measured no kernel (it exited with {code} and said: {said})."
