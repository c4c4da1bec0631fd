"""Attention with its tables cut to a workspace: `python benchmarks/gpu/workspace.py -o FILE`, on a GPU.

Kernels are compiled by other processes first.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from pebblesim.gpu.torch import attention, plan

CASES = (
    (16384, 512, 2, False),
    (16384, 256, 2, False),
    (16384, 1024, 2, False),
    (4096, 512, 16, False),
    (16384, 512, 2, True),
)
MEBIBYTES = (None, 1024, 512, 264, 256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    output, rows = parser.parse_args().output, []
    asked = [(*case, size) for case in CASES for size in MEBIBYTES]
    with ProcessPoolExecutor(10, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(attended, *zip(*asked, strict=True)))
    for n, d, heads, causal in CASES:
        whole = None
        for size in MEBIBYTES:
            attend, back, inputs = attended(n, d, heads, causal, size)
            made = back()
            whole = whole or made
            off = max(float((a - b).float().norm() / b.float().norm()) for a, b in zip(made, whole, strict=True))
            planned = plan(n, d, heads, is_causal=causal, workspace=None if size is None else size * 2**20)
            row = {"n": n, "d": d, "heads": heads, "causal": causal, "mebibytes": size, "off": off}
            pairs = n * (n + 1) // 2 if causal else n * n
            for way, call, found in (("forward", attend, planned.forward[0]), ("backward", back, planned.backward[0])):
                seconds, operations = timed(call), (4 if way == "forward" else 10) * pairs * d * heads
                row[way] = {"seconds": seconds, "tflops": operations / seconds / 1e12, "forecast": found.seconds}
                row[way] |= {"kernels": str(found.tiling), "rounds": found.rounds}
            rows.append(row)
            print(json.dumps(row), flush=True)
            output.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
            del attend, back, inputs


def attended(n: int, d: int, heads: int, causal: bool, size: int | None) -> Any:
    """Calls of the forward and of the backward pass, done once, and what they are of."""
    import torch

    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, n, d, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    dO = torch.randn_like(q)
    attend = partial(attention, q, k, v, is_causal=causal, workspace=None if size is None else size * 2**20)
    back = partial(torch.autograd.grad, attend(), (q, k, v), dO, retain_graph=True)
    back()
    torch.cuda.synchronize()
    return (attend, back, (q, k, v)) if multiprocessing.parent_process() is None else None


def timed(call: Any) -> float:
    """Seconds, the median of many calls."""
    from triton.testing import do_bench

    return float(do_bench(call, warmup=20, rep=100, return_mode="median")) / 1e3


if __name__ == "__main__":
    main()
