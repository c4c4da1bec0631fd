"""FlashAttention's Figure 2 on this GPU: bytes at HBM, kernel by kernel, of attention in GPT-2 medium.

    python benchmarks/gpu/figure_2.py benchmarks/gpu/figure_2.jsonl

Dao et al. 2022 report, forward and backward, 40.3 GB for standard attention and 4.4 GB for FlashAttention, on an A100,
for n = 1,024, d = 64, 16 heads, a batch of 64. Here Nsight Compute reads what each kernel reads and writes, of standard
attention with and without a causal mask and dropout, of PyTorch's kernels, and of `pebblesim.gpu.torch.attention`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profiler import launched, under_profiler

from pebblesim.gpu import ncu

BATCH, HEADS, N, D = 64, 16, 1024, 64
MARK = "spin_kernel"
"""The kernel of PyTorch that stands before each case."""

Call = Callable[..., Any]


def standard(mask: bool, dropout: float) -> Call:
    """Attention as it was written before there were fused kernels: each line is a kernel or two."""
    import torch

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = torch.empty(BATCH * HEADS, N, N, dtype=q.dtype, device=q.device)
        q, k, v = (each.reshape(BATCH * HEADS, N, D) for each in (q, k, v))
        scores = torch.baddbmm(scores, q, k.transpose(1, 2), beta=0, alpha=D**-0.5)
        if mask:
            scores = scores + torch.full((N, N), -10000.0, dtype=q.dtype, device=q.device).triu(1)
        weights = torch.dropout(torch.softmax(scores, dim=-1), dropout, True)
        return torch.bmm(weights, v).reshape(BATCH, HEADS, N, D)

    return attention


def of_pytorch(backend: str, **options: Any) -> Call:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def attention(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return scaled_dot_product_attention(q, k, v, **options)

    return attention


def ours(**options: Any) -> Call:
    from pebblesim.gpu.torch import attention

    return lambda q, k, v: attention(q, k, v, **options)


CASES: dict[str, Callable[[], Call]] = {
    "standard": lambda: standard(False, 0.0),
    "standard, mask": lambda: standard(True, 0.0),
    "standard, dropout": lambda: standard(False, 0.1),
    "standard, mask and dropout": lambda: standard(True, 0.1),
    "PyTorch, math": lambda: of_pytorch("MATH"),
    "PyTorch, math, mask and dropout": lambda: of_pytorch("MATH", is_causal=True, dropout_p=0.1),
    "PyTorch, flash": lambda: of_pytorch("FLASH_ATTENTION"),
    "PyTorch, flash, mask and dropout": lambda: of_pytorch("FLASH_ATTENTION", is_causal=True, dropout_p=0.1),
    "PyTorch, cuDNN": lambda: of_pytorch("CUDNN_ATTENTION"),
    "attention": ours,
    "attention, mask": lambda: ours(is_causal=True),
}


class Case:
    """Forward and backward of one way to compute attention."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name

    def call(self) -> Callable[[], None]:
        import torch

        torch.manual_seed(0)
        normal = [torch.randn(BATCH, HEADS, N, D, device="cuda", dtype=torch.float16) for _ in range(4)]
        *inputs, gradient = normal
        for each in inputs:
            each.requires_grad_()
        attention = CASES[self.name]()
        return lambda: torch.autograd.grad(attention(*inputs), inputs, gradient)


def profiled() -> None:
    """Run each case once to compile its kernels, and once for the profiler."""
    for name in CASES:
        under_profiler(launched(Case(name)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, nargs="?", help="where the rows are written; without it the cases are run")
    chosen = parser.parse_args()
    if chosen.file is None:
        profiled()
        return
    command = [sys.executable, str(Path(__file__).resolve())]
    kernels = ncu.profile(command, metrics=ncu.OF_BATCHES, cold=False, marked=True)
    rows, names = [], iter(CASES)
    for each in kernels:
        if MARK in each.kernel:
            name = next(names)
            continue
        values = each.values
        rows.append(
            {
                "case": name,
                "kernel": each.kernel.partition("(")[0][:120],
                "read": round(values[ncu.HBM_READ_BYTES]),
                "written": round(values[ncu.HBM_WRITE_BYTES]),
                "sm_read": round(values[ncu.SM_READ_BYTES]),
                "sm_written": 32 * round(values[ncu.SM_WRITE_SECTORS]),
                "seconds": values[ncu.TIME] / 1e9,
            }
        )
    chosen.file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for name in CASES:
        mine = [row for row in rows if row["case"] == name]
        total = sum(row["read"] + row["written"] for row in mine) / 1e9
        print(f"{name:34} {len(mine):3} kernels {total:7.2f} GB {1e3 * sum(row['seconds'] for row in mine):7.2f} ms")


if __name__ == "__main__":
    main()
