"""Tensors as users have them, (batch, heads, n, d), and as kernels take them, (heads of keys, rows, d).

Query heads that share keys become rows of one head, those of a position next to each other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pebblesim.gpu.emit.words import LEAST_SIDE


def rows_of(x: Tensor, kv_heads: int) -> Tensor:
    """(batch, heads, n, d) of queries as (batch · kv_heads, n · shared, d), contiguous."""
    batch, heads, n, d = x.shape
    shared = heads // kv_heads
    if shared > 1:
        x = x.unflatten(1, (kv_heads, shared)).transpose(2, 3)
    return _wide(x.reshape(batch * kv_heads, n * shared, d))


def keys_of(x: Tensor, seen: slice) -> Tensor:
    """(batch, heads, n_k, d) of keys or values, those that are seen, as (batch · heads, seen, d), contiguous."""
    return _wide(x[:, :, seen].reshape(-1, seen.stop - seen.start, x.shape[-1]))


def numbers_of(x: Tensor, kv_heads: int) -> Tensor:
    """(batch, heads, n), a number for each query, as (batch · kv_heads, n · shared), contiguous."""
    batch, heads, n = x.shape
    shared = heads // kv_heads
    if shared > 1:
        x = x.unflatten(1, (kv_heads, shared)).transpose(2, 3)
    return x.reshape(batch * kv_heads, n * shared).contiguous()


def from_rows(x: Tensor, like: Tensor, d: int, kv_heads: int) -> Tensor:
    """The inverse of `rows_of`: (batch, heads, n, d), in the order of memory that `empty_like` has."""
    batch, heads, n, _ = like.shape
    x = x[..., :d].reshape(batch, kv_heads, n, heads // kv_heads, d).transpose(2, 3)
    return in_order(x.reshape(batch, heads, n, d), like)


def numbers_from_rows(x: Tensor, like: Tensor, kv_heads: int) -> Tensor:
    """The inverse of `numbers_of`: (batch, heads, n), contiguous."""
    batch, heads, n, _ = like.shape
    return x.reshape(batch, kv_heads, n, heads // kv_heads).transpose(2, 3).reshape(batch, heads, n)


def from_keys(x: Tensor, like: Tensor, seen: slice) -> Tensor:
    """Gradients of the keys that are seen as those of all keys, in the order of memory that `empty_like` has."""
    x = x[..., : like.shape[-1]].reshape(*like.shape[:2], seen.stop - seen.start, like.shape[-1])
    if x.shape == like.shape:
        return in_order(x, like)
    whole = empty_like(like, like.shape[-1]).zero_()
    whole[:, :, seen] = x
    return whole


def in_order(x: Tensor, like: Tensor) -> Tensor:
    """A tensor in the order of memory that `empty_like` has; copied only if it is in another one."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if tokens_first(like) else x.contiguous()


def empty_like(like: Tensor, d: int) -> Tensor:
    """An empty tensor (batch, heads, n, d), in memory as (batch, n, heads, d) if `like` is."""
    batch, heads, n, _ = like.shape
    if tokens_first(like):
        return like.new_empty((batch, n, heads, d)).transpose(1, 2)
    return like.new_empty((batch, heads, n, d))


def tokens_first(x: Tensor) -> bool:
    """Whether heads of a token are next to each other in memory, and not tokens of a head."""
    return bool(x.shape[1] > 1 and x.shape[2] > 1 and x.stride(1) < x.stride(2))


def _wide(x: Tensor) -> Tensor:
    """Contiguous, and with as many columns as matrix units need."""
    missing = LEAST_SIDE - x.shape[-1]
    return torch.nn.functional.pad(x, (0, missing)) if missing > 0 else x.contiguous()
