"""Run cases on the GPU in a process of its own: `python -m pebblesim.gpu.child cases.json [results.json]`.

With a second file, numbers are checked and time is taken, and what was found is written there. Without, each kernel is
launched once: that is what the profiler watches.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pebblesim import schedules  # noqa: F401 - importing it registers them
from pebblesim.errors import PebblesimError
from pebblesim.gpu.cases import Case
from pebblesim.gpu.device import Runner


def main(cases: Path, results: Path | None) -> None:
    found = []
    for given in json.loads(cases.read_text(encoding="utf-8")):
        case = Case(**given)
        inputs = case.algorithm.problem.random_inputs(case.dims, kept=case.algorithm.kept)
        runner = Runner(case, inputs)
        runner.run()
        if results is not None:
            found.append(_checked(runner, inputs))
            results.write_text(json.dumps(found), encoding="utf-8")
        del runner


def _checked(runner: Runner, inputs: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    case, outputs = runner.case, runner.outputs()
    reference = case.algorithm.problem.reference(inputs)
    errors = {
        name: float(np.linalg.norm(value - reference[name]) / np.linalg.norm(reference[name]))
        for name, value in outputs.items()
    }
    return {
        "errors": errors,
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
