"""Judge an attention call by `oracle_attention`, beside PyTorch's own attention in the same type with a dense mask.

An error is the Euclidean norm of what a result is off. It may be 1.5 times PyTorch's, and besides a part of what one
rounding of each term to the type may change (`Meaning.rounding`): a quarter, and 1/√N for N rows that are not 0, since
the ratio of two errors of few numbers is chance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from oracle_attention import Call, Meaning, meaning
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from pebblesim import UsageError

RATIO = 1.5
GRADIENTS = ("dQ", "dK", "dV", "ds")
Rows = dict[str, tuple[float, float, float]]
Judged = tuple[list[str], Rows]


def gradients(call: Call, device: str) -> tuple[Tensor, Tensor | None]:
    """Gradients of O and L, as they come from a later layer; that of O strided for every other seed."""
    made = torch.Generator().manual_seed(call.seed + 2)
    shape = (*call.lead, call.kv_heads * call.shared, call.n_q)
    dO = torch.randn(*shape, call.d_v, generator=made, dtype=torch.float64).to(device, call.computed)
    dL = torch.randn(shape, generator=made, dtype=torch.float64).to(device, torch.float32) if call.return_lse else None
    return (dO.transpose(-3, -2).contiguous().transpose(-3, -2) if call.seed % 2 else dO), dL


def called(attention: Callable[..., Any], call: Call, leaves: Sequence[Tensor], given: dict[str, Any]) -> Any:
    """The function's results."""
    return attention(*leaves[:3], **given, **({"sinks": leaves[3]} if call.sinks else {}))


def computed(
    attention: Callable[..., Any],
    call: Call,
    leaves: Sequence[Tensor],
    given: dict[str, Any],
    dO: Tensor,
    dL: Tensor | None,
) -> dict[str, Tensor]:
    """The function's results and gradients, under autocast where the call says so."""
    cast = torch.autocast(dO.device.type, dtype=call.computed) if call.rounding == "autocast" else nullcontext()
    with cast:
        results = called(attention, call, leaves, given)
    O, L = results if call.return_lse else (results, None)
    ends, seeds = ([O], [dO.to(O.dtype)]) if L is None or dL is None else ([O, L], [dO.to(O.dtype), dL.to(L.dtype)])
    found = dict(zip(GRADIENTS, torch.autograd.grad(ends, leaves, seeds), strict=False))
    return {"O": O.detach(), **({} if L is None else {"L": L.detach()}), **found}


def wide(call: Call) -> torch.dtype:
    """The type of scores and sums."""
    return torch.promote_types(call.computed, torch.float32)


def peer(call: Call, leaves: Sequence[Tensor], what: Meaning, dO: Tensor, dL: Tensor | None) -> dict[str, Tensor]:
    """PyTorch's own attention in the type of the call, heads repeated and the mask dense.

    A query without a key attends to all here, and its gradients are 0. These kernels have neither L nor capped scores
    nor sinks.
    """
    some = what.pairs.any(-1, keepdim=True)
    dO = dO * some
    if call.softcap or call.return_lse or call.sinks:
        return by_products(call, leaves, what, dO, torch.zeros_like(dO[..., 0]) if dL is None else dL)
    q, k, v = (x.detach().to(call.computed).requires_grad_() for x in leaves)
    K, V = (x.repeat_interleave(call.shared, -3) for x in (k, v))
    pairs = what.pairs | ~some
    mask = pairs if what.added is None else what.added.masked_fill(~pairs, -torch.inf)
    four = [pad(x.flatten(0, -4) if x.ndim > 4 else x, (0, -x.shape[-1] % 8)).contiguous() for x in (q, K, V)]
    mask = mask.expand(*q.shape[:-1], call.n_k).reshape(*four[0].shape[:-1], call.n_k)
    if len(four[0].shape) == 3:
        four, mask = [x[None] for x in four], mask[None]
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION if q.is_cuda else SDPBackend.MATH]):
        O = scaled_dot_product_attention(*four, mask, scale=scale_of(call))[..., : call.d_v].reshape(dO.shape)
    found = dict(zip(("dQ", "dK", "dV"), torch.autograd.grad(O, [q, k, v], dO), strict=True))
    return {"O": (O * some).detach(), **found}


def by_products(call: Call, leaves: Sequence[Tensor], what: Meaning, dO: Tensor, dL: Tensor) -> dict[str, Tensor]:
    """Attention by PyTorch's products one by one: P, O and dS are rounded to the type, as by FlashAttention (Dao 2023).

    Scores and sums are in 32 bits.
    """
    rounded = lambda x: x.to(call.computed).to(wide(call))  # noqa: E731
    q, k, v = (rounded(x.detach()) for x in leaves[:3])
    K, V = (x.repeat_interleave(call.shared, -3) for x in (k, v))
    S, slope = q @ K.mT * scale_of(call), 1
    if call.softcap:
        capped = torch.tanh(S / call.softcap)
        S, slope = call.softcap * capped, 1 - capped**2
    S = S.masked_fill(~what.pairs, -torch.inf)
    s = leaves[3].detach().to(wide(call))[:, None, None].expand(*S.shape[:-1], 1) if call.sinks else S[..., :0]
    L = torch.logsumexp(torch.cat([S, s], -1), -1, keepdim=True)
    P = torch.exp(S - L.masked_fill(L.isinf(), 0))
    O = rounded(rounded(P) @ V)
    dO = dO.to(wide(call))
    v_less = (dO * O).sum(-1, keepdim=True) - dL.to(wide(call))[..., None]
    dS = rounded(P * (dO @ V.mT - v_less) * slope)
    gather = lambda x: x.unflatten(-3, (call.kv_heads, call.shared)).sum(-3)  # noqa: E731
    dQ, dK = dS @ K * scale_of(call), gather(dS.mT @ q) * scale_of(call)
    found = {"O": O, "dQ": dQ, "dK": dK, "dV": gather(rounded(P).mT @ dO)}
    if call.sinks:
        made = -(torch.exp(s - L) * v_less).reshape(-1, s.shape[-3], call.n_q).sum((0, 2))
        found["ds"] = made.to(leaves[3].dtype)
    return {"L": L.squeeze(-1)} | {name: x if name == "ds" else rounded(x) for name, x in found.items()}


def scale_of(call: Call) -> float:
    return 1 / math.sqrt(call.d_k) if call.scale is None else call.scale


def rows_of(x: Tensor) -> int:
    """How many rows are not 0, or 1."""
    return max(1, int(x.any(-1).sum()))


def errors(call: Call, given: dict[str, Tensor], peers: dict[str, Tensor], what: Meaning) -> Rows:
    """Of each result: its error, PyTorch's and the most that is allowed, all relative to the norm (1 if that is 0)."""
    rows = {}
    for name in given:
        if given[name].shape != what.values[name].shape:
            rows[name] = (math.nan, math.nan, 0.0)
            continue
        true = what.values[name]
        empty = true.isinf() if name == "L" else torch.zeros_like(true, dtype=torch.bool)
        off = (given[name].double() - true).masked_fill(empty, 0).norm().item()
        if not torch.equal(given[name] == -torch.inf, empty):
            off = math.nan
        theirs = (peers[name].double() - true).masked_fill(empty, 0).norm().item()
        limits = torch.finfo(call.computed)
        if name == "L":
            floor = 32 * torch.finfo(wide(call)).eps * (1 + what.scores) * math.sqrt(true.numel())
        else:
            floor = what.rounding[name] * (16 if wide(call) == call.computed else 1 / 4 + 1 / math.sqrt(rows_of(true)))
            floor += limits.smallest_normal * limits.eps * math.sqrt(true.numel())
        size = true.masked_fill(empty, 0).norm().item() or 1.0
        rows[name] = (off / size, theirs / size, (RATIO * theirs + floor) / size)
    return rows


def wrong(call: Call, given: dict[str, Tensor], leaves: Sequence[Tensor], dO: Tensor, dL: Tensor | None) -> Judged:
    """Say what is wrong with a call's results, and their errors."""
    what = meaning(call, leaves, dO, dL)
    rows = errors(call, given, peer(call, leaves, what, dO, dL), what)
    said = [
        f"{name}: error {off:.3g}, PyTorch's {theirs:.3g}, allowed {most:.3g}"
        for name, (off, theirs, most) in rows.items()
        if not off <= most
    ]
    types = {"O": call.computed if call.rounding == "autocast" else leaves[0].dtype, "L": wide(call)}
    types |= dict(zip(GRADIENTS, (x.dtype for x in leaves), strict=False))
    said += [f"{name} is of {x.dtype}, not {types[name]}" for name, x in given.items() if x.dtype != types[name]]
    return said, rows


def refused(call: Callable[[], Any], says: str) -> None:
    """The call is refused by one sentence that has these words."""
    with pytest.raises(UsageError, match=says) as raised:
        call()
    sentence = str(raised.value)
    assert sentence.endswith(".") and "\n" not in sentence
    assert not re.search(r"\w{2,}\. [A-Z]", sentence), "one sentence"
