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

NUMBERS = ["rows", "columns", "inner", "x_outer", "x_inner", "x_head", "x_row", "x_column"]
NUMBERS += ["to_outer", "to_inner", "to_head", "to_row"]


@triton.jit(do_not_specialize=NUMBERS)
def transposes(  # type: ignore[no-untyped-def]
    x, to, rows, columns, inner, x_outer, x_inner, x_head, x_row, x_column, to_outer, to_inner, to_head, to_row
):
    """A tile of a matrix, for each head and each of outer · inner groups."""
    across = tl.cdiv(columns, SIDE)
    i = tl.program_id(0) // across * SIDE + tl.arange(0, SIDE)
    j = tl.program_id(0) % across * SIDE + tl.arange(0, SIDE)
    outer, within, head = tl.program_id(2).to(tl.int64) // inner, tl.program_id(2) % inner, tl.program_id(1)
    x += outer * x_outer + within.to(tl.int64) * x_inner + head.to(tl.int64) * x_head
    to += outer * to_outer + within.to(tl.int64) * to_inner + head.to(tl.int64) * to_head
    there = (i < rows)[:, None] & (j < columns)[None, :]
    tile = tl.load(x + i.to(tl.int64)[:, None] * x_row + j.to(tl.int64)[None, :] * x_column, mask=there, other=0.0)
    there = (j < columns)[:, None] & (i < rows)[None, :]
    tl.store(to + j.to(tl.int64)[:, None] * to_row + i[None, :], tl.trans(tile), mask=there)


KERNEL = Kernel(transposes)


def transpose(x: Tensor, to: Tensor) -> Tensor:
    """Write the transposes of matrices, (outer, inner, heads, rows, columns), whose own rows are in one piece."""
    outer, inner, heads, rows, columns = x.shape
    grid = -(-rows // ROWS) * -(-columns // ROWS), heads, outer * inner
    KERNEL[grid](x, to, rows, columns, inner, *x.stride(), *to.stride()[:4], num_warps=WARPS)
    return to
