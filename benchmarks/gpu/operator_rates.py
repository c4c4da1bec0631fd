"""Times of attention with and without gradients, beside PyTorch's kernels, as users call them."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from statistics import median
from typing import Any, NamedTuple


class Cell(NamedTuple):
    """An attention in bfloat16: head dimension, tokens, heads, and whether it is causal."""

    d: int
    n: int
    heads: int
    causal: bool


CELLS = [
    Cell(d, n, heads, causal)
    for d, (n, heads), causal in product((64, 128, 256, 512), ((16_384, 4), (4096, 16)), (False, True))
]

LARGEST = 256
"""The widest heads of cuDNN's and FlashAttention's kernels in PyTorch."""


def rates(asked: Any) -> Iterator[dict[str, Any]]:
    """Milliseconds of attention without gradients, with them, and of them alone; medians of seven times four calls."""
    import torch

    warmed(asked.workers)
    for cell in CELLS:
        row: dict[str, Any] = cell._asdict()
        for name in ("ours", "ours, same bits", *theirs(cell)):
            try:
                row[name] = times(torch, cell, name)
            except Exception as error:  # the others are measured
                row[name] = {"error": f"{type(error).__name__}: {error}"[:200]}
        yield row


def theirs(cell: Cell) -> dict[str, Any]:
    """PyTorch's kernels for a cell, by name."""
    from torch.nn.attention import SDPBackend

    if cell.d > LARGEST:
        return {"efficient": SDPBackend.EFFICIENT_ATTENTION}
    return {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def times(torch: Any, cell: Cell, name: str) -> dict[str, float]:
    """Milliseconds of an attention's passes."""
    from torch.nn.attention import sdpa_kernel

    from pebblesim.gpu.torch import attention

    q, k, v, dO = tensors(torch, cell)
    call = partial(attention, is_causal=cell.causal, deterministic="same" in name)
    backends = theirs(cell)
    if name in backends:
        call = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=cell.causal)
    x = [each.detach().requires_grad_() for each in (q, k, v)]
    with sdpa_kernel(backends.get(name, list(backends.values()))):
        with torch.no_grad():
            found = {"forward_ms": milliseconds(torch, partial(call, q, k, v))}
        found["both_ms"] = milliseconds(torch, lambda: torch.autograd.grad(call(*x), x, dO))
        out = call(*x)
        alone = partial(torch.autograd.grad, out, x, dO, retain_graph=True)
        found["backward_ms"] = milliseconds(torch, alone)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(20):
            torch.autograd.grad(call(*x), x, dO)
        found["both_host_ms"] = (time.perf_counter() - began) / 20 * 1e3  # which the GPU may be behind
        torch.cuda.synchronize()
        return found


def tensors(torch: Any, cell: Cell) -> list[Any]:
    """Q, K, V and dO."""
    torch.manual_seed(0)
    shape = 1, cell.heads, cell.n, cell.d
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]


def milliseconds(torch: Any, call: Callable[[], Any]) -> float:
    """The median of seven times four calls, or of three calls that take longer than 30 ms."""
    call()
    slow = _once(torch, call, 1) > 30
    return median(_once(torch, call, 1 if slow else 4) for _ in range(3 if slow else 7))


def _once(torch: Any, call: Callable[[], Any], calls: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end) / calls)


def warmed(workers: int) -> None:
    """Compile the kernels of all cells into Triton's cache on disk, in several processes."""
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compiled, product(CELLS, (False, True))))


def _compiled(case: tuple[Cell, bool]) -> None:
    import torch

    from pebblesim.gpu.torch import attention

    cell, deterministic = case
    q, k, v, dO = tensors(torch, cell)
    x = [each.requires_grad_() for each in (q, k, v)]
    try:
        with torch.no_grad():
            attention(*x, is_causal=cell.causal, deterministic=deterministic)
        torch.autograd.grad(attention(*x, is_causal=cell.causal, deterministic=deterministic), x, dO)
    except Exception as error:  # which its cell says, too
        print(f"{cell}: {type(error).__name__}: {error}"[:300], flush=True)
    torch.cuda.synchronize()
