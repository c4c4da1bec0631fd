"""Sums in float32, rounded to their matrix by one kernel of Triton: cheaper for the host than a copy of PyTorch.

Only what launches kernels imports it, since it needs Triton.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pebblesim.kernels.strides import WORDS
from pebblesim.operator.launching.launch import Kernel

NUMBERS = ["rows", "shared", "of_batch", "of_head", "of_row"]

TILE = 2048
"""Words of a thread block of four warps."""


@triton.jit
def round_tile(  # type: ignore[no-untyped-def]
    sums, x, tile, rows, shared, of_batch, of_head, of_row, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Round a tile of the sums of heads that share keys, (rows, D) with their rows in turn.

    A program is of heads that share keys, its second number, of a batch. Strides of x are multiples of 8 words.
    """
    own, batch, columns = tl.program_id(1), tl.program_id(2), tl.arange(0, COLUMNS)
    row = tile * ROWS + tl.arange(0, ROWS)
    group = (batch * tl.num_programs(1) + own).to(tl.int64)
    inside = (row < rows)[:, None] & (columns < D)[None, :]
    found = tl.load(sums + (group * rows + row)[:, None] * D + columns[None, :], mask=inside)
    head, i = own * shared + row % shared, row // shared
    place = batch.to(tl.int64) * of_batch + head.to(tl.int64) * of_head + i.to(tl.int64) * of_row
    tl.store(x + (place * 8)[:, None] + columns[None, :], found.to(x.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=NUMBERS)
def rounded(  # type: ignore[no-untyped-def]
    sums, x, rows, shared, of_batch, of_head, of_row, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Round sums to a matrix."""
    round_tile(sums, x, tl.program_id(0), rows, shared, of_batch, of_head, of_row, D, ROWS, COLUMNS)


class Rounding(NamedTuple):
    """What a kernel that rounds is given.

    Attributes:
        tiles: the grid: tiles of rows, heads of keys, and batches.
        numbers: those of `NUMBERS`.
        sides: the columns, and the rows and columns of a tile, for which it is compiled.
    """

    tiles: tuple[int, int, int]
    numbers: tuple[int, ...]
    sides: tuple[int, int, int]

    @staticmethod
    def of(x: Tensor, kv_heads: int, tile: int) -> Rounding:
        """For a matrix that kernels can write; `tile`: words of a thread block."""
        (batch, heads, n, d), (*strides, _) = x.shape, x.stride()
        shared, columns = heads // kv_heads, triton.next_power_of_2(d)
        at_once = max(tile // columns, 1)
        numbers = n * shared, shared, *(each // WORDS for each in strides)
        return Rounding((-(-n * shared // at_once), kv_heads, batch), numbers, (d, at_once, columns))


@cache
def _kernel(d: int, dtype: torch.dtype) -> Kernel:
    """The kernel for matrices of this type with d columns."""
    return Kernel(rounded)


def round_on_gpu(sums: Tensor, x: Tensor, kv_heads: int) -> None:
    """As `layout.round_sums`, for a matrix that kernels can write."""
    grid, numbers, sides = Rounding.of(x, kv_heads, TILE)
    _kernel(sides[0], x.dtype)[grid](sums, x, *numbers, *sides, num_warps=4)
