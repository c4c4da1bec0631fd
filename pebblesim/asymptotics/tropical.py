"""Decide whether f = O(g), Ω(g) or Θ(g), in exact arithmetic, with a proof or a counterexample.

Put n = t^x1, d = t^x2, M = t^x3 and let t grow. Up to constant factors a sum is its largest term, a product adds
exponents, ⌈y⌉ is max(1, y) for y > 0, and ⌊y⌋ is y where y ≥ 1. An expression thus becomes a function of the exponents
that is linear on each of finitely many cones. On a region that is given by comparisons of monomials, f = O(g) if and
only if the exponent of f nowhere exceeds the exponent of g.

Terms that may cancel are bounded, never guessed. |P - N| is at most max(P, N), and at most P where P ≥ N. It is at
least a constant part of P where P exceeds N by a constant factor. ⌊y⌋ is at least y/2 where y ≥ 1. Each of these
conditions is either proved for every size of the region, with its constants (`pebblesim.asymptotics.regions`), or used
to divide the region into parts. In parts where neither is possible, curves such as n = d = t are tried; on a curve,
terms cancel exactly. If no curve gives a counterexample, `Undecided` is raised. Its message names the conditions that
would have to be added to the region.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import sympy

from pebblesim.asymptotics.cones import Cone, Ray, Vector, dot, primitive
from pebblesim.asymptotics.regions import Region, minus, plus
from pebblesim.asymptotics.signs import above_zero, at_least_zero, terms_by_sign
from pebblesim.asymptotics.verdicts import Piece, Verdict, Witness
from pebblesim.core.errors import PebblesimError, UsageError, as_given
from pebblesim.core.kinds import checked_kinds
from pebblesim.core.notation import Expression, comparisons_in, parse, written

Cells = list[tuple[Region, Vector | None]]
"""A bound on a function: parts of a region, each with a linear function of the exponents, or None for no bound."""

RELATIONS = {"O": "O", "Ω": "Ω", "Θ": "Θ", "Omega": "Ω", "Theta": "Θ"}


class Undecided(PebblesimError):
    """The bounds on an expression that may cancel are too far apart to decide."""


@checked_kinds()
def decide(
    f: Expression,
    relation: str,
    g: Expression,
    region: str = "",
    where: Mapping[str, Expression] | None = None,
) -> Verdict:
    """Decide whether |f| = O(g), f = Ω(g) or f = Θ(g); all symbols are positive integers.

    Args:
        f, g: sums, products, rational powers, Min, Max, ceiling and floor of symbols, such as a closed form.
        relation: "O", "Ω" or "Θ" ("Omega", "Theta").
        region: comparisons, such as "n >= d, M >= 2*d**2, M <= n*d, B >= 1"; the larger side is a monomial, or becomes
            one when the rules are put in.
        where: expressions to substitute for some symbols, such as block rules.

    Returns:
        The verdict; it is true if the relation holds, and prints its proof or counterexample.

    >>> print(decide("2*n*ceiling(n/B) + 5*n", "O", "n**2/sqrt(M) + n", "B >= 1", {"B": "floor(sqrt(M/4))"}))
    O holds on B >= 1
      f ~ n²/sqrt(M), g ~ n²/sqrt(M) where M ≥ 1, n² ≥ M
      f ~ n, g ~ n where n ≥ 1, M ≥ n²
    >>> print(decide("5*n**2", "O", "n**2/sqrt(M)"))
    O fails on all sizes: n = t^1, M = t^1: f/g grows at least as t^1/2
    >>> print(decide("n - d + 1", "Ω", "n", "n >= d"))
    Ω fails on n >= d: n = t^1, d = t^1: g/f grows at least as t^1

    Raises:
        Undecided: terms may cancel, and the bounds on the result are too far apart.
        UsageError: an expression or region is of a kind that cannot be decided.
    """
    if relation not in RELATIONS:
        raise UsageError(f"relation {as_given(relation)} was given; it is one of {', '.join(RELATIONS)}.")
    relation = RELATIONS[relation]
    rules = {name: parse(rule) for name, rule in (where or {}).items()}
    problem = _Problem.of(parse(f), parse(g), region, rules)
    pieces: list[Piece] = []
    if relation in "OΘ":
        witness = problem.compare(problem.f, problem.g, "f/g", pieces)
        if witness:
            return problem.verdict(relation, witness=witness)
    if relation in "ΩΘ":
        turned: list[Piece] = []
        witness = problem.compare(problem.g, problem.f, "g/f", turned)
        if witness:
            return problem.verdict(relation, witness=witness)
        if relation == "Ω":
            pieces = [Piece(piece.cone, piece.g, piece.f) for piece in turned]
    return problem.verdict(relation, pieces=pieces)


def growths(
    f: Expression, g: Expression, region: str = "", where: Mapping[str, Expression] | None = None
) -> tuple[tuple[str, ...], list[tuple[Cone, Vector | None, Vector | None]]]:
    """Return the names of the symbols, and cones that cover a region, with the exponents of f and of g in each cone.

    The exponents give the growth along every direction inside a cone. On the faces of a cone terms may cancel, and f
    and g may grow differently there. None means that there is no upper bound, for example because a floor in a
    denominator is 0.

    Raises:
        Undecided, UsageError: as for `decide`.
    """
    rules = {name: parse(rule) for name, rule in (where or {}).items()}
    problem = _Problem.of(parse(f), parse(g), region, rules)
    problem.least_dimension = problem.region.cone.dimension
    cones = []
    for first, of_f in problem.tight(problem.f, problem.region):
        cones += [(part.cone, of_f, of_g) for part, of_g in problem.tight(problem.g, first)]
    return problem.names, cones


@dataclass
class _Problem:
    """Two expressions on a region, and in `unknown` the conditions that could not be proved."""

    f: sympy.Expr
    g: sympy.Expr
    names: tuple[str, ...]
    text: str
    region: Region
    unknown: dict[str, None] = field(default_factory=dict)
    least_dimension: int = 0  # parts with fewer dimensions are ignored
    known: dict[tuple[sympy.Expr, Region, bool, bool], Cells] = field(default_factory=dict)

    @staticmethod
    def of(f: sympy.Expr, g: sympy.Expr, text: str, where: Mapping[str, sympy.Expr]) -> _Problem:
        comparisons = [*comparisons_in(text)]
        for rule in where.values():
            if nested := {s.name for s in rule.free_symbols} & set(where):
                raise UsageError(
                    f"the rule {rule} uses {', '.join(nested)}, which has a rule too; substitute it by hand."
                )
        rules = {sympy.Symbol(name): rule for name, rule in where.items()}
        f, g = f.xreplace(rules), g.xreplace(rules)
        comparisons = [(larger.xreplace(rules), smaller.xreplace(rules)) for larger, smaller in comparisons]
        expressions = (f, g, *where.values(), *(side for pair in comparisons for side in pair))
        names = {s.name for expr in expressions for s in expr.free_symbols}
        ordered = tuple(sorted(names, key=lambda name: (name not in "nd", name != "n", name)))
        region = Region.of(ordered, comparisons)
        if not region.cone.rays:
            raise UsageError(
                f"with {f}, {g} and region {text!r} there is no size that grows, so there is no growth to compare."
            )
        if not region.goes_along(region.cone.inside):
            raise UsageError(
                f"region {text!r} holds no sizes {', '.join(f'{name} = t^…' for name in ordered)} for large t; if it "
                "contains an equation, use one without constant factors."
            )
        problem = _Problem(f, g, ordered, text, region)
        for expr in (f, g):
            if at_least_zero(-expr, region):
                raise UsageError(f"{expr} is not positive; only positive expressions can be compared.")
        return problem

    def verdict(self, relation: str, pieces: Iterable[Piece] = (), witness: Witness | None = None) -> Verdict:
        return Verdict(relation, witness is None, self.names, self.text, tuple(pieces), witness)

    def compare(self, f: sympy.Expr, g: sympy.Expr, ratio: str, pieces: list[Piece]) -> Witness | None:
        """Fill `pieces` and return None if f = O(g), else return where f/g diverges."""
        open_parts = []
        for part, above in self.bound(f, self.region, upper=True):
            for cell, below in self.bound(g, part, upper=False):
                if above is None or below is None or cell.cone.signs(minus(above, below))[0]:
                    open_parts.append(cell)
                else:
                    pieces.append(Piece(cell.cone, above, below))
        if not open_parts and all(self._is_defined(expr) for expr in (f, g)):
            return None
        pieces.clear()
        for part, below in self.bound(f, self.region, upper=False, even=True):
            for cell, above in self.bound(g, part, upper=True):
                if above is not None and below is not None:
                    excess = minus(below, above)
                    if cell.cone.signs(excess)[0] and (witness := self._witness(cell, excess, ratio)):
                        return witness
        directions = [x for cell in open_parts if cell.cone.rays for x in (cell.cone.inside, *cell.cone.rays)]
        for x in dict.fromkeys(directions):
            if self.region.goes_along(x) and (witness := self._along(f, g, x, ratio)):
                return witness
        reasons = "; ".join(self.unknown) or "its bounds are too far apart"
        raise Undecided(f"{ratio} cannot be decided on {self.text or 'all sizes'}: {reasons}.")

    def _is_defined(self, expr: sympy.Expr) -> bool:
        """Whether at every size no denominator is 0 and no root is taken of a negative value; False if not proved."""
        for part in sympy.preorder_traversal(expr):
            if not isinstance(part, sympy.Pow) or part.base.is_Symbol or part.base.is_number:
                continue
            if part.exp.is_negative and any(
                form is None for _, form in self.bound(part.base, self.region, upper=False, even=True)
            ):
                self._missing(f"{written(part.base)} may be 0 in a denominator")
                return False
            if not part.exp.is_integer and not at_least_zero(part.base, self.region):
                self._missing(f"{written(part.base)} may be negative under a root")
                return False
        return True

    def _along(self, f: sympy.Expr, g: sympy.Expr, x: Ray, ratio: str) -> Witness | None:
        """Return a witness on the curve n = t^x1, d = t^x2, …, if there is one; terms cancel there before bounding."""
        # If sympy knows that t > 0, roots of powers cancel. With Max and Min this is left out.
        t = sympy.Symbol("t", positive=None if f.has(sympy.Max, sympy.Min) or g.has(sympy.Max, sympy.Min) else True)
        curve = {sympy.Symbol(name): t**power for name, power in zip(self.names, x, strict=True)}
        try:
            on_curve = [parse(sympy.expand(expr.xreplace(curve))) for expr in (f, g)]
        except ValueError:  # the root of a negative number
            return None
        if not all(expr.free_symbols <= {sympy.Symbol("t")} for expr in on_curve):
            return None
        if any(expr.is_number and not expr.is_positive for expr in on_curve):
            return None
        line = _Problem(on_curve[0], on_curve[1], ("t",), "", Region.of(("t",), []))
        for part, below in line.bound(line.f, line.region, upper=False, even=True):
            for cell, above in line.bound(line.g, part, upper=True):
                if below is not None and above is not None and cell.cone.signs(minus(below, above))[0]:
                    return Witness(dict(zip(self.names, x, strict=True)), minus(below, above)[0], ratio)
        return None

    def tight(self, expr: sympy.Expr, region: Region) -> Cells:
        """Return the exponents of an expression on parts of a region; None where it has no upper bound.

        Raises:
            Undecided: on some part the upper and the lower bound differ.
        """
        cells: Cells = []
        for cell, above in self.bound(expr, region, upper=True):
            if above is None:
                cells.append((cell, None))
                continue
            for part, below in self.bound(expr, cell, upper=False):
                if below is None or any(part.cone.signs(minus(above, below))):
                    raise Undecided(f"the growth of {written(expr)} cannot be decided: {'; '.join(self.unknown)}.")
                cells.append((part, above))
        return cells

    def _witness(self, cell: Region, excess: Vector, ratio: str) -> Witness | None:
        """Return a witness in a direction inside the cell along which the excess is positive, if there is one."""
        best = max(cell.cone.rays, key=lambda ray: dot(excess, ray) / sum(ray))
        inside = x = cell.cone.inside
        weight = 1
        while dot(excess, x) <= 0:
            x = primitive(tuple(weight * r + i for r, i in zip(best, inside, strict=True)))
            weight *= 2
        if not cell.goes_along(x):
            return None
        return Witness(dict(zip(self.names, x, strict=True)), dot(excess, x), ratio)

    # --- bounds on an expression, up to a constant factor -------------------------------------------------------------

    def bound(self, expr: sympy.Expr, region: Region, *, upper: bool, even: bool = False) -> Cells:
        """Return an upper bound on |expr|, or a lower bound on expr; with `even`, a lower bound on |expr|."""
        key = (expr, region, upper, even)
        if key not in self.known:
            cells = self._bound(expr, region, upper, even)
            self.known[key] = [cell for cell in cells if cell[0].cone.dimension >= self.least_dimension]
        return self.known[key]

    def _bound(self, expr: sympy.Expr, region: Region, upper: bool, even: bool) -> Cells:
        if expr.is_number:
            positive = (expr.is_nonzero if even else expr.is_positive) if not upper else expr.is_real
            return [(region, region.one if positive else None)]
        match expr:
            case sympy.Symbol(name=name):
                return [(region, tuple(Fraction(name == other) for other in self.names))]
            case sympy.Mul(args=factors):
                return self._product(factors, region, upper, even)
            case sympy.Pow(base=base, exp=power) if power.is_Rational:
                return self._power(base, power, region, upper)
            case sympy.Max(args=args) | sympy.Min(args=args):
                return self._extreme(args, region, upper, largest=isinstance(expr, sympy.Max))
            case sympy.Add():
                return self._sum(expr, region, upper, even)
            case sympy.ceiling(args=(inner,)):
                return self._ceiling(inner, region, upper)
            case sympy.floor(args=(inner,)):
                return self._floor(inner, region, upper)
        raise UsageError(
            f"{expr} cannot be decided: {type(expr).__name__} is not a sum, product, power, Min, Max, ⌈⌉ or ⌊⌋."
        )

    def _product(self, factors: Iterable[sympy.Expr], region: Region, upper: bool, even: bool) -> Cells:
        cells: Cells = [(region, region.one)]
        for factor in factors:
            cells = [
                (part, None if form is None or more is None else plus(form, more))
                for cell, form in cells
                for part, more in self.bound(factor, cell, upper=upper, even=even)
            ]
        return cells

    def _power(self, base: sympy.Expr, power: sympy.Rational, region: Region, upper: bool) -> Cells:
        even = bool(power.p % 2 == 0 and power.q == 1)
        if power.q != 1 and not at_least_zero(base, region):
            self._missing(f"{written(base)} may be negative under a root")
            return [(region, None)]
        scale = Fraction(int(power.p), int(power.q))
        if power > 0:
            cells = self.bound(base, region, upper=upper, even=even)
        else:
            cells = self.bound(base, region, upper=False, even=even or upper)
            if not upper:  # valid only where the base is known not to be 0
                sure: Cells = []
                for part, low in cells:
                    sure += [(part, None)] if low is None else self.bound(base, part, upper=True)
                cells = sure
        return [(cell, None if form is None else tuple(scale * x for x in form)) for cell, form in cells]

    def _extreme(self, args: Iterable[sympy.Expr], region: Region, upper: bool, *, largest: bool) -> Cells:
        """Return a bound on the largest or the smallest of some expressions, some of which may have no bound."""
        if upper and not largest and not all(at_least_zero(arg, region) for arg in args):
            largest = True  # the smallest may be negative with a large absolute value
        first, *rest = args
        cells = self.bound(first, region, upper=upper)
        for arg in rest:
            refined: Cells = []
            for cell, form in cells:
                for part, other in self.bound(arg, cell, upper=upper):
                    if form is None or other is None:  # the largest is unbounded above, and bounded below by the rest
                        known = form if other is None else other
                        refined.append((part, None if largest == upper else known))
                    else:
                        refined += _larger(part, form, other) if largest else _larger(part, other, form, swap=True)
            cells = refined
        return cells

    def _sum(self, expr: sympy.Expr, region: Region, upper: bool, even: bool) -> Cells:
        positive, negative = terms_by_sign(expr)
        if negative and (short := sympy.expand(expr)) != expr:  # some terms cancel after expansion
            return self.bound(short, region, upper=upper, even=even)
        sure = all(at_least_zero(term, region) for term in (*positive, *negative))
        if upper:
            alone = sure and region.implies(sympy.Add(*positive), sympy.Add(*negative))
            return self._extreme(positive if alone else (*positive, *negative), region, upper, largest=True)
        if sure and positive and negative:
            return self._left(expr, positive, negative, region, even)
        if sure and (positive or even):
            return self._extreme(positive or negative, region, upper, largest=True)
        self._missing(f"{written(expr)} may be negative")
        return [(region, None)]

    def _left(
        self, expr: sympy.Expr, positive: list[sympy.Expr], negative: list[sympy.Expr], region: Region, even: bool
    ) -> Cells:
        """Return a lower bound on a difference, where one side exceeds the other by a constant factor."""
        added, taken = sympy.Add(*positive), sympy.Add(*negative)
        if region.implies(added, taken, strictly=True):
            return self._extreme(positive, region, upper=False, largest=True)
        parts, others = ([], [region]) if region.implies(taken, added) else region.divided(added, taken, 2)
        cells = [cell for part in parts for cell in self._extreme(positive, part, upper=False, largest=True)]
        for other in others:
            if even and other.implies(taken, added, strictly=True):
                cells += self._extreme(negative, other, upper=False, largest=True)
            elif even:
                turned, between = other.divided(taken, added, 2)
                for part in turned:
                    cells += self._extreme(negative, part, upper=False, largest=True)
                cells += [(part, None) for part in between]
            else:
                cells.append((other, None))
        if any(form is None for _, form in cells):
            self._missing(f"{written(expr)} may cancel unless {written(added)} ≥ {written(2 * taken)}")
        return cells

    def _missing(self, reason: str) -> None:
        self.unknown[reason] = None

    def _ceiling(self, inner: sympy.Expr, region: Region, upper: bool) -> Cells:
        positive = above_zero(inner, region)
        if not upper and not positive:  # if the argument may be in (-1, 0], the ceiling may be 0
            if at_least_zero(inner, region):
                return self.bound(inner, region, upper=False)
            return [(region, None)]
        return _at_least_one(self.bound(inner, region, upper=upper), None if upper else region.one)

    def _floor(self, inner: sympy.Expr, region: Region, upper: bool) -> Cells:
        if upper:
            cells = self.bound(inner, region, upper=True)
            if at_least_zero(inner, region):
                return cells
            return _at_least_one(cells, None)  # |⌊y⌋| may be as large as |y| + 1 if y is negative
        one = sympy.Integer(1)
        if region.implies(inner, one):
            return self.bound(inner, region, upper=False)
        parts, others = region.divided(inner, one, 1)
        if others:
            self._missing(f"⌊{written(inner)}⌋ may be 0 unless {written(inner)} ≥ 1")
        nonzero = [cell for part in parts for cell in self.bound(inner, part, upper=False)]
        return [*nonzero, *((other, None) for other in others)]


def _at_least_one(cells: Cells, otherwise: Vector | None) -> Cells:
    """Return the larger of each function and 1; `otherwise` where there is no bound."""
    return [
        part
        for cell, form in cells
        for part in ([(cell, otherwise)] if form is None else _larger(cell, form, cell.one))
    ]


def _larger(region: Region, a: Vector, b: Vector, swap: bool = False) -> Cells:
    """Return the larger of two linear functions, or with `swap` the smaller one, on parts of a region."""
    positive, negative = region.cone.signs(minus(a, b))
    first, second = (b, a) if swap else (a, b)
    if not negative:
        return [(region, first)]
    if not positive:
        return [(region, second)]
    return [(region.cut(minus(a, b)), first), (region.cut(minus(b, a)), second)]
