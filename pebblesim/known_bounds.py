"""Bounds on the I/O of a problem, in words: the expressions inside Θ, and lower bounds that hold for every size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from pebblesim.masks import Cut, Mask
from pebblesim.problems import ACTIVATIONS, Problem


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


@dataclass(frozen=True)
class LowerBound:
    """A number of words that no schedule can go below, and why."""

    value: int
    source: str


def compulsory(problem: Problem, dims: Mapping[str, int], mask: Mask | None = None) -> LowerBound:
    """Every input is read once and every output written once, whatever M is.

    The inputs that only some schedules ask for are not counted, so that it holds for all of them; under a mask, those
    rows of inputs are that belong to a query or a key with an allowed pair.
    """
    value = 0
    for name, shape in (*problem.inputs.items(), *problem.outputs.items()):
        words = 1
        for dim in shape:
            words *= dims[dim]
        if mask is not None and name in problem.inputs:
            words = (
                words * _needed(name, mask, dims["n"]) // dims["n"]
                if "n" in shape
                else words * bool(mask.pairs(dims["n"]))
            )
        value += words
    return LowerBound(value, "compulsory: each input read once, each output written once")


KEYS = ("K", "V", "A2", "A3")
"""Inputs with a row for each key; the others have one for each query."""


def _needed(name: str, mask: Mask, n: int) -> int:
    """Number of rows of an input that have an allowed pair."""
    one_by_one, whole = Cut(0, n, 1), Cut(0, n, n)
    return mask.tiles(n, whole, one_by_one) if name in KEYS else mask.tiles(n, one_by_one, whole)
