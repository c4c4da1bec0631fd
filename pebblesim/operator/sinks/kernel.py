"""The sums of the gradient of sinks by one kernel of Triton, in the place of some five operations of PyTorch.

Only what launches kernels imports it, since it needs Triton.
"""

from __future__ import annotations

from torch import Tensor

from pebblesim.kernels.module import module_of
from pebblesim.kernels.passes.sums_of_sinks import NUMBERS, sum_of_sinks
from pebblesim.operator.launching.fresh import fresh
from pebblesim.operator.launching.launch import Kernel

QUERIES, WARPS = 4096, 16
"""Queries that a thread block takes at once, of a head, and its warps."""

TEXT = f"""
import triton
import triton.language as tl
{sum_of_sinks("triton")}

@triton.jit(do_not_specialize={[*NUMBERS]})
def sums(v, L, s, made, {", ".join(NUMBERS)}):
    sum_of_sinks(v, L, s, made, tl.program_id(0), {", ".join(NUMBERS)}, {QUERIES})
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
    KERNEL[(heads * groups,)](v, L, sinks, made, *numbers, num_warps=WARPS)
    return made
