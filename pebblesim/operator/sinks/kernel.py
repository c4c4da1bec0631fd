"""The sums of the gradient of sinks by one kernel of Triton, in the place of some five operations of PyTorch.

Only what launches kernels imports it, since it needs Triton.
"""

from __future__ import annotations

from math import e, log2

from torch import Tensor

from pebblesim.kernels.module import module_of
from pebblesim.kernels.passes.sinks import HIGHEST
from pebblesim.operator.launching.fresh import fresh
from pebblesim.operator.launching.launch import Kernel

QUERIES, WARPS = 4096, 16
"""Queries that a thread block takes at once, of a head, and its warps."""

NUMBERS = ("queries", "n", "kv_heads", "shared", "each", "v_row", "L_row", "apart")
"""Integers that a sum takes: queries of a head and those of one batch, heads of keys, heads that share them as rows of
L and as rows of v have them, words from row to row of both, and from the sinks of a batch to those of the next one."""

TEXT = f"""
import triton
import triton.language as tl

@triton.jit(do_not_specialize={[*NUMBERS]})
def sums(v, L, s, made, {", ".join(NUMBERS)}):
    head, group = tl.program_id(0), tl.program_id(1)
    heads, first_batch = kv_heads * shared, group * (queries // n)
    v += (head // each).to(tl.int64) * v_row + head % each
    L += (head // shared).to(tl.int64) * L_row + head % shared
    v_of_batch, L_of_batch = (heads // each).to(tl.int64) * v_row, kv_heads.to(tl.int64) * L_row
    sink = tl.minimum(tl.load(s + group * apart + head).to(tl.float32) * {log2(e)!r}, {HIGHEST!r})
    total = tl.full([{QUERIES}], 0.0, tl.float32)
    for first in range(0, queries, {QUERIES}):
        number = first + tl.arange(0, {QUERIES})
        inside = number < queries
        batch = (number.to(tl.float32) / n).to(tl.int32)  # off by one at most; of integers it would take longer
        batch += tl.where(batch * n > number, -1, tl.where((batch + 1) * n <= number, 1, 0))
        i, batch = number - batch * n, (first_batch + batch).to(tl.int64)
        less = tl.load(v + batch * v_of_batch + i * each, mask=inside, other=0.0)
        of_query = tl.load(L + batch * L_of_batch + i * shared, mask=inside, other=0.0)
        share = tl.where(of_query == float("-inf"), 0.0, tl.exp2(sink - of_query))
        total -= tl.where(inside, share * less, 0.0)
    tl.store(made + group * heads + head, tl.sum(total, axis=0))
"""

MODULE = module_of(TEXT)
KERNEL = Kernel(MODULE.sums)


def summed(v: Tensor, L: Tensor, sinks: Tensor, kv_heads: int) -> Tensor:
    """The gradient of sinks, (heads,) or (batch, heads), of at least one query of one batch.

    `v`, `L`: as of `gradient_of_sinks`, for the queries that see a key; numbers of a row are next to each other.
    """
    each = L.shape[0] * (sinks.shape[-1] // kv_heads) // v.shape[0]
    sinks = sinks if sinks.stride(-1) == 1 else sinks.contiguous()
    heads, batch, groups = sinks.shape[-1], L.shape[0] // kv_heads, sinks.shape[:-1].numel()
    shared = heads // kv_heads
    n, apart = v.shape[1] // each, sinks.stride(0) if sinks.dim() > 1 else 0
    made = fresh(sinks.new_empty(sinks.shape))
    numbers = batch // groups * n, n, kv_heads, shared, each, v.stride(0), L.stride(0), apart
    KERNEL[heads, groups](v, L, sinks, made, *numbers, num_warps=WARPS)
    return made
