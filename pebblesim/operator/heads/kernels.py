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

OF_MATRIX = ["many", "part", "of_part", "batch_of", "head_of", "row_of"]
"""Arguments of a matrix and its parts that no kernel is compiled for; strides are multiples of 8 words."""

OF_TWO = ["rows", "parts", "blocks", *OF_MATRIX, *(f"{name}_2" for name in OF_MATRIX)]
"""Arguments of two matrices of as many rows and parts."""


@triton.jit
def places(  # type: ignore[no-untyped-def]
    number,
    rows,
    parts,
    of_part,
    batch_of,
    head_of,
    row_of,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Where a tile of rows, by its number, lies in the matrix of a head and in that of a part, which entries there are,
    and the number of the first part."""
    head, batch, columns = tl.program_id(1), tl.program_id(2), tl.arange(0, WIDE)
    i = number * ROWS + tl.arange(0, ROWS)
    place = batch.to(tl.int64) * batch_of + head.to(tl.int64) * head_of + i.to(tl.int64) * row_of
    whole = (place * 8)[:, None] + columns[None, :]
    of_one = (i.to(tl.int64) * of_part * 8)[:, None] + columns[None, :]
    inside = (i < rows)[:, None] & (columns < D)[None, :]
    return whole, of_one, inside, (batch * tl.num_programs(1) + head).to(tl.int64) * parts


@triton.jit(do_not_specialize=["rows", "parts", *OF_MATRIX])
def repeats(  # type: ignore[no-untyped-def]
    x,
    to,
    rows,
    parts,
    many,
    part,
    of_part,
    batch_of,
    head_of,
    row_of,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Write some rows of a head, of D columns, for the first parts, so many."""
    number = tl.program_id(0)
    whole, of_one, inside, first = places(number, rows, parts, of_part, batch_of, head_of, row_of, D, ROWS, WIDE)
    tile = tl.load(x + whole, mask=inside)
    for at in range(many):
        tl.store(to + (first + at) * part * 8 + of_one, tile, mask=inside)


@triton.jit
def added(  # type: ignore[no-untyped-def]
    number,
    x,
    to,
    rows,
    parts,
    many,
    part,
    of_part,
    batch_of,
    head_of,
    row_of,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Write sums of some rows of the first parts of a head, so many, of D columns in float32, in their order."""
    whole, of_one, inside, first = places(number, rows, parts, of_part, batch_of, head_of, row_of, D, ROWS, WIDE)
    total, next_one = tl.zeros([ROWS, WIDE], tl.float32), tl.cast(part, tl.int64) * 8
    for at in range(0, many, 4):  # four on their way at once
        place = x + (first + at) * next_one + of_one
        a = tl.load(place, mask=inside, other=0.0)
        b = tl.load(place + next_one, mask=inside & (at + 1 < many), other=0.0)
        c = tl.load(place + next_one * 2, mask=inside & (at + 2 < many), other=0.0)
        d = tl.load(place + next_one * 3, mask=inside & (at + 3 < many), other=0.0)
        total = total + a + b + c + d
    tl.store(to + whole, total.to(to.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=OF_TWO)
def sums(  # type: ignore[no-untyped-def]
    x,
    to,
    x_2,
    to_2,
    rows,
    parts,
    blocks,
    many,
    part,
    of_part,
    batch_of,
    head_of,
    row_of,
    many_2,
    part_2,
    of_part_2,
    batch_of_2,
    head_of_2,
    row_of_2,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    D_2: tl.constexpr,
    ROWS_2: tl.constexpr,
    WIDE_2: tl.constexpr,
):
    """Sums of the parts of two matrices, of which the first is for so many blocks."""
    number = tl.program_id(0)
    if number < blocks:
        added(number, x, to, rows, parts, many, part, of_part, batch_of, head_of, row_of, D, ROWS, WIDE)
    else:
        added(
            number - blocks,
            x_2,
            to_2,
            rows,
            parts,
            many_2,
            part_2,
            of_part_2,
            batch_of_2,
            head_of_2,
            row_of_2,
            D_2,
            ROWS_2,
            WIDE_2,
        )


@triton.jit(do_not_specialize=["n", "each", "parts"])
def orders(x, to, n, each, parts):  # type: ignore[no-untyped-def]
    """Write numbers of each query of a part of the heads, of which a query has `each`."""
    at, part, group = tl.program_id(0) * SIDE + tl.arange(0, SIDE), tl.program_id(1), tl.program_id(2)
    inside = at < n * each
    of_query = (at // each * parts + part) * each + at % each
    number = tl.load(x + group.to(tl.int64) * n * each * parts + of_query, mask=inside)
    tl.store(to + (group.to(tl.int64) * parts + part) * n * each + at, number, mask=inside)


@cache
def _kernel(function: Any, *kind: Any) -> Kernel:
    """The kernel for matrices of these columns and types."""
    return Kernel(function)


ORDERS = Kernel(orders)


def _of_matrix(whole: Tensor, of_parts: Tensor, many: int) -> tuple[tuple[int, ...], tuple[int, int, int]]:
    """The arguments for a matrix of all heads, (batch, heads, n, d), and so many of its parts: numbers, and sides."""
    d, wide = whole.shape[3], triton.next_power_of_2(whole.shape[3])
    strides = (each // WORDS for each in (*of_parts.stride()[1:3], *whole.stride()[:3]))
    return (many, *strides), (d, max(TILE // wide, 1), wide)


def repeat(x: Tensor, to: Tensor) -> None:
    """Write a matrix, (batch, heads, n, d), for each part: (batch, heads · parts, n, d)."""
    (batch, heads, n, d), parts = x.shape, to.shape[1] // x.shape[1]
    numbers, sides = _of_matrix(x, to, parts)
    _kernel(repeats, d, x.dtype)[-(-n // sides[1]), heads, batch](x, to, n, parts, *numbers, *sides, num_warps=4)


def add_up(*each: tuple[Tensor, Tensor, int]) -> None:
    """Write sums of parts to two matrices that kernels can write, in float32 and in order.

    Args:
        each: parts, (batch, heads · parts, n, d), a matrix, (batch, heads, n, d), and how many of the first parts of
            each head are added; of both as many heads, parts and rows.
    """
    (x, to, _), (x_2, to_2, _) = each
    (batch, heads, n, d), parts = to.shape, x.shape[1] // to.shape[1]
    numbers, sides = zip(*(_of_matrix(whole, of_parts, many) for of_parts, whole, many in each), strict=True)
    blocks, others = (-(-n // rows) for _, rows, _ in sides)
    made = _kernel(sums, d, to_2.shape[3], to.dtype)
    given = n, parts, blocks, *numbers[0], *numbers[1], *sides[0], *sides[1]
    made[blocks + others, heads, batch](x, to, x_2, to_2, *given, num_warps=4)


def order(x: Tensor, to: Tensor, n: int, each: int, parts: int) -> None:
    """Write numbers, (groups, n · parts · each), for each part: (groups · parts, n · each)."""
    ORDERS[-(-n * each // NUMBERS), parts, x.shape[0]](x, to, n, each, parts, num_warps=4)
