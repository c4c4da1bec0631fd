"""Expressions as text, such as "Min(ceiling(M/(4*d)), d)", in whatever arithmetic they are to be evaluated.

An arithmetic is a table: what a number in the text becomes, under "number", and the functions that there are, by name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Arithmetic = Mapping[str, Callable[..., Any]]

_ALLOWED = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Call, ast.Name, ast.Load, ast.Constant),
    *(ast.Lambda, ast.arguments, ast.arg),  # the terms of a sum
)


def names_in(text: str) -> set[str]:
    """The names in an expression, of variables and of functions.

    Raises:
        SyntaxError: it is no expression.
    """
    return {node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)}


def function_of(text: str, variables: Iterable[str], arithmetic: Arithmetic) -> Callable[..., Any]:
    """A function of the variables, in order, that evaluates the expression; NameError if it uses another name.

    Raises:
        SyntaxError: it is no expression.
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
            raise SyntaxError(f"{type(node).__name__} has no place in an expression")
    return tree


class _Numbers(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        is_number = isinstance(node.value, int | float)
        return ast.Call(ast.Name("number", ast.Load()), [node], []) if is_number else node
