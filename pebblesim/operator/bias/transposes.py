"""The transpose of a bias by a kernel that reads and writes rows, several times as fast as PyTorch's copy.

Only what launches kernels imports it, since it needs Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pebblesim.operator.launching.launch import Kernel

ROWS, WARPS = 64, 4
"""Rows and columns of a tile, and the warps of its thread block."""

SIDE = tl.constexpr(ROWS)

TOGETHER = 8
"""Words that a thread moves at once, where rows are in one piece and each begins and ends at a multiple of so many."""

NUMBERS = ["rows", "columns", "inner", "x_outer", "x_inner", "x_head", "x_row", "x_column"]
NUMBERS += ["to_outer", "to_inner", "to_head", "to_row"]


@triton.jit(do_not_specialize=NUMBERS)
def transposes(  # type: ignore[no-untyped-def]
    x,
    to,
    rows,
    columns,
    inner,
    x_outer,
    x_inner,
    x_head,
    x_row,
    x_column,
    to_outer,
    to_inner,
    to_head,
    to_row,
    EACH: tl.constexpr,
):
    """A tile of a matrix, for each head and each of outer · inner groups; sizes and strides are multiples of EACH."""
    rows, columns = rows * EACH, columns * EACH
    across = tl.cdiv(columns, SIDE)
    i = tl.program_id(0) // across * SIDE + tl.arange(0, SIDE)
    j = tl.program_id(0) % across * SIDE + tl.arange(0, SIDE)
    outer, within, head = (tl.program_id(2) // inner).to(tl.int64), tl.program_id(2) % inner, tl.program_id(1)
    x += (outer * x_outer + within.to(tl.int64) * x_inner + head.to(tl.int64) * x_head) * EACH
    to += (outer * to_outer + within.to(tl.int64) * to_inner + head.to(tl.int64) * to_head) * EACH
    there = (i < rows)[:, None] & (j < columns)[None, :]
    along = j if EACH > 1 else j.to(tl.int64) * x_column
    tile = tl.load(x + (i.to(tl.int64) * x_row * EACH)[:, None] + along[None, :], mask=there, other=0.0)
    there = (j < columns)[:, None] & (i < rows)[None, :]
    tl.store(to + (j.to(tl.int64) * to_row * EACH)[:, None] + i[None, :], tl.trans(tile), mask=there)


KERNEL = Kernel(transposes)


def transpose(x: Tensor, to: Tensor) -> Tensor:
    """Write the transposes of matrices, (outer, inner, heads, rows, columns), in rows that are in one piece."""
    outer, inner, heads, rows, columns = x.shape
    grid = -(-rows // ROWS) * -(-columns // ROWS), heads, outer * inner
    steps = rows, columns, *x.stride()[:4], *to.stride()[:4]
    each = TOGETHER if x.stride(4) == 1 and not any(step % TOGETHER for step in steps) else 1
    sides, strides, others = ([step // each for step in some] for some in (steps[:2], steps[2:6], steps[6:]))
    KERNEL[grid](x, to, *sides, inner, *strides, x.stride(4), *others, each, num_warps=WARPS)
    return to
