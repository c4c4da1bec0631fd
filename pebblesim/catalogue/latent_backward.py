"""The gradients of latent attention in absorbed form: latent words are scored and are values, with one gradient."""

from __future__ import annotations

from collections.abc import Mapping

from pebblesim.catalogue import latent
from pebblesim.catalogue.backward_qkv import OF_ROWS
from pebblesim.catalogue.softmax import GLOSSARY as OF_SOFTMAX
from pebblesim.catalogue.theta import OF_LATENT
from pebblesim.language.problems import Array, Theta, problem


def reference(x: Mapping[str, Array], allowed: Array | None = None) -> dict[str, Array]:
    """dQ_C, dQ_R, dC = Pᵀ dO + dSᵀ Q_C and dR, with O and the saved values of the softmax."""
    made = latent.reference(x, allowed)
    P = made["P"]
    dP = x["dO"] @ x["C"].T
    dS = P * (dP - (P * dP).sum(axis=1)[:, None])
    keys = {"dC": P.T @ x["dO"] + dS.T @ x["Q_C"], "dR": dS.T @ x["Q_R"]}
    return {"dQ_C": dS @ x["C"], "dQ_R": dS @ x["R"], **keys, **made}


problem(
    "backward-latent",
    dims=("n_q", "n_k", "d_v", "d_r"),
    from_nd={"n_q": "n", "n_k": "n", "d_v": "d", "d_r": "d"},
    totals={"d_k": ("d_v", "d_r")},
    inputs={
        "Q_C": ("n_q", "d_v"),
        "Q_R": ("n_q", "d_r"),
        "C": ("n_k", "d_v"),
        "R": ("n_k", "d_r"),
        "dO": ("n_q", "d_v"),
    },
    kept={"O": ("n_q", "d_v"), "l": ("n_q",)},
    outputs={"dQ_C": ("n_q", "d_v"), "dQ_R": ("n_q", "d_r"), "dC": ("n_k", "d_v"), "dR": ("n_k", "d_r")},
    queries=("Q_C", "Q_R", "dO", "O", "l"),
    keys=("C", "R"),
    scaled=(("Q_C", "Q_R"), ("dQ_C", "dQ_R")),
    values=reference,
    source="DeepSeek-AI 2024, arXiv 2405.04434, section 2.1 (absorbed); Dao et al. 2022, appendix B.2",
    graph="pebblesim.graphs.latent_backward:declare",
    theta=Theta(
        "d*n + Min(d**2*n**2/M, d*n**2/sqrt(M))",
        "V4, V5 (docs/lower-bounds.md), two-pass-latent-backward, small-cache-latent-backward, with the compulsory n·d "
        "added (for n ≥ d)",
        OF_LATENT,
    ),
    bounds="backward-latent",
    glossary={
        **latent.OF_KEYS,
        **{name: OF_SOFTMAX[name] for name in ("A", "l", "P")},
        **{name: OF_ROWS[name] for name in ("dO", "dOO", "v", "dPv", "dS")},
        "O": ("P C", "output of attention, saved from the forward pass"),
        "dP": ("dO Cᵀ", "gradient with respect to the probabilities P"),
        "dV": ("Pᵀ dO", "what the latent keys get as values"),
        "dK_C": ("dSᵀ Q_C", "what the latent keys get from the scores"),
        "dC": ("Pᵀ dO + dSᵀ Q_C", "a result: the gradient with respect to the latent keys, in both of their roles"),
        "dR": ("dSᵀ Q_R", "a result: the gradient with respect to the rotary part of the keys"),
        "dQ_C": ("dS C", "a result: the gradient with respect to the queries, the latent part"),
        "dQ_R": ("dS R", "a result: the gradient with respect to the queries, the rotary part"),
    },
)
