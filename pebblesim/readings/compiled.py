"""Closed forms as Python functions: exact integers for one point, arrays of exact integers for a sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
from sympy.printing.pycode import PythonCodePrinter

from pebblesim.errors import UsageError
from pebblesim.sizes import whole

LARGEST = 2**62
"""Values up to here are computed in int64; larger ones in Python's own integers."""


class _ExactPrinter(PythonCodePrinter):
    """Prints an expression in integers only: ⌈a/b⌉ as -(-a // b)."""

    def _print_ceiling(self, expr: sympy.ceiling) -> str:
        numerator, denominator = expr.args[0].as_numer_denom()
        return f"(-(-({self._print(numerator)}) // ({self._print(denominator)})))"

    def _print_Min(self, expr: sympy.Min) -> str:
        return self._fold("least", expr)

    def _print_Max(self, expr: sympy.Max) -> str:
        return self._fold("most", expr)

    def _fold(self, function: str, expr: sympy.Expr) -> str:
        first, *rest = (self._print(arg) for arg in expr.args)
        for arg in rest:
            first = f"{function}({first}, {arg})"
        return first


def compile_exact(expr: sympy.Expr, variables: tuple[str, ...]) -> Callable[..., Any]:
    """A function of the named variables, integers or integer arrays, that computes the expression exactly.

    Arrays are computed in int64 where every value is certain to fit, and in Python's own integers elsewhere.
    """
    exact = _compile(expr, variables)
    magnitude = _compile(sympy.Add(*(_absolute(term) for term in sympy.Add.make_args(expr))), variables)

    def evaluate(**sizes: Any) -> Any:
        if set(sizes) != set(variables):
            raise UsageError(f"the closed form takes {', '.join(variables)}, and got {', '.join(sizes) or 'nothing'}.")
        given = [sizes[name] for name in variables]
        if all(isinstance(size, int) for size in given):
            return exact(min, max, *map(whole, variables, given))
        import numpy as np

        arrays = np.broadcast_arrays(*(np.asarray(size) for size in given))
        for name, array in zip(variables, arrays, strict=True):
            if array.dtype.kind not in "iuO" or np.min(array, initial=1) < 1:
                raise UsageError(f"{name} must be whole numbers, 1 or more, in each element.")
        bound = magnitude(np.minimum, np.maximum, *(array.astype(np.float64) for array in arrays))
        largest = max(np.max(array, initial=0) for array in arrays)
        kind = np.int64 if max(np.max(bound, initial=0.0), largest) < LARGEST else object
        return exact(np.minimum, np.maximum, *(array.astype(kind) for array in arrays))

    return evaluate


def _absolute(term: sympy.Expr) -> sympy.Expr:
    coefficient, rest = term.as_coeff_Mul()
    return abs(coefficient) * rest


def _compile(expr: sympy.Expr, variables: tuple[str, ...]) -> Callable[..., Any]:
    source = _ExactPrinter().doprint(expr)
    function: Callable[..., Any] = eval(f"lambda least, most, {', '.join(variables)}: {source}")
    return function
