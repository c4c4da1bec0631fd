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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from profiler import launched, under_profiler

from pebblesim.measuring import ncu

BATCH, HEADS, N, D = 64, 16, 1024, 64
MARK = "spin_kernel"
"""The kernel of PyTorch that stands before each case."""

Call = Callable[..., Any]


METRICS = (ncu.HBM_READ_BYTES, ncu.HBM_WRITE_BYTES, ncu.TIME)


def standard(mask: str, dropout: float) -> Call:
    """Attention as it was written before there were fused kernels, each line a kernel or two.

    Args:
        mask: how the causal mask is applied: "added" to the scores, "filled" in, or "".
        dropout: the part of the probabilities that is dropped.
    """
    import torch

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = torch.empty(BATCH * HEADS, N, N, dtype=q.dtype, device=q.device)
        q, k, v = (each.reshape(BATCH * HEADS, N, D) for each in (q, k, v))
        scores = torch.baddbmm(scores, q, k.transpose(1, 2), beta=0, alpha=D**-0.5)
        if mask == "added":
            scores = scores + torch.full((N, N), -10000.0, dtype=q.dtype, device=q.device).triu(1)
        elif mask == "filled":
            hidden = torch.ones(N, N, dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(hidden, -10000.0)
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
    "standard": lambda: standard("", 0.0),
    "standard, mask filled in": lambda: standard("filled", 0.0),
    "standard, mask added": lambda: standard("added", 0.0),
    "standard, dropout": lambda: standard("", 0.1),
    "standard, mask filled in and dropout": lambda: standard("filled", 0.1),
    "standard, mask added and dropout": lambda: standard("added", 0.1),
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


def profiled(names: Sequence[str]) -> None:
    """Run each case once to compile its kernels, and once for the profiler."""
    for name in names:
        under_profiler(launched(Case(name)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="where the rows are written, in the place of earlier ones of the cases")
    parser.add_argument("--cases", nargs="*", default=list(CASES), help=f"all by default: {'; '.join(CASES)}")
    parser.add_argument("--run", action="store_true", help="run the cases, under the profiler")
    chosen = parser.parse_args()
    if chosen.run:
        profiled(chosen.cases)
        return
    command = [sys.executable, str(Path(__file__).resolve()), str(chosen.file), "--run", "--cases", *chosen.cases]
    earlier = chosen.file.read_text(encoding="utf-8").splitlines() if chosen.file.exists() else []
    rows = [row for row in map(json.loads, earlier) if row["case"] not in chosen.cases]
    names = iter(chosen.cases)
    for each in ncu.profile(command, metrics=METRICS, cold=False, marked=True):
        if MARK in each.kernel:
            name = next(names)
            continue
        read, written, time = (each.values[metric] for metric in METRICS)
        kernel = each.kernel.partition("(")[0][:120]
        rows.append(
            {"case": name, "kernel": kernel, "read": round(read), "written": round(written), "seconds": time / 1e9}
        )
    rows.sort(key=lambda row: list(CASES).index(row["case"]))
    chosen.file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
