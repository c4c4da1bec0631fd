"""Sums over all that a program does, without running its loops.

All tiles of a range but the last are alike: what a loop's body amounts to for a full tile counts as often as there
are full tiles, and what it amounts to for the last one counts once. Sizes may be astronomically large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable

from pebblesim import program as ir

Words = Callable[[ir.Ranges], int]
Amounts = Callable[[ir.Node, Words], Iterable[tuple[Hashable, int]]]


def words(ranges: ir.Ranges, sizes: ir.Sizes, lengths: dict[ir.Range, int]) -> int:
    """Number of elements of a tile, for the present lengths of the ranges around it."""
    product = 1
    for rng in ranges:
        product *= sizes[rng.name] if rng.parent is None else lengths[rng]
    return product


def totals(body: list[ir.Node], sizes: ir.Sizes, amounts: Amounts) -> Counter[Hashable]:
    """The sum of what each primitive amounts to, by key; `amounts(node, words)` gives (key, amount) pairs."""
    return _totals(body, sizes, amounts, {})


def _totals(body: list[ir.Node], sizes: ir.Sizes, amounts: Amounts, lengths: dict[ir.Range, int]) -> Counter[Hashable]:
    found: Counter[Hashable] = Counter()
    for node in body:
        if isinstance(node, ir.Loop):
            rng = node.range
            assert rng.parent is not None
            whole, block = words((rng.parent,), sizes, lengths), ir.length(rng.block, sizes)
            full_tiles = (whole - 1) // block
            for times, length in ((full_tiles, block), (1, whole - full_tiles * block)):
                if times:
                    lengths[rng] = length
                    for key, amount in _totals(node.body, sizes, amounts, lengths).items():
                        found[key] += amount * times
        else:
            for key, amount in amounts(node, lambda ranges: words(ranges, sizes, lengths)):
                found[key] += amount
    return found
