"""Measure batches of heads on a GPU: bytes at HBM and into the multiprocessors, and times, launch by launch."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from pebblesim.core.errors import PebblesimError, UsageError
from pebblesim.measuring import ncu
from pebblesim.measuring.cases import PREFIX, Case
from pebblesim.measuring.device import describe
from pebblesim.measuring.results import Row, load, save

CHILD = (sys.executable, "-m", "pebblesim.measuring.child")

QUANTITIES = {
    "hbm_read": ncu.HBM_READ_BYTES,
    "hbm_written": ncu.HBM_WRITE_BYTES,
    "sm_read": ncu.SM_READ_BYTES,
}
"""The values of each launch, and their counters: bytes from and to HBM, and bytes into the multiprocessors."""

AT_ONCE = 20
"""Batches that are profiled in one process; then what was measured is saved."""

OVERHEAD = 0.1
"""Seconds that the profiler takes for a kernel, about."""


def measure_batches(cases: Sequence[Case], output: Path | None = None, seconds: float | None = None) -> list[Row]:
    """Measure cases of many heads; those that are already in the file of results are not measured again.

    Args:
        cases: the cases. Results are checked and times are measured in one process, traffic under the profiler.
        output: a file of results to take rows from and to add rows to.
        seconds: begin no case when about so much time has gone; without it all are measured.

    Returns:
        The rows of the cases for which there was time, perhaps not one.

    Raises:
        UsageError: no GPU, no CuPy, no Nsight Compute, no permission to read the counters, or too little memory.
        PebblesimError: a kernel failed or gave wrong results.
    """
    gpu = describe()
    where = {"card": gpu["device"], "driver": gpu["driver"], "ncu": ncu.version(ncu.require())}
    for case in cases:
        if case.bytes_in_memory > gpu["memory_bytes"]:
            raise UsageError(
                f"{case.heads:,} heads of {case.schedule} take {case.bytes_in_memory:,} bytes, and this GPU has "
                f"{gpu['memory_bytes']:,}; give fewer heads."
            )
    ids = [case.identity(**where) for case in cases]
    known = {row["id"]: row for row in (load(output) if output else [])}
    missing = [case for case, identity in zip(cases, ids, strict=True) if identity not in known]
    for row in _rows(missing, where, gpu, seconds) if missing else ():
        known[row["id"]] = row
        if output:
            save(output, known.values())
    return [known[identity] for identity in ids if identity in known]


def _rows(cases: list[Case], where: dict[str, Any], gpu: dict[str, Any], seconds: float | None) -> Iterator[Row]:
    started = monotonic()
    with tempfile.TemporaryDirectory() as folder:
        to_run, results = Path(folder) / "cases.json", Path(folder) / "results.json"

        def run(some: list[Case], *rest: str | Path) -> None:
            to_run.write_text(json.dumps([case.to_dict() for case in some]), encoding="utf-8")
            done = subprocess.run([*CHILD, to_run, *map(str, rest)], capture_output=True, text=True, check=False)
            if done.returncode:
                raise PebblesimError(f"the kernels did not run: {(done.stderr.strip().splitlines() or ['?'])[-1]}")

        run(cases, "build")
        results.write_text("[]", encoding="utf-8")  # and nothing else if there is no time for a case
        run(cases, results, *([] if seconds is None else [f"{0.4 * seconds}"]))
        checked = json.loads(results.read_text(encoding="utf-8"))
        todo = list(zip(cases, checked, strict=False))
        moved = [[dict[str, int]() for _ in case.source.kernels] for case in cases]
        for metrics in ncu.OF_BATCHES:
            for first in range(0, len(todo), AT_ONCE):
                some = todo[first : first + AT_ONCE]
                expected = sum(sum(check["seconds"]) + OVERHEAD * len(check["seconds"]) for _, check in some)
                if seconds is not None and monotonic() - started + expected > seconds:
                    break
                to_run.write_text(json.dumps([case.to_dict() for case, _ in some]), encoding="utf-8")
                command = [*CHILD, str(to_run)]
                seen = iter(ncu.profile(command, kernels=f"^{PREFIX}", metrics=metrics, cold=False))
                for at, (case, check) in enumerate(some, first):
                    for kernel, found in zip(case.source.kernels, moved[at], strict=True):
                        found |= _bytes(kernel.name, next(seen))
                    yield _row(case, where, gpu, check, moved[at])


def _bytes(name: str, profiled: ncu.Profiled) -> dict[str, int]:
    if profiled.kernel.partition("(")[0] != name:
        raise PebblesimError(f"the profiler saw {profiled.kernel}, where {name} was expected.")
    found = {name: profiled.values[metric] for name, metric in QUANTITIES.items() if metric in profiled.values}
    return {name: round(value) for name, value in found.items()}


def _row(
    case: Case, where: dict[str, Any], gpu: dict[str, Any], check: dict[str, Any], moved: list[dict[str, int]]
) -> Row:
    """A row holds what was measured; all that is counted follows from the case."""
    return {
        "id": case.identity(**where),
        **case.to_dict(),
        **where,
        "error": max(each["error"] for each in check["checks"].values()),
        "launches": [
            {
                "name": kernel.launch.name,
                "at_once": check["resident"][kernel.name] * gpu["multiprocessors"],
                "seconds": seconds,
                "moved": [found.get(name) for name in QUANTITIES],
            }
            for kernel, seconds, found in zip(case.source.kernels, check["seconds"], moved, strict=True)
        ],
    }


def case_of(row: Mapping[str, Any]) -> Case:
    """The case that a row was measured of."""
    parts = ("schedule", "dims", "M", "blocks", "workers", "threads", "heads", "turns", "resident")
    return Case(**{part: row[part] for part in parts})


def total(row: Mapping[str, Any]) -> dict[str, Any]:
    """The measurements of all launches of a row together: bytes, None where they were not measured, and seconds."""
    found: dict[str, Any] = {"seconds": sum(each["seconds"] for each in row["launches"])}
    for at, quantity in enumerate(QUANTITIES):
        values = [each["moved"][at] for each in row["launches"]]
        found[quantity] = None if None in values else sum(values)
    return found
