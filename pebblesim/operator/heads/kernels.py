"""Kernels of Triton beside those of a pass whose heads are in parts: copies of keys, numbers in order, and sums.

Only what launches kernels imports it, since it needs Triton.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from pebblesim.kernels.strides import WORDS
from pebblesim.operator.launching.launch import Kernel

TILE = 1024
"""Words of a matrix that a thread block takes: few, since there are few keys."""

NUMBERS = 4096
"""Numbers that a thread block puts in order."""

SIDE = tl.constexpr(NUMBERS)

OF_MATRIX = ["rows", "many", "parts", "part", "of_part", "batch_of", "head_of", "row_of"]
"""Arguments that no kernel is compiled for; strides are multiples of 8 words."""


@triton.jit(do_not_specialize=OF_MATRIX)
def between(  # type: ignore[no-untyped-def]
    whole,
    of_parts,
    rows,
    many,
    parts,
    part,
    of_part,
    batch_of,
    head_of,
    row_of,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    SUMS: tl.constexpr,
):
    """Write some rows of a head, of D columns, for its first parts, so many; or those of the parts as their sums in
    float32, in their order."""
    head, batch, columns = tl.program_id(1), tl.program_id(2), tl.arange(0, WIDE)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = batch.to(tl.int64) * batch_of + head.to(tl.int64) * head_of + i.to(tl.int64) * row_of
    here = whole + (place * 8)[:, None] + columns[None, :]
    of_one = (i.to(tl.int64) * of_part * 8)[:, None] + columns[None, :]
    first = (batch * tl.num_programs(1) + head).to(tl.int64) * parts
    inside = (i < rows)[:, None] & (columns < D)[None, :]
    if SUMS:
        total = tl.zeros([ROWS, WIDE], tl.float32)
        for at in range(many):
            total += tl.load(of_parts + (first + at) * part * 8 + of_one, mask=inside, other=0.0)
        tl.store(here, total.to(whole.dtype.element_ty), mask=inside)
    else:
        tile = tl.load(here, mask=inside)
        for at in range(many):
            tl.store(of_parts + (first + at) * part * 8 + of_one, tile, mask=inside)


@triton.jit(do_not_specialize=["n", "each", "parts"])
def orders(x, to, n, each, parts):  # type: ignore[no-untyped-def]
    """Write numbers of each query of a part of the heads, of which a query has `each`."""
    at, part, group = tl.program_id(0) * SIDE + tl.arange(0, SIDE), tl.program_id(1), tl.program_id(2)
    inside = at < n * each
    of_query = (at // each * parts + part) * each + at % each
    number = tl.load(x + group.to(tl.int64) * n * each * parts + of_query, mask=inside)
    tl.store(to + (group.to(tl.int64) * parts + part) * n * each + at, number, mask=inside)


@cache
def _kernel(sums: bool, d: int, *types: Any) -> Kernel:
    """The kernel for matrices of these types with d columns."""
    return Kernel(between)


ORDERS = Kernel(orders)


def _launch(whole: Tensor, of_parts: Tensor, many: int, sums: bool) -> None:
    """Launch the kernel over the rows of a matrix of all heads, (batch, heads, n, d), beside that of their first parts,
    so many."""
    (batch, heads, n, d), wide = whole.shape, triton.next_power_of_2(whole.shape[3])
    at_once = max(TILE // wide, 1)
    strides = (each // WORDS for each in (*of_parts.stride()[1:3], *whole.stride()[:3]))
    made = _kernel(sums, d, whole.dtype, of_parts.dtype)
    numbers = n, many, of_parts.shape[1] // heads, *strides
    made[-(-n // at_once), heads, batch](whole, of_parts, *numbers, d, at_once, wide, int(sums), num_warps=4)


def repeat(x: Tensor, to: Tensor) -> None:
    """Write a matrix, (batch, heads, n, d), for each part: (batch, heads · parts, n, d)."""
    _launch(x, to, to.shape[1] // x.shape[1], sums=False)


def add_up(parts: Tensor, to: Tensor, many: int) -> None:
    """Write sums of the first parts of each head, so many of (batch, heads · parts, n, d) in float32 and in order, to a
    matrix that kernels can write."""
    _launch(to, parts, many, sums=True)


def order(x: Tensor, to: Tensor, n: int, each: int, parts: int) -> None:
    """Write numbers, (groups, n · parts · each), for each part: (groups · parts, n · each)."""
    ORDERS[-(-n * each // NUMBERS), parts, x.shape[0]](x, to, n, each, parts, num_warps=4)
