"""Certificates that X families give at most w (X/3)^(3/2) products, however they are split, in exact arithmetic.

The inequalities and their proofs are in docs/lower-bounds.md, "Several products that share matrices". A certificate
names the private families. It is found by a search over all choices, and checked with integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations

Weighted = tuple[tuple[str, str, str], int]
"""The three families of a product, and the weight with which each elementary product counts."""

_Joining = tuple[frozenset[str], str, int]
"""The two families that a product joins, its private family, and its weight."""


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
    at most w², or the component is a chain (`_is_chain`).
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
    together: dict[str, list[_Joining]] = {}
    for pair, owner, (_, weight) in zip(joined, owners, products, strict=True):
        together.setdefault(components[pair[0]], []).append((frozenset(pair), owner, weight))
    return all(_within(each, w) or _is_chain(each, w) for each in together.values())


def in_columns(products: Iterable[tuple[str, tuple[str, str]]]) -> bool:
    """Whether no component has two products of one private family, so that `Columns` is a capacity.

    Args:
        products: of each, its private family, which is one of pairs, and the two families that it joins.
    """
    owners, joined = zip(*products, strict=True)
    components = _components(joined)
    if components is None:
        return False
    places = [(components[left], owner) for owner, (left, _) in zip(owners, joined, strict=True)]
    return len({*places}) == len(places)


def _within(component: Iterable[_Joining], w: int) -> bool:
    """Whether Σ weight² over the products of each private family is at most w²."""
    squares = Counter[str]()
    for _, owner, weight in component:
        squares[owner] += weight**2
    return all(square <= w**2 for square in squares.values())


def _is_chain(component: Sequence[_Joining], w: int) -> bool:
    """Whether three products join four families one after another, and the middle one weighs little enough.

    The outer two belong to one private family and weigh a at most, the middle one to another and weighs s, with
    w²s² ≤ 4a²(w² - a²).
    """
    if len(component) != 3:
        return False
    for middle in component:
        one, other = (each for each in component if each is not middle)
        if one[0].isdisjoint(other[0]) and one[1] == other[1] != middle[1]:
            a, s = max(one[2], other[2]), middle[2]
            return w**2 * s**2 <= 4 * a**2 * (w**2 - a**2)
    return False


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
