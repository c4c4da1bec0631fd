"""Measure cases on a GPU and compare the counters with the predictions, launch by launch."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pebblesim.analysis.totals import totals
from pebblesim.analysis.work import coarse
from pebblesim.cachesim.l2 import replay
from pebblesim.core.errors import PebblesimError, UsageError
from pebblesim.kernels.cuda.cuda import memory
from pebblesim.language import program as ir
from pebblesim.launches.sectors import moved
from pebblesim.measuring import ncu
from pebblesim.measuring.cases import BYTES, PREFIX, Case
from pebblesim.measuring.device import copy_bandwidth, describe
from pebblesim.measuring.results import Row, load, save

CHILD = (sys.executable, "-m", "pebblesim.measuring.child")

MOST_ACCESSES = 1_000_000
"""Largest number of tiles moved in a launch for which HBM traffic is predicted; this takes some seconds."""

IN_HALVES = ("8.0", "9.0")
"""Compute capabilities of GPUs whose L2 has two halves: A100, and H100 and H200."""

QUANTITIES = ("words_read", "words_written", "sm_read", "sm_written", "hbm_read", "hbm_written")
"""The quantities that are predicted and measured: words, bytes between the SMs and L2, and bytes to and from HBM."""

_MEASURED_AS = {
    "words_read": (ncu.WORD_READ_BYTES, 1 / BYTES),
    "words_written": (ncu.WORD_WRITE_BYTES, 1 / BYTES),
    "sm_read": (ncu.SM_READ_BYTES, 1),
    "sm_written": (ncu.SM_WRITE_SECTORS, ncu.SECTOR),
    "hbm_read": (ncu.HBM_READ_BYTES, 1),
    "hbm_written": (ncu.HBM_WRITE_BYTES, 1),
}


def measure(cases: Sequence[Case], output: Path | None = None, timeout: float | None = None) -> list[Row]:
    """Measure cases; cases that are already in the file of results, for this same GPU, are not measured again.

    Args:
        cases: the cases; all run in one process, and again in one process under the profiler.
        output: a file of results to take rows from and to add rows to.
        timeout: time limit in seconds.

    Raises:
        UsageError: no GPU, no CuPy, no Nsight Compute, no permission to read the counters, or too little shared memory.
        PebblesimError: a kernel failed or gave wrong results.
    """
    where = _where()
    room = where["gpu"]["shared_bytes_per_block"]
    for case in cases:
        if case.shared_words * BYTES > room:
            raise UsageError(
                f"{case.schedule} at M = {case.M} uses {case.shared_words * BYTES} bytes of shared memory in a block, "
                f"and this GPU has {room}; give an M of at most {room // BYTES} words."
            )
    ids = [case.identity(**where) for case in cases]
    known = {row["id"]: row for row in (load(output) if output else [])}
    missing = [case for case, identity in zip(cases, ids, strict=True) if identity not in known]
    for row in _rows(missing, where, timeout) if missing else ():
        known[row["id"]] = row
        if output:
            save(output, known.values())
    return [known[identity] for identity in ids]


def _where() -> dict[str, Any]:
    """Everything that defines a measurement, except the case."""
    path = ncu.require()
    return {"gpu": describe(), "ncu": ncu.version(path), "metrics": list(ncu.METRICS), "caches": "cold"}


def _rows(cases: list[Case], where: Mapping[str, Any], timeout: float | None) -> Iterator[Row]:
    bandwidth = copy_bandwidth()
    with tempfile.TemporaryDirectory() as folder:
        to_run, results = Path(folder) / "cases.json", Path(folder) / "results.json"
        to_run.write_text(json.dumps([case.to_dict() for case in cases]), encoding="utf-8")
        done = subprocess.run([*CHILD, to_run, results], capture_output=True, text=True, check=False, timeout=timeout)
        if done.returncode:
            raise PebblesimError(f"the kernels did not run: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        checked = json.loads(results.read_text(encoding="utf-8"))
        profiled = iter(ncu.profile([*CHILD, str(to_run)], kernels=f"^{PREFIX}", timeout=timeout))
    for case, check in zip(cases, checked, strict=True):
        yield _row(case, where, check, [next(profiled) for _ in case.source.kernels], bandwidth)


def _row(
    case: Case, where: Mapping[str, Any], check: Mapping[str, Any], measured: list[ncu.Profiled], bandwidth: float
) -> Row:
    launches = []
    for kernel, profiled, seconds in zip(case.source.kernels, measured, check["seconds"], strict=True):
        if profiled.kernel.partition("(")[0] != kernel.name:
            raise PebblesimError(f"the profiler saw {profiled.kernel}, where {kernel.name} was expected.")
        at_once = check["resident"][kernel.name] * where["gpu"]["multiprocessors"]
        launches.append(
            {
                "name": kernel.launch.name,
                "kernel": kernel.name,
                "blocks": kernel.blocks(case.sizes),
                "registers": check["registers"][kernel.name],
                "at_once": at_once,
                "seconds": seconds,
                "profiled_seconds": profiled.values[ncu.TIME] / 1e9,
                "clock": profiled.values[ncu.CLOCK],
                "predicted": predicted(case, kernel, at_once, where["gpu"]),
                "measured": {
                    name: _whole(profiled.values[metric] * factor) for name, (metric, factor) in _MEASURED_AS.items()
                },
                "counters": dict(profiled.values),
            }
        )
    total = {
        side: {name: _sum(launch[side][name] for launch in launches) for name in QUANTITIES}
        for side in ("predicted", "measured")
    }
    seconds, operations = sum(launch["seconds"] for launch in launches), coarse(case.program, case.sizes)
    clock = max(launch["clock"] for launch in launches)
    return {
        "id": case.identity(**where),
        **case.to_dict(),
        **where,
        "shared_words": case.shared_words,
        "checks": check["checks"],
        "total": total,
        "seconds": seconds,
        "operations": operations,
        "roofline": roofline(total["measured"], operations, seconds, where["gpu"], clock, bandwidth),
        "launches": launches,
    }


def predicted(case: Case, kernel: Any, at_once: int, gpu: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the predicted traffic of a launch on a GPU; None at HBM if the replay would take too long."""
    exact = moved(kernel.launch, case.sizes, case.workers)
    made = {
        "words_read": exact.words_read,
        "words_written": exact.words_written,
        "sm_read": exact.sectors_read * ncu.SECTOR,
        "sm_written": exact.sectors_written * ncu.SECTOR,
    }
    tiles = totals(kernel.launch.body, case.sizes, lambda node, words: [("moved", 1)] if _moves(node) else [])["moved"]
    if tiles > MOST_ACCESSES:
        return {**made, "hbm_read": None, "hbm_written": None}
    room = memory(case.source.kernels, case.program, case.sizes)
    l2 = {"l2_bytes": gpu["l2_bytes"], "partitions": 2 if gpu["capability"] in IN_HALVES else 1}
    read, written = replay(kernel.launch, case.sizes, case.workers, room, at_once=at_once, **l2)
    return {**made, "hbm_read": read, "hbm_written": written}


def _moves(node: ir.Node) -> bool:
    return isinstance(node, ir.Read | ir.Write | ir.Init)


def roofline(
    moved: Mapping[str, Any], operations: int, seconds: float, gpu: Mapping[str, Any], clock: float, bandwidth: float
) -> dict[str, float]:
    """Return the roofline of a case: its rates, and the least time by arithmetic and by HBM divided by its time.

    The roofs are 128 float32 fused multiply-adds per multiprocessor and cycle, and the bandwidth of a large copy.
    """
    hbm = (moved["hbm_read"] or 0) + (moved["hbm_written"] or 0)
    peak = gpu["multiprocessors"] * 128 * 2 * clock
    return {
        "sm_bandwidth": (moved["sm_read"] + moved["sm_written"]) / seconds,
        "hbm_bandwidth": hbm / seconds,
        "hbm_roof": bandwidth,
        "flops": operations / seconds,
        "flops_roof": peak,
        "fraction": max(operations / peak, hbm / bandwidth) / seconds,
    }


def kernels_of(command: Sequence[str], timeout: float | None = None) -> list[dict[str, Any]]:
    """Return the traffic of each kernel of a user's own program: the sum of its launches, by name, in launch order.

    Raises:
        UsageError: as for `measure`.
    """
    by_name: dict[str, dict[str, Any]] = {}
    for launch in ncu.profile(command, timeout=timeout):
        row = by_name.setdefault(launch.kernel, {"kernel": launch.kernel, "launches": 0, "seconds": 0.0})
        row["launches"] += 1
        row["seconds"] += launch.values[ncu.TIME] / 1e9
        for name, (metric, factor) in _MEASURED_AS.items():
            row[name] = _sum((row.get(name, 0), _whole(launch.values[metric] * factor)))
    return list(by_name.values())


def error_of(row: Mapping[str, Any], quantity: str) -> int | None:
    """Return measured minus predicted, of a row's total or of a launch; None if one of them is not known."""
    sides = row.get("total", row)
    predicted, measured = sides["predicted"][quantity], sides["measured"][quantity]
    return None if predicted is None or measured is None else measured - predicted


def _whole(value: float) -> int | None:
    return round(value) if value == value else None  # NaN: the counter is not there


def _sum(values: Iterable[int | None]) -> int | None:
    counted = list(values)
    return None if any(value is None for value in counted) else sum(value for value in counted if value is not None)
