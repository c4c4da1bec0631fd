"""Verdicts of the decider, with the pieces that prove them or the direction that refutes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import sympy

from pebblesim.asymptotics.cones import Cone, Ray, Vector
from pebblesim.core.notation import written


@dataclass(frozen=True)
class Piece:
    """A cone on which both exponents are linear: for x in it, n = t^x1, … give f = Θ(t^(f·x)) and g = Θ(t^(g·x))."""

    cone: Cone
    f: Vector
    g: Vector


@dataclass(frozen=True)
class Witness:
    """Exponents along which a ratio diverges: if each symbol is t^exponent, the ratio grows at least as t^growth.

    `ratio` is "f/g" if f is not O(g), and "g/f" if it is not Ω(g).
    """

    exponents: Mapping[str, int]
    growth: Fraction
    ratio: str

    def at(self, t: int) -> dict[str, int]:
        """Return the sizes for a value of t."""
        return {name: t**exponent for name, exponent in self.exponents.items()}

    def __str__(self) -> str:
        point = ", ".join(f"{name} = t^{x}" if x else f"{name} = 1" for name, x in self.exponents.items())
        return f"{point}: {self.ratio} grows at least as t^{self.growth}"


@dataclass(frozen=True)
class Verdict:
    """Whether f is O, Ω or Θ of g at all sizes of a region, with a proof or a counterexample.

    Its truth value is the answer.

    Attributes:
        relation: "O", "Ω" or "Θ".
        holds: the answer.
        symbols: names of the exponents, in the order of vectors.
        region: the region, as text.
        pieces: if it holds, cones that cover the region, with the linear functions that were compared on each.
        witness: if it does not, where the ratio diverges.
    """

    relation: str
    holds: bool
    symbols: tuple[str, ...]
    region: str
    pieces: tuple[Piece, ...] = ()
    witness: Witness | None = None

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        head = f"{self.relation} {'holds' if self.holds else 'fails'} on {self.region or 'all sizes'}"
        if self.witness:
            return f"{head}: {self.witness}"
        return "\n".join([head, *(f"  {line}" for line in self._lines())])

    def _lines(self) -> Iterator[str]:
        cells: dict[tuple[Vector, Vector], list[str]] = {}
        for piece in self.pieces:
            equal = [self._related(h, "=") for h in piece.cone.equations]
            where = equal + [self._related(h, "≥") for h in piece.cone.facets]
            cells.setdefault((piece.f, piece.g), []).append(", ".join(where) or "one direction")
        for forms, where in cells.items():
            f, g = (monomial(form, self.symbols) for form in forms)
            yield f"f ~ {f}, g ~ {g} where {' or '.join(where)}"

    def _related(self, h: Ray, sign: str) -> str:
        more = tuple(Fraction(max(x, 0)) for x in h)
        less = tuple(Fraction(max(-x, 0)) for x in h)
        return f"{monomial(more, self.symbols)} {sign} {monomial(less, self.symbols)}"


def monomial(form: Vector, names: Iterable[str]) -> str:
    """Format a linear function of exponents as a monomial."""
    powers = (
        sympy.Symbol(name) ** sympy.Rational(x.numerator, x.denominator) for name, x in zip(names, form, strict=True)
    )
    return written(sympy.Mul(*powers))
