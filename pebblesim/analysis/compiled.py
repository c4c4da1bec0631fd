"""Compile closed forms to Python functions: exact integers for one point, arrays of exact integers for a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any

import sympy
from sympy.printing.pycode import PythonCodePrinter

from pebblesim.core.arithmetic import function_of
from pebblesim.core.errors import UsageError
from pebblesim.core.sizes import whole

LARGEST = 2**62
"""Values up to this bound are computed in int64; larger values in Python integers."""


class _ExactPrinter(PythonCodePrinter):
    """Print an expression with integers only: ⌈a/b⌉ as -(-a // b)."""

    def _print_ceiling(self, expr: sympy.ceiling) -> str:
        numerator, denominator = expr.args[0].as_numer_denom()
        return f"(-(-({self._print(numerator)}) // ({self._print(denominator)})))"

    def _print_floor(self, expr: sympy.floor) -> str:
        numerator, denominator = expr.args[0].as_numer_denom()
        return f"(({self._print(numerator)}) // ({self._print(denominator)}))"

    def _print_Sum(self, expr: sympy.Sum) -> str:
        (i, first, last) = expr.limits[0]
        term = self._print(expr.function)
        return f"total(lambda {i}: {term}, {self._print(first)}, {self._print(last)})"

    def _print_Min(self, expr: sympy.Min | sympy.Max) -> str:
        first, *rest = map(self._print, expr.args)
        return reduce(lambda left, right: f"{expr.func.__name__}({left}, {right})", rest, first)

    _print_Max = _print_Min


def compile_exact(expr: sympy.Expr, variables: tuple[str, ...]) -> Callable[..., Any]:
    """Compile an expression to an exact function of the named variables, which are integers or integer arrays.

    Arrays are computed in int64 if every value is certain to fit, otherwise in Python integers.
    """
    unknown = sorted({str(f.func) for f in expr.atoms(sympy.core.function.AppliedUndef)})
    if unknown:
        raise UsageError(f"the closed form has {', '.join(unknown)}, whose value depends on the mask; give the mask.")
    exact = exactly(expr, variables)

    @cache
    def of_arrays() -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the form for arrays, and a bound on its values. Most forms are asked for single points alone."""
        absolute = sympy.Add(*map(_absolute, sympy.Add.make_args(expr)))
        return exactly(expr, variables, arrays=True), exactly(absolute, variables, arrays=True)

    def evaluate(**sizes: Any) -> Any:
        if set(sizes) != set(variables):
            raise UsageError(f"the closed form takes {', '.join(variables)}, but got {', '.join(sizes) or 'nothing'}.")
        in_order = [sizes[name] for name in variables]
        if all(isinstance(size, int) for size in in_order):
            return exact(*map(whole, variables, in_order))
        import numpy as np

        arrays = np.broadcast_arrays(*(np.asarray(size) for size in in_order))
        for name, array in zip(variables, arrays, strict=True):
            if array.dtype.kind not in "iuO" or np.min(array, initial=1) < 1:
                raise UsageError(f"{name} must be whole numbers, 1 or more, in each element.")
        if expr.has(sympy.Sum):
            return _one_by_one(exact, arrays)
        exact_of_arrays, magnitude = of_arrays()
        bound = magnitude(*(array.astype(np.float64) for array in arrays))
        largest = max(np.max(array, initial=0) for array in arrays)
        kind = np.int64 if max(np.max(bound, initial=0.0), largest) < LARGEST else object
        return exact_of_arrays(*(array.astype(kind) for array in arrays))

    return evaluate


def _absolute(term: sympy.Expr) -> sympy.Expr:
    coefficient, rest = term.as_coeff_Mul()
    return abs(coefficient) * rest


def exactly(expr: sympy.Expr, variables: tuple[str, ...], arrays: bool = False) -> Callable[..., Any]:
    """Like `compile_exact`, with positional arguments and no checks.

    Arrays are computed in their own type, which must hold every value.
    """
    terms = sympy.Add.make_args(expr)
    denominator = sympy.ilcm(1, *(term.as_coeff_Mul()[0].q for term in terms))
    source = _ExactPrinter().doprint(sympy.Add(*(denominator * term for term in terms)))
    functions: dict[str, Callable[..., Any]] = {"Min": min, "Max": max, "total": _total}
    if arrays:
        import numpy as np

        functions |= {"Min": np.minimum, "Max": np.maximum}
    return function_of(f"({source}) // {denominator}", variables, functions)


def _total(term: Callable[[int], Any], first: int, last: int) -> Any:
    return sum(term(i) for i in range(first, last + 1))


def _one_by_one(exact: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    """Evaluate a form with sums element by element, because the lengths of the sums differ."""
    import numpy as np

    def value(*sizes: Any) -> int:
        return int(exact(*map(int, sizes)))

    return np.frompyfunc(value, len(arrays), 1)(*arrays)
