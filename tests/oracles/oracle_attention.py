"""Calls of `attention` that a seed draws, and what each of them means, in float64.

Written from docs/attention.md and the docstrings alone: masks are dense tables of pairs, made from the sentences there,
and gradients are those of autograd. It shares no code with what it judges, and imports nothing of pebblesim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

LAYOUTS = ("plain", "tokens", "cut", "wide", "apart", "columns", "fused", "expanded")
LEADS = ((), (1,), (2,), (3,), (2, 2), (1, 3), (2, 1, 2))
SCALES = (None, None, None, None, -0.3, 0.0, 1e-30, 0.5)
OTHERS = {"float32": "bfloat16", "float64": "float16"}
"""Types that kernels do not take, and what they are rounded to where a call asks for it."""
ROUNDINGS = {"float32": (None, "compute_dtype", "autocast"), "float64": (None, "compute_dtype")}


@dataclass(frozen=True)
class Room:
    """What is drawn from: lengths, pairs of head dimensions (d_k, d_v), types; `rounds`: others are always rounded."""

    lengths: Sequence[int]
    dims: Sequence[tuple[int, int]]
    types: Sequence[str]
    rounds: bool = False


@dataclass(frozen=True)
class Call:
    """One call: sizes, layouts, masks and options.

    `starts` are those of packed queries and keys, `padding` how many keys of each text are padding on its left and on
    its right, `ranges` a first and an end for each query of each text. `once`: one row of a mask is given for all
    texts, and one tensor of starts for queries and keys where they are as many. `sinks`: the type of the sinks, if
    there are any; `draw` makes calls without them.
    """

    seed: int
    lead: tuple[int, ...]
    kv_heads: int
    shared: int
    n_q: int
    n_k: int
    d_k: int
    d_v: int
    dtype: str
    layouts: tuple[str, str, str]
    latent: bool = False
    is_causal: bool = False
    window: tuple[int | None, int | None] | None = None
    align: str = "start"
    starts: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    padding: tuple[tuple[int, int], ...] | None = None
    ranges: tuple[tuple[tuple[int, int], ...], ...] | None = None
    once: bool = False
    wide_integers: bool = False
    softcap: float | None = None
    scale: float | None = None
    return_lse: bool = False
    rounding: str | None = None
    workspace: int | None = None
    deterministic: bool = False
    dense: str | None = None
    sinks: str | None = None

    @property
    def batch(self) -> int:
        return math.prod(self.lead)

    @property
    def computed(self) -> torch.dtype:
        """The type in which it is computed."""
        return getattr(torch, OTHERS[self.dtype] if self.rounding else self.dtype)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Calls that may be of one kernel."""
        masks = (
            self.is_causal,
            self.window is not None,
            bool(self.starts or self.padding or self.ranges),
            bool(self.softcap),
        )
        return (
            self.d_k,
            self.d_v,
            str(self.computed),
            self.dense is not None,
            masks,
            self.n_q == 1,
            self.deterministic,
        )

    def __str__(self) -> str:
        """What differs from a plain call; the seed has the rest."""
        plain = Call(self.seed, (), 1, 1, 1, 1, 1, 1, "", ("", "", ""))
        named = {name: value for name, value in vars(self).items() if name == "seed" or value != getattr(plain, name)}
        if self.ranges:
            named["ranges"] = "drawn"
        return ", ".join(f"{name}={value}" for name, value in named.items())


def draw(seed: int, room: Room) -> Call:
    """A call; about one in three has no mask at all."""
    random = Random(seed)
    some = lambda part: random.random() < part  # noqa: E731
    n_q, n_k = random.choice(room.lengths), random.choice(room.lengths)
    if some(0.4):
        n_q = n_k
    (d_k, d_v), dtype = random.choice(room.dims), random.choice(room.types)
    call = Call(
        seed, random.choice(LEADS), random.randint(1, 3), random.choice((1, 1, 2, 3, 4)), n_q, n_k, d_k, d_v, dtype,
        (random.choice(LAYOUTS), random.choice(LAYOUTS), random.choice(LAYOUTS)),
        latent=d_v <= d_k and some(0.15),
        scale=random.choice(SCALES),
        softcap=random.choice((2.0, 30.0, 1)) if max(d_k, d_v) <= 256 and some(0.25) else None,
        return_lse=some(0.5),
        rounding=random.choice(ways[room.rounds :]) if (ways := ROUNDINGS.get(dtype)) else None,
        workspace=random.choice((0, 2**16, 2**22) if max(d_k, d_v) <= 512 else (2359296, 2**23)) if some(0.3) else None,
        deterministic=some(0.2),
        wide_integers=some(0.5),
    )  # fmt: skip
    if some(0.7):
        call = replace(call, is_causal=some(0.4), align=random.choice(("start", "end")))
        if some(0.4):
            sides = (None, -1, 0, 1, 3, max(n_q, n_k) // 2, max(n_q, n_k) + 5)
            call = replace(call, window=(random.choice(sides), random.choice(sides)))
        call = contents(replace(call, once=some(0.3)), random, some(0.3), some(0.3), some(0.25))
    if some(0.1) and not call.softcap:
        call = replace(call, dense=random.choice(("boolean", "added")), return_lse=False)
    return call


def contents(call: Call, random: Random, packed: bool, padded: bool, ranged: bool) -> Call:
    """The call with masks that tensors hold: where sequences start, what is padding, ranges."""
    rows = 1 if call.once else call.batch
    if packed:
        parts = random.randint(1, 4)
        whole = random.random() < 0.8
        ends = [n if whole else random.randint(n // 2, n) for n in (call.n_q, call.n_k)]
        queries, keys = ((0, *sorted(random.randint(0, end) for _ in range(parts - 1)), end) for end in ends)
        call = replace(call, starts=(queries, queries if call.once and call.n_q == call.n_k else keys))
    if padded:
        pads = []
        for _ in range(rows):
            left = random.choice((0, 0, random.randint(0, call.n_k)))
            pads.append((left, random.choice((0, random.randint(0, call.n_k - left)))))
        call = replace(call, padding=tuple(pads))
    if ranged:
        pick = lambda: sorted(random.randint(0, call.n_k) for _ in range(call.n_q))  # noqa: E731
        call = replace(call, ranges=tuple(tuple(zip(pick(), pick(), strict=True)) for _ in range(rows)))
    return call


def again(call: Call, seed: int) -> Call:
    """A call of the same sizes and options whose tensors and masks hold other numbers."""
    return contents(replace(call, seed=seed), Random(seed), bool(call.starts), bool(call.padding), bool(call.ranges))


def tensors(call: Call, device: str) -> list[Tensor]:
    """Q, K and V, each a leaf in its layout, and behind them the sinks if there are any."""
    made = torch.Generator().manual_seed(call.seed)
    sizes = (
        (call.kv_heads * call.shared, call.n_q, call.d_k),
        (call.kv_heads, call.n_k, call.d_k),
        (call.kv_heads, call.n_k, call.d_v),
    )
    drawn = [torch.randn(*call.lead, *size, generator=made, dtype=torch.float64) for size in sizes]
    leaves = [laid(x.to(device, getattr(torch, call.dtype)), how) for x, how in zip(drawn, call.layouts, strict=True)]
    if call.latent:
        leaves[2] = leaves[1][..., : call.d_v]
    if call.sinks:
        height = (1, 1, 4, 10)[call.seed % 4]
        numbers = torch.randn(call.kv_heads * call.shared, generator=made, dtype=torch.float64) * height
        leaves.append(numbers.to(device, getattr(torch, call.sinks)))
    return [x.detach().requires_grad_() for x in leaves]


def laid(x: Tensor, how: str) -> Tensor:
    """The same numbers (but for `expanded`, where all heads have those of the first) with other strides."""
    *lead, heads, n, d = x.shape
    match how:
        case "tokens":
            return x.transpose(-3, -2).contiguous().transpose(-3, -2)
        case "columns":
            return x.mT.contiguous().mT
        case "expanded":
            return x[..., :1, :, :].expand(x.shape)
        case "fused":
            whole = x.new_zeros(*lead, n, 3 * heads, d).transpose(-3, -2)
            part = whole[..., heads : 2 * heads, :, :]
        case "cut":
            part = x.new_zeros(*lead, heads, n, d + 5)[..., 3 : 3 + d]
        case "wide":
            part = x.new_zeros(*lead, heads, n, -(-d // 8) * 8 + 16)[..., 8 : 8 + d]
        case "apart":
            part = x.new_zeros(*lead, heads, n, 2 * d)[..., ::2]
        case _:
            return x
    part.copy_(x)
    return part


def options(call: Call, device: str) -> dict[str, Any]:
    """The arguments beside Q, K and V, as the page has them; those that are not asked for are left out."""
    given: dict[str, Any] = {
        name: getattr(call, name)
        for name in ("window", "softcap", "scale", "workspace")
        if getattr(call, name) is not None
    }
    given |= {name: True for name in ("is_causal", "return_lse", "deterministic") if getattr(call, name)}
    if call.shared > 1:
        given["enable_gqa"] = True
    if call.align != "start":
        given["align"] = call.align
    if call.starts:
        integers = torch.int64 if call.wide_integers else torch.int32
        pair = tuple(torch.tensor(s, dtype=integers, device=device) for s in call.starts)
        given["cu_seqlens"] = pair[0] if call.once and call.n_q == call.n_k else pair
    if call.padding:
        given["key_padding_mask"] = torch.from_numpy(padded(call)).to(device)
    if call.ranges:
        both = torch.tensor(call.ranges, dtype=torch.int32, device=device)
        given["key_ranges"] = (both[..., 0], both[..., 1])
    if call.rounding == "compute_dtype":
        given["compute_dtype"] = call.computed
    if call.dense:
        given |= {"attn_mask": dense(call, device), "fallback": "sdpa"}
    return given


def padded(call: Call) -> np.ndarray:
    j = np.arange(call.n_k)
    assert call.padding is not None
    return np.array([(j < left) | (j >= call.n_k - right) for left, right in call.padding])


def dense(call: Call, device: str) -> Tensor:
    """A mask with holes, or numbers that are added to scores; one for all texts and heads, or one for each text."""
    made = torch.Generator().manual_seed(call.seed + 1)
    shape = (*call.lead, 1, call.n_q, call.n_k) if call.wide_integers else (call.n_q, call.n_k)
    numbers = torch.randn(shape, generator=made, dtype=torch.float64).to(device)
    return numbers < 0.5 if call.dense == "boolean" else numbers.to(call.computed)


def allowed(call: Call) -> np.ndarray:
    """Whether query i of a text attends to its key j: booleans of shape (batch, n_q, n_k)."""
    i, j = np.arange(call.n_q)[:, None], np.arange(call.n_k)[None]
    if call.starts:
        sequences = list(zip(*(pairwise(s) for s in call.starts), strict=True))
    else:
        sequences = [((0, call.n_q), (0, call.n_k))]
    pairs = np.zeros((call.n_q, call.n_k), bool)
    for (q, q_end), (k, k_end) in sequences:
        at = (k + i - q) if call.align == "start" else (k_end - 1) - (q_end - 1 - i)
        here = (q <= i) & (i < q_end) & (k <= j) & (j < k_end)
        if call.is_causal:
            here &= j <= at
        if call.window:
            left, right = call.window
            if left is not None and left != -1:
                here &= j >= at - left
            if right is not None and right != -1:
                here &= j <= at + right
        pairs |= here
    every = np.repeat(pairs[None], call.batch, 0)
    if call.padding:
        every &= ~padded(call)[:, None]
    if call.ranges:
        both = np.array(call.ranges)
        every &= (both[..., :1] <= j) & (j < both[..., 1:])
    return every


@dataclass
class Meaning:
    """O, L, dQ, dK, dV and, with sinks, ds in float64.

    `rounding` says, of each but L, by how much one rounding of every term to `call.computed` may change its norm.
    """

    values: dict[str, Tensor]
    rounding: dict[str, float]
    pairs: Tensor
    added: Tensor | None
    scores: float


def meaning(call: Call, leaves: Sequence[Tensor], dO: Tensor, dL: Tensor | None) -> Meaning:
    """What the call is to give for these inputs and gradients of its results."""
    device = dO.device
    q, k, v = (x.detach().to(call.computed).double().requires_grad_() for x in leaves[:3])
    pairs = torch.from_numpy(allowed(call)).to(device).reshape(*call.lead, 1, call.n_q, call.n_k)
    added = dense(call, str(device)) if call.dense else None
    if added is not None and call.dense == "boolean":
        pairs, added = pairs & added, None
    K, V = (x.repeat_interleave(call.shared, -3) for x in (k, v))
    scale = 1 / math.sqrt(call.d_k) if call.scale is None else call.scale
    S = q @ K.mT * scale
    if call.softcap:
        S = call.softcap * torch.tanh(S / call.softcap)
    if added is not None:
        S = S + added.double()
    masked = S.masked_fill(~pairs, -torch.inf)
    some, sinks = pairs.any(-1, keepdim=True), list[Tensor]()
    if call.sinks:  # one more key for all queries of a head, whose value is 0
        sinks = [leaves[3].detach().double().requires_grad_()]
        column = sinks[0][:, None, None].expand(*masked.shape[:-1], 1)
        masked, some = torch.cat([masked, column], -1), torch.ones_like(some)
        V = torch.cat([V, torch.zeros_like(V[..., :1, :])], -2)
    most = masked.amax(-1, keepdim=True).detach().masked_fill(~some, 0)
    weights = torch.exp(masked - most)
    total = weights.sum(-1, keepdim=True)
    P = weights / total.masked_fill(~some, 1)
    O = P @ V
    L = (torch.log(total.masked_fill(~some, 1)) + most).squeeze(-1)
    seen = dL.double().masked_fill(~some.squeeze(-1), 0) if dL is not None else torch.zeros_like(L)
    dQ, dK, dV, *ds = torch.autograd.grad([O, L], [q, k, v, *sinks], [dO.double(), seen])
    values = {"O": O, "L": L.masked_fill(~some.squeeze(-1), -torch.inf), "dQ": dQ, "dK": dK, "dV": dV}
    g, p, u = dO.double() ** 2, P.detach() ** 2, torch.finfo(call.computed).eps / 2
    of_sinks = p[..., call.n_k :] * ((g * O**2).sum(-1) + seen**2)[..., None]
    p, V = p[..., : call.n_k], V[..., : call.n_k, :]
    slopes = p * (g @ (V**2).mT + (g * O**2).sum(-1, keepdim=True) + seen[..., None] ** 2) * scale**2
    gather = lambda x: x.unflatten(-3, (call.kv_heads, call.shared)).sum(-3)  # noqa: E731
    terms = {"O": p @ V**2, "dQ": slopes @ K**2, "dK": gather(slopes.mT @ q**2), "dV": gather(p.mT @ g)}
    if ds:
        values["ds"], terms["ds"] = ds[0], of_sinks
    rounding = {name: u * (values[name].norm() + terms[name].sum().sqrt()).item() for name in terms}
    if ds:  # which are rounded to the type of the sinks besides
        rounding["ds"] += torch.finfo(leaves[3].dtype).eps / 2 * ds[0].norm().item()
    exponents = [x.detach().abs().max().item() for x in (S, *sinks)]
    return Meaning({n: x.detach() for n, x in values.items()}, rounding, pairs, added, max(exponents))
