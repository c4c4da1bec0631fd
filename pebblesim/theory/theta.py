"""The expressions inside Θ, in words; lower bounds with constants are in `pebblesim.theory.lower_bounds`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from pebblesim.language.problems import ACTIVATIONS
from pebblesim.theory.literature import statement


@dataclass(frozen=True)
class Theta:
    """An expression inside Θ, as text that sympy can parse, with its source."""

    expr: str
    source: str

    def value(self, sizes: Mapping[str, int]) -> Decimal:
        """Its value, a real number to 28 digits, of any magnitude."""
        exact = {name: Decimal(size) for name, size in sizes.items()}
        names: dict[str, object] = {"sqrt": Decimal.sqrt, "Min": min, "Max": max, **exact}
        return Decimal(eval(self.expr, {"__builtins__": {}}, names))  # our own text below

    def to_dict(self, value: Decimal | None) -> dict[str, str | int | float | None]:
        """As printed with `--json`, the value as a whole number where a float would lose digits, or overflow."""
        number = None if value is None else float(value) if value < 2**53 else int(value)
        return {"expr": self.expr, "value": number}

    @classmethod
    def of(cls, problem: str, masked: bool = False) -> Theta | None:
        """That of a problem, under a mask with its Z pairs in the place of n²; None if none is known."""
        known = THETA.get(problem)
        return known.of_pairs() if known and masked else known

    def of_pairs(self) -> Theta:
        """The same under a mask that allows Z pairs."""
        return Theta(self.expr.replace("n**2", "Z"), f"{self.source}; under a mask with Z pairs for n²")


def _theta(title: str, source: str, plus: str = "") -> Theta:
    """The repaired form of a statement, with what its problem costs besides."""
    expr = statement(title).repaired
    assert expr is not None
    return Theta(expr.replace("d*n + ", f"d*n + {plus}", 1), source)


_COMPULSORY = "with the compulsory n·d added (for n ≥ d)"

THETA = {
    "backward": _theta("Li et al., Theorem 1.1", f"Li et al., Theorem 1.1, {_COMPULSORY}"),
    "forward": _theta("Saha & Ye, Theorem 3.1", f"Saha & Ye 2024, Theorems 3.1 and 3.7, {_COMPULSORY}"),
    "backward-qkv": _theta("Li et al., Theorem 1.1", f"Li et al., Theorem 1.1 for its core, {_COMPULSORY}"),
    **{
        f"{way}-{activation}": _theta("Li et al., Remark 5.1", f"Li et al., Remark 5.1, {_COMPULSORY}")
        for way in ("forward", "backward")
        for activation in ACTIVATIONS
    },
    **{
        f"projected-{core}": _theta(
            of, f"that of {core}, with three products by d x d weights added (for n ≥ d)", "d**2*n/sqrt(M) + "
        )
        for core, of in (("forward", "Saha & Ye, Theorem 3.1"), ("backward-qkv", "Li et al., Theorem 1.1"))
    },
    "linear": Theta("d*n + d**2*n/sqrt(M)", "products with d x d matrices alone: Hong & Kung 1981 (for n ≥ d)"),
    "matmul": _theta("Hong & Kung, Corollary 6.2", "Hong & Kung 1981, Corollary 6.2, with the compulsory terms added"),
}
