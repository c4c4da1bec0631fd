"""The data of the page: for each problem its schedules, lower bounds and closed forms, as text and as JavaScript."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import sympy
from sympy.printing.pycode import PythonCodePrinter

import pebblesim.lower_bounds.bounds as theory
from pebblesim.analysis.formula import formula
from pebblesim.analysis.in_javascript import exported
from pebblesim.core.errors import UsageError
from pebblesim.core.notation import parse, written
from pebblesim.core.sizes import BYTES
from pebblesim.counting.heads import shared
from pebblesim.language.masks import Mask, of as mask_of
from pebblesim.language.problems import Problem, problem
from pebblesim.language.registry import Schedule, of_problem
from pebblesim.views.document import Code

MANY, FEW, WIDTH = 4096, 2048, 2
"""Sizes at which bounds are asked for their closed forms, with which they do not change: d is far below the others."""

SHAPES: Final = {"equal": (MANY, MANY), "fewer": (FEW, MANY), "more": (MANY, FEW)}
"""As many queries as keys, fewer, or more: the closed forms differ."""


def _in_doubles(text: str) -> Code:
    return Code(f"(s)=>{text.replace(' ', '').replace('@', '')}")


def _in_whole_numbers(text: str) -> Code:
    names = {"up(": "upBig(", "min(": "leastBig(", "max(": "mostBig("}
    for name, exact in names.items():
        text = text.replace(name, exact)
    return Code(f"(s)=>{text.replace(' ', '').replace('@', 'n')}")


def data(names: Iterable[str]) -> dict[str, Any]:
    """Return the problems with these names, and the bytes of a word of each type.

    Raises:
        UsageError: a problem has no queries and keys.
    """
    return {"problems": [_problem(problem(name)) for name in names], "types": dict(BYTES)}


def _problem(solves: Problem) -> dict[str, Any]:
    if not solves.maskable:
        raise UsageError(
            f"problem {solves.name!r} has no queries and keys; the page is for attention, such as 'forward' or "
            "'backward-qkv'. `pebblesim plot words` draws the words of any problem."
        )
    rectangle = solves.rectangle or solves
    schedules, left_out = [], []
    for schedule in of_problem(solves.name, rectangle.dims):
        made = schedule_data(schedule, rectangle)
        if made is None:
            left_out.append(schedule.name)
        else:
            schedules.append(made)
    return {
        "name": solves.name,
        "inputs": [*solves.inputs],
        "outputs": [*solves.outputs],
        "dims": [*rectangle.dims],
        "shared": _shares(solves),
        "schedules": schedules,
        "leftOut": left_out,
        "bounds": {
            f"{shape}{' masked' * (mask is not None)}": bounds_at(solves, shape, mask)
            for shape in SHAPES
            for mask in (None, mask_of("causal"))
        },
    }


def _shares(solves: Problem) -> bool:
    """Whether query heads may share keys and values."""
    try:
        return shared(solves).pairs is not None
    except UsageError:
        return False


def schedule_data(schedule: Schedule, rectangle: Problem) -> dict[str, Any] | None:
    """Return a schedule with its closed form in n and d, and in all dimensions."""
    own = schedule.in_dims(rectangle.dims)
    made = exported(own)
    if made is None:
        return None
    for part in made["parts"]:
        part |= {name: _in_doubles(part[name]) for name in ("least", "most")}
        part["words"] = {"doubles": _in_doubles(part["words"]), "exact": _in_whole_numbers(part["words"])}
    made["words"] = _in_whole_numbers(made["words"])
    made["masked"] = made["masked"] and _in_whole_numbers(made["masked"])
    return {
        "name": schedule.name,
        "summary": schedule.summary,
        "source": schedule.source,
        "needs": [*schedule.kept],
        "kernel": schedule.alike,
        "blocks": [*schedule.blocks],
        "square": written(formula(schedule.program).io),
        "form": written(formula(own.program).io),
        **made,
    }


# -- lower bounds -----------------------------------------------------------------------------------------------------


def bounds_at(solves: Problem, shape: str, mask: Mask | None) -> dict[str, list[dict[str, Any]]]:
    """Return the bounds of each way of computing for sizes of a shape."""
    queries, keys = SHAPES[shape]
    if shape == "equal":
        sized, dims = solves, {dim: MANY if dim == "n" else WIDTH for dim in solves.dims}
    else:
        sized = solves.rectangle or solves
        sides = dict(zip(sized.pairs or (), (queries, keys), strict=True))
        dims = {dim: sides.get(dim, WIDTH) for dim in sized.dims}
    ways = theory.bounds_of_ways(sized, dims, 1, mask)
    return {way: [_bound(bound) for bound in bounds if not bound.why_not] for way, bounds in ways.items()}


def _bound(bound: theory.LowerBound) -> dict[str, Any]:
    return {
        "name": bound.name,
        "source": bound.source,
        "provedFor": _condition(bound.proved_for) if bound.proved_for else None,
        "forms": [
            {
                "text": written(parse(form.expr)),
                "holds": _domain(form),
                "value": _value(form.expr),
            }
            for form in bound.forms
        ],
    }


def _condition(text: str) -> Code:
    """Return a comparison "a >= b" as a function of the sizes."""
    left, right = (_exact(side)[0] for side in text.split(" >= "))
    return Code(f"(s)=>{left}>={right}")


def _domain(form: theory.Form) -> Code:
    """Return whether a closed form holds, as a function of the sizes."""
    tests = []
    for limit, sign in ((form.low, ">="), (form.high, "<=")):
        if limit:
            numerator, denominator = _exact(limit)
            tests.append(f"s.M*({denominator}){sign}{numerator}")
    return Code(f"(s)=>{'&&'.join(tests) or 'true'}")


def _value(text: str) -> Code:
    """Return a closed form R + √S, rounded up, as a function of the sizes.

    Raises:
        UsageError: it is of another form.
    """
    root, M = sympy.Symbol("root", positive=True), sympy.Symbol("M")
    rest = under = sympy.Integer(0)
    for term in sympy.Add.make_args(sympy.expand(_in_names(parse(text)).subs(M, root**2))):
        mirrored = term.subs(root, -root)
        if mirrored not in (term, -term):
            raise UsageError(f"the bound {text} is no sum of a fraction and a multiple of 1/√M.")
        rest, under = (rest + term, under) if mirrored == term else (rest, under + term)
    rest, under = (each.subs(root, sympy.sqrt(M)) for each in (rest, sympy.expand(under**2)))
    square = f"[{','.join(_fraction(under))}]" if under else "null"
    return Code(f"(s)=>roundedUp([{','.join(_fraction(rest))}],{square})")


def exact_code(expr: sympy.Expr) -> Code:
    """Return a sum of products of sizes and of numbers of tiles, in whole numbers, as a function of the sizes."""
    return Code(f"(s)=>{_Whole().doprint(sympy.sympify(expr))}")


def _exact(text: str) -> tuple[str, str]:
    return _fraction(_in_names(parse(text)))


def _in_names(expr: sympy.Expr) -> sympy.Expr:
    """Replace the names of sizes by those of the page, which has one width d and as many queries and keys as given."""
    names = {"n": "n_q", "d_k": "d", "d_v": "d"}
    return expr.subs({sympy.Symbol(old): sympy.Symbol(new) for old, new in names.items()}, simultaneous=True)


def _fraction(expr: sympy.Expr) -> tuple[str, str]:
    """Return numerator and denominator as JavaScript in whole numbers, the denominator above 0 at all sizes."""
    numerator, denominator = sympy.together(expr).as_numer_denom()
    printed = _Whole().doprint
    return printed(sympy.expand(numerator)), printed(denominator)


class _Whole(PythonCodePrinter):
    """Print an expression in whole numbers of any length."""

    def _print_Integer(self, expr: sympy.Integer) -> str:
        return f"{int(expr)}n"

    _print_One = _print_Zero = _print_NegativeOne = _print_Integer

    def _print_Symbol(self, expr: sympy.Symbol) -> str:
        return f"s.{expr.name}"

    def _print_Pow(self, expr: sympy.Pow) -> str:
        base = self._print(expr.base)
        return (
            f"({base if expr.base.is_Symbol else f'({base})'}**{self._print(expr.exp)})"  # JavaScript refuses -a ** b
        )

    def _print_ceiling(self, expr: sympy.ceiling) -> str:
        numerator, denominator = expr.args[0].as_numer_denom()
        return f"upBig({self._print(numerator)}, {self._print(denominator)})"

    def _print_Min(self, expr: sympy.Min) -> str:
        return f"leastBig({', '.join(map(self._print, expr.args))})"
