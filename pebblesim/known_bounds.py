"""The expressions inside Θ, in words; lower bounds with constants are in `pebblesim.lower_bounds`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from pebblesim.problems import ACTIVATIONS


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

    def of_pairs(self) -> Theta:
        """The same under a mask that allows Z pairs."""
        return Theta(self.expr.replace("n**2", "Z"), f"{self.source}; under a mask with Z pairs for n²")


THETA = {
    "backward": Theta(
        "d*n + Min(d**2*n**2/M, d*n**2/sqrt(M))",
        "Li et al., Theorem 1.1, with the compulsory n·d added (for n ≥ d)",
    ),
    "forward": Theta(
        "d*n + Min(d**2*n**2/M, d*n**2/sqrt(M))",
        "Saha & Ye 2024, Theorems 3.1 and 3.7, with the compulsory n·d added (for n ≥ d)",
    ),
    "backward-qkv": Theta(
        "d*n + Min(d**2*n**2/M, d*n**2/sqrt(M))",
        "Li et al., Theorem 1.1 for its core, with the compulsory n·d added (for n ≥ d)",
    ),
    **{
        f"{way}-{activation}": Theta(
            "d*n + Min(d**2*n**2/M, d*n**2/sqrt(M))",
            "Li et al., Remark 5.1, with the compulsory n·d added (for n ≥ d)",
        )
        for way in ("forward", "backward")
        for activation in ACTIVATIONS
    },
    **{
        f"projected-{core}": Theta(
            "d*n + d**2*n/sqrt(M) + Min(d**2*n**2/M, d*n**2/sqrt(M))",
            f"that of {core}, with three products by d x d weights added (for n ≥ d)",
        )
        for core in ("forward", "backward-qkv")
    },
    "linear": Theta("d*n + d**2*n/sqrt(M)", "products with d x d matrices alone: Hong & Kung 1981 (for n ≥ d)"),
    "matmul": Theta(
        "m*k + k*n + m*n + m*k*n/sqrt(M)", "Hong & Kung 1981, Corollary 6.2, with the compulsory terms added"
    ),
}
