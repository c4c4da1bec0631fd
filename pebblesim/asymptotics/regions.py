"""Regions of sizes, with their constants: which inequalities hold at every integer size of a region.

A region is given by comparisons of monomials, such as M ≥ 2d² and M ≥ d² + 7d + 10; all sizes are integers ≥ 1. The
logarithms of its sizes are within a bounded distance of a cone of directions, so constants do not affect the growth of
a monomial. But they affect differences and rounding down: M - d² is Ω(M) on M ≥ 2d², and is 0 at M = d². So every
condition that a bound needs is proved here for every size of the region, by linear programming over the rationals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import product
from math import gcd, lcm

import sympy

from pebblesim.asymptotics.cones import Cone, Vector, dot
from pebblesim.core.errors import UsageError

Sum = dict[Vector, Fraction]
"""A sum of monomials, by exponents."""

Limit = tuple[tuple[Vector, Fraction], ...]
"""A sum of monomials with positive coefficients, as a key of a table; a region says that it is at most 1."""

MARGIN = sympy.Rational(1, 2**30)
"""P exceeds N by a constant factor if P ≥ (1 + MARGIN) N; any positive constant would do."""


class NotComparable(UsageError):
    """A comparison whose sides are not sums of monomials."""


@dataclass(frozen=True)
class Region:
    """All integer sizes ≥ 1 at which Σ c·m ≤ 1 for each of the given sums of monomials.

    Attributes:
        names: names of the sizes, in the order of the exponents.
        limits: the sums that are at most 1.
        cone: the directions x for which n = t^x1, d = t^x2, … stays in the region for ever, up to constant factors.
    """

    names: tuple[str, ...]
    limits: tuple[Limit, ...]
    cone: Cone

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # that of a fraction takes long, and regions are keys of tables
        return hash((self.names, self.limits))

    @staticmethod
    def of(names: tuple[str, ...], comparisons: Iterable[tuple[sympy.Expr, sympy.Expr]]) -> Region:
        """Return the region of sizes at which the first expression of each pair is at least the second one.

        Raises:
            NotComparable: the larger side of a comparison is not a monomial, and cannot be rewritten as one.
        """
        region = Region(names, (), Cone.orthant(len(names)))
        for larger, smaller in comparisons:
            for big in larger.args if isinstance(larger, sympy.Min) else (larger,):
                for small in smaller.args if isinstance(smaller, sympy.Max) else (smaller,):
                    region = region.where(big, small)
        return region

    def where(self, larger: sympy.Expr, smaller: sympy.Expr) -> Region:
        """Return the part of the region where one expression is at least another."""
        positive, negative = self.difference(larger, smaller)
        if len(positive) != 1:
            if not positive and not negative:
                return self
            raise NotComparable(
                f"the larger side of {larger} ≥ {smaller} is not a monomial; write a comparison such as "
                "M >= d**2 + 4*d."
            )
        ((m, c),) = positive.items()
        return self._limited(tuple((minus(k, m), e / c) for k, e in negative.items()))

    def limited(self, larger: tuple[Vector, Fraction], smaller: Vector) -> Region:
        """Return the part of the region where one monomial, times its coefficient, is at least another monomial."""
        m, c = larger
        return self._limited(((minus(smaller, m), 1 / c),))

    def _limited(self, limit: Limit) -> Region:
        if not limit:
            return self
        cone = self.cone
        for m, _ in limit:
            cone = cone.cut(minus(self.one, m))
        return replace(self, limits=(*self.limits, limit), cone=cone)

    @property
    def one(self) -> Vector:
        """The exponents of the monomial 1."""
        return (Fraction(0),) * len(self.names)

    def cut(self, form: Vector) -> Region:
        """Return the part of the region where a monomial is at least 1."""
        return self.limited((form, Fraction(1)), self.one)

    def goes_along(self, x: Sequence[int]) -> bool:
        """Whether n = t^x1, d = t^x2, … is in the region for every large t."""
        for limit in self.limits:
            grown = [(dot(m, x), c) for m, c in limit]
            level = sum((c for power, c in grown if power == 0), Fraction(0))
            if any(power > 0 for power, _ in grown) or level > 1 or (level == 1 and any(p < 0 for p, _ in grown)):
                return False
        return True

    # --- inequalities that hold on the whole region ------------------------------------------------------------------

    def implies(self, larger: sympy.Expr, smaller: sympy.Expr, *, strictly: bool = False) -> bool:
        """Whether one expression is at least another at every size of the region; `strictly`: by a constant factor.

        True is proved. False means only that no proof was found.
        """
        if strictly:  # this must come before terms cancel: (n + 1)d exceeds nd, but not by a constant factor
            smaller = smaller * (1 + MARGIN)
        try:
            positive, negative = self.difference(larger, smaller)
        except NotComparable:
            return False
        return self._dominates(positive, negative)

    def exceeds(self, larger: tuple[Vector, Fraction], smaller: Vector) -> bool:
        """Whether one monomial, times its coefficient, exceeds another at every size; False if there is no proof."""
        return self._dominates(dict([larger]), {smaller: 1 + Fraction(1, 2**30)})

    def _dominates(self, positive: Sum, negative: Sum) -> bool:
        """Whether Σ positive ≥ Σ negative: each negative term is charged to positive terms that are at least as large.

        A positive term p may be replaced by p times a limit, because a limit is at most 1. One monomial is at least
        another if their quotient is at least 1 on the cone `_plain`.
        """
        if not negative:
            return True
        return _charged(self._plain, self._useful, tuple(positive.items()), tuple(negative.items()))

    @cached_property
    def _useful(self) -> tuple[Limit, ...]:
        """The trivial limit 1 ≤ 1, and all limits except m ≤ 1 for a monomial m, which the cone contains already."""
        one = ((self.one, Fraction(1)),)
        return tuple(dict.fromkeys((one, *(limit for limit in self.limits if len(limit) > 1 or limit[0][1] != 1))))

    @cached_property
    def _plain(self) -> Cone:
        """The cone on which each monomial with a coefficient ≥ 1 in some limit has an exponent ≤ 0.

        The logarithms of all sizes of the region lie in this cone. So one monomial is at least another on the region if
        the exponent of their quotient is ≥ 0 on this cone.
        """
        cone = Cone.orthant(len(self.names))
        for limit in self.limits:
            for m, c in limit:
                if c >= 1:
                    cone = cone.cut(minus(self.one, m))
        return cone

    # --- expressions as sums of monomials ----------------------------------------------------------------------------

    def difference(self, larger: sympy.Expr, smaller: sympy.Expr) -> tuple[Sum, Sum]:
        """Return the positive and the negative part of larger - smaller, as sums of monomials.

        Roots and roundings are removed first if possible; the result then has the sign of larger - smaller.

        Raises:
            NotComparable: the result is not a sum of monomials.
        """
        while smaller.is_Rational:
            constant, rest = larger.as_coeff_Add()
            if constant.is_Rational and constant:
                larger, smaller = rest, smaller - constant
            elif isinstance(larger, sympy.floor):
                larger, smaller = larger.args[0], sympy.ceiling(smaller)
            elif smaller > 0 and (root := _degree(larger)) > 1:
                larger, smaller = larger**root, smaller**root
            else:
                break
        numerator, _ = self._fraction(larger - smaller)
        return {m: c for m, c in numerator.items() if c > 0}, {m: -c for m, c in numerator.items() if c < 0}

    def divided(self, larger: sympy.Expr, smaller: sympy.Expr, factor: int) -> tuple[list[Region], list[Region]]:
        """Return parts of the region in which larger ≥ factor·smaller, and parts that cover the rest of the region."""
        try:
            positive, negative = self.difference(larger, factor * smaller)
        except NotComparable:
            return [], [self]
        if not negative:
            return [self], []
        if not positive:
            return [], [self]
        # Either one term of `larger` alone exceeds all terms of `smaller`, or one of those exceeds it.
        inside: list[Region] = []
        outside = [self]
        for m, c in positive.items():
            remaining: list[Region] = []
            for part in outside:
                whole = part
                for k, e in negative.items():
                    share = len(negative) * e / c
                    if not whole.exceeds((m, 1 / share), k):
                        remaining.append(whole.limited((k, share), m))
                    whole = whole.limited((m, 1 / share), k)
                inside.append(whole)
            outside = remaining
        return inside, outside

    def _fraction(self, expr: sympy.Expr) -> tuple[Sum, Sum]:
        """Return numerator and denominator as sums of monomials; the denominator is positive."""
        one: Sum = {self.one: Fraction(1)}
        if expr.is_Rational:
            return ({self.one: Fraction(int(expr.p), int(expr.q))} if expr else {}), one
        if expr.is_Symbol:
            return {tuple(Fraction(expr.name == name) for name in self.names): Fraction(1)}, one
        if expr.is_Add:
            total: Sum = {}
            below = one
            for term in expr.args:
                above, under = self._fraction(term)
                if under == below:
                    total = _add(total, above)
                else:
                    total, below = _add(_times(total, under), _times(above, below)), _times(below, under)
            return total, below
        if expr.is_Mul:
            top, bottom = one, one
            for factor in expr.args:
                above, under = self._fraction(factor)
                top, bottom = _times(top, above), _times(bottom, under)
            return top, bottom
        if isinstance(expr, sympy.Pow) and expr.exp.is_Rational:
            above, under = self._fraction(expr.base)
            power = Fraction(int(expr.exp.p), int(expr.exp.q))
            if power < 0:
                above, under, power = under, above, -power
            if all(c > 0 for c in under.values()) and under:
                if power.denominator == 1 and power <= 8:
                    return _power(above, int(power), one), _power(under, int(power), one)
                if len(above) == len(under) == 1:
                    ((m, c),), ((u, k),) = above.items(), under.items()
                    if c > 0 and (root := _root(c / k, power)) is not None:
                        return {tuple(power * (x - y) for x, y in zip(m, u, strict=True)): root}, one
        raise NotComparable(f"{expr} is not a sum of monomials.")


@cache
def _charged(plain: Cone, limits: tuple[Limit, ...], positive: Limit, negative: Limit) -> bool:
    """Whether the negative terms can be charged to the positive ones, as in `Region._dominates`."""
    sources = []  # of each: positive term, limit, coefficient in the limit, negative terms that may be charged to it
    for p, (m, _) in enumerate(positive):
        for i, limit in enumerate(limits):
            for offset, c in limit:
                offered = plus(m, offset)
                pays = [j for j, (sink, _) in enumerate(negative) if not plain.signs(minus(offered, sink))[1]]
                if pays:
                    sources.append((p, i, c, pays))
    if {j for *_, pays in sources for j in pays} != set(range(len(negative))):
        return False
    shares = list(dict.fromkeys((p, i) for p, i, *_ in sources))  # the part of term p that is replaced by limit i
    flows = [(s, j) for s, (*_, pays) in enumerate(sources) for j in pays]
    rows: list[tuple[dict[int, Fraction], Fraction]] = []  # Σ a x ≤ b
    for p, (_, have) in enumerate(positive):
        rows.append(({k: Fraction(1) for k, (q, _) in enumerate(shares) if q == p}, have))
    for s, (p, i, c, _) in enumerate(sources):
        row = {len(shares) + k: Fraction(1) for k, (source, _) in enumerate(flows) if source == s}
        rows.append(({**row, shares.index((p, i)): -c}, Fraction(0)))
    for j, (_, need) in enumerate(negative):
        rows.append(({len(shares) + k: Fraction(-1) for k, (_, sink) in enumerate(flows) if sink == j}, -need))
    return feasible(rows, len(shares) + len(flows))


def plus(a: Vector, b: Vector) -> Vector:
    """Return the exponents of a product of two monomials."""
    return tuple(x + y for x, y in zip(a, b, strict=True))


def minus(a: Vector, b: Vector) -> Vector:
    """Return the exponents of a quotient of two monomials."""
    return tuple(x - y for x, y in zip(a, b, strict=True))


def _add(a: Sum, b: Sum) -> Sum:
    total = dict(a)
    for m, c in b.items():
        total[m] = total[m] + c if m in total else c
    return {m: c for m, c in total.items() if c}


def _times(a: Sum, b: Sum) -> Sum:
    total: Sum = {}
    for (m, c), (k, e) in product(a.items(), b.items()):
        power = plus(m, k)
        total[power] = total[power] + c * e if power in total else c * e
    return {m: c for m, c in total.items() if c}


def _power(a: Sum, exponent: int, one: Sum) -> Sum:
    total = one
    for _ in range(exponent):
        total = _times(total, a)
    return total


def _degree(expr: sympy.Expr) -> int:
    """Return the least power of a product that is free of roots; 1 if the product may be negative."""
    degree = 1
    for factor in sympy.Mul.make_args(expr):
        base, power = factor.as_base_exp()
        if not power.is_Rational or not (power.q > 1 or base.is_Symbol or base.is_positive):
            return 1
        degree = lcm(degree, int(power.q))
    return degree


def _root(c: Fraction, power: Fraction) -> Fraction | None:
    """Return c^power if it is rational, else None."""
    value = sympy.Rational(c.numerator, c.denominator) ** sympy.Rational(power.numerator, power.denominator)
    return Fraction(int(value.p), int(value.q)) if value.is_Rational else None


def feasible(rows: Sequence[tuple[Mapping[int, Fraction], Fraction]], columns: int) -> bool:
    """Whether some x ≥ 0 satisfies Σ a x ≤ b in each row: the simplex method in rationals, with Bland's rule (1977).

    >>> feasible([({0: Fraction(1)}, Fraction(2)), ({0: Fraction(-1)}, Fraction(-2))], 1)
    True
    >>> feasible([({0: Fraction(1)}, Fraction(2)), ({0: Fraction(-1)}, Fraction(-3))], 1)
    False
    """
    # One artificial variable, subtracted in every row, makes all rows feasible; then it is made as small as possible.
    # Each row is stored times some positive number, so that its entries are integers.
    artificial = columns
    basis = [columns + 1 + r for r in range(len(rows))]
    worst = min(range(len(rows)), key=lambda r: rows[r][1], default=None)
    if worst is None or rows[worst][1] >= 0:
        return True
    units = [lcm(b.denominator, *(a.denominator for a in row.values())) for row, b in rows]
    table = [
        {**{c: int(a * unit) for c, a in row.items()}, artificial: -unit, own: unit}
        for (row, _), unit, own in zip(rows, units, basis, strict=True)
    ]
    right = [int(b * unit) for (_, b), unit in zip(rows, units, strict=True)]
    _pivot(table, right, basis, worst, artificial)
    while artificial in basis:
        objective = basis.index(artificial)  # the artificial variable is right - Σ a x over columns not in the basis
        if right[objective] == 0:
            return True
        entering = min((c for c, a in table[objective].items() if a > 0 and c not in basis), default=None)
        if entering is None:
            return False
        ratios = [
            (Fraction(right[r], row[entering]), basis[r], r) for r, row in enumerate(table) if row.get(entering, 0) > 0
        ]
        least = min(ratio for ratio, *_ in ratios)
        tied = [(number, r) for ratio, number, r in ratios if ratio == least]
        leaving = objective if any(r == objective for _, r in tied) else min(tied)[1]
        _pivot(table, right, basis, leaving, entering)
    return True


def _pivot(table: list[dict[int, int]], right: list[int], basis: list[int], row: int, column: int) -> None:
    if table[row][column] < 0:
        table[row], right[row] = {c: -a for c, a in table[row].items()}, -right[row]
    scale = table[row][column]
    for r, other in enumerate(table):
        if r != row and (factor := other.get(column)):
            common = gcd(scale, factor)
            more, less = scale // common, factor // common
            entries = {c: more * a for c, a in other.items()}
            for c, a in table[row].items():
                entries[c] = entries.get(c, 0) - less * a
            b = more * right[r] - less * right[row]
            shared = gcd(b, *entries.values())
            table[r], right[r] = {c: a // shared for c, a in entries.items() if a}, b // shared
    basis[row] = column
