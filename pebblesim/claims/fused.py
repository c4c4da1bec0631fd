"""A game that moves fewer words than a published lower bound, on the graph of that bound.

Kwasniewski et al. 2019 (COSMA, arXiv 1908.09606), Theorem 1: any pebbling of a product C = A B of an m x k and a k x n
matrix with S red pebbles moves at least 2mnk/√S + mn words. Their graph has a vertex for each fused multiply-add,
C[i,j,t] from A[i,t], B[t,j] and C[i,j,t-1]. A game that keeps p = ⌊(S - k - 2)/k⌋ rows of A, a column of B and two
partial sums in cache needs mk + kn⌈m/p⌉ + mn words, which is less if k is small compared with √S. The proof assumes
that each entry of C enters a segment with an earlier partial sum, which is true for C += A B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from pebblesim.core.errors import Infeasible
from pebblesim.core.sizes import whole
from pebblesim.game.moves import COMPUTE, DELETE, READ, WRITE, pack
from pebblesim.game.referee import Game, referee

Ids = NDArray[np.int64]


class FusedProduct:
    """The graph of C = A B in fused multiply-adds: A[i,t], then B[t,j], then C[i,j,t], each in row-major order."""

    def __init__(self, m: int, k: int, n: int) -> None:
        self.m, self.k, self.n = whole("m", m), whole("k", k), whole("n", n)
        self.vertices = m * k + k * n + m * n * k
        i, j, t = (axis.ravel() for axis in np.indices((m, n, k)))
        last = self.sums(i, j, t) - 1
        operands = np.stack([self.of_A(i, t), self.of_B(t, j), last], axis=1)
        present = np.ones_like(operands, dtype=bool)
        present[:, 2] = t > 0
        degrees = np.concatenate([np.zeros(m * k + k * n, dtype=np.int64), present.sum(axis=1)])
        self.indptr: Ids = np.append(0, np.cumsum(degrees))
        self.preds: Ids = operands[present]
        self.edges = len(self.preds)
        self.inputs: Ids = np.arange(m * k + k * n)
        self.outputs: Ids = self.sums(i, j, t)[t == k - 1]

    def of_A(self, i: Ids | int, t: Ids | int) -> Ids:
        """Ids of A[i,t]."""
        return np.asarray(i * self.k + t)

    def of_B(self, t: Ids | int, j: Ids | int) -> Ids:
        """Ids of B[t,j]."""
        return np.asarray(self.m * self.k + t * self.n + j)

    def sums(self, i: Ids | int, j: Ids | int, t: Ids | int) -> Ids:
        """Ids of C[i,j,t], the sum of the terms 0 ... t of C[i,j]."""
        return np.asarray((self.m + self.n) * self.k + (i * self.n + j) * self.k + t)

    def describe(self, v: int) -> str:
        """Return the name of vertex v."""
        if v < self.m * self.k:
            return f"A[{v // self.k},{v % self.k}]"
        v -= self.m * self.k
        if v < self.k * self.n:
            return f"B[{v // self.n},{v % self.n}]"
        entry, t = divmod(v - self.k * self.n, self.k)
        return f"C[{entry // self.n},{entry % self.n}] (sum {t + 1} of {self.k})"


@dataclass(frozen=True)
class Undercut:
    """A game with the referee's result, and the claimed lower bound.

    Attributes:
        m, k, n, S: the sizes.
        game: the referee's result.
    """

    m: int
    k: int
    n: int
    S: int
    game: Game

    @property
    def claimed(self) -> int:
        """⌈2mnk/√S⌉ + mn: the least I/O if the theorem were true."""
        products = 2 * self.m * self.k * self.n
        return isqrt(products**2 // self.S - (products**2 % self.S == 0)) + 1 + self.m * self.n

    @property
    def holds(self) -> bool:
        """Whether the game is legal and complete, S is below the size of each matrix, and the I/O below `claimed`."""
        asked = min(self.m * self.n, self.m * self.k, self.k * self.n) > self.S
        return asked and self.game.complete and self.game.io < self.claimed


@cache  # its parts are asked for one by one
def undercut(m: int = 25, k: int = 3, n: int = 25, S: int = 20) -> Undercut:
    """Play the game.

    >>> found = undercut()
    >>> found.game.io, found.claimed, found.holds
    (1075, 1464, True)

    Raises:
        Infeasible: S is too small for a row of A, a column of B and two sums.
    """
    graph = FusedProduct(m, k, n)
    p = (whole("S", S) - k - 2) // k
    if p < 1:
        raise Infeasible(f"S = {S} red pebbles are too few for k = {k}; this game needs S ≥ {2 * k + 2}.", 2 * k + 2)
    return Undercut(m, k, n, S, referee(graph, S, _moves(graph, p)))


def _moves(graph: FusedProduct, p: int) -> Iterator[Ids]:
    """Yield the moves, one chunk for each column of B; the columns follow each other for each group of p rows of A."""
    k, terms = graph.k, np.arange(graph.k)
    for first in range(0, graph.m, p):
        rows = range(first, min(first + p, graph.m))
        resident = np.concatenate([graph.of_A(i, terms) for i in rows])
        yield pack(READ, resident)
        for j in range(graph.n):
            column = graph.of_B(terms, j)
            chunk = [pack(READ, column)]
            for i in rows:
                sums = graph.sums(i, j, terms)
                steps = np.stack([pack(COMPUTE, sums), pack(DELETE, sums - 1)], axis=1).ravel()
                chunk.append(np.delete(steps, 1))  # there is no sum before the first one to delete
                chunk.append(np.array([pack(WRITE, sums[k - 1]), pack(DELETE, sums[k - 1])]))
            yield np.concatenate([*chunk, pack(DELETE, column)])
        yield pack(DELETE, resident)
