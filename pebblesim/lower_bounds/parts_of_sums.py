"""Lower bounds where the sums between pairs and an output may be cut into parts: D7 in docs/lower-bounds.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import isqrt
from typing import NamedTuple

from pebblesim.lower_bounds.closed_forms import scaled, subtracted
from pebblesim.lower_bounds.cutting import Cutting, CuttingBound, with_other_weights

FULL = 100
"""The weight w of a product of q."""


class Row(NamedTuple):
    """A choice of weights for which the capacity is proved.

    Attributes:
        scale: ε, the largest √(X/3)/d.
        share: what the d products for g of one part weigh at most, divided by the products of a segment ÷ its starts.
        scores, parts: 100 α and 100 β, the weights of a product of scores, and of what stands for one with p.
    """

    scale: Fraction
    share: Fraction
    scores: int
    parts: int

    @property
    def starts(self) -> Fraction:
        """T/M: about the least for which carried parts of sums of one element add nothing."""
        return Fraction(13, 5) if self.share > Fraction(9, 10) else Fraction(2)

    @property
    def in_a_part(self) -> Fraction:
        """100 times the weight of a product with p of a large part, or of one that moves."""
        return self.parts / self.share

    @property
    def carried(self) -> Fraction:
        """γ, the most that a product for g weighs of a part that is red at the cut: G(X)/T ≤ (1 + T/M)/(3T/M)·εd."""
        return self.share * (1 + self.starts) / (3 * self.starts) * self.scale


ROWS = (
    Row(Fraction(17, 20), Fraction(9, 10), 89, 67),
    Row(Fraction(71, 100), Fraction(9, 10), 89, 76),
    Row(Fraction(3, 5), Fraction(9, 10), 90, 82),
    Row(Fraction(11, 20), Fraction(1), 91, 91),
    Row(Fraction(1, 2), Fraction(1), 92, 93),
    Row(Fraction(3, 8), Fraction(1), 96, 96),
    Row(Fraction(1, 4), Fraction(1), 97, 99),
    Row(Fraction(23, 100), Fraction(1), 98, 99),
    Row(Fraction(1, 8), Fraction(1), 99, 99),
)
"""The weights where Σ and Θ of a pair are two families."""

ONE_FAMILY = (
    Row(Fraction(17, 10), Fraction(1, 2), 92, 10),
    Row(Fraction(71, 50), Fraction(1, 2), 93, 11),
    Row(Fraction(13, 10), Fraction(11, 20), 92, 13),
    Row(Fraction(49, 40), Fraction(3, 5), 93, 13),
    Row(Fraction(119, 100), Fraction(3, 5), 90, 16),
    Row(Fraction(11, 10), Fraction(7, 10), 86, 21),
    Row(Fraction(1), Fraction(3, 4), 85, 24),
    Row(Fraction(93, 100), Fraction(17, 20), 84, 27),
)
"""The weights where both trees of a pair are one family, so that only one of them is taken off."""


@dataclass(frozen=True)
class Parts:
    """w (X/3)^(3/2), for X ≤ 3(εd)²: products of scores, of q and with p, and what stands for parts of sums.

    Up to M - 1 of the X families may besides be carried parts, each worth a share of the products of a segment ÷ its
    starts.
    """

    d: int
    row: Row

    @cached_property
    def most(self) -> Fraction:
        """The largest X for which it is proved."""
        return 3 * (self.row.scale * self.d) ** 2

    @cached_property
    def tree(self) -> Fraction:
        """The most products of a segment ÷ its starts for which it is proved."""
        return FULL * self.row.carried / self.row.share * self.d

    def square(self, M: int, T: int) -> tuple[int, int]:
        """The square of G = max{G₀(M - 1 + T), G₀(T) + (M - 1)·share·G/T}.

        It is (numerator, denominator), as a bound is asked for thousands of times while blocks are searched.
        """
        share, of = self.row.share.as_integer_ratio()
        others = (of * T - share * (M - 1)) ** 2
        return FULL**2 * max((M - 1 + T) ** 3 * others, of**2 * T**5), 27 * others

    def __call__(self, X: int) -> int:
        return isqrt(FULL**2 * X**3 // 27)

    def turns(self, M: int) -> Iterator[int]:
        yield M - 1 + self.peak(M)

    def peak(self, M: int) -> int:
        """The least whole T ≥ M · `starts`."""
        starts, of = self._starts
        return -(-starts * M // of)

    @cached_property
    def _starts(self) -> tuple[int, int]:
        return self.row.starts.as_integer_ratio()


def least_words_of_parts(products: int, capacity: Parts, M: int, free: int) -> int | None:
    """Return the largest bound of the cutting argument, or None if there is none.

    Args:
        products: N, the weight of the products that must be evaluated, parts of sums among them.
        capacity: G.
        M: red pebbles.
        free: number of the pairs' trees that can be computed without moving a word.
    """
    best, peak = None, capacity.peak(M)
    (tree, parts_of_tree), most = capacity.tree.as_integer_ratio(), capacity.most
    for T in range(max(M, peak - 2), peak + 3):
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

    def weighing(trees: int, row: Row) -> CuttingBound:
        total = row.scores + FULL + row.parts
        of_root, domain = Fraction(total, FULL), row.scale**2  # T N/G(M - 1 + T), in units of Zd/√M
        if row.starts == 2:
            form, less = scaled(2 * of_root, f"{case.Z_text}*d"), "M"
        else:
            form, less = scaled(13 * of_root / 36, f"sqrt(30)*{case.Z_text}*d"), "8*M/5 - 1"
            domain *= Fraction(5, 6)
        text = f"{form}/sqrt(M){subtracted({case.Z_text: trees})} - {less}"
        forms = [(text, 0, domain)]
        return CuttingBound(name, what, total * Z * d, Parts(d, row), forms, ("d²", d**2), besides, trees * Z)

    return with_other_weights(*(weighing(trees, row) for trees, rows in ((1, ONE_FAMILY), (2, ROWS)) for row in rows))
