"""Run cases on the GPU in a separate process.

    python -m pebblesim.measuring.child cases.json [results.json [SECONDS] | build]

With a second file, results are checked and times are measured, and written there; no case begins after so many seconds.
Without it, each kernel is launched once, for the profiler. With the word "build", the kernels are built only, by as
many processes as there are cores.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import inf
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Any

from pebblesim.analysis.totals import totals
from pebblesim.core.errors import PebblesimError
from pebblesim.measuring.cases import Case
from pebblesim.measuring.device import Runner, built, bytes_needed, cupy
from pebblesim.measuring.rounding import rounding

MOST_STEPS = 20_000
"""Largest number of primitives of a program of one head for which float32's error bound is computed entry by entry."""

LARGEST_ERROR = 1e-4
"""Largest allowed ‖output − reference‖ / ‖reference‖ where the bound is not computed entry by entry.

Each of the k additions of a sum has a relative error of at most 2^-24: together at most k·2^-24, and about √k·2^-24 if
the errors are random, 4e-6 for k = 4096. Outputs are sums of sums that partly cancel; a wrong or missing tile causes an
error of its share, 1/k or more."""


DIFFERENT = 3
"""Heads of a batch with inputs of their own; the others have the same ones, in turn."""


def main(cases: Path, results: Path | None, seconds: float = inf) -> None:
    checks: list[dict[str, Any]] = []
    started = monotonic()
    to_run = [Case(**fields) for fields in json.loads(cases.read_text(encoding="utf-8"))]
    memory = cupy().empty(max(map(bytes_needed, to_run)), "uint8")
    for case in to_run:
        if monotonic() - started > seconds:
            break
        problem, kept = case.algorithm.problem, case.algorithm.kept
        inputs = [problem.random_inputs(case.dims, seed, kept) for seed in range(min(DIFFERENT, case.heads))]
        runner = Runner(case, inputs, memory)
        first = runner.run()
        if results is not None:
            if not runner.repeat(len(inputs)):
                raise PebblesimError(f"{case.schedule}: heads with equal inputs differ, {case.to_dict()}.")
            errors = [_checked(case, runner.outputs(head), values) for head, values in enumerate(inputs)]
            checks.append({"checks": _worst(errors), "seconds": runner.seconds(first), **runner.resources()})
            results.write_text(json.dumps(checks), encoding="utf-8")


def _worst(errors: Sequence[Mapping[str, Mapping[str, float | None]]]) -> dict[str, dict[str, float | None]]:
    """Return the largest errors of some heads."""

    def most(name: str, what: str) -> float | None:
        return max((value for each in errors if (value := each[name][what]) is not None), default=None)

    return {name: {what: most(name, what) for what in kinds} for name, kinds in errors[0].items()}


def build(cases: Path) -> None:
    """Build the kernels of all cases at once."""
    fields = json.loads(cases.read_text(encoding="utf-8"))
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        list(pool.map(_build, fields))


def _build(fields: dict[str, Any]) -> None:
    built(Case(**fields))


def _checked(case: Case, outputs: Mapping[str, Any], inputs: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return the errors of a head's outputs.

    Raises:
        PebblesimError: the error of an output is larger than float32 can explain.
    """
    import numpy as np

    reference = case.algorithm.problem.reference(inputs)
    steps = sum(
        sum(totals(phase.body, case.sizes, lambda node, words: [("steps", 1)]).values())
        for phase in case.program.phases
    )
    entry_by_entry = case.heads == 1 and steps <= MOST_STEPS
    bounds = rounding(case.program, case.sizes, inputs, case.workers) if entry_by_entry else {}
    checks = {}
    for name, value in outputs.items():
        off, size = np.abs(value - reference[name]), float(np.linalg.norm(reference[name]))
        error = float(np.linalg.norm(off)) / (size or 1)
        of_bound = float(np.max(off / bounds[name][1])) if name in bounds else None
        checks[name] = {"error": error, "of_bound": of_bound}
        if not (error <= LARGEST_ERROR if of_bound is None else of_bound <= 1):
            raise PebblesimError(f"{case.schedule}: {name} is not the reference's: {checks[name]}, {case.to_dict()}.")
    return checks


if __name__ == "__main__":
    try:
        if sys.argv[2:] == ["build"]:
            build(Path(sys.argv[1]))
        else:
            results = Path(sys.argv[2]) if len(sys.argv) > 2 else None
            main(Path(sys.argv[1]), results, *map(float, sys.argv[3:]))
    except PebblesimError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
