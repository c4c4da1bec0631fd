"""`pebblesim.gpu.torch.attention` as an operator: errors, opcheck, torch.compile, memory, decoding, models; on a GPU.

python benchmarks/gpu/operators.py -o benchmarks/gpu/operators.jsonl [shapes opcheck compile again host memory …]

Each row says what it is of.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from operator_calls import again, compiled, opcheck, strided, waits
from operator_errors import shapes
from operator_models import models
from operator_rates import rates
from operator_times import decode, host, memory, vae

PARTS: dict[str, Callable[[Any], Iterator[dict[str, Any]]]] = {
    "opcheck": opcheck,
    "compile": compiled,
    "waits": waits,
    "strided": strided,
    "again": again,
    "host": host,
    "models": models,
    "vae": vae,
    "decode": decode,
    "memory": memory,
    "rates": rates,
    "shapes": shapes,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=[*PARTS], help=", ".join(PARTS))
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--shapes", type=int, default=200, help="how many shapes are drawn")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--models", nargs="*", help="which small models, as 'Gemma 4'; all if none is named")
    asked = parser.parse_args()
    with asked.output.open("w", encoding="utf-8") as file:
        for part in asked.what:
            for row in caught(part, PARTS[part], asked):
                file.write(json.dumps({"part": part, **row}) + "\n")
                file.flush()
                if part != "shapes" or "error" in row or row.get("ratio", 0) > 1.5:
                    print(json.dumps({"part": part, **row}), flush=True)


def caught(part: str, made: Callable[[Any], Iterator[dict[str, Any]]], asked: Any) -> Iterator[dict[str, Any]]:
    """The rows of a part; an error ends the part, not the others."""
    try:
        yield from made(asked)
    except Exception as error:
        yield {"error": f"{type(error).__name__}: {error}"[:500]}


if __name__ == "__main__":
    main()
