"""Lower bounds on dQ, dK and dV, with the probabilities P recomputed, or kept by the forward pass, for some or all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pebblesim.lower_bounds.bounds_forward import PROJECTED, PROJECTED_INPUTS, PROJECTIONS
from pebblesim.lower_bounds.closed_forms import subtracted
from pebblesim.lower_bounds.cutting import Between, Bounding, Cutting, CuttingBound, Either
from pebblesim.lower_bounds.instances import ANY_ORDER, Formulation, Lines, Product
from pebblesim.lower_bounds.words_at_once import words_at_once

SCORES = Product("Σ", "Q", "K", ("queries", "d_k", "keys"))
DP = Product("Θ", "dO", "V", ("queries", "d_v", "keys"))
GRADIENTS = [
    Product("dQ", "Θ", "K", ("queries", "keys", "d_k")),
    Product("dK", "Θ", "Q", ("keys", "queries", "d_k")),
    Product("dV", "Σ", "dO", ("keys", "queries", "d_v")),
]
LINES = Lines(("Q", "dO"), ("K", "V"), ("d_k", "d_v"))

MADE, KEPT, SOME = "P made", "P kept", "P kept for some pairs"


def _weighted(products: list[Product], *weights: int) -> list[Product]:
    return [product._replace(weight=weight) for product, weight in zip(products, weights, strict=True)]


WEIGHTED = _weighted(GRADIENTS, 12, 12, 17)
"""In E1, E1w and E1h dQ and dK weigh α = 12/17, where 2 α² ≤ 1, as both of their products join lines by Θ."""


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
    others = _weighted([*made, SCORES, DP], *[17] * (len(made) + 2))
    yield case.of_products("E1", "all products", [*others, *WEIGHTED])
    of_pairs = [*_weighted([SCORES, DP], 17, 17), *WEIGHTED]
    yield case.of_light_pairs("E1w", "products of pairs, free trees of pairs lighter", LINES, of_pairs, 17)
    yield case.of_one_product("E2", "products of dQ", LINES, GRADIENTS[0])


def _however_P(case: Cutting, any_order: bool) -> Iterator[CuttingBound]:
    """Bounds that hold wherever P comes from, in any order also with dQ = (dS A2) W_K and dK = (dSᵀ A1) W_Q.

    A pair is carried where its P is read, and the scores of E1h are those of the pairs whose P is not.
    """
    between = [("most queries", "d_k"), ("most keys", "d_k")] if any_order else []
    of_pairs, scores = [DP._replace(weight=17), *WEIGHTED], [SCORES._replace(weight=17)]
    what = "products of pairs but for the scores"
    without_scores = case.of_light_pairs("E1h", what, LINES, of_pairs, 17, between=between, of_some=scores)
    yield without_scores
    yield _of_some_pairs(case, without_scores, between)
    gradients = _weighted(GRADIENTS, 18, 18, 12)
    yield case.of_gradients("E3", "products of dQ, dK and dV", LINES, gradients, between)
    yield case.of_pairs("E4", "pairs", LINES)
    why_not = "queries or keys are made from weights" if case.made else ""
    sides = {"Q": "d_k", "dO": "d_v", "dQ": "d_k"}, {"K": "d_k", "V": "d_v", "dK": "d_k", "dV": "d_v"}
    one, both = ("d_k", "d_k", "d_v"), ("d_k", "d_v")
    yield words_at_once(case, "E7", sides, [(one, ()), ((), one), (both, both)], [one], why_not)


def _of_some_pairs(case: Cutting, made: CuttingBound, between: Sequence[Between]) -> CuttingBound:
    """Bound for P kept for some pairs: many pairs whose P is made have many scores, many others a P that is read.

    Args:
        case: the problem at its sizes.
        made: the bound without scores, E1h, to which each pair with P made adds its scores.
        between: matrices that stand between pairs and an output.
    """
    (k_text, d_k), (v_text, d_v) = (case.size((width,)) for width in ("d_k", "d_v"))
    what = "products of pairs, with the scores or with those of dV"
    kept = case.of_products("E1s", what, [DP, *GRADIENTS])._replace(free=made.free, ragged=made.ragged)
    width, size = case.width(LINES)
    if k_text == v_text:
        products, free = f"126*{case.Z_text}*{width}/(17*sqrt(M))", f"22*{case.Z_text}/17"
    else:
        both = f"({k_text} + {v_text})"
        products = f"2*{case.Z_text}*(2*{both} - 10*{k_text}*{v_text}/(17*{both}))/sqrt(M)"
        free = f"{case.Z_text}*(1 + 10*{k_text}/(17*{both}))"
    less = subtracted(Counter(case.size(sides)[0] for sides in between))
    form = f"{products} - {free} - 2*{v_text}/sqrt(M){less} - M"
    return made._replace(
        name="E1s",
        what=what,
        forms=[(form, 0, 4)],
        unit=(f"{width}²", size**2),
        light=None,
        table=(),
        either=Either(made._replace(light=None), kept, case.Z, 17 * d_k, d_v),
    )


def _with_W_V(case: Cutting) -> CuttingBound:
    """Bound on the products that dP needs in any order, those of V or those of dO W_Vᵀ."""
    narrow, wide = case.by_size("d", "d_v")
    values = Product("V", "A3", "W_V", ("cover", narrow, wide))
    return case.of_products("E1m", "products with W_V of V or of dO W_Vᵀ", [values], within=("dO",))


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
