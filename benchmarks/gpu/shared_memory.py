"""How many bytes tensor cores read from shared memory, by Nsight Compute's counters; on a Hopper GPU.

    python benchmarks/gpu/shared_memory.py -o FOLDER [--seconds 60]
    python benchmarks/gpu/shared_memory.py --show FOLDER

One block multiplies tiles that are in its shared memory over and over, with `wgmma`, whose left operand is in shared
memory or in registers. Each kernel runs with 64 and with 128 products, so the difference divided by 64 is what one
product adds to a counter. Kernels of our schedules for attention run with n = 2,048 and 4,096, d = 128, and counters
are divided by the pairs of tiles of 128 tokens. FOLDER/shared_memory.jsonl has a row for each launch of these kernels,
and what is in it already is not measured again; benchmarks/gpu/shared_memory.jsonl is that of an H200, which
docs/machines.md shows. Kernels are compiled before the profiler looks, and each run of it reads a few counters.

Needs PyTorch, Triton 3.6 and ncu.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

COUNTERS = (
    (
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared",
        "l1tex__data_bank_reads",
        "l1tex__data_bank_writes",
        "smsp__inst_executed_pipe_tensor_op_gmma",
    ),
    ("smsp__sass_data_bytes_mem_shared_op_gmma", "smsp__sass_data_bytes_mem_shared"),
)
"""What one run of the profiler reads together: counters of the hardware, and those of instrumented instructions."""

DEPTH, PRODUCTS = 64, (64, 128)


class Products(NamedTuple):
    """Products of a block: (rows x 64) times (64 x columns), the left operand in registers or not."""

    rows: int
    columns: int
    in_registers: bool

    def launch(self, times: int) -> None:
        import torch

        warps = 4 * (self.rows // 64)
        out = torch.empty(self.rows, self.columns, device="cuda")
        products[(1,)](out, times, self.rows, self.columns, DEPTH, self.in_registers, warps, num_warps=warps)


class Attention(NamedTuple):
    """One head of attention with tokens, d = 128, by a kernel that is offered."""

    schedule: str

    def launch(self, times: int) -> None:
        from hopper_bytes import Case

        from pebblesim.advice.tiles import hopper_tiling

        Case(hopper_tiling(self.schedule, {"d": 128}), 32 * times, 128, 1, None).call()()


CASES: dict[str, Products | Attention] = {
    **{
        f"{rows} x {columns}, left in {'registers' if held else 'shared memory'}": Products(rows, columns, held)
        for rows in (64, 128)
        for columns in (128, 256)
        for held in (False, True)
    },
    **{name: Attention(name) for name in ("flash2-forward", "flash2-backward-blocked")},
}


@gluon.jit
def products(
    out,
    times,
    rows: gl.constexpr,
    columns: gl.constexpr,
    depth: gl.constexpr,
    in_registers: gl.constexpr,
    warps: gl.constexpr,
):
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, columns, 16])
    left_layout: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    left = gl.allocate_shared_memory(
        gl.bfloat16, [rows, depth], gl.NVMMASharedLayout.get_default_for([rows, depth], gl.bfloat16)
    )
    right = gl.allocate_shared_memory(
        gl.bfloat16, [columns, depth], gl.NVMMASharedLayout.get_default_for([columns, depth], gl.bfloat16)
    )
    plain: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])
    left.store(gl.zeros([rows, depth], gl.bfloat16, plain))
    right.store(gl.zeros([columns, depth], gl.bfloat16, plain))
    fence_async_shared()
    total = gl.zeros([rows, columns], gl.float32, sums)
    held = left.load(left_layout)
    for _ in range(times):
        if in_registers:
            total = warpgroup_mma(held, right.permute((1, 0)), total, is_async=True)
        else:
            total = warpgroup_mma(left, right.permute((1, 0)), total, is_async=True)
        total = warpgroup_mma_wait(0, deps=(total,))
    row = gl.arange(0, rows, gl.SliceLayout(1, sums))
    column = gl.arange(0, columns, gl.SliceLayout(0, sums))
    gl.store(out + row[:, None] * columns + column[None, :], total)


def launch(kind: str, profiled: bool) -> None:
    """Launch all cases of a kind with both numbers; under the profiler, each behind a mark."""
    from profiler import under_profiler

    for case in cases(kind).values():
        for times in PRODUCTS:
            case.launch(times)  # compiled, and out of the profiler's sight
            if profiled:
                under_profiler(lambda case=case, times=times: case.launch(times))


def cases(kind: str) -> dict[str, Products | Attention]:
    """The cases of a kind, "products" or "attention"."""
    of = Products if kind == "products" else Attention
    return {name: case for name, case in CASES.items() if isinstance(case, of)}


def measured(kind: str, names: tuple[str, ...], seconds: float) -> list[dict[str, Any]]:
    """A row for each launch of a kernel with the values of some counters; none if that takes too long."""
    flags = "--clock-control none --cache-control none --profile-from-start off --csv --page raw --print-units base"
    ncu = ["ncu", *flags.split(), "--metrics", ",".join(f"{name}.sum" for name in names)]
    command = [*ncu, sys.executable, __file__, "launch", kind]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        print(f"over after {seconds:.0f} s: {str(error.stdout)[-500:]} {str(error.stderr)[-500:]}", flush=True)
        return []
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if not lines:
        print(done.stdout[-1000:], done.stderr[-1000:], flush=True)
        return []
    header, _, *records = csv.reader(lines)
    order, found, place = [(case, times) for case in cases(kind) for times in PRODUCTS], list[dict[str, Any]](), -1
    for record in records:
        row = dict(zip(header, record, strict=True))
        if "spin_kernel" in row["Kernel Name"]:
            place += 1
            continue
        values = {name: row.get(f"{name}.sum", "").replace(",", "") for name in names}
        counters = {name: float(value) for name, value in values.items() if re.fullmatch(r"[\d.]+", value)}
        case, times = order[place]
        kernel = row["Kernel Name"].partition("(")[0]
        if "::" in kernel:  # PyTorch's own, which makes the inputs
            continue
        found.append({"case": case, "times": times, "kernel": kernel, "asked": names, "counters": counters})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("-o", "--output", metavar="FOLDER", type=Path, help="measure, and write files there")
    where.add_argument("--show", metavar="FOLDER", type=Path, help="print what was measured")
    parser.add_argument("--seconds", type=float, default=60, help="nothing begins or goes on after this many")
    arguments = parser.parse_args()
    if arguments.show:
        show(arguments.show)
        return
    folder, started = arguments.output, time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    rows = folder / "shared_memory.jsonl"
    kept = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()] if rows.exists() else []
    done = {(row["case"], name) for row in kept for name in row["asked"]}
    for kind in ("products", "attention"):
        subprocess.run([sys.executable, __file__, "compile", kind], check=True)
        print(f"{time.monotonic() - started:4.0f} s: {kind} compiled", flush=True)
        for names in COUNTERS:
            left = arguments.seconds - (time.monotonic() - started)
            if left > 0 and any((case, name) not in done for case in cases(kind) for name in names):
                kept += measured(kind, names, left)
                rows.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
                print(f"{time.monotonic() - started:4.0f} s: {kind}, {', '.join(names)}", flush=True)
    if rows.exists():
        show(folder)


def show(folder: Path) -> None:
    """Print for each case what one product, or one pair of tiles of tokens, adds to each counter that it changes."""
    totals: dict[tuple[str, int], dict[str, float]] = {}
    for line in (folder / "shared_memory.jsonl").read_text(encoding="utf-8").splitlines():
        row: dict[str, Any] = json.loads(line)
        of = totals.setdefault((row["case"], row["times"]), {})
        for name, value in row["counters"].items():
            of[name] = of.get(name, 0.0) + value
    few, many = PRODUCTS
    for (case, times), values in totals.items():
        if times != many:
            continue
        print(case)
        products_alone, tiles = isinstance(CASES[case], Products), (32 * many / 128) ** 2
        for name, value in sorted(values.items()):
            less = totals[case, few].get(name, 0.0)
            each = (value - less) / (many - few) if products_alone else value / tiles
            if each > 0.5:
                print(f"{each:14,.2f}  {name}")


if __name__ == "__main__":
    if sys.argv[1:2] in (["launch"], ["compile"]):
        launch(sys.argv[2], sys.argv[1] == "launch")
    else:
        main()
