"""Closed forms of what devices move, derived from the text of a schedule."""

from __future__ import annotations

from typing import Any, NamedTuple

import sympy
from sympy import Max, Min, Mod, ceiling, floor

from pebblesim.parallel.schedules import Letters, Parallel, Split
from pebblesim.parallel.team import Traffic, traffic
from pebblesim.parallel.tokens import check_ownership

n, n_q, n_k, d, d_k, d_v, h, h_kv, P, u, a, b, M, p = sympy.symbols("n n_q n_k d d_k d_v h h_kv P u a b M p")


class _Part(NamedTuple):
    """Rows and keys of a head: those of others that a device needs, and those that it owns."""

    rows: Any
    keys: Any
    own_rows: Any
    own_keys: Any


def closed_form(schedule: Parallel, backward: bool = False) -> sympy.Expr:
    """Return the words that every device moves if P divides n and all pairs are allowed.

    They are in n, d, h, h_kv and P, in a, b and u if the schedule leaves them open, and in M for `tiles-in-passes`.
    """
    split = _split(schedule)
    part = _Part(n / split.rows - n / P, n / split.keys - n / P, n / P, n / P)
    return _words(schedule, split, traffic(d, d, backward), part, one_key=1)


def form_of_device(
    schedule: Parallel, backward: bool = False, latent: bool = False, causal: str | None = None
) -> sympy.Expr:
    """Return the words that device p moves, p = 0 … P − 1, for sizes of any kind.

    Args:
        schedule: a schedule.
        backward: the backward pass.
        latent: the values are the first d_v columns of the keys.
        causal: None if all pairs are allowed; tokens are then contiguous or striped, and n_q, n_k and P are any
            numbers. For a causal mask the ownership of tokens; then n = n_q = n_k, and P divides n (2P for zig-zag).
    """
    split = _split(schedule)
    part = _dense(split) if causal is None else _causal(split, causal)
    return _words(schedule, split, traffic(d_k, d_v, backward, latent), part, one_key=Min(1, part.keys))


def _split(schedule: Parallel) -> Split:
    return schedule.split(Letters(P, h, h_kv, u, a, b))


def _words(schedule: Parallel, split: Split, moved: Traffic, part: _Part, one_key: Any) -> sympy.Expr:
    """The rows of others in the heads of a group, and its keys, as often as they pass by."""
    heads = h / split.heads
    kv_heads = h_kv if split.heads == 1 else Max(1, h_kv / split.heads)
    passes: Any = sympy.Integer(1)
    if schedule.order.in_passes:
        own = part.own_rows * h * moved.row + part.own_keys * h_kv * moved.key
        at_once = Max(1, floor((M - own - one_key * moved.key) / moved.row))
        passes = Max(1, ceiling(heads / kv_heads * part.rows / at_once))
    return heads * moved.row * part.rows + kv_heads * moved.key * part.keys * passes


def _places(split: Split) -> tuple[Any, Any]:
    """The numbers x of the part of queries, and y of that of keys, of device p."""
    x = {1: 0, P: p}.get(split.rows, Mod(p, split.rows))
    return x, 0 if split.keys == 1 else floor(Mod(p, split.rows * split.keys) / split.rows)


def _dense(split: Split) -> _Part:
    """Device q owns ⌈(n − q)/P⌉ tokens; Σ ⌈(n − x − t a)/P⌉ over t < P/a is ⌈(n − x)/a⌉ (Hermite)."""
    (x, y), group = _places(split), split.rows * split.keys
    rows, some_rows, keys, some_keys = n_q, sympy.Integer(1), n_k, sympy.Integer(1)
    if split.rows != 1:
        rows = ceiling((n_q - x) / split.rows)
        some_rows = Min(1, rows)
    if split.keys != 1:
        keys = split.rows * floor(n_k / group) + Min(split.rows, Max(0, Mod(n_k, group) - y * split.rows))
        some_keys = Min(1, keys)
    own_rows, own_keys = ceiling((n_q - p) / P), ceiling((n_k - p) / P)
    # Rows without a key in the tile are not needed, nor keys without a row.
    return _Part((rows - own_rows) * some_keys, (keys - own_keys) * some_rows, own_rows, own_keys)


def _causal(split: Split, ownership: str) -> _Part:
    """A row is needed if it sees the first key of the tile, a key if the last row sees it.

    In the chunks or stripes of the devices' numbers these are: the first key's device is y a; the rows' devices are x,
    x + a, …, of which y are below that; the last row's device is P − a + x, or, with zig-zag chunks, it is x.
    """
    check_ownership(ownership)
    (x, y), of_rows, of_keys = _places(split), P / split.rows, P / split.keys
    first = 1 - Min(1, y)  # 1 in the first part of the keys
    last = 1 - Min(1, split.keys - 1 - y)  # 1 in the last
    own = n / P
    if ownership == "contiguous":
        late = last * (split.rows - 1 - x)
        return _Part(own * (of_rows - y - 1), own * (of_keys - 1 - late), own, own)
    if ownership == "zig-zag":
        return _Part(own / 2 * (2 * of_rows - y - 2), own / 2 * (2 * of_keys - 2 - first * x), own, own)
    late = last * (split.rows - 1 - x)
    return _Part(own * (of_rows - 1) - y, own * (of_keys - 1) - late, own, own)
