"""Lower bounds on dQ, dK and dV, with the probabilities P recomputed, or kept by the forward pass."""

from __future__ import annotations

from collections.abc import Iterator

from pebblesim.lower_bounds.bounds_forward import PROJECTED, PROJECTIONS
from pebblesim.lower_bounds.cutting import Bounding, Cutting, CuttingBound
from pebblesim.lower_bounds.instances import Formulation, Lines, Product

DP = Product("Θ", "dO", "V", ("queries", "d_v", "keys"))
GRADIENTS = [
    Product("dQ", "Θ", "K", ("queries", "keys", "d_k")),
    Product("dK", "Θ", "Q", ("keys", "queries", "d_k")),
    Product("dV", "Σ", "dO", ("keys", "queries", "d_v")),
]
LINES = Lines(("Q", "dO"), ("K", "V"), ("d_k", "d_v"))

MADE, KEPT = "P made", "P kept"


def _weighted(products: list[Product], *weights: int) -> list[Product]:
    return [product._replace(weight=weight) for product, weight in zip(products, weights, strict=True)]


def _qkv(case: Cutting) -> Iterator[CuttingBound]:
    made = PROJECTIONS if case.made else []
    yield from _from_P(case, made) if _which(case.formulation) == KEPT else _with_scores(case, made)


def _with_scores(case: Cutting, made: list[Product]) -> Iterator[CuttingBound]:
    """Bounds for P recomputed from O and l, or m and l_m, or L. In E1, dQ and dK weigh α = 12/17, where 2 α² ≤ 1."""
    scores = Product("Σ", "Q", "K", ("queries", "d_k", "keys"))
    others = _weighted([*made, scores, DP], *[17] * (len(made) + 2))
    weighted = _weighted(GRADIENTS, 12, 12, 17)
    yield case.of_products("E1", "all products", [*others, *weighted])
    of_pairs = [*_weighted([scores, DP], 17, 17), *weighted]
    yield case.of_light_pairs("E1w", "products of pairs, free trees of pairs lighter", LINES, of_pairs, 17)
    yield case.of_one_product("E2", "products of dQ", LINES, GRADIENTS[0])
    yield case.of_gradients("E3", "products of dQ, dK and dV", LINES, _weighted(GRADIENTS, 18, 18, 12))
    yield case.of_pairs("E4", "pairs", LINES)
    short = "n is 4d at most" if case.size(("fewer",))[1] <= 4 * case.width(LINES)[1] else ""
    why_not = "queries or keys are made from weights" if case.made else short
    sides = Lines(("Q", "dO", "dQ"), ("K", "V", "dK", "dV"), ("d_k", "d_v"))
    yield case.of_words_at_once("E7", sides, 3, (12, 3), why_not)


def _from_P(case: Cutting, made: list[Product]) -> Iterator[CuttingBound]:
    """Bounds for P kept: every pair costs a word, and no scores are computed.

    In E6 P and Θ are one family, which is read.
    """
    dQ, dK, dV = GRADIENTS
    dV = dV._replace(left="P")
    yield case.of_products("E5", "all products, P kept", [*made, DP, dQ, dK, dV])
    one_family = [dQ._replace(left="P"), dK._replace(left="P"), dV]
    yield case.of_products("E6", "products of dQ, dK and dV, P kept", one_family)


def _which(formulation: Formulation) -> str:
    return KEPT if "P" in formulation.kept else MADE


BACKWARD_QKV = Bounding(
    ("Q", "K", "V", "dO", "dQ", "dK", "dV"),
    _qkv,
    ways={MADE: Formulation(), KEPT: Formulation(kept=("P",))},
    which=_which,
    made=PROJECTED,
)
