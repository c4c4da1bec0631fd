"""Sums in place: a term is added to a chain of sums in one step, a multiply-add, which takes the place of the sum.

The graph is that of chains. A product (or term) that is added to a sum takes no word, and a new sum may take over the
pebble of the one before. So a game has at most two pebbles fewer than on chains, and its moves are the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pebblesim.graphs.cdag import Cdag, sections
from pebblesim.graphs.operations import Op


def in_place(graph: Cdag) -> Cdag:
    """Return the graph of chains with `weights` and `takes_over` for sums in place."""
    firsts, families, _ = zip(*sections(graph.families), strict=True)
    ends = np.append(firsts[1:], graph.vertices)
    of_sum = np.repeat([family.terms > 0 for family in families], ends - firsts)
    sums = np.flatnonzero(of_sum & np.isin(graph.op, (Op.ADD, Op.MAX)))
    weights, takes_over = np.ones(graph.vertices, np.int64), np.full(graph.vertices, -1)
    before, term = graph.preds[graph.indptr[sums]], graph.preds[graph.indptr[sums] + 1]
    takes_over[sums], weights[term] = before, 0
    return replace(graph, weights=weights, takes_over=takes_over)
