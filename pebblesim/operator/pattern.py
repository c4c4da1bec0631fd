"""The pairs of queries and keys that kernels are compiled for: without PyTorch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pebblesim.advice.cards import Card
from pebblesim.core.errors import UsageError
from pebblesim.kernels.domains import Call
from pebblesim.language.masks import Band
from pebblesim.operator.sizes import is_count

LONG = 2**20
"""Limits of j - i from here on are left out where they leave out no pair."""


class Pattern(NamedTuple):
    """The pairs that kernels are compiled for, and what else decides which kernels these are.

    Attributes:
        mask: the allowed pairs of rows and keys, or that kernels read them; None for all.
        shared: query heads that share keys: rows at each position.
        softcap: scores are capped so; 0 if they are not.
        same_bits: results are to be the same to the last bit at each call: no sums whose order is not fixed.
        gluon: whether the kernels for Hopper can run.
        sinks: whether softmaxes begin with sinks; kernels of backward passes then return row sums, too. It says what is
            compiled, and not what is chosen.
        apart: whether gradients of keys are parts of sums, in float32; it says what is compiled, too.
        in_shares: whether blocks have shares of the terms of these sums; it says what is compiled, too.
    """

    mask: Band | None = None
    shared: int = 1
    softcap: float = 0.0
    same_bits: bool = False
    gluon: bool = True
    sinks: bool = False
    apart: bool = False
    in_shares: bool = False

    def call(self, dims: Iterable[tuple[str, int]], dtype: str, card: Card) -> Call:
        """The call that kernels are found for, with these dimensions and on this card."""
        capability = card.capability if self.gluon else ""
        call = Call(dict(dims), self.mask, dtype=dtype, card=card.name, capability=capability)
        return call._replace(shared=self.shared, softcap=self.softcap, same_bits=self.same_bits)


Within = tuple[int | None, int | None, bool]
"""(left, right, at_end): key j is allowed for query i if -left ≤ j - i ≤ right; None is no limit.

With `at_end` the last query is at the last key, and not the first one at the first key.
"""


def band_of(left: int | None = None, right: int | None = None, at_end: bool = False, rows: int = 1) -> Band | None:
    """The mask of limits, with so many rows at each position."""
    if left is None and right is None:
        return None
    name = "causal" if left is None and right == 0 else f"window:{left}:{right}"
    return Band(name, left, right, at_end=at_end, rows=rows)


def limits(window: tuple[int | None, int | None] | None, causal: bool, align: str, n_q: int, n_k: int) -> Within:
    """The limits of a window and a causal mask together, without those from `LONG` on that leave out no pair.

    Kernels add limits to positions, in 32 bits. Shorter ones stay, so that other lengths need no other kernels.

    Args:
        window: keys before and after each query that it may attend to; None or -1 is no limit.
        causal: no later keys.
        align: "start" if the first query is at the first key, "end" if the last query is at the last key.
        n_q, n_k: numbers of queries and keys.

    Raises:
        UsageError: a limit is no number of keys, or the alignment is unknown.
    """
    if align not in ("start", "end"):
        raise UsageError(
            f'align is {align!r}; give "start" or "end": where the first or the last queries and keys meet.'
        )
    if window is not None and (
        not isinstance(window, tuple | list)
        or len(window) != 2
        or not all(each is None or is_count(each, 2**31, -1) for each in window)
    ):
        raise UsageError(
            f"window is {window!r}; give (left, right), numbers of keys before and after each query from 0 to below "
            "2^31, or None or -1 where there is no limit."
        )
    left, right = (
        None if each is None or each == -1 else each if isinstance(each, int) else int(each)
        for each in window or (None, None)
    )
    right = 0 if causal else right
    at_end = align == "end" and (left is not None or right is not None)
    left, right = (None if each is not None and each >= LONG and each >= n_q + n_k else each for each in (left, right))
    return left, right, at_end
