"""Whether an expression is positive at every size of a region: proved, or not known."""

from __future__ import annotations

import sympy

from pebblesim.asymptotics.regions import Region


def terms_by_sign(expr: sympy.Expr) -> tuple[list[sympy.Expr], list[sympy.Expr]]:
    """Return the positive terms of a sum, and its negative terms without their sign."""
    parts = [(term.as_coeff_Mul()[0] < 0, term) for term in sympy.Add.make_args(expr)]
    return [term for taken, term in parts if not taken and term != 0], [-term for taken, term in parts if taken]


def at_least_zero(expr: sympy.Expr, region: Region) -> bool:
    """Whether an expression is ≥ 0 at every size of a region; False if that is not proved."""
    return _proved(expr, region, strictly=False)


def above_zero(expr: sympy.Expr, region: Region) -> bool:
    """Whether an expression is > 0 at every size of a region; False if that is not proved."""
    return _proved(expr, region, strictly=True)


def _proved(expr: sympy.Expr, region: Region, strictly: bool) -> bool:
    match expr:
        case _ if expr.is_number or expr.is_Symbol:
            return bool(expr.is_Symbol or (expr.is_positive if strictly else expr.is_nonnegative))
        case sympy.Pow(exp=power) if not strictly and power.is_Integer and power.p % 2 == 0:
            return True
        case sympy.Mul(args=args) | sympy.Min(args=args):
            return all(_proved(arg, region, strictly) for arg in args)
        case sympy.floor(args=(inner,)) if strictly:
            return region.implies(inner, sympy.Integer(1))
        case sympy.Pow(base=inner) | sympy.floor(args=(inner,)) | sympy.ceiling(args=(inner,)):
            return _proved(inner, region, strictly)
        case sympy.Max(args=args):
            return any(_proved(arg, region, strictly) for arg in args)
        case sympy.Add(args=terms):
            if all(_proved(term, region, strictly) for term in terms):
                return True
            added, taken = terms_by_sign(expr)
            return region.implies(sympy.Add(*added), sympy.Add(*taken), strictly=strictly)
    return False
