"""dL/dX of attention (Li et al.)."""

from __future__ import annotations

from collections.abc import Mapping

from pebblesim.catalogue.softmax import softmax
from pebblesim.catalogue.theta import COMPULSORY, OF_BACKWARD, repaired
from pebblesim.language.problems import Array, problem


def reference(x: Mapping[str, Array], allowed: Array | None = None) -> dict[str, Array]:
    """dL/dX of attention, directly from the definitions (Li et al., Defs. 3.2 and B.3-B.9)."""
    kept = softmax(x["A1"] @ x["X"] @ x["A2"].T, allowed)
    f = kept["P"]
    h = x["A3"] @ x["Y"]
    q = x["dO"] @ h.T
    p = f * q - (f * q).sum(axis=1)[:, None] * f
    return {"g": x["A1"].T @ p @ x["A2"], "O": f @ h, "l": kept["l"]}


SHAPES = {
    "dims": ("n_q", "n_k", "d"),
    "from_nd": {"n_q": "n", "n_k": "n", "d": "d"},
    "inputs": {
        "A1": ("n_q", "d"),
        "A2": ("n_k", "d"),
        "A3": ("n_k", "d"),
        "dO": ("n_q", "d"),
        "X": ("d", "d"),
        "Y": ("d", "d"),
    },
    "outputs": {"g": ("d", "d")},
}
"""Shapes of the inputs and outputs, the same with a softmax and with an activation."""

GLOSSARY = {
    "A1": ("", "input from which the queries are computed, one row for each query"),
    "A2": ("", "input from which the keys are computed, one row for each key"),
    "A3": ("", "input from which the values are computed, one row for each key"),
    "dO": ("", "gradient of the loss with respect to the output of attention"),
    "X": ("", "weights of queries and keys, multiplied: W_Q W_Kᵀ"),
    "Y": ("", "weights of the values, W_V"),
    "S": ("A1 X", "queries, already multiplied by the weights of the keys"),
    "Z": ("S A2ᵀ", "scores: how well each query matches each key"),
    "h": ("A3 Y", "values"),
    "q": ("dO hᵀ", "gradient with respect to the probabilities"),
    "dQ": ("p A2", "gradient with respect to the queries S"),
    "g": ("A1ᵀ p A2", "the result: the gradient of the loss with respect to X"),
}
"""(formula, meaning) of each tensor that is the same with a softmax and with an activation."""

problem(
    "backward",
    **SHAPES,
    kept={"O": ("n_q", "d"), "l": ("n_q",)},
    queries=("A1", "dO", "O", "l"),
    keys=("A2", "A3"),
    scaled=(("X",), ("g",)),
    values=reference,
    source="Li et al., arXiv 2410.09397, Definitions 3.2 and B.3-B.9",
    about="dL/dX of Li et al. 2024 (FlashAttention's own passes: -p forward, -p backward-qkv)",
    graph="pebblesim.graphs.backward:declare",
    theta=repaired("Li et al., Theorem 1.1", f"Li et al., Theorem 1.1, {COMPULSORY}", rectangle=OF_BACKWARD),
    bounds="backward",
    glossary=GLOSSARY
    | {
        "O": ("f h", "output of attention, saved from the forward pass"),
        "A": ("exp(Z)", "numerators of the softmax"),
        "l": ("A · 1", "row sums of A, by which the softmax divides"),
        "f": ("diag(l)⁻¹ A", "probabilities, the softmax of the scores: each row adds up to 1"),
        "fq": ("f ∘ q", "probabilities times their gradients, entry by entry"),
        "dOO": ("dO ∘ O", "output times its gradient, entry by entry; f ∘ q has the same row sums"),
        "v": ("(f ∘ q) · 1", "row sums of f ∘ q: the mean of q under the probabilities of the row"),
        "vf": ("diag(v) f", "the term that the softmax subtracts: each probability times the mean v of its row"),
        "qv": ("q − v 1ᵀ", "q minus the mean v of its row"),
        "p": ("f ∘ q − diag(v) f", "gradient with respect to the scores Z"),
        "T": ("A1ᵀ p", "gradient of the scores, summed over the queries; g = T A2"),
        "Aq": ("A ∘ q", "numerators times their gradients, before the division by the row sums"),
        "w": ("(A ∘ q) · 1", "row sums of A ∘ q; they equal l ∘ v"),
        "wl": ("w / l", "v, computed from two row sums at the end"),
        "U1": ("(A ∘ q) A2", "first part of dQ, before the division by the row sums"),
        "U2": ("A A2", "second part of dQ, before the factor w / l"),
        "wU": ("diag(w / l) U2", "second part of dQ, before the division by the row sums"),
        "dOY": ("dO Yᵀ", "gradient with respect to f A3, the mean of the inputs of the values"),
        "A2X": ("A2 Xᵀ", "keys, already multiplied by the weights X"),
        "U": ("U1 − diag(w / l) U2", "dQ before the division by the row sums l"),
    },
)
