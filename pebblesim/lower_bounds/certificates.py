"""Certificates that X families give at most w (X/3)^(3/2) products, however they are split, in exact arithmetic.

The inequality and its proof are in docs/lower-bounds.md, "Several products that share matrices". A certificate names
the private families. It is found by a search over all choices, and checked with integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations

Weighted = tuple[tuple[str, str, str], int]
"""The three families of a product, and the weight with which each elementary product counts."""


@cache
def private_families(
    products: tuple[Weighted, ...], w: int, among: frozenset[str] | None = None
) -> frozenset[str] | None:
    """Return families that prove Σ weight·√(abc) ≤ w (X/3)^(3/2), where all sizes a, b, … sum to X; None if there are
    none.

    Args:
        products: the counted products.
        w: the weight w of the capacity.
        among: the families that may be private; all by default. Only these may weigh less than 1.
    """
    names = sorted({name for families, _ in products for name in families})
    choices = names if among is None else sorted(among.intersection(names))
    for size in range(1, len(choices) + 1):
        for private in combinations(choices, size):
            if proves(products, w, frozenset(private)):
                return frozenset(private)
    return None


def proves(products: Sequence[Weighted], w: int, private: frozenset[str]) -> bool:
    """Whether this choice of private families is a certificate.

    Each product has exactly one private family. The other families have two sides; each product joins two of different
    sides, and no two products join the same two. In each component, Σ weight² over the products of a private family is
    at most w².
    """
    joined: list[tuple[str, str]] = []
    owners: list[str] = []
    for families, _ in products:
        own = [name for name in families if name in private]
        if len(own) != 1:
            return False
        owners += own
        left, right = sorted(name for name in families if name not in private)
        joined.append((left, right))
    components = _components(joined)
    if components is None or len({*joined}) < len(joined):
        return False
    squares = Counter[tuple[str, str]]()
    for (left, _), owner, (_, weight) in zip(joined, owners, products, strict=True):
        squares[components[left], owner] += weight**2
    return all(square <= w**2 for square in squares.values())


def _components(edges: Iterable[tuple[str, str]]) -> dict[str, str] | None:
    """Map each name to the first of its component; None if there is an odd cycle, so that there are no two sides."""
    neighbours: dict[str, set[str]] = {}
    for one, other in edges:
        neighbours.setdefault(one, set()).add(other)
        neighbours.setdefault(other, set()).add(one)
    component: dict[str, str] = {}
    side: dict[str, int] = {}
    for first in neighbours:
        if first in component:
            continue
        component[first], side[first], stack = first, 0, [first]
        while stack:
            here = stack.pop()
            for there in neighbours[here]:
                if there not in component:
                    component[there], side[there] = first, 1 - side[here]
                    stack.append(there)
                elif side[there] == side[here]:
                    return None
    return component
