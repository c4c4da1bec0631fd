"""Devices that compute attention together: sizes, what they own, and what a row and a key cost to move."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import whole
from pebblesim.counting.heads import Heads
from pebblesim.parallel.tokens import Tokens, owned

MOST_DEVICES = 1024
"""Every device is counted for itself."""

STATISTICS = ("L", "D")
"""One word for each row: L = log Σ exp(S), and D, the row sums of dO ∘ O."""


class Traffic(NamedTuple):
    """Tensors with a line for each query, or for each key, of a head. A device moves it unless it owns the token."""

    rows_in: tuple[str, ...]
    rows_out: tuple[str, ...]
    keys_in: tuple[str, ...]
    keys_out: tuple[str, ...]

    def row(self, d: Any) -> Any:
        """Return the words of a row, received and sent."""
        return sum(words(name, d) for name in self.rows_in + self.rows_out)

    def key(self, d: Any) -> Any:
        """Return the words of a key, received and sent."""
        return sum(words(name, d) for name in self.keys_in + self.keys_out)


FORWARD = Traffic(("Q",), ("O", "L"), ("K", "V"), ())
BACKWARD = Traffic(("Q", "dO", "L", "D"), ("dQ",), ("K", "V"), ("dK", "dV"))


def words(tensor: str, d: Any) -> Any:
    """Return the words that a tensor has for one token of one head."""
    return 1 if tensor in STATISTICS else d


@dataclass(frozen=True)
class Team:
    """P devices with n tokens of h heads of queries and h_kv heads of keys and values, each of d words.

    Raises:
        UsageError: a size is not allowed, or heads cannot be shared evenly.
    """

    n: int
    d: int
    heads: int
    kv_heads: int
    P: int
    backward: bool = False
    causal: bool = False
    ownership: str = "contiguous"

    def __post_init__(self) -> None:
        for name in ("n", "d", "heads", "kv_heads", "P"):
            whole(name, getattr(self, name))
        Heads(self.heads, self.kv_heads)
        if self.P > MOST_DEVICES:
            raise UsageError(f"P = {self.P:,} was given; up to {MOST_DEVICES:,} devices are counted, each for itself.")

    @property
    def traffic(self) -> Traffic:
        return BACKWARD if self.backward else FORWARD

    @property
    def sharing(self) -> int:
        """Heads of queries that share keys and values."""
        return self.heads // self.kv_heads

    @cached_property
    def own(self) -> list[Tokens]:
        """The tokens of each device."""
        return owned(self.ownership, self.n, self.P)

    @property
    def most_owned(self) -> int:
        """The most tokens that one device owns."""
        return -(-self.n // self.P)

    @property
    def pairs(self) -> int:
        """Allowed pairs of one head of queries."""
        return self.n * (self.n + 1) // 2 if self.causal else self.n**2

    def owned_words(self, tokens: int) -> int:
        """Return the words of all inputs and outputs of this number of tokens."""
        moved = self.traffic
        return tokens * (self.heads * int(moved.row(self.d)) + self.kv_heads * int(moved.key(self.d)))
