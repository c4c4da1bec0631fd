"""Attention on many GPUs, each with a part of the tokens: `from pebblesim.gpu.torch.parallel import attention`.

Every process of a group calls `attention` with the queries, keys and values of its own tokens and gets its rows of the
output; gradients likewise. Who computes what is a schedule of `pebblesim.parallel`, which `pebblesim devices` counts:
the processes move its words and no others. Start them with a launcher such as torchrun.
"""

from __future__ import annotations

from pebblesim.gpu.torch import pytorch as _pytorch  # noqa: F401

# isort: split
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import log
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from pebblesim.core.errors import UnknownName, UsageError
from pebblesim.gpu.torch import operators as _operators  # noqa: F401
from pebblesim.gpu.torch.fresh import fresh
from pebblesim.parallel.count import Moved, best
from pebblesim.parallel.exchange import Device
from pebblesim.parallel.schedules import AT_ONCE, IN_PASSES, SCHEDULES
from pebblesim.parallel.team import Team
from pebblesim.parallel.tokens import owned

RUNNING = tuple(name for name, each in SCHEDULES.items() if each.order != IN_PASSES)
"""The schedules that run on devices."""


class Inside(Protocol):
    """Attention inside a device, on tensors (batch, heads, tokens, words); L is natural and has a last axis of one."""

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, causal: bool) -> tuple[Tensor, Tensor]: ...

    def backward(self, x: Mapping[str, Tensor], causal: bool) -> Mapping[str, Tensor]: ...


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    group: Any = None,
    schedule: str = "best",
    is_causal: bool = False,
    scale: float | None = None,
    ownership: str | None = None,
    tokens: int | Sequence[int] | None = None,
    inside: Inside | None = None,
) -> Tensor:
    """softmax(Q Kᵀ scale) V over the tokens of all processes of a group, for those of this process.

    Args:
        query: (batch, heads, n/P, d_k), the rows of this process's tokens, in their order (see `tokens_of`).
            Of packed documents, its tokens of the first, then those of the second, and so on.
        key, value: (batch, heads of keys, n/P, d_k or d_v); heads of queries may share them.
        group: the processes; all by default. NCCL for GPUs, gloo for CPUs.
        schedule: a name in `RUNNING`, or "best": the one that moves the fewest words, forward and backward each.
        is_causal: whether a query sees only keys of tokens up to its own.
        scale: 1/√d_k if None.
        ownership: "contiguous", "zig-zag" or "striped"; by default zig-zag if causal, which gives each process as many
            pairs, and contiguous else.
        tokens: n; needed only if the processes do not divide it. Or the lengths of packed documents: no query sees
            keys of another, and each document is dealt to all processes for itself, so that all have as many pairs.
        inside: attention inside a process; pebblesim's kernels by default. `Differentiable` makes one of a function.

    Returns:
        (batch, heads, n/P, d_v). It and the gradients equal those of one device but for rounding.

    Raises:
        UsageError: the shapes do not belong together, or the heads cannot be dealt to the processes as asked.
    """
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        raise UsageError("query, key and value have four dimensions: batch, heads, tokens of this process, words.")
    P, rank = dist.get_world_size(group), dist.get_rank(group)
    own = ownership or ("zig-zag" if is_causal else "contiguous")
    teams = tuple(
        Team(n, n, query.shape[3], value.shape[3], query.shape[1], key.shape[1], P, False, is_causal, own)
        for n in _lengths(query.shape[2] * P if tokens is None else tokens)
    )
    mine = sum(team.own_rows[rank].number for team in teams)
    if {query.shape[2], key.shape[2], value.shape[2]} != {mine}:
        n = sum(team.n_q for team in teams)
        raise UsageError(
            f"process {rank} of {P} owns {mine:,} of {n:,} tokens, but query, key and value have {query.shape[2]:,}, "
            f"{key.shape[2]:,} and {value.shape[2]:,}; give the number of all tokens, and take them by tokens_of."
        )
    scale = query.shape[3] ** -0.5 if scale is None else float(scale)
    made: Tensor = _Attention.apply(query, key, value, group, schedule, teams, inside or Kernels(scale))
    return made


def _lengths(tokens: int | Sequence[int]) -> tuple[int, ...]:
    found = (tokens,) if isinstance(tokens, int) else tuple(tokens)
    if not found:
        raise UsageError("tokens = () was given; it is the number of all tokens, or the length of each document.")
    return found


def tokens_of(rank: int, P: int, n: int | Sequence[int], ownership: str = "contiguous") -> Tensor:
    """Return the tokens that a process owns, in the order in which it holds them; n may be the lengths of documents.

    >>> tokens_of(1, 2, 8, "zig-zag").tolist()
    [2, 3, 4, 5]
    >>> tokens_of(1, 2, (4, 4), "zig-zag").tolist()
    [1, 2, 5, 6]
    """
    mine, start = list[int](), 0
    for length in _lengths(n):
        mine += (start + token for part in owned(ownership, length, P)[rank].parts for token in part)
        start += length
    return torch.tensor(mine, dtype=torch.int64)


@lru_cache(maxsize=1024)
def counted(schedule: str, team: Team) -> Moved:
    """Return a schedule under its best split, or for "best" the schedule with the fewest words.

    Among equals words that go round come first, since they travel while others are used.

    Raises:
        UnknownName, UsageError: there is no such schedule, or it is impossible for these heads and processes.
    """
    if schedule != "best":
        if schedule not in RUNNING:
            raise UnknownName("schedule that runs on devices", schedule, ("best", *RUNNING))
        return best(SCHEDULES[schedule], team)
    possible = []
    for name in RUNNING:
        try:
            possible.append(best(SCHEDULES[name], team))
        except UsageError:
            continue
    return min(possible, key=lambda each: (each.words, each.schedule.order == AT_ONCE, each.words_held))


class _Attention(torch.autograd.Function):
    """One document after the other, backward in the same order on all processes."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        group: Any,
        schedule: str,
        teams: tuple[Team, ...],
        inside: Inside,
    ) -> Tensor:
        made = _run(schedule, teams, group, inside, {"Q": query, "K": key, "V": value})
        out = made["O"].to(query.dtype)
        ctx.save_for_backward(query, key, value, out, made["L"])
        ctx.how = schedule, teams, group, inside
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, value, out, L = ctx.saved_tensors
        schedule, teams, group, inside = ctx.how
        D = (grad.to(L.dtype) * out).sum(-1, keepdim=True)
        there = tuple(replace(team, backward=True) for team in teams)
        x = {"Q": query, "dO": grad.contiguous(), "L": L, "D": D, "K": key, "V": value}
        made = _run(schedule, there, group, inside, x)
        grads = (made[name].to(of.dtype) for name, of in (("dQ", query), ("dK", key), ("dV", value)))
        return (*grads, None, None, None, None)


def _run(
    schedule: str, teams: tuple[Team, ...], group: Any, inside: Inside, x: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The outputs for this process's tokens of each document in turn."""
    network, local = Network(group), _Local(inside)
    if len(teams) == 1:
        return Device(counted(schedule, teams[0]), network, local, x).run()
    sizes = [team.own_rows[network.rank].number for team in teams]
    parts = {name: tensor.split(sizes, dim=2) for name, tensor in x.items()}
    made = [
        Device(counted(schedule, team), network, local, {name: part[number] for name, part in parts.items()}).run()
        for number, team in enumerate(teams)
    ]
    return {name: local.join([each[name] for each in made]) for name in made[0]}


class Network:
    """Messages between the processes of a group; they travel while others are computed with.

    Attributes:
        received, sent: bytes of inputs received and of partial sums sent, since the beginning.
    """

    def __init__(self, group: Any = None) -> None:
        self.group, self.rank = group, dist.get_rank(group)
        self.received, self.sent = 0, 0

    def exchange(self, sends: Mapping[int, list[Tensor]], receives: Mapping[int, list[Tensor]], sums: bool) -> Any:
        counted = sum(each.nbytes for arrays in (sends if sums else receives).values() for each in arrays)
        self.sent, self.received = self.sent + counted * sums, self.received + counted * (not sums)
        operations = [
            dist.P2POp(what, each, self._global(q), self.group)
            for what, messages in ((dist.isend, sends), (dist.irecv, receives))
            for q, arrays in messages.items()
            for each in arrays
        ]
        return _Travelling(operations)

    def _global(self, q: int) -> int:
        return q if self.group is None else dist.get_global_rank(self.group, q)


class _Travelling:
    """Tensors on their way; they are kept until they have arrived."""

    def __init__(self, operations: list[Any]) -> None:
        self.operations = operations
        self.requests = dist.batch_isend_irecv(operations) if operations else []

    def wait(self) -> None:
        for request in self.requests:
            request.wait()
        self.operations.clear()


class _Local:
    """The protocol `pebblesim.parallel.exchange.Local` on tensors; sums have 32 bits, or 64 for doubles."""

    def __init__(self, inside: Inside) -> None:
        self.forward, self.backward = inside.forward, inside.backward

    @staticmethod
    def _wide(like: Tensor) -> torch.dtype:
        return torch.float64 if like.dtype == torch.float64 else torch.float32

    def merge(self, O: Tensor, L: Tensor, part: Tensor, part_L: Tensor) -> None:
        both = torch.logaddexp(L, part_L)
        O.mul_(torch.exp(L - both)).add_(part * torch.exp(part_L - both))
        L.copy_(both)

    def empty(self, like: Tensor, heads: int, tokens: int, words: int, statistic: bool) -> Tensor:
        kind = self._wide(like) if statistic else like.dtype
        return fresh(like.new_empty((like.shape[0], heads, tokens, words), dtype=kind))

    def sums(self, like: Tensor, heads: int, tokens: int, words: int, value: float) -> Tensor:
        return like.new_full((like.shape[0], heads, tokens, words), value, dtype=self._wide(like))

    def rounded(self, sums: Tensor, like: Tensor) -> Tensor:
        return sums.to(like.dtype)

    def join(self, arrays: Sequence[Tensor]) -> Tensor:
        return arrays[0].contiguous() if len(arrays) == 1 else torch.cat(list(arrays), dim=-2)


class Kernels:
    """pebblesim's operators inside a device: kernels on a GPU, the definition on a CPU."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def _mask(self, causal: bool) -> tuple[Any, ...]:
        same_bits = torch.are_deterministic_algorithms_enabled()
        return None, None, None, 0 if causal else None, causal, self.scale, 0.0, None, same_bits

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        out, lse = torch.ops.pebblesim.attention(Q, K, V, *self._mask(causal))
        return out, lse.unsqueeze(-1) * log(2)

    def backward(self, x: Mapping[str, Tensor], causal: bool) -> dict[str, Tensor]:
        # The operator makes D of dO and O, and subtracts the gradient of the natural L; here O = 0, and that is -D.
        none = x["dO"].new_zeros(()).expand(x["dO"].shape)
        made = torch.ops.pebblesim.attention_backward(
            x["dO"],
            x["D"].squeeze(-1) * -log(2),
            x["Q"],
            x["K"],
            x["V"],
            none,
            x["L"].squeeze(-1) / log(2),
            *self._mask(causal),
        )
        return dict(zip(("dQ", "dK", "dV"), made, strict=True))


class Differentiable:
    """Attention inside a device by a function, such as FlexAttention, that returns O and L and has gradients of both.

    Args:
        function: takes query, key, value and whether a causal mask, aligned at the end, holds. It returns O, and the
            natural logarithm of each row's sum of exponentials, (batch, heads, n) in 32 bits or more.
    """

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor]]) -> None:
        self.function = function

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        out, lse = self.function(Q, K, V, causal)
        return out, lse.unsqueeze(-1)

    def backward(self, x: Mapping[str, Tensor], causal: bool) -> dict[str, Tensor]:
        """With weights w = exp(l - L) of this part, w dO is the gradient of its O, and w (dO·O - D) that of its l."""
        with torch.enable_grad():
            Q, K, V = (x[name].detach().requires_grad_() for name in "QKV")
            out, lse = self.function(Q, K, V, causal)
        weights = torch.exp(lse.detach().unsqueeze(-1) - x["L"])
        of_lse = weights * ((x["dO"].to(x["D"].dtype) * out.detach()).sum(-1, keepdim=True) - x["D"])
        grads = torch.autograd.grad(
            (out, lse), (Q, K, V), ((weights * x["dO"]).to(out.dtype), of_lse.squeeze(-1).to(lse.dtype))
        )
        return dict(zip(("dQ", "dK", "dV"), grads, strict=True))
