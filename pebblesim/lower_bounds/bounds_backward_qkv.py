"""Lower bounds on dQ, dK and dV, with the probabilities P recomputed, or saved by the forward pass, for some or all."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import NamedTuple

from pebblesim.lower_bounds.bounds_forward import PROJECTED, PROJECTED_INPUTS, PROJECTIONS
from pebblesim.lower_bounds.capacities import Columns, Gradients
from pebblesim.lower_bounds.cutting import Bounding, Cutting, CuttingBound, with_other_weights
from pebblesim.lower_bounds.further_episodes import NewGradients, new_gradients
from pebblesim.lower_bounds.instances import ANY_ORDER, Formulation, Lines, Product
from pebblesim.lower_bounds.words_at_once import words_at_once, words_at_several_times

SCORES = Product("Σ", "Q", "K", ("queries", "d_k", "keys"))
DP = Product("Θ", "dO", "V", ("queries", "d_v", "keys"))
GRADIENTS = [
    Product("dQ", "Θ", "K", ("queries", "keys", "d_k")),
    Product("dK", "Θ", "Q", ("keys", "queries", "d_k")),
    Product("dV", "Σ", "dO", ("keys", "queries", "d_v")),
]
LINES = Lines(("Q", "dO"), ("K", "V"), ("d_k", "d_v"))

MADE, KEPT, SOME = "P made", "P saved", "P saved for some pairs"


ANGLES = ((1, 3), (3, 10), (4, 15), (1, 5), (2, 15), (1, 12), (1, 30), (1, 100))
"""Rational values of tan ψ/2 for `Weights.at`, from the largest angle, 37°, to the least."""


class Weights(NamedTuple):
    """Weights of products for backward-qkv: a segment has at most `full`·(X/3)^(3/2) of them.

    Attributes:
        scores: s, of a product of scores.
        gradients: a, of a product of dQ or of dK. Both join lines by Θ, and scores join Q and K by Σ.
        full: w, of each other product.
    """

    scores: int
    gradients: int
    full: int

    @classmethod
    def at(cls, angle: tuple[int, int]) -> Weights:
        """Return s = w sin 2ψ and a = w cos ψ with tan ψ/2 = p/q, in the least whole numbers: ws = 2a √(w² - a²)."""
        p, q = angle
        sine, cosine, one = 2 * p * q, q**2 - p**2, q**2 + p**2
        each = 2 * sine * cosine, cosine * one, one**2
        return cls(*(weight // gcd(*each) for weight in each))

    def of_pairs(self) -> tuple[Product, list[Product]]:
        """Return the products of scores, and those of dP and of the three gradients, by their weights."""
        dQ, dK, dV = GRADIENTS
        lighter = [product._replace(weight=self.gradients) for product in (dQ, dK)]
        others = [DP._replace(weight=self.full), *lighter, dV._replace(weight=self.full)]
        return SCORES._replace(weight=self.scores), others


EVEN = Weights(17, 12, 17)
"""Weights for which 2·12² ≤ 17² takes the place of a chain: where other matrices join in, or rows differ in width."""


def _qkv(case: Cutting) -> Iterator[CuttingBound]:
    which, made = _which(case.formulation), PROJECTIONS if case.made else []
    if which == KEPT:
        yield from _from_P(case, made)
    elif which == MADE:
        yield from _with_scores(case, made)
    if case.made:
        yield _with_W_V(case)
    yield from _however_P(case.without_kept("P"), which == ANY_ORDER)


def _with_scores(case: Cutting, made: list[Product]) -> Iterator[CuttingBound]:
    """Bounds for P recomputed from O and l, or m and l_m, or L."""

    def of_pairs(weights: Weights) -> CuttingBound:
        scores, others = weights.of_pairs()
        bound = case.of_light_pairs("E1", "all products of pairs", LINES, [scores, *others], weights.scores)
        return bound._replace(tree=_least_tree(case, weights))

    even, *angles = (of_pairs(each) for each in (EVEN, *map(Weights.at, ANGLES[:3])))  # smaller ones have less products
    yield with_other_weights(*angles, without_form=[even])
    if made:
        scores, others = EVEN.of_pairs()
        with_weights = [product._replace(weight=EVEN.full) for product in made]
        yield case.of_products("E1p", "all products, those with weights among them", [*with_weights, scores, *others])
    yield case.of_one_product("E2", "products of dQ", LINES, GRADIENTS[0])


def _however_P(case: Cutting, any_order: bool) -> Iterator[CuttingBound]:
    """Bounds that hold wherever P comes from, in any order also with dQ = (dS A2) W_K and dK = (dSᵀ A1) W_Q.

    A pair is carried where its P is read, and the scores of E1h are those of the pairs whose P is not.
    """
    between = [("most queries", "d_k"), ("most keys", "d_k")] if any_order else []

    def without_scores(weights: Weights) -> CuttingBound:
        scores, others = weights.of_pairs()
        what, least = "products of pairs but for the scores", weights.scores
        bound = case.of_light_pairs("E1h", what, LINES, others, least, between=between, of_some=[scores])
        return bound._replace(tree=_least_tree(case, weights))

    even, *angles = (without_scores(each) for each in (EVEN, *map(Weights.at, ANGLES)))
    in_columns = [] if between else [_in_columns(case, times) for times in _eighths(case)]
    yield with_other_weights(*angles, without_form=[even, *in_columns])
    yield case.of_gradients("E3", "products of dQ, dK and dV", LINES, _weighing(Gradients.weights), between)
    yield case.of_pairs("E4", "pairs", LINES)
    why_not = "queries or keys are made from weights" if case.made else ""
    weighing = _weighing(NewGradients.weights)
    yield new_gradients(case, "E8", "products of dQ, dK and dV, their sums moved again", LINES, weighing, why_not)
    sides = {"Q": "d_k", "dO": "d_v", "dQ": "d_k"}, {"K": "d_k", "V": "d_v", "dK": "d_k", "dV": "d_v"}
    one, both = ("d_k", "d_k", "d_v"), ("d_k", "d_v")
    yield words_at_once(case, "E7", sides, [(one, ()), ((), one), (both, both)], [one], why_not)
    yield words_at_several_times(case, "E9", sides, outputs=1, why_not=why_not)


def _eighths(case: Cutting) -> set[int]:
    """Weights of all products but those of scores, which weigh 1: eighths of d_k, so that a score outweighs ρ."""
    _, d_k = case.size(("d_k",))
    return {max(1, d_k * part // 8 - 1) for part in range(1, 9)}


def _in_columns(case: Cutting, times: int) -> CuttingBound:
    """Return E1h for few words, where each product but those of scores counts this number of times."""
    weights = Weights(1, times, times)
    bound = case.of_products("E1h", "products of pairs but for the scores", weights.of_pairs()[1])
    return bound._replace(capacity=Columns(times, scores=1), tree=_least_tree(case, weights))


def _weighing(weights: tuple[int, int, int]) -> list[Product]:
    """Return the products of the three gradients with these weights."""
    return [product._replace(weight=weight) for product, weight in zip(GRADIENTS, weights, strict=True)]


def _least_tree(case: Cutting, weights: Weights) -> int:
    """Return the products of a score or of an element of dP, by their weights, whichever are fewer."""
    scores, others = weights.of_pairs()
    return min(product.weight * case.terms(product)[1] for product in (scores, others[0]))


def _with_W_V(case: Cutting) -> CuttingBound:
    """Bound on the products that dP needs in any order, those of V or those of dO W_Vᵀ."""
    narrow, wide = case.by_size("d", "d_v")
    values = Product("V", "A3", "W_V", ("cover", narrow, wide))
    return case.of_products("E1m", "products with W_V of V or of dO W_Vᵀ", [values], within=("dO",))


def _from_P(case: Cutting, made: list[Product]) -> Iterator[CuttingBound]:
    """Bounds for P saved: every pair costs a word, and no scores are computed.

    In E6 P and Θ are one family, which is read.
    """
    dQ, dK, dV = GRADIENTS
    dV = dV._replace(left="P")
    yield case.of_products("E5", "all products, P saved", [*made, DP, dQ, dK, dV])
    one_family = [dQ._replace(left="P"), dK._replace(left="P"), dV]
    yield case.of_products("E6", "products of dQ, dK and dV, P saved", one_family)


def _which(formulation: Formulation) -> str:
    if formulation.graph.get("absorbed"):
        return ANY_ORDER
    if formulation.graph.get("kept") == "some":
        return SOME
    return KEPT if "P" in formulation.kept else MADE


_GIVEN = {MADE: Formulation(), KEPT: Formulation(kept=("P",))}

BACKWARD_QKV = Bounding(
    ("Q", "K", "V", "dO", "dQ", "dK", "dV"),
    _qkv,
    ways={**_GIVEN, SOME: Formulation(graph={"kept": "some"})},
    which=_which,
)
PROJECTED_BACKWARD_QKV = Bounding(
    (*PROJECTED_INPUTS, "dO", "dQ", "dK", "dV"),
    _qkv,
    ways={**_GIVEN, ANY_ORDER: Formulation(graph={"absorbed": ("W_K", "W_V")})},
    which=_which,
    made=PROJECTED,
)
