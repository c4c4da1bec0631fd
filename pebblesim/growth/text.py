"""Expressions and regions as text, read for the decider."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

import sympy

from pebblesim.arithmetic import function_of, names_in
from pebblesim.errors import UsageError

Expression: TypeAlias = "str | int | sympy.Expr"


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
    except (sympy.SympifyError, TypeError, ValueError, SyntaxError) as error:
        raise UsageError(f"{expression!r} is no expression in {known}: {error}") from None


def comparisons_in(region: str) -> Iterator[tuple[sympy.Expr, sympy.Expr]]:
    """(larger, smaller) of each comparison in a region's text."""
    for text in filter(None, map(str.strip, region.split(","))):
        sides = re.split(r"(<=|>=|==)", text)
        if len(sides) != 3:
            raise UsageError(f"{text!r} is no comparison; a region is given as 'n >= d, M >= d**2, M <= n*d'.")
        left, sign, right = parse(sides[0]), sides[1], parse(sides[2])
        if sign in (">=", "=="):
            yield left, right
        if sign in ("<=", "=="):
            yield right, left
