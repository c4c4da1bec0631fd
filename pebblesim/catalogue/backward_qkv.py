"""The gradients of attention with respect to Q, K and V."""

from __future__ import annotations

from collections.abc import Mapping

from pebblesim.catalogue import forward, softmax
from pebblesim.catalogue.theta import COMPULSORY, OF_QKV, repaired
from pebblesim.language.problems import Array, problem


def reference(x: Mapping[str, Array], allowed: Array | None = None) -> dict[str, Array]:
    """The gradients with respect to Q, K and V (Dao et al. 2022, appendix B.2)."""
    made = forward.reference(x, allowed)
    P = made["P"]
    dP = x["dO"] @ x["V"].T
    dS = P * (dP - (P * dP).sum(axis=1)[:, None])
    return {"dQ": dS @ x["K"], "dK": dS.T @ x["Q"], "dV": P.T @ x["dO"], **made}


OF_ROWS = {
    "dO": ("", "gradient of the loss with respect to O"),
    "PdP": ("P ∘ dP", "probabilities times their gradients, entry by entry"),
    "dOO": ("dO ∘ O", "output times its gradient, entry by entry; P ∘ dP has the same row sums"),
    "v": ("(P ∘ dP) · 1", "row sums of P ∘ dP: the mean of dP under the probabilities of the row"),
    "dPv": ("dP − v 1ᵀ", "dP minus the mean v of its row"),
    "dS": ("P ∘ (dP − v 1ᵀ)", "gradient with respect to the scores S"),
}
"""(formula, meaning) of what is between dO and dS."""

problem(
    "backward-qkv",
    dims=("n_q", "n_k", "d_k", "d_v"),
    from_nd={"n_q": "n", "n_k": "n", "d_k": "d", "d_v": "d"},
    inputs={"Q": ("n_q", "d_k"), "K": ("n_k", "d_k"), "V": ("n_k", "d_v"), "dO": ("n_q", "d_v")},
    kept={"O": ("n_q", "d_v")} | dict.fromkeys(("l", "m", "l_m", "L"), ("n_q",)) | {"P": ("n_q", "n_k")},
    outputs={"dQ": ("n_q", "d_k"), "dK": ("n_k", "d_k"), "dV": ("n_k", "d_v")},
    queries=("Q", "dO", "O", "l", "m", "l_m", "L"),
    keys=("K", "V"),
    scaled=(("Q",), ("dQ",)),
    values=reference,
    source="Dao et al. 2022, arXiv 2205.14135, appendix B.2",
    graph="pebblesim.graphs.backward_qkv:declare",
    theta=repaired("Li et al., Theorem 1.1", f"Li et al., Theorem 1.1 for its core, {COMPULSORY}", rectangle=OF_QKV),
    bounds="backward-qkv",
    glossary=forward.GLOSSARY
    | softmax.GLOSSARY
    | OF_ROWS
    | {
        "O": ("P V", "output of attention, saved from the forward pass"),
        "dP": ("dO Vᵀ", "gradient with respect to the probabilities P"),
        "dQ": ("dS K", "a result: the gradient with respect to the queries"),
        "dK": ("dSᵀ Q", "a result: the gradient with respect to the keys"),
        "dV": ("Pᵀ dO", "a result: the gradient with respect to the values"),
    },
)
