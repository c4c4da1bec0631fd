"""The sums of the gradient of sinks by one kernel of Triton, in the place of some five operations of PyTorch.

Only what launches kernels imports it, since it needs Triton.
"""

from __future__ import annotations

from math import e, log2

import triton
import triton.language as tl
from torch import Tensor

from pebblesim.kernels.passes.sinks import HIGHEST
from pebblesim.operator.launching.fresh import fresh
from pebblesim.operator.launching.launch import Kernel

QUERIES, WARPS = 4096, 16
"""Queries that a thread block takes at once, of a head, and its warps."""

SIDE, TO_BASE_2, MOST = tl.constexpr(QUERIES), tl.constexpr(log2(e)), tl.constexpr(HIGHEST)

NUMBERS = ["queries", "n", "kv_heads", "shared", "each", "v_row", "L_row", "apart"]


@triton.jit(do_not_specialize=NUMBERS)
def sums(v, L, s, made, queries, n, kv_heads, shared, each, v_row, L_row, apart):  # type: ignore[no-untyped-def]
    """The sum over `queries`, n of each batch, of a head and of a group of batches with the same sinks; rows of L have
    numbers of `shared` heads, and those of v of `each`, a part of them.

    Batches are found by a division in float32, which is off by one at most. No query divides integers, which would take
    longer than the rest: what is divided is alike for all of a head.
    """
    head, group = tl.program_id(0), tl.program_id(1)
    heads, first_batch = kv_heads * shared, group * (queries // n)
    v += (head // each).to(tl.int64) * v_row + head % each
    L += (head // shared).to(tl.int64) * L_row + head % shared
    v_of_batch, L_of_batch = (heads // each).to(tl.int64) * v_row, kv_heads.to(tl.int64) * L_row
    sink = tl.minimum(tl.load(s + group * apart + head).to(tl.float32) * TO_BASE_2, MOST)
    total = tl.zeros([SIDE], tl.float32)
    for first in range(0, queries, SIDE):
        number = first + tl.arange(0, SIDE)
        inside = number < queries
        batch = (number.to(tl.float32) / n).to(tl.int32)
        batch += tl.where(batch * n > number, -1, tl.where((batch + 1) * n <= number, 1, 0))
        i, batch = number - batch * n, (first_batch + batch).to(tl.int64)
        less = tl.load(v + batch * v_of_batch + i * each, mask=inside, other=0.0)
        of_query = tl.load(L + batch * L_of_batch + i * shared, mask=inside, other=0.0)
        share = tl.where(of_query == float("-inf"), 0.0, tl.math.exp2(sink - of_query))
        total -= tl.where(inside, share * less, 0.0)
    tl.store(made + group * shared * kv_heads + head, tl.sum(total, axis=0))


KERNEL = Kernel(sums)


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
