"""Sums of parts in float32, added in order and rounded to their matrix, by one kernel of Triton.

Only what launches kernels imports it, since it needs Triton.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from pebblesim.kernels.strides import WORDS
from pebblesim.operator.launch import Kernel

NUMBERS = ["rows", "parts", "part", "row", "of_batch", "of_head", "of_row"]

TILE = 1024
"""Words of the sum of a thread block: few, since there are few keys."""


@triton.jit(do_not_specialize=NUMBERS)
def added(  # type: ignore[no-untyped-def]
    sums, x, rows, parts, part, row, of_batch, of_head, of_row, D: tl.constexpr, ROWS: tl.constexpr, SIDE: tl.constexpr
):
    """Rows of D columns of a head: its parts follow one another. Strides are multiples of 8 words."""
    head, batch, columns = tl.program_id(1), tl.program_id(2), tl.arange(0, SIDE)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (i < rows)[:, None] & (columns < D)[None, :]
    first = (batch * tl.num_programs(1) + head).to(tl.int64) * parts
    place = (i * row * 8)[:, None] + columns[None, :]
    total = tl.zeros([ROWS, SIDE], tl.float32)
    for at in range(0, parts):
        total += tl.load(sums + (first + at) * part * 8 + place, mask=inside, other=0.0)
    place = batch.to(tl.int64) * of_batch + head.to(tl.int64) * of_head + i.to(tl.int64) * of_row
    tl.store(x + (place * 8)[:, None] + columns[None, :], total.to(x.dtype.element_ty), mask=inside)


@cache
def _kernel(d: int, dtype: torch.dtype) -> Kernel:
    """The kernel for matrices of this type with d columns."""
    return Kernel(added)


def add_up_on_gpu(parts: Tensor, x: Tensor) -> None:
    """Write sums of parts, (batch, heads · parts, n, d) in float32 and in order, to a matrix that kernels can write."""
    (batch, heads, n, d), strides = x.shape, x.stride()[:3]
    side = triton.next_power_of_2(d)
    at_once = max(TILE // side, 1)
    apart = (each // WORDS for each in parts.stride()[1:3])
    numbers = n, parts.shape[1] // heads, *apart, *(each // WORDS for each in strides)
    _kernel(d, x.dtype)[-(-n // at_once), heads, batch](parts, x, *numbers, d, at_once, side, num_warps=4)
