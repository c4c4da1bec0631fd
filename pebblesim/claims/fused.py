"""A game that moves fewer words than a published lower bound, on the graph of that bound.

Kwasniewski et al. 2019 (COSMA, arXiv 1908.09606), Theorem 1: any pebbling of a product C = A B of an m x k and a k x n
matrix with S red pebbles moves at least 2mnk/√S + mn words. Their graph has a vertex for each fused multiply-add,
C[i,j,t] from A[i,t], B[t,j] and C[i,j,t-1]. A game that keeps p = ⌊(S - k - 2)/k⌋ rows of A, a column of B and two
partial sums in cache needs mk + kn⌈m/p⌉ + mn words, which is less if k is small compared with √S. The proof assumes
that each entry of C enters a segment with an earlier partial sum, which is true for C += A B.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import isqrt

from pebblesim.claims.playing import Playing
from pebblesim.core.errors import Infeasible
from pebblesim.core.sizes import whole
from pebblesim.game.referee import Game


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
    p = (whole("S", S) - k - 2) // k
    if p < 1:
        raise Infeasible(f"S = {S} red pebbles are too few for k = {k}; this game needs S ≥ {2 * k + 2}.", 2 * k + 2)
    return Undercut(m, k, n, S, played(whole("m", m), whole("k", k), whole("n", n), p).judged(S))


def played(m: int, k: int, n: int, p: int) -> Playing:
    """Play C = A B in fused multiply-adds, p rows of A at a time; inputs are rows of A, then columns of B."""
    play = Playing()
    A, B = [play.new(k) for _ in range(m)], [play.new(k) for _ in range(n)]
    for first in range(0, m, p):
        rows = A[first : first + p]
        for row in rows:
            play.read(*row)
        for column in B:
            play.read(*column)
            for row in rows:
                total = play.make(row[0], column[0])
                for a, b in zip(row[1:], column[1:], strict=True):
                    total = play.make(a, b, total, dropping=(total,))
                play.write(total)
            play.drop(*column)
        for row in rows:
            play.drop(*row)
    return play
