"""Is f = O(g), Ω(g) or Θ(g)? Decided in exact arithmetic, with a certificate either way.

Put n = t^x1, d = t^x2, M = t^x3 and let t grow. Up to constant factors a sum is its largest term, a product adds
exponents, ⌈y⌉ is max(1, y) for y > 0, and ⌊y⌋ is y where y ≥ 1. An expression thus becomes a function of the exponents
that is linear on each of finitely many cones. On a region that is given by comparing monomials f = O(g) iff the
exponent of f nowhere exceeds that of g. Constants in the region do not matter: both functions are continuous and
homogeneous.

What can cancel is bounded, never guessed. P - N is at most P; it is at least P/2 where P ≥ 2N, and where N grows more
slowly than P that is all but a strip of bounded width: the condition is part of the verdict. ⌊y⌋ with y ≥ 1 is such a
condition too. Where neither an upper bound proves nor a lower bound refutes, `Undecided` is raised, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

import sympy

from pebblesim.arithmetic import function_of, names_in
from pebblesim.errors import PebblesimError, UsageError
from pebblesim.growth.cones import Cone, Ray, Vector, dot, primitive
from pebblesim.notation import written

Expression: TypeAlias = "str | int | sympy.Expr"
Cells = list[tuple[Cone, Vector | None]]
"""A function on a cone: parts of it, with a linear function on each; None where there is no bound on that side."""

RELATIONS = {"O": "O", "Ω": "Ω", "Θ": "Θ", "Omega": "Ω", "Theta": "Θ"}


class Undecided(PebblesimError):
    """The bounds on an expression that may cancel are too far apart to decide."""


@dataclass(frozen=True)
class Condition:
    """What a lower bound rests on, larger ≥ factor · smaller: all of the region but a strip of bounded width."""

    larger: sympy.Expr
    smaller: sympy.Expr
    factor: int

    def __str__(self) -> str:
        right = self.factor * self.smaller
        return f"{written(self.larger)} ≥ {written(right)}"


@dataclass(frozen=True)
class Piece:
    """A cone on which both functions are linear: n = t^x1, … in it give f = Θ(t^(f·x)) and g = Θ(t^(g·x))."""

    cone: Cone
    f: Vector
    g: Vector


@dataclass(frozen=True)
class Witness:
    """Exponents along which a ratio diverges: with each symbol t^exponent it grows as t^growth.

    `ratio` is "f/g" if f is not O(g), and "g/f" if it is not Ω(g).
    """

    exponents: Mapping[str, int]
    growth: Fraction
    ratio: str

    def at(self, t: int) -> dict[str, int]:
        """The point for a t."""
        return {name: t**exponent for name, exponent in self.exponents.items()}

    def __str__(self) -> str:
        point = ", ".join(f"{name} = t^{x}" if x else f"{name} = 1" for name, x in self.exponents.items())
        return f"{point}: {self.ratio} grows as t^{self.growth}"


@dataclass(frozen=True)
class Verdict:
    """Whether f = O, Ω or Θ of g on a region, and why; true or false as a value.

    Attributes:
        relation: "O", "Ω" or "Θ".
        holds: the answer.
        symbols: names of the exponents, in the order of vectors.
        region: the region, as text.
        conditions: what has to hold besides, such as that a block is at least 1.
        pieces: if it holds, cones that cover the region, with the linear functions that were compared on each.
        witness: if it does not, where the ratio diverges.
    """

    relation: str
    holds: bool
    symbols: tuple[str, ...]
    region: str
    conditions: tuple[str, ...]
    pieces: tuple[Piece, ...] = ()
    witness: Witness | None = None

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        head = f"{self.relation} {'holds' if self.holds else 'fails'} on {self.region or 'all sizes'}"
        head += f", given {'; '.join(self.conditions)}" if self.conditions else ""
        if self.witness:
            return f"{head}: {self.witness}"
        return "\n".join([head, *(f"  {line}" for line in self._lines())])

    def _lines(self) -> Iterator[str]:
        cells: dict[tuple[Vector, Vector], list[str]] = {}
        for piece in self.pieces:
            cell = ", ".join(self._inequality(h) for h in piece.cone.facets) or "one direction"
            cells.setdefault((piece.f, piece.g), []).append(cell)
        for forms, where in cells.items():
            f, g = (monomial(form, self.symbols) for form in forms)
            yield f"f ~ {f}, g ~ {g} where {' or '.join(where)}"

    def _inequality(self, h: Ray) -> str:
        more = tuple(Fraction(max(x, 0)) for x in h)
        less = tuple(Fraction(max(-x, 0)) for x in h)
        return f"{monomial(more, self.symbols)} ≥ {monomial(less, self.symbols)}"


def monomial(form: Vector, names: Iterable[str]) -> str:
    """A linear function of exponents as the monomial it stands for."""
    powers = (
        sympy.Symbol(name) ** sympy.Rational(x.numerator, x.denominator) for name, x in zip(names, form, strict=True)
    )
    return written(sympy.Mul(*powers))


def parse(expression: Expression) -> sympy.Expr:
    """An expression in symbols of which sympy knows nothing; text is read by sympy.

    That they are positive integers is known here, and not told: sympy 1.14 takes Max(n, n/(d*M)) of positive integers
    for n/(d*M).

    Raises:
        UsageError: the text is no expression.
    """
    if not isinstance(expression, str):
        given = sympy.sympify(expression)
        return given.xreplace({known: sympy.Symbol(known.name) for known in given.free_symbols})
    known = "+, -, *, /, **, sqrt, Min, Max, ceiling, floor"
    functions = {name: getattr(sympy, name) for name in ("sqrt", "Min", "Max", "ceiling", "floor", "Rational")}
    try:
        names = sorted(names_in(expression) - set(functions))
        evaluate = function_of(expression, names, {"number": sympy.sympify, **functions})
        return sympy.sympify(evaluate(*map(sympy.Symbol, names)), strict=True)
    except (sympy.SympifyError, TypeError, SyntaxError) as error:
        raise UsageError(f"{expression!r} is no expression in {known}: {error}") from None


def _is_positive(expr: sympy.Expr) -> bool:
    """Whether an expression of positive integers is certainly positive: nothing is subtracted, or rounded down."""
    if expr.is_Symbol or expr.is_number:
        return bool(expr.is_Symbol or expr.is_positive)
    return not isinstance(expr, sympy.floor) and all(map(_is_positive, expr.args[:1] if expr.is_Pow else expr.args))


def decide(
    f: Expression,
    relation: str,
    g: Expression,
    region: str = "",
    where: Mapping[str, Expression] | None = None,
) -> Verdict:
    """Decide whether f = O(g), Ω(g) or Θ(g), all symbols being positive integers.

    Args:
        f, g: sums, products, rational powers, Min, Max, ceiling and floor of symbols, such as a closed form.
        relation: "O", "Ω" or "Θ" ("Omega", "Theta").
        region: comparisons of monomials, such as "n >= d, M >= d**2, M <= n*d"; constants do not matter.
        where: what stands for some of the symbols, such as block rules.

    >>> print(decide("2*n*ceiling(n/B) + 5*n", "O", "n**2/sqrt(M) + n", where={"B": "floor(sqrt(M/4))"}))
    O holds on all sizes, given sqrt(M)/2 ≥ 1
      f ~ n²/sqrt(M), g ~ n²/sqrt(M) where M ≥ 1, n² ≥ M
      f ~ n, g ~ n where n ≥ 1, M ≥ n²
    >>> print(decide("5*n**2", "O", "n**2/sqrt(M)"))
    O fails on all sizes: n = t^1, M = t^1: f/g grows as t^1/2

    Raises:
        Undecided: something may cancel, and its bounds are too far apart.
        UsageError: an expression or region that is outside of what can be decided.
    """
    if relation not in RELATIONS:
        raise UsageError(f"relation {relation!r} was given; it is one of {', '.join(RELATIONS)}.")
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
    """The names of the symbols, and cones that cover a region, with the exponents of f and of g on each.

    None stands for no upper bound, as where a floor that is divided by can be 0.

    Raises:
        Undecided, UsageError: as for `decide`.
    """
    rules = {name: parse(rule) for name, rule in (where or {}).items()}
    problem = _Problem.of(parse(f), parse(g), region, rules)
    found = []
    for first, of_f in problem.tight(problem.f, problem.cone):
        found += [(cone, of_f, of_g) for cone, of_g in problem.tight(problem.g, first)]
    return problem.names, found


@dataclass
class _Problem:
    """Two expressions on a cone, and what their bounds rest on."""

    f: sympy.Expr
    g: sympy.Expr
    names: tuple[str, ...]
    where: Mapping[str, sympy.Expr]
    region: str
    cone: Cone
    conditions: dict[Condition, None] = field(default_factory=dict)
    unbounded: list[str] = field(default_factory=list)

    @staticmethod
    def of(f: sympy.Expr, g: sympy.Expr, region: str, where: Mapping[str, sympy.Expr]) -> _Problem:
        inequalities = [*_comparisons(region)]
        texts = [f, g, *where.values(), *(side for pair in inequalities for side in pair)]
        for rule in where.values():
            if nested := {s.name for s in rule.free_symbols} & set(where):
                raise UsageError(f"the rule {rule} uses {', '.join(nested)}, which has a rule too; write it out.")
        names = {s.name for text in texts for s in text.free_symbols} - set(where)
        ordered = tuple(sorted(names, key=lambda name: (name not in "nd", name != "n", name)))
        problem = _Problem(f, g, ordered, where, region, Cone.orthant(len(ordered)))
        for larger, smaller in inequalities:
            for big in larger.args if isinstance(larger, sympy.Min) else (larger,):
                for small in smaller.args if isinstance(smaller, sympy.Max | sympy.Add) else (smaller,):
                    problem.cone = problem.cone.cut(_minus(problem._monomial(big), problem._monomial(small)))
        if not problem.cone.rays:
            raise UsageError(f"{f}, {g} and region {region!r} leave no size that grows; there is nothing to compare.")
        return problem

    def _monomial(self, expr: sympy.Expr) -> Vector:
        """The exponents of one side of a comparison."""
        constant, rest = expr.as_coeff_Mul()
        powers = {base: power for base, power in rest.as_powers_dict().items() if base != 1}
        if constant <= 0 or any(not base.is_Symbol or not power.is_Rational for base, power in powers.items()):
            raise UsageError(
                f"a region compares monomials, such as M >= d**2; {str(expr)!r} is none (a sum may stand on the "
                "smaller side)."
            )
        return tuple(Fraction(str(powers.get(sympy.Symbol(name), 0))) for name in self.names)

    def verdict(self, relation: str, pieces: Iterable[Piece] = (), witness: Witness | None = None) -> Verdict:
        conditions = () if witness else tuple(map(str, self.conditions))
        return Verdict(relation, witness is None, self.names, self.region, conditions, tuple(pieces), witness)

    def compare(self, f: sympy.Expr, g: sympy.Expr, ratio: str, pieces: list[Piece]) -> Witness | None:
        """None and the pieces if f = O(g), else where f/g diverges."""
        proved = True
        for cone, above in self.bound(f, self.cone, upper=True):
            for cell, below in self.bound(g, cone, upper=False):
                if above is None or below is None or cell.signs(_minus(above, below))[0]:
                    proved = False
                    break
                pieces.append(Piece(cell, above, below))
        if proved:
            return None
        pieces.clear()
        for cone, below in self.bound(f, self.cone, upper=False):
            for cell, above in self.bound(g, cone, upper=True):
                if above is not None and below is not None:
                    excess = _minus(below, above)
                    if cell.signs(excess)[0]:
                        return self._witness(cell, excess, ratio)
        raise Undecided(
            f"{ratio} cannot be decided on {self.region or 'all sizes'}: "
            + ("; ".join(dict.fromkeys(self.unbounded)) or "what cancels leaves bounds too far apart")
            + "."
        )

    def tight(self, expr: sympy.Expr, cone: Cone) -> Cells:
        """The exponents of an expression, where both bounds agree or there is none from above."""
        cells: Cells = []
        for cell, above in self.bound(expr, cone, upper=True):
            if above is None:
                cells.append((cell, None))
                continue
            for part, below in self.bound(expr, cell, upper=False):
                if below is None or any(part.signs(_minus(above, below))):
                    raise Undecided(f"the growth of {written(expr)} cannot be decided: {'; '.join(self.unbounded)}.")
                cells.append((part, above))
        return cells

    def _witness(self, cell: Cone, excess: Vector, ratio: str) -> Witness:
        """A direction of positive excess inside the cell, where all that it rests on comes to hold."""
        best = max(cell.rays, key=lambda ray: dot(excess, ray) / sum(ray))
        x, weight = cell.inside, 1
        while dot(excess, x) <= 0:
            x = primitive(tuple(weight * r + i for r, i in zip(best, cell.inside, strict=True)))
            weight *= 2
        return Witness(dict(zip(self.names, x, strict=True)), dot(excess, x), ratio)

    def bound(self, expr: sympy.Expr, cone: Cone, *, upper: bool) -> Cells:
        """An upper or a lower bound on an expression, up to a constant factor, on parts of a cone."""
        if expr.is_number:
            if not expr.is_positive:
                raise UsageError(f"{expr} is not positive, so that it has no growth to compare.")
            return [(cone, self._unit(None))]
        match expr:
            case sympy.Symbol(name=name):
                return (
                    self.bound(self.where[name], cone, upper=upper)
                    if name in self.where
                    else [(cone, self._unit(name))]
                )
            case sympy.Mul(args=factors):
                return self._product(factors, cone, upper)
            case sympy.Pow(base=base, exp=power) if power.is_Rational:
                cells = self.bound(base, cone, upper=upper == (power > 0))
                scale = Fraction(str(power))
                return [(cell, None if form is None else tuple(scale * x for x in form)) for cell, form in cells]
            case sympy.Max(args=args):
                return self._extreme(args, cone, upper, largest=True)
            case sympy.Min(args=args):
                return self._extreme(args, cone, upper, largest=False)
            case sympy.Add(args=terms):
                return self._sum(terms, cone, upper)
            case sympy.ceiling(args=(inner,)):
                return self._ceiling(inner, cone, upper)
            case sympy.floor(args=(inner,)):
                return self._floor(inner, cone, upper)
        raise UsageError(
            f"{expr} cannot be decided: {type(expr).__name__} is no sum, product, power, Min, Max, ⌈⌉ or ⌊⌋."
        )

    def _unit(self, name: str | None) -> Vector:
        return tuple(Fraction(name == other) for other in self.names)

    def _product(self, factors: Iterable[sympy.Expr], cone: Cone, upper: bool) -> Cells:
        cells: Cells = [(cone, self._unit(None))]
        for factor in factors:
            cells = [
                (part, None if form is None or more is None else tuple(a + b for a, b in zip(form, more, strict=True)))
                for cell, form in cells
                for part, more in self.bound(factor, cell, upper=upper)
            ]
        return cells

    def _extreme(self, args: Iterable[sympy.Expr], cone: Cone, upper: bool, *, largest: bool) -> Cells:
        """The largest or smallest of some expressions; one without a bound decides only where it can."""
        first, *rest = args
        cells = self.bound(first, cone, upper=upper)
        for arg in rest:
            found: Cells = []
            for cell, form in cells:
                for part, other in self.bound(arg, cell, upper=upper):
                    if form is None or other is None:  # the largest is unbounded above, and bounded below by the rest
                        known = form if other is None else other
                        found.append((part, None if largest == upper else known))
                    else:
                        found += _larger(part, form, other) if largest else _larger(part, other, form, swap=True)
            cells = found
        return cells

    def _sum(self, terms: Iterable[sympy.Expr], cone: Cone, upper: bool) -> Cells:
        parts = [(term.as_coeff_Mul()[0] < 0, term) for term in terms]
        positive = [term for negative, term in parts if not negative]
        negative = sympy.Add(*(-term for minus, term in parts if minus))
        if not positive:
            raise UsageError(f"{sympy.Add(*terms)} is not positive, so that it has no growth to compare.")
        cells = self._extreme(positive, cone, upper, largest=True)
        if upper or not negative:
            return cells
        total = sympy.Add(*positive)
        found: Cells = []
        for cell, form in cells:
            for part, less in self.bound(negative, cell, upper=True):
                if form is None or less is None:
                    found.append((part, None))
                else:
                    reason = f"{written(total)} − {written(negative)} may cancel"
                    found += self._where(part, form, _minus(form, less), Condition(total, negative, 2), reason)
        return found

    def _where(self, cone: Cone, form: Vector, margin: Vector, condition: Condition, reason: str) -> Cells:
        """A lower bound that rests on a condition: it stands on the part where the margin grows."""
        positive, negative = cone.signs(margin)
        cells: Cells = []
        if positive:
            self.conditions[condition] = None
            cells.append((cone.cut(margin), form))
        if negative or not positive:
            self.unbounded.append(reason)
            cells.append((cone.cut(tuple(-x for x in margin)), None))
        return cells

    def _ceiling(self, inner: sympy.Expr, cone: Cone, upper: bool) -> Cells:
        one = self._unit(None)
        cells: Cells = []
        for cell, form in self.bound(inner, cone, upper=upper):
            if form is None:  # a positive number is rounded up to 1 at least
                cells.append((cell, one if _is_positive(inner) and not upper else None))
            else:
                cells += _larger(cell, form, one)
        return cells

    def _floor(self, inner: sympy.Expr, cone: Cone, upper: bool) -> Cells:
        if upper:
            return self.bound(inner, cone, upper=True)
        cells: Cells = []
        for cell, form in self.bound(inner, cone, upper=False):
            if form is None:
                cells.append((cell, None))
            else:
                condition = Condition(inner, sympy.Integer(1), 1)
                cells += self._where(cell, form, form, condition, f"⌊{written(inner)}⌋ can be 0")
        return cells


def _minus(a: Vector, b: Vector) -> Vector:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def _larger(cone: Cone, a: Vector, b: Vector, swap: bool = False) -> Cells:
    """The larger of two linear functions, on parts of a cone; exchanged, with `swap`, the smaller."""
    positive, negative = cone.signs(_minus(a, b))
    first, second = (b, a) if swap else (a, b)
    if not negative:
        return [(cone, first)]
    if not positive:
        return [(cone, second)]
    return [(cone.cut(_minus(a, b)), first), (cone.cut(_minus(b, a)), second)]


def _comparisons(region: str) -> Iterator[tuple[sympy.Expr, sympy.Expr]]:
    """(larger, smaller) of each comparison in a region's text."""
    import re

    for text in filter(None, map(str.strip, region.split(","))):
        sides = re.split(r"(<=|>=|==)", text)
        if len(sides) != 3:
            raise UsageError(f"{text!r} is no comparison; a region is given as 'n >= d, M >= d**2, M <= n*d'.")
        left, sign, right = parse(sides[0]), sides[1], parse(sides[2])
        if sign in (">=", "=="):
            yield left, right
        if sign in ("<=", "=="):
            yield right, left
