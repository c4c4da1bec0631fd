"""Lower bounds where the sums between pairs and an output may be cut into parts: D7 in docs/lower-bounds.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

from pebblesim.lower_bounds.closed_forms import scaled, subtracted
from pebblesim.lower_bounds.cutting import Cutting, CuttingBound, with_other_weights

FULL = 100
"""The weight w of a product of q."""

ROWS = (
    (Fraction(14, 15), 90, 64),
    (Fraction(4, 5), 89, 74),
    (Fraction(2, 3), 90, 83),
    (Fraction(11, 20), 91, 91),
    (Fraction(1, 2), 92, 93),
    (Fraction(3, 8), 96, 96),
    (Fraction(1, 4), 97, 99),
    (Fraction(1, 8), 99, 99),
)
"""ε, and for √(X/3) ≤ ε d the weights of a product of scores and of one with p, where one of q weighs `FULL`."""

ONE_FAMILY = (
    (Fraction(13, 10), 94, 9),
    (Fraction(6, 5), 92, 13),
    (Fraction(11, 10), 90, 17),
    (Fraction(1), 86, 24),
)
"""ε and the weights of `ROWS` where both trees of a pair are one family, so that only one of them is taken off."""


def at_peak(M: int) -> int:
    """Return T = ⌈13M/5⌉, about the least for which carried parts of sums of one element add nothing."""
    return -(-13 * M // 5)


@dataclass(frozen=True)
class Parts:
    """w (X/3)^(3/2), for X ≤ 3(εd)²: products of scores, of q and with p, and what stands for parts of sums.

    Up to M - 1 of the X families may besides be carried parts, each worth the products of a segment ÷ its starts.
    """

    d: int
    scale: Fraction

    @property
    def most(self) -> Fraction:
        """The largest X for which it is proved."""
        return 3 * (self.scale * self.d) ** 2

    @property
    def tree(self) -> Fraction:
        """The products that a tree must have, so that making it again costs too much, for which it is proved."""
        return 6 * FULL * self.scale * self.d / 13

    def square(self, M: int, T: int) -> tuple[int, int]:
        """The square of G, where G = G₀(T) + (M - 1) G/T if M - 1 families are such parts, else G₀(M - 1 + T).

        It is (numerator, denominator), as a bound is asked for thousands of times while blocks are searched.
        """
        others = (T - M + 1) ** 2
        return FULL**2 * max((M - 1 + T) ** 3 * others, T**5), 27 * others

    def __call__(self, X: int) -> int:
        return isqrt(FULL**2 * X**3 // 27)

    def turns(self, M: int) -> Iterator[int]:
        yield M - 1 + at_peak(M)


def least_words_of_parts(products: int, capacity: Parts, M: int, free: int) -> int | None:
    """Return the largest bound of the cutting argument, or None if there is none.

    Args:
        products: N, the weight of the products that must be evaluated, parts of sums among them.
        capacity: G.
        M: red pebbles.
        free: number of the pairs' trees that can be computed without moving a word.
    """
    best, (tree, parts_of_tree), most = None, capacity.tree.as_integer_ratio(), capacity.most
    for T in range(max(M, at_peak(M) - 2), at_peak(M) + 3):
        square, below = capacity.square(M, T)
        evaluated = products**2 * below
        if most < M - 1 + T or evaluated <= square or (T * tree) ** 2 * below < square * parts_of_tree**2:
            continue
        segments = isqrt(-(-(T**2) * evaluated // square) - 1) + 1  # T times their number, rounded up
        words = segments - T + M - free
        best = words if best is None else max(best, words)
    return best


def parts_of_sums(case: Cutting, name: str, what: str, families: Iterable[str]) -> CuttingBound:
    """Bound on the products of pairs for a matrix whose sums over pairs may be cut into parts.

    Args:
        case: the problem at its sizes.
        name, what: of the bound.
        families: the operands of pairs, and the output.
    """
    d, Z, besides = case.dims["d"], case.Z, case.besides(families)

    def weighing(trees: int, scale: Fraction, scores: int, parts: int) -> CuttingBound:
        total = scores + FULL + parts
        large = scaled(Fraction(13 * total, 36 * FULL), f"sqrt(30)*{case.Z_text}*d")
        form = f"{large}/sqrt(M){subtracted({case.Z_text: trees})} - 8*M/5 - 1"
        domain = [(form, 0, 5 * scale**2 / 6)]
        return CuttingBound(name, what, total * Z * d, Parts(d, scale), domain, ("d²", d**2), besides, trees * Z)

    return with_other_weights(*(weighing(trees, *row) for trees, rows in ((1, ONE_FAMILY), (2, ROWS)) for row in rows))
