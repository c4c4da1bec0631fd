"""Write the rates that `advise` knows: `python benchmarks/gpu/measured.py` makes pebblesim/advice/measured.json.

Rates are those of hopper.jsonl, h100/hopper.jsonl and hopper_flex.jsonl, which kernels of ours and others reached in
one process; of the widths that these have not, those of grid.jsonl. Heads of 192 columns are those of
columns_in_parts.jsonl first, with kernels that do not pad them. Of kernels of ours the fastest stands for all.
FFPA's are those of the race on drawn shapes and of chosen ones with shared KV heads, which fill a card.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from pebblesim.advice.measured import FILE, FULL, OTHERS, OURS, Shape, useful

HERE = Path(__file__).resolve().parent

GRID = "grid.jsonl"
"""Rows that count for shapes that are in no other file."""

PARTS = "columns_in_parts.jsonl"
"""Rows of several kernels each."""

FILES = {
    "NVIDIA H100 80GB HBM3": ("h100/hopper.jsonl",),
    "NVIDIA H200": (PARTS, "hopper_flex.jsonl", "hopper.jsonl", GRID),
}
"""The rows of a card; of a size that is in two files, those of the first count."""


RACES = {"NVIDIA H200": ("h200/drawn_race/race.jsonl", "h200/drawn_race/groups.jsonl")}
"""The rows of a card's races on drawn and on chosen shapes."""

CUTE = "ffpa cutedsl"
"""FFPA's kernels in the CuTe DSL, which it takes where that package is installed."""


def raced(names: Iterable[str]) -> dict[Shape, dict[int, tuple[int, int]]]:
    """Of each shape and length at which FFPA was raced: heads, and useful TFLOP/s of its fastest kernel on the card.

    Where its kernels in the CuTe DSL ran at some length, only the lengths at which they ran.
    """
    found: dict[Shape, dict[int, tuple[int, int]]] = {}
    of_cute: set[tuple[Shape, int]] = set()
    for line in chain.from_iterable((HERE / name).read_text(encoding="utf-8").splitlines() for name in names):
        row = json.loads(line)
        heads, n = row["batch"] * row["kv_heads"] * row["shared"], row["n"]
        theirs = [each for each in row.get("forward", {}) if each.startswith("ffpa") and each in row["both"]]
        if not theirs or row["mask"] not in ("none", "causal") or n * heads < FULL:
            continue
        forward = min(row["forward"][each]["card_us"] for each in theirs)
        backward = min(row["both"][each]["card_us"] - row["forward"][each]["card_us"] for each in theirs)
        for way, micro in (("forward", forward), ("backward", backward)):
            shape = Shape(way, row["d"], row["d"], row["mask"].replace("none", ""))
            by, rate = found.setdefault(shape, {}), round(useful(shape, n, heads) / micro / 1e6)
            by[n] = max(by.get(n, (0, 0)), (heads, rate), key=lambda each: each[1])
            of_cute |= {(shape, n)} if CUTE in theirs else set()
    with_cute = {shape for shape, _ in of_cute}
    return {
        shape: {n: rate for n, rate in by.items() if shape not in with_cute or (shape, n) in of_cute}
        for shape, by in found.items()
    }


def rates(name: str) -> dict[Shape, dict[str, dict[tuple[int, int], tuple[int, str]]]]:
    """Of each shape and kernel of a file, by (n, heads): useful TFLOP/s, and the name of the fastest, if it is ours."""
    found: dict[Shape, dict[str, dict[tuple[int, int], tuple[int, str]]]] = {}
    for line in (HERE / name).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for kernel, rate in _of_kernels(row):
            named = kernel.removeprefix("torch-")
            shape = Shape(row["way"], row.get("d", row.get("d_k")), row.get("d_v", row.get("d")), row["mask"] or "")
            by, size = (
                found.setdefault(shape, {}).setdefault(named if named in OTHERS else OURS, {}),
                (row["n"], row["heads"]),
            )
            by[size] = max(by.get(size, (0, "")), (round(rate), named))
    return found


def _of_kernels(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The kernels of a row, as others or our schedules are called, and TFLOP/s.

    Of columns in parts those of 192, without the times at 1,024 tokens, in which launches count.
    """
    if "d_k" not in row and "tflops" in row:
        yield row.get("kernel") or row["contender"], row["tflops"]
    elif row.get("d_k") == 192 and row["n"] > 1024:
        for kernel, rate in row["tflops"].items():
            if not kernel.endswith("padded"):
                yield kernel.split()[0], rate


def of_card(names: Iterable[str], races: Iterable[str]) -> list[dict[str, Any]]:
    """The shapes that were measured on a card, with the rates of each kernel."""
    ffpa = raced(races)
    shapes: dict[Shape, dict[str, dict[tuple[int, int], tuple[int, str]]]] = {}
    for name in names:
        for shape, kernels in rates(name).items():
            if name == GRID and shape in shapes:
                continue
            for kernel, by in kernels.items():
                known = shapes.setdefault(shape, {})
                known[kernel] = by | known.get(kernel, {})
    return [
        shape._asdict()
        | {"tflops": {kernel: _in_order(by, kernel) for kernel, by in sorted(shapes.get(shape, {}).items())}}
        | ({"raced": {"ffpa": [[n, *of] for n, of in sorted(ffpa[shape].items())]}} if shape in ffpa else {})
        for shape in sorted({*shapes, *ffpa})
    ]


def _in_order(by: dict[tuple[int, int], tuple[int, str]], kernel: str) -> list[list[Any]]:
    """Rows of n, heads and rate; of ours with the schedule."""
    return [[*size, rate, named][: 4 if kernel == OURS else 3] for size, (rate, named) in sorted(by.items())]


def written() -> str:
    """The text of the file: a line for each shape."""
    tables = []
    for card, names in FILES.items():
        lines = ",\n".join(
            f"  {json.dumps(each, separators=(',', ':'))}" for each in of_card(names, RACES.get(card, ()))
        )
        tables.append(f"{json.dumps(card)}: [\n{lines}\n]")
    return "{" + ",\n".join(tables) + "}\n"


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
    print(f"{FILE}: {len(written()):,} bytes")
