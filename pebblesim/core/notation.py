"""Parse expressions, and print them in the paper's notation (5nd⌈n/B⌉ + n²⌈d/B⌉) or in LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import sympy
from sympy.printing.str import StrPrinter

from pebblesim.core.arithmetic import function_of, names_in
from pebblesim.core.errors import UsageError, as_given

Expression: TypeAlias = "str | int | sympy.Expr"


def parse(expression: Expression) -> sympy.Expr:
    """Parse an expression with sympy; its symbols have no assumptions.

    The symbols are positive integers, but sympy is not told so: for positive integers sympy 1.14 simplifies Max(n,
    n/(d*M)) to n/(d*M), which is wrong.

    Args:
        expression: text such as "n**2/sqrt(M)", a number, or a sympy expression.

    Returns:
        The expression.

    >>> parse("n**2/sqrt(M) + ceiling(n/B)")
    ceiling(n/B) + n**2/sqrt(M)

    Raises:
        UsageError: the text is not a valid expression.
    """
    if not isinstance(expression, str):
        parsed = _not_text(expression)
        return parsed.xreplace({known: sympy.Symbol(known.name) for known in parsed.free_symbols})
    known = "+, -, *, /, **, sqrt, Min, Max, ceiling, floor"
    functions = {name: getattr(sympy, name) for name in ("sqrt", "Min", "Max", "ceiling", "floor", "Rational")}
    try:
        names = sorted(names_in(expression) - set(functions))
        evaluate = function_of(expression, names, {"number": sympy.sympify, **functions})
        return sympy.sympify(evaluate(*map(sympy.Symbol, names)), strict=True)
    except (sympy.SympifyError, TypeError, ValueError, SyntaxError) as error:
        raise UsageError(f"{as_given(expression)} is not a valid expression in {known}: {error}") from None


def _not_text(expression: object) -> sympy.Expr:
    try:
        parsed = sympy.sympify(expression, strict=True)
    except (sympy.SympifyError, TypeError, ValueError):
        parsed = None
    if not isinstance(parsed, sympy.Expr):
        raise UsageError(f"{as_given(expression)} was given; an expression is a text, a number or one of sympy's.")
    return parsed


def comparisons_in(region: str) -> Iterator[tuple[sympy.Expr, sympy.Expr]]:
    """Yield (larger, smaller) for each comparison in the text of a region."""
    for text in filter(None, map(str.strip, region.split(","))):
        sides = re.split(r"(<=|>=|==)", text)
        if len(sides) != 3:
            raise UsageError(f"{text!r} is not a comparison; write a region as 'n >= d, M >= d**2, M <= n*d'.")
        left, sign, right = parse(sides[0]), sides[1], parse(sides[2])
        if sign in (">=", "=="):
            yield left, right
        if sign in ("<=", "=="):
            yield right, left


_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def _names(expr: sympy.Expr) -> set[str]:
    """Names of its symbols, bound ones too; sympy evaluates a sum anew to find those that are free."""
    return {symbol.name for symbol in expr.atoms(sympy.Symbol)}


class _Printer(StrPrinter):
    def _print_Add(self, expr: sympy.Add, order: object = None) -> str:
        def size(term: sympy.Expr) -> tuple[bool, int, int, str]:
            powers = [factor.as_base_exp() for factor in sympy.Mul.make_args(term) if _names(factor)]
            degree = sum(int(exponent) for _, exponent in powers)
            of_n = sum(int(exponent) for base, exponent in powers if "n" in _names(base))
            return not term.has(sympy.ceiling), -degree, -of_n, str(term)

        sizes = {term: size(term) for term in expr.args}
        first = min(expr.args, key=lambda term: (term.could_extract_minus_sign(), sizes[term]))
        text = self._print(first)
        for term in sorted(sizes.keys() - {first}, key=sizes.__getitem__):
            negative = term.could_extract_minus_sign()
            text += f" {'−' if negative else '+'} {self._print(-term if negative else term)}"
        return text

    def _print_Mul(self, expr: sympy.Mul) -> str:
        if expr.could_extract_minus_sign():  # else the factor −1 would be printed
            return f"−{self._print(-expr)}"
        numerator, denominator = expr.as_numer_denom()
        if denominator != 1:
            below = self._factors(denominator)
            return f"{self._factors(numerator)}/{f'({below})' if denominator.is_Mul else below}"
        return self._factors(expr)

    def _factors(self, expr: sympy.Expr) -> str:
        def place(factor: sympy.Expr) -> tuple[int, str]:
            kind = 0 if not _names(factor) else 1 if factor.as_base_exp()[0].is_Symbol else 2
            return kind, "" if kind < 1 else str(factor).replace("n", "\0")  # the paper writes n before d: nd

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
    """Format an expression in the notation of the paper."""
    return str(_Printer().doprint(expr))


def in_latex(expr: Expression) -> str:
    """Format an expression in LaTeX math."""
    return str(sympy.latex(parse(expr)))


def domain_in_latex(domain: str) -> str:
    """Format a domain such as "4·d² ≤ M", "n >= d, M <= n*d" or "every M" in LaTeX math."""
    for people, program in (("·", "*"), ("²", "**2"), ("min(", "Min("), ("≤", "<="), ("≥", ">=")):
        domain = domain.replace(people, program)
    parts = [re.split("(<=|>=|==)", part) for part in re.split(r", (?![^()]*\))", domain)]
    if any(len(part) == 1 for part in parts):
        return text_in_latex(domain)
    signs = {"<=": r"\le", ">=": r"\ge", "==": "="}
    return r",\ ".join(" ".join(signs.get(side) or in_latex(side.strip()) for side in part) for part in parts)


_IN_LATEX = {"ᵀ": r"$^{\top}$", "²": r"$^{2}$", "³": r"$^{3}$", "√": r"$\surd$", "≠": r"$\ne$"}
_IN_LATEX |= {"≤": r"$\le$", "≥": r"$\ge$", "·": r"$\cdot$", "≫": r"$\gg$", "×": r"$\times$", "÷": r"$\div$"}
_IN_LATEX |= {sign: rf"$\{name}$" for sign, name in (("Θ", "Theta"), ("Ω", "Omega"), ("Σ", "Sigma"), ("∈", "in"))}
_IN_LATEX |= {
    "ε": r"$\varepsilon$",
    "⌈": r"$\lceil$",
    "⌉": r"$\rceil$",
    "<": "$<$",
    ">": "$>$",
    "ö": r"\"o",
    "∞": r"$\infty$",
    "§": r"\S{}",
}
_IN_LATEX |= {sign: rf"\{sign}" for sign in "&%$#_{}"}


def text_in_latex(text: str) -> str:
    """Words for mathematics: as `\\text`, what LaTeX takes for signs of its own escaped."""
    return rf"\text{{{paragraph_in_latex(text)}}}"


def paragraph_in_latex(text: str) -> str:
    """Words for a paragraph: what LaTeX takes for signs of its own is escaped."""
    return "".join(_IN_LATEX.get(sign, sign) for sign in text)


IO = r"\mathrm{IO}"
"""The words that are moved, in LaTeX math; Q is a matrix."""


def align(rows: Iterable[Sequence[str]]) -> str:
    """Format rows of formulas as an `align*` environment of amsmath; the cells of each row are aligned."""
    lines = " \\\\\n".join("  " + " & ".join(row) for row in rows)
    return f"\\begin{{align*}}\n{lines}\n\\end{{align*}}"
