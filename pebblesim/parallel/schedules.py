"""Schedules of attention on many devices.

The pairs of queries and keys of all heads are cut into P parts, one for each device: the heads into u groups, and in
each group the queries into a and the keys into b parts, u·a·b = P. Each part contains the tokens that its device owns,
on both sides. Schedules differ in u, a and b, and in the order in which the words of others arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Order:
    """Two loops, as in FlashAttention: rows (or keys) of others stay while their keys (or rows) pass by in pieces.

    Attributes:
        name: what it is called.
        rows_stay: whether rows stay and keys pass by, as in FlashAttention-2; else keys stay.
        piece: what passes by at a time: "all", what one device owns ("device"), or one line ("one").
        in_passes: whether as many rows of a KV head as fit stay, and the keys pass by again for each lot of them.
    """

    name: str
    rows_stay: bool
    piece: str
    in_passes: bool = False


AT_ONCE = Order("at once", True, "all")
"""All words of others arrive before the first product, and partial sums leave after the last."""
KEYS_GO_ROUND = Order("keys go round", True, "device")
"""The keys and values of one device after the other arrive, are used and leave, with the sums of their gradients."""
QUERIES_GO_ROUND = Order("queries go round", False, "device")
"""The queries of one device after the other arrive, are used and leave, with partial sums of their rows."""
IN_PASSES = Order("in passes", True, "one", in_passes=True)
"""As many rows as fit arrive, the keys pass by one by one, and the rows' partial sums leave; then further rows."""


@dataclass(frozen=True)
class Letters:
    """The numbers that a schedule may use, as integers or as sympy symbols; u·a·b = P."""

    P: Any
    h: Any
    h_kv: Any
    u: Any
    a: Any
    b: Any


class Split(NamedTuple):
    """The heads in groups, and the rows and keys of a group in parts; the product of the three is P."""

    heads: Any
    rows: Any
    keys: Any

    def __str__(self) -> str:
        return f"{self.heads} x {self.rows} x {self.keys}"


@dataclass(frozen=True)
class Parallel:
    """A schedule: `split` says who computes what, and `order` in which order words arrive."""

    name: str
    meaning: str
    source: str
    order: Order
    split: Callable[[Letters], Split]


SCHEDULES: dict[str, Parallel] = {}
"""All schedules, by name."""


def _parallel(name: str, order: Order, source: str) -> Callable[[Callable[[Letters], Split]], Parallel]:
    def register(split: Callable[[Letters], Split]) -> Parallel:
        SCHEDULES[name] = Parallel(name, (split.__doc__ or "").strip(), source, order, split)
        return SCHEDULES[name]

    return register


@_parallel("all-gather", AT_ONCE, "context parallelism of Llama 3, arXiv 2407.21783, section 3.3.2")
def all_gather(t: Letters) -> Split:
    """Each device gathers all keys and values, for its own queries."""
    return Split(heads=1, rows=t.P, keys=1)


@_parallel("ring", KEYS_GO_ROUND, "Ring Attention, Liu et al. 2023, arXiv 2310.01889")
def ring(t: Letters) -> Split:
    """Each device keeps its own queries, and keys and values go round."""
    return Split(heads=1, rows=t.P, keys=1)


@_parallel("query-ring", QUERIES_GO_ROUND, "TokenRing, Wang et al. 2024, arXiv 2412.20501")
def query_ring(t: Letters) -> Split:
    """Each device keeps its own keys and values, and queries go round with the sums of their rows."""
    return Split(heads=1, rows=1, keys=t.P)


@_parallel("ulysses", AT_ONCE, "DeepSpeed-Ulysses, Jacobs et al. 2023, arXiv 2309.14509")
def ulysses(t: Letters) -> Split:
    """Each device computes some heads, for all tokens."""
    return Split(heads=t.P, rows=1, keys=1)


@_parallel("ulysses-rows", AT_ONCE, "Ulysses with the queries of a KV head dealt to several devices")
def ulysses_rows(t: Letters) -> Split:
    """A group of devices computes one KV head, each of them a part of its queries."""
    return Split(heads=t.h_kv, rows=t.a, keys=1)


@_parallel("tiles", AT_ONCE, "Mesh-Attention, arXiv 2512.20968; Attention2D, Elango 2025, arXiv 2503.15758")
def tiles(t: Letters) -> Split:
    """Each device computes a tile, of a part of the queries and a part of the keys, both with its own tokens."""
    return Split(heads=1, rows=t.a, keys=t.b)


@_parallel(
    "heads-tiles", AT_ONCE, "USP, arXiv 2405.07719, and LoongTrain, arXiv 2406.18485, with tiles for their rings"
)
def heads_tiles(t: Letters) -> Split:
    """A group of devices computes some heads, each of them a tile."""
    return Split(heads=t.u, rows=t.a, keys=t.b)


@_parallel("tiles-in-passes", IN_PASSES, "heads-tiles with the rows in as many passes as M words ask for")
def tiles_in_passes(t: Letters) -> Split:
    """A group of devices computes some heads, each of them a tile, some rows at a time."""
    return Split(heads=t.u, rows=t.a, keys=t.b)
