"""Closed forms as people write them: 5nd⌈n/B⌉ + n²⌈d/B⌉."""

from __future__ import annotations

import re

import sympy
from sympy.printing.str import StrPrinter

_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def _plain(expr: sympy.Expr) -> set[sympy.Symbol]:
    """Its symbols, by name alone."""
    return {sympy.Symbol(s.name) for s in expr.free_symbols}


class _Printer(StrPrinter):
    def _print_Add(self, expr: sympy.Add, order: object = None) -> str:
        def size(term: sympy.Expr) -> tuple[bool, int, int, str]:
            powers = [factor.as_base_exp() for factor in sympy.Mul.make_args(term) if not factor.is_number]
            degree = sum(int(exponent) for _, exponent in powers)
            of_n = sum(int(exponent) for base, exponent in powers if sympy.Symbol("n") in _plain(base))
            return not term.has(sympy.ceiling), -degree, -of_n, str(term)

        first, *rest = sorted(expr.args, key=lambda term: (term.could_extract_minus_sign(), size(term)))
        text = self._print(first)
        for term in sorted(rest, key=size):
            negative = term.could_extract_minus_sign()
            text += f" {'−' if negative else '+'} {self._print(-term if negative else term)}"
        return text

    def _print_Mul(self, expr: sympy.Mul) -> str:
        numerator, denominator = expr.as_numer_denom()
        if denominator != 1:
            return f"{self._factors(numerator)}/{self._factors(denominator)}"
        return self._factors(expr)

    def _factors(self, expr: sympy.Expr) -> str:
        def place(factor: sympy.Expr) -> tuple[int, str]:
            kind = 0 if factor.is_number else 1 if factor.as_base_exp()[0].is_Symbol else 2
            return kind, "" if kind < 1 else str(factor).replace("n", "\0")  # the paper writes nd, n before d

        parts: list[str] = []
        for factor in sorted(sympy.Mul.make_args(expr), key=place):
            text = self._print(factor)
            text = f"({text})" if factor.is_Add else text
            parts.append(text)
        names = [
            str(factor.as_base_exp()[0]) for factor in sympy.Mul.make_args(expr) if factor.as_base_exp()[0].is_Symbol
        ]
        if any(len(name) > 1 for name in names):
            return "·".join(parts)
        line = parts[0]
        for part in parts[1:]:
            line += f"·{part}" if re.match(r"\w{2,}\(|Σ", part) else part
        return line

    def _print_Pow(self, expr: sympy.Pow, rational: bool = False) -> str:
        base, exponent = expr.as_base_exp()
        if exponent.is_Integer:
            text = self._print(base)
            return (f"({text})" if base.is_Add else text) + str(exponent).translate(_RAISED)
        return str(super()._print_Pow(expr, rational))

    def _print_ceiling(self, expr: sympy.ceiling) -> str:
        return f"⌈{self._print(expr.args[0])}⌉"

    def _print_floor(self, expr: sympy.floor) -> str:
        return f"⌊{self._print(expr.args[0])}⌋"

    def _print_Sum(self, expr: sympy.Sum) -> str:
        i, first, last = expr.limits[0]
        return f"Σ_{{{self._print(first)} ≤ {i} < {self._print(last + 1)}}} {self._print(expr.function)}"

    def _print_Max(self, expr: sympy.Max) -> str:
        return f"max({', '.join(self._print(arg) for arg in expr.args)})"

    def _print_Min(self, expr: sympy.Min) -> str:
        return f"min({', '.join(self._print(arg) for arg in sorted(expr.args, key=str, reverse=True))})"


def written(expr: sympy.Expr) -> str:
    """An expression in the notation of the paper."""
    return str(_Printer().doprint(expr))
