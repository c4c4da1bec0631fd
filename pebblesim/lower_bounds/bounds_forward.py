"""Lower bounds on the forward pass: scores, a function of them, and their product with V."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pebblesim.lower_bounds import bounds_products
from pebblesim.lower_bounds.cutting import Bounding, Cutting, CuttingBound
from pebblesim.lower_bounds.instances import ANY_ORDER, Formulation, Lines, Product
from pebblesim.lower_bounds.words_at_once import words_at_once, words_at_two_times

SCORES = Product("Σ", "Q", "K", ("queries", "d_k", "keys"))
OUTPUT = Product("O", "Σ", "V", ("queries", "keys", "d_v"))

PROJECTIONS = [
    Product("Q", "A1", "W_Q", ("queries", "d", "d_k")),
    Product("K", "A2", "W_K", ("keys", "d", "d_k")),
    Product("V", "A3", "W_V", ("keys", "d", "d_v")),
]
"""Q, K and V from weights."""

_LINEAR_S = Product("S", "A1", "X", ("queries", "d", "d"))
_LINEAR_h = Product("h", "A3", "Y", ("keys", "d", "d"))


def _bounds(case: Cutting, made: Sequence[Product], scores: Product, output: Product) -> Iterator[CuttingBound]:
    yield case.of_products("C2", "all products", [*made, scores, output])
    yield from _of_pairs(case, scores, output)
    why_not = "queries or keys are made from weights" if case.made else ""
    query, key, value, result = scores.left, scores.right, output.right, output.result
    sides = {query: "d_k", result: "d_v"}, {key: "d_k", value: "d_v"}
    one, inputs = ("d_k", "d_v"), ("d_k", "d_k")
    held = [(one, ()), ((), one), (inputs[:1], inputs[:1])]
    yield words_at_once(case, "C4", sides, held, [one, inputs], why_not)
    yield words_at_two_times(case, "C5", Lines((query, result), (key, value), ("d_k", "d_v")), why_not)


def _of_pairs(
    case: Cutting, scores: Product, output: Product, between: Sequence[tuple[str, str]] = ()
) -> Iterator[CuttingBound]:
    """Bounds on the products of pairs, which do not count the products with weights that Q, K and V are made by."""
    lines = Lines((scores.left,), (scores.right,), ("d_k",))
    what, tree = "products of pairs, free pairs lighter", scores.weight
    yield case.of_one_product("C1", "products with V of pairs", lines, output, between=between)
    yield case.of_light_pairs("C2w", what, lines, (scores, output), tree, between=between)
    yield case.of_pairs("C3", "pairs", lines)


def _forward(case: Cutting) -> Iterator[CuttingBound]:
    yield from _bounds(case, (), SCORES, OUTPUT)


def _projected(case: Cutting) -> Iterator[CuttingBound]:
    if _which(case.formulation) == ANY_ORDER:
        yield from _of_pairs(case, SCORES, OUTPUT, between=[("most queries", "d_v")])  # P A3
    else:
        yield from _bounds(case, PROJECTIONS, SCORES, OUTPUT)
    narrow, _ = case.by_size("d", "d_k")
    lines = [Product("Q", "A1", "W_Q", ("cover", narrow, "d"))]
    yield case.of_products("C2m", "products with weights of queries or keys", lines, within=("A2", "W_K"))


def _which(formulation: Formulation) -> str:
    return ANY_ORDER if formulation.graph.get("absorbed") else PROJECTS


def _linear(case: Cutting) -> Iterator[CuttingBound]:
    yield bounds_products.any_order(case)
    order = _order(case.formulation)
    if order == "linear order":
        yield bounds_products.linear(case)
    if order != "quadratic order":
        return
    scores, output = SCORES._replace(left="S", right="A2"), OUTPUT._replace(right="h")
    yield from _bounds(case, (_LINEAR_S, _LINEAR_h), scores, output)


OF_LATENT = (
    Product("Σ", "Q_C", "C", ("queries", "d_v", "keys"), 12),
    Product("Σ", "Q_R", "R", ("queries", "d_r", "keys"), 17),
    Product("O", "Σ", "C", ("queries", "keys", "d_v"), 12),
)
"""Scores of both parts of a key, and the first part as its value: 2·12² ≤ 17², as both of its products join C."""


def _latent(case: Cutting) -> Iterator[CuttingBound]:
    lines = Lines(("Q_C", "Q_R"), ("C", "R"), ("d_v", "d_r"))
    yield case.of_values_in_keys("V1", "products with the values of pairs", lines, OF_LATENT[2]._replace(weight=1))
    of_value, of_rest = OF_LATENT[0].weight, OF_LATENT[1].weight
    both, least = (
        of_value + of_rest,
        of_value,
    )  # a score is 12d_v + 17d_r products: 29 of the narrower part, 12d_k at least
    if both * case.width(lines)[1] >= least * case.size(("d_k",))[1]:
        yield case.of_light_pairs("V2", "all products", lines, OF_LATENT, both)
    else:
        yield case.of_light_pairs("V2", "all products", lines._replace(widths=("d_k", "d_k")), OF_LATENT, least)
    yield case.of_pairs("V3", "pairs", lines)


OF_LATENT_BACKWARD = (
    Product("Σ", "Q_C", "C", ("queries", "d_v", "keys"), 18),
    Product("Σ", "Q_R", "R", ("queries", "d_r", "keys"), 26),
    Product("Θ", "dO", "C", ("queries", "d_v", "keys"), 15),
    Product("dQ_C", "Θ", "C", ("queries", "keys", "d_v"), 15),
    Product("dC", "Θ", "Q_C", ("keys", "queries", "d_v"), 15),
    Product("dC", "Σ", "dO", ("keys", "queries", "d_v"), 18),
    Product("dQ_R", "Θ", "R", ("queries", "keys", "d_r"), 18),
    Product("dR", "Θ", "Q_R", ("keys", "queries", "d_r"), 18),
)
"""Two products of latent parts have Σ, three have Θ: 2·18² ≤ 26² and 3·15² ≤ 26²; of the rotary ones one and two."""


def _latent_backward(case: Cutting) -> Iterator[CuttingBound]:
    """The trees of dP, d_v products, are the smallest of the free ones."""
    lines = Lines(("Q_C", "Q_R", "dO"), ("C", "R"), ("d_v", "d_v"))
    of_dP = OF_LATENT_BACKWARD[2].weight
    yield case.of_light_pairs("V4", "all products of pairs", lines, OF_LATENT_BACKWARD, of_dP)
    yield case.of_pairs("V5", "pairs", Lines(("Q_C", "Q_R"), ("C", "R"), ("d_v", "d_r")))


def _order(formulation: Formulation) -> str:
    order = formulation.graph.get("order", "linear")
    return ANY_ORDER if order == "any" else f"{order} order"


PROJECTED = {"Q": "A1", "K": "A2", "V": "A3"}
PROJECTED_INPUTS = ("A1", "A2", "A3", "W_Q", "W_K", "W_V")
PROJECTS = "Q, K and V made"

FORWARD = Bounding(("Q", "K", "V", "O"), _forward)
PROJECTED_FORWARD = Bounding(
    (*PROJECTED_INPUTS, "O"),
    _projected,
    ways={PROJECTS: Formulation(), ANY_ORDER: Formulation(graph={"absorbed": ("W_K", "W_V")})},
    which=_which,
    made=PROJECTED,
)
LATENT = Bounding(("Q_C", "Q_R", "C", "R", "O"), _latent)
LATENT_BACKWARD = Bounding(("Q_C", "Q_R", "C", "R", "dO", "dQ_C", "dQ_R", "dC", "dR"), _latent_backward)
LINEAR = Bounding(
    ("A1", "A2", "A3", "X", "Y", "O"),
    _linear,
    ways={_order(each): each for each in (Formulation(graph={"order": o}) for o in ("linear", "quadratic", "any"))},
    which=_order,
    made={"S": "A1", "h": "A3"},
)
