"""The probability of each tile of attention, and the order in which a rule leaves tiles out.

P_ij = exp(S_ij - L_i) sums to 1 over each row i. The forward pass records, for each row and each tile J of columns,
the row's log-sum-exp over the tile, LSE_iJ; then p_iJ = exp(LSE_iJ - L_i) is the probability that row i has in the
tile, and the sum of p_iJ over the rows of a tile is the tile's weight, Σ P_ij.

A rule gives each tile a level. The tile is left out if the rule's parameter reaches the level (for a threshold: exceeds
it).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import UsageError

Array = NDArray[Any]

RULES = {
    "head": "the lightest tiles of all, as long as their weights sum to at most ε of the total",
    "row": "in each row of tiles the lightest, as long as their weights sum to at most ε of the row's",
    "threshold": "the tiles in which exp(LSE_tile - LSE_row) is below the threshold for every row",
}


def row_weights(Q: Array, K: Array, L: Array, B_r: int, B_c: int) -> Array:
    """Compute p_iJ, the probability of each row in each tile of B_c columns, shape (n, ⌈n/B_c⌉).

    Scores are computed tile by tile, as in the backward pass, so a weight of 0 is also 0 there.
    """
    n = len(Q)
    p = np.empty((n, -(-n // B_c)))
    for j, column in enumerate(range(0, n, B_c)):
        K_j = K[column : column + B_c]
        for row in range(0, n, B_r):
            rows = slice(row, row + B_r)
            p[rows, j] = np.exp(Q[rows] @ K_j.T - L[rows, None]).sum(axis=1)
    return p


@dataclass(frozen=True)
class Levels:
    """For each tile, the value of a rule's parameter from which on the tile is left out.

    Attributes:
        rule: one of `RULES`.
        table: a level for each tile, shape (T_r, T_c).
        weights: Σ P_ij of each tile.
    """

    rule: str
    table: Array = field(repr=False)
    weights: Array = field(repr=False)

    def kept(self, parameter: float) -> Array:
        """Return the remaining tiles: booleans of shape (T_r, T_c)."""
        return self.table >= parameter if self.rule == "threshold" else self.table > parameter

    def share(self, kept: Array) -> float:
        """Return the fraction of all weight in the left-out tiles."""
        return float(self.weights[~kept].sum() / self.weights.sum())


def allowed(rule: str, parameter: float) -> float:
    """Return the parameter of a rule, if it is allowed.

    Raises:
        UsageError: it is not allowed.
    """
    if rule == "threshold" and not 0 <= parameter <= 1:
        raise UsageError(f"threshold {parameter:g} was given; a threshold is a probability, from 0 to 1.")
    if rule != "threshold" and not 0 <= parameter < 1:
        raise UsageError(f"ε = {parameter:g} was given; it is the fraction that may be left out, from 0 to below 1.")
    return float(parameter)


def levels(rule: str, p: Array, B_r: int) -> Levels:
    """Compute the levels of all tiles.

    Args:
        rule: one of `RULES`. Among tiles of equal weight, "head" and "row" leave out the first one first.
        p: the result of `row_weights`.
        B_r: rows in a tile.
    """
    starts = np.arange(0, len(p), B_r)
    weights = np.add.reduceat(p, starts, axis=0)
    if rule == "threshold":
        table = np.maximum.reduceat(p, starts, axis=0)
    elif rule == "row":
        table = _budget(weights)
    else:
        table = _budget(weights.reshape(1, -1)).reshape(weights.shape)
    return Levels(rule, table, weights)


def _budget(weights: Array) -> Array:
    """For each entry of a line, the fraction of the line's sum in this entry and all lighter ones."""
    order = np.argsort(weights, axis=1, kind="stable")
    sums = np.cumsum(np.take_along_axis(weights, order, axis=1), axis=1)
    fractions = np.empty_like(weights)
    np.put_along_axis(fractions, order, sums / sums[:, -1:], axis=1)
    return fractions
