"""Evaluate expressions given as text, such as "Min(ceiling(M/(4*d)), d)", in a chosen arithmetic.

An arithmetic is a dictionary. Its entry "number" converts a number in the text; the other entries are functions by
name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Arithmetic = Mapping[str, Callable[..., Any]]

_ALLOWED = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Call, ast.Name, ast.Load, ast.Constant),
    *(ast.Lambda, ast.arguments, ast.arg),  # a lambda holds the terms of a sum
)


def names_in(text: str) -> set[str]:
    """Return the names of variables and functions in an expression.

    Raises:
        SyntaxError: the text is not a valid expression.
    """
    return {node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)}


def function_of(text: str, variables: Iterable[str], arithmetic: Arithmetic) -> Callable[..., Any]:
    """Compile an expression to a function of the variables, in this order; NameError if it uses another name.

    Raises:
        SyntaxError: the text is not a valid expression.
    """
    tree = ast.parse(f"lambda {', '.join(variables)}: 0", mode="eval")
    assert isinstance(tree.body, ast.Lambda)
    tree.body.body = _parsed(text).body
    if "number" in arithmetic:
        tree = _Numbers().visit(tree)
    code = compile(ast.fix_missing_locations(tree), "<expression>", "eval")
    function: Callable[..., Any] = eval(code, {"__builtins__": {}, **arithmetic})
    return function


def _parsed(text: str) -> ast.Expression:
    tree = ast.parse(text.strip(), mode="eval")
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise SyntaxError(f"{type(node).__name__} is not allowed in an expression")
    return tree


class _Numbers(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        is_number = isinstance(node.value, int | float)
        return ast.Call(ast.Name("number", ast.Load()), [node], []) if is_number else node
