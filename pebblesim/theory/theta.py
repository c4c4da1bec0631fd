"""The expressions inside Θ of the literature; lower bounds with constants are in `pebblesim.theory.lower_bounds`."""

from __future__ import annotations

from pebblesim.language.problems import Theta
from pebblesim.theory.literature import statement

COMPULSORY = "with the compulsory n·d added (for n ≥ d)"


def repaired(title: str, source: str, plus: str = "") -> Theta:
    """The repaired form of a statement, with what its problem costs besides."""
    expr = statement(title).repaired
    assert expr is not None
    return Theta(expr.replace("d*n + ", f"d*n + {plus}", 1), source)
