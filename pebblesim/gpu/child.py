"""Run cases on the GPU in a separate process: `python -m pebblesim.gpu.child cases.json [results.json]`.

With a second file, results are checked and times are measured, and written there. Without it, each kernel is launched
once, for the profiler.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pebblesim.analysis.totals import totals
from pebblesim.core.errors import PebblesimError
from pebblesim.gpu.cases import Case
from pebblesim.gpu.device import Runner
from pebblesim.gpu.rounding import rounding

MOST_STEPS = 20_000
"""Largest number of primitives of a program for which the float32 error bound is computed entry by entry."""

LARGEST_ERROR = 1e-4
"""Largest allowed ‖output − reference‖ / ‖reference‖ of a program with more primitives than `MOST_STEPS`.

Each of the k additions of a sum has a relative error of at most 2^-24: together at most k·2^-24, and about √k·2^-24 if
the errors are random, 4e-6 for k = 4096. Outputs are sums of sums that partly cancel; a wrong or missing tile causes an
error of its share, 1/k or more."""


def main(cases: Path, results: Path | None) -> None:
    checks = []
    for fields in json.loads(cases.read_text(encoding="utf-8")):
        case = Case(**fields)
        inputs = case.algorithm.problem.random_inputs(case.dims, kept=case.algorithm.kept)
        runner = Runner(case, inputs)
        runner.run()
        if results is not None:
            checks.append(_checked(runner, inputs))
            results.write_text(json.dumps(checks), encoding="utf-8")
        del runner


def _checked(runner: Runner, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs' errors, the time of each launch, and the resources of the kernels.

    Raises:
        PebblesimError: the error of an output is larger than float32 can explain.
    """
    import numpy as np

    case, outputs = runner.case, runner.outputs()
    reference = case.algorithm.problem.reference(inputs)
    steps = sum(
        sum(totals(phase.body, case.sizes, lambda node, words: [("steps", 1)]).values())
        for phase in case.program.phases
    )
    bounds = rounding(case.program, case.sizes, inputs, case.workers) if steps <= MOST_STEPS else {}
    checks = {}
    for name, value in outputs.items():
        off, size = np.abs(value - reference[name]), float(np.linalg.norm(reference[name]))
        error = float(np.linalg.norm(off)) / (size or 1)
        of_bound = float(np.max(off / bounds[name][1])) if name in bounds else None
        checks[name] = {"error": error, "of_bound": of_bound}
        if not (error <= LARGEST_ERROR if of_bound is None else of_bound <= 1):
            raise PebblesimError(f"{case.schedule}: {name} is not the reference's: {checks[name]}, {case.to_dict()}.")
    return {
        "checks": checks,
        "seconds": runner.seconds(),
        "registers": runner.registers(),
        "resident": runner.resident(),
    }


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
    except PebblesimError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
