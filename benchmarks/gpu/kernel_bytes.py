"""Bytes that Triton kernels of our schedules move, counted and measured by Nsight Compute; run it on a GPU.

    python benchmarks/gpu/kernel_bytes.py -o benchmarks/gpu/kernel_bytes.jsonl

Needs PyTorch, Triton and `ncu`. Each case runs in a process of its own, once unprofiled and once profiled.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pebblesim as ps
from pebblesim.language import masks
from pebblesim.language.registry import get
from pebblesim.readings.kernels.triton import triton, word_bytes

BACKWARD = "small-cache-backward-blocked"
TWO_PASSES = {"B_r": 128, "b_c": 128, "B_c": 128, "b_r": 128}
CASES: list[tuple[str, dict[str, int], int, dict[str, int], int, int, str | None]] = [
    (BACKWARD, {"n": 4096, "d": 512}, 16, {"a": 128, "b": 128, "c": 64}, 8, 3, None),
    (BACKWARD, {"n": 4096, "d": 512}, 16, {"a": 128, "b": 256, "c": 64}, 8, 4, None),
    (BACKWARD, {"n": 4096, "d": 512}, 16, {"a": 256, "b": 128, "c": 64}, 8, 3, None),
    (BACKWARD, {"n": 4096, "d": 512}, 16, {"a": 128, "b": 128, "c": 64}, 8, 3, "causal"),
    (BACKWARD, {"n": 1000, "d": 80}, 32, {"a": 128, "b": 128, "c": 64}, 8, 3, None),
    ("flash2-forward", {"n": 4096, "d": 128}, 16, {"B_r": 128, "B_c": 128}, 8, 3, None),
    ("flash2-forward", {"n": 4096, "d": 64}, 32, {"B_r": 128, "B_c": 64}, 8, 3, None),
    ("flash2-forward", {"n": 4096, "d": 128}, 16, {"B_r": 128, "B_c": 128}, 8, 3, "causal"),
    ("small-cache-forward-blocked", {"n": 4096, "d": 512}, 16, {"a": 128, "b": 128, "c": 64}, 8, 3, None),
    (
        "backward-two-pass-blocked",
        {"n": 4096, "d": 64},
        32,
        dict.fromkeys(("B_r", "b_c", "B_c", "b_r"), 128),
        8,
        2,
        None,
    ),
    ("dS-stored-blocked", {"n": 4096, "d": 64}, 32, {"B_c": 128, "b_r": 128, "b": 64, "c": 64}, 8, 2, None),
]
METRICS = {
    "l1tex__m_xbar2l1tex_read_bytes.sum": "sm_read",
    "l1tex__m_l1tex2xbar_write_bytes.sum": "sm_written",
    "dram__bytes_read.sum": "hbm_read",
    "dram__bytes_write.sum": "hbm_written",
}
SCALE = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("kernel_bytes.jsonl"))
    output = parser.parse_args().output
    rows = []
    for number in range(len(CASES)):
        rows.append(measured(number))
        row = rows[-1]
        ratios = ", ".join(
            f"{key} {row['measured'][key] / row['counted'][key]:.4f}" for key in ("sm_read", "sm_written")
        )
        print(f"{row['schedule']}, {row['dims']}, {row['blocks']}, {row['mask'] or 'no mask'}: {ratios}", flush=True)
    output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def counted(number: int) -> tuple[dict[str, Any], str, list[str]]:
    """What the count says of a case, in bytes; the source of its kernels; the names of their arguments."""
    name, dims, heads, blocks, warps, stages, mask = CASES[number]
    schedule, band = get(name), masks.of(mask)
    program = schedule.program if band is None else schedule.masked
    count = ps.count(name, M=2**40, blocks=blocks, mask=band, **dims)
    moved = {"sm_read": 0, "sm_written": 0}
    for tensor, (reads, writes) in count.by_tensor.items():
        width = heads * word_bytes(program.tensors[tensor], "bfloat16")
        moved["sm_read"] += width * reads
        moved["sm_written"] += width * writes
    row = {"schedule": name, "dims": dims, "heads": heads, "blocks": blocks, "mask": mask, "counted": moved}
    text = triton(program, {**dims, **blocks}, "bfloat16", band, warps=warps, stages=stages).text
    return row, text, [tensor for tensor in program.tensors if tensor in program.inputs]


def measured(number: int) -> dict[str, Any]:
    row, _, _ = counted(number)
    ncu = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--metrics", ",".join(METRICS)]
    done = subprocess.run([*ncu, sys.executable, __file__, str(number)], capture_output=True, text=True, check=True)
    total = dict.fromkeys(METRICS.values(), 0.0)
    for line in csv.DictReader(each for each in done.stdout.splitlines() if each.startswith('"')):
        value = float(line["Metric Value"].replace(",", "")) * SCALE[line["Metric Unit"]]
        total[METRICS[line["Metric Name"]]] += value
    return row | {"measured": {name: round(value) for name, value in total.items()}}


def profiled(number: int) -> None:
    import torch

    row, text, arguments = counted(number)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("kernels", path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        heads, (n, d) = row["heads"], row["dims"].values()
        matrix = {name: torch.randn(heads, n, d, device="cuda").bfloat16() for name in ("Q", "K", "V", "dO", "O")}
        arrays = [matrix[name] if name in matrix else torch.full((heads, n), 8.0, device="cuda") for name in arguments]
        module.run(*arrays)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        module.run(*arrays)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].isdecimal():
        profiled(int(sys.argv[1]))
    else:
        main()
