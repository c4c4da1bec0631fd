"""Ranges of keys of packed or padded sequences by one kernel of Triton, in the place of many operations of PyTorch.

Kernels give what `masks.ranges_of` gives, with the same promises, for plain calls on a GPU. Only what launches kernels
imports them, since they need Triton.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pebblesim.operator.launching.fresh import fresh
from pebblesim.operator.launching.launch import Kernel
from pebblesim.operator.masks import OUTSIDE, Ranged, Ranges, promise, promised
from pebblesim.operator.pattern import Within

TOKENS = 256
"""Queries of a thread block."""

BLOCK = tl.constexpr(TOKENS)

FEW, AT_ONCE = 128, 32
"""Starts of sequences up to which each query is compared with all of them, so many at once: that waits for memory once
or a few times, and a search for each of its steps."""

WITH = tl.constexpr(AT_ONCE)

NUMBERS = ["n_q", "n_k", "most_q", "most_k", "last", "left", "right", "at_end", "steps", "compared"]


@triton.jit(do_not_specialize=NUMBERS)
def ranges(of_q, of_k, first, end, holds, n_q, n_k, most_q, most_k, last, left, right, at_end, steps, compared):  # type: ignore[no-untyped-def]
    """First keys and ends of queries, and, by one more program, whether the starts of `last` sequences are right.

    Limits below 0 are none. Of `steps` of a search and numbers of starts that are `compared` one is 0.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    low = tl.zeros([BLOCK], tl.int32)
    for start in range(0, compared, WITH):
        here = start + tl.arange(0, WITH)
        begins = tl.load(of_q + here, mask=here < compared, other=2**31 - 1).to(tl.int32)
        low += tl.sum((begins[None, :] <= at[:, None]).to(tl.int32), axis=1)
    high = tl.zeros([BLOCK], tl.int32) + last + 1
    for _ in range(steps):  # to the first start behind a query
        middle = (low + high) // 2
        open = low < high
        before = tl.load(of_q + middle, mask=open, other=0).to(tl.int32) <= at
        low = tl.where(open & before, middle + 1, low)
        high = tl.where(open & (before == 0), middle, high)
    begun, ends = tl.maximum(low - 1, 0), tl.minimum(low, last)
    one, other = tl.load(of_k + begun).to(tl.int32), tl.load(of_k + ends).to(tl.int32)
    from_start = one - tl.load(of_q + begun).to(tl.int32) + at
    from_end = other - tl.load(of_q + ends).to(tl.int32) + at
    position = tl.where(at_end != 0, from_end, from_start)
    seen = tl.where(right >= 0, tl.minimum(other, position + right + 1), other)
    one = tl.where(left >= 0, tl.minimum(tl.maximum(one, position - left), other), one)
    tl.store(first + at, tl.minimum(one, n_k), mask=at < n_q)
    tl.store(end + at, tl.minimum(tl.maximum(seen, one), n_k), mask=at < n_q)
    if tl.program_id(0) == tl.num_programs(0) - 1:
        wrong_q, wrong_k = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
        for start in range(0, last, BLOCK):
            here = start + tl.arange(0, BLOCK)
            inside = here < last
            q, next_q = tl.load(of_q + here, mask=inside, other=0), tl.load(of_q + here + 1, mask=inside, other=0)
            k, next_k = tl.load(of_k + here, mask=inside, other=0), tl.load(of_k + here + 1, mask=inside, other=0)
            wrong_q += (next_q < q).to(tl.int32)
            wrong_k += (next_k < k).to(tl.int32)
        right_q = (tl.sum(wrong_q) == 0) & (tl.load(of_q) == 0) & (tl.load(of_q + last) <= most_q)
        right_k = (tl.sum(wrong_k) == 0) & (tl.load(of_k) == 0) & (tl.load(of_k + last) <= most_k)
        tl.store(holds, right_q)
        tl.store(holds + 1, right_k)


@triton.jit(do_not_specialize=["n_q", "n_k", "steps"])
def counted(first, end, above, below, n_q, n_k, steps):  # type: ignore[no-untyped-def]
    """For each key the number of queries whose end, and of those whose first key, is not behind it.

    One loop searches for both: their loads wait for memory together.
    """
    batch, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    low = tl.zeros([BLOCK], tl.int32)
    high, low_2, high_2 = low + n_q, low, low + n_q
    for _ in range(steps):
        middle, middle_2 = (low + high) // 2, (low_2 + high_2) // 2
        open, open_2 = low < high, low_2 < high_2
        before = tl.load(end + batch * n_q + middle, mask=open, other=0) <= at
        before_2 = tl.load(first + batch * n_q + middle_2, mask=open_2, other=0) <= at
        low, high = tl.where(open & before, middle + 1, low), tl.where(open & (before == 0), middle, high)
        low_2 = tl.where(open_2 & before_2, middle_2 + 1, low_2)
        high_2 = tl.where(open_2 & (before_2 == 0), middle_2, high_2)
    tl.store(above + batch * n_k + at, low, mask=at < n_k)
    tl.store(below + batch * n_k + at, low_2, mask=at < n_k)


COUNTED = Kernel(counted)


def above_and_below(first: Tensor, end: Tensor, n_k: int, into: Ranges | None = None) -> Ranges:
    """As the last two of `masks.arguments_of`, of ranges (batch, n_q) in int32, contiguous; written `into` tensors."""
    (batch, n_q), grid = first.shape, (-(-n_k // TOKENS), first.shape[0], 1)
    above, below = into or (fresh(first.new_empty((batch, n_k))) for _ in "ab")
    COUNTED[grid](first, end, above, below, n_q, n_k, n_q.bit_length(), num_warps=4)
    return above, below


APART = 32
"""Words that each kind of ranges begins at a multiple of, so that kernels find it where it is aligned."""


class Room(NamedTuple):
    """One memory for all ranges of a call, and for whether what was promised holds; int32.

    Attributes:
        whole: all of it.
        ranged: the ranges.
        holds: a number for each promise, which is not 0 if it holds.
    """

    whole: Tensor
    ranged: Ranged
    holds: Tensor

    @staticmethod
    def of(like: Tensor, batch: int, n_q: int, n_k: int, promises: int) -> Room:
        """Room on the device of a tensor."""
        words = 2 * sum(-(-batch * n // APART) * APART for n in (n_q, n_k)) + promises
        return Room.within(fresh(like.new_empty((words,), dtype=torch.int32)), batch, n_q, n_k)

    @staticmethod
    def within(whole: Tensor, batch: int, n_q: int, n_k: int) -> Room:
        """The parts of a memory."""
        parts, begin = list[Tensor](), 0
        for n in (n_q, n_q, n_k, n_k):
            parts.append(whole[begin : begin + batch * n].view(batch, n))
            begin = begin + -(-batch * n // APART) * APART
        return Room(whole, Ranged(*parts), whole[begin:])


@cache
def _kernel(of_q: torch.dtype, of_k: torch.dtype) -> Kernel:
    """The kernel for starts of these types."""
    return Kernel(ranges)


def ranges_of_sequences(
    of_q: Tensor, of_k: Tensor, n_q: int, n_k: int, within: Within, room: Room | None = None
) -> Ranges:
    """Ranges of packed sequences, (1, n_q), whose starts for queries and keys are right but for their numbers.

    Args:
        of_q, of_k: where sequences start, and the end of the last, in int32 or int64 and contiguous.
        n_q, n_k: numbers of queries and keys.
        within: limits of j - i within a sequence.
        room: where they are written.
    """
    (first, end, *_), holds = (room or Room.of(of_q, 1, n_q, n_k, 2))[1:]
    left, right, at_end = within
    most = (min(n_q, n_k),) * 2 if of_q is of_k else (n_q, n_k)
    last = of_q.shape[0] - 1
    limits = -1 if left is None else left, -1 if right is None else right, int(at_end)
    steps, compared = (0, last + 1) if last < FEW else ((last + 1).bit_length(), 0)
    grid, numbers = (-(-n_q // TOKENS) + 1, 1, 1), (n_q, n_k, *most, last, *limits, steps, compared)
    _kernel(of_q.dtype, of_k.dtype)[grid](of_q, of_k, first, end, holds, *numbers, num_warps=4)
    for at in range(1 if of_q is of_k else 2):
        promise(holds[at], promised(None))
    return first, end


KEYS = 1024
"""Keys that a thread block looks at together."""

WIDE = tl.constexpr(KEYS)


@triton.jit(do_not_specialize=["n_q", "n_k", "apart", "shift", "left", "right"])
def unpadded(padding, first, end, holds, n_q, n_k, apart, shift, left, right):  # type: ignore[no-untyped-def]
    """First keys and ends of queries whose keys are padded before and behind; limits below 0 are none."""
    batch, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    low, number = tl.zeros([WIDE], tl.int32) + n_k, tl.zeros([WIDE], tl.int32)
    high = tl.zeros([WIDE], tl.int32)
    for start in range(0, n_k, WIDE):
        key = start + tl.arange(0, WIDE)
        inside = key < n_k
        real = inside & (tl.load(padding + batch * apart + key, mask=inside, other=1) == 0)
        low, high = tl.where(real, tl.minimum(low, key), low), tl.where(real, key + 1, high)
        number += real.to(tl.int32)
    real, begins, ends = tl.sum(number), tl.min(low), tl.max(high)
    begins = tl.where(real > 0, begins, 0)
    one, other = tl.zeros([BLOCK], tl.int32) + begins, tl.zeros([BLOCK], tl.int32) + ends
    seen = at + shift
    one = tl.where(left >= 0, tl.maximum(one, tl.minimum(tl.maximum(seen - left, 0), n_k)), one)
    other = tl.where(right >= 0, tl.minimum(other, tl.minimum(tl.maximum(seen + right + 1, 0), n_k)), other)
    tl.store(first + batch * n_q + at, one, mask=at < n_q)
    tl.store(end + batch * n_q + at, other, mask=at < n_q)
    if tl.program_id(0) == 0:
        tl.store(holds + batch, real == ends - begins)


UNPADDED = Kernel(unpadded)


def ranges_of_padding(padding: Tensor, batch: int, n_q: int, within: Within, room: Room | None = None) -> Ranges:
    """Ranges (batch, n_q) of keys that are padded before and behind, for a padding that is right but for its numbers.

    Args:
        padding: (batch, n_k) or (1, n_k), True where a key is padding, with at least one key.
        batch, n_q: sizes.
        within: limits of j - i.
        room: where they are written.
    """
    n_k, (left, right, at_end) = padding.shape[1], within
    padding = padding.contiguous()
    (first, end, *_), holds = (room or Room.of(padding, batch, n_q, n_k, batch))[1:]
    apart = n_k if padding.shape[0] > 1 else 0
    limits = n_k - n_q if at_end else 0, -1 if left is None else left, -1 if right is None else right
    UNPADDED[-(-n_q // TOKENS), batch, 1](padding, first, end, holds, n_q, n_k, apart, *limits, num_warps=4)
    promise(holds, OUTSIDE)
    return first, end
