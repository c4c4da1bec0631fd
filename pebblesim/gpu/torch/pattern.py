"""The pairs of queries and keys that kernels are compiled for: without PyTorch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pebblesim.core.errors import UsageError
from pebblesim.gpu.advice.cards import Card
from pebblesim.gpu.domains import Call
from pebblesim.gpu.emit.key_ranges import KeyRanges
from pebblesim.gpu.torch.sizes import is_count
from pebblesim.language.masks import Band

LONG = 2**20
"""Limits of j - i from here on are left out where they leave out no pair."""


class Pattern(NamedTuple):
    """The pairs that kernels are compiled for.

    Attributes:
        left, right: key j is allowed for query i if -left ≤ j - i ≤ right; None is no limit.
        at_end: the last query is at the last key, and not the first one at the first key.
        shared: query heads that share keys: rows at each position.
        ranged: kernels read the range of keys of each query.
        softcap: scores are capped so; 0 if they are not.
        same_bits: results are to be the same to the last bit at each call: no sums whose order is not fixed.
        gluon: whether the kernels for Hopper can run.
    """

    left: int | None = None
    right: int | None = None
    at_end: bool = False
    shared: int = 1
    ranged: bool = False
    softcap: float = 0.0
    same_bits: bool = False
    gluon: bool = True

    def call(self, dims: Iterable[tuple[str, int]], dtype: str, card: Card) -> Call:
        """The call that kernels are found for, with these dimensions and on this card."""
        capability = card.capability if self.gluon else ""
        call = Call(dict(dims), self.mask, dtype=dtype, card=card.name, capability=capability)
        return call._replace(shared=self.shared, softcap=self.softcap, same_bits=self.same_bits)

    @property
    def masked(self) -> bool:
        """Whether kernels are written for a mask."""
        return self.ranged or self.left is not None or self.right is not None

    @property
    def mask(self) -> Band | None:
        """The mask that kernels are written for, in rows of queries."""
        return KeyRanges(rows=self.shared) if self.ranged else self.band

    @property
    def band(self) -> Band | None:
        """The mask that forecasts are made for: for ranges a causal one, since they are known to the GPU alone."""
        if self.ranged:
            return Band("key ranges", None, 0, True, self.shared)
        if self.left is None and self.right is None:
            return None
        name = "causal" if self.left is None and self.right == 0 else f"window:{self.left}:{self.right}"
        return Band(name, self.left, self.right, not self.at_end, self.shared)

    def at(self, n_q: int, n_k: int) -> Pattern:
        """The pattern for so many queries and keys: without limits from `LONG` on that leave out no pair of them.

        Kernels add limits to positions, in 32 bits. Shorter ones stay, so that other lengths need no other kernels.
        """
        left, right = (
            None if each is not None and each >= LONG and each >= n_q + n_k else each
            for each in (self.left, self.right)
        )
        return self._replace(left=left, right=right)


def limits(window: tuple[int | None, int | None] | None, causal: bool, align: str, shared: int) -> Pattern:
    """The pattern of a window and a causal mask together.

    Args:
        window: keys before and after each query that it may attend to; None or -1 is no limit.
        causal: no later keys.
        align: "start" if the first query is at the first key, "end" if the last query is at the last key.
        shared: query heads that share keys.

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
            f"window is {window!r}; give (left, right), numbers of keys before and after each query below 2^31, or "
            "None where there is no limit."
        )
    left, right = (
        None if each is None or each == -1 else each if isinstance(each, int) else int(each)
        for each in window or (None, None)
    )
    right = 0 if causal else right
    return Pattern(left, right, align == "end" and (left is not None or right is not None), shared)
