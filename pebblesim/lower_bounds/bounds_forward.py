"""Lower bounds on the forward pass: scores, a function of them, and their product with V."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pebblesim.lower_bounds import bounds_products
from pebblesim.lower_bounds.cutting import Bounding, Cutting, CuttingBound
from pebblesim.lower_bounds.instances import Formulation, Lines, Product

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
    lines = Lines((scores.left,), (scores.right,), ("d_k",))
    yield case.of_one_product("C1", "products with V of pairs", lines, output)
    yield case.of_products("C2", "all products", [*made, scores, output])
    yield case.of_pairs("C3", "pairs", lines)
    why_not = "queries or keys are made from weights" if case.made else ""
    sides = Lines((scores.left, output.result), (scores.right, output.right), ("d_k", "d_v"))
    yield case.of_words_at_once("C4", sides, 2, (4, 1), why_not)
    yield case.of_words_at_two_times("C5", sides, why_not)
    yield case.of_light_pairs("C2w", "products of pairs, free pairs lighter", lines, (scores, output), scores.weight)


def _forward(case: Cutting) -> Iterator[CuttingBound]:
    yield from _bounds(case, PROJECTIONS if case.made else (), SCORES, OUTPUT)


def _linear(case: Cutting) -> Iterator[CuttingBound]:
    if _order(case.formulation) == "linear order":
        yield bounds_products.linear(case)
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


def _order(formulation: Formulation) -> str:
    return f"{formulation.graph.get('order', 'linear')} order"


PROJECTED = {"Q": "A1", "K": "A2", "V": "A3"}

FORWARD = Bounding(("Q", "K", "V", "O"), _forward, made=PROJECTED)
LATENT = Bounding(("Q_C", "Q_R", "C", "R", "O"), _latent)
LINEAR = Bounding(
    ("A1", "A2", "A3", "X", "Y", "O"),
    _linear,
    ways={f"{order} order": Formulation(graph={"order": order}) for order in ("linear", "quadratic")},
    which=_order,
    made={"S": "A1", "h": "A3"},
)
