"""Where the words of two schedules are equal, exactly: over the number of devices, and over heads that share keys."""

from __future__ import annotations

from itertools import product
from typing import Any

import sympy

from pebblesim.core.errors import UnknownName
from pebblesim.parallel.formula import P, a, b, closed_form, d as width, h, h_kv, n, u
from pebblesim.parallel.schedules import SCHEDULES
from pebblesim.parallel.team import traffic

COMPARED = ("ring", "query-ring", "ulysses", "ulysses-rows", "tiles")
"""Schedules with a closed form for real P. Ulysses is cut at P = h_kv, `ulysses-rows` begins there, and tiles have the
best real parts, which cost the same on both sides; they begin where these are no more than P."""


def in_devices(first: str, second: str, *, d: int, heads: int, kv_heads: int, backward: bool = False) -> list[Any]:
    """Return the numbers of devices P > 1 at which two schedules move as many words, as exact real numbers.

    Args:
        first, second: names in `COMPARED`.
        d: words in a row.
        heads, kv_heads: query heads, and KV heads.
        backward: the backward pass.

    >>> in_devices("ring", "ulysses", d=128, heads=64, kv_heads=8)
    [257/28]

    Raises:
        UnknownName: a schedule is not one of those that are compared.
    """
    values = {width: d, h: heads, h_kv: kv_heads}
    moved, x = traffic(d, d, backward), sympy.Symbol("x", positive=True)
    even = sympy.Rational(heads * moved.row, kv_heads * moved.key)  # at P devices √(even P) parts of the queries
    devices = x**2 / even if "tiles" in (first, second) else x
    pieces = [_pieces(name, backward, kv_heads, even) for name in (first, second)]
    found = set()
    for (one, low, high), (other, least, most) in product(*pieces):
        difference = (one - other).subs(a, x).subs(values).subs(P, devices)
        top = sympy.numer(sympy.together(sympy.expand(difference)))
        if top != 0:
            roots = (devices.subs(x, root) for root in sympy.real_roots(sympy.Poly(top, x)) if root > 0)
            found |= {sympy.simplify(root) for root in roots if max(low, least, 1) <= root <= min(high, most)}
    return sorted(found - {1})


def in_sharing(first: str, second: str, *, d: int, backward: bool = False) -> list[Any]:
    """Return the numbers h/h_kv at which two schedules move as many words for every P, as exact numbers.

    Args:
        first, second: "ring" and "query-ring", or one of them twice.
        d: words in a row.
        backward: the backward pass.

    >>> in_sharing("ring", "query-ring", d=128)
    [256/257]

    Raises:
        UnknownName: a schedule is not one of those that are compared.
    """
    gamma = sympy.Symbol("gamma", positive=True)
    (one, *_), (other, *_) = (_pieces(name, backward, 1, 1)[0] for name in (first, second))
    difference = (one - other).subs({width: d, h: gamma * h_kv})
    top = sympy.Poly(sympy.numer(sympy.together(sympy.expand(difference))), gamma)
    return sorted(root for root in sympy.solve(top, gamma) if not root.free_symbols and root > 0)


def _pieces(name: str, backward: bool, kv_heads: Any, even: Any) -> list[tuple[Any, Any, Any]]:
    """The words of a token in closed form, in P (and the parts a of tiles), each with the least and the most P."""
    if name not in COMPARED:
        raise UnknownName("schedule with a crossing", name, COMPARED)
    form = (closed_form(SCHEDULES[name], backward) / n).subs({u: 1 if name == "tiles" else h_kv})
    if name == "ulysses":
        most = sympy.Max(1, h_kv / P)  # KV heads in a device
        return [(form.subs(most, h_kv / P), 1, kv_heads), (form.subs(most, 1), kv_heads, sympy.oo)]
    if name == "ulysses-rows":
        return [(form.subs({a: P / h_kv, b: 1}), kv_heads, sympy.oo)]
    return [(form.subs(b, P / a), even if name == "tiles" else 1, sympy.oo)]
