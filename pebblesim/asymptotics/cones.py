"""Cones of exponents, in exact integers: n = t^x1, d = t^x2, … with x ≥ 0, cut by linear inequalities.

A cone is stored both by its inequalities and by its extreme rays (the double description method, Motzkin et al. 1953).
So the sign of a linear function on the whole cone follows from its signs on finitely many rays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm

Vector = tuple[Fraction, ...]
Ray = tuple[int, ...]


def dot(a: Sequence[Fraction | int], b: Sequence[Fraction | int]) -> Fraction:
    """Return the inner product of two vectors."""
    return Fraction(sum(x * y for x, y in zip(a, b, strict=True) if x and y))


def primitive(vector: Sequence[Fraction | int]) -> Ray:
    """Return the shortest integer vector in the same direction."""
    scale = lcm(*(Fraction(x).denominator for x in vector))
    whole = [int(x * scale) for x in vector]
    divisor = gcd(*whole) or 1
    return tuple(x // divisor for x in whole)


@dataclass(frozen=True)
class Cone:
    """{x : h·x ≥ 0 for all halfspaces h}, inside x ≥ 0.

    Attributes:
        halfspaces: the inequalities, each as its vector h, including those of x ≥ 0.
        rays: its extreme rays; an empty tuple means that the cone contains only the origin.
    """

    halfspaces: tuple[Ray, ...]
    rays: tuple[Ray, ...]

    @staticmethod
    def orthant(dimension: int) -> Cone:
        """Return the cone of all x ≥ 0."""
        units = tuple(tuple(int(i == j) for j in range(dimension)) for i in range(dimension))
        return Cone(units, units)

    @cached_property
    def _tight(self) -> dict[Ray, frozenset[int]]:
        """For each ray, the inequalities that hold with equality on it."""
        return {ray: frozenset(i for i, h in enumerate(self.halfspaces) if not dot(h, ray)) for ray in self.rays}

    def signs(self, form: Sequence[Fraction | int]) -> tuple[bool, bool]:
        """Whether a linear function is positive somewhere, and negative somewhere, on the cone."""
        values = [dot(form, ray) for ray in self.rays]
        return any(value > 0 for value in values), any(value < 0 for value in values)

    def cut(self, form: Sequence[Fraction | int]) -> Cone:
        """Return the part of the cone where a linear function is ≥ 0."""
        h = primitive(form)
        values = {ray: dot(h, ray) for ray in self.rays}
        if all(value >= 0 for value in values.values()):
            return self
        kept = [ray for ray, value in values.items() if value >= 0]
        for a, of_a in values.items():
            for b, of_b in values.items():
                if of_a > 0 > of_b and self._adjacent(a, b):
                    kept.append(primitive(tuple(of_a * y - of_b * x for x, y in zip(a, b, strict=True))))
        return Cone((*self.halfspaces, h), tuple(dict.fromkeys(kept)))

    def meet(self, other: Cone) -> Cone:
        """Return the intersection of two cones."""
        common = self
        for h in other.halfspaces:
            common = common.cut(h)
        return common

    def _adjacent(self, a: Ray, b: Ray) -> bool:
        """Whether two extreme rays span a face: no other ray is tight in all inequalities in which both are tight."""
        common = self._tight[a] & self._tight[b]
        return not any(common <= self._tight[ray] for ray in self.rays if ray not in (a, b))

    @cached_property
    def dimension(self) -> int:
        """The dimension of the space that the cone spans."""
        rows = [list(ray) for ray in self.rays]
        rank = 0
        for column in range(len(self.rays[0]) if self.rays else 0):
            pivot = next((r for r in range(rank, len(rows)) if rows[r][column]), None)
            if pivot is None:
                continue
            rows[rank], rows[pivot] = rows[pivot], rows[rank]
            for r in range(rank + 1, len(rows)):
                scale, factor = rows[rank][column], rows[r][column]
                rows[r] = [scale * x - factor * y for x, y in zip(rows[r], rows[rank], strict=True)]
            rank += 1
        return rank

    @property
    def inside(self) -> Ray:
        """A direction in the relative interior of the cone."""
        return primitive(tuple(sum(entries) for entries in zip(*self.rays, strict=True)))

    @cached_property
    def equations(self) -> tuple[Ray, ...]:
        """The linear functions that are 0 on the whole cone; one of h and -h."""
        whole = [h for i, h in enumerate(self.halfspaces) if all(i in self._tight[ray] for ray in self.rays)]
        return tuple(dict.fromkeys(max(h, tuple(-x for x in h)) for h in whole))

    @cached_property
    def facets(self) -> tuple[Ray, ...]:
        """The inequalities without redundant ones and without `equations`, each face once."""
        faces: dict[frozenset[Ray], Ray] = {}
        for i, h in enumerate(self.halfspaces):
            face = frozenset(ray for ray in self.rays if i in self._tight[ray])
            if 0 < len(face) < len(self.rays):
                faces.setdefault(face, h)
        return tuple(h for face, h in faces.items() if not any(face < other for other in faces))
