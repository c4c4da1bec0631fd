"""The sum of the parts of a gradient of a bias, which blocks of some sequences each have written.

Only what launches kernels imports it, since it needs Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pebblesim.kernels.strides import WORDS
from pebblesim.operator.bias.programs import Parts
from pebblesim.operator.launching.launch import Kernel

ROWS, COLUMNS, WARPS = 4, 256, 4
"""Sides of a tile, and the warps of its thread block."""

DOWN, ACROSS = tl.constexpr(ROWS), tl.constexpr(COLUMNS)

NUMBERS = ["rows", "columns", "whole", "each", "x_group", "x_part", "x_head", "x_row"]
NUMBERS += ["to_group", "to_head", "to_row"]


@triton.jit(do_not_specialize=NUMBERS)
def sums(  # type: ignore[no-untyped-def]
    x,
    to,
    rows,
    columns,
    whole,
    each,
    x_group,
    x_part,
    x_head,
    x_row,
    to_group,
    to_head,
    to_row,
    MOST: tl.constexpr,
):
    """Write the sum of the parts that a head has, up to MOST, in order; their strides are multiples of 8 words."""
    head, group, across = tl.program_id(1), tl.program_id(2), tl.cdiv(columns, ACROSS)
    matrix = group * tl.num_programs(1) + head
    first, last = matrix * whole // each, ((matrix + 1) * whole - 1) // each
    i = (tl.program_id(0) // across * DOWN + tl.arange(0, DOWN)).to(tl.int64)
    j = tl.program_id(0) % across * ACROSS + tl.arange(0, ACROSS)
    inside = (i < rows)[:, None] & (j < columns)[None, :]
    place = (group.to(tl.int64) * x_group + head.to(tl.int64) * x_head + i * x_row) * 8
    total = tl.load(x + place[:, None] + j[None, :], mask=inside, other=0.0)
    for part in tl.static_range(1, MOST):
        there = inside & (part <= last - first)
        total += tl.load(x + x_part.to(tl.int64) * part * 8 + place[:, None] + j[None, :], mask=there, other=0.0)
    place = group.to(tl.int64) * to_group + head.to(tl.int64) * to_head + i * to_row
    tl.store(to + place[:, None] + j[None, :], total.to(to.dtype.element_ty), mask=inside)


KERNEL = Kernel(sums)


def add_up(x: Tensor, to: Tensor, parts: Parts) -> None:
    """Write sums of parts, (groups, parts, heads, n_q, n_k) in float32, to (groups, heads, n_q, n_k), rounded once."""
    groups, _, heads, rows, columns = x.shape
    grid = -(-rows // ROWS) * -(-columns // COLUMNS), heads, groups
    strides = *(step // WORDS for step in x.stride()[:4]), *to.stride()[:3]
    KERNEL[grid](x, to, rows, columns, *parts, *strides, triton.next_power_of_2(parts.most), num_warps=WARPS)
