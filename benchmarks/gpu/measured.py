"""Write the rates that `advise` knows: `python benchmarks/gpu/measured.py` makes pebblesim/advice/measured.json.

Rates are those of hopper.jsonl, h100/hopper.jsonl and hopper_flex.jsonl, which kernels of ours and others reached in
one process; of the widths that these have not, those of grid.jsonl. Of kernels of ours the fastest stands for all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pebblesim.advice.measured import FILE, OTHERS, OURS, Shape

HERE = Path(__file__).resolve().parent

GRID = "grid.jsonl"
"""Rows that count for shapes that are in no other file."""

FILES = {
    "NVIDIA H100 80GB HBM3": ("h100/hopper.jsonl",),
    "NVIDIA H200": ("hopper_flex.jsonl", "hopper.jsonl", GRID),
}
"""The rows of a card; of a size that is in two files, those of the first count."""


def rates(name: str) -> dict[Shape, dict[str, dict[tuple[int, int], tuple[int, str]]]]:
    """Of each shape and kernel of a file, by (n, heads): useful TFLOP/s, and the name of the fastest, if it is ours."""
    found: dict[Shape, dict[str, dict[tuple[int, int], tuple[int, str]]]] = {}
    for line in (HERE / name).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "tflops" in row:
            named = (row.get("kernel") or row["contender"]).removeprefix("torch-")
            shape = Shape(row["way"], row["d"], row.get("d_v", row["d"]), row["mask"] or "")
            by, size = (
                found.setdefault(shape, {}).setdefault(named if named in OTHERS else OURS, {}),
                (row["n"], row["heads"]),
            )
            by[size] = max(by.get(size, (0, "")), (round(row["tflops"]), named))
    return found


def of_card(names: Iterable[str]) -> list[dict[str, Any]]:
    """The shapes that were measured on a card, with the rates of each kernel."""
    shapes: dict[Shape, dict[str, dict[tuple[int, int], tuple[int, str]]]] = {}
    for name in names:
        for shape, kernels in rates(name).items():
            if name == GRID and shape in shapes:
                continue
            for kernel, by in kernels.items():
                known = shapes.setdefault(shape, {})
                known[kernel] = by | known.get(kernel, {})
    return [
        shape._asdict() | {"tflops": {kernel: _in_order(by, kernel) for kernel, by in sorted(kernels.items())}}
        for shape, kernels in sorted(shapes.items())
    ]


def _in_order(by: dict[tuple[int, int], tuple[int, str]], kernel: str) -> list[list[Any]]:
    """Rows of n, heads and rate; of ours with the schedule."""
    return [[*size, rate, named][: 4 if kernel == OURS else 3] for size, (rate, named) in sorted(by.items())]


def written() -> str:
    """The text of the file: a line for each shape."""
    tables = []
    for card, names in FILES.items():
        lines = ",\n".join(f"  {json.dumps(each, separators=(',', ':'))}" for each in of_card(names))
        tables.append(f"{json.dumps(card)}: [\n{lines}\n]")
    return "{" + ",\n".join(tables) + "}\n"


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
    print(f"{FILE}: {len(written()):,} bytes")
