"""Tensors as users have them and as kernels take them.

Matrices are (batch, heads, n, d). Kernels read and write them where they are if their strides allow that. Numbers for
each query, such as L, are in memory as (batch, KV heads, n, query heads that share these keys).
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from pebblesim.kernels.strides import WORDS
from pebblesim.kernels.words import LEAST_SIDE
from pebblesim.operator.launching.fresh import fresh

BYTES = 16
"""The address of a matrix that kernels can read is a multiple of this."""


def on_gpu(x: Tensor) -> bool:
    """Whether kernels can take a tensor, and not operations of PyTorch alone."""
    return x.is_cuda


def fits(x: Tensor) -> bool:
    """Whether kernels can read or write a matrix where it is."""
    *others, last = x.stride()
    return (
        last == 1
        and x.shape[-1] >= LEAST_SIDE
        and not any(stride % WORDS for stride, length in zip(others, x.shape, strict=False) if length > 1)
        and x.data_ptr() % BYTES == 0
    )


def fitted(x: Tensor) -> Tensor:
    """A matrix that kernels can read: itself, or a copy, with columns of zeros if it has too few."""
    if fits(x):
        return x
    return room_for(x, x.shape[-1]).copy_(_wide(x))


def room_for(like: Tensor, d: int) -> Tensor:
    """An empty matrix that kernels can write, of the length of another and with d columns or the least they have."""
    rows = fresh(like.new_empty((*like.shape[:-1], -(-max(d, LEAST_SIDE) // WORDS) * WORDS)))
    return rows[..., : max(d, LEAST_SIDE)]


def in_one_batch(x: Tensor) -> Tensor:
    """(…, heads, n, d) as (batch, heads, n, d)."""
    return x if x.dim() == 4 else x.reshape(prod(x.shape[:-3]), *x.shape[-3:])  # -1 is not known where x is empty


def numbers_of(x: Tensor, kv_heads: int) -> Tensor:
    """(batch, heads, n), a number for each query, as kernels take it: (batch · kv_heads, n · shared), contiguous."""
    batch, heads, n = x.shape
    if heads == kv_heads:
        return x.reshape(batch * heads, n).contiguous()
    grouped = x.unflatten(1, (kv_heads, heads // kv_heads)).transpose(2, 3)
    return grouped.reshape(batch * kv_heads, n * (heads // kv_heads)).contiguous()


def numbers_from(x: Tensor, like: Tensor, kv_heads: int) -> Tensor:
    """The inverse of `numbers_of`: (batch, heads, n) of the queries `like`, contiguous."""
    batch, heads, n, _ = like.shape
    if heads == kv_heads:
        return x.reshape(batch, heads, n)
    return x.reshape(batch, kv_heads, n, heads // kv_heads).transpose(2, 3).reshape(batch, heads, n)


def round_sums(sums: Tensor, x: Tensor, kv_heads: int) -> None:
    """Copy sums, (batch · kv_heads, rows, d) with the rows of heads that share keys together, to their matrix."""
    batch, heads, n, d = x.shape
    if heads == kv_heads:
        x.copy_(sums.view(x.shape))
        return
    shared = heads // kv_heads
    x.unflatten(1, (kv_heads, shared)).copy_(sums.view(batch, kv_heads, n, shared, d).transpose(2, 3))


def in_order(x: Tensor, like: Tensor) -> Tensor:
    """A tensor in the order of memory that `empty_like` has; copied only if it is in another one."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if tokens_first(like) else x.contiguous()


def empty_like(like: Tensor, d: int) -> Tensor:
    """An empty tensor (batch, heads, n, d), in memory as (batch, n, heads, d) if `like` is."""
    batch, heads, n, _ = like.shape
    if tokens_first(like):
        return fresh(like.new_empty((batch, n, heads, d))).transpose(1, 2)
    return fresh(like.new_empty((batch, heads, n, d)))


def tokens_first(x: Tensor) -> bool:
    """Whether heads of a token are next to each other in memory, and not tokens of a head."""
    return bool(x.shape[1] > 1 and x.shape[2] > 1 and x.stride(1) < x.stride(2))


def _wide(x: Tensor) -> Tensor:
    missing = LEAST_SIDE - x.shape[-1]
    return torch.nn.functional.pad(x, (0, missing)) if missing > 0 else x
