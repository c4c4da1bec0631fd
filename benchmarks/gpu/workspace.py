"""The backward pass with its tables cut to a workspace: `python benchmarks/gpu/workspace.py -o FILE`, on a GPU."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

from pebblesim.gpu.torch import attention

CASES = ((16384, 512, 2), (16384, 256, 2), (16384, 1024, 2), (4096, 512, 16))
MEBIBYTES = (None, 1024, 512, 256)


def main() -> None:
    import torch
    from triton.testing import do_bench

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    output, rows = parser.parse_args().output, []
    for n, d, heads in CASES:
        torch.manual_seed(0)
        q, k, v = (torch.randn(1, heads, n, d, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3))
        dO, first = torch.randn_like(q), None
        for size in MEBIBYTES:
            out = attention(q, k, v, workspace=None if size is None else size * 2**20)

            back = partial(torch.autograd.grad, out, (q, k, v), dO, retain_graph=True)
            made = back()
            first = first or made
            off = max(float((a - b).float().norm() / b.float().norm()) for a, b in zip(made, first, strict=True))
            seconds = do_bench(back, warmup=20, rep=100, return_mode="median") / 1e3
            rows.append({"n": n, "d": d, "heads": heads, "mebibytes": size, "seconds": seconds, "off": off})
            rows[-1]["tflops"] = 10 * n * n * d * heads / seconds / 1e12
            print(rows[-1], flush=True)
            output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
