"""Closed forms of what a device moves, from the text of a schedule; n is a multiple of P, all pairs are allowed."""

from __future__ import annotations

import sympy

from pebblesim.parallel.schedules import IN_PASSES, Letters, Parallel
from pebblesim.parallel.team import BACKWARD, FORWARD


def closed_form(schedule: Parallel, backward: bool = False) -> sympy.Expr:
    """Return the words that every device moves, in n, d, h, h_kv and P; a, b and u if the schedule leaves them open.

    `tiles-in-passes` has M, too.
    """
    n, d, h, h_kv, P, u, a, b, M = sympy.symbols("n d h h_kv P u a b M")
    split = schedule.split(Letters(P, h, h_kv, u, a, b))
    traffic = BACKWARD if backward else FORWARD
    heads = h / split.heads
    kv_heads = h_kv if split.heads == 1 else sympy.Max(1, h_kv / split.heads)
    rows, keys = n / split.rows - n / P, n / split.keys - n / P
    passes: sympy.Expr = sympy.Integer(1)
    if schedule.order == IN_PASSES:
        own = n / P * (h * traffic.row(d) + h_kv * traffic.key(d))
        at_once = sympy.floor((M - own - traffic.key(d)) / traffic.row(d))
        passes = sympy.Max(1, sympy.ceiling(heads / kv_heads * rows / at_once))
    return heads * traffic.row(d) * rows + kv_heads * traffic.key(d) * keys * passes
