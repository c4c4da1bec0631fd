"""Attention by its definition, in plain PyTorch: for tensors on the CPU. It keeps n_q x n_k scores."""

from __future__ import annotations

from math import e as euler, log, log2

import torch
from torch import Tensor

from pebblesim.core.errors import UsageError
from pebblesim.kernels.passes.bias import HIGHEST, LOWEST
from pebblesim.operator.masks import Asked


def allowed(query: Tensor, key: Tensor, asked: Asked) -> Tensor | None:
    """The pairs that are allowed: booleans of shape (n_q, n_k), or (batch, 1, n_q, n_k) with key ranges; None if all.

    Args:
        query, key: (…, n, d).
        asked: with limits and ranges of the keys of each query.
    """
    n_q, n_k, device = query.shape[-2], key.shape[-2], query.device
    first, end, left, right, at_end = asked[:5]
    found = None
    keys = torch.arange(n_k, device=device)
    if left is not None or right is not None:
        queries = torch.arange(n_q, device=device)[:, None] + (n_k - n_q if at_end else 0)
        found = keys <= queries + (n_k + n_q if right is None else right)
        if left is not None:
            found = found & (keys >= queries - left)
    if first is not None and end is not None:
        within = (keys >= first[:, None, :, None]) & (keys < end[:, None, :, None])
        found = within if found is None else found & within
    return found


def scores(
    query: Tensor, key: Tensor, scale: float, softcap: float, mask: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    """The scores of all pairs in float32, or in float64 for float64; -infinity for pairs that are not allowed.

    `bias`: is added to them, capped or not; with one a query has no keys if all of its scores are below `LOWEST`, or
    one is `HIGHEST` or above.

    Raises:
        UsageError: they do not fit into the memory.
    """
    try:
        S = _wide(query) @ _wide(key).repeat_interleave(query.shape[1] // key.shape[1], 1).mT * scale
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        table = query.shape[:-1].numel() * key.shape[-2] * 4 / 2**30
        raise UsageError(
            f"on the CPU attention keeps all scores, {table:,.0f} GiB here, and there is less memory; give fewer "
            "tokens, or tensors of a GPU."
        ) from None
    if softcap:
        S = softcap * torch.tanh(S / softcap)
    S = S if bias is None else S + bias
    S = S if mask is None else S.masked_fill(~mask, -torch.inf)
    if bias is None or not S.numel():
        return S
    most = S.amax(-1, keepdim=True) * log2(euler)
    return S.masked_fill((most < LOWEST) | (most >= HIGHEST), -torch.inf)


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    softcap: float,
    mask: Tensor | None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """O, and L to base 2; 0 and -infinity for a query without a key and a sink."""
    with _as_it_is():
        S = scores(query, key, scale, softcap, mask, bias)
        L = torch.logsumexp(S, -1)
        L = L if sinks is None else torch.logaddexp(L, sinks.to(L.dtype)[..., None])
        O = _probabilities(S, L) @ _wide(value).repeat_interleave(query.shape[1] // key.shape[1], 1)
    return O.to(query.dtype), L * log2(euler)


def backward(
    grad: Tensor,
    grad_L: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    L: Tensor,
    scale: float,
    softcap: float,
    mask: Tensor | None,
    bias: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of query, key and value, and of scores if there is a bias, from those of O and of L to base 2."""
    shared = query.shape[1] // key.shape[1]
    dO, Q = _wide(grad), _wide(query)
    K, V = (_wide(each).repeat_interleave(shared, 1) for each in (key, value))

    def summed(x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, shared)).sum(2)

    L = L * log(2)
    v = (dO * _wide(out)).sum(-1)
    if grad_L is not None:
        v = v - grad_L * log2(euler)
    with _as_it_is():
        P = _probabilities(scores(query, key, scale, softcap, mask, bias), L)
        dS = P * (dO @ V.mT - v[..., None])
        if softcap:
            dS = dS * (1 - torch.tanh(Q @ K.mT * (scale / softcap)) ** 2)
        dQ, dK, dV = dS @ K * scale, summed(dS.mT @ Q) * scale, summed(P.mT @ dO)
    made = dQ.to(query.dtype), dK.to(key.dtype), dV.to(value.dtype)
    return made if bias is None else (*made, dS)


def _probabilities(S: Tensor, L: Tensor) -> Tensor:
    """exp(S - L), of which those of a query are 1 in sum, or less with a sink, also where L is too large to tell."""
    P = torch.exp(S - L.masked_fill(L.isinf(), 0.0)[..., None])
    return P / P.sum(-1, keepdim=True).clamp(min=1.0)


def _as_it_is() -> torch.autocast:
    """Products in the type of their matrices, also where autocast would round these."""
    return torch.autocast("cpu", enabled=False)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
