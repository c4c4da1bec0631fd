"""Judge each kind of attention call on a card: backend, words and their minimum, bytes, times, tiles.

Words are those of played schedules, between a multiprocessor and the rest of the card, with M the words of a block's
shared memory: FlashAttention-2's for fused kernels, and the one with score matrices for math and for attention that a
model writes itself. A fused kernel leaves out the pairs that a flag of the call leaves out; under a mask in memory it
computes all pairs, and reads the mask. The minimum holds for every schedule, for the pairs that the mask allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from pebblesim.advice import cards, pytorch_times
from pebblesim.advice.calls import SKIPPED, AttentionCall, SeenMask
from pebblesim.advice.cards import Card
from pebblesim.advice.forecast import can_forecast
from pebblesim.advice.pytorch_rules import Choice, Where, choose
from pebblesim.advice.pytorch_times import TABLES
from pebblesim.core.errors import PebblesimError
from pebblesim.core.sizes import BYTES
from pebblesim.counting.count import Counted, count
from pebblesim.kernels.domains import ATTENTION
from pebblesim.language import masks
from pebblesim.language.masks import Band
from pebblesim.operator.bias import forecast as forecast_of_bias
from pebblesim.operator.bias.programs import WIDEST
from pebblesim.operator.planning import chosen
from pebblesim.operator.plans import KernelPlan, plan

SCHEDULES = {
    "fused": {"forward": "flash2-forward", "backward": "flash2-backward"},
    "tables": {"forward": "standard-forward", "backward": "standard-backward"},
}
"""The schedules whose words are counted."""

SMALL_CARD = "RTX4090"
"""A card whose blocks have 99 KiB of shared memory."""

NOT_FORECAST = "attention takes a bias or a dense mask (bias=, attn_mask=), but its time is not forecast"
"""The reason why a call with a bias beside other masks, or one whose sharing is not known, has no time of ours here."""

NOT_FORECAST_IN_RANGES = "attention takes packed sequences and key ranges, but its time is not forecast"
"""The reason why a call in which each query has keys of its own has none."""

UNTIMED = (NOT_FORECAST, NOT_FORECAST_IN_RANGES)
"""Reasons for which our kernels have no time, and compute the call."""

BANDS = ("none", "causal", "window")


@dataclass(frozen=True)
class Pass:
    """One pass of a call.

    Attributes:
        words: words moved by the backend for all heads and sequences; None if no schedule stands for it.
        mask_words: words of a mask in memory that are read besides.
        least: the proved minimum; None if the allowed pairs are not known.
        theirs: seconds of the backend; None if neither an estimate nor a least time is known.
        measured: whether they are an estimate from measurements on this card; else the backend takes so long at least.
        ours: forecast seconds of our kernels; None if there are none, or the card was not measured.
        kernel: our kernel with its tile; "" if there is none.
        small: our kernel with its tile for a card with 99 KiB of shared memory for a block; "" if there is none.
    """

    words: int | None
    mask_words: int
    least: int | None
    theirs: float | None
    measured: bool
    ours: float | None
    kernel: str
    small: str


@dataclass(frozen=True)
class Judged:
    """A kind of call: the same sizes, mask and backend in modules whose paths differ by numbers alone.

    Attributes:
        where: path of the modules, with `*` for numbers that differ.
        numbers: these numbers, such as "0–4, 6".
        times: number of calls.
        call: one of them.
        choice: the backend and why.
        passes: by "forward" and, with gradients, "backward".
        table_bytes: bytes that the backend takes for tables in the forward pass of one call, by what it stores.
        our_bytes: bytes that tables of our kernels take at most in a pass; None without our kernels.
        refusal: why none of our kernels computes it; "" if one does.
        same_bits: whether gradients of the backend are the same in each run, and what it costs, in words.
        our_cost: time of our gradients that are the same in each run ÷ time of the fastest; None if not known.
    """

    where: str
    numbers: str
    times: int
    call: AttentionCall
    choice: Choice
    passes: dict[str, Pass]
    table_bytes: int
    our_bytes: int | None
    refusal: str
    same_bits: str
    our_cost: float | None

    @property
    def measured(self) -> bool:
        """Whether all seconds of the backend are estimates from measurements, and none a least time."""
        return all(one.measured for one in self.passes.values())

    def seconds(self, whose: str) -> float | None:
        """Seconds of all calls: "theirs" or "ours"; None if a pass is not known."""
        each = [getattr(one, whose) for one in self.passes.values()]
        return None if None in each else self.times * sum(each)


def judge(where: str, numbers: str, times: int, call: AttentionCall, card: Card, place: Where) -> Judged:
    """Return what is known of a kind of call on a card."""
    choice = chosen_backend(call, place)
    planned, refusal = _planned(call, card)
    small, _ = _planned(call, cards.card(SMALL_CARD))
    ways = ("forward", "backward") if call.training else ("forward",)
    biased = _with_bias(call, card) if refusal == NOT_FORECAST else None
    return Judged(
        where,
        numbers,
        times,
        call,
        choice,
        {way: _pass(way, call, choice.backend, card, planned, small, biased) for way in ways},
        table_bytes(call, choice.backend),
        None if planned is None else max(planned.tables[: len(ways)]),
        refusal if biased is None else "",
        _same_bits(call, choice.backend, card, place),
        None if planned is None or not call.training else _cost_of_same_bits(planned, card),
    )


def chosen_backend(call: AttentionCall, place: Where) -> Choice:
    """Return the backend of a call: by rules or a probe where PyTorch chooses, else what was called."""
    if call.entry == "sdpa":
        probed = Choice(call.probed, call.why, probed=True) if call.probed else None
        return probed or choose(call, place)
    named = {
        "flex_attention": ("flex", "FlexAttention was called; without torch.compile it stores all scores"),
        "flash_attn": ("flash", "flash_attn was called"),
        "eager": ("eager", "the model multiplies, normalises and multiplies itself"),
        "pebblesim": ("pebblesim", "our attention was called"),
    }
    backend, reason = named[call.entry]
    return Choice(backend, (("", reason),), probed=True)


def _pass(
    way: str,
    call: AttentionCall,
    backend: str,
    card: Card,
    planned: KernelPlan | None,
    small: KernelPlan | None,
    biased: Mapping[str, tuple[float, str]] | None,
) -> Pass:
    kernels, on_small = (None if each is None else getattr(each, way)[0] for each in (planned, small))
    theirs = pytorch_times.seconds(call, backend, way, card.device)
    ours, kernel = None if kernels is None else kernels.seconds, "" if kernels is None else str(kernels.tiling)
    on_small_card = "" if on_small is None else str(on_small.tiling)
    if planned is not None and planned.scaled:
        ours = None
    if biased is not None:
        (ours, kernel), on_small_card = biased[way], biased[way][1]
    return Pass(
        words(call, backend, way, card),
        mask_words(call),
        least(call, way, card),
        pytorch_times.at_least(call, backend, way, card) if theirs is None else theirs,
        theirs is not None,
        ours,
        kernel,
        on_small_card,
    )


# -- words ------------------------------------------------------------------------------------------------------------


def words(call: AttentionCall, backend: str, way: str, card: Card) -> int | None:
    """Words that a backend's schedule moves in a pass, for all heads and sequences."""
    if not backend:
        return None
    if call.mask.kinds & SKIPPED and not call.mask.given:
        return None
    kind = "tables" if backend in TABLES else "fused"
    band = None if kind == "tables" or call.mask.given else _band(call.mask, call.n_q, call.n_k)
    made = _counted(SCHEDULES[kind][way], call, call.kv_heads, band, card)
    return None if made is None else made.total.io


def mask_words(call: AttentionCall) -> int:
    """Words of a mask in memory that a pass reads: those of each head and sequence, as each tile is read once."""
    table = call.mask.given and len(call.mask.shape) > 1 and call.mask.shape[-2] == call.n_q > 1
    return call.batch * call.heads * call.n_q * call.n_k if table else 0


def least(call: AttentionCall, way: str, card: Card) -> int | None:
    """The least words that any schedule moves in a pass; None if the allowed pairs are not known.

    A bias is left out: what moves words with it moves at least those without it.
    """
    mask = call.mask
    if mask.kinds & {*SKIPPED, "dense", "unknown"} or (mask.kind == "bias" and mask.also):
        return None
    band = None if mask.kind == "bias" else _band(mask, call.n_q, call.n_k)
    made = _counted(SCHEDULES["fused"][way], call, call.own_kv_heads, band, card)
    return None if made is None else made.every_way.value * made.times


def _band(mask: SeenMask, n_q: int, n_k: int) -> Band | None:
    """The pairs of a band, in the form that has a closed form where there is one."""
    if mask.kind not in BANDS or mask.left is mask.right is None:
        return None
    if n_q == n_k and mask.right == 0:
        made = masks.from_text("causal" if mask.left is None else f"window:{mask.left + 1}")
        assert isinstance(made, Band)
        return made
    return Band(str(mask), mask.left, mask.right, at_end=False)


def _counted(schedule: str, call: AttentionCall, kv_heads: int, band: Band | None, card: Card) -> Counted | None:
    sizes = (call.n_q, call.n_k, call.d_k, call.d_v)
    M = card.size("shared_per_block") // BYTES.get(call.dtype, 2)
    return _count(schedule, sizes, (call.heads, kv_heads, call.batch), band, M)


@lru_cache(maxsize=1024)
def _count(
    schedule: str, sizes: tuple[int, int, int, int], heads: tuple[int, int, int], band: Band | None, M: int
) -> Counted | None:
    """A count; None if there is none for these sizes, such as a mask that leaves rows without a key."""
    named: dict[str, Any] = dict(zip(("heads", "kv_heads", "batch"), heads, strict=True))
    named |= zip(("n_q", "n_k", "d_k", "d_v"), sizes, strict=True)
    try:
        made = count(schedule, M=M, mask=band, **named)
    except PebblesimError:
        return None
    return made


def table_bytes(call: AttentionCall, backend: str) -> int:
    """Bytes that a backend takes for tables in a forward pass, besides its result.

    Math computes 16-bit words in float32, and has scores and probabilities at once (and copies of Q, K and V, which are
    left out); so has attention that a model writes itself, in its own type. Fused kernels keep a number for each query
    where gradients are asked for, and copy booleans of a mask as numbers. The memory-efficient one sums O in float32
    where a row of values is longer than 128 words.
    """
    rows, size = call.batch * call.heads * call.n_q, BYTES.get(call.dtype, 4)
    if backend in TABLES:
        return 2 * rows * call.n_k * (max(size, 4) if backend == "math" else size)
    made = 4 * rows if call.training else 0
    if backend in ("efficient", "cudnn") and call.mask.given and call.mask.boolean:
        made += size * prod(call.mask.shape)
    if backend == "efficient" and size < 4 and call.d_v > 128:
        made += 4 * rows * call.d_v
    return made


# -- our kernels ------------------------------------------------------------------------------------------------------


def _planned(call: AttentionCall, card: Card) -> tuple[KernelPlan | None, str]:
    """The kernels of ours, or why there are none."""
    reason = next(_refused(call), None)
    if reason is not None:
        return None, reason
    mask = call.mask
    end = mask.right is not None and mask.right == call.n_k - call.n_q != 0
    moved = call.n_k - call.n_q if end else 0
    left, right = (None if each is None else each for each in (mask.left, mask.right))
    window = (None if left is None else left + moved, None if right is None else right - moved)
    heads = call.batch * call.heads
    try:
        made = plan(
            call.n_q,
            call.d_k,
            heads,
            kv_heads=call.batch * call.own_kv_heads,
            n_k=call.n_k,
            d_v=call.d_v,
            dtype=call.dtype,
            window=None if window == (None, None) else window,
            align="end" if end else "start",
            sinks=call.sinks,
            card=card.name,
        )
    except PebblesimError as error:
        return None, str(error)
    return made, ""


def _with_bias(call: AttentionCall, card: Card) -> Mapping[str, tuple[float, str]] | None:
    """Seconds of our kernels with a bias, and their names, by pass; None where they are not forecast.

    They are where one tensor is all that is added to scores or leaves keys out, and its shape says who shares it.
    """
    mask, d = call.mask, max(call.d_k, call.d_v)
    groups = prod(mask.shape[:-3])
    if mask.also or not mask.given or call.batch % groups or call.softcap or d > WIDEST or not can_forecast(card):
        return None
    sizes = forecast_of_bias.Sizes(call.batch, call.batch // groups, call.heads, call.n_q, call.n_k, max(d, 16))
    dtype = "float32" if call.dtype == "float32" else "bfloat16"
    found = {}
    for way in ("forward", "backward"):
        seconds = forecast_of_bias.seconds(way, sizes, dtype, None, mask.gradient, card)
        found[way] = seconds, forecast_of_bias.names(way, sizes, dtype, mask.gradient, card)
    return found


def _refused(call: AttentionCall) -> Iterator[str]:
    """Reasons why `attention` does not take a call."""
    if {"bias", "dense"} & call.mask.kinds and max(call.d_k, call.d_v) > WIDEST:
        yield f"attention takes a bias or a dense mask up to a head dimension of {WIDEST}"
    if {"bias", "dense"} & call.mask.kinds and (call.dropout or call.softcap):
        yield f"attention takes no {'dropout' if call.dropout else 'softcap'} with a bias or a dense mask"
    if {"bias", "dense"} & call.mask.kinds:
        yield NOT_FORECAST
    if {"packed", "ranges"} & call.mask.kinds:
        yield NOT_FORECAST_IN_RANGES
    if "unknown" in call.mask.kinds:
        yield "the values of the mask are not known here, so it is not known whether attention takes it"
    if call.dtype not in ATTENTION.dtypes:
        yield f"words are {call.dtype}, and attention takes bfloat16 and float16 on a card: model.bfloat16()"
    if call.dropout:
        yield "attention takes no dropout"
    if call.softcap and max(call.d_k, call.d_v) > 256:
        yield "attention takes softcap up to a head dimension of 256"


def _cost_of_same_bits(planned: KernelPlan, card: Card) -> float | None:
    """The time of gradients that are the same in each run ÷ that of the fastest."""
    rates, key = cards.with_rates(card), tuple(planned.dims.items())
    made = []
    for same in (True, False):
        pattern = planned.pattern._replace(same_bits=same)
        dtype = "bfloat16"
        try:
            best = chosen("backward", key, planned.heads, dtype, pattern, planned.workspace, rates)
        except PebblesimError:
            return None
        made.append(best.forecast.seconds)
    return made[0] / made[1]


def _same_bits(call: AttentionCall, backend: str, card: Card, place: Where) -> str:
    """Whether gradients of a backend are the same in each run, in words."""
    if not call.training:
        return "the same in each run"
    if backend == "cudnn":
        other = choose(replace(call, deterministic=True), place).backend
        cost = "not measured"
        both = [pytorch_times.seconds(call, each, "backward", card.device) for each in (other, backend)]
        if both[0] is not None and both[1] is not None:
            cost = f"its gradients take {both[0] / both[1]:.2f} x the time"
        return f"gradients differ; with deterministic algorithms PyTorch takes {other}: {cost}"
    if backend in ("flash", "efficient"):
        return "gradients differ, but for deterministic algorithms, in which it is slower: not measured"
    if backend in TABLES:
        return "the same in each run, with a fixed workspace of cuBLAS"
    if backend == "pebblesim":
        return "see the cost of our gradients"
    return "the same in each run" if backend == "flex" else "not known"
