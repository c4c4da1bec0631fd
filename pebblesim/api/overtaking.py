"""The exponent x of a crossover: b falls below a at M = Θ(d^x), with a proof on cones of exponents."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from pebblesim.catalogue.literature import statement
from pebblesim.language.registry import Schedule

if TYPE_CHECKING:
    from pebblesim.asymptotics.cones import Cone, Vector
    from pebblesim.core.notation import Expression

    Cell = tuple[Cone, Vector | None, Vector | None]


def crossing_exponent(a: Schedule, b: Schedule) -> tuple[Fraction | None, str]:
    """Return (x, proof) if b overtakes a at M = Θ(d^x), for n ≥ d and M ≤ nd; (None, reason) if there is no such x.

    The block sizes are those that the schedules state in closed form, within a constant factor of the largest that fit.
    """
    from sympy import Symbol

    from pebblesim.analysis.formula import formula

    missing = [schedule.name for schedule in (a, b) if not schedule.closed]
    if missing:
        return None, f"no block sizes in closed form are known for {', '.join(missing)}"
    forms: list[Expression] = []
    rules: dict[str, Expression] = {}
    for schedule in (a, b):
        own = {name: f"{name}_of_{schedule.name}" for name in schedule.blocks}  # both may have a B
        forms.append(formula(schedule.program).io.xreplace({Symbol(old): Symbol(new) for old, new in own.items()}))
        rules |= {own[name]: rule for name, rule in schedule.closed.items()}
    return overtakes(forms[0], forms[1], "n >= d, M >= d, M <= n*d", rules, (a.name, b.name))


def bound_exponent() -> tuple[Fraction | None, str]:
    """The power of d at which the two regimes of the lower bound on the backward pass cross, for all n, d and M.

    Returns:
        The exponent x of M = Θ(d^x), or None if there is none, and the proof in words.

    >>> bound_exponent()[0]
    Fraction(2, 1)
    """
    small, large = (statement(f"Li et al., {name}") for name in ("Theorem E.10", "Theorem E.9"))
    assert small.expr and large.expr
    return overtakes(small.expr, large.expr, called=("the bound of Theorem E.10", "that of Theorem E.9"))


def overtakes(
    a: Expression,
    b: Expression,
    region: str = "",
    rules: Mapping[str, Expression] | None = None,
    called: tuple[str, str] = ("the first", "the second"),
) -> tuple[Fraction | None, str]:
    """Return (x, proof) if b/a is unbounded inside M ≤ d^x and a/b is unbounded inside M ≥ d^x; else (None, reason).

    The region is divided into cones where b grows faster and cones where a grows faster. The lead changes on the common
    faces of such cones. Where no block sizes of b fit, b counts as larger. The proof uses
    the names in `called`.
    """
    return _overtakes(a, b, region, tuple((rules or {}).items()), called)


@lru_cache(maxsize=256)  # the same for all sizes of two schedules
def _overtakes(
    a: Expression, b: Expression, region: str, rules: tuple[tuple[str, Expression], ...], called: tuple[str, str]
) -> tuple[Fraction | None, str]:
    from pebblesim.asymptotics.tropical import growths
    from pebblesim.asymptotics.verdicts import monomial

    names, cells = growths(a, b, region, dict(rules))
    above: list[Cell] = []  # where b grows faster
    below: list[Cell] = []
    for cone, of_a, of_b in cells:
        if of_a is None and of_b is None:
            return None, "in a part of the region no block sizes fit, for neither of the two"
        if of_a is None or of_b is None:
            (below if of_a is None else above).append((cone, of_a, of_b))
            continue
        excess = [y - x for x, y in zip(of_a, of_b, strict=True)]
        more, less = cone.signs(excess)
        if not (more or less):
            return None, f"both grow as {monomial(of_a, names)} on a whole cone"
        if more:
            above.append((cone.cut(excess), of_a, of_b))
        if less:
            below.append((cone.cut([-x for x in excess]), of_a, of_b))
    d, M = names.index("d"), names.index("M")
    turns = {ray for one, *_ in above for other, *_ in below for ray in one.meet(other).rays if ray[d] or ray[M]}
    exponents = {Fraction(ray[M], ray[d]) if ray[d] else None for ray in turns}
    x = exponents.pop() if len(exponents) == 1 else None
    if x is None:
        return None, "the lead changes at no single power of d"
    side = [-x if i == d else Fraction(i == M) for i in range(len(names))]  # > 0 where M > d^x, < 0 where M < d^x
    if any(one.signs(side)[0] for one, *_ in above) or any(other.signs(side)[1] for other, *_ in below):
        return None, f"{called[0]} overtakes {called[1]} at M = d^{x}"

    def forms(parts: list[Cell], first: int) -> str:
        pairs = dict.fromkeys(cell[1:] if first == 0 else cell[:0:-1] for cell in parts)
        words = (["(no block fits)" if form is None else monomial(form, names) for form in pair] for pair in pairs)
        return ", or ".join(" against ".join(pair) for pair in words)

    plain = region.replace(">=", "≥").replace("<=", "≤").replace("*", "")
    on = f"for {plain}: " if region else ""
    power = monomial(tuple(x if i == d else Fraction(0) for i in range(len(names))), names)
    up_to = f"up to M = {power}, {called[0]} grows more slowly, as {forms(above, 0)}"
    return x, f"{on}{up_to}; from there on {called[1]} does, as {forms(below, 1)}"
