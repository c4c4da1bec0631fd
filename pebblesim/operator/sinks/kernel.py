"""The sums of the gradient of sinks by one kernel of Triton, in the place of some five operations of PyTorch.

Where sums of the gradient of the queries are to be rounded, too, the same launch does so.

Only what launches kernels imports it, since it needs Triton.
"""

from __future__ import annotations

from functools import cache
from math import e, log2
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from pebblesim.kernels.passes.sinks import HIGHEST
from pebblesim.operator.launching.fresh import fresh
from pebblesim.operator.launching.launch import Kernel
from pebblesim.operator.launching.rounding import TILE, Rounding, round_tile

QUERIES, WARPS = 4096, 16
"""Queries that a thread block takes at once, of a head, and its warps."""

SIDE, TO_BASE_2, MOST = tl.constexpr(QUERIES), tl.constexpr(log2(e)), tl.constexpr(HIGHEST)

NUMBERS = ["queries", "n", "groups", "v_row", "L_row", "apart", "rows", "shared", "of_batch", "of_head", "of_row"]


@triton.jit(do_not_specialize=NUMBERS)
def sums(  # type: ignore[no-untyped-def]
    v, L, s, made, queries, n, groups, v_row, L_row, apart, of_queries, x, rows, shared, of_batch, of_head, of_row,
    D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums of the gradients of all sinks; beside these, sums of the gradient of the queries are rounded to a matrix.

    The first programs are for the query heads that share keys, and others for tiles of the matrix.
    """
    part, own, group = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if part >= shared:
        round_tile(of_queries, x, part - shared, rows, shared, of_batch, of_head, of_row, D, ROWS, COLUMNS)
    elif group < groups:
        _sum(v, L, s, made, queries, n, group, own, part, shared, v_row, L_row, apart)


@triton.jit
def _sum(v, L, s, made, queries, n, group, own, part, shared, v_row, L_row, apart):  # type: ignore[no-untyped-def]
    """The sum over `queries`, n of each batch, of a head and of a group of batches with the same sinks.

    Batches are found by a division in float32, which is off by one at most; of integers it would take longer than the
    rest.
    """
    kv_heads, head = tl.num_programs(1), own * shared + part
    sink = tl.minimum(tl.load(s + group * apart + head).to(tl.float32) * TO_BASE_2, MOST)
    total = tl.zeros([SIDE], tl.float32)
    for first in range(0, queries, SIDE):
        number = first + tl.arange(0, SIDE)
        inside = number < queries
        batch = (number.to(tl.float32) / n).to(tl.int32)
        batch += tl.where(batch * n > number, -1, tl.where((batch + 1) * n <= number, 1, 0))
        row = (group * (queries // n) + batch).to(tl.int64) * kv_heads + own
        at = (number - batch * n) * shared + part
        less = tl.load(v + row * v_row + at, mask=inside, other=0.0)
        of_query = tl.load(L + row * L_row + at, mask=inside, other=0.0)
        share = tl.where(of_query == float("-inf"), 0.0, tl.math.exp2(sink - of_query))
        total -= tl.where(inside, share * less, 0.0)
    tl.store(made + group * shared * kv_heads + head, tl.sum(total, axis=0))


@cache
def kernel(*sides: Any) -> Kernel:
    """The kernel for these sides of tiles, and this type of the matrix."""
    return Kernel(sums)


def summed(v: Tensor, L: Tensor, sinks: Tensor, kv_heads: int, later: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """The gradient of sinks, (heads,) or (batch, heads), of at least one query of one batch.

    Args:
        v, L: as of `gradient_of_sinks`, for the queries that see a key; numbers of a row are next to each other.
        sinks, kv_heads: as of `gradient_of_sinks`.
        later: sums in float32, and the matrix that they are rounded to in the same launch.
    """
    sinks = sinks if sinks.stride(-1) == 1 else sinks.contiguous()
    heads, batch, groups = sinks.shape[-1], v.shape[0] // kv_heads, sinks.shape[:-1].numel()
    shared = heads // kv_heads
    n, apart = v.shape[1] // shared, sinks.stride(0) if sinks.dim() > 1 else 0
    made = fresh(sinks.new_empty(sinks.shape))
    of_queries, x = (v, made) if later is None else later
    rounding = Rounding((0, kv_heads, groups), (0, shared, 0, 0, 0), (1, 1, 1))
    if later is not None:
        rounding = Rounding.of(x, kv_heads, TILE * WARPS // 4)
    (tiles, *grid), given = rounding.tiles, (batch // groups * n, n, groups, v.stride(0), L.stride(0), apart)
    numbers = *given, of_queries, x, *rounding.numbers, *rounding.sides
    kernel(*rounding.sides, x.dtype)[shared + tiles, *grid](v, L, sinks, made, *numbers, num_warps=WARPS)
    return made
