"""Lower bounds on dL/dX: S = A1 X and h = A3 Y, scores and q, and g = A1ᵀ p A2, in these and in other orders."""

from __future__ import annotations

from collections.abc import Iterator

from pebblesim.lower_bounds.cutting import Bounding, Cutting, CuttingBound, with_other_weights
from pebblesim.lower_bounds.instances import ANY_ORDER, Formulation, Lines, Product
from pebblesim.lower_bounds.parts_of_sums import parts_of_sums
from pebblesim.lower_bounds.words_at_once import words_at_once, words_at_several_times

IN_FULL = [
    Product("S", "A1", "X", ("queries", "d", "d")),
    Product("h", "A3", "Y", ("keys", "d", "d")),
    Product("Σ", "S", "A2", ("queries", "d", "keys")),
    Product("Θ", "dO", "h", ("queries", "d", "keys")),
]
"""The products that all ways of computing with S = A1 X and h = A3 Y have."""

DQ = Product("dQ", "Θ", "A2", ("queries", "keys", "d"))
G = Product("g", "A1", "dQ", ("d", "fewer", "d"))
"""The products in the order U. In the order T = A1ᵀ p, queries and keys are exchanged; g has n_k d² products then."""

WITH_WEIGHTS = [Product("S", "A1", "X", ("cover", "d", "d")), Product("h", "A3", "Y", ("cover", "d", "d"))]
"""Rows of S or of A2 Xᵀ, and of h or of dO Yᵀ: of each allowed pair, its query has such a row or its key."""

LINES = Lines(("S", "dO"), ("A2", "h"))

ONE_FAMILY = [
    Product("Π", "S", "A2", ("queries", "d", "keys"), 12),
    Product("Π", "dO", "h", ("queries", "d", "keys"), 17),
    Product("dQ", "Π", "A2", ("queries", "keys", "d"), 12),
]
"""Products for D4, where Σ and Θ of a pair are one family. The weights satisfy 2·(12/17)² ≤ 1."""

DIRECT, REGROUPED = "g = A1ᵀ p A2", "g regrouped by rows"
ABSORBED = "any order of the products, g = A1ᵀ p A2"


def _backward(case: Cutting) -> Iterator[CuttingBound]:
    """Under a mask D1 does not count the products of g, because a row or column with few pairs is cheap to compute."""
    which = _which(case.formulation)
    regrouped = which in (REGROUPED, ANY_ORDER)
    in_blocks = "the graph has g as a sum over blocks of rows, which is not A1ᵀ p A2 with n²d products"
    why_not = in_blocks if regrouped else ""
    what = "all products but those of g" if case.masked else "all products"
    if which in (DIRECT, REGROUPED):  # else rows of A2 Xᵀ or of dO Yᵀ may be made, in the place of S or h
        of_pairs = case.of_products("D1", what, [*IN_FULL[2:], DQ], why_not)
        yield with_other_weights(case.of_products("D1", what, [*IN_FULL, DQ, G], why_not), without_form=[of_pairs])
        yield case.of_products("D1r", "products of S, h, scores and q", IN_FULL)
        yield case.of_one_product("D2", "products of p with A2 or A1", LINES, DQ, why_not)
    yield case.of_products("D1m", "products with X and with Y", WITH_WEIGHTS, within=("A2", "dO"))
    yield case.of_pairs("D3", "pairs", LINES)
    yield from _merged(case, why_not, which == ANY_ORDER)
    yield parts_of_sums(case, "D7", "products of pairs, and parts of their sums", (*LINES.query, *LINES.key, "g"))
    sides = {"S": "d", "dO": "d"}, {"A2": "d", "h": "d"}
    yield words_at_once(case, "D5", sides, [(("d", "d"), ()), ((), ("d", "d"))], [("d", "d")])
    yield words_at_several_times(case, "D6", sides)


def _merged(case: Cutting, why_not: str, any_order: bool) -> Iterator[CuttingBound]:
    """Bound with Σ and Θ of a pair as one family.

    If l is kept, only p leaves it; otherwise A may leave it, too, as may f where p A2 is (f∘q) A2 - v (f A2).
    """
    scores, q, dQ = ONE_FAMILY
    whole = "l" in case.formulation.kept and not any_order
    tree = scores.weight + (q.weight if whole else 0)
    if not any_order:
        yield case.of_light_pairs("D4", "products of pairs, one family a pair", LINES, [scores, q, dQ], tree, why_not)
    made = [product._replace(weight=1) for product in (scores, q)]
    yield case.of_light_pairs("D4r", "products that make pairs, one family a pair", LINES, made, 2 if whole else 1)


def _which(formulation: Formulation) -> str:
    absorbed, regrouped = formulation.graph.get("absorbed"), formulation.graph.get("row_block") is not None
    if absorbed:
        return ANY_ORDER if regrouped else ABSORBED
    return REGROUPED if regrouped else DIRECT


BACKWARD = Bounding(
    ("A1", "A2", "A3", "dO", "X", "Y", "g"),
    _backward,
    ways={
        DIRECT: Formulation(),
        REGROUPED: Formulation(graph={"row_block": 1}),
        ABSORBED: Formulation(graph={"absorbed": ("X", "Y")}),
        ANY_ORDER: Formulation(graph={"absorbed": ("X", "Y"), "row_block": 1}),
    },
    which=_which,
    made={"S": "A1", "h": "A3"},
)
