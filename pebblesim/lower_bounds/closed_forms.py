"""Closed forms of lower bounds as text: sums of monomials in the sizes and M.

A form is valid between two multiples of a unit of M; `pebblesim.lower_bounds.cutting` puts the bounds together from
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import reduce
from math import gcd

FormBetween = tuple[str, Fraction | int, Fraction | int | None]
"""Text of a closed form, and the two multiples of a unit between which M must be."""


def forms_of_fresh(c: int, Z: str, widths: tuple[str, str], less: str) -> list[FormBetween]:
    """Closed forms of `Fresh` for a large, a small and a middle M: T = M, T = 2M and T = M.

    `widths`: words of a line, and products of a pair.
    """
    small, large, columns = Fraction(c * c, 81), Fraction(c * c, 54), widths[1]
    return [
        (f"{scaled(Fraction(c, 4), f'{Z}*{monomial(widths)}')}/M{less}", large, None),
        (f"2*{Z}*{columns}/sqrt(M) - M{less}", 0, small),
        (f"sqrt(27/8)*{Z}*{columns}/sqrt(M){less}", small, large),
    ]


def forms_of_rows(w: int, d: str, Z: str) -> list[FormBetween]:
    """Closed forms of `Rows` with lines of w·d words, for a large and a small M: T = M and T = 4(wd)² - M."""
    w *= w
    return [
        (f"{scaled(w, f'{Z}*{d}**2')}/M", 2 * w, None),
        (f"{Z}*(1 - M/({4 * w}*{d}**2)) - {4 * w}*{d}**2 + 2*M", 0, 2 * w),
    ]


_ORDER = ("Z", "m", "k", "n", "n_q", "n_k", "r", "c", "tau", "d", "d_k", "d_v")


def monomial(names: Iterable[str]) -> str:
    powers = Counter(names)
    known = sorted(powers, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))
    return "*".join(name if powers[name] == 1 else f"{name}**{powers[name]}" for name in known) or "1"


def divided(divisor: int) -> str:
    """Return the text of a division, which by 1 is empty."""
    return "" if divisor == 1 else f"/{divisor}"


def scaled(factor: Fraction | int, text: str) -> str:
    """factor * text, as text."""
    factor = Fraction(factor)
    product = text if factor.numerator == 1 else f"{factor.numerator}*{text}"
    return product if factor.denominator == 1 else f"{product}/{factor.denominator}"


def summed(terms: Mapping[str, int]) -> str:
    return " + ".join(scaled(times, text) for text, times in _pairs_first(terms) if text != "0")


def doubled(terms: Mapping[str, int], weight: int) -> str:
    """2 N / (weight √M) as text, with a common factor in front."""
    common = reduce(gcd, terms.values())
    inside = summed({text: times // common for text, times in terms.items()})
    factor = Fraction(2 * common, weight)
    root = "sqrt(M)" if factor.denominator == 1 else f"({factor.denominator}*sqrt(M))"
    return f"{scaled(factor.numerator, inside if len(terms) == 1 else f'({inside})')}/{root}"


def subtracted(terms: Mapping[str, int]) -> str:
    return "".join(f" - {scaled(times, text)}" for text, times in _pairs_first(terms))


def _pairs_first(terms: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(terms.items(), key=lambda term: not term[0].startswith(("Z", "n**2", "n_q*n_k")))
