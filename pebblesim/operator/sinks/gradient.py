"""The gradient of sinks from numbers of each query: the row sums of dO ∘ O that a backward pass has, and L.

A sink is a term of the denominator alone, with the probability exp(s - L). So its gradient is the sum over the queries
of exp(s - L) (dL - dO · O), and neither O nor dO is read again.
"""

from __future__ import annotations

from math import e, log2

import torch
from torch import Tensor

from pebblesim.kernels.passes.sinks import HIGHEST
from pebblesim.operator.heads.apart import numbers_of_all
from pebblesim.operator.launching import layout


def gradient_of_sinks(
    v: Tensor, L: Tensor, grad_L: Tensor | None, sinks: Tensor, kv_heads: int, queries: slice
) -> Tensor:
    """The gradient of sinks, in their shape and type, rounded once after the sum.

    Args:
        v: the row sums of dO ∘ O less dL, (batch · kv_heads, numbers of the queries that see a key, and more), or such
            rows for each part of the heads that share keys.
        L: to base 2, with sinks, (batch · kv_heads, n_q · shared).
        grad_L: that of the natural L, as L, or None.
        sinks: (heads,), or (batch, heads).
        kv_heads: heads of keys of a batch.
        queries: those that see a key.
    """
    shared = sinks.shape[-1] // kv_heads
    seeing = slice(queries.start * shared, queries.stop * shared)
    parts = max(v.shape[0] // max(L.shape[0], 1), 1)
    of_seeing, v = L[:, seeing], v[:, : (seeing.stop - seeing.start) // parts]
    others = (
        None if grad_L is None or of_seeing.shape == L.shape else [grad_L[:, : seeing.start], grad_L[:, seeing.stop :]]
    )
    if layout.on_gpu(v) and v.numel() and others is None:
        from pebblesim.operator.sinks.kernel import summed

        return summed(v, of_seeing, sinks, kv_heads)
    if parts > 1:
        v = numbers_of_all(v, queries.stop - queries.start, shared, parts)
    s = (sinks.to(L.dtype) * log2(e)).clamp(max=HIGHEST).reshape(-1, kv_heads, 1, shared)
    sizes = L.shape[0] // kv_heads, kv_heads, queries.stop - queries.start, shared  # of which any may be 0
    less, of_rows = (each.reshape(sizes) for each in (v, of_seeing))
    made = -(torch.exp2(s - of_rows).nan_to_num() * less).sum(2)  # not a number: no key, and s = -∞
    if others is not None:
        alone = torch.cat(others, 1).unflatten(0, (-1, kv_heads)).unflatten(2, (-1, shared)).sum(2)
        made = made + torch.where(s.squeeze(2) > -torch.inf, alone, 0.0)
    return made.flatten(1).sum_to_size(sinks.shape).to(sinks.dtype)
