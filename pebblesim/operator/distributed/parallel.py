"""Attention on many GPUs, each with a part of the tokens: `from pebblesim.gpu.torch.parallel import attention`.

Every process of a group calls `attention` with the queries, keys and values of its own tokens and gets its rows of the
output; gradients likewise. Who computes what is a schedule of `pebblesim.parallel`, which `pebblesim devices` counts:
the processes move its words and no others. Start them with a launcher such as torchrun.
"""

from __future__ import annotations

from pebblesim.operator import pytorch as _pytorch  # noqa: F401

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
from pebblesim.core.sizes import whole
from pebblesim.operator import operators as _operators  # noqa: F401
from pebblesim.operator.checks import check_numbers, check_tensors, unsupported
from pebblesim.operator.distributed.agreement import Given, check_agreement, check_group
from pebblesim.operator.distributed.exchange import Device
from pebblesim.operator.launching.fresh import fresh
from pebblesim.operator.sizes import check_flag, is_count
from pebblesim.parallel.count import Moved, best
from pebblesim.parallel.schedules import AT_ONCE, SCHEDULES
from pebblesim.parallel.team import MOST_DEVICES, Team
from pebblesim.parallel.tokens import check_ownership, owned

RUNNING = tuple(name for name, each in SCHEDULES.items() if not each.order.in_passes)
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

    All processes of the group must call it, and with the same options. Before words travel each call gathers one number
    of each process, for which the host waits. If the processes disagree, or something is wrong in one of them, all of
    them raise the same sentence, which names the process. The backward pass must be called in all processes or in no
    process.

    n is the number of all tokens, and P that of the processes. There are as many queries as keys. n need not be a
    multiple of P, and may be less than P: `tokens_of` says which tokens a process owns.

    Args:
        query: (batch, heads, n_own, d_k), the rows of the n_own tokens of this process, in the order of `tokens_of`.
            Of packed documents, its tokens of the first, then those of the second, and so on. bfloat16 or float16; on
            the CPU also float32 or float64.
        key: (batch, kv_heads, n_own, d_k) of the same tokens; `kv_heads` is a divisor of `heads`.
        value: (batch, kv_heads, n_own, d_v) of the same tokens.
        group: the processes, a group of torch.distributed with NCCL for GPUs or gloo for CPUs; all if None.
        schedule: "all-gather", "ring", "query-ring", "ulysses", "ulysses-rows", "tiles" or "heads-tiles", which
            docs/parallel.md explains; or "best": for each pass the one that moves the fewest words.
        is_causal: True if a query attends to no key of a later token, by the tokens' numbers of `tokens_of`; in packed
            documents by their numbers within a document.
        scale: a finite number; it may be 0 or negative. 1/√d_k if None.
        ownership: who owns which tokens: "contiguous", "zig-zag" or "striped". If None, "zig-zag" if `is_causal`, which
            gives each process as many pairs, and "contiguous" otherwise.
        tokens: n, or a list or tuple of the lengths of packed documents, of which no query attends to keys of another.
            Each document is dealt to all processes by itself. If None, n is P times the tokens of this process.
        inside: attention inside a process, an object with the methods of `Inside`: `Differentiable` makes one of a
            function. pebblesim's kernels if None. It has a scale of its own: not with `scale`.

    Returns:
        (batch, heads, n_own, d_v), in the type of `query`. It and the gradients equal those of one device but for
        rounding.

    Raises:
        UsageError: the processes disagree, the shapes do not belong together, the tokens are not those that a process
            owns, the heads cannot be dealt to the processes as the schedule asks, or kernels do not support them.
    """
    P, rank = check_group(group)
    x, teams, given, wrong = (query, key, value), tuple[Team, ...](), dict[str, Any](), None
    try:
        _check_options(x, is_causal, scale, schedule, ownership, inside)
        lengths = _lengths(query.shape[2] * P if tokens is None else tokens)
        own = ownership or ("zig-zag" if is_causal else "contiguous")
        given = _options(x, lengths, is_causal, scale, schedule, own)
        teams = tuple(
            Team(n, n, query.shape[3], value.shape[3], query.shape[1], key.shape[1], P, False, is_causal, own)
            for n in lengths
        )
        _check_tensors(x, teams, rank, inside)
        for team in teams:
            counted(schedule, team)
            if given["gradients"]:
                counted(schedule, replace(team, backward=True))
    except UsageError as error:
        wrong = str(error)
    check_agreement(Given(given, wrong), group)
    scale = query.shape[3] ** -0.5 if scale is None else float(scale)
    made: Tensor = _Attention.apply(query, key, value, group, schedule, teams, inside or Kernels(scale))
    return made


def _check_options(
    x: tuple[Tensor, ...], is_causal: Any, scale: Any, schedule: Any, ownership: Any, inside: Any
) -> None:
    """Check what can be wrong in a process whatever others do.

    Raises:
        UsageError: something is.
    """
    if not all(isinstance(each, Tensor) and each.dim() == 4 for each in x):
        raise UsageError("query, key and value must be tensors of four dimensions: batch, heads, tokens, words.")
    check_flag("is_causal", is_causal)
    check_numbers(scale, None, None, 0.0, None, None)
    if schedule not in ("best", *RUNNING):
        raise UnknownName("schedule that runs on devices", schedule, ("best", *RUNNING))
    if ownership is not None:
        check_ownership(ownership)
    if inside is not None and not all(callable(getattr(inside, way, None)) for way in ("forward", "backward")):
        raise UsageError(
            f"inside is of {type(inside).__name__}; give an object with forward and backward, such as "
            "Differentiable(function)."
        )
    if inside is not None and scale is not None:
        raise UsageError("scale is for pebblesim's kernels; leave it out, and have inside use it.")


def _options(
    x: tuple[Tensor, ...], lengths: tuple[int, ...], is_causal: bool, scale: Any, schedule: str, ownership: str
) -> dict[str, Any]:
    """Options that all processes must give alike, by name."""
    query, key, value = x
    return {
        "batch": query.shape[0],
        "heads": query.shape[1],
        "KV heads": key.shape[1],
        "d_k": query.shape[3],
        "d_v": value.shape[3],
        "tokens": lengths[0] if len(lengths) == 1 else lengths,
        "type": query.dtype,
        "device": query.device.type,
        "is_causal": is_causal,
        "scale": None if scale is None else float(scale),
        "schedule": schedule,
        "ownership": ownership,
        "gradients": torch.is_grad_enabled() and any(each.requires_grad for each in x),
    }


def _check_tensors(x: tuple[Tensor, ...], teams: tuple[Team, ...], rank: int, inside: Any) -> None:
    """Check that a process has the tokens that it owns, and that they can be computed inside it.

    Raises:
        UsageError: it has not, or they cannot.
    """
    (query, key, value), mine = x, sum(team.own_rows[rank].number for team in teams)
    if {each.shape[2] for each in x} != {mine}:
        n = sum(team.n_q for team in teams)
        of_q, of_k, of_v = (f"{each.shape[2]:,}" for each in x)
        raise UsageError(
            f"this process owns {mine:,} of {n:,} tokens, but query, key and value have {of_q}, {of_k} and {of_v}; "
            "give the number of all tokens, and take them by tokens_of."
        )
    if mine:
        check_tensors(query, key, value, True)
    if inside is None and (sentence := unsupported(query, value, 0.0, None)) is not None:
        raise UsageError(f"{sentence.partition(';')[0]}; give other tensors, or attention of your own as inside.")


def _lengths(tokens: Any) -> tuple[int, ...]:
    found = tuple(tokens) if isinstance(tokens, tuple | list) else (tokens,)
    if not found or not all(is_count(each, 2**63) and each > 0 for each in found):
        raise UsageError(
            f"tokens = {tokens!r} was given; it is the number of all tokens, or the length of each document, 1 or more."
        )
    return tuple(map(int, found))


def tokens_of(rank: int, P: int, n: int | Sequence[int], ownership: str = "contiguous") -> Tensor:
    """Return the numbers of the tokens that a process owns, in the order in which it must hold them.

    Args:
        rank: the number of the process, from 0 to P - 1.
        P: the number of processes.
        n: the number of all tokens, or the lengths of packed documents, as `tokens` of `attention`.
        ownership: "contiguous", "zig-zag" or "striped", as for `attention`; its default is "zig-zag" if `is_causal`.

    Returns:
        int64 of shape (tokens of this process,); it may be empty where n < P.

    Raises:
        UsageError: a number is not allowed, or the ownership is not known.

    >>> tokens_of(1, 2, 8, "zig-zag").tolist()
    [2, 3, 4, 5]
    >>> tokens_of(1, 2, (4, 4), "zig-zag").tolist()
    [1, 2, 5, 6]
    """
    check_ownership(ownership)
    mine, start = list[int](), 0
    if whole("P", P) > MOST_DEVICES or not is_count(rank, P):
        raise UsageError(
            f"rank = {rank!r} was given with P = {P:,}; a rank is from 0 to P - 1, and P up to {MOST_DEVICES:,}."
        )
    for length in _lengths(n):
        mine += (start + token for part in owned(ownership, length, P)[rank].parts for token in part)
        start += length
    return torch.tensor(mine, dtype=torch.int64)


@lru_cache(maxsize=1024)
def counted(schedule: str, team: Team) -> Moved:
    """Return a schedule under its best split, or for "best" the schedule with the fewest words.

    Among equals words that go round come first, since they travel while others are used.

    Raises:
        UsageError: it is impossible for these heads and processes.
    """
    if schedule != "best":
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
    """The protocol `pebblesim.operator.distributed.exchange.Local` on tensors; sums have 32 bits, or 64 for doubles."""

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
        function: takes query (batch, heads, n_q, d_k), key, value with heads that queries may share, and whether a
            causal mask, aligned at the end, holds. It returns O, (batch, heads, n_q, d_v), and the natural logarithm of
            each row's sum of exponentials, (batch, heads, n_q) in 32 bits or more. It scales the scores itself.
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
