"""Backward passes that take the heads that share keys in parts: when, and what that costs. Without PyTorch.

The gradients of keys are sums over the queries of all heads that share them. Blocks of kernels have some keys each. So
where these are few beside a card's multiprocessors, or as many and some more, much of the card is idle: 128 heads on
one latent and 1,024 keys have products of 24 tiles, and 16 heads on 2 with 8,730 keys have 138 blocks for 132. Each
part of the heads has a copy of K and V, and gradients of these in float32, which are added up in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from pebblesim.advice import cards
from pebblesim.advice.forecast import Forecast
from pebblesim.advice.tiles import Tiling
from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import BYTES
from pebblesim.kernels.gluon.shares import columns_of_tile, shares_of
from pebblesim.kernels.key_ranges import KeyRanges
from pebblesim.operator.pattern import Pattern
from pebblesim.operator.planning import KEPT, STEPS, Dims, chosen, first_at, rounded_up

IN_PARTS = (
    "small-cache-backward-resident",
    "dS-stored-resident",
    "flash2-backward-blocked",
    "backward-two-pass-blocked",
)
"""Schedules whose kernels take the heads that share keys in parts."""

LONG_ENOUGH = 3e-4
"""Seconds of a backward pass from which on heads are taken in parts: shorter ones wait for the host."""

GAIN, GAIN_IN_RANGES = 1.1, 1.0
"""Factors by which a pass is to be faster with its heads in parts, by the forecast, without and with ranges of keys.

A forecast for ranges takes sequences for one. The blocks of the longest of several take longer than others, and with
its heads in parts a pass waits less for them.
"""

EVEN = 90
"""Per cent of the multiprocessors that have a share of the terms, from which on shares are taken: with 384 tiles of
parts, of eight lengths under a causal mask, 87 per cent of the time of all multiprocessors is used."""

NUMBERS = 2, 4, 8, 16
"""Numbers of parts that are tried."""


@lru_cache(maxsize=KEPT)
def long_enough(dims: Dims, heads: int, dtype: str, pattern: Pattern, room: int | None, card: cards.Card) -> bool:
    """Whether a backward pass may have its heads in parts: arguments as for `parts_of_heads`, rounded further."""
    if pattern.shared == 1 or not pattern.gluon:
        return False
    seconds = _together(dims, heads, dtype, pattern, room, card)
    return seconds is not None and seconds >= LONG_ENOUGH


@lru_cache(maxsize=KEPT)
def parts_of_heads(dims: Dims, heads: int, dtype: str, pattern: Pattern, room: int | None, card: cards.Card) -> int:
    """In how many parts a backward pass takes the heads that share keys; 1 if it takes them together.

    Args:
        dims: n_q (rows of all heads that share keys), n_k, d_k and d_v, rounded.
        heads, dtype, pattern, room, card: as for `chosen`.
    """
    seconds = _together(dims, heads, dtype, pattern, room, card)
    if seconds is None:
        return 1
    least, found = seconds / (GAIN_IN_RANGES if isinstance(pattern.mask, KeyRanges) else GAIN), 1
    for parts in (number for number in NUMBERS if pattern.shared % number == 0):
        own, some = of_part_of_heads(pattern, parts), sizes_of_part(dims, parts)
        made = chosen("backward", some, heads * parts, dtype, own, None, card)
        taken, tiling = made.bytes + bytes_of_parts(dims, heads, parts, dtype), made.forecast.tiling
        if (room is not None and taken > room) or not tiling.gluon or tiling.schedule not in IN_PARTS:
            continue
        seconds = first_at(made, dict(some), card, dtype, heads * parts, own).seconds
        seconds += seconds_of_parts(dims, heads, parts, dtype, card)
        if seconds < least:
            least, found = seconds, parts
    return found


def _together(dims: Dims, heads: int, dtype: str, pattern: Pattern, room: int | None, card: cards.Card) -> float | None:
    """The forecast of all heads together; None if no kernel has room at these sizes, which are longer than a call's."""
    try:
        made = chosen("backward", dims, heads, dtype, pattern, room, card)
    except UsageError:
        return None
    return first_at(made, dict(dims), card, dtype, heads, pattern).seconds


def side_by_side(
    dims: Dims, heads: int, dtype: str, pattern: Pattern, room: int | None, card: cards.Card
) -> tuple[int, Forecast] | None:
    """In how many parts a backward pass of any sizes takes the heads that share keys, and the forecast of its kernels;
    None if it takes them together. Arguments as for `parts_of_heads`."""
    rest = heads, dtype, pattern, room, card
    if not long_enough(rounded_up(dims, pattern, 1), *rest):
        return None
    parts = parts_of_heads(rounded_up(dims, pattern, STEPS), *rest)
    if parts == 1:
        return None
    own, some = of_part_of_heads(pattern, parts), sizes_of_part(dims, parts)
    made = chosen("backward", some, heads * parts, dtype, own, room, card)
    return parts, first_at(made, dict(some), card, dtype, heads * parts, own)


def sizes_of_part(dims: Dims, parts: int) -> Dims:
    """The sizes of a part of the heads that share keys."""
    return tuple((name, size // parts if name == "n_q" else size) for name, size in dims)


def of_part_of_heads(pattern: Pattern, parts: int) -> Pattern:
    """The pattern of each of so many parts of the heads that share keys."""
    shared = pattern.shared // parts
    return pattern._replace(shared=shared, mask=pattern.mask and replace(pattern.mask, rows=shared))


def even_shares(
    tiling: Tiling, dims: Dims, groups: int, parts: int, pattern: Pattern, card: cards.Card
) -> dict[str, int] | None:
    """In how many shares multiprocessors compute dK and dV, as `kernels.gluon.shares` divides terms; None if that is
    not even, or if tiles of parts are: without a mask they took 427 µs on an H200 where shares took 437.

    Args:
        tiling: of the pass.
        dims: sizes of a part.
        groups: of heads that share keys, in all batches.
        parts: into which the heads of a group are divided.
        pattern: the allowed pairs.
        card: the card.
    """
    sizes, most, found = dict(dims), card.size("multiprocessors"), {}
    if "e" not in tiling.blocks or pattern.mask is None:
        return None
    for name, d in (("dK", sizes["d_k"]), ("dV", sizes["d_v"])):
        wide = -(-d // columns_of_tile(d, tiling.blocks["e"]))
        pairs = -(-sizes["n_k"] // (2 * tiling.blocks["a"])) * wide * groups
        found[name] = shares_of(pairs, parts, most)
        if not EVEN * most <= 100 * pairs * found[name] <= 100 * most:
            return None
    return found


def words_of_parts(
    n_k: int, d_k: int, d_v: int, heads: int, parts: int, shares: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Words that are moved besides for heads in parts.

    Args:
        n_k, d_k, d_v: keys, and columns of these and of values.
        heads: KV heads.
        parts: of the heads that share keys.
        shares: in how many shares dK and dV are computed, by name, where these are not the parts.

    Returns:
        "copied": of K and V, in 16 bits, read once and written for each part. "summed": of their gradients in float32:
        each share is written, and the sums read it; the gradients of all are written once more, as without parts.
    """
    made = shares or {"dK": parts, "dV": parts}
    summed = 2 * heads * n_k * (made["dK"] * d_k + made["dV"] * d_v)
    return {"copied": (1 + parts) * heads * n_k * (d_k + d_v), "summed": summed}


def bytes_of_parts(dims: Dims, heads: int, parts: int, dtype: str) -> int:
    """Bytes of the copies of keys and values for parts of the heads, and of their gradients in float32."""
    sizes = dict(dims)
    return parts * heads * sizes["n_k"] * (sizes["d_k"] + sizes["d_v"]) * (BYTES[dtype] + 4)


def seconds_of_parts(dims: Dims, heads: int, parts: int, dtype: str, card: cards.Card) -> float:
    """A forecast of the copies of keys and values, and of the sums: four launches that memory binds."""
    moved = 2 * bytes_of_parts(dims, heads, parts, dtype)
    return moved / card.rates["memory"].value + 4 * (card.rates["launch"].value + card.rates["start"].value)
