"""Lower bounds in which an output's further episodes cost two words: E8 in docs/lower-bounds.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import ClassVar

from pebblesim.core.bisection import first_beyond
from pebblesim.lower_bounds.closed_forms import scaled, summed
from pebblesim.lower_bounds.cutting import Cutting, CuttingBound
from pebblesim.lower_bounds.instances import Lines, Product


@dataclass(frozen=True)
class NewGradients:
    """3X(X + 18d²)/2d, and 3X²/2d from X = 336d²: products of pairs for dQ, dK and dV that are new in a segment.

    They are counted by their weights, on average over segments. X is the weight of what is within reach, where the
    start of an output's episode weighs 3/2. It is no less than twice the words that are red at a cut.
    """

    d: int
    weights: ClassVar[tuple[int, int, int]] = (36, 27, 21)
    carried: ClassVar[int] = 18
    """Addend of carried pairs to one X, in units of d²: 18s - 3s² ≤ 27 = 18·3/2, as 18 is half the largest weight."""
    whole: ClassVar[int] = 336
    """The least X, in units of d², from which carried pairs add nothing."""

    def __call__(self, X: int) -> int:
        whole = self.whole * self.d**2
        square = X * X if whole <= X else min(X * (X + self.carried * self.d**2), whole**2)
        return -(-3 * square // (2 * self.d))  # up, as it bounds a mean

    def turns(self, M: int) -> Iterator[int]:
        peak = M + isqrt(M**2 + self.carried * self.d**2 * M)  # of (X - M)/G(X) with carried pairs
        yield from (2 * M, peak, peak + 1, self.whole * self.d**2)


def least_words_of_sums(products: int, capacity: NewGradients, M: int, sums: int) -> int | None:
    """Return the largest bound of the cutting argument, or None if all products may fit into one segment.

    All segments but the last have starts of weight T - 1 at least, the first M - 1 more, as weights are whole halves.

    Args:
        products: N, the number of products that must be evaluated.
        capacity: G.
        M: red pebbles.
        sums: number of outputs; of each, one episode weighs half a word more than it moves.
    """
    low = 2 * M - 1
    turns = [max(low, X) for X in capacity.turns(M)]
    tried = {low, *turns}
    for segments in {max(1, products // capacity(X) + more) for X in turns for more in (-1, 0, 1)}:
        tried.add(max(low, first_beyond(capacity, (products - 1) // segments) - 1))
    cuts = [((products - 1) // capacity(X), X - M) for X in tried]
    words = [full * weight + M - 1 for full, weight in cuts if full]
    return max(words) - sums // 2 if words else None


def new_gradients(
    case: Cutting, name: str, what: str, lines: Lines, products: Sequence[Product], why_not: str = ""
) -> CuttingBound:
    """Bound on the products of pairs with three matrices, whose sums cost two words in each further episode.

    Args:
        case: the problem at its sizes.
        name, what, why_not: of the bound.
        lines: the operands of pairs.
        products: those of dQ, dK and dV, by the weights of `NewGradients`.

    Raises:
        ValueError: the products have other weights.
    """
    capacity = NewGradients(case.width(lines)[1])
    if tuple(product.weight for product in products) != capacity.weights:
        raise ValueError(f"{name}: the capacity is proved for weights {capacity.weights}")
    text, words = case.width(lines)
    sums = [case.size((f"most {product.sides[0]}",)) for product in products]
    rows = summed(Counter(side for side, _ in sums))
    families = (*lines.query, *lines.key, *(family for product in products for family in product[:3]))
    more = scaled(capacity.carried // 2, f"{text}**2")  # M N/G(2M) = (sum of weights)/6·Zd²/(M + more), or less nothing
    large = scaled(sum(capacity.weights) // 6, f"{case.Z_text}*{text}**2")
    less, turn = f" - {f'({rows})' if ' ' in rows else rows}*{text}/2 - 1", Fraction(capacity.whole, 2)
    return CuttingBound(
        name,
        what,
        sum(capacity.weights) * case.Z * words,
        capacity,
        [(f"{large}/M{less}", turn, None), (f"{large}/(M + {more}){less}", 0, turn)],
        (f"{text}²", words**2),
        case.besides(families),
        beside=case.columns_besides(lines, families),
        why_not=why_not,
        table=products,
        sums=words * sum(number for _, number in sums),
    )
