"""Attention with an elementwise activation instead of the softmax, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pebblesim.catalogue import backward, forward
from pebblesim.catalogue.theta import COMPULSORY, OF_BACKWARD, OF_QKV, repaired
from pebblesim.language.problems import Array, problem

ACTIVATIONS = ("relu", "sigmoid")
"""Elementwise activations in the place of exp, without normalisation."""

SOURCE = "Li et al., arXiv 2410.09397, Remark 5.1"
THETA = partial(repaired, "Li et al., Remark 5.1", f"Li et al., Remark 5.1, {COMPULSORY}")


def activations() -> dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]]:
    """Elementwise activations that replace exp, without normalisation, and their derivatives."""
    import numpy as np

    def sigmoid(z: Array) -> Array:
        t = np.exp(-np.abs(z))  # never overflows
        return np.where(z < 0, t, 1) / (1 + t)

    return {
        "relu": (lambda z: np.maximum(z, 0), lambda z: (z > 0).astype(z.dtype)),
        "sigmoid": (sigmoid, lambda z: sigmoid(z) * sigmoid(-z)),
    }


def forward_with(activation: str, x: Mapping[str, Array], allowed: Array | None = None) -> dict[str, Array]:
    value, _ = activations()[activation]
    A = value(x["Q"] @ x["K"].T)
    return {"O": (A if allowed is None else A * allowed) @ x["V"]}


def backward_with(activation: str, x: Mapping[str, Array], allowed: Array | None = None) -> dict[str, Array]:
    """dL/dX of A(A1 X A2ᵀ) A3 Y with an elementwise activation A."""
    _, slope = activations()[activation]
    p = (x["dO"] @ (x["A3"] @ x["Y"]).T) * slope(x["A1"] @ x["X"] @ x["A2"].T)
    return {"g": x["A1"].T @ (p if allowed is None else p * allowed) @ x["A2"]}


ON_THE_WAY = {
    "relu": {"slope": ("step(Z)", "derivative of relu at the scores: 1 where they are positive, else 0")},
    "sigmoid": {
        "A": ("sigmoid(Z)", "weights in the place of probabilities; their rows need not add up to 1"),
        "AA": ("A ∘ A", "squares of the weights"),
        "slope": ("A − A ∘ A", "derivative of the sigmoid at the scores"),
    },
}
"""(formula, meaning) of each tensor that only the backward pass of an activation has."""

for activation in ACTIVATIONS:
    problem(
        f"forward-{activation}",
        **forward.SHAPES,
        queries=("Q",),
        scaled=(("Q",), ()),
        keys=("K", "V"),
        values=partial(forward_with, activation),
        source=SOURCE,
        graph=f"pebblesim.graphs.activation:forward_{activation}",
        theta=THETA(rectangle=OF_QKV),
        bounds="forward",
        glossary=forward.GLOSSARY
        | {
            "A": (f"{activation}(S)", "weights in the place of probabilities; their rows need not add up to 1"),
            "O": ("A V", "the result: for each query, the sum of the values times their weights"),
        },
    )

for activation in ACTIVATIONS:
    problem(
        f"backward-{activation}",
        **backward.SHAPES,
        queries=("A1", "dO"),
        keys=("A2", "A3"),
        scaled=(("X",), ("g",)),
        values=partial(backward_with, activation),
        source=SOURCE,
        graph=f"pebblesim.graphs.activation:backward_{activation}",
        theta=THETA(rectangle=OF_BACKWARD),
        bounds="backward",
        glossary=backward.GLOSSARY
        | {"p": ("slope ∘ q", "gradient with respect to the scores Z")}
        | ON_THE_WAY[activation],
    )
