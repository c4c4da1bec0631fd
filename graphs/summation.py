"""Summation trees: the order in which the terms of a sum are added, as stated in `pebblesim.game.numbering`.

Everything here is about one element of a sum with k terms, tree block b and, optionally, a constant 0 to start from.
Offsets count from the element's first vertex: terms at 0 ... k-1, then the constant, then the partial sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.sums import unknown_summation

Kind = Literal["value", "term", "zero", "initial", "disallowed", "empty", "running", "inner"]

PARTS: Final[dict[Kind, tuple[str, str]]] = {
    "value": ("", "the final value of an element"),
    "term": ("product 2 of 4", "one term of a sum: in a matrix product, the product of two entries"),
    "running": ("sum 2 of 4", "the sum of the first terms of a sum; the last one is the final value"),
    "inner": ("sum of terms 3-4 of 4", "the sum of some neighbouring terms, in a sum with a balanced tree"),
    "zero": ("zero", "the constant 0 that a sum in memory starts from"),
    "initial": ("initial", "the constant that a running value starts from: 0 for a sum, −∞ for a maximum"),
    "disallowed": ("not allowed", "the constant 0 of a pair that the mask forbids"),
    "empty": ("no terms", "the constant of a row or column in which the mask allows no pair"),
}
"""The roles of a vertex within its element: an example of the text after the element's name, and its meaning."""


@dataclass(frozen=True, slots=True)
class Role:
    """The role of a vertex within its element. Terms are counted from 0; `stop` is excluded.

    Attributes:
        kind: "value" (the final value of the element), "term", "zero" (the constant), "initial" (the constant a running
            value starts from), "disallowed" (the constant of a pair that a mask forbids), "empty" (the constant of a
            row or column without allowed pairs), "running" (the total of all tree blocks so far) or "inner" (a partial
            sum inside a tree block).
        first, stop: the terms it covers; both 0 for a constant.
        terms: k, the number of terms of the whole sum; 0 if the family is not a sum.
    """

    kind: Kind
    first: int = 0
    stop: int = 0
    terms: int = 0


def tree_block(summation: str) -> int | None:
    """Return the tree block of a `summation` argument; None for "balanced", where one block holds the whole sum.

    Raises:
        UsageError: it is not "chain", "balanced" or "blocked:b" with b ≥ 1.
    """
    if summation == "chain":
        return 1
    if summation == "balanced":
        return None
    kind, _, block = str(summation).partition(":")
    if kind != "blocked" or not (block.isascii() and block.isdigit()) or int(block) < 1:
        raise unknown_summation(summation, ("chain", "balanced", "blocked:b"))
    return int(block)


def tree(k: int, b: int, start: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the offsets of the left and right predecessors of each partial sum, in the order of the numbering."""
    left, right = np.empty(k, dtype=np.int64), np.empty(k, dtype=np.int64)
    whole = k // b
    _fill_blocks(left, right, np.arange(whole) * b, b, k)
    if k % b:
        _fill_blocks(left, right, np.array([whole * b]), k % b, k)
    if start:
        return left, right
    # Without a constant the running total of the first block has no vertex, and the vertices after it move up.
    # References to it mean the block's last inner sum or, for a block of one term, that term.
    gone = min(b, k) - 1
    place = np.arange(k)
    moved = np.concatenate([np.arange(k + 1), k + place - (place >= gone)])
    if gone == 0:
        moved[k + 1] = 0
    return moved[np.delete(left, gone)], moved[np.delete(right, gone)]


def _fill_blocks(left: NDArray[np.int64], right: NDArray[np.int64], at: NDArray[np.int64], m: int, k: int) -> None:
    """Fill in the m sums of each tree block of m terms that begins at a term of `at`, as if each sum had a start."""
    nodes, filled = at + np.arange(m)[:, None], 0
    while len(nodes) > 1:
        pairs = len(nodes) // 2
        here = at + filled + np.arange(pairs)[:, None]
        left[here], right[here] = nodes[0 : 2 * pairs : 2], nodes[1::2]
        nodes, filled = np.concatenate([k + 1 + here, nodes[2 * pairs :]]), filled + pairs
    left[at + m - 1] = k + at  # the running total of the previous block; for the first block, the constant
    right[at + m - 1] = nodes[0]


def role(offset: int, k: int, b: int, start: bool) -> Role:
    """Return the role of the vertex at this offset of an element."""
    if offset == 2 * k - (0 if start else 2):
        return Role("value", 0, k, k)
    if offset < k:
        return Role("term", offset, offset + 1, k)
    if start and offset == k:
        return Role("zero", 0, 0, k)
    place = offset - k - start
    if not start and place >= min(b, k) - 1:
        place += 1  # the missing running total of the first block
    begin = place - place % b
    m, place = min(b, k - begin), place % b
    if place == m - 1:
        return Role("running", 0, begin + m, k)
    span, width = 2, m  # every sum of a layer spans `span` terms; the layer below has `width` vertices
    while place >= width // 2:
        place -= width // 2
        span, width = 2 * span, (width + 1) // 2
    return Role("inner", begin + place * span, begin + min((place + 1) * span, m), k)
