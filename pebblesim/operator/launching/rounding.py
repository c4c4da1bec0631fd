"""Sums in float32, rounded to their matrix by one kernel of Triton: cheaper for the host than a copy of PyTorch.

Only what launches kernels imports it, since it needs Triton.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from pebblesim.kernels.strides import WORDS
from pebblesim.operator.launching.launch import Kernel

NUMBERS = ["rows", "shared", "of_batch", "of_head", "of_row"]

TILE = 2048
"""Words of a thread block."""


@triton.jit(do_not_specialize=NUMBERS)
def rounded(  # type: ignore[no-untyped-def]
    sums, x, rows, shared, of_batch, of_head, of_row, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Sums of heads that share keys, (rows, D) with their rows in turn; strides of x are multiples of 8 words."""
    own, batch, columns = tl.program_id(1), tl.program_id(2), tl.arange(0, COLUMNS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    group = (batch * tl.num_programs(1) + own).to(tl.int64)
    inside = (row < rows)[:, None] & (columns < D)[None, :]
    found = tl.load(sums + (group * rows + row)[:, None] * D + columns[None, :], mask=inside)
    head, i = own * shared + row % shared, row // shared
    place = batch.to(tl.int64) * of_batch + head.to(tl.int64) * of_head + i.to(tl.int64) * of_row
    tl.store(x + (place * 8)[:, None] + columns[None, :], found.to(x.dtype.element_ty), mask=inside)


@cache
def _kernel(d: int, dtype: torch.dtype) -> Kernel:
    """The kernel for matrices of this type with d columns."""
    return Kernel(rounded)


def round_on_gpu(sums: Tensor, x: Tensor, kv_heads: int) -> None:
    """As `layout.round_sums`, for a matrix that kernels can write."""
    (batch, heads, n, d), (*strides, _) = x.shape, x.stride()
    shared, columns = heads // kv_heads, triton.next_power_of_2(d)
    at_once = max(TILE // columns, 1)
    grid = -(-n * shared // at_once), kv_heads, batch
    numbers = n * shared, shared, *(each // WORDS for each in strides)
    _kernel(d, x.dtype)[grid](sums, x, *numbers, d, at_once, columns, num_warps=4)
