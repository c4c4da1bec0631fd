"""Devices that compute attention together: sizes, what they own, and what a row and a key cost to move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import heads_on, whole, whole_groups
from pebblesim.parallel.tokens import Tokens, check_ownership, owned

MOST_DEVICES = 1024
"""Every device is counted for itself."""

STATISTICS = ("L", "D")
"""One word for each row: L = log Σ exp(S), and D, the row sums of dO ∘ O."""


class Traffic(NamedTuple):
    """Words that tensors have for each query, or for each key, of a head. A device moves them unless it owns them."""

    rows_in: Mapping[str, Any]
    rows_out: Mapping[str, Any]
    keys_in: Mapping[str, Any]
    keys_out: Mapping[str, Any]

    @property
    def row(self) -> Any:
        """Words of a row, received and sent."""
        return sum(self.rows_in.values()) + sum(self.rows_out.values())

    @property
    def key(self) -> Any:
        """Words of a key, received and sent."""
        return sum(self.keys_in.values()) + sum(self.keys_out.values())


def traffic(d_k: Any, d_v: Any, backward: bool = False, latent: bool = False) -> Traffic:
    """Return what queries and keys are made of: numbers or symbols.

    Args:
        d_k, d_v: words in a row of Q and K, and of V and O.
        backward: the backward pass.
        latent: V is the first d_v columns of K and has no words of its own, nor has dV beside dK.
    """
    values, sums = ({}, {}) if latent else ({"V": d_v}, {"dV": d_v})
    keys = {"K": d_k} | values
    if backward:
        return Traffic({"Q": d_k, "dO": d_v, "L": 1, "D": 1}, {"dQ": d_k}, keys, {"dK": d_k} | sums)
    return Traffic({"Q": d_k}, {"O": d_v, "L": 1}, keys, {})


@dataclass(frozen=True)
class Team:
    """P devices with n_q queries of h heads, and n_k keys and values of h_kv heads.

    Attributes:
        n_q, n_k: queries and keys of a head.
        d_k, d_v: words in a row of Q and K, and of V and O.
        heads, kv_heads: h and h_kv.
        P: devices.
        backward: whether the backward pass is computed.
        causal: whether query i sees only the keys up to n_k − n_q + i.
        ownership: who owns which queries and keys, a name in `OWNERSHIPS`.
        latent: whether the values are the first d_v columns of the keys.

    Raises:
        UsageError: a size is not allowed, or heads cannot be shared evenly.
    """

    n_q: int
    n_k: int
    d_k: int
    d_v: int
    heads: int
    kv_heads: int
    P: int
    backward: bool = False
    causal: bool = False
    ownership: str = "contiguous"
    latent: bool = False

    def __post_init__(self) -> None:
        for name in ("n_q", "n_k", "d_k", "d_v", "heads", "kv_heads", "P"):
            whole(name, getattr(self, name))
        whole_groups(self.heads, self.kv_heads)
        check_ownership(self.ownership)
        if self.P > MOST_DEVICES:
            raise UsageError(f"P = {self.P:,} was given; up to {MOST_DEVICES:,} devices are counted, each for itself.")
        if self.latent and self.d_v > self.d_k:
            raise UsageError(
                f"d_v = {self.d_v:,} and d_k = {self.d_k:,} were given with latent values, which are the first d_v of "
                "the d_k columns of K; d_v may be d_k at most."
            )

    @classmethod
    def square(cls, n: int, d: int, heads: int, kv_heads: int, P: int, *more: Any, **named: Any) -> Team:
        """Return a team with n queries and n keys, and d words in every row."""
        return cls(n, n, d, d, heads, kv_heads, P, *more, **named)

    @property
    def sizes(self) -> str:
        """The sizes in words, such as n = 4,096, d = 64."""
        n = f"n = {self.n_q:,}" if self.n_q == self.n_k else f"n_q = {self.n_q:,}, n_k = {self.n_k:,}"
        d = f"d = {self.d_k:,}" if self.d_k == self.d_v else f"d_k = {self.d_k:,}, d_v = {self.d_v:,}"
        return f"{n}, {d}{', latent values' if self.latent else ''}"

    @property
    def heads_in_words(self) -> str:
        """The heads, such as 32 heads (8 KV heads)."""
        return heads_on(self.heads, self.kv_heads)

    @cached_property
    def traffic(self) -> Traffic:
        return traffic(self.d_k, self.d_v, self.backward, self.latent)

    @property
    def sharing(self) -> int:
        """Query heads that share keys and values."""
        return self.heads // self.kv_heads

    @property
    def ahead(self) -> int:
        """Under a causal mask query i sees the keys up to i + ahead."""
        return self.n_k - self.n_q

    @cached_property
    def own_rows(self) -> list[Tokens]:
        """The tokens of each device's queries."""
        return owned(self.ownership, self.n_q, self.P)

    @cached_property
    def own_keys(self) -> list[Tokens]:
        """The tokens of each device's keys."""
        return self.own_rows if self.n_k == self.n_q else owned(self.ownership, self.n_k, self.P)

    @property
    def most_rows(self) -> int:
        """The most queries of a head that one device owns."""
        return -(-self.n_q // self.P)

    @property
    def most_keys(self) -> int:
        """The most keys of a head that one device owns."""
        return -(-self.n_k // self.P)

    @property
    def pairs(self) -> int:
        """Allowed pairs of one query head."""
        if not self.causal:
            return self.n_q * self.n_k
        rows, seen = min(self.n_q, self.n_k), self.n_k  # rows that see a key, and how many the last of them sees
        return rows * seen - rows * (rows - 1) // 2

    @property
    def line_words(self) -> tuple[int, int]:
        """The words of a row and of a key, inputs and outputs, without the statistics of rows."""
        moved = self.traffic
        statistics = sum(name in moved.rows_in or name in moved.rows_out for name in STATISTICS)
        return int(moved.row) - statistics, int(moved.key)

    def owned_words(self, p: int) -> int:
        """Return the words of all inputs and outputs that device p owns."""
        rows, keys = self.own_rows[p].number, self.own_keys[p].number
        return rows * self.heads * int(self.traffic.row) + keys * self.kv_heads * int(self.traffic.key)
